#include "nanotron/tensor/sequence_layout.hpp"

#include <gtest/gtest.h>

namespace nanotron {
namespace {

using Cut = SequenceLayout::Cut;

class Layout : public testing::TestWithParam<Cut> {};

TEST_P(Layout, EveryPositionIsHeldOnceAndShardsRise) {
  for (const int ranks : {1, 2, 3, 4, 7}) {
    for (const index_t length : {7, 8, 9, 13, 64, 101}) {
      const SequenceLayout layout(GetParam(), length, ranks);
      std::vector<int> held(static_cast<std::size_t>(length), 0);
      for (int r = 0; r < ranks; ++r) {
        index_t before = -1;
        EXPECT_GT(layout[r].length(), 0) << length << " " << ranks;
        for (index_t i = 0; i < layout[r].length(); ++i) {
          const index_t position = layout[r].position_of(i);
          EXPECT_GT(position, before);
          before = position;
          ++held[static_cast<std::size_t>(position)];
        }
        for (const auto& [positions, token] : layout[r].pieces()) {
          if (positions.size() > 0) {
            EXPECT_EQ(layout[r].position_of(token), positions.begin);
          }
        }
      }
      EXPECT_EQ(held, std::vector<int>(held.size(), 1)) << length << " over " << ranks;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cuts, Layout, testing::Values(Cut::zigzag, Cut::contiguous), [](const auto& info) {
  return std::string(info.param == Cut::zigzag ? "zigzag" : "contiguous");
});

TEST(SequenceLayout, ZigzagGivesEveryRankTheSameWork) {
  const SequenceLayout layout(Cut::zigzag, 96, 4);
  EXPECT_EQ(layout[1].first, (Range{12, 24}));
  EXPECT_EQ(layout[1].second, (Range{72, 84}));
  EXPECT_EQ(layout[3].first, (Range{36, 60}));  // neighbours in one piece
  for (int r = 0; r < 4; ++r) {
    index_t keys = 0;
    for (index_t i = 0; i < layout[r].length(); ++i) keys += layout[r].position_of(i) + 1;
    EXPECT_EQ(keys, 96 * 97 / 2 / 4);
  }
}

}  // namespace
}  // namespace nanotron
