// ranks: 1 2 4
// timeout: 600
// Training with FP8 experts follows bf16 on the same grid, with one scale of an operand and with those of blocks: every
// loss of the curve within 0.5 %. What recomputes changes no bit.

#include <gtest/gtest.h>

#include "support/differences.hpp"
#include "support/sampling.hpp"
#include "support/training.hpp"
#include "support/world.hpp"

namespace nanotron {
namespace {

class Fp8Experts : public testing::Test {
 protected:
  void SetUp() override {
    MPI_Comm_rank(test::world(), &rank_);
    MPI_Comm_size(test::world(), &ranks_);
    if (rank_ == 0) test::write_tokens(folder_.path() / "tokens.h5", 32 * 2000 + 1, 100);
    MPI_Barrier(test::world());
    config_.model.hidden_size = 48;
    config_.model.num_hidden_layers = 2;
    config_.model.num_attention_heads = 4;
    config_.model.num_key_value_heads = 2;
    config_.model.head_dim = 12;
    config_.model.intermediate_size = 80;
    config_.model.vocab_size = 100;
    config_.model.moe.num_experts = 4;
    config_.model.moe.num_experts_per_tok = 2;
    config_.data.path = (folder_.path() / "tokens.h5").string();
    config_.data.sequence_length = 32;
    config_.data.global_batch_size = 8;
    config_.data.micro_batch_size = 2;
    config_.optimizer.learning_rate = 2e-3;
    config_.schedule.warmup_steps = 15;
    config_.run.steps = 40;
    config_.checkpoint.resume = "none";
    config_.precision.compute = ScalarType::fp8;
    config_.precision.fp8_experts = true;
  }

  using Change = std::function<void(deck::Config&)>;
  struct Grid {
    const char* name;
    int ranks;
    Change change;
  };
  // Those of this number of ranks.
  std::vector<Grid> grids() const {
    const auto blocks = [](deck::Config& c) { c.precision.fp8_scales = deck::Fp8Scales::blocks; };
    const std::vector<Grid> all{
        {"serial", 1, [](auto&) {}},
        {"serial, blocks", 1, [=](auto& c) { blocks(c); }},
        {"experts over ranks", 2, [](auto& c) { c.parallel.ep = 2; }},
        {"experts over ranks, blocks, ZeRO-3", 2,
         [=](auto& c) {
           blocks(c);
           c.parallel.ep = 2;
           c.parallel.zero_stage = 3;
         }},
        {"tensor parallel, blocks", 2,
         [=](auto& c) {
           blocks(c);
           c.parallel.tp = 2;
         }},
        {"experts over ranks, pipeline, blocks", 4,
         [=](auto& c) {
           blocks(c);
           c.parallel.ep = 2;
           c.parallel.pp = 2;
         }},
        {"experts over ranks, context parallel", 4,
         [](auto& c) {
           c.parallel.ep = 4;
           c.parallel.cp = 2;
         }},
    };
    std::vector<Grid> here;
    std::ranges::copy_if(all, std::back_inserter(here), [&](const Grid& g) { return g.ranks == ranks_; });
    return here;
  }
  test::Numbers trained(const deck::Config& config, std::int64_t steps) const {
    return test::run_training(config, test::world(), steps, false);
  }

  test::TemporaryFolder folder_{test::world(), "fp8_experts"};
  deck::Config config_;
  int rank_ = 0, ranks_ = 1;
};

TEST_F(Fp8Experts, FollowBf16) {
  for (const Grid& grid : test::sampled(grids(), 1, test::world())) {
    SCOPED_TRACE(grid.name);
    deck::Config config = config_;
    grid.change(config);
    const test::Numbers fp8 = trained(config, config.run.steps);
    config.precision.fp8_experts = false;
    const test::Numbers without = trained(config, 2);
    config.precision = {};
    config.precision.compute = ScalarType::bf16;
    const test::Numbers bf16 = trained(config, config.run.steps);
    const double worst = test::largest_relative_difference(fp8.losses, bf16.losses);
    if (rank_ == 0) {
      std::printf("%s: worst difference of a loss %.3f %%; bf16 from %.3f to %.3f\n", grid.name, 100 * worst,
                  bf16.losses.front(), bf16.losses.back());
    }
    EXPECT_LT(worst, 0.005);
    EXPECT_NE(fp8.losses[0], without.losses[0]) << "no expert was quantised";
    EXPECT_LT(bf16.losses.back(), 0.9 * bf16.losses.front()) << "a run that learns nothing proves nothing";
  }
}

// The grouped GEMMs multiply other pieces than the library: near, and the same bits whatever is recomputed.
TEST_F(Fp8Experts, GroupedFollowTheLibrary) {
  for (const Grid& grid : grids()) {
    SCOPED_TRACE(grid.name);
    deck::Config config = config_;
    grid.change(config);
    config.data.global_batch_size = 4;
    config.data.micro_batch_size = 1;
    const test::Numbers library = trained(config, 2);
    config.run.expert_gemms = deck::ExpertGemms::grouped;
    const test::Numbers grouped = trained(config, 2);
    EXPECT_LT(test::largest_relative_difference(grouped.losses, library.losses), 0.002);
    config.parallel.recompute = deck::Recompute::selective;
    const test::Numbers again = trained(config, 2);
    EXPECT_EQ(again.losses, grouped.losses);
    EXPECT_TRUE(again.parameters == grouped.parameters);
  }
}

TEST_F(Fp8Experts, RecomputationChangesNoBit) {
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

}  // namespace
}  // namespace nanotron
