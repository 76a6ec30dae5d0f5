#include "nanotron/nn/parameters/buffer_layout.hpp"

#include <gtest/gtest.h>

namespace nanotron::nn {
namespace {

using Part = BufferLayout::Part;

TEST(BufferLayout, FindsElementsWhereTheyLie) {
  const BufferLayout packed = BufferLayout::packed({{0, 10}, {20, 25}, {40, 44}});
  EXPECT_EQ(packed.size(), 19);
  EXPECT_EQ(packed.at(9), 9);
  EXPECT_EQ(packed.at(20), 10);
  EXPECT_EQ(packed.at(43), 18);
  for (const index_t outside : {10, 19, 25, 44, -1}) EXPECT_THROW(packed.at(outside), Error) << outside;
  EXPECT_EQ(BufferLayout::whole(7).at(6), 6);
  EXPECT_THROW(BufferLayout().at(0), Error);
}

TEST(BufferLayout, SlotsAreTakenInTurn) {
  const BufferLayout slots({{{0, 8}, 0}, {{8, 12}, 8}, {{12, 16}, 12}, {{16, 20}, 8}});
  EXPECT_EQ(slots.size(), 16);
  EXPECT_EQ(slots.at(9), slots.at(17));
  EXPECT_EQ(slots.at(13), 13);
}

TEST(BufferLayout, CutsRanges) {
  const BufferLayout packed = BufferLayout::packed({{0, 10}, {20, 25}, {40, 44}});
  EXPECT_EQ(packed.within({8, 41}), (std::vector<Part>{{{8, 10}, 8}, {{20, 25}, 10}, {{40, 41}, 15}}));
  EXPECT_TRUE(packed.within({10, 20}).empty());
  EXPECT_TRUE(packed.within({5, 5}).empty());
}

TEST(BufferLayout, JoinsNeighboursAndLeavesEmptyPartsOut) {
  EXPECT_EQ(BufferLayout::packed({{0, 10}, {10, 10}, {10, 30}}), BufferLayout::whole(30));
  EXPECT_EQ(BufferLayout({{{0, 4}, 0}, {{4, 8}, 10}}).parts().size(), 2u);
}

TEST(BufferLayout, WhatTwoHaveInCommonLiesWhereTheFirstHasIt) {
  const BufferLayout packed = BufferLayout::packed({{0, 10}, {20, 25}, {40, 44}});
  EXPECT_EQ(BufferLayout::whole(50).common(packed).at(22), 22);
  EXPECT_EQ(packed.common(BufferLayout::packed({{5, 22}})).parts(), (std::vector<Part>{{{5, 10}, 5}, {{20, 22}, 10}}));
}

}  // namespace
}  // namespace nanotron::nn
