// ranks: 1
// How far blocks of keys go, against all pairs of positions.
#include "nanotron/nn/attention/ring_reach.hpp"

#include <gtest/gtest.h>

#include <random>

namespace nanotron::nn {
namespace {

TEST(RingReach, IsThatOfAllPairsOfPositions) {
  std::mt19937 random(3);
  for (const int ranks : {2, 3, 4, 8}) {
    for (const index_t length : {16, 29, 64}) {
      const SequenceLayout layout({ranks, 1}, length);
      std::vector<int> rank_of(static_cast<std::size_t>(length));
      for (int r = 0; r < ranks; ++r) {
        for (index_t i = 0; i < layout[r].length(); ++i)
          rank_of[static_cast<std::size_t>(layout[r].position_of(i))] = r;
      }
      for (int trial = 0; trial < 50; ++trial) {
        std::vector<std::int32_t> starts;
        std::vector<int> hops(static_cast<std::size_t>(ranks), 0);
        for (int sequence = 0; sequence < 2; ++sequence) {
          std::int32_t start = 0;
          for (std::int32_t p = 0; p < length; ++p) {
            if (random() % (trial < 25 ? 4 : 20) == 0) start = p;
            starts.push_back(start);
            for (std::int32_t key = start; key <= p; ++key) {
              const int q = rank_of[static_cast<std::size_t>(p)], k = rank_of[static_cast<std::size_t>(key)];
              int& most = hops[static_cast<std::size_t>(k)];
              most = std::max(most, (q - k + ranks) % ranks);
            }
          }
        }
        RingReach reach(layout);
        reach.find(starts);
        for (int r = 0; r < ranks; ++r) EXPECT_EQ(reach.hops(r), hops[static_cast<std::size_t>(r)]);
      }
    }
  }
}

TEST(RingReach, IsTheWholeRingUntilDocumentsAreKnown) {
  const RingReach reach(SequenceLayout({4, 1}, 16));
  for (int r = 0; r < 4; ++r) EXPECT_EQ(reach.hops(r), 3);
}

}  // namespace
}  // namespace nanotron::nn
