// ranks: 1

#include "nanotron/kernels/elementwise/elementwise.hpp"
#include "unit/kernels/kernel_test.hpp"

namespace nanotron::test {
namespace {

template <class T>
class Elementwise : public KernelTest<T> {};
TYPED_TEST_SUITE(Elementwise, ScalarTypes);

TYPED_TEST(Elementwise, FillAndAdd) {
  using T = TypeParam;
  for (const index_t n : {0, 1, 31, 4096, 10001}) {
    const auto x = Array<T>::random(n, 1);
    auto y = Array<T>::random(n, 2);
    Array<T> filled(n);
    std::vector<double> y2(y.host.begin(), y.host.end());
    for (index_t i = 0; i < n; ++i) {
      y2[i] += static_cast<double>(x.host[i]);
    }
    kernels::add<T>(this->device_, x.read(), y.vector());
    kernels::fill<T>(this->device_, filled.vector(), -1.5);
    this->device_.fence();
    y.pull(), filled.pull();
    expect_close(y.host, y2, unit_roundoff<T>());
    expect_close(filled.host, std::vector<double>(n, -1.5), 0.0);
  }
}

TYPED_TEST(Elementwise, Scaled) {
  using T = TypeParam;
  const index_t rows = 37, columns = 131;
  const double factor = 0.22;
  const auto x = Array<T>::random(rows * columns, 1), z = Array<T>::random(rows * columns, 2);
  Array<T> sum(x.size()), product(x.size());
  std::vector<double> sum2, product2;
  for (std::size_t i = 0; i < x.host.size(); ++i) {
    product2.push_back(factor * static_cast<double>(x.host[i]));
    sum2.push_back(product2.back() + static_cast<double>(z.host[i]));
  }
  kernels::add_scaled<T>(this->device_, factor, x.read(rows, columns), z.read(rows, columns),
                         sum.matrix(rows, columns));
  kernels::scale<T>(this->device_, factor, x.read(rows, columns), product.matrix(rows, columns));
  this->device_.fence();
  sum.pull(), product.pull();
  const double tolerance = 3 * unit_roundoff<master_t<T>>() + unit_roundoff<T>();
  expect_close(sum.host, sum2, tolerance);
  expect_close(product.host, product2, tolerance);
}

TEST(Vectors, AreSwapped) {
  Timers timers;
  Device device(timers);
  auto x = Array<double>::random(4100, 1), y = Array<double>::random(4100, 2);
  const std::vector<double> x0 = x.host, y0 = y.host;
  kernels::swap<double>(device, x.vector(), y.vector());
  device.fence();
  x.pull(), y.pull();
  EXPECT_EQ(x.host, y0);
  EXPECT_EQ(y.host, x0);
}

template <class T>
void check_bias(Device& device, index_t rows, index_t columns, index_t leading) {
  using M = master_t<T>;
  auto y = Array<T>::random(rows * leading, 1);
  const auto dy = Array<T>::random(rows * leading, 2);
  const auto bias = Array<M>::random(columns, 3);
  Array<M> dbias(columns, 1.0), work(kernels::bias_workspace_size(built_for, rows, columns));
  std::vector<double> y2(y.host.begin(), y.host.end()), dbias2(columns, 1.0);
  double magnitudes = 1.0;  // what the terms of a column add up to without their signs, at most
  for (index_t r = 0; r < rows; ++r) {
    double largest = 0.0;
    for (index_t c = 0; c < columns; ++c) {
      largest = larger(largest, std::abs(static_cast<double>(dy.host[r * leading + c])));
      y2[r * leading + c] += static_cast<double>(bias.host[c]);
      dbias2[c] += static_cast<double>(dy.host[r * leading + c]);
    }
    magnitudes += largest;
  }
  kernels::bias_add<T>(device, {y.data(), rows, columns, leading}, bias.read());
  kernels::bias_backward<T>(device, {dy.data(), rows, columns, leading}, dbias.vector(), work.vector());
  device.fence();
  y.pull(), dbias.pull();
  expect_close(y.host, y2, 2 * unit_roundoff<T>());
  expect_close(dbias.host, dbias2, static_cast<double>(rows) * unit_roundoff<M>(), magnitudes);
}

TYPED_TEST(Elementwise, BiasAndItsGradient) {
  check_bias<TypeParam>(this->device_, 61, 45, 50);
  check_bias<TypeParam>(this->device_, 61, 48, 64);      // every row aligned
  check_bias<TypeParam>(this->device_, 2000, 21, 21);    // more pieces than are added at once
  check_bias<TypeParam>(this->device_, 40, 9000, 9008);  // sums beyond a team's own memory
}

template <class A, class B>
void check_cast(Device& device) {
  const auto x = Array<A>::random(5003, 1);
  Array<B> y(5003);
  kernels::cast<A, B>(device, x.read(), y.vector());
  device.fence();
  y.pull();
  for (std::size_t i = 0; i < x.host.size(); ++i) {
    ASSERT_EQ(static_cast<double>(y.host[i]), static_cast<double>(of<B>(static_cast<double>(x.host[i]))));
  }
}

TYPED_TEST(Elementwise, CastRoundsOnce) {
  check_cast<TypeParam, float>(this->device_);
  check_cast<TypeParam, double>(this->device_);
  if constexpr (!std::is_same_v<TypeParam, double>) check_cast<TypeParam, bf16>(this->device_);
}

TEST(Cast, DoubleToBf16IsNotRoundedTwice) {
  Timers timers;
  Device device(timers);
  // Just above the middle of 1 and 1 + 2^-7: float rounds it to the middle, which then ties to
  // even, down.
  Array<double> x(3);
  x.host = {1.0 + 0x1p-8 + 0x1p-40, 1.0 + 0x1p-8, -(1.0 + 0x1p-8 + 0x1p-40)};
  x.push();
  Array<bf16> y(3);
  kernels::cast<double, bf16>(device, x.read(), y.vector());
  device.fence();
  y.pull();
  EXPECT_EQ(static_cast<float>(y.host[0]), 1.0f + 0x1p-7f);
  EXPECT_EQ(static_cast<float>(y.host[1]), 1.0f);
  EXPECT_EQ(static_cast<float>(y.host[2]), -1.0f - 0x1p-7f);
}

// Six blocks of columns: ((x0 + x1) + (x2 + x3)) + (x4 + x5), in views of wider rows.
TYPED_TEST(Elementwise, ColumnsAreAddedInATree) {
  using T = TypeParam;
  using M = master_t<T>;
  const index_t rows = 5, width = 7, leading = 6 * width + 3;
  const auto x = Array<T>::random(rows * leading, 1);
  Array<T> y(rows * (width + 2));
  kernels::add_column_tree<T>(this->device_, MatrixRef<const T>(x.data(), rows, 6 * width, leading),
                              MatrixRef<T>(y.data(), rows, width, width + 2));
  this->device_.fence();
  y.pull();
  for (index_t r = 0; r < rows; ++r) {
    for (index_t c = 0; c < width; ++c) {
      const auto at = [&](index_t a) {
        return static_cast<M>(x.host[static_cast<std::size_t>(r * leading + a * width + c)]);
      };
      const M sum = ((at(0) + at(1)) + (at(2) + at(3))) + (at(4) + at(5));
      EXPECT_EQ(static_cast<double>(y.host[static_cast<std::size_t>(r * (width + 2) + c)]),
                static_cast<double>(static_cast<T>(sum)));
    }
  }
}

}  // namespace
}  // namespace nanotron::test
