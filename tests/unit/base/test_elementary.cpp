// ranks: 1
// exp, log, ... of base/elementary against long double, in units in the last place: in fp32 every argument of a stride
// through all numbers of a range, in fp64 drawn ones. And their bits, which are the same on every machine.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "nanotron/base/elementary/circular.hpp"
#include "nanotron/base/elementary/error_function.hpp"
#include "nanotron/base/elementary/hyperbolic.hpp"
#include "nanotron/base/elementary/logarithm.hpp"
#include "support/differences.hpp"

namespace nanotron {
namespace {

template <class M>
double ulps(M got, long double want) {
  constexpr int digits = std::numeric_limits<M>::digits;
  int exponent = 0;
  std::frexp(static_cast<M>(want), &exponent);
  const int last = std::max(exponent - digits, std::numeric_limits<M>::min_exponent - digits);
  return static_cast<double>(std::abs(static_cast<long double>(got) - want) / std::ldexp(1.0L, last));
}

// The largest error of f on [low, high]: of every `stride`-th float, or of drawn doubles.
template <class F, class G>
double error_of(float low, float high, const F& f, const G& exact) {
  constexpr std::uint32_t stride = 9973;
  const auto bits_of = [](float x) {
    std::uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    return bits;
  };
  double worst = 0.0;
  const auto range = [&](float from, float to, float sign) {  // 0 <= from <= to
    for (std::uint32_t bits = bits_of(from); bits <= bits_of(to); bits += stride) {
      float x;
      std::memcpy(&x, &bits, sizeof x);
      worst = test::larger(worst, ulps(f(sign * x), exact(static_cast<long double>(sign * x))));
    }
  };
  if (high > 0.0f) range(std::max(low, 0.0f), high, 1.0f);
  if (low < 0.0f) range(std::max(-high, 0.0f), -low, -1.0f);
  return worst;
}
template <class F, class G>
double error_of(double low, double high, const F& f, const G& exact) {
  std::mt19937_64 draw(1);
  std::uniform_real_distribution<double> unit(0.0, 1.0);
  double worst = 0.0;
  for (int i = 0; i < 40000; ++i) {
    const double x = low + (high - low) * unit(draw);
    worst = test::larger(worst, ulps(f(x), exact(static_cast<long double>(x))));
  }
  return worst;
}

template <class M>
class Elementary : public testing::Test {
 protected:
  static constexpr bool is_double = std::is_same_v<M, double>;
};
using Types = testing::Types<float, double>;
TYPED_TEST_SUITE(Elementary, Types);

TYPED_TEST(Elementary, ExponentialIsWithinOneUnit) {
  using M = TypeParam;
  const auto f = [](M x) { return exponential(x); };
  const auto exact = [](long double x) { return std::exp(x); };
  EXPECT_LE(error_of(M(-1), M(1), f, exact), 1.0);
  EXPECT_LE(error_of(this->is_double ? M(-745) : M(-103.9f), this->is_double ? M(709.7) : M(88.7f), f, exact), 1.0);
  EXPECT_EQ(exponential(M(0)), M(1));
  EXPECT_EQ(exponential(M(-1e4)), M(0));
  EXPECT_EQ(exponential(M(1e4)), std::numeric_limits<M>::infinity());
  EXPECT_TRUE(std::isnan(exponential(std::numeric_limits<M>::quiet_NaN())));
}

TYPED_TEST(Elementary, ExponentialMinusOneIsWithinOnePointTwoUnits) {
  using M = TypeParam;
  const auto f = [](M x) { return exponential_minus_one(x); };
  const auto exact = [](long double x) { return std::expm1(x); };
  EXPECT_LE(error_of(M(-1), M(1), f, exact), 1.2);
  EXPECT_LE(error_of(M(-30), this->is_double ? M(709.7) : M(88.7f), f, exact), 1.2);
  EXPECT_EQ(exponential_minus_one(M(-1e4)), M(-1));
  EXPECT_EQ(exponential_minus_one(M(1e4)), std::numeric_limits<M>::infinity());
}

TYPED_TEST(Elementary, HyperbolicTangentIsWithinOnePointTwoUnits) {
  using M = TypeParam;
  const auto f = [](M x) { return hyperbolic_tangent(x); };
  const auto exact = [](long double x) { return std::tanh(x); };
  EXPECT_LE(error_of(M(-1), M(1), f, exact), 1.2);
  EXPECT_LE(error_of(M(-25), M(25), f, exact), 1.2);
  EXPECT_EQ(hyperbolic_tangent(M(1e30)), M(1));
  EXPECT_EQ(hyperbolic_tangent(M(-1e30)), M(-1));
}

TYPED_TEST(Elementary, LogarithmIsWithinOneUnit) {
  using M = TypeParam;
  const auto exact = [](long double x) { return std::log(x); };
  EXPECT_LE(error_of(
                M(0.7), M(1.5), [](M x) { return logarithm(x); }, exact),
            1.0);
  EXPECT_LE(error_of(
                M(1e-30), M(1e30), [](M x) { return logarithm(x); }, exact),
            1.0);
  EXPECT_LE(error_of(
                M(0), M(10), [](M x) { return logarithm_1p(x); }, [](long double x) { return std::log1p(x); }),
            1.0);
  EXPECT_EQ(logarithm(M(0)), -std::numeric_limits<M>::infinity());
  EXPECT_EQ(logarithm(std::numeric_limits<M>::infinity()), std::numeric_limits<M>::infinity());
  EXPECT_TRUE(std::isnan(logarithm(M(-1))));
  EXPECT_LE(ulps(logarithm(std::numeric_limits<M>::denorm_min()),
                 std::log(static_cast<long double>(std::numeric_limits<M>::denorm_min()))),
            1.0);
}

TYPED_TEST(Elementary, ComplementaryErrorIsWithinOneUnitOrFour) {
  using M = TypeParam;
  EXPECT_LE(error_of(
                M(-6), this->is_double ? M(26) : M(9.1f), [](M x) { return complementary_error(x); },
                [](long double x) { return std::erfc(x); }),
            this->is_double ? 4.0 : 1.0);
  EXPECT_EQ(complementary_error(M(-50)), M(2));
}

TEST(ElementaryFunctions, SineAndCosineAreWithinOneUnit) {
  for (const double most : {1.0, 7.0, 1e5, 6e7}) {
    // In long double the reduction of large arguments has no digits to spare: there as absolute errors.
    const double unit = most > 10.0 ? 0x1p-53 : 0.0;
    const auto check = [&](const char* name, auto f, auto exact) {
      std::mt19937_64 draw(2);
      std::uniform_real_distribution<double> place(-most, most);
      for (int i = 0; i < 20000; ++i) {
        const double x = place(draw), got = f(x);
        const long double want = exact(static_cast<long double>(x));
        const double error = unit > 0.0 ? static_cast<double>(std::abs(got - want)) / unit : ulps(got, want);
        ASSERT_LE(error, 1.0) << name << " of " << fmt::format("{:a}", x);
      }
    };
    check(
        "sine", [](double x) { return sine(x); }, [](long double x) { return std::sin(x); });
    check(
        "cosine", [](double x) { return cosine(x); }, [](long double x) { return std::cos(x); });
  }
}

TEST(ElementaryFunctions, PowersOfTheProgram) {
  std::mt19937_64 draw(3);
  std::uniform_real_distribution<double> unit(0.0, 1.0);
  for (int i = 0; i < 20000; ++i) {
    const double theta = std::exp(14.0 * unit(draw)), y = -unit(draw);
    ASSERT_LE(ulps(power(theta, y), std::pow(static_cast<long double>(theta), static_cast<long double>(y))), 1.4);
    const double beta = 1.0 - 0.1 * unit(draw), t = std::floor(5000.0 * unit(draw)) + 1.0;
    ASSERT_LE(ulps(power(beta, t), std::pow(static_cast<long double>(beta), static_cast<long double>(t))), 5.0);
  }
  EXPECT_EQ(power(2.0, -3.0), 0.125);
  EXPECT_EQ(power(10000.0, 0.5), 100.0);
}

// What every processor, compiler and instruction set gives: FNV-1a of the bits of results.
template <class M, class F>
std::uint64_t hash_of(M low, M high, const F& f) {
  std::uint64_t hash = 14695981039346656037u;
  for (int i = 0; i <= 4096; ++i) {
    const M y = f(low + (high - low) * (static_cast<M>(i) / M(4096)));
    std::uint64_t bits = 0;
    std::memcpy(&bits, &y, sizeof y);
    hash = (hash ^ bits) * 1099511628211u;
  }
  return hash;
}

TEST(ElementaryFunctions, BitsAreThoseOfEveryMachine) {
  const std::uint64_t found[] = {hash_of(-120.0f, 90.0f, [](float x) { return exponential(x); }),
                                 hash_of(-750.0, 710.0, [](double x) { return exponential(x); }),
                                 hash_of(-3.0f, 3.0f, [](float x) { return hyperbolic_tangent(x); }),
                                 hash_of(-3.0, 3.0, [](double x) { return hyperbolic_tangent(x); }),
                                 hash_of(-6.0f, 9.0f, [](float x) { return complementary_error(x); }),
                                 hash_of(-6.0, 26.0, [](double x) { return complementary_error(x); }),
                                 hash_of(1e-3f, 9.0f, [](float x) { return logarithm(x); }),
                                 hash_of(1e-3, 9.0, [](double x) { return logarithm(x); }),
                                 hash_of(-1e4, 1e4, [](double x) { return sine(x); }),
                                 hash_of(-1e4, 1e4, [](double x) { return cosine(x); }),
                                 hash_of(-1.0, 1.0, [](double x) { return power(1e6, x); }),
                                 hash_of(-2.0, 2.0, [](double x) { return exponential_minus_one(x); })};
  const std::uint64_t stored[] = {0x91840339d9faa26d, 0x68e9d218f48d251d, 0x01d0714291dd1107, 0x0fb1d1ed9617e357,
                                  0x7ce22c32bf5398b4, 0x01768b9e10db75e8, 0xf66ab0c2e9c855a8, 0x3dbfbfc5af818132,
                                  0xa7db6cf0d47aa23f, 0xa95c6eab1967222f, 0x567db72fb613c880, 0x28197f6dcbc5d6eb};
  for (std::size_t i = 0; i < std::size(found); ++i) EXPECT_EQ(found[i], stored[i]) << "function " << i;
}

}  // namespace
}  // namespace nanotron
