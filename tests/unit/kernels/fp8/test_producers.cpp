// ranks: 1
// What kernels say of the rows that they write, and codes that are computed instead of a stored tensor.
#include "nanotron/kernels/elementwise/elementwise.hpp"
#include "nanotron/kernels/fp8/quantise.hpp"
#include "nanotron/kernels/mlp/gated.hpp"
#include "nanotron/kernels/mlp/swiglu_fp8.hpp"
#include "nanotron/kernels/norm/norm.hpp"
#include "unit/kernels/kernel_test.hpp"

namespace nanotron::test {
namespace {

using kernels::Fp8Matrix, kernels::fp8_padded;

class Producers : public testing::Test {
 protected:
  void expect_maxima(Array<float>& maxima, const Array<bf16>& y, index_t columns) {
    Array<float> expected(maxima.size());
    kernels::row_maxima<bf16>(device_, y.read(maxima.size(), columns), expected.vector());
    maxima.pull(), expected.pull();
    EXPECT_EQ(maxima.host, expected.host);
    EXPECT_GT(*std::ranges::max_element(maxima.host), 0.0f);
  }
  Timers timers_;
  Device device_{timers_};
};

TEST_F(Producers, NormsTellTheMaximaOfTheirRows) {
  for (const index_t columns : {7, 64, 201}) {
    const index_t rows = 19;
    const auto x = Array<bf16>::random(rows * columns, 1), delta = Array<bf16>::random(rows * columns, 2);
    const auto w = Array<float>::random(columns, 3), b = Array<float>::random(columns, 4);
    Array<bf16> y(rows * columns), sum(rows * columns);
    Array<float> statistics(2 * rows), maxima(rows);
    const auto in = x.read(rows, columns), more = delta.read(rows, columns);
    const Vector<float> rstd(statistics.data(), rows);
    kernels::rms_norm_forward<bf16>(device_, in, w.read(), 1e-5, y.matrix(rows, columns), rstd, maxima.vector());
    expect_maxima(maxima, y, columns);
    kernels::add_rms_norm_forward<bf16>(device_, in, more, sum.matrix(rows, columns), w.read(), 1e-5,
                                        y.matrix(rows, columns), rstd, maxima.vector());
    expect_maxima(maxima, y, columns);
    kernels::layer_norm_forward<bf16>(device_, in, w.read(), b.read(), 1e-5, y.matrix(rows, columns),
                                      statistics.vector(), maxima.vector());
    expect_maxima(maxima, y, columns);
    kernels::add_layer_norm_forward<bf16>(device_, in, more, sum.matrix(rows, columns), w.read(), b.read(), 1e-5,
                                          y.matrix(rows, columns), statistics.vector(), maxima.vector());
    expect_maxima(maxima, y, columns);
  }
}

TEST_F(Producers, SwigluTellsTheMaximaOfItsRows) {
  const index_t rows = 33, width = 50;
  const auto gate_up = Array<bf16>::random(rows * 2 * width, 1), dh = Array<bf16>::random(rows * width, 2);
  Array<bf16> h(rows * width), gradient(rows * 2 * width);
  Array<float> maxima(rows);
  kernels::gated_forward<bf16>(device_, kernels::Swiglu(), gate_up.read(rows, 2 * width), h.matrix(rows, width),
                               maxima.vector());
  expect_maxima(maxima, h, width);
  kernels::gated_backward<bf16>(device_, kernels::Swiglu(), gate_up.read(rows, 2 * width), dh.read(rows, width),
                                gradient.matrix(rows, 2 * width), maxima.vector());
  expect_maxima(maxima, gradient, 2 * width);
}

// Codes with both layouts and their scale.
struct Codes {
  Codes(index_t rows, index_t columns)
      : by_rows("codes", static_cast<std::size_t>(rows * fp8_padded(columns))),
        by_columns("codes", static_cast<std::size_t>(columns * fp8_padded(rows))),
        scale(1),
        matrix{Matrix<e5m2>(by_rows.data(), rows, fp8_padded(columns)),
               Matrix<e5m2>(by_columns.data(), columns, fp8_padded(rows)), scale.data()} {}
  std::vector<std::uint8_t> bits() const {
    std::vector<std::uint8_t> all;
    for (const e5m2 code : values_of(by_rows)) all.push_back(code.bits);
    for (const e5m2 code : values_of(by_columns)) all.push_back(code.bits);
    return all;
  }
  Kokkos::View<e5m2*, Kokkos::LayoutRight, MemorySpace> by_rows, by_columns;
  Array<float> scale;
  Fp8Matrix<e5m2> matrix;
};

TEST_F(Producers, TheGradientOfSwigluHasTheCodesOfTheStoredOne) {
  for (const auto& [rows, width] : {std::pair<index_t, index_t>{1, 16}, {70, 48}, {64, 128}, {129, 80}}) {
    const auto gate_up = Array<bf16>::random(rows * 2 * width, 1), dh = Array<bf16>::random(rows * width, 2, 1e-4);
    const auto in = gate_up.read(rows, 2 * width);
    Array<bf16> stored(rows * 2 * width);
    Array<float> maxima(rows), computed(rows);
    kernels::gated_backward<bf16>(device_, kernels::Swiglu(), in, dh.read(rows, width), stored.matrix(rows, 2 * width),
                                  maxima.vector());
    kernels::swiglu_backward_maxima(device_, in, dh.read(rows, width), computed.vector());
    maxima.pull(), computed.pull();
    EXPECT_EQ(computed.host, maxima.host);
    const Codes expected(rows, 2 * width), ours(rows, 2 * width);
    kernels::quantise<e5m2>(device_, stored.read(rows, 2 * width), maxima.read(), expected.matrix);
    kernels::quantise_swiglu_backward(device_, in, dh.read(rows, width), maxima.read(), ours.matrix);
    EXPECT_EQ(value_at(ours.scale.vector(), 0), value_at(expected.scale.vector(), 0));
    EXPECT_TRUE(ours.bits() == expected.bits()) << rows << " " << width;
  }
}

}  // namespace
}  // namespace nanotron::test
