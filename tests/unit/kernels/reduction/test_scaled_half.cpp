// ranks: 1
// Blocks scaled to fp16 and back, against plain loops.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "nanotron/base/random.hpp"
#include "nanotron/kernels/reduction/scaled_half.hpp"
#include "support/differences.hpp"

namespace nanotron::kernels {
namespace {

using Values = std::vector<double>;

template <class M>
class ScaledHalf : public testing::Test {
 protected:
  struct Result {
    Values largest, half, back;
  };

  Result through(const Values& values, int ranks) {
    const auto n = static_cast<index_t>(values.size()), blocks = half_blocks(n);
    const Kokkos::View<M*, MemorySpace> x("x", values.size()), most("most", static_cast<std::size_t>(blocks));
    const Kokkos::View<fp16*, MemorySpace> y("y", values.size());
    const auto host = Kokkos::create_mirror_view(x);
    for (std::size_t i = 0; i < values.size(); ++i) host(i) = static_cast<M>(values[i]);
    Kokkos::deep_copy(x, host);
    const Vector<M> vx(x.data(), n), vm(most.data(), blocks);
    const Vector<fp16> vy(y.data(), n);
    block_largest<M>(device_, vx, vm);
    scale_to_half<M>(device_, vx, vm, ranks, vy);
    scale_from_half<M>(device_, vy, vm, ranks, vx);
    return {pull(vm), pull(vy), pull(vx)};
  }

  template <class View>
  Values pull(const View& v) {
    const auto host = Kokkos::create_mirror(v);
    Kokkos::deep_copy(host, v);
    Values values;
    for (std::size_t i = 0; i < host.size(); ++i) values.push_back(static_cast<double>(static_cast<M>(host(i))));
    return values;
  }

  Timers timers_;
  Device device_{timers_};
};
using Masters = testing::Types<double, float>;
TYPED_TEST_SUITE(ScaledHalf, Masters);

Values spread(index_t n, double size) {
  Values x;
  for (index_t i = 0; i < n; ++i) {
    const double u = uniform(1, stream_id("size"), static_cast<std::uint64_t>(i));
    x.push_back(size * normal(1, 2, static_cast<std::uint64_t>(i)) * std::exp2(-12.0 * u));
  }
  return x;
}

TYPED_TEST(ScaledHalf, KeepsElevenBitsOfWhatIsNotFarBelowTheLargest) {
  for (const index_t n : {1, 7, 1023, 1024, 1025, 5000}) {
    for (const int ranks : {1, 2, 3, 64, 1000}) {
      for (const double size : {1e-30, 1e-8, 1.0, 1e30}) {
        const Values x = spread(n, size);
        const auto [largest, half, back] = this->through(x, ranks);
        for (index_t i = n - 1; i >= 0; --i) {
          const index_t block = half_blocks(n) - 1 - (n - 1 - i) / half_block,
                        end = n - (half_blocks(n) - 1 - block) * half_block;
          double most = 0.0;
          for (index_t j = std::max<index_t>(0, end - half_block); j < end; ++j)
            most = test::larger(most, std::abs(static_cast<double>(static_cast<TypeParam>(x[j]))));
          ASSERT_EQ(largest[block], most) << n << " " << i;
          ASSERT_LT(ranks * std::abs(half[i]), 32768.0) << "all ranks with this number overflow";
          const double bits = std::max(std::abs(x[i]) * 0x1p-11, most * ranks * 0x1p-38);
          ASSERT_LE(std::abs(back[i] - x[i]), bits * 1.001) << n << " " << ranks << " " << size << " " << i;
        }
      }
    }
  }
}

// Whatever the size of a block, its bits are those of another of 2^k times the size.
TYPED_TEST(ScaledHalf, KnowsNoUnderflow) {
  const Values x = spread(3000, 1.0), one = this->through(x, 4).back;
  for (const int k : {-100, -40, 60, 120}) {
    Values scaled = x;
    for (double& v : scaled) v = std::ldexp(static_cast<double>(static_cast<TypeParam>(v)), k);
    const Values other = this->through(scaled, 4).back;
    for (std::size_t i = 0; i < x.size(); ++i) ASSERT_EQ(other[i], std::ldexp(one[i], k)) << k << " " << i;
  }
}

TYPED_TEST(ScaledHalf, WhatIsNotFiniteStaysSo) {
  const Values x = spread(3000, 1.0);
  for (const double bad : {double(NAN), double(INFINITY), -double(INFINITY)}) {
    Values broken = x;
    broken[1500] = bad;
    const auto [largest, half, back] = this->through(broken, 2);
    EXPECT_TRUE(std::isnan(bad) ? std::isnan(back[1500]) : back[1500] == bad) << bad;
    EXPECT_FALSE(std::isfinite(largest[1])) << "the other ranks learn of it";
    EXPECT_TRUE(std::isfinite(back[100]) && std::isfinite(back[2999]));
  }
  EXPECT_EQ(this->through(Values(2000, 0.0), 2).back, Values(2000, 0.0));
}

}  // namespace
}  // namespace nanotron::kernels
