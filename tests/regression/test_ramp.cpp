// ranks: 1 2 4
// timeout: 300
// A batch-size ramp: the same tokens and the same training on every grid, with every reducer and schedule, and after
// restarts in the middle of it.

#include <gtest/gtest.h>

#include "support/comparison.hpp"
#include "support/training.hpp"
#include "support/world.hpp"

namespace nanotron {
namespace {

constexpr std::int64_t steps = test::compared_steps;

class Ramp : public testing::Test {
 protected:
  Ramp() : config_(test::golden_config("llama")) {
    MPI_Comm_size(test::world(), &ranks_);
    config_.checkpoint.resume = "none";
    config_.model.num_hidden_layers = 8;
    config_.data.global_batch_size = 16;
    config_.data.micro_batch_size = 1;
    config_.data.rampup_batch_size = config_.data.rampup_increment = 4;  // 4 x 4, 2 x 8, 2 x 12, 16, ...
    config_.data.rampup_samples = 45;
  }

  // All ranks along one axis.
  deck::Config on(std::int64_t deck::ParallelConfig::*axis) const {
    deck::Config config = config_;
    config.parallel.*axis = ranks_;
    return config;
  }
  deck::Config pipeline(deck::PpSchedule schedule) const {
    deck::Config config = on(&deck::ParallelConfig::pp);
    if (ranks_ > 1) config.parallel.pp_schedule = schedule;
    return config;
  }
  deck::Config zero(std::int64_t stage) const {
    deck::Config config = on(&deck::ParallelConfig::dp);
    config.parallel.zero_stage = stage;
    return config;
  }

  int ranks_ = 1;
  deck::Config config_;
};

TEST_F(Ramp, IsTheSameTrainingOnEveryGrid) {
  const test::Numbers reference = test::serial(config_, steps);
  using P = deck::ParallelConfig;
  deck::Config large = on(&P::tp);
  large.data.micro_batch_size = 4;
  using enum deck::PpSchedule;
  for (const deck::Config& config : {on(&P::dp), large, on(&P::cp), pipeline(one_f_one_b), pipeline(gpipe),
                                     pipeline(interleaved_1f1b), pipeline(zero_bubble), zero(1), zero(2), zero(3)}) {
    SCOPED_TRACE(deck::changed_keys(config));
    const test::Numbers ours = test::run_training(config, test::world(), steps);
    EXPECT_EQ(ours.hashes, reference.hashes);
    EXPECT_LT(test::worst_loss_difference(ours, reference), 1e-11);
    test::expect_same_state(ours.parameters, reference.parameters);
  }
}

// Experts over ep ranks; a bias balances the load of each step's own tokens.
TEST_F(Ramp, OfExpertsIsTheSameTrainingOnEveryGrid) {
  config_.model = test::golden_config("mixtral").model;
  config_.model.num_hidden_layers = 4;
  config_.model.moe.expert_layers = "!0";
  config_.model.moe.router_bias_update_rate = 0.02;
  const test::Numbers reference = test::serial(config_, steps);
  using P = deck::ParallelConfig;
  deck::Config experts = on(&P::dp);
  experts.parallel.ep = ranks_;
  deck::Config sharded = experts;
  sharded.parallel.zero_stage = 3;
  for (const deck::Config& config : {experts, sharded, on(&P::tp), pipeline(deck::PpSchedule::one_f_one_b)}) {
    SCOPED_TRACE(deck::changed_keys(config));
    const test::Numbers ours = test::run_training(config, test::world(), steps);
    EXPECT_EQ(ours.hashes, reference.hashes);
    EXPECT_LT(test::worst_loss_difference(ours, reference), 1e-11);
    test::expect_same_state(ours.parameters, reference.parameters);
    const std::string bias = "model/layers/mlp/gate/e_score_correction_bias";
    EXPECT_EQ(ours.parameters.at(bias), reference.parameters.at(bias));
    EXPECT_FALSE(ours.exp_avg.contains(bias));
  }
}

// The loss of a step is the mean over its own targets, and those of its routers are means over its tokens: those of a
// run whose batch has this size.
TEST_F(Ramp, AStepIsThatOfItsBatch) {
  for (const char* golden : {"llama", "mixtral"}) {
    config_.model = test::golden_config(golden).model;
    deck::Config constant = config_;
    constant.data.rampup_batch_size = constant.data.rampup_increment = constant.data.rampup_samples = 0;
    constant.data.global_batch_size = 4;
    const test::Numbers ramp = test::serial(config_, 3), small = test::serial(constant, 3);
    EXPECT_EQ(ramp.hashes, small.hashes);
    EXPECT_EQ(ramp.losses, small.losses);
    EXPECT_EQ(ramp.grad_norms, small.grad_norms);
    EXPECT_EQ(ramp.parameters, small.parameters);
    for (std::size_t i = 0; i < ramp.routers.size(); ++i)
      EXPECT_EQ(ramp.routers[i].load_balance, small.routers[i].load_balance);
  }
}

TEST_F(Ramp, RestartsInItsMiddleAreExact) {
  const test::TemporaryFolder folder(test::world(), "ramp");
  config_.checkpoint.directory = folder.path().string();
  const deck::Config config = on(&deck::ParallelConfig::dp);
  const test::Numbers whole = test::run_training(config, test::world(), steps);
  std::vector<std::uint64_t> hashes;
  std::vector<double> losses;
  test::Numbers part;
  for (const std::int64_t until : {steps / 4, steps / 2, steps}) {
    deck::Config next = config;
    next.checkpoint.resume = "auto";
    part = test::run_training(next, test::world(), until, true);
    hashes.insert(hashes.end(), part.hashes.begin(), part.hashes.end());
    losses.insert(losses.end(), part.losses.begin(), part.losses.end());
  }
  EXPECT_EQ(hashes, whole.hashes);
  EXPECT_EQ(losses, whole.losses);
  EXPECT_EQ(part.parameters, whole.parameters);
}

TEST_F(Ramp, WithLayoutTheBitsAreThoseOfEveryGrid) {
  config_.precision.reproducible = deck::Reproducible::layout;
  config_.precision.compute = ScalarType::fp32;
  config_.data.sequence_length = 16;
  const test::Numbers reference = test::serial(config_, 7);
  for (const std::int64_t shards : {0, 8}) {  // a sequence each, two each
    config_.precision.batch_shards = shards;
    const test::Numbers serial = shards == 0 ? reference : test::serial(config_, 7);
    for (const auto axis : {&deck::ParallelConfig::dp, &deck::ParallelConfig::pp}) {
      if (shards == 8 && ranks_ == 4 && axis == &deck::ParallelConfig::dp) continue;  // 4 sequences: 2 for 2 ranks
      const test::Numbers ours = test::run_training(on(axis), test::world(), 7);
      EXPECT_EQ(ours.losses, serial.losses) << shards;
      EXPECT_EQ(ours.parameters, serial.parameters) << shards;
    }
  }
}

}  // namespace
}  // namespace nanotron
