// ranks: 1 2 3
// A layer of experts makes the host wait for the device once in forward, to know how many rows go where.
#include <numeric>

#include "emulation/gpu_test.hpp"
#include "nanotron/nn/moe/expert_exchange.hpp"
#include "support/world.hpp"

namespace nanotron::nn {
namespace {

class ExpertWaits : public testing::Test {
 protected:
  static constexpr index_t hidden = 8, rows_per_expert = 3;
  const index_t ranks_ = comm::Communicator::duplicate(test::world()).size();
  const index_t experts_ = 2 * ranks_, rows_ = rows_per_expert * experts_;
  comm::Group ep_{comm::Communicator::duplicate(test::world()), comm::Transport::nccl};
  Timers timers_;
  Device device_{timers_};

  std::unique_ptr<ExpertExchange<float>> make(Arena& arena) {
    return make_expert_exchange<float>({.assignments = rows_, .rows = rows_, .hidden = hidden, .experts = experts_},
                                       ep_, arena);
  }
  std::uint64_t waits() const { return emulation::Scheduler::instance().host_waits(); }
};

TEST_F(ExpertWaits, OneInForwardNoneInBackward) {
  Arena planning = Arena::planning();
  make(planning);
  const auto take_rows = [&](Arena& arena) { return arena.take<float>(MemoryKind::activations, rows_, hidden); };
  take_rows(planning);
  planning.take<float>(MemoryKind::activations, rows_);
  Arena arena(planning.plan());
  const auto exchange = make(arena);
  const Matrix<float> rows = take_rows(arena);
  const Vector<float> values = arena.take<float>(MemoryKind::activations, rows_);
  const auto all = static_cast<std::size_t>(experts_);
  ExpertRows plan{.sent = std::vector<std::int64_t>(all),
                  .received = std::vector<std::int64_t>(all),
                  .begin = std::vector<std::int64_t>(all / static_cast<std::size_t>(ranks_) + 1)};
  const test::DeviceArray<std::int64_t> counts(std::vector<std::int64_t>(all, rows_per_expert));
  for (int layer = 0; layer < 3; ++layer) {
    const std::uint64_t before = waits();
    exchange->start_plan(device_, Vector<std::int64_t>(counts.data(), experts_), rows_, plan);
    exchange->start_dispatch(device_, plan);
    EXPECT_EQ(waits() - before, ranks_ > 1 ? 0u : 1u);
    exchange->finish_plan(device_, plan);
    EXPECT_EQ(waits() - before, 1u);
    EXPECT_EQ(plan.received_rows, rows_);
    exchange->finish_dispatch(device_, plan, rows, values);
    exchange->start_combine(device_, plan, rows);
    exchange->finish_combine(device_, plan);
    exchange->start_dispatch_rows(device_, plan);
    exchange->finish_dispatch(device_, plan, rows, {});
    exchange->start_combine_values(device_, plan, values);
    exchange->start_combine(device_, plan, rows);
    exchange->finish_combine_values(device_, plan);
    exchange->finish_combine(device_, plan);
    EXPECT_EQ(waits() - before, 1u);
  }
  device_.fence();
}

}  // namespace
}  // namespace nanotron::nn
