#include "nanotron/trainer/faults/stragglers.hpp"

#include <gtest/gtest.h>

namespace nanotron::trainer {
namespace {

TEST(Stragglers, AreSlowAgainstTheirStage) {
  const std::vector<int> stages{0, 0, 0, 1, 1, 1};
  const std::vector<double> none(6, 0.0);
  EXPECT_TRUE(stragglers({1.0, 1.1, 1.2, 5.0, 5.1, 5.2}, none, stages).empty());  // the second stage has more to do
  const auto found = stragglers({1.0, 1.1, 1.7, 5.0, 15.3, 5.1}, none, stages);
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].rank, 4);
  EXPECT_DOUBLE_EQ(found[0].median, 5.1);
  EXPECT_EQ(found[1].rank, 2);
  EXPECT_DOUBLE_EQ(found[1].seconds, 1.7);
}

TEST(Stragglers, AStageOfOneRankHasNone) {
  EXPECT_TRUE(stragglers({1.0, 9.0}, {0.0, 0.0}, {0, 1}).empty());
  EXPECT_TRUE(stragglers({0.0, 0.0}, {0.0, 0.0}, {0, 0}).empty());
  EXPECT_TRUE(stragglers({}, {}, {}).empty());
}

TEST(Stragglers, OfTwoRanksTheMedianIsBetweenThem) {
  EXPECT_TRUE(stragglers({1.0, 2.0}, {0.0, 0.0}, {0, 0}).empty());
  const auto found = stragglers({1.0, 4.0}, {0.0, 0.0}, {0, 0});
  ASSERT_EQ(found.size(), 1u);
  EXPECT_DOUBLE_EQ(found[0].median, 2.5);
}

TEST(Stragglers, OfAHostWithOtherProcessesWaitedForACore) {
  const std::vector<int> stages{0, 0, 0};
  EXPECT_TRUE(stragglers({1.0, 1.6, 2.2}, {0.0, 0.5, 0.9}, stages).empty());  // all wait, none is slow
  const auto waited = stragglers({1.0, 1.1, 4.0}, {0.0, 0.1, 2.9}, stages);
  ASSERT_EQ(waited.size(), 1u);
  EXPECT_EQ(waited[0].rank, 2);
  EXPECT_DOUBLE_EQ(waited[0].waited, 2.9);
  const auto slow = stragglers({1.0, 1.1, 4.0}, {0.0, 0.1, 1.0}, stages);
  ASSERT_EQ(slow.size(), 1u);
  EXPECT_DOUBLE_EQ(slow[0].seconds, 3.0);  // on its core, too
  EXPECT_DOUBLE_EQ(slow[0].waited, 0.0);
}

}  // namespace
}  // namespace nanotron::trainer
