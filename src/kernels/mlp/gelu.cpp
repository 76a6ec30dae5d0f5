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
  const T* const from = x.data();
  T* const to = h.data();
  for_each_piece<T>(
      device, "gelu_forward", static_cast<index_t>(h.size()),
      KOKKOS_LAMBDA(const Row& row, const index_t first, const index_t count) {
        const T* const source = from + first;
        T* const target = to + first;
        row.template for_each_chunk<T>(count, [=](const index_t i, const auto n) {
          const auto value = load(source + i, n);
          store(target + i, n, [&](const int k) { return value[k] * gate(Form{}, value[k]).value; });
        });
      });
}

template <class T, class Form>
void gelu_backward(Device& device, Matrix<const T> x, Matrix<const T> dh, Matrix<T> dx) {
  const KernelRegion kernel(device, "gelu_backward", reads(x, dh), writes(dx));
  using M = master_t<T>;
  const T *const from = x.data(), *const gradient = dh.data();
  T* const to = dx.data();
  for_each_piece<T>(
      device, "gelu_backward", static_cast<index_t>(dx.size()),
      KOKKOS_LAMBDA(const Row& row, const index_t first, const index_t count) {
        const T *const source = from + first, *const dh_of_piece = gradient + first;
        T* const target = to + first;
        row.template for_each_chunk<T>(count, [=](const index_t i, const auto n) {
          const auto value = load(source + i, n), dh_i = load(dh_of_piece + i, n);
          store(target + i, n, [&](const int k) {
            const Gate<M> g = gate(Form{}, value[k]);
            return dh_i[k] * (g.value + g.rise);
          });
        });
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
