// ranks: 1
#include "nanotron/data/order/sample_order.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace nanotron::data {
namespace {

using deck::Shuffle;

TEST(SampleOrder, NoneIsTheOrderOfTheFile) {
  const SampleOrder order(1, 7, Shuffle::none);
  for (index_t g = 0; g < 30; ++g) EXPECT_EQ(order.sequence_of(g), g % 7);
}

TEST(SampleOrder, GlobalIsABijectionInEachEpoch) {
  for (const index_t n : {1, 2, 3, 4, 5, 15, 16, 17, 63, 64, 65, 1000, 4095, 4097, 100003})
    for (const std::uint64_t seed : {0u, 1u, 1234u}) {
      const SampleOrder order(seed, n, Shuffle::global);
      for (index_t epoch = 0; epoch < 3; ++epoch) {
        std::vector<bool> seen(static_cast<std::size_t>(n), false);
        for (index_t g = epoch * n; g < (epoch + 1) * n; ++g) {
          const index_t k = order.sequence_of(g);
          ASSERT_TRUE(k >= 0 && k < n);
          ASSERT_FALSE(seen[static_cast<std::size_t>(k)]) << "twice: " << k << " of " << n;
          seen[static_cast<std::size_t>(k)] = true;
        }
      }
    }
}

TEST(SampleOrder, SeedAndEpochChangeTheOrder) {
  const index_t n = 10007;
  const SampleOrder one(1, n, Shuffle::global), two(2, n, Shuffle::global);
  index_t same_seed = 0, same_epoch = 0;
  for (index_t g = 0; g < n; ++g) {
    same_seed += one.sequence_of(g) == two.sequence_of(g);
    same_epoch += one.sequence_of(g) == one.sequence_of(n + g);
  }
  EXPECT_LT(same_seed, 12);  // Poisson with mean 1
  EXPECT_LT(same_epoch, 12);
}

// A random permutation has no correlation with the identity: |r| < 5 / sqrt(n).
TEST(SampleOrder, NeighboursAreSpreadOverTheData) {
  const index_t n = 65536;
  const SampleOrder order(99, n, Shuffle::global);
  double with_position = 0.0, with_next = 0.0;
  const double mean = (static_cast<double>(n) - 1.0) / 2.0, variance = (double(n) * n - 1.0) / 12.0;
  for (index_t g = 0; g + 1 < n; ++g) {
    const double x = static_cast<double>(order.sequence_of(g)) - mean;
    with_position += x * (static_cast<double>(g) - mean);
    with_next += x * (static_cast<double>(order.sequence_of(g + 1)) - mean);
  }
  const double bound = 5.0 / std::sqrt(static_cast<double>(n));
  EXPECT_LT(std::abs(with_position / (variance * static_cast<double>(n))), bound);
  EXPECT_LT(std::abs(with_next / (variance * static_cast<double>(n))), bound);
}

// The order is part of what a checkpoint promises: it may not change between releases.
TEST(SampleOrder, IsTheSameForever) {
  const SampleOrder order(1234, 1000, Shuffle::global);
  std::vector<index_t> first;
  for (index_t g = 0; g < 8; ++g) first.push_back(order.sequence_of(g));
  EXPECT_EQ(first, (std::vector<index_t>{105, 862, 28, 226, 346, 761, 718, 127}));
  EXPECT_EQ(order.sequence_of(123456789), 890);
  const std::vector<std::int32_t> tokens{1, 2, 3};
  EXPECT_EQ(token_hash(5, tokens), 0x1345d5eb064ba520ull);
}

TEST(SampleOrder, WorksForHugeData) {
  const index_t n = (index_t{1} << 60) - 3;
  const SampleOrder order(5, n, Shuffle::global);
  for (index_t g = 0; g < 1000; ++g) {
    const index_t k = order.sequence_of(n - 1 - g);
    EXPECT_TRUE(k >= 0 && k < n);
  }
}

TEST(TokenHash, SeesEveryTokenAndTheSample) {
  std::vector<std::int32_t> tokens(513, 3);
  const auto hash = token_hash(0, tokens);
  EXPECT_NE(token_hash(1, tokens), hash);
  for (const std::size_t i : {0u, 255u, 512u}) {
    auto other = tokens;
    other[i] = 4;
    EXPECT_NE(token_hash(0, other), hash);
  }
}

}  // namespace
}  // namespace nanotron::data
