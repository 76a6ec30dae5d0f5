#include "nanotron/kernels/mlp/weighted_swiglu.hpp"

#include "nanotron/kernels/loop/loop.hpp"
#include "nanotron/kernels/loop/scalar_math.hpp"

namespace nanotron::kernels {

template <class T>
void weighted_swiglu_forward(Device& device, Matrix<const T> gate_up, Vector<const master_t<T>> weights, Matrix<T> h) {
  const KernelRegion kernel(device, "weighted_swiglu_forward", reads(gate_up, weights), writes(h));
  using M = master_t<T>;
  const auto width = static_cast<index_t>(h.extent(1));
  for_each_row(device, "weighted_swiglu_forward", static_cast<index_t>(h.extent(0)),
               KOKKOS_LAMBDA(const Row& row, const index_t i) {
                 const T* const gate = gate_up.data() + i * 2 * width;
                 const T* const up = gate + width;
                 T* const target = h.data() + i * width;
                 const M w = weights.data()[i];
                 row.for_each(width, [=](const index_t c) {
                   const M x = static_cast<M>(gate[c]);
                   const M s = M(1) / (M(1) + exponential(-x));
                   target[c] = static_cast<T>(w * (x * s * static_cast<M>(up[c])));
                 });
               });
}

template <class T>
void weighted_swiglu_backward(Device& device, Matrix<T> gate_up, Vector<const master_t<T>> weights, Matrix<const T> dh,
                              Vector<master_t<T>> dweights, const SumOrder& given) {
  const KernelRegion kernel(device, "weighted_swiglu_backward", reads(gate_up, weights, dh), writes(gate_up, dweights));
  using M = master_t<T>;
  const auto width = static_cast<index_t>(dh.extent(1));
  const SumOrder order = given.block_count == 0 ? SumOrder({{width, 1}}, 1, 1, 0) : given;
  for_each_row(device, "weighted_swiglu_backward", static_cast<index_t>(dh.extent(0)),
               KOKKOS_LAMBDA(const Row& row, const index_t i) {
                 T* const gate = gate_up.data() + i * 2 * width;
                 T* const up = gate + width;
                 const T* const gradient = dh.data() + i * width;
                 const M w = weights.data()[i];
                 M stack[TreeStack::depth] = {};
                 const auto add = [&](int into, int from) { stack[into] += stack[from]; };
                 TreeStack tree;
                 for (int s = 0; s < order.held; ++s) {
                   const Range shard = order.terms(0, s);
                   const index_t first = shard.begin;
                   stack[tree.top()] = row.template sum<M>(shard.end - first, [=](const index_t n) {
                     const index_t c = first + n;
                     const M x = static_cast<M>(gate[c]);
                     return static_cast<M>(gradient[c]) * (x / (M(1) + exponential(-x)) * static_cast<M>(up[c]));
                   });
                   tree.push(add);
                 }
                 tree.finish(add);
                 const M dw = stack[0];
                 row.barrier();
                 row.for_each(1, [=](const index_t) { dweights.data()[i] = dw; });
                 row.for_each(width, [=](const index_t c) {
                   const M x = static_cast<M>(gate[c]);
                   const M u = static_cast<M>(up[c]);
                   const M g = w * static_cast<M>(gradient[c]);
                   const M s = M(1) / (M(1) + exponential(-x));
                   gate[c] = static_cast<T>(g * u * s * (M(1) + x * (M(1) - s)));
                   up[c] = static_cast<T>(g * x * s);
                 });
               });
}

#define NANOTRON_INSTANTIATE(T)                                                                                      \
  template void weighted_swiglu_forward<T>(Device&, Matrix<const T>, Vector<const master_t<T>>, Matrix<T>);          \
  template void weighted_swiglu_backward<T>(Device&, Matrix<T>, Vector<const master_t<T>>, Matrix<const T>,          \
                                            Vector<master_t<T>>, const SumOrder&);
NANOTRON_FOR_COMPUTE_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE

}  // namespace nanotron::kernels
