// ranks: 1 2 3 4 6
// timeout: 300
// Muon sees whole logical matrices: every grid, ZeRO stage and pipeline follows the serial run.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "support/comparison.hpp"
#include "support/training.hpp"
#include "support/world.hpp"

namespace nanotron {
namespace {

constexpr std::int64_t steps = 6;
constexpr double tolerance = 1e-11;

struct Case {
  std::string model;
  int tp, dp;
  deck::TpMode mode = deck::TpMode::all_reduce;
  std::int64_t zero_stage = 0, zero_size = 0;
  int pp = 1, cp = 1, ep = 1;
};

constexpr auto whole = deck::TpMode::all_reduce, split = deck::TpMode::reduce_scatter;

std::vector<Case> cases_of(int ranks) {
  switch (ranks) {
    case 2:
      return {{"llama", 2, 1},
              {"qwen2", 2, 1, split},
              {"qwen3", 1, 2},
              {"qwen3", 1, 2, whole, 1},
              {"llama", 1, 2, whole, 2},
              {"qwen2", 1, 2, whole, 3},
              {"qwen3", 1, 1, whole, 0, 0, 2},
              {"llama", 1, 1, whole, 1, 0, 1, 2},
              {"mixtral", 1, 2, whole, 0, 0, 1, 1, 2},
              {"qwen2_moe", 2, 1, split},
              {"qwen3_moe", 1, 2, whole, 3},
              {"two_kinds", 1, 2, whole, 3, 0, 1, 1, 2},
              {"two_kinds", 2, 1, split},
              {"two_kinds", 1, 1, whole, 0, 0, 2}};
    case 3:
      return {{"llama", 3, 1}, {"qwen2", 3, 1}, {"qwen3", 3, 1, split}};
    case 4:
      return {{"qwen3", 2, 2},
              {"llama", 2, 2, split},
              {"qwen2", 2, 2, split, 2},
              {"qwen3", 2, 2, whole, 3},
              {"llama", 1, 4, whole, 3, 2},
              {"qwen3", 2, 1, whole, 0, 0, 2},
              {"qwen2_moe", 2, 2, split, 1, 0, 1, 1, 2},
              {"mixtral", 1, 4, whole, 2, 0, 1, 1, 2},
              {"qwen3_moe", 2, 1, whole, 0, 0, 2},
              {"two_kinds", 2, 2, whole, 2}};
    case 6:
      return {{"llama", 3, 2},
              {"qwen2", 3, 2, split, 1},
              {"qwen3", 3, 2, whole, 3},
              {"mixtral", 3, 2, whole, 3, 0, 1, 1, 2}};
    default:
      return {};
  }
}

class Muon : public testing::Test {
 protected:
  void SetUp() override { MPI_Comm_size(test::world(), &ranks_); }

  // two_kinds: a dense layer, then layers with experts.
  static deck::Config config_of(const std::string& model) {
    deck::Config config = test::golden_config(model == "two_kinds" ? "qwen2_moe" : model);
    if (model == "two_kinds") {
      config.checkpoint.resume = "none";
      config.model.num_hidden_layers = 3;
      config.model.moe.expert_layers = "!0";
    }
    config.optimizer.name = "muon";
    return config;
  }
  static deck::Config on(deck::Config config, const Case& c) {
    config.parallel.tp = c.tp;
    config.parallel.dp = c.dp;
    config.parallel.pp = c.pp;
    config.parallel.cp = c.cp;
    config.parallel.ep = c.ep;
    config.parallel.tp_mode = c.mode;
    config.parallel.zero_stage = c.zero_stage;
    config.parallel.zero_size = c.zero_size;
    return config;
  }

  int ranks_ = 1;
};

void expect_same(const test::Numbers& ours, const test::Numbers& reference) {
  EXPECT_LT(test::worst_loss_difference(ours, reference), tolerance);
  EXPECT_EQ(ours.hashes, reference.hashes);
  EXPECT_EQ(ours.adam_steps, reference.adam_steps);
  test::expect_same_state(ours.parameters, reference.parameters);
  test::expect_same_state(ours.exp_avg, reference.exp_avg);
  test::expect_same_state(ours.exp_avg_sq, reference.exp_avg_sq);
  test::expect_same_state(ours.momentum, reference.momentum);
}

TEST_F(Muon, FollowsTheSerialRunOnEveryGrid) {
  double worst = 0.0;
  for (const Case& c : cases_of(ranks_)) {
    SCOPED_TRACE(fmt::format("{} tp {} dp {} mode {} zero {} / {} pp {} cp {} ep {}", c.model, c.tp, c.dp,
                             static_cast<int>(c.mode), c.zero_stage, c.zero_size, c.pp, c.cp, c.ep));
    const test::Numbers reference = test::serial(config_of(c.model), steps);
    const test::Numbers ours = test::run_training(on(config_of(c.model), c), test::world(), steps);
    expect_same(ours, reference);
    worst = test::larger(worst, test::worst_loss_difference(ours, reference));
    EXPECT_EQ(ours.counted.tensor_parallel, ours.predicted.tensor_parallel);
    if (c.dp == 1) continue;
    EXPECT_EQ(ours.counted.data_parallel, ours.predicted.data_parallel);
  }
  int rank = 0;
  MPI_Comm_rank(test::world(), &rank);
  if (rank == 0) std::printf("%d ranks: worst relative difference %.1e\n", ranks_, worst);
}

TEST_F(Muon, HasAMomentForEveryTensor) {
  const test::Numbers ours = test::serial(config_of("qwen2"), 1);
  for (const auto& [name, tensor] : ours.parameters) {
    const bool hidden = name.find("proj/weight") != std::string::npos;
    EXPECT_EQ(ours.momentum.count(name), hidden ? 1u : 0u) << name;
    EXPECT_EQ(ours.exp_avg.count(name), hidden ? 0u : 1u) << name;
    EXPECT_EQ(ours.exp_avg_sq.count(name), hidden ? 0u : 1u) << name;
  }
}

TEST_F(Muon, LearnsAtTheRateOfAdamw) {
  if (ranks_ > 1) return;
  deck::Config config = config_of("llama");
  config.run.steps = 60;
  const test::Numbers muon = test::serial(config, 60);
  config.optimizer.name = "adamw";
  const test::Numbers adamw = test::serial(config, 60);
  std::printf("loss behind 60 steps: muon %.4f, adamw %.4f (from %.4f)\n", muon.losses.back(), adamw.losses.back(),
              adamw.losses.front());
  EXPECT_LT(muon.losses.back(), adamw.losses.back() + 0.1);
}

TEST_F(Muon, InterruptedContinuesBitForBit) {
  if (ranks_ != 1 && ranks_ != 4) return;
  for (const ScalarType type : {ScalarType::fp64, ScalarType::bf16}) {
    SCOPED_TRACE(name_of(type));
    const test::TemporaryFolder folder(test::world(), "muon");
    deck::Config config = config_of("qwen3");
    if (ranks_ == 4) config = on(config, {"qwen3", 2, 2, split, 3});
    config.precision.compute = type;
    config.checkpoint.directory = folder.path().string();
    const test::Numbers all = test::run_training(config, test::world(), 8);
    test::run_training(config, test::world(), 4, true);
    config.checkpoint.resume = "auto";
    const test::Numbers resumed = test::run_training(config, test::world(), 8);
    EXPECT_EQ(resumed.losses, std::vector<double>(all.losses.begin() + 4, all.losses.end()));
    EXPECT_EQ(resumed.adam_steps, 8);
    EXPECT_EQ(resumed.parameters, all.parameters);
    EXPECT_EQ(resumed.exp_avg_sq, all.exp_avg_sq);
    EXPECT_EQ(resumed.momentum, all.momentum);
  }
}

TEST_F(Muon, ContinuesOnAnotherGrid) {
  if (ranks_ != 4) return;
  const test::TemporaryFolder folder(test::world(), "muon_grids");
  deck::Config config = on(config_of("qwen3"), {"qwen3", 4, 1, split});
  config.checkpoint.directory = folder.path().string();
  test::run_training(config, test::world(), 4, true);
  config = on(config, {"qwen3", 2, 2, whole, 2});
  config.checkpoint.resume = "auto";
  test::Numbers resumed = test::run_training(config, test::world(), 8);
  const test::Numbers all = test::serial(config_of("qwen3"), 8);
  for (std::size_t i = 0; i < 4; ++i) EXPECT_NEAR(resumed.losses[i], all.losses[i + 4], 1e-11 * all.losses[i + 4]);
  test::expect_same_state(resumed.parameters, all.parameters);
  test::expect_same_state(resumed.momentum, all.momentum);
}

// Moments of one optimizer are not taken for those of another: they start at zero, as without any.
TEST_F(Muon, StartsAtZeroBehindAnotherOptimizer) {
  if (ranks_ > 2) return;
  const Case grid{"llama", ranks_, 1};
  for (const std::string first : {"adamw", "muon"}) {
    const test::TemporaryFolder folder(test::world(), "muon_adamw");
    deck::Config config = on(config_of("llama"), grid);
    config.optimizer.name = first;
    config.checkpoint.directory = folder.path().string();
    const test::Numbers before = test::run_training(config, test::world(), 2, true);
    config.checkpoint.resume = "auto";
    config.optimizer.name = first == "adamw" ? "muon" : "adamw";
    const test::Numbers at_start = test::run_training(config, test::world(), 2);
    EXPECT_EQ(at_start.adam_steps, 0);
    EXPECT_EQ(at_start.parameters, before.parameters);
    for (const test::Tensors* moment : {&at_start.exp_avg, &at_start.exp_avg_sq, &at_start.momentum}) {
      for (const auto& [name, tensor] : *moment) {
        for (const double value : tensor) ASSERT_EQ(value, 0.0) << name;
      }
    }
    EXPECT_EQ(test::run_training(config, test::world(), 4).adam_steps, 2);
  }
}

}  // namespace
}  // namespace nanotron
