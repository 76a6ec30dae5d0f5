// ranks: 2 4
// timeout: 300
// Training with Adasum: the same on every grid with as many replicas, that of the sum where gradients are equal,
// nothing of it in a checkpoint, and as many bytes as were predicted.

#include <gtest/gtest.h>

#include "support/comparison.hpp"
#include "support/training.hpp"
#include "support/world.hpp"

namespace nanotron {
namespace {

constexpr std::int64_t steps = test::compared_steps;
constexpr double tolerance = 1e-11;

class Adasum : public testing::Test {
 protected:
  void SetUp() override {
    MPI_Comm_size(test::world(), &ranks_);
    config_ = test::golden_config("qwen3");
    config_.parallel.dp = ranks_;
    config_.parallel.gradient_sum = deck::GradientRule::adasum;
  }

  static void expect_counted(const test::Numbers& n) {
    EXPECT_EQ(n.counted.tensor_parallel, n.predicted.tensor_parallel);
    EXPECT_EQ(n.counted.data_parallel, n.predicted.data_parallel);
  }
  static void expect_follows(const test::Numbers& ours, const test::Numbers& reference) {
    EXPECT_LT(test::worst_loss_difference(ours, reference), tolerance);
    test::expect_same_state(ours.parameters, reference.parameters);
    test::expect_same_state(ours.exp_avg, reference.exp_avg);
    expect_counted(ours);
  }

  int ranks_ = 1;
  deck::Config config_;
};

TEST_F(Adasum, LearnsAndIsNotTheSum) {
  const test::Numbers ours = test::run_training(config_, test::world(), 20);
  expect_counted(ours);
  EXPECT_LT(ours.losses.back(), ours.losses.front());
  config_.parallel.gradient_sum = deck::GradientRule::sum;
  const test::Numbers sum = test::run_training(config_, test::world(), 20);
  EXPECT_EQ(ours.losses[0], sum.losses[0]);
  EXPECT_GT(ours.grad_norms[0], 1.01 * sum.grad_norms[0]) << "what is orthogonal adds up instead of being averaged";
  EXPECT_NE(ours.losses.back(), sum.losses.back());
}

// Two replicas, each on one rank or on two, and micro-batches of any size.
TEST_F(Adasum, FollowsOnEveryGridWithAsManyReplicas) {
  const test::SubWorld two(test::world(), 2);
  config_.parallel.dp = 2;
  for (const char* model : {"llama", "qwen2", "qwen3", "mixtral"}) {
    SCOPED_TRACE(model);
    const deck::GradientRule rule = config_.parallel.gradient_sum;
    config_ = test::golden_config(model);
    config_.parallel.dp = 2;
    config_.parallel.gradient_sum = rule;
    // On two ranks by all, so that the others have something to compare with.
    test::Numbers reference;
    if (two.member()) reference = test::run_training(config_, two.get(), steps);
    if (ranks_ == 2) {
      config_.data.micro_batch_size = 2;
      expect_follows(test::run_training(config_, test::world(), steps), reference);
      continue;
    }
    int rank = 0;
    MPI_Comm_rank(test::world(), &rank);
    for (const auto mode : {deck::TpMode::all_reduce, deck::TpMode::reduce_scatter}) {
      config_.parallel.tp = 2;
      config_.parallel.tp_mode = mode;
      const test::Numbers cut = test::run_training(config_, test::world(), steps);
      expect_counted(cut);
      if (two.member()) expect_follows(cut, reference);
    }
    config_.parallel.tp = 1;
    config_.parallel.tp_mode = deck::TpMode::all_reduce;
    if (config_.model.tie_word_embeddings) continue;
    config_.parallel.pp = 2;
    const test::Numbers staged = test::run_training(config_, test::world(), steps);
    if (two.member()) expect_follows(staged, reference);
  }
}

// Every sequence of the file is the same one, so every replica has the same gradient.
TEST_F(Adasum, OfEqualGradientsIsTheSum) {
  const test::TemporaryFolder folder(test::world(), "adasum");
  const std::filesystem::path path = folder.path() / "tokens.h5";
  int rank = 0;
  MPI_Comm_rank(test::world(), &rank);
  config_.data.sequence_length = 10;
  if (rank == 0) {
    test::write_tokens(path, 2001, 1);  // one word
  }
  MPI_Barrier(test::world());
  config_.data.path = path.string();
  const test::Numbers ours = test::run_training(config_, test::world(), steps);
  config_.parallel.gradient_sum = deck::GradientRule::sum;
  const test::Numbers sum = test::run_training(config_, test::world(), steps);
  for (std::size_t i = 0; i < sum.losses.size(); ++i) {
    EXPECT_NEAR(ours.losses[i], sum.losses[i], 1e-10 * sum.losses[i]) << i;
    EXPECT_NEAR(ours.grad_norms[i], sum.grad_norms[i], 1e-9 * sum.grad_norms[i]) << i;
  }
}

TEST_F(Adasum, ContinuesBitForBitAndFromACheckpointOfTheSum) {
  const test::TemporaryFolder folder(test::world(), "adasum");
  config_.checkpoint.directory = folder.path().string();
  const test::Numbers whole = test::run_training(config_, test::world(), steps);
  test::run_training(config_, test::world(), steps / 2, true);
  config_.checkpoint.resume = "auto";
  const test::Numbers rest = test::run_training(config_, test::world(), steps);
  EXPECT_EQ(rest.losses, std::vector<double>(whole.losses.begin() + steps / 2, whole.losses.end()));
  EXPECT_EQ(rest.parameters, whole.parameters);
  EXPECT_EQ(rest.exp_avg_sq, whole.exp_avg_sq);
  config_.parallel.gradient_sum = deck::GradientRule::sum;
  const test::Numbers by_sum = test::run_training(config_, test::world(), steps);
  EXPECT_EQ(by_sum.losses.at(0), rest.losses.at(0));
  EXPECT_NE(by_sum.parameters, rest.parameters);
}

}  // namespace
}  // namespace nanotron
