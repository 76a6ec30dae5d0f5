// ranks: 2 3 4 6
// timeout: 300
// Parameters, gradients and moments sharded over replicas follow the serial run, in every stage, group size and
// split of the model; what they take and what they send is what was predicted.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "support/comparison.hpp"
#include "support/training.hpp"
#include "support/world.hpp"

namespace nanotron {
namespace {

constexpr std::int64_t steps = test::compared_steps;
constexpr double tolerance = 1e-11;

class Zero : public testing::TestWithParam<std::tuple<const char*, int>> {
 protected:
  void SetUp() override {
    MPI_Comm_size(test::world(), &ranks_);
    MPI_Comm_rank(test::world(), &rank_);
    config_ = test::golden_config(std::get<0>(GetParam()));
    config_.parallel.zero_stage = std::get<1>(GetParam());
  }

  // Divisors of `replicas`, 1 left out; 0 stands for all.
  static std::vector<std::int64_t> group_sizes(std::int64_t replicas) {
    std::vector<std::int64_t> sizes{0};
    for (std::int64_t s = 2; s < replicas; ++s) {
      if (replicas % s == 0) sizes.push_back(s);
    }
    return sizes;
  }

  test::Numbers run(std::int64_t until = steps) const { return test::run_training(config_, test::world(), until); }

  void expect_follows(const test::Numbers& ours, const test::Numbers& reference) const {
    EXPECT_LT(test::worst_loss_difference(ours, reference), tolerance);
    EXPECT_EQ(ours.hashes, reference.hashes);
    EXPECT_EQ(ours.counted.tensor_parallel, ours.predicted.tensor_parallel);
    EXPECT_EQ(ours.counted.data_parallel, ours.predicted.data_parallel);
    test::expect_same_state(ours.parameters, reference.parameters);
    test::expect_same_state(ours.exp_avg, reference.exp_avg);
    test::expect_same_state(ours.exp_avg_sq, reference.exp_avg_sq);
  }

  int ranks_ = 1, rank_ = 0;
  deck::Config config_;
};

TEST_P(Zero, FollowsTheSerialRun) {
  const test::Numbers reference = test::serial(config_, steps);
  double worst = 0.0;
  for (const std::int64_t tp : {1, 2, 3}) {
    const std::int64_t dp = ranks_ / tp;
    if (tp * dp != ranks_ || dp == 1 || 8 % dp != 0) continue;
    config_.parallel.tp = tp;
    config_.parallel.dp = dp;
    for (const auto mode : {deck::TpMode::all_reduce, deck::TpMode::reduce_scatter}) {
      if (tp == 1 && mode == deck::TpMode::reduce_scatter) continue;
      config_.parallel.tp_mode = mode;
      for (const std::int64_t size : group_sizes(dp)) {
        SCOPED_TRACE(fmt::format("tp {} dp {} zero_size {} tp_mode {}", tp, dp, size, static_cast<int>(mode)));
        config_.parallel.zero_size = size;
        const test::Numbers ours = run();
        worst = test::larger(worst, test::worst_loss_difference(ours, reference));
        expect_follows(ours, reference);
      }
    }
  }
  if (rank_ == 0) {
    std::printf("%s stage %d on %d ranks: worst relative difference %.1e\n", std::get<0>(GetParam()),
                std::get<1>(GetParam()), ranks_, worst);
  }
}

// Sums of one node run in rank order whatever is summed where: without clipping, whose norm is summed by pieces,
// no bit differs from the run that shards nothing.
TEST_P(Zero, WithoutClippingGivesTheBitsOfTheUnshardedRun) {
  if (8 % ranks_ != 0) return;
  config_.optimizer.clip_grad_norm = 0.0;
  config_.data.micro_batch_size = 8 / ranks_;  // one a step: later stages sum over ranks before micro-batches
  for (const ScalarType type : {ScalarType::fp32, ScalarType::bf16}) {
    SCOPED_TRACE(name_of(type));
    config_.precision.compute = type;
    const test::Numbers ours = run(4);
    deck::Config plain = config_;
    plain.parallel.zero_stage = 0;
    const test::Numbers whole = test::run_training(plain, test::world(), 4);
    EXPECT_EQ(ours.losses, whole.losses);
    EXPECT_EQ(ours.parameters, whole.parameters);
    EXPECT_EQ(ours.exp_avg, whole.exp_avg);
    EXPECT_EQ(ours.exp_avg_sq, whole.exp_avg_sq);
  }
}

TEST_P(Zero, RecomputationAndOverlapChangeNoBit) {
  if (8 % ranks_ != 0) return;
  const test::Numbers one = run(4);
  const auto same = [&] {
    const test::Numbers other = run(4);
    EXPECT_EQ(other.losses, one.losses);
    EXPECT_EQ(other.grad_norms, one.grad_norms);
    EXPECT_EQ(other.parameters, one.parameters);
    EXPECT_EQ(other.counted.data_parallel, one.counted.data_parallel);
  };
  config_.parallel.overlap = false;
  same();
  config_.parallel.overlap = true;
  for (const auto mode : {deck::Recompute::selective, deck::Recompute::full}) {
    config_.parallel.recompute = mode;
    same();
  }
}

TEST_P(Zero, MicroBatchesFollowWithinRounding) {
  if (8 % ranks_ != 0) return;
  const test::Numbers reference = test::serial(config_, steps);
  for (std::int64_t size = 1; size <= 8 / ranks_; size *= 2) {
    SCOPED_TRACE(size);
    config_.data.micro_batch_size = size;
    expect_follows(run(), reference);
  }
}

// Ten steps with one stage and grid, ten more with another, from the checkpoint between them.
TEST_P(Zero, ResumesFromEveryStageAndGrid) {
  if (8 % ranks_ != 0 || std::string(std::get<0>(GetParam())) != "qwen3") return;  // files take their time
  const test::TemporaryFolder folder(test::world(), "zero");
  const deck::Config sharded = config_;
  const test::Numbers whole = test::serial(config_, 20);
  const auto goes_on = [&](const deck::Config& first, const deck::Config& second) {
    deck::Config config = first;
    config.checkpoint.directory = folder.path().string();
    test::run_training(config, test::world(), 10, true);
    config.parallel = second.parallel;
    config.checkpoint.resume = "auto";
    const test::Numbers resumed = test::run_training(config, test::world(), 20);
    ASSERT_EQ(resumed.losses.size(), 10u);
    for (std::size_t i = 0; i < 10; ++i)
      EXPECT_NEAR(resumed.losses[i], whole.losses[i + 10], 1e-11 * whole.losses[i + 10]);
    EXPECT_EQ(resumed.adam_steps, 20);
    test::expect_same_state(resumed.parameters, whole.parameters);
    for (const auto& [name, tensor] : whole.exp_avg) {
      EXPECT_LT(test::relative_difference(resumed.exp_avg.at(name), tensor), 1e-8) << name;
      EXPECT_LT(test::relative_difference(resumed.exp_avg_sq.at(name), whole.exp_avg_sq.at(name)), 1e-8) << name;
    }
  };
  deck::Config split = sharded, other = sharded, plain = sharded;
  split.parallel.tp = 2;  // with 4 ranks still sharded
  plain.parallel.zero_stage = 0;
  other.parallel.zero_stage = sharded.parallel.zero_stage % 3 + 1;
  if (ranks_ == 4) other.parallel.zero_size = 2;
  goes_on(sharded, other);
  goes_on(plain, sharded);
  goes_on(sharded, plain);
  goes_on(split, sharded);
}

TEST_P(Zero, InBf16ContinuesBitForBit) {
  if (8 % ranks_ != 0 || std::string(std::get<0>(GetParam())) != "qwen2") return;
  config_.precision.compute = ScalarType::bf16;
  if (ranks_ == 4) config_.parallel.zero_size = 2;
  const test::TemporaryFolder folder(test::world(), "zero_bf16");
  config_.checkpoint.directory = folder.path().string();
  const test::Numbers whole = run(12);
  test::run_training(config_, test::world(), 6, true);
  config_.checkpoint.resume = "auto";
  const test::Numbers resumed = run(12);
  EXPECT_EQ(resumed.losses, std::vector<double>(whole.losses.begin() + 6, whole.losses.end()));
  EXPECT_EQ(resumed.parameters, whole.parameters);
  EXPECT_EQ(resumed.exp_avg, whole.exp_avg);
  EXPECT_EQ(resumed.exp_avg_sq, whole.exp_avg_sq);
  EXPECT_EQ(resumed.counted.data_parallel, resumed.predicted.data_parallel);
}

INSTANTIATE_TEST_SUITE_P(Stages, Zero,
                         testing::Combine(testing::Values("llama", "qwen2", "qwen3"), testing::Values(1, 2, 3)),
                         [](const auto& info) {
                           return fmt::format("{}_{}", std::get<0>(info.param), std::get<1>(info.param));
                         });

}  // namespace
}  // namespace nanotron
