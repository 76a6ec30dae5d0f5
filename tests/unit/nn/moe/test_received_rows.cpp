// ranks: 1
// The quantile of received rows, against values of the normal distribution; what a run counts.
#include "nanotron/nn/moe/receive_buffer.hpp"

#include <gtest/gtest.h>

#include <cmath>

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
}

}  // namespace
}  // namespace nanotron::nn
