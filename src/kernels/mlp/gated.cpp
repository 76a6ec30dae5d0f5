#include "nanotron/kernels/mlp/gated.hpp"

#include "kernels/loop/maxima.hpp"
#include "nanotron/kernels/loop/loop.hpp"

namespace nanotron::kernels {

template <class T, class Form>
void gated_forward(Device& device, const Form& form, Matrix<const T> gate_up, Matrix<T> h, Vector<float> maxima) {
  const KernelRegion kernel(device, Form::forward, reads(gate_up), writes(h, maxima));
  const RowMaxima sizes(maxima);
  const index_t width = static_cast<index_t>(h.extent(1));
  for_each_row_of<T>(
      device, Form::forward, static_cast<index_t>(h.extent(0)), width, KOKKOS_LAMBDA(const Row& row, const index_t i) {
        const T* const gate = gate_up.data() + i * 2 * width;
        const T* const up = gate + width;
        T* const target = h.data() + i * width;
        row.template for_each_chunk<T>(width, [=](const index_t c, const auto n) {
          const auto x = load(gate + c, n), u = load(up + c, n);
          store(target + c, n, [&](const int k) { return form.value(x[k], u[k]); });
        });
        sizes.store(row, i, target, width);
      });
}

template <class T, class Form>
void gated_backward(Device& device, const Form& form, Matrix<const T> gate_up, Matrix<const T> dh, Matrix<T> dgate_up,
                    Vector<float> maxima) {
  const KernelRegion kernel(device, Form::backward, reads(gate_up, dh), writes(dgate_up, maxima));
  const RowMaxima sizes(maxima);
  const index_t width = static_cast<index_t>(dh.extent(1));
  for_each_row_of<T>(
      device, Form::backward, static_cast<index_t>(dh.extent(0)), width,
      KOKKOS_LAMBDA(const Row& row, const index_t i) {
        const T* const gate = gate_up.data() + i * 2 * width;
        const T* const up = gate + width;
        const T* const gradient = dh.data() + i * width;
        T* const dgate = dgate_up.data() + i * 2 * width;
        T* const dup = dgate + width;
        row.template for_each_chunk<T>(width, [=](const index_t c, const auto n) {
          const auto x = load(gate + c, n), u = load(up + c, n), g = load(gradient + c, n);
          const auto d = chunk(n, [&](const int k) { return form.gradient(x[k], u[k], g[k]); });
          store(dgate + c, n, [&](const int k) { return d[k].gate; });
          store(dup + c, n, [&](const int k) { return d[k].up; });
        });
        sizes.store(row, i, dgate, 2 * width);
      });
}

template <class T, class Form>
void weighted_gated_forward(Device& device, const Form& form, Matrix<const T> gate_up,
                            Vector<const master_t<T>> weights, Matrix<T> h) {
  const KernelRegion kernel(device, Form::weighted_forward, reads(gate_up, weights), writes(h));
  using M = master_t<T>;
  const auto width = static_cast<index_t>(h.extent(1));
  for_each_row_of<T>(
      device, Form::weighted_forward, static_cast<index_t>(h.extent(0)), width,
      KOKKOS_LAMBDA(const Row& row, const index_t i) {
        const T* const gate = gate_up.data() + i * 2 * width;
        const T* const up = gate + width;
        T* const target = h.data() + i * width;
        const M w = weights.data()[i];
        row.template for_each_chunk<T>(width, [=](const index_t c, const auto n) {
          const auto x = load(gate + c, n), u = load(up + c, n);
          store(target + c, n, [&](const int k) { return w * form.value(x[k], u[k]); });
        });
      });
}

template <class T, class Form>
void weighted_gated_backward(Device& device, const Form& form, Matrix<T> gate_up, Vector<const master_t<T>> weights,
                             Matrix<const T> dh, Vector<master_t<T>> dweights, const SumOrder& given) {
  const KernelRegion kernel(device, Form::weighted_backward, reads(gate_up, weights, dh), writes(gate_up, dweights));
  using M = master_t<T>;
  const auto width = static_cast<index_t>(dh.extent(1));
  const SumOrder order = given.block_count == 0 ? SumOrder({{width, 1}}, 1, 1, 0) : given;
  const index_t of_shard = order.block_0.extent / order.shards;  // so that a team has the same threads on every grid
  for_each_row_of<T>(
      device, Form::weighted_backward, static_cast<index_t>(dh.extent(0)), of_shard,
      KOKKOS_LAMBDA(const Row& row, const index_t i) {
        T* const gate = gate_up.data() + i * 2 * width;
        T* const up = gate + width;
        const T* const gradient = dh.data() + i * width;
        const M w = weights.data()[i];
        M stack[TreeStack::depth] = {};
        const auto add = [&](int into, int from) { stack[into] += stack[from]; };
        TreeStack tree;
        for (int s = 0; s < order.shards_on_rank; ++s) {
          const Range shard = order.terms(0, s);
          T *const gate_s = gate + shard.begin, *const up_s = up + shard.begin;
          const T* const gradient_s = gradient + shard.begin;
          // An element is read and overwritten in one place.
          stack[tree.top()] = row.template sum_chunks<T>(shard.size(), [=](const index_t c, const auto n) {
            const auto x = load(gate_s + c, n), u = load(up_s + c, n), g = load(gradient_s + c, n);
            const auto d = chunk(n, [&](const int k) { return form.gradient(x[k], u[k], w * g[k]); });
            store(gate_s + c, n, [&](const int k) { return d[k].gate; });
            store(up_s + c, n, [&](const int k) { return d[k].up; });
            return sum(n, [&](const int k) { return g[k] * form.term(x[k], u[k]); });
          });
          tree.push(add);
        }
        tree.finish(add);
        const M dw = stack[0];
        row.for_each(1, [=](const index_t) { dweights.data()[i] = dw; });
      });
}

#define NANOTRON_INSTANTIATE(T, Form)                                                                                \
  template void gated_forward<T>(Device&, const Form&, Matrix<const T>, Matrix<T>, Vector<float>);                   \
  template void gated_backward<T>(Device&, const Form&, Matrix<const T>, Matrix<const T>, Matrix<T>, Vector<float>); \
  template void weighted_gated_forward<T>(Device&, const Form&, Matrix<const T>, Vector<const master_t<T>>,          \
                                          Matrix<T>);                                                                \
  template void weighted_gated_backward<T>(Device&, const Form&, Matrix<T>, Vector<const master_t<T>>,               \
                                           Matrix<const T>, Vector<master_t<T>>, const SumOrder&);
#define NANOTRON_INSTANTIATE_FORMS(T)      \
  NANOTRON_INSTANTIATE(T, Swiglu)          \
  NANOTRON_INSTANTIATE(T, Geglu<GeluErf>)  \
  NANOTRON_INSTANTIATE(T, Geglu<GeluTanh>) \
  NANOTRON_INSTANTIATE(T, ClampedSwiglu)
NANOTRON_FOR_COMPUTE_TYPES(NANOTRON_INSTANTIATE_FORMS)
#undef NANOTRON_INSTANTIATE_FORMS
#undef NANOTRON_INSTANTIATE

}  // namespace nanotron::kernels
