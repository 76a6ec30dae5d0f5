// ranks: 1

#include "nanotron/kernels/mlp/gated.hpp"
#include "support/reference/gated.hpp"
#include "unit/kernels/kernel_test.hpp"

namespace nanotron::test {
namespace {

template <class T>
class Gated : public KernelTest<T> {
 protected:
  // Without weights of rows, and with them as experts have them.
  template <class Form>
  void check(const Form& form) {
    using M = master_t<T>;
    const index_t rows = 9, width = 77;
    auto in = Array<T>::random(rows * 2 * width, 1, 2.0), of_expert = in;
    of_expert = Array<T>::random(rows * 2 * width, 1, 2.0);
    const auto dh = Array<T>::random(rows * width, 2);
    const auto weights = Array<M>::random(rows, 3);
    Array<T> h(rows * width), weighted(rows * width);
    Array<M> dweights(rows);
    const std::vector<T> input = in.host;
    kernels::gated_forward<T>(this->device_, form, in.read(rows, 2 * width), h.matrix(rows, width));
    kernels::gated_backward<T>(this->device_, form, in.read(rows, 2 * width), dh.read(rows, width),
                               in.matrix(rows, 2 * width));
    kernels::weighted_gated_forward<T>(this->device_, form, of_expert.read(rows, 2 * width), weights.read(),
                                       weighted.matrix(rows, width));
    kernels::weighted_gated_backward<T>(this->device_, form, of_expert.matrix(rows, 2 * width), weights.read(),
                                        dh.read(rows, width), dweights.vector());
    this->device_.fence();
    h.pull(), in.pull(), weighted.pull(), of_expert.pull(), dweights.pull();
    std::vector<double> h2(h.host.size()), d2(input.size()), weighted2(h.host.size()), of_expert2(input.size()),
        dw2(rows);
    for (index_t i = 0; i < rows; ++i) {
      for (index_t c = 0; c < width; ++c) {
        const index_t at = i * width + c, gate = 2 * i * width + c, up = gate + width;
        const auto p =
            kernels::reference::gated(form, static_cast<double>(input[gate]), static_cast<double>(input[up]));
        const auto g = static_cast<double>(dh.host[at]), w = static_cast<double>(weights.host[i]);
        h2[at] = p.h, weighted2[at] = w * p.h;
        d2[gate] = g * p.by_gate, d2[up] = g * p.by_up;
        of_expert2[gate] = w * d2[gate], of_expert2[up] = w * d2[up];
        dw2[i] += g * p.h;
      }
    }
    const double tolerance = 64 * unit_roundoff<M>() + unit_roundoff<T>();
    expect_close(h.host, h2, tolerance);
    expect_close(in.host, d2, tolerance);
    expect_close(weighted.host, weighted2, tolerance);
    expect_close(of_expert.host, of_expert2, tolerance);
    expect_close(dweights.host, dw2, 32 * std::sqrt(static_cast<double>(width)) * unit_roundoff<M>());
  }
};
TYPED_TEST_SUITE(Gated, ScalarTypes);

TYPED_TEST(Gated, SwigluFollowsTheReference) {
  using T = TypeParam;
  for (const auto& [rows, width] : {std::pair<index_t, index_t>{7, 1408}, {3, 33}, {1, 1}}) {
    auto gate_up = Array<T>::random(rows * 2 * width, 1, 4.0);
    const auto dh = Array<T>::random(rows * width, 2);
    Array<T> h(rows * width);
    kernels::gated_forward<T>(this->device_, kernels::Swiglu(), gate_up.read(rows, 2 * width), h.matrix(rows, width));
    const auto input = gate_up.host;
    kernels::gated_backward<T>(this->device_, kernels::Swiglu(), gate_up.read(rows, 2 * width), dh.read(rows, width),
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

TYPED_TEST(Gated, OtherFormsFollowTheReference) {
  this->check(kernels::Geglu<kernels::GeluErf>());
  this->check(kernels::Geglu<kernels::GeluTanh>());
  this->check(kernels::ClampedSwiglu{.limit = 1.5, .alpha = 1.702});
}

TEST(GatedReference, GradientsAreFiniteDifferences) {
  constexpr double h = 1e-6;
  const auto check = [](const auto& form) {
    const auto value = [&](double gate, double up) { return kernels::reference::gated(form, gate, up).h; };
    for (double gate = -3.0; gate < 3.0; gate += 0.37) {
      for (double up = -3.0; up < 3.0; up += 0.41) {
        const auto p = kernels::reference::gated(form, gate, up);
        EXPECT_NEAR(p.by_gate, (value(gate + h, up) - value(gate - h, up)) / (2 * h), 1e-8) << gate << " " << up;
        EXPECT_NEAR(p.by_up, (value(gate, up + h) - value(gate, up - h)) / (2 * h), 1e-8) << gate << " " << up;
      }
    }
  };
  check(kernels::Geglu<kernels::GeluErf>());
  check(kernels::Geglu<kernels::GeluTanh>());
  check(kernels::ClampedSwiglu{.limit = 1.5, .alpha = 1.702});
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

}  // namespace
}  // namespace nanotron::test
