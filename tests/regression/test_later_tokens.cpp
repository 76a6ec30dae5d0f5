// ranks: 1 2 4
// timeout: 300
// Layers that predict later tokens: what they change, what is reported, and what validation does not see.

#include <gtest/gtest.h>

#include "support/comparison.hpp"
#include "support/training.hpp"
#include "support/world.hpp"

namespace nanotron {
namespace {

constexpr std::int64_t steps = 6;

class LaterTokens : public testing::Test {
 protected:
  LaterTokens() { MPI_Comm_size(test::world(), &ranks_); }

  deck::Config config(std::int64_t layers, double coefficient) const {
    deck::Config c = test::golden_config("llama");
    c.checkpoint.resume = "none";
    c.model.num_nextn_predict_layers = layers;
    c.optimizer.mtp_loss_coefficient = coefficient;
    c.parallel.tp = ranks_ > 1 ? 2 : 1;
    c.parallel.pp = ranks_ > 2 ? 2 : 1;
    c.parallel.dp = 1;
    return c;
  }

  int ranks_ = 1;
};

// Weights of the other layers do not depend on how many are appended.
TEST_F(LaterTokens, WithoutACoefficientChangeNoBitOfTheRest) {
  const test::Numbers without = test::run_training(config(0, 0.3), test::world(), steps),
                      with = test::run_training(config(2, 0.0), test::world(), steps);
  EXPECT_EQ(with.losses, without.losses);
  EXPECT_EQ(with.grad_norms, without.grad_norms);
  EXPECT_EQ(with.hashes, without.hashes);
  EXPECT_EQ(with.parameters.at("lm_head/weight"), without.parameters.at("lm_head/weight"));
  EXPECT_EQ(with.parameters.at("model/embed_tokens/weight"), without.parameters.at("model/embed_tokens/weight"));
  EXPECT_EQ(without.later_losses.back(), 0.0);
}

TEST_F(LaterTokens, AreTrainedAndNotReportedInTheLoss) {
  const test::Numbers without = test::run_training(config(1, 0.0), test::world(), steps),
                      with = test::run_training(config(1, 0.5), test::world(), steps);
  EXPECT_EQ(with.losses.front(), without.losses.front());
  EXPECT_EQ(with.later_losses.front(), without.later_losses.front());
  EXPECT_NE(with.grad_norms.front(), without.grad_norms.front());
  EXPECT_LT(with.later_losses.back(), without.later_losses.back());
}

// With logits of about 0 each loss is log v. The last k of 16 positions have no target.
TEST_F(LaterTokens, AreCountedOverTheTargetsOfTheNextToken) {
  deck::Config c = config(2, 0.3);
  c.model.final_logit_softcapping = 1e-9;
  const test::Numbers n = test::run_training(c, test::world(), 1);
  const double log_v = std::log(static_cast<double>(c.model.vocab_size));
  EXPECT_NEAR(n.later_losses.front(), (15.0 + 14.0) / 32.0 * log_v, 1e-8);
}

}  // namespace
}  // namespace nanotron
