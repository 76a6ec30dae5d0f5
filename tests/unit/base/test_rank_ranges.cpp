#include "nanotron/base/rank_ranges.hpp"

#include <gtest/gtest.h>

#include "nanotron/base/error.hpp"

namespace nanotron {
namespace {

TEST(RankRanges, AreArithmeticProgressions) {
  EXPECT_EQ(ranks_text({}), "");
  EXPECT_EQ(ranks_text({3}), "3");
  EXPECT_EQ(ranks_text({0, 1, 2, 3}), "0-3");
  EXPECT_EQ(ranks_text({1, 5, 9, 13, 20}), "1-13/4, 20");
  EXPECT_EQ(ranks_text({0, 4}), "0, 4");
  EXPECT_EQ(ranks_text({7, 3, 4}), "7, 3-4");
}

TEST(RankRanges, AreReadBack) {
  for (const std::vector<int>& ranks :
       {std::vector<int>{}, {5}, {0, 1}, {0, 2}, {1, 5, 9, 13, 20, 21, 3, 4, 5, 40, 10}, {0, 1, 8, 9, 16, 17}}) {
    EXPECT_EQ(ranks_from(ranks_text(ranks)), ranks) << ranks_text(ranks);
  }
  for (const char* wrong : {"x", "1-", "3-1", ", 1", "1-9/0", "1;2"}) EXPECT_THROW(ranks_from(wrong), Error) << wrong;
}

}  // namespace
}  // namespace nanotron
