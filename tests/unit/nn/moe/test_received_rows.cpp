// ranks: 1
// The quantile of received rows, against values of the normal distribution; what a run counts.
#include "nanotron/nn/moe/receive_buffer.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "nanotron/deck/keys/model.hpp"
#include "nanotron/nn/received_rows.hpp"

namespace nanotron::nn {
namespace {

TEST(ReceivedRows, HaveTheQuantileOfANormalDistribution) {
  for (const auto& [q, z] : {std::pair{0.99, 2.3263478740}, {0.999999, 4.7534243088}, {0.9, 1.2815515655}}) {
    const double variance = 0.75 / 1000 + 0.01;  // an even load of 1000 rows, 4 ranks
    EXPECT_NEAR(received_quantile(q, 1000, 4), 1.0 + z * std::sqrt(variance), 1e-8);
  }
}

TEST(ReceivedRows, AFactorOrAQuantileSizesTheBuffer) {
  EXPECT_EQ(receive_buffer_factor({.receive_factor = 1.7}, 100, 2), 1.7);
  EXPECT_EQ(receive_buffer_factor({.receive_quantile = 0.99}, 100, 2), received_quantile(0.99, 100, 2));
  EXPECT_EQ(receive_buffer_factor({}, 100, 2), 0.0);
}

TEST(ReceivedRows, KeepTheLargestLoadUntilItIsTaken) {
  ReceivedRows rows;
  for (const index_t n : {50, 130, 90}) rows.count(n, 100);
  EXPECT_EQ(rows.take(), 1.3);
  EXPECT_EQ(rows.take(), 0.0);
  EXPECT_EQ(rows.largest(), 1.3);
}

// Choices at random have no overdispersion; a factor of each dispatch is one.
TEST(ReceivedRows, MeasureTheirOverdispersion) {
  constexpr index_t even = 4000, ranks = 4;
  std::mt19937_64 random(3);
  for (const double c : {0.0, 0.02, 0.2}) {
    ReceivedRows rows;
    std::vector<double> loads;
    for (int i = 0; i < 20000; ++i) {
      const double share = (1.0 + c * std::normal_distribution()(random)) / ranks;
      rows.count(std::binomial_distribution<index_t>(ranks * even, std::clamp(share, 0.0, 1.0))(random), even);
    }
    EXPECT_NEAR(rows.loads().mean(), 1.0, 0.005);
    EXPECT_NEAR(rows.loads().overdispersion(ranks), c, 0.005);
    EXPECT_NEAR(rows.loads().quantile(0.999), received_quantile(0.999, even, ranks, c), 0.04 + 0.1 * c);
  }
}

// A bin of the histogram, whose last one has no end.
TEST(ReceivedRows, HaveQuantilesOfTheirLoads) {
  ReceivedRows rows;
  for (index_t i = 0; i < 999; ++i) rows.count(i < 500 ? 100 : 150, 100);
  rows.count(100'000, 100);
  EXPECT_NEAR(rows.loads().quantile(0.5), 1.0, ReceivedLoads::width);
  EXPECT_NEAR(rows.loads().quantile(0.501), 1.5, ReceivedLoads::width);
  EXPECT_NEAR(rows.loads().quantile(0.999), 1.5, ReceivedLoads::width);
  EXPECT_EQ(rows.loads().quantile(1.0), 8.0);
  EXPECT_EQ(rows.largest(), 1000.0);
}

}  // namespace
}  // namespace nanotron::nn
