// ranks: 1 2 4
// timeout: 300
// Training with FP8 linear layers follows bf16 on the same grid: every loss of the curve within 0.5 %. What recomputes,
// resumes or delays weight gradients changes no bit.

#include <gtest/gtest.h>

#include "support/differences.hpp"
#include "support/sampling.hpp"
#include "support/training.hpp"
#include "support/world.hpp"

namespace nanotron {
namespace {

class Fp8Training : public testing::Test {
 protected:
  void SetUp() override {
    MPI_Comm_rank(test::world(), &rank_);
    MPI_Comm_size(test::world(), &ranks_);
    if (rank_ == 0) test::write_tokens(folder_.path() / "tokens.h5", 64 * 2000 + 1, 100);
    MPI_Barrier(test::world());
    config_.model.hidden_size = 64;
    config_.model.num_hidden_layers = 4;
    config_.model.num_attention_heads = 4;
    config_.model.num_key_value_heads = 2;
    config_.model.head_dim = 16;
    config_.model.intermediate_size = 192;
    config_.model.vocab_size = 100;
    config_.model.qkv_bias = true;
    config_.data.path = (folder_.path() / "tokens.h5").string();
    config_.data.sequence_length = 64;
    config_.data.global_batch_size = 16;
    config_.data.micro_batch_size = 4;
    config_.optimizer.learning_rate = 2e-3;  // calm: a hot rate amplifies any rounding
    config_.schedule.warmup_steps = 30;
    config_.run.steps = 72;
    config_.checkpoint.resume = "none";
    config_.precision.compute = ScalarType::fp8;
  }

  using Change = std::function<void(deck::Config&)>;
  struct Grid {
    const char* name;
    int ranks;
    Change change;
  };
  // Those of this number of ranks.
  std::vector<Grid> grids() const {
    const std::vector<Grid> all{
        {"serial", 1, [](auto&) {}},
        {"scales of blocks", 1, [](auto& c) { c.precision.fp8_scales = deck::Fp8Scales::blocks; }},
        {"a width that tensor cores do not take", 1, [](auto& c) { c.model.intermediate_size = 172; }},
        {"sequence parallel", 2,
         [](auto& c) {
           c.parallel.tp = 2;
           c.parallel.tp_mode = deck::TpMode::reduce_scatter;
           c.parallel.tp_overlap_chunks = 3;
         }},
        {"tensor parallel", 2, [](auto& c) { c.parallel.tp = 2; }},
        {"pipeline", 2, [](auto& c) { c.parallel.pp = 2; }},
        {"ZeRO-3", 2, [](auto& c) { c.parallel.zero_stage = 3; }},
        {"ZeRO-3, scales of blocks", 2,
         [](auto& c) {
           c.parallel.zero_stage = 3;
           c.precision.fp8_scales = deck::Fp8Scales::blocks;
         }},
        {"sequence parallel, scales of blocks", 2,
         [](auto& c) {
           c.parallel.tp = 2;
           c.parallel.tp_mode = deck::TpMode::reduce_scatter;
           c.parallel.tp_overlap_chunks = 3;
           c.precision.fp8_scales = deck::Fp8Scales::blocks;
         }},
        {"context parallel", 2, [](auto& c) { c.parallel.cp = 2; }},
        {"tensor parallel, ZeRO-1", 4,
         [](auto& c) {
           c.parallel.tp = 2;
           c.parallel.zero_stage = 1;
         }},
        {"sequence parallel, pipeline", 4,
         [](auto& c) {
           c.parallel.tp = 2;
           c.parallel.tp_mode = deck::TpMode::reduce_scatter;
           c.parallel.tp_gathered_inputs = deck::GatheredInputs::keep;
           c.parallel.pp = 2;
         }},
    };
    std::vector<Grid> here;
    std::ranges::copy_if(all, std::back_inserter(here), [&](const Grid& g) { return g.ranks == ranks_; });
    return here;
  }
  test::Numbers trained(const deck::Config& config, std::int64_t steps, bool save = false) const {
    return test::run_training(config, test::world(), steps, save);
  }

  test::TemporaryFolder folder_{test::world(), "fp8"};
  deck::Config config_;
  int rank_ = 0, ranks_ = 1;
};

TEST_F(Fp8Training, FollowsBf16) {
  for (const Grid& grid : test::sampled(grids(), 1, test::world())) {
    SCOPED_TRACE(grid.name);
    deck::Config config = config_;
    grid.change(config);
    const test::Numbers fp8 = trained(config, config.run.steps);
    config.precision = {};
    config.precision.compute = ScalarType::bf16;
    const test::Numbers bf16 = trained(config, config.run.steps);
    const double worst = test::largest_relative_difference(fp8.losses, bf16.losses);
    if (rank_ == 0) {
      std::printf("%s: worst difference of a loss %.3f %%; bf16 from %.3f to %.3f\n", grid.name, 100 * worst,
                  bf16.losses.front(), bf16.losses.back());
    }
    EXPECT_LT(worst, 0.005);
    EXPECT_NE(fp8.losses, bf16.losses) << "nothing was quantised";
    EXPECT_LT(bf16.losses.back(), 0.6 * bf16.losses.front()) << "a run that learns nothing proves nothing";
    EXPECT_EQ(fp8.counted.tensor_parallel, fp8.predicted.tensor_parallel);
    EXPECT_EQ(fp8.counted.data_parallel, fp8.predicted.data_parallel);
    EXPECT_EQ(fp8.counted.pipeline, fp8.predicted.pipeline);
  }
}

TEST_F(Fp8Training, RecomputationChangesNoBit) {
  for (const Grid& grid : grids()) {
    SCOPED_TRACE(grid.name);
    deck::Config config = config_;
    grid.change(config);
    const test::Numbers kept = trained(config, 3);
    for (const auto mode : {deck::Recompute::selective, deck::Recompute::full}) {
      config.parallel.recompute = mode;
      const test::Numbers again = trained(config, 3);
      EXPECT_EQ(again.losses, kept.losses);
      EXPECT_TRUE(again.parameters == kept.parameters);
    }
  }
}

TEST_F(Fp8Training, DelayedWeightGradientsChangeNoBit) {
  if (ranks_ != 2) GTEST_SKIP() << "a pipeline of two stages";
  for (const auto scales : {deck::Fp8Scales::rows, deck::Fp8Scales::blocks}) {
    deck::Config config = config_;
    config.precision.fp8_scales = scales;
    config.parallel.pp = 2;
    const test::Numbers whole = trained(config, 3);
    config.parallel.pp_schedule = deck::PpSchedule::zero_bubble;
    const test::Numbers delayed = trained(config, 3);
    EXPECT_EQ(delayed.losses, whole.losses);
    EXPECT_TRUE(delayed.parameters == whole.parameters);
  }
}

// Codes made from weights of which a copy in bf16 is stored (1), gathered (3), or made for this alone (0).
TEST_F(Fp8Training, ShardingChangesNoBit) {
  if (ranks_ != 2) GTEST_SKIP() << "two replicas";
  config_.optimizer.clip_grad_norm = 0.0;
  config_.data.micro_batch_size = 8;  // one a step: later stages sum over ranks before micro-batches
  const test::Numbers whole = trained(config_, 4);
  for (const int stage : {1, 3}) {
    config_.parallel.zero_stage = stage;
    const test::Numbers sharded = trained(config_, 4);
    EXPECT_EQ(sharded.losses, whole.losses) << stage;
    EXPECT_TRUE(sharded.parameters == whole.parameters) << stage;
  }
}

// The master weights are those of every compute type of 32 bits: a checkpoint continues in any of them.
TEST_F(Fp8Training, ResumesBitForBitAndInOtherTypes) {
  const deck::Config config = [&] {
    deck::Config c = config_;
    grids().front().change(c);
    c.checkpoint.directory = (folder_.path() / "checkpoints").string();
    return c;
  }();
  const test::Numbers whole = trained(config, 8);
  trained(config, 5, true);
  deck::Config resumed = config;
  resumed.checkpoint.resume = "auto";
  const test::Numbers rest = trained(resumed, 8);
  ASSERT_EQ(rest.losses.size(), 3u);
  EXPECT_TRUE(std::equal(rest.losses.begin(), rest.losses.end(), whole.losses.begin() + 5));
  EXPECT_TRUE(rest.parameters == whole.parameters);
  for (const ScalarType type : {ScalarType::bf16, ScalarType::fp32}) {
    resumed.precision.compute = type;
    const test::Numbers other = trained(resumed, 8);
    for (std::size_t i = 0; i < 3; ++i) EXPECT_NEAR(other.losses[i], rest.losses[i], 5e-3 * rest.losses[i]);
  }
}

}  // namespace
}  // namespace nanotron
