#include "nanotron/kernels/mlp/pointwise.hpp"

#include "nanotron/kernels/loop/loop.hpp"

namespace nanotron::kernels {

template <class T, class Form>
void pointwise_forward(Device& device, Matrix<const T> x, Matrix<T> h) {
  const KernelRegion kernel(device, Form::forward, reads(x), writes(h));
  const T* const from = x.data();
  T* const to = h.data();
  for_each_piece<T>(
      device, Form::forward, static_cast<index_t>(h.size()),
      KOKKOS_LAMBDA(const Row& row, const index_t first, const index_t count) {
        const T* const source = from + first;
        T* const target = to + first;
        row.template for_each_chunk<T>(count, [=](const index_t i, const auto n) {
          const auto value = load(source + i, n);
          store(target + i, n, [&](const int k) { return Form::value(value[k]); });
        });
      });
}

template <class T, class Form>
void pointwise_backward(Device& device, Matrix<const T> x, Matrix<const T> dh, Matrix<T> dx) {
  const KernelRegion kernel(device, Form::backward, reads(x, dh), writes(dx));
  const T *const from = x.data(), *const gradient = dh.data();
  T* const to = dx.data();
  for_each_piece<T>(
      device, Form::backward, static_cast<index_t>(dx.size()),
      KOKKOS_LAMBDA(const Row& row, const index_t first, const index_t count) {
        const T *const source = from + first, *const dh_of_piece = gradient + first;
        T* const target = to + first;
        row.template for_each_chunk<T>(count, [=](const index_t i, const auto n) {
          const auto value = load(source + i, n), dh_i = load(dh_of_piece + i, n);
          store(target + i, n, [&](const int k) { return dh_i[k] * Form::slope(value[k]); });
        });
      });
}

#define NANOTRON_INSTANTIATE(T, Form)                                            \
  template void pointwise_forward<T, Form>(Device&, Matrix<const T>, Matrix<T>); \
  template void pointwise_backward<T, Form>(Device&, Matrix<const T>, Matrix<const T>, Matrix<T>);
#define NANOTRON_INSTANTIATE_FORMS(T) \
  NANOTRON_INSTANTIATE(T, GeluErf)    \
  NANOTRON_INSTANTIATE(T, GeluTanh)   \
  NANOTRON_INSTANTIATE(T, Relu)       \
  NANOTRON_INSTANTIATE(T, ReluSquared)
NANOTRON_FOR_COMPUTE_TYPES(NANOTRON_INSTANTIATE_FORMS)
#undef NANOTRON_INSTANTIATE_FORMS
#undef NANOTRON_INSTANTIATE

}  // namespace nanotron::kernels
