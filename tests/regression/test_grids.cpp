// ranks: 1 2 3 4 6 8
// timeout: 300
// Every grid follows the serial run: TP in {1, 2, 3, 4} with DP in {1, 2, 4, 8}, for models whose heads,
// widths and vocabulary do not divide, with a whole and a split residual stream, in every mode of
// recomputation and with any micro-batch and bucket.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "support/comparison.hpp"
#include "support/training.hpp"
#include "support/world.hpp"

namespace nanotron {
namespace {

constexpr std::int64_t steps = test::compared_steps;
constexpr double tolerance = 1e-11;

struct Grid {
  int tp;
  int dp;
  deck::TpMode mode;
};

std::vector<Grid> grids_of(int ranks) {
  std::vector<Grid> grids;
  for (const int tp : {1, 2, 3, 4}) {
    const int dp = ranks / tp;
    if (tp * dp != ranks || (dp != 1 && dp != 2 && dp != 4 && dp != 8)) continue;
    grids.push_back({tp, dp, deck::TpMode::all_reduce});
    if (tp > 1) grids.push_back({tp, dp, deck::TpMode::reduce_scatter});
  }
  return grids;
}

class Grids : public testing::TestWithParam<const char*> {};

TEST_P(Grids, FollowTheSerialRun) {
  int ranks = 1;
  MPI_Comm_size(test::world(), &ranks);
  deck::Config config = test::golden_config(GetParam());
  const test::Numbers reference = test::serial(config, steps);
  for (const Grid& grid : grids_of(ranks)) {
    const char* mode = grid.mode == deck::TpMode::all_reduce ? "all_reduce" : "reduce_scatter";
    SCOPED_TRACE(fmt::format("tp {} dp {} {}", grid.tp, grid.dp, mode));
    config.parallel.tp = grid.tp;
    config.parallel.dp = grid.dp;
    config.parallel.tp_mode = grid.mode;
    const test::Numbers ours = test::run_training(config, test::world(), steps);
    const double worst = test::worst_loss_difference(ours, reference);
    EXPECT_LT(worst, tolerance);
    EXPECT_EQ(ours.hashes, reference.hashes);
    EXPECT_EQ(ours.adam_steps, reference.adam_steps);
    EXPECT_EQ(ours.counted.tensor_parallel, ours.predicted.tensor_parallel);
    EXPECT_EQ(ours.counted.data_parallel, ours.predicted.data_parallel);
    test::expect_same_state(ours.parameters, reference.parameters);
    test::expect_same_state(ours.exp_avg, reference.exp_avg);
    test::expect_same_state(ours.exp_avg_sq, reference.exp_avg_sq);
    int rank = 0;
    MPI_Comm_rank(test::world(), &rank);
    if (rank != 0) continue;
    std::printf("%s tp %d dp %d %s: worst relative difference %.1e\n", GetParam(), grid.tp, grid.dp, mode, worst);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Grids, testing::Values("llama", "qwen2", "qwen3"),
                         [](const auto& info) { return std::string(info.param); });

class Choices : public testing::TestWithParam<deck::TpMode> {
 protected:
  void SetUp() override {
    MPI_Comm_size(test::world(), &ranks_);
    config_ = test::golden_config("qwen3");
    config_.parallel.tp = ranks_ % 3 == 0 ? 3 : ranks_ % 2 == 0 ? 2 : 1;
    config_.parallel.dp = ranks_ / config_.parallel.tp;
    config_.parallel.tp_mode = GetParam();
  }
  int ranks_ = 1;
  deck::Config config_;
};

TEST_P(Choices, RecomputationChangesNoBit) {
  const test::Numbers kept = test::run_training(config_, test::world(), 4);
  EXPECT_EQ(kept.counted.tensor_parallel, kept.predicted.tensor_parallel);
  for (const auto mode : {deck::Recompute::selective, deck::Recompute::full}) {
    config_.parallel.recompute = mode;
    const test::Numbers again = test::run_training(config_, test::world(), 4);
    EXPECT_EQ(again.losses, kept.losses);
    EXPECT_EQ(again.parameters, kept.parameters);
    EXPECT_EQ(again.counted.tensor_parallel, again.predicted.tensor_parallel);
  }
}

TEST_P(Choices, BucketsAndOverlapChangeNoBit) {
  const test::Numbers one = test::run_training(config_, test::world(), 4);
  for (const double megabytes : {0.001, 0.0137}) {
    config_.parallel.bucket_mb = megabytes;
    for (const bool overlap : {true, false}) {
      config_.parallel.overlap = overlap;
      const test::Numbers other = test::run_training(config_, test::world(), 4);
      EXPECT_EQ(other.losses, one.losses) << megabytes << overlap;
      EXPECT_EQ(other.parameters, one.parameters) << megabytes << overlap;
    }
  }
}

TEST_P(Choices, MicroBatchesFollowWithinRounding) {
  const test::Numbers one = test::run_training(config_, test::world(), steps);
  for (const std::int64_t size : {2, 4, 8}) {
    if (8 / config_.parallel.dp % size != 0) continue;
    config_.data.micro_batch_size = size;
    const test::Numbers other = test::run_training(config_, test::world(), steps);
    EXPECT_LT(test::worst_loss_difference(other, one), tolerance) << size;
    EXPECT_EQ(other.hashes, one.hashes);
  }
}

TEST_P(Choices, RankOrderFollowsWithinRounding) {
  const test::Numbers one = test::run_training(config_, test::world(), 4);
  config_.parallel.order = "dp-pp-cp-tp";
  const test::Numbers other = test::run_training(config_, test::world(), 4);
  EXPECT_LT(test::worst_loss_difference(other, one), tolerance);
}

TEST_P(Choices, ASecondRunGivesTheSameBits) {
  const test::Numbers one = test::run_training(config_, test::world(), 4);
  const test::Numbers two = test::run_training(config_, test::world(), 4);
  EXPECT_EQ(one.losses, two.losses);
  EXPECT_EQ(one.grad_norms, two.grad_norms);
  EXPECT_EQ(one.parameters, two.parameters);
}

INSTANTIATE_TEST_SUITE_P(Modes, Choices, testing::Values(deck::TpMode::all_reduce, deck::TpMode::reduce_scatter),
                         [](const auto& info) {
                           return std::string(info.param == deck::TpMode::all_reduce ? "whole" : "split");
                         });

}  // namespace
}  // namespace nanotron
