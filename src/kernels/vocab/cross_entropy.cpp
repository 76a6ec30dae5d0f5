#include "nanotron/kernels/vocab/cross_entropy.hpp"

#include <cfloat>
#include <cmath>

#include "nanotron/kernels/loop/loop.hpp"
#include "nanotron/kernels/loop/scalar_math.hpp"

// exp is computed twice, in the sum and in the gradient. Storing it in the logits in between would
// overwrite them, round bf16 twice, and cost a write that takes longer than the vectorised exp.

namespace nanotron::kernels {

template <class T>
void cross_entropy_local_max(Device& device, Matrix<const T> logits, Vector<master_t<T>> max) {
  const Region region(device.timers(), "cross_entropy_local_max");
  using M = master_t<T>;
  const index_t columns = static_cast<index_t>(logits.extent(1));
  constexpr M lowest = std::is_same_v<M, double> ? M(-DBL_MAX) : M(-FLT_MAX);
  for_each_row(
      device, "cross_entropy_local_max", static_cast<index_t>(logits.extent(0)),
      KOKKOS_LAMBDA(const Row& row, const index_t i) {
        const T* const l = logits.data() + i * columns;
        max.data()[i] = row.template max<M>(columns, lowest,
                                            [=](const index_t c) { return static_cast<M>(l[c]); });
      });
}

template <class T>
void cross_entropy_local_sum(Device& device, Matrix<const T> logits,
                             Vector<const std::int32_t> targets, index_t vocab_begin,
                             Vector<const master_t<T>> max, Vector<master_t<T>> sum,
                             Vector<master_t<T>> target_logit, const SumOrder& given) {
  const Region region(device.timers(), "cross_entropy_local_sum");
  using M = master_t<T>;
  const index_t columns = static_cast<index_t>(logits.extent(1));
  const SumOrder order = given.block_count == 0 ? SumOrder({{columns, 1}}, 1, 1, 0) : given;
  for_each_row(
      device, "cross_entropy_local_sum", static_cast<index_t>(logits.extent(0)),
      KOKKOS_LAMBDA(const Row& row, const index_t i) {
        const T* const l = logits.data() + i * columns;
        const M top = max.data()[i];
        M stack[TreeStack::depth] = {};
        const auto add = [&](int into, int from) { stack[into] += stack[from]; };
        TreeStack tree;
        for (int s = 0; s < order.held; ++s) {
          const Range shard = order.terms(0, s);
          const T* const of_shard = l + shard.begin;
          stack[tree.top()] = row.template sum<M>(shard.end - shard.begin, [=](const index_t c) {
            return exponential(static_cast<M>(of_shard[c]) - top);
          });
          tree.push(add);
        }
        tree.finish(add);
        sum.data()[i] = stack[0];
        const index_t target = targets.data()[i] - vocab_begin;
        const bool here = targets.data()[i] >= 0 && target >= 0 && target < columns;
        target_logit.data()[i] = here ? static_cast<M>(l[target]) : M(0);
      });
}

template <class M>
void cross_entropy_loss(Device& device, Vector<const M> max, Vector<const M> sum,
                        Vector<const M> target_logit, Vector<const std::int32_t> targets,
                        Vector<double> loss_per_row) {
  const Region region(device.timers(), "cross_entropy_loss");
  for_each_element(
      device, "cross_entropy_loss", static_cast<index_t>(max.extent(0)),
      KOKKOS_LAMBDA(const index_t i) {
        const double loss = std::log(static_cast<double>(sum.data()[i])) +
                            static_cast<double>(max.data()[i]) -
                            static_cast<double>(target_logit.data()[i]);
        loss_per_row.data()[i] = targets.data()[i] < 0 ? 0.0 : loss;
      });
}

template <class T>
void cross_entropy_gradient(Device& device, Matrix<T> logits, Vector<const std::int32_t> targets,
                            index_t vocab_begin, Vector<const master_t<T>> max,
                            Vector<const master_t<T>> sum, double scale) {
  const Region region(device.timers(), "cross_entropy_gradient");
  using M = master_t<T>;
  const index_t columns = static_cast<index_t>(logits.extent(1));
  for_each_row(
      device, "cross_entropy_gradient", static_cast<index_t>(logits.extent(0)),
      KOKKOS_LAMBDA(const Row& row, const index_t i) {
        T* const l = logits.data() + i * columns;
        const std::int32_t id = targets.data()[i];
        if (id < 0) {
          row.for_each(columns, [=](const index_t c) { l[c] = T(0.0f); });
          return;
        }
        const M top = max.data()[i];
        const M factor = static_cast<M>(scale) / sum.data()[i];
        const index_t target = id - vocab_begin;
        const bool here = target >= 0 && target < columns;
        // The target's probability is computed first, in M: the difference is rounded to T once.
        const M probability = here ? exponential(static_cast<M>(l[target]) - top) * factor : M(0);
        row.barrier();  // l[target] is read before another thread overwrites it
        row.for_each(columns, [=](const index_t c) {
          l[c] = static_cast<T>(exponential(static_cast<M>(l[c]) - top) * factor);
        });
        if (here) l[target] = static_cast<T>(probability - static_cast<M>(scale));
      });
}

template void cross_entropy_loss<double>(Device&, Vector<const double>, Vector<const double>,
                                         Vector<const double>, Vector<const std::int32_t>,
                                         Vector<double>);
template void cross_entropy_loss<float>(Device&, Vector<const float>, Vector<const float>,
                                        Vector<const float>, Vector<const std::int32_t>,
                                        Vector<double>);
#define NANOTRON_INSTANTIATE(T)                                                                    \
  template void cross_entropy_local_max<T>(Device&, Matrix<const T>, Vector<master_t<T>>);         \
  template void cross_entropy_local_sum<T>(Device&, Matrix<const T>, Vector<const std::int32_t>,   \
                                           index_t, Vector<const master_t<T>>,                     \
                                           Vector<master_t<T>>, Vector<master_t<T>>,               \
                                           const SumOrder&);                                       \
  template void cross_entropy_gradient<T>(Device&, Matrix<T>, Vector<const std::int32_t>, index_t, \
                                          Vector<const master_t<T>>, Vector<const master_t<T>>,    \
                                          double);
NANOTRON_FOR_COMPUTE_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE

}  // namespace nanotron::kernels
