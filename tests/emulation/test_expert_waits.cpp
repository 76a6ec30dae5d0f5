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
                                       ep_, {}, arena);
  }
  std::uint64_t waits() const { return emulation::Scheduler::instance().host_waits(); }
};

TEST_F(ExpertWaits, OneInForwardNoneInBackward) {
  Arena planning = Arena::planning();
  make(planning);
  const auto take_rows = [&](Arena& arena) { return arena.take<float>(MemoryKind::activations, rows_, hidden); };
  take_rows(planning);
  planning.take<float>(MemoryKind::activations, rows_);
  planning.take<std::int64_t>(MemoryKind::activations, 2, experts_);
  Arena arena(planning.plan());
  const auto exchange = make(arena);
  const Matrix<float> rows = take_rows(arena);
  const Vector<float> values = arena.take<float>(MemoryKind::activations, rows_);
  const auto all = static_cast<std::size_t>(experts_);
  ExpertRows plan{.sent = std::vector<std::int64_t>(all),
                  .received = std::vector<std::int64_t>(all),
                  .begin = std::vector<std::int64_t>(all / static_cast<std::size_t>(ranks_) + 1),
                  .counts = arena.take<std::int64_t>(MemoryKind::activations, 2, experts_)};
  const test::DeviceArray<std::int64_t> counts(std::vector<std::int64_t>(all, rows_per_expert));
  // The i-th assignment is that of token i, and row i.
  std::vector<std::int64_t> numbers(static_cast<std::size_t>(rows_));
  std::iota(numbers.begin(), numbers.end(), 0);
  const test::DeviceArray<std::int64_t> in_order(numbers);
  const Vector<const std::int64_t> each(in_order.data(), rows_);
  const TokenRoutes routes{.top_k = 1, .experts = each, .rows = each, .sources = each};
  const test::DeviceArray<float> tokens(std::vector<float>(static_cast<std::size_t>(rows_ * hidden), 1.0f));
  const test::DeviceArray<float> sums(std::vector<float>(static_cast<std::size_t>(rows_ * hidden), 1.0f));
  const Matrix<const float> x(tokens.data(), rows_, hidden);
  const Matrix<float> y(sums.data(), rows_, hidden);
  for (int layer = 0; layer < 3; ++layer) {
    const std::uint64_t before = waits();
    exchange->start_plan(device_, routes, Vector<std::int64_t>(counts.data(), experts_), plan);
    exchange->start_dispatch(device_, plan, routes, x, Vector<const float>(tokens.data(), rows_), rows, values);
    EXPECT_EQ(waits() - before, ranks_ > 1 ? 0u : 1u);
    exchange->finish_plan(device_, plan);
    EXPECT_EQ(waits() - before, 1u);
    EXPECT_EQ(plan.received_rows, rows_);
    exchange->finish_dispatch(device_, plan, rows, values);
    exchange->start_combine(device_, plan, rows);
    exchange->add_combined(device_, plan, routes, y);
    exchange->start_dispatch(device_, plan, routes, x, {}, rows, {});
    exchange->finish_dispatch(device_, plan, rows, {});
    exchange->start_combine_values(device_, plan, values);
    exchange->start_combine(device_, plan, rows);
    exchange->finish_combine_values(device_, plan, routes, Vector<float>(sums.data(), rows_));
    exchange->add_combined(device_, plan, routes, y);
    EXPECT_EQ(waits() - before, 1u);
  }
  device_.fence();
}

}  // namespace
}  // namespace nanotron::nn
