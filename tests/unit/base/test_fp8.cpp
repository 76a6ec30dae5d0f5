// ranks: 1
// Every code of both FP8 formats, and what lies between each two of them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "nanotron/base/fp8.hpp"

namespace nanotron {
namespace {

// By the definition: Micikevicius et al. 2022, table 1; Noune et al. 2022 for the codes of MI300, in units of half.
template <class E>
double defined(std::uint32_t code) {
  constexpr bool ieee = std::is_same_v<E, e5m2>;
  constexpr int mantissa = ieee ? 2 : 3, bias = ieee ? 15 : 7;
  const auto exponent = static_cast<int>((code & 0x7f) >> mantissa),
             fraction = static_cast<int>(code & ((1 << mantissa) - 1));
  const double sign = (code & 0x80) != 0 ? -1.0 : 1.0;
  if (fp8_is_fnuz && code == 0x80) return NAN;
  if (!fp8_is_fnuz && ieee && exponent == 31) return fraction == 0 ? sign * INFINITY : NAN;
  if (!fp8_is_fnuz && !ieee && (code & 0x7f) == 0x7f) return NAN;
  return sign * (exponent == 0 ? std::ldexp(fraction, 1 - bias - mantissa)
                               : std::ldexp((1 << mantissa) + fraction, exponent - bias - mantissa));
}

template <class E>
class Formats : public testing::Test {};
using BothFormats = testing::Types<e4m3, e5m2>;
TYPED_TEST_SUITE(Formats, BothFormats);

template <class E>
E of(std::uint32_t code) {
  return E::from_bits(static_cast<std::uint8_t>(code));
}

TYPED_TEST(Formats, EveryCodeIsThatOfTheDefinitionAndSurvivesTheRoundTrip) {
  using E = TypeParam;
  for (std::uint32_t code = 0; code < 0x100u; ++code) {
    const float wide = of<E>(code);
    if (std::isnan(defined<E>(code))) {
      ASSERT_TRUE(std::isnan(wide) && std::isnan(static_cast<float>(E(wide)))) << code;
    } else {
      ASSERT_EQ(wide, defined<E>(code)) << code;
      ASSERT_EQ(static_cast<float>(E(wide)), std::isfinite(wide) ? std::clamp(wide, -E::largest, E::largest) : wide);
      if (std::abs(wide) <= E::largest) {
        ASSERT_EQ(E(wide).bits, code);
      }
      ASSERT_EQ(static_cast<float>(bf16(wide)), wide) << "bf16 holds it exactly";
    }
  }
}

TYPED_TEST(Formats, RoundToNearestTiesToEven) {
  using E = TypeParam;
  const float infinity = std::numeric_limits<float>::infinity();
  for (const std::uint32_t sign : {0u, 0x80u}) {
    for (std::uint32_t a = 0; std::abs(defined<E>(a)) < E::largest; ++a) {  // and its neighbour
      if (fp8_is_fnuz && sign != 0 && a == 0) continue;                     // NaN
      const std::uint32_t code = sign | a;
      const auto middle = static_cast<float>(0.5 * (defined<E>(code) + defined<E>(code + 1)));
      ASSERT_EQ(E(middle).bits, code + (code & 1u)) << code;
      ASSERT_EQ(E(std::nextafter(middle, 0.0f)).bits, code);
      ASSERT_EQ(E(std::nextafter(middle, sign == 0 ? infinity : -infinity)).bits, code + 1);
    }
  }
  EXPECT_EQ(E(std::numeric_limits<float>::denorm_min()).bits, 0);
  EXPECT_EQ(E(-0.0f).bits, fp8_is_fnuz ? 0 : 0x80);
  EXPECT_EQ(E(-std::numeric_limits<float>::denorm_min()).bits, fp8_is_fnuz ? 0 : 0x80);
}

TYPED_TEST(Formats, SaturateWhatIsFiniteOnly) {
  using E = TypeParam;
  EXPECT_EQ(E::largest, (std::is_same_v<E, e4m3> ? 448.0f : 57344.0f));
  for (const float large : {E::largest, 1.2f * E::largest, 1e9f, std::numeric_limits<float>::max()}) {
    EXPECT_EQ(static_cast<float>(E(large)), E::largest) << large;
    EXPECT_EQ(static_cast<float>(E(-large)), -E::largest) << large;
  }
  EXPECT_TRUE(std::isnan(static_cast<float>(E(NAN))));
  for (const float infinity : {INFINITY, -INFINITY}) EXPECT_FALSE(std::isfinite(static_cast<float>(E(infinity))));
}

}  // namespace
}  // namespace nanotron
