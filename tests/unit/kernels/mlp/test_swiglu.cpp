// ranks: 1

#include "nanotron/kernels/loop/scalar_math.hpp"
#include "nanotron/kernels/mlp/swiglu.hpp"
#include "support/reference/swiglu.hpp"
#include "unit/kernels/kernel_test.hpp"

namespace nanotron::test {
namespace {

template <class T>
class Swiglu : public KernelTest<T> {};
TYPED_TEST_SUITE(Swiglu, ScalarTypes);

TYPED_TEST(Swiglu, FollowsTheReference) {
  using T = TypeParam;
  for (const auto& [rows, width] : {std::pair<index_t, index_t>{7, 1408}, {3, 33}, {1, 1}}) {
    auto gate_up = Array<T>::random(rows * 2 * width, 1, 4.0);
    const auto dh = Array<T>::random(rows * width, 2);
    Array<T> h(rows * width);
    kernels::swiglu_forward<T>(this->device_, gate_up.read(rows, 2 * width), h.matrix(rows, width));
    const auto input = gate_up.host;
    kernels::swiglu_backward<T>(this->device_, gate_up.read(rows, 2 * width), dh.read(rows, width),
                                gate_up.matrix(rows, 2 * width));  // in place
    this->device_.fence();
    h.pull(), gate_up.pull();
    std::vector<double> h2(h.host.size()), d2(input.size());
    kernels::reference::swiglu_forward<T>({input.data(), rows, 2 * width}, matrix_of(h2, rows, width));
    kernels::reference::swiglu_backward<T>({input.data(), rows, 2 * width}, dh.on_host(rows, width),
                                           matrix_of(d2, rows, 2 * width));
    // exp to 2 units, four operations, and 1 - s, which loses up to |gate| more; one rounding to T.
    const double tolerance = 32 * unit_roundoff<master_t<T>>() + unit_roundoff<T>();
    expect_close(h.host, h2, tolerance);
    expect_close(gate_up.host, d2, tolerance);
  }
}

TEST(SwigluReference, GradientIsTheFiniteDifference) {
  const auto gate_up = Array<double>::random(2 * 10, 1);
  const auto dh = Array<double>::random(2 * 5, 2);
  std::vector<double> h(10), gradient(20);
  kernels::reference::swiglu_backward<double>(gate_up.on_host(2, 10), dh.on_host(2, 5), matrix_of(gradient, 2, 10));
  const auto loss = [&](const std::vector<double>& x) {
    kernels::reference::swiglu_forward<double>({x.data(), 2, 10}, matrix_of(h, 2, 5));
    return dot(h, dh.host);
  };
  expect_close(gradient, finite_difference(gate_up.host, loss), 1e-8);
}

TEST(Exponential, IsWithinTwoUnitsInTheLastPlace) {
  double worst = 0;
  for (double x = -103.0; x < 88.7; x += 0.00137) {
    const float at = static_cast<float>(x);
    const double exact = std::exp(static_cast<double>(at));
    const float nearest = static_cast<float>(exact);
    const double unit = static_cast<double>(std::nextafter(nearest, INFINITY)) - nearest;
    worst = larger(worst, std::abs(kernels::exponential(at) - exact) / unit);
  }
  EXPECT_LE(worst, 2.0);
}

TEST(Exponential, EndsOfTheRange) {
  EXPECT_EQ(kernels::exponential(0.0f), 1.0f);
  EXPECT_EQ(kernels::exponential(-200.0f), 0.0f);
  EXPECT_EQ(kernels::exponential(-INFINITY), 0.0f);
  EXPECT_EQ(kernels::exponential(INFINITY), INFINITY);
  EXPECT_EQ(kernels::exponential(100.0f), INFINITY);
  EXPECT_TRUE(std::isnan(kernels::exponential(NAN)));
}

}  // namespace
}  // namespace nanotron::test
