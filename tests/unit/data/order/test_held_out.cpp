// ranks: 1
#include "nanotron/data/order/sample_order.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace nanotron::data {
namespace {

// Every sequence is in one of the two, both in the order of the file, whatever the sizes.
TEST(HeldOut, IsAPartitionInTheOrderOfTheFile) {
  for (const index_t all : {1, 2, 3, 7, 255, 256, 257, 1000, 5003}) {
    for (const index_t held : {index_t{0}, index_t{1}, all / 100, all / 3, all / 2, all - 1, all}) {
      if (held < 0) continue;
      const HeldOut parts(all, held);
      ASSERT_EQ(parts.validation_count(), held);
      ASSERT_EQ(parts.training_count(), all - held);
      std::vector<int> seen(static_cast<std::size_t>(all), 0);
      index_t last = -1;
      for (index_t k = 0; k < all - held; ++k) {
        ASSERT_GT(parts.training(k), last);
        ++seen.at(static_cast<std::size_t>(last = parts.training(k)));
      }
      last = -1;
      for (index_t v = 0; v < held; ++v) {
        ASSERT_GT(parts.validation(v), last);
        ++seen.at(static_cast<std::size_t>(last = parts.validation(v)));
      }
      EXPECT_TRUE(std::ranges::all_of(seen, [](int n) { return n == 1; })) << held << " of " << all;
    }
  }
}

TEST(HeldOut, NothingIsMovedWhereNothingIsHeldOut) {
  const HeldOut parts(1000, 0);
  for (const index_t k : {0, 1, 500, 999}) EXPECT_EQ(parts.training(k), k);
}

// 156,250 sequences, 1 % of them: 256 segments of 6 or 7 neighbours, about 610 apart.
TEST(HeldOut, HasSegmentsAtTheSameDistances) {
  const HeldOut parts(156250, 1563);
  index_t segments = 0, last = -2, begin = 0;
  for (index_t v = 0; v < parts.validation_count(); ++v) {
    const index_t k = parts.validation(v);
    if (k != last + 1) {
      if (segments > 0) {
        EXPECT_NEAR(static_cast<double>(k - begin), 156250.0 / 256, 3.0);
      }
      begin = k;
      ++segments;
    }
    last = k;
  }
  EXPECT_EQ(segments, 256);
  EXPECT_EQ(last, 156249);
}

TEST(HeldOut, SpreadTakesTheMiddleOfEachPart) {
  EXPECT_EQ(spread(0, 1, 9), 4);
  EXPECT_EQ((std::vector{spread(0, 4, 10), spread(1, 4, 10), spread(2, 4, 10), spread(3, 4, 10)}),
            (std::vector<index_t>{1, 3, 6, 8}));
  for (index_t i = 0; i < 17; ++i) EXPECT_EQ(spread(i, 17, 17), i);
}

}  // namespace
}  // namespace nanotron::data
