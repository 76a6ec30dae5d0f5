// ranks: 1
#include "support/reference/pointwise.hpp"
#include "unit/kernels/kernel_test.hpp"

namespace nanotron::test {
namespace {

template <class T>
class Pointwise : public KernelTest<T> {
 protected:
  template <class Form>
  void check() {
    const index_t rows = 7, columns = 1409;
    auto x = Array<T>::random(rows * columns, 1, 4.0);
    const auto dh = Array<T>::random(rows * columns, 2);
    Array<T> h(rows * columns);
    kernels::pointwise_forward<T, Form>(this->device_, x.read(rows, columns), h.matrix(rows, columns));
    const auto input = x.host;
    kernels::pointwise_backward<T, Form>(this->device_, x.read(rows, columns), dh.read(rows, columns),
                                         x.matrix(rows, columns));  // in place
    this->device_.fence();
    h.pull(), x.pull();
    std::vector<double> h2(input.size()), d2(input.size());
    for (std::size_t i = 0; i < input.size(); ++i) {
      const auto value = static_cast<double>(input[i]);
      h2[i] = kernels::reference::value(Form{}, value);
      d2[i] = static_cast<double>(dh.host[i]) * kernels::reference::slope(Form{}, value);
    }
    // exp to 2 units of an argument that is off by as many roundings as its size, a few operations; one rounding to T.
    const double tolerance = 64 * unit_roundoff<master_t<T>>() + unit_roundoff<T>();
    expect_close(h.host, h2, tolerance);
    expect_close(x.host, d2, tolerance);
  }
};
TYPED_TEST_SUITE(Pointwise, ScalarTypes);

TYPED_TEST(Pointwise, FollowsTheReference) {
  this->template check<kernels::GeluErf>();
  this->template check<kernels::GeluTanh>();
  this->template check<kernels::Relu>();
  this->template check<kernels::ReluSquared>();
}

TEST(PointwiseReference, SlopeIsTheFiniteDifference) {
  const auto check = []<class Form>(Form form) {
    for (double x = -6.0; x < 6.0; x += 0.31) {
      const double difference =
          (kernels::reference::value(form, x + 1e-6) - kernels::reference::value(form, x - 1e-6)) / 2e-6;
      EXPECT_NEAR(kernels::reference::slope(form, x), difference, 1e-8) << x;
    }
  };
  check(kernels::GeluErf{});
  check(kernels::GeluTanh{});
  check(kernels::Relu{});
  check(kernels::ReluSquared{});
}

TEST(Pointwise, EndsOfTheRange) {
  Timers timers;
  Device device(timers);
  const auto check = [&]<class Form>(Form) {
    Array<float> x(4);
    x.host = {-200.0f, 200.0f, 0.0f, -3e30f};
    x.push();
    const Array<float> dh(4, 1.0);
    Array<float> h(4), dx(4);
    kernels::pointwise_forward<float, Form>(device, x.read(1, 4), h.matrix(1, 4));
    kernels::pointwise_backward<float, Form>(device, x.read(1, 4), dh.read(1, 4), dx.matrix(1, 4));
    h.pull(), dx.pull();
    EXPECT_EQ(h.host, (std::vector<float>{-0.0f, 200.0f, 0.0f, -0.0f}));
    EXPECT_EQ(dx.host[0], 0.0f);
    EXPECT_EQ(dx.host[1], 1.0f);
    EXPECT_EQ(dx.host[2], 0.5f);
  };
  check(kernels::GeluErf{});
  check(kernels::GeluTanh{});
}

}  // namespace
}  // namespace nanotron::test
