// ranks: 1 2 4
// timeout: 300
// The z loss of the logits: what is reported, what is trained, and what the validation loss does not see.

#include <gtest/gtest.h>

#include <cmath>

#include "support/comparison.hpp"
#include "support/training.hpp"
#include "support/world.hpp"

namespace nanotron {
namespace {

constexpr std::int64_t steps = 6;

class ZLoss : public testing::Test {
 protected:
  ZLoss() { MPI_Comm_size(test::world(), &ranks_); }

  deck::Config config(double coefficient) const {
    deck::Config c = test::golden_config("llama");
    c.checkpoint.resume = "none";
    c.optimizer.z_loss_coefficient = coefficient;
    c.parallel.tp = ranks_ > 1 ? 2 : 1;
    c.parallel.pp = ranks_ > 2 ? 2 : 1;
    c.parallel.dp = 1;
    return c;
  }

  int ranks_ = 1;
};

// With logits of about 0 a token's lse is log v, and so is its loss.
TEST_F(ZLoss, IsTheCoefficientTimesTheMeanSquare) {
  deck::Config c = config(0.25);
  c.model.final_logit_softcapping = 1e-9;
  const test::Numbers n = test::run_training(c, test::world(), 1);
  const double log_v = std::log(static_cast<double>(c.model.vocab_size));
  EXPECT_NEAR(n.losses.front(), log_v, 1e-8);
  EXPECT_NEAR(n.z_losses.front(), 0.25 * log_v * log_v, 1e-8);
}

// The loss that is reported is that of the weights before the update: the first is the same with and without, and later
// training makes lse smaller.
TEST_F(ZLoss, IsTrainedAndNotReportedInTheLoss) {
  const test::Numbers without = test::run_training(config(0.0), test::world(), steps),
                      with = test::run_training(config(0.5), test::world(), steps);
  EXPECT_EQ(with.losses.front(), without.losses.front());
  EXPECT_NE(with.grad_norms.front(), without.grad_norms.front());
  EXPECT_LT(with.z_losses.back(), 0.9 * with.z_losses.front());
  EXPECT_EQ(without.z_losses.back(), 0.0);
}

}  // namespace
}  // namespace nanotron
