// ranks: 1 2 4
// timeout: 300
// Token files with a loss mask: the mean over the targets that count, the same on every grid.

#include <gtest/gtest.h>

#include <cmath>

#include "nanotron/base/error.hpp"
#include "nanotron/data/tokens/token_file.hpp"
#include "support/comparison.hpp"
#include "support/training.hpp"
#include "support/world.hpp"

namespace nanotron {
namespace {

constexpr std::int64_t length = 12, batch = 8, steps = 6;

class LossMask : public testing::Test {
 protected:
  LossMask() : folder_(test::world(), "loss_mask"), config_(test::golden_config("llama")) {
    MPI_Comm_size(test::world(), &ranks_);
    MPI_Comm_rank(test::world(), &rank_);
    config_.model.num_hidden_layers = 4;
    config_.data.path = path().string();
    config_.data.sequence_length = length;
    config_.data.global_batch_size = batch;
    config_.data.micro_batch_size = 1;
    config_.data.shuffle = deck::Shuffle::none;
    config_.checkpoint.resume = "none";
    if (rank_ == 0) test::write_tokens(path(), size, 131);
    MPI_Barrier(test::world());
  }
  std::filesystem::path path() const { return folder_.path() / "tokens.h5"; }

  // mask(i) of token i.
  template <class F>
  void set_mask(const F& mask) const {
    std::vector<std::uint8_t> values(size);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = mask(i) ? 1 : 0;
    MPI_Barrier(test::world());
    if (rank_ == 0) test::write_loss_mask(path(), values);
    MPI_Barrier(test::world());
  }

  static constexpr std::size_t size = 500;
  int ranks_ = 1, rank_ = 0;
  test::TemporaryFolder folder_;
  deck::Config config_;
};

// Differently many targets in every step, sequence and rank.
TEST_F(LossMask, IsTheSameTrainingOnEveryGrid) {
  set_mask([](std::size_t i) { return i % 7 < 3 || i / 50 % 3 == 1; });
  const test::Numbers reference = test::serial(config_, steps);
  for (const auto axis :
       {&deck::ParallelConfig::dp, &deck::ParallelConfig::tp, &deck::ParallelConfig::pp, &deck::ParallelConfig::cp}) {
    deck::Config config = config_;
    config.parallel.*axis = ranks_;
    SCOPED_TRACE(deck::changed_keys(config));
    const test::Numbers ours = test::run_training(config, test::world(), steps);
    EXPECT_EQ(ours.hashes, reference.hashes);
    EXPECT_LT(test::worst_loss_difference(ours, reference), 1e-11);
    test::expect_same_state(ours.parameters, reference.parameters);
  }
}

TEST_F(LossMask, OfOnesKeepsTheBits) {
  const test::Numbers without = test::serial(config_, steps);
  set_mask([](std::size_t) { return true; });
  const test::Numbers ones = test::serial(config_, steps);
  EXPECT_EQ(ones.losses, without.losses);
  EXPECT_EQ(ones.parameters, without.parameters);
}

// Of each batch the last half is ignored, so that the training is that of the first half.
TEST_F(LossMask, SequencesThatDoNotCountAreNotThere) {
  constexpr std::size_t tokens_of_batch = batch * length;
  set_mask([](std::size_t i) { return i % tokens_of_batch > 0 && i % tokens_of_batch <= tokens_of_batch / 2; });
  const test::Numbers masked = test::serial(config_, 1);
  config_.data.global_batch_size = batch / 2;
  const test::Numbers half = test::serial(config_, 1);
  EXPECT_NEAR(masked.losses[0], half.losses[0], 1e-13);
  EXPECT_NEAR(masked.grad_norms[0], half.grad_norms[0], 1e-12 * half.grad_norms[0]);
  test::expect_same_state(masked.parameters, half.parameters);
}

// The second of three: skipped on every grid and with whatever follows bad steps, and the third continues from the
// first, as if nothing had been between them.
TEST_F(LossMask, ABatchWithoutATargetIsSkipped) {
  constexpr std::size_t tokens_of_batch = batch * length;
  set_mask([](std::size_t i) { return i <= tokens_of_batch || i > 2 * tokens_of_batch; });
  config_.schedule.warmup_steps = 0;
  config_.schedule.kind = deck::ScheduleKind::constant;
  const auto run = [&](auto axis, bool guarded) {
    deck::Config config = config_;
    config.parallel.*axis = ranks_;
    config.run.max_nonfinite_steps = guarded ? 1 : 0;
    if (guarded) config.run.on_bad_step = deck::OnBadStep::roll_back;
    return test::run_training(config, test::world(), 3);
  };
  const test::Numbers first = test::serial(config_, 1);
  for (const auto axis : {&deck::ParallelConfig::dp, &deck::ParallelConfig::pp, &deck::ParallelConfig::cp}) {
    for (const bool guarded : {false, true}) {
      const test::Numbers all = run(axis, guarded);
      ASSERT_EQ(all.losses.size(), 3u);
      EXPECT_NEAR(all.losses[0], first.losses[0], 1e-12);
      EXPECT_TRUE(std::isnan(all.losses[1]));
      EXPECT_EQ(all.grad_norms[1], 0.0);
      EXPECT_TRUE(std::isfinite(all.losses[2]));
      EXPECT_EQ(all.adam_steps, 2);
    }
  }
}

// Differently many targets on the ranks, of which one has none in each step.
TEST_F(LossMask, ARankWithoutATargetIsNoBadStep) {
  constexpr std::size_t part = batch / 2 * length;
  set_mask([](std::size_t i) { return i > 0 && (i - 1) / part % 2 == 0; });
  deck::Config config = config_;
  config.parallel.dp = ranks_;
  const test::Numbers ours = test::run_training(config, test::world(), steps), theirs = test::serial(config_, steps);
  EXPECT_LT(test::worst_loss_difference(ours, theirs), 1e-11);
  EXPECT_EQ(ours.adam_steps, steps);
}

TEST_F(LossMask, OfZerosIsRefusedAtTheStart) {
  set_mask([](std::size_t i) { return i == size - 1; });
  data::TokenFile(path()).loss_mask().require_targets();
  set_mask([](std::size_t) { return false; });
  try {
    data::TokenFile(path()).loss_mask().require_targets();
    FAIL() << "nothing counts";
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::data_error);
    EXPECT_NE(std::string(error.what()).find("0 everywhere"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace nanotron
