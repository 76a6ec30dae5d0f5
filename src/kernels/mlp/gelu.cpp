#include "nanotron/kernels/mlp/gelu.hpp"

#include <cmath>

#include "nanotron/kernels/loop/loop.hpp"
#include "nanotron/kernels/loop/scalar_math.hpp"

namespace nanotron::kernels {
namespace {

// P(x) and x P'(x).
template <class M>
struct Gate {
  M value, rise;
};

//   P' = exp(-x^2 / 2) / sqrt(2 pi)
template <class M>
NANOTRON_FUNCTION Gate<M> gate(GeluErf, M x) {
  constexpr M root_half = M(0.70710678118654752440), density = M(0.39894228040143267794);
  return {M(0.5) * std::erfc(-x * root_half), x * density * exponential(M(-0.5) * x * x)};
}

//   P' = P (1 - P) 2 u'      u' = sqrt(2 / pi) (1 + 3 0.044715 x^2)
template <class M>
NANOTRON_FUNCTION Gate<M> gate(GeluTanh, M x) {
  constexpr M twice = M(2 * 0.79788456080286535588), cubic = M(0.044715);
  const M square = x * x;
  const M p = M(1) / (M(1) + exponential(-twice * x * (M(1) + cubic * square)));
  return {p, x * p * (M(1) - p) * twice * (M(1) + M(3) * cubic * square)};
}

}  // namespace

template <class T, class Form>
void gelu_forward(Device& device, Matrix<const T> x, Matrix<T> h) {
  const KernelRegion kernel(device, "gelu_forward", reads(x), writes(h));
  using M = master_t<T>;
  const T* const from = x.data();
  T* const to = h.data();
  for_each_element(
      device, "gelu_forward", static_cast<index_t>(h.size()), KOKKOS_LAMBDA(const index_t i) {
        const M value = static_cast<M>(from[i]);
        to[i] = static_cast<T>(value * gate(Form{}, value).value);
      });
}

template <class T, class Form>
void gelu_backward(Device& device, Matrix<const T> x, Matrix<const T> dh, Matrix<T> dx) {
  const KernelRegion kernel(device, "gelu_backward", reads(x, dh), writes(dx));
  using M = master_t<T>;
  const T *const from = x.data(), *const gradient = dh.data();
  T* const to = dx.data();
  for_each_element(
      device, "gelu_backward", static_cast<index_t>(dx.size()), KOKKOS_LAMBDA(const index_t i) {
        const Gate<M> g = gate(Form{}, static_cast<M>(from[i]));
        to[i] = static_cast<T>(static_cast<M>(gradient[i]) * (g.value + g.rise));
      });
}

#define NANOTRON_INSTANTIATE(T, Form)                                       \
  template void gelu_forward<T, Form>(Device&, Matrix<const T>, Matrix<T>); \
  template void gelu_backward<T, Form>(Device&, Matrix<const T>, Matrix<const T>, Matrix<T>);
NANOTRON_INSTANTIATE(double, GeluErf)
NANOTRON_INSTANTIATE(float, GeluErf)
NANOTRON_INSTANTIATE(bf16, GeluErf)
NANOTRON_INSTANTIATE(double, GeluTanh)
NANOTRON_INSTANTIATE(float, GeluTanh)
NANOTRON_INSTANTIATE(bf16, GeluTanh)
#undef NANOTRON_INSTANTIATE

}  // namespace nanotron::kernels
