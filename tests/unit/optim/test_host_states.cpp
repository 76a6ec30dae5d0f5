// ranks: 1
// States in host memory, copied bucket by bucket to memory of the device and back, on a host too: the bits of those
// that stay there, whatever the size of a bucket and however an update is divided.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "nanotron/deck/config.hpp"
#include "nanotron/optim/optimizer.hpp"
#include "nanotron/optim/weight_average.hpp"
#include "support/orders.hpp"
#include "unit/kernels/kernel_test.hpp"
#include "unit/kernels/optim/scalars.hpp"
#include "unit/optim/state_values.hpp"

namespace nanotron::optim {
namespace {

enum class Pieces { whole, by_source };

struct Case {
  std::string name;
  deck::MomentType moments = deck::MomentType::master;
};

deck::Config config_of(const Case& c, deck::StateMemory memory) {
  deck::Config config;
  config.model = {.hidden_size = 32, .num_hidden_layers = 3, .num_attention_heads = 4};
  config.model.num_key_value_heads = 2, config.model.head_dim = 8, config.model.intermediate_size = 48;
  config.model.vocab_size = 67;
  config.optimizer.name = c.name;
  config.optimizer.ema_decay = 0.9;
  config.optimizer.state_memory = memory;
  config.precision.moments = c.moments;
  config.schedule.kind = deck::ScheduleKind::constant;
  return config;
}

// An optimizer and the average of its weights.
template <class M>
class Trial {
 public:
  Trial(const Case& c, deck::StateMemory memory, std::size_t bucket) : config_(config_of(c, memory)) {
    table_ = model::make_parameter_table(config_.model);
    layouts_ = model::parameter_layouts(table_, {}, model::ComputeWeights::master);
    Arena planning = Arena::planning();
    make(planning, bucket);
    plan = planning.plan();
    arena_.emplace(plan);
    make(*arena_, bucket);
    p_ = test::Array<M>::random(table_.size, 1);
    if constexpr (std::is_same_v<M, float>) copy_ = test::Array<bf16>(table_.size);
  }

  void update(unsigned number, const test::Scalars& scalars, Pieces pieces) {
    const auto g = test::Array<M>::random(table_.size, 100 + number);
    const UpdatedWeights<M> weights{p_.vector(), copy_.vector()};
    optimizer_->update(device_, weights, g.read(), 1e-2, scalars.read());
    average_->update(device_, weights.master, scalars.read());
    for (index_t source = 0; source < table_.sources() && pieces == Pieces::by_source; ++source) go_on(source);
    go_on(all_sources);
    if (optimizer_->wants_curvature()) optimizer_->update_curvature(device_, weights, g.read(), 10.0, scalars.read());
    device_.fence();
    optimizer_->set_steps(optimizer_->steps() + 1);
  }
  // Weights, their copy, states, average.
  std::vector<std::vector<double>> numbers() {
    optimizer_->finish_update(device_);
    average_->finish_update(device_);
    device_.fence();
    p_.pull(), copy_.pull();
    std::vector<std::vector<double>> all{{p_.host.begin(), p_.host.end()}, {}};
    for (const bf16 x : copy_.host) all.back().push_back(static_cast<double>(static_cast<float>(x)));
    for (const auto& moments : {optimizer_->moments(), average_->states()}) {
      for (std::vector<double>& values : test::state_values<M>(moments)) all.push_back(std::move(values));
    }
    return all;
  }

  MemoryPlan plan;

 private:
  void make(Arena& arena, std::size_t bucket) {
    optimizer_ = make_optimizer<M>(
        config_, {.table = table_, .layouts = layouts_, .sharding = {}, .host_bucket = bucket}, arena);
    average_.emplace(config_.optimizer, table_, layouts_, arena, bucket);
    if (!arena.is_planning()) average_->begin(table_, 7);
  }
  void go_on(index_t source) {
    optimizer_->continue_update(device_, source);
    average_->continue_update(device_, source);
  }

  deck::Config config_;
  model::ParameterTable table_;
  nn::ParameterLayouts layouts_;
  std::optional<Arena> arena_;
  Timers timers_;
  Device device_{timers_};
  std::unique_ptr<Optimizer<M>> optimizer_;
  std::optional<WeightAverage<M>> average_;
  test::Array<M> p_{1};
  test::Array<bf16> copy_{0};
};

template <class M>
std::vector<std::vector<double>> trained(const Case& c, deck::StateMemory memory, std::size_t bucket, Pieces pieces) {
  Trial<M> trial(c, memory, bucket);
  const test::Scalars scalars({.gradient_scale = 0.5}), skipped = test::Scalars::skipped();
  for (unsigned number = 1; number <= 4; ++number) trial.update(number, number == 3 ? skipped : scalars, pieces);
  return trial.numbers();
}

// Sizes of buckets and pieces of an update. An emulated GPU is slow.
std::vector<std::pair<std::size_t, Pieces>> divisions() {
  using enum Pieces;
  if (test::legal_orders > 1) return {{20000, by_source}};
  return {{5000, whole},       {5000, by_source}, {100000, whole},
          {100000, by_source}, {1 << 30, whole},  {1 << 30, by_source}};
}

template <class M>
void expect_same_bits(const Case& c) {
  using enum deck::StateMemory;
  const auto expected = trained<M>(c, device, 0, Pieces::whole);
  for (const auto& [bucket, pieces] : divisions()) {
    SCOPED_TRACE(fmt::format("{}, buckets of {}", c.name, bucket));
    EXPECT_EQ(trained<M>(c, host, bucket, pieces), expected);
  }
}

class HostStates : public testing::TestWithParam<Case> {};

TEST_P(HostStates, HaveTheBitsOfStatesOnTheDevice) {
  expect_same_bits<float>(GetParam());
  if (GetParam().moments == deck::MomentType::master) expect_same_bits<double>(GetParam());
}

INSTANTIATE_TEST_SUITE_P(All, HostStates,
                         testing::Values(Case{"adamw"}, Case{"adamw", deck::MomentType::bf16}, Case{"muon"},
                                         Case{"ademamix"}, Case{"lion", deck::MomentType::bf16},
                                         Case{"schedule_free_adamw"}, Case{"sophia"}),
                         [](const auto& info) { return fmt::format("case{}", info.index); });

TEST(HostBuckets, AreInOrderInAllOrdersOfTheStreams) {
  using enum deck::StateMemory;
  const Case adamw{"adamw"};
  const auto expected = trained<float>(adamw, device, 0, Pieces::whole);
  test::in_legal_orders([&] { EXPECT_EQ(trained<float>(adamw, host, 8192, Pieces::by_source), expected); });
}

// Of buckets that all are full: as many as the largest layer has, at least three and at most sixteen, and no more than
// there are.
TEST(HostBuckets, TakeFewBuffers) {
  const auto workspace = [](std::size_t bucket) {
    const Trial<float> trial({"lion"}, deck::StateMemory::host, bucket);
    return trial.plan.bytes[static_cast<std::size_t>(MemoryKind::workspace)];
  };
  EXPECT_EQ(workspace(1024), 2 * 16 * 1024u);  // of Lion and of the average
  EXPECT_EQ(workspace(16384), 2 * 3 * 16384u);
  const Trial<float> here({"lion"}, deck::StateMemory::device, 0), there({"lion"}, deck::StateMemory::host, 1024);
  EXPECT_EQ(there.plan.on_host(), here.plan.bytes[static_cast<std::size_t>(MemoryKind::optimizer)]);
}

}  // namespace
}  // namespace nanotron::optim
