// ranks: 1
// Every value of fp16, and what lies between each two of them.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "nanotron/base/fp16.hpp"

namespace nanotron {
namespace {

// By the definition of binary16.
double defined(std::uint32_t raw) {
  const int exponent = static_cast<int>(raw >> 10 & 0x1f), fraction = static_cast<int>(raw & 0x3ff);
  const double sign = (raw & 0x8000u) != 0 ? -1.0 : 1.0;
  if (exponent == 0x1f) return fraction == 0 ? sign * INFINITY : NAN;
  return sign * (exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25));
}

fp16 of(std::uint32_t raw) { return fp16::from_bits(static_cast<std::uint16_t>(raw)); }

TEST(Fp16, EveryValueIsThatOfTheDefinitionAndSurvivesTheRoundTrip) {
  for (std::uint32_t raw = 0; raw < 0x10000u; ++raw) {
    const float wide = of(raw);
    if (std::isnan(defined(raw))) {
      ASSERT_TRUE(std::isnan(wide) && std::isnan(static_cast<float>(fp16(wide)))) << raw;
    } else {
      ASSERT_EQ(wide, defined(raw)) << raw;
      ASSERT_EQ(fp16(wide).bits, raw);
    }
  }
}

TEST(Fp16, RoundsToNearestTiesToEven) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const std::uint32_t sign : {0u, 0x8000u}) {
    for (std::uint32_t a = 0; a < 0x7bffu; ++a) {  // and its neighbour
      const std::uint32_t raw = sign | a;
      const auto middle = static_cast<float>(0.5 * (defined(raw) + defined(raw + 1)));
      ASSERT_EQ(fp16(middle).bits, raw + (raw & 1u)) << raw;
      ASSERT_EQ(fp16(std::nextafter(middle, 0.0f)).bits, raw);
      ASSERT_EQ(fp16(std::nextafter(middle, sign == 0 ? infinity : -infinity)).bits, raw + 1);
    }
  }
  EXPECT_EQ(fp16(std::nextafter(65520.0f, 0.0f)).bits, 0x7bff);
  for (const float large : {65520.0f, 1e5f, std::numeric_limits<float>::max(), infinity}) {
    EXPECT_EQ(fp16(large).bits, 0x7c00) << large;
    EXPECT_EQ(fp16(-large).bits, 0xfc00) << large;
  }
  EXPECT_EQ(fp16(std::numeric_limits<float>::denorm_min()).bits, 0);
  EXPECT_EQ(fp16(-0.0f).bits, 0x8000);
}

}  // namespace
}  // namespace nanotron
