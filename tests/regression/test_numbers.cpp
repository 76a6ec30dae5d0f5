// ranks: 1
// Short runs whose losses and gradient norms are written into the report of GoogleTest (--gtest_output=json:<file>), to
// compare builds and machines: tests/aarch64/same_numbers.py.

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include "support/training.hpp"
#include "support/world.hpp"

namespace nanotron {
namespace {

struct Case {
  const char* golden;
  const char* compute;
  const char* reproducible;
};

class Numbers : public testing::TestWithParam<Case> {};

TEST_P(Numbers, OfTwentySteps) {
  const Case& c = GetParam();
  deck::Config config = test::golden_config(c.golden, {fmt::format("precision.compute={}", c.compute),
                                                       fmt::format("precision.reproducible={}", c.reproducible)});
  const test::Numbers ours = test::run_training(config, test::world(), 20);
  ASSERT_EQ(ours.losses.size(), 20u);
  EXPECT_LT(ours.losses.back(), 0.99 * ours.losses.front()) << "a run that learns nothing proves nothing";
  for (const double loss : ours.losses) EXPECT_TRUE(std::isfinite(loss));
  RecordProperty("losses", fmt::format("{:a}", fmt::join(ours.losses, " ")));
  RecordProperty("grad_norms", fmt::format("{:a}", fmt::join(ours.grad_norms, " ")));
}

INSTANTIATE_TEST_SUITE_P(Runs, Numbers,
                         testing::Values(Case{"llama", "fp64", "none"}, Case{"gpt2", "fp64", "none"},
                                         Case{"llama", "fp64", "layout"}, Case{"gpt2", "fp64", "layout"},
                                         Case{"llama", "fp32", "layout"}, Case{"gpt2", "fp32", "layout"},
                                         Case{"llama", "bf16", "layout"}, Case{"gpt2", "bf16", "layout"}),
                         [](const testing::TestParamInfo<Case>& info) {
                           return fmt::format("{}_{}_{}", info.param.golden, info.param.compute,
                                              info.param.reproducible);
                         });

}  // namespace
}  // namespace nanotron
