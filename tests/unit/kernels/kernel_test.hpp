#pragma once

// What the kernel tests share: arrays that live on the host and on the device, random numbers of
// each type, and comparison with the fp64 reference.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "nanotron/tensor/device.hpp"
#include "support/device_values.hpp"
#include "support/differences.hpp"

namespace nanotron::test {

// Of kernels for tensor cores, which a build for AMD GPUs lacks.
template <class Base = testing::Test>
class OnTensorCores : public Base {
 protected:
  void SetUp() override {
    if (!has_mma_kernels) GTEST_SKIP() << "this build has no kernels for tensor cores";
    Base::SetUp();
  }
};

template <class T>
constexpr bool is_bf16 = std::is_same_v<std::remove_const_t<T>, bf16>;

// One rounding to T, relative. Tolerances are small multiples of it.
template <class T>
constexpr double unit_roundoff() {
  return is_bf16<T> ? 0x1p-8 : std::is_same_v<T, float> ? 0x1p-24 : 0x1p-53;
}

template <class T>
T of(double value) {
  if constexpr (is_bf16<T>)
    return bf16(static_cast<float>(value));
  else
    return static_cast<T>(value);
}

// n elements here and on the device.
template <class T>
class Array {
 public:
  explicit Array(index_t n, double value = 0.0) : host(static_cast<std::size_t>(n), of<T>(value)) {
    view_ = Kokkos::View<T*, Kokkos::LayoutRight, MemorySpace>("test array", host.size());
    push();
  }
  static Array random(index_t n, unsigned seed, double spread = 1.0) {
    Array a(n);
    std::mt19937 generator(seed);
    std::normal_distribution<double> normal(0.0, spread);
    for (T& x : a.host) x = of<T>(normal(generator));
    a.push();
    return a;
  }
  void push() { set_values(view_, host); }
  void pull() { host = values_of(view_); }
  Vector<T> vector() const { return view_; }
  Vector<const T> read() const { return view_; }
  Matrix<T> matrix(index_t rows, index_t columns) const { return Matrix<T>(view_.data(), rows, columns); }
  Matrix<const T> read(index_t rows, index_t columns) const { return matrix(rows, columns); }
  T* data() const { return view_.data(); }
  index_t size() const { return static_cast<index_t>(host.size()); }
  MatrixRef<const T> on_host(index_t rows, index_t columns) const { return {host.data(), rows, columns}; }

  std::vector<T> host;

 private:
  Kokkos::View<T*, Kokkos::LayoutRight, MemorySpace> view_;
};

inline MatrixRef<double> matrix_of(std::vector<double>& v, index_t rows, index_t columns) {
  return {v.data(), rows, columns};
}

// |actual - expected| <= tolerance * (|expected| + floor) for all elements.
template <class T>
void expect_close(const std::vector<T>& actual, const std::vector<double>& expected, double tolerance,
                  double floor = 1.0) {
  ASSERT_EQ(actual.size(), expected.size());
  double worst = 0;
  std::size_t at = 0;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    const double error = std::abs(static_cast<double>(actual[i]) - expected[i]) / (std::abs(expected[i]) + floor);
    if (error <= worst) continue;
    worst = error, at = i;
    if (std::isnan(error)) break;  // which no other one is larger than
  }
  EXPECT_LE(worst, tolerance) << "at " << at << ": " << static_cast<double>(actual[at]) << ", reference "
                              << expected[at];
}

// The gradient of f at x by central differences, fp64.
template <class F>
std::vector<double> finite_difference(std::vector<double> x, const F& f, double step = 1e-6) {
  std::vector<double> gradient(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double before = x[i];
    x[i] = before + step;
    const double up = f(x);
    x[i] = before - step;
    const double down = f(x);
    x[i] = before;
    gradient[i] = (up - down) / (2 * step);
  }
  return gradient;
}

// The factors that a norm's weights w are: w, 1 + w, or 1 without weights.
enum class ScaleKind { plain, one_plus, none };
inline constexpr ScaleKind scale_kinds[] = {ScaleKind::plain, ScaleKind::one_plus, ScaleKind::none};
template <class M>
std::vector<M> factors_of(ScaleKind kind, std::vector<M> w) {
  for (M& x : w) x = kind == ScaleKind::plain ? x : kind == ScaleKind::one_plus ? M(1) + x : M(1);
  return w;
}

inline double dot(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

// Tests of one kernel in all types: TYPED_TEST_SUITE(Name, ScalarTypes) of class Name :
// KernelTest<T>.
template <class T>
class KernelTest : public ::testing::Test {
 protected:
  using M = master_t<T>;
  Timers timers_;
  Device device_{timers_};
};
using ScalarTypes = ::testing::Types<double, float, bf16>;

}  // namespace nanotron::test
