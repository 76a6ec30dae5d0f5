// ranks: 1
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "nanotron/base/types.hpp"

namespace nanotron {
namespace {

float value_of(std::uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

TEST(Bf16, EveryValueSurvivesTheRoundTrip) {
  for (std::uint32_t raw = 0; raw < 0x10000u; ++raw) {
    const bf16 value = bf16::from_bits(static_cast<std::uint16_t>(raw));
    const float wide = value;
    if (std::isnan(wide)) {
      EXPECT_TRUE(std::isnan(static_cast<float>(bf16(wide))));
    } else {
      EXPECT_EQ(bf16(wide).bits, raw);
    }
  }
}

TEST(Bf16, RoundsToNearestTiesToEven) {
  // For neighbours a < b of bf16: below, at and above the middle, from an even and an odd a.
  for (std::uint32_t raw : {0x3f80u, 0x3f81u, 0x0001u, 0x007fu, 0x7f7eu, 0xc000u, 0xc001u}) {
    const std::uint32_t a = raw << 16;
    EXPECT_EQ(bf16(value_of(a + 0x7fffu)).bits, raw);
    EXPECT_EQ(bf16(value_of(a + 0x8001u)).bits, raw + 1);
    EXPECT_EQ(bf16(value_of(a + 0x8000u)).bits, raw + (raw & 1u));
  }
  EXPECT_EQ(bf16(std::numeric_limits<float>::max()).bits, 0x7f80u);
}

TEST(Bf16, NotANumberStaysOne) {
  for (std::uint32_t nan : {0x7f800001u, 0x7fffffffu, 0xff800001u, 0xffffffffu, 0x7fc00000u}) {
    EXPECT_TRUE(std::isnan(static_cast<float>(bf16(value_of(nan)))));
  }
  EXPECT_EQ(static_cast<float>(bf16(-INFINITY)), -INFINITY);
}

TEST(ScalarTypes, NamesSizesAndDispatch) {
  EXPECT_STREQ(name_of(scalar_type_of<bf16>), "bf16");
  for (ScalarType type : {ScalarType::fp64, ScalarType::fp32, ScalarType::bf16}) {
    with_scalar_type(type, [&](auto tag) {
      using T = typename decltype(tag)::type;
      EXPECT_EQ(scalar_type_of<T>, type);
      EXPECT_EQ(size_of(type), sizeof(T));
    });
  }
  static_assert(std::is_same_v<master_t<bf16>, float> && std::is_same_v<master_t<double>, double>);
}

}  // namespace
}  // namespace nanotron
