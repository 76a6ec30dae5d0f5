// ranks: 1 2 4
// precision%moments = 'bf16': losses follow those with moments in fp32, a resume changes no bit, and a checkpoint goes
// on with moments of the other type. On other grids: test_layout.cpp.

#include <gtest/gtest.h>

#include "support/differences.hpp"
#include "support/training.hpp"
#include "support/world.hpp"

namespace nanotron {
namespace {

class Bf16Moments : public testing::Test {
 protected:
  void SetUp() override {
    int rank = 0, ranks = 1;
    MPI_Comm_rank(test::world(), &rank);
    MPI_Comm_size(test::world(), &ranks);
    if (rank == 0) test::write_tokens(folder_.path() / "tokens.h5", 64 * 2000 + 1, 100);
    MPI_Barrier(test::world());
    config_.model.hidden_size = 64;
    config_.model.num_hidden_layers = 2;
    config_.model.num_attention_heads = 4;
    config_.model.num_key_value_heads = 2;
    config_.model.head_dim = 16;
    config_.model.intermediate_size = 192;
    config_.model.vocab_size = 100;
    config_.data.path = (folder_.path() / "tokens.h5").string();
    config_.data.sequence_length = 64;
    config_.data.global_batch_size = 16;
    config_.data.micro_batch_size = 4;
    config_.optimizer.learning_rate = 2e-3;
    config_.optimizer.beta2 = 0.999;  // 0.001 of v is less than half a unit of bf16
    config_.schedule.warmup_steps = 10;
    config_.run.steps = 60;
    config_.checkpoint.resume = "none";
    config_.precision.compute = ScalarType::bf16;
    config_.precision.moments = deck::MomentType::bf16;
    config_.parallel.tp = std::min(ranks, 2);
    config_.parallel.zero_stage = ranks == 4 ? 1 : 0;
  }
  test::Numbers trained(const deck::Config& config, std::int64_t steps, bool save = false) const {
    return test::run_training(config, test::world(), steps, save);
  }

  test::TemporaryFolder folder_{test::world(), "bf16_moments"};
  deck::Config config_;
};

void expect_of_bf16(const test::Tensors& moments) {
  for (const auto& [name, tensor] : moments) {
    for (const double x : tensor) ASSERT_EQ(static_cast<double>(bf16(static_cast<float>(x))), x) << name;
  }
}

TEST_F(Bf16Moments, FollowFp32) {
  const test::Numbers ours = trained(config_, config_.run.steps);
  config_.precision.moments = deck::MomentType::master;
  const test::Numbers theirs = trained(config_, config_.run.steps);
  EXPECT_LT(test::largest_relative_difference(ours.losses, theirs.losses), 0.005);
  EXPECT_LT(theirs.losses.back(), 0.6 * theirs.losses.front()) << "a run that learns nothing proves nothing";
  EXPECT_FALSE(ours.parameters == theirs.parameters) << "nothing was rounded";
  for (const auto& [name, tensor] : theirs.exp_avg_sq) {
    double sum = 0.0, of_theirs = 0.0;
    for (std::size_t i = 0; i < tensor.size(); ++i) sum += ours.exp_avg_sq.at(name)[i], of_theirs += tensor[i];
    EXPECT_NEAR(sum / of_theirs, 1.0, 0.05) << name;
  }
}

TEST_F(Bf16Moments, ResumeBitForBitAndInFp32) {
  config_.checkpoint.directory = (folder_.path() / "checkpoints").string();
  const test::Numbers whole = trained(config_, 8);
  const test::Numbers begun = trained(config_, 5, true);
  expect_of_bf16(begun.exp_avg);
  expect_of_bf16(begun.exp_avg_sq);
  config_.checkpoint.resume = "auto";
  const test::Numbers rest = trained(config_, 8);
  ASSERT_EQ(rest.losses.size(), 3u);
  EXPECT_TRUE(std::equal(rest.losses.begin(), rest.losses.end(), whole.losses.begin() + 5));
  EXPECT_TRUE(rest.parameters == whole.parameters);
  EXPECT_TRUE(rest.exp_avg == whole.exp_avg);
  EXPECT_TRUE(rest.exp_avg_sq == whole.exp_avg_sq);

  config_.precision.moments = deck::MomentType::master;
  const test::Numbers wider = trained(config_, 5);  // nothing to do: what was read
  EXPECT_TRUE(wider.exp_avg == begun.exp_avg);
  EXPECT_TRUE(wider.exp_avg_sq == begun.exp_avg_sq);
  const test::Numbers further = trained(config_, 8);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_NEAR(further.losses[i], rest.losses[i], 5e-3 * rest.losses[i]);
}

TEST_F(Bf16Moments, ReadMomentsInFp32) {
  config_.checkpoint.directory = (folder_.path() / "checkpoints").string();
  config_.precision.moments = deck::MomentType::master;
  const test::Numbers begun = trained(config_, 5, true);
  config_.checkpoint.resume = "auto";
  config_.precision.moments = deck::MomentType::bf16;
  const test::Numbers read = trained(config_, 5);
  for (const auto& [name, tensor] : begun.exp_avg_sq) {
    for (std::size_t i = 0; i < tensor.size(); ++i) {
      ASSERT_NEAR(read.exp_avg_sq.at(name)[i], tensor[i], 0x1p-8 * tensor[i]) << name;
    }
  }
}

}  // namespace
}  // namespace nanotron
