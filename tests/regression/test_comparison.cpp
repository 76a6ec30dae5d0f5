// What the tests hold numbers against each other with: a number that is none, or another count of them, is no small
// difference.
#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include "support/comparison.hpp"
#include "unit/kernels/kernel_test.hpp"

namespace nanotron::test {
namespace {

using Values = std::vector<double>;

Numbers numbers(const Values& losses) {
  Numbers made;
  made.losses = losses;
  made.grad_norms = Values(losses.size(), 1.0);
  return made;
}

TEST(Comparison, OfKernelsSeesWhatIsNoNumber) {
  expect_close(Values{1.0, 2.0, 3.0}, {1.0, 2.0, 3.0}, 1e-15);
  for (std::size_t at = 0; at < 3; ++at) {
    Values actual{1.0, 2.0, 3.0};
    actual[at] = NAN;
    EXPECT_NONFATAL_FAILURE(expect_close(actual, {1.0, 2.0, 3.0}, 1e10), "nan");
  }
}

TEST(Comparison, OfRunsSeesWhatIsNoNumber) {
  const Numbers reference = numbers({3.0, 2.0, 1.0});
  EXPECT_EQ(worst_loss_difference(reference, reference), 0.0);
  for (std::size_t at = 0; at < 3; ++at) {
    Numbers ours = reference;
    ours.losses[at] = NAN;
    EXPECT_FALSE(worst_loss_difference(ours, reference) < 1e10) << at;
    ours = reference;
    ours.grad_norms[at] = NAN;
    EXPECT_FALSE(worst_loss_difference(ours, reference) < 1e10) << at;
    EXPECT_FALSE(relative_difference(ours.grad_norms, reference.grad_norms) < 1e10) << at;
  }
}

TEST(Comparison, OfRunsCounts) {
  const Numbers none = numbers({}), one = numbers({3.0}), two = numbers({3.0, 2.0});
  EXPECT_FALSE(worst_loss_difference(one, two) < 1e10);
  EXPECT_FALSE(worst_loss_difference(two, one) < 1e10);
  EXPECT_FALSE(worst_loss_difference(none, none) < 1e10);
  EXPECT_FALSE(relative_difference(one.losses, two.losses) < 1e10);
  EXPECT_FALSE(relative_difference(two.losses, one.losses) < 1e10);
}

TEST(Comparison, OfStatesWantsTensors) {
  static const Tensors none, some{{"a", {1.0}}}, other{{"a", {NAN}}};
  expect_same_state(some, some);
  EXPECT_FATAL_FAILURE(expect_same_state(none, none), "theirs");
  EXPECT_NONFATAL_FAILURE(expect_same_state(other, some), "nan");
}

}  // namespace
}  // namespace nanotron::test
