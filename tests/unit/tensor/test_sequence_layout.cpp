#include "nanotron/tensor/sequence_layout.hpp"

#include <gtest/gtest.h>

#include "nanotron/base/error.hpp"

namespace nanotron {
namespace {

class Layout : public testing::TestWithParam<bool> {};  // whether it is a ring

TEST_P(Layout, EveryPositionIsHeldOnceAndShardsRise) {
  for (const int ranks : {1, 2, 3, 4, 7}) {
    for (const index_t length : {7, 8, 9, 13, 64, 101}) {
      const SequenceLayout layout(GetParam() ? ContextDegrees{ranks, 1} : ContextDegrees{1, ranks}, length);
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

INSTANTIATE_TEST_SUITE_P(Cuts, Layout, testing::Bool(),
                         [](const auto& info) { return std::string(info.param ? "zigzag" : "contiguous"); });

// Neighbours hold together what a rank of the ring alone would, in its order.
TEST(SequenceLayout, NeighboursShareTheChunksOfARing) {
  for (const int all_to_all : {2, 3}) {
    for (const index_t length : {24, 25, 31}) {
      const SequenceLayout parts({2, 1}, length), layout({2, all_to_all}, length);
      ASSERT_EQ(layout.ranks(), 2 * all_to_all);
      for (int part = 0; part < 2; ++part) {
        std::vector<index_t> first, second;
        for (int r = part * all_to_all; r < (part + 1) * all_to_all; ++r) {
          for (index_t p = layout[r].first.begin; p < layout[r].first.end; ++p) first.push_back(p);
          for (index_t p = layout[r].second.begin; p < layout[r].second.end; ++p) second.push_back(p);
        }
        first.insert(first.end(), second.begin(), second.end());
        std::vector<index_t> together;
        for (index_t i = 0; i < parts[part].length(); ++i) together.push_back(parts[part].position_of(i));
        EXPECT_EQ(first, together) << length << " over 2 x " << all_to_all;
      }
    }
  }
  EXPECT_EQ(SequenceLayout({2, 3}, 8).shortest_shard(), 0);  // chunks of 2 tokens over 3 ranks
  EXPECT_EQ(SequenceLayout({2, 3}, 12).shortest_shard(), 2);
}

TEST(SequenceLayout, ZigzagGivesEveryRankTheSameWork) {
  const SequenceLayout layout({4, 1}, 96);
  EXPECT_EQ(layout[1].first, (Range{12, 24}));
  EXPECT_EQ(layout[1].second, (Range{72, 84}));
  EXPECT_EQ(layout[3].first, (Range{36, 60}));  // neighbours in one piece
  for (int r = 0; r < 4; ++r) {
    index_t keys = 0;
    for (index_t i = 0; i < layout[r].length(); ++i) keys += layout[r].position_of(i) + 1;
    EXPECT_EQ(keys, 96 * 97 / 2 / 4);
  }
}

// Eleven tokens in eight shards: 2 2 2 1 1 1 1 1.
TEST(SequenceLayout, RanksHoldWholeShards) {
  for (const ContextDegrees& two : {ContextDegrees{.all_to_all = 2, .shards = 8}, {.gathered = 2, .shards = 8}}) {
    const SequenceLayout layout(two, 11);
    EXPECT_EQ(layout[0].first.end, 7);
    EXPECT_EQ(layout[1].first.begin, 7);
    EXPECT_EQ(layout[1].first.end, 11);
    EXPECT_EQ(layout[1].second.size(), 0);
  }
  EXPECT_EQ(SequenceLayout({.gathered = 2}, 11)[0].first.end, 6);
  EXPECT_THROW(SequenceLayout({.gathered = 3, .shards = 8}, 11), Error);
}

}  // namespace
}  // namespace nanotron
