#include "nanotron/kernels/mlp/swiglu.hpp"

#include "kernels/loop/maxima.hpp"
#include "kernels/mlp/swiglu_gradient.hpp"
#include "nanotron/kernels/loop/loop.hpp"
#include "nanotron/kernels/loop/scalar_math.hpp"

namespace nanotron::kernels {

template <class T>
void swiglu_forward(Device& device, Matrix<const T> gate_up, Matrix<T> h, Vector<float> maxima) {
  const KernelRegion kernel(device, "swiglu_forward", reads(gate_up), writes(h, maxima));
  const RowMaxima sizes(maxima);
  using M = master_t<T>;
  const index_t width = static_cast<index_t>(h.extent(1));
  for_each_row_of<T>(
      device, "swiglu_forward", static_cast<index_t>(h.extent(0)), width,
      KOKKOS_LAMBDA(const Row& row, const index_t i) {
        const T* const gate = gate_up.data() + i * 2 * width;
        const T* const up = gate + width;
        T* const target = h.data() + i * width;
        row.template for_each_chunk<T>(width, [=](const index_t c, const auto n) {
          const auto x = load(gate + c, n), u = load(up + c, n);
          store(target + c, n, [&](const int k) {
            const M s = M(1) / (M(1) + exponential(-x[k]));
            return x[k] * s * u[k];
          });
        });
        sizes.store(row, i, target, width);
      });
}

template <class T>
void swiglu_backward(Device& device, Matrix<const T> gate_up, Matrix<const T> dh, Matrix<T> dgate_up,
                     Vector<float> maxima) {
  const KernelRegion kernel(device, "swiglu_backward", reads(gate_up, dh), writes(dgate_up, maxima));
  const RowMaxima sizes(maxima);
  const index_t width = static_cast<index_t>(dh.extent(1));
  for_each_row_of<T>(
      device, "swiglu_backward", static_cast<index_t>(dh.extent(0)), width,
      KOKKOS_LAMBDA(const Row& row, const index_t i) {
        const T* const gate = gate_up.data() + i * 2 * width;
        const T* const up = gate + width;
        const T* const gradient = dh.data() + i * width;
        T* const dgate = dgate_up.data() + i * 2 * width;
        T* const dup = dgate + width;
        row.template for_each_chunk<T>(width, [=](const index_t c, const auto n) {
          const auto x = load(gate + c, n), u = load(up + c, n), g = load(gradient + c, n);
          const auto d = chunk(n, [&](const int k) { return swiglu_gradient(x[k], u[k], g[k]); });
          store(dgate + c, n, [&](const int k) { return d[k].gate; });
          store(dup + c, n, [&](const int k) { return d[k].up; });
        });
        sizes.store(row, i, dgate, 2 * width);
      });
}

#define NANOTRON_INSTANTIATE(T)                                                        \
  template void swiglu_forward<T>(Device&, Matrix<const T>, Matrix<T>, Vector<float>); \
  template void swiglu_backward<T>(Device&, Matrix<const T>, Matrix<const T>, Matrix<T>, Vector<float>);
NANOTRON_FOR_COMPUTE_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE

}  // namespace nanotron::kernels
