// ranks: 1
#include <gtest/gtest.h>

#include <cmath>

#include "nanotron/base/random.hpp"

namespace nanotron {
namespace {

void expect_bits(const PhiloxCounter& counter, const PhiloxKey& key, const PhiloxCounter& answer) {
  const PhiloxCounter found = philox(counter, key);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(found.word[i], answer.word[i]) << "word " << i;
}

// The known answers for philox4x32-10 that come with Random123 (kat_vectors).
TEST(Philox, KnownAnswers) {
  expect_bits({{0, 0, 0, 0}}, {{0, 0}}, {{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}});
  expect_bits({{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}}, {{0xffffffff, 0xffffffff}},
              {{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}});
  expect_bits({{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}}, {{0xa4093822, 0x299f31d0}},
              {{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}});
}

TEST(Uniform, StaysInItsIntervalWithTheRightMoments) {
  double sum = 0, squares = 0;
  const int n = 200000;
  for (int i = 0; i < n; ++i) {
    const double u = uniform(42, stream_id("u"), static_cast<std::uint64_t>(i));
    ASSERT_GT(u, 0.0);
    ASSERT_LE(u, 1.0);
    sum += u;
    squares += u * u;
  }
  EXPECT_NEAR(sum / n, 0.5, 3 / std::sqrt(12.0 * n));
  EXPECT_NEAR(squares / n, 1.0 / 3, 0.003);
  EXPECT_EQ(detail::unit_interval(0xffffffff, 0xffffffff), 1.0);
  EXPECT_EQ(detail::unit_interval(0, 0), 0x1.0p-53);
}

TEST(Normal, MomentsAndTails) {
  double m1 = 0, m2 = 0, m3 = 0, m4 = 0;
  const int n = 400000;
  for (int i = 0; i < n; ++i) {
    const double z = normal(7, 3, static_cast<std::uint64_t>(i), 9);
    ASSERT_TRUE(std::isfinite(z));
    m1 += z, m2 += z * z, m3 += z * z * z, m4 += z * z * z * z;
  }
  EXPECT_NEAR(m1 / n, 0.0, 0.006);
  EXPECT_NEAR(m2 / n, 1.0, 0.01);
  EXPECT_NEAR(m3 / n, 0.0, 0.03);
  EXPECT_NEAR(m4 / n, 3.0, 0.1);
}

TEST(Normal, EveryArgumentCounts) {
  const double z = normal(1, 2, 3, 4);
  EXPECT_EQ(z, normal(1, 2, 3, 4));
  EXPECT_NE(z, normal(2, 2, 3, 4));
  EXPECT_NE(z, normal(1, 3, 3, 4));
  EXPECT_NE(z, normal(1, 2, 4, 4));
  EXPECT_NE(z, normal(1, 2, 3, 5));
  EXPECT_NE(z, normal(1 + (1ull << 32), 2, 3, 4));
  EXPECT_NE(z, normal(1, 2, 3 + (1ull << 32), 4));
  static_assert(stream_id("a") != stream_id("b"));
}

}  // namespace
}  // namespace nanotron
