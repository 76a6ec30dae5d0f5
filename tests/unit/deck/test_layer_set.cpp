// ranks: 1
// Sets of layers as decks write them.

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "nanotron/deck/layer_set.hpp"

namespace nanotron::deck {
namespace {

// The layers 0 .. 11 as a row of x and dots.
std::string row(std::string_view text) {
  std::string mistake;
  const LayerSet set(text, &mistake);
  EXPECT_EQ(mistake, "") << text;
  std::string marks;
  for (int l = 0; l < 12; ++l) marks += set.contains(l) ? 'x' : '.';
  EXPECT_EQ(set.count(12), std::ranges::count(marks, 'x')) << text;
  return marks;
}

TEST(LayerSet, FollowsItsText) {
  EXPECT_EQ(row("all"), "xxxxxxxxxxxx");
  EXPECT_EQ(row("none"), "............");
  EXPECT_EQ(row("!all"), "............");
  EXPECT_EQ(row("5:1"), "xxxxx.xxxxx.");
  EXPECT_EQ(row("!1:1"), ".x.x.x.x.x.x");
  EXPECT_EQ(row("0:1"), "............");
  EXPECT_EQ(row("0-2 5, 9"), "xxx..x...x..");
  EXPECT_EQ(row(" ! 0-2,5 "), "...xx.xxxxxx");
  EXPECT_EQ(LayerSet("0-2 5").last_named(), 5);
  EXPECT_EQ(LayerSet("5:1").last_named(), -1);
}

TEST(LayerSet, SaysWhatIsWrong) {
  for (const char* text :
       {"", "!", "5:", ":", "0:0", "a", "3-1", "-1", "1.5", "all 3", "5:1:1", "12345678901", "!!2"}) {
    std::string mistake;
    const LayerSet set(text, &mistake);
    EXPECT_NE(mistake, "") << text;
    EXPECT_EQ(set.count(12), 0) << text;
  }
}

}  // namespace
}  // namespace nanotron::deck
