// ranks: 1
// Scales, codes and their transposed copy, bit by bit against plain loops.

#include "nanotron/kernels/elementwise/elementwise.hpp"
#include "nanotron/kernels/fp8/quantise.hpp"
#include "support/reference/fp8.hpp"
#include "unit/kernels/kernel_test.hpp"

namespace nanotron::test {
namespace {

using kernels::Fp8Matrix, kernels::fp8_padded;

template <class T>
struct Memory {
  explicit Memory(index_t n) : view("codes", static_cast<std::size_t>(n)) {}
  std::vector<T> pull() const { return values_of(view); }
  Kokkos::View<T*, Kokkos::LayoutRight, MemorySpace> view;
};

template <class E>
class Quantise : public testing::Test {
 protected:
  struct Result {
    float scale = 0;
    std::vector<E> rows, columns;
    std::vector<bf16> values;
  };

  Result of(Array<bf16>& x, index_t rows, index_t columns) {
    x.push();
    const Memory<E> by_rows(rows * fp8_padded(columns)), by_columns(columns * fp8_padded(rows));
    const Array<float> maxima(rows), scale(1);
    Array<bf16> back(rows * columns);
    const Fp8Matrix<E> y{Matrix<E>(by_rows.view.data(), rows, fp8_padded(columns)),
                         Matrix<E>(by_columns.view.data(), columns, fp8_padded(rows)), scale.data()};
    kernels::row_maxima<bf16>(device_, x.read(rows, columns), maxima.vector());
    kernels::quantise<E>(device_, x.read(rows, columns), maxima.read(), y);
    kernels::dequantise<E>(device_, y.by_rows(), back.matrix(rows, columns));
    back.pull();
    return {value_at(scale.vector(), 0), by_rows.pull(), by_columns.pull(), back.host};
  }

  // Every code, in both layouts, and the zeros of the padding.
  void expect_reference(Array<bf16>& x, index_t rows, index_t columns) {
    const Result y = of(x, rows, columns);
    double amax = 0;
    for (const bf16 v : x.host) amax = larger(amax, std::abs(static_cast<double>(v)));
    ASSERT_EQ(y.scale, kernels::reference::scale_of<E>(amax)) << amax;
    const index_t wide = fp8_padded(columns), high = fp8_padded(rows);
    for (index_t r = 0; r < high; ++r) {
      for (index_t c = 0; c < wide; ++c) {
        const bool inside = r < rows && c < columns;
        const double value = inside ? static_cast<double>(x.host[r * columns + c]) / y.scale : 0.0;
        const std::uint8_t code = inside ? kernels::reference::nearest_code<E>(value) : 0;
        if (r < rows) {
          ASSERT_EQ(y.rows[r * wide + c].bits, code) << r << " " << c << " " << value;
        }
        if (c < columns) {
          ASSERT_EQ(y.columns[c * high + r].bits, code) << r << " " << c << " " << value;
        }
        if (inside) {
          ASSERT_EQ(static_cast<float>(y.values[r * columns + c]), float(E::from_bits(code)) * y.scale);
        }
      }
    }
  }

  Timers timers_;
  Device device_{timers_};
};
using BothFormats = testing::Types<e4m3, e5m2>;
TYPED_TEST_SUITE(Quantise, BothFormats);

TYPED_TEST(Quantise, EqualsTheReferenceBitByBitInBothLayouts) {
  for (const auto& [rows, columns] :
       {std::pair<index_t, index_t>{1, 1}, {3, 70}, {64, 64}, {65, 17}, {130, 129}, {16, 200}}) {
    for (const double spread : {1e-20, 3e-3, 1.0, 7e4}) {
      Array<bf16> x = Array<bf16>::random(rows * columns, static_cast<unsigned>(rows + columns), spread);
      for (index_t i = 0; i < x.size(); i += 3) x.host[i] = bf16(x.host[i] * 1e-3f);  // subnormal codes
      this->expect_reference(x, rows, columns);
    }
  }
}

// Those at the end of a power of two's reach, those that round up to it, and ties.
TYPED_TEST(Quantise, EqualsTheReferenceAtEveryAmaxAndTie) {
  using E = TypeParam;
  for (std::uint32_t bits = 0x0080; bits < 0x7f80; bits += 37) {
    Array<bf16> x(48);
    x.host[0] = bf16::from_bits(static_cast<std::uint16_t>(bits));
    for (index_t i = 1; i < x.size(); ++i) {
      x.host[i] = bf16(static_cast<float>(x.host[0]) * static_cast<float>(E::from_bits(i)) / 7.0f);
      if (!(std::abs(static_cast<float>(x.host[i])) <= static_cast<float>(x.host[0]))) x.host[i] = bf16(0.0f);
    }
    this->expect_reference(x, 3, 16);
  }
}

TYPED_TEST(Quantise, ZerosHaveScaleOne) {
  Array<bf16> x(40, 0.0);
  x.host[3] = bf16(-0.0f);
  this->expect_reference(x, 8, 5);
}

// The rest keeps its value as far as the format reaches: the loss shows what is wrong.
TYPED_TEST(Quantise, WhatIsNotFiniteStaysSo) {
  using E = TypeParam;
  for (const float bad : {NAN, -NAN, INFINITY, -INFINITY}) {
    Array<bf16> x(40, 1.0);
    x.host[3] = bf16(bad);
    const auto y = this->of(x, 8, 5);
    EXPECT_EQ(y.scale, 1.0f);
    for (index_t i = 0; i < 40; ++i) {
      EXPECT_EQ(std::isfinite(static_cast<float>(y.values[i])), i != 3);
      EXPECT_TRUE(i == 3 || static_cast<float>(y.values[i]) == 1.0f);
    }
    EXPECT_FALSE(std::isfinite(static_cast<float>(E(y.rows[3]))));
  }
}

}  // namespace
}  // namespace nanotron::test
