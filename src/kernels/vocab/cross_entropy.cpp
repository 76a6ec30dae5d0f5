#include "nanotron/kernels/vocab/cross_entropy.hpp"

#include <cfloat>
#include <cmath>

#include "nanotron/kernels/loop/loop.hpp"
#include "nanotron/kernels/loop/scalar_math.hpp"

// exp is computed twice, in the sum and in the gradient. Storing it in the logits in between would
// overwrite them, round bf16 twice, and cost a write that takes longer than the vectorised exp.

namespace nanotron::kernels {
namespace {

// A row of logits of this rank, and its target.
template <class T>
struct LogitRow {
  using Element = std::remove_const_t<T>;
  using M = master_t<Element>;

  NANOTRON_FUNCTION M max(const Row& row) const {
    constexpr M lowest = std::is_same_v<M, double> ? M(-DBL_MAX) : M(-FLT_MAX);
    const T* const l = logits;
    return row.template max_chunks<Element>(columns, lowest, [=](const index_t c, const auto n) {
      const auto value = load(l + c, n);
      return kernels::max(n, [&](const int k) { return value[k]; });
    });
  }

  NANOTRON_FUNCTION M sum(const Row& row, const M top, const SumOrder& order) const {
    M stack[TreeStack::depth] = {};
    const auto add = [&](int into, int from) { stack[into] += stack[from]; };
    TreeStack tree;
    for (int s = 0; s < order.held; ++s) {
      const Range shard = order.terms(0, s);
      const T* const of_shard = logits + shard.begin;
      stack[tree.top()] = row.template sum_chunks<Element>(shard.size(), [=](const index_t c, const auto n) {
        const auto value = load(of_shard + c, n);
        return kernels::sum(n, [&](const int k) { return exponential(value[k] - top); });
      });
      tree.push(add);
    }
    tree.finish(add);
    return stack[0];
  }

  NANOTRON_FUNCTION bool has_target() const { return id >= vocab_begin && id - vocab_begin < columns && id >= 0; }
  NANOTRON_FUNCTION M target_logit() const { return has_target() ? static_cast<M>(logits[id - vocab_begin]) : M(0); }

  // Overwrites the logits.
  NANOTRON_FUNCTION void gradient(const Row& row, const M top, const M sum, const double scale) const {
    T* const l = logits;
    if (id < 0) {
      row.for_each(columns, [=](const index_t c) { l[c] = T(0.0f); });
      return;
    }
    const M factor = static_cast<M>(scale) / sum;
    // The target's probability is computed first, in M: the difference is rounded to T once.
    const M probability = has_target() ? exponential(target_logit() - top) * factor : M(0);
    row.barrier();  // the target's logit is read before another thread overwrites it
    row.template for_each_chunk<Element>(columns, [=](const index_t c, const auto n) {
      const auto value = load(l + c, n);
      store(l + c, n, [&](const int k) { return exponential(value[k] - top) * factor; });
    });
    if (has_target()) l[id - vocab_begin] = static_cast<T>(probability - static_cast<M>(scale));
  }

  T* logits;
  index_t columns;
  std::int32_t id;  // of the target; negative: ignored
  index_t vocab_begin = 0;
};

template <class M>
NANOTRON_FUNCTION double loss_of(M max, M sum, M target_logit, std::int32_t target) {
  const double loss = std::log(static_cast<double>(sum)) + static_cast<double>(max) - static_cast<double>(target_logit);
  return target < 0 ? 0.0 : loss;
}

SumOrder order_of(const SumOrder& given, index_t columns) {
  return given.block_count == 0 ? SumOrder({{columns, 1}}, 1, 1, 0) : given;
}

}  // namespace

template <class T>
void cross_entropy_local_max(Device& device, Matrix<const T> logits, Vector<master_t<T>> max) {
  const KernelRegion kernel(device, "cross_entropy_local_max", reads(logits), writes(max));
  const index_t columns = static_cast<index_t>(logits.extent(1));
  for_each_row_of<T>(
      device, "cross_entropy_local_max", static_cast<index_t>(logits.extent(0)), columns,
      KOKKOS_LAMBDA(const Row& row, const index_t i) {
        max.data()[i] = LogitRow<const T>{logits.data() + i * columns, columns, -1}.max(row);
      });
}

template <class T>
void cross_entropy_local_sum(Device& device, Matrix<const T> logits,
                             Vector<const std::int32_t> targets, index_t vocab_begin,
                             Vector<const master_t<T>> max, Vector<master_t<T>> sum,
                             Vector<master_t<T>> target_logit, const SumOrder& given) {
  const KernelRegion kernel(device, "cross_entropy_local_sum", reads(logits, targets, max), writes(sum, target_logit));
  const index_t columns = static_cast<index_t>(logits.extent(1));
  const SumOrder order = order_of(given, columns);
  for_each_row_of<T>(
      device, "cross_entropy_local_sum", static_cast<index_t>(logits.extent(0)), columns,
      KOKKOS_LAMBDA(const Row& row, const index_t i) {
        const LogitRow<const T> l{logits.data() + i * columns, columns, targets.data()[i], vocab_begin};
        sum.data()[i] = l.sum(row, max.data()[i], order);
        target_logit.data()[i] = l.target_logit();
      });
}

template <class M>
void cross_entropy_loss(Device& device, Vector<const M> max, Vector<const M> sum,
                        Vector<const M> target_logit, Vector<const std::int32_t> targets,
                        Vector<double> loss_per_row) {
  const KernelRegion kernel(device, "cross_entropy_loss", reads(max, sum, target_logit, targets), writes(loss_per_row));
  for_each_element(
      device, "cross_entropy_loss", static_cast<index_t>(max.extent(0)), KOKKOS_LAMBDA(const index_t i) {
        loss_per_row.data()[i] = loss_of(max.data()[i], sum.data()[i], target_logit.data()[i], targets.data()[i]);
      });
}

template <class T>
void cross_entropy_gradient(Device& device, Matrix<T> logits, Vector<const std::int32_t> targets,
                            index_t vocab_begin, Vector<const master_t<T>> max,
                            Vector<const master_t<T>> sum, double scale) {
  const KernelRegion kernel(device, "cross_entropy_gradient", reads(logits, targets, max, sum), writes(logits));
  const index_t columns = static_cast<index_t>(logits.extent(1));
  for_each_row_of<T>(
      device, "cross_entropy_gradient", static_cast<index_t>(logits.extent(0)), columns,
      KOKKOS_LAMBDA(const Row& row, const index_t i) {
        const LogitRow<T> l{logits.data() + i * columns, columns, targets.data()[i], vocab_begin};
        l.gradient(row, max.data()[i], sum.data()[i], scale);
      });
}

template <class T>
void cross_entropy_whole_loss(Device& device, Matrix<const T> logits, Vector<const std::int32_t> targets,
                              Vector<double> loss_per_row, const SumOrder& given) {
  const KernelRegion kernel(device, "cross_entropy_whole_loss", reads(logits, targets), writes(loss_per_row));
  const index_t columns = static_cast<index_t>(logits.extent(1));
  const SumOrder order = order_of(given, columns);
  for_each_row_of<T>(
      device, "cross_entropy_whole_loss", static_cast<index_t>(logits.extent(0)), columns,
      KOKKOS_LAMBDA(const Row& row, const index_t i) {
        const LogitRow<const T> l{logits.data() + i * columns, columns, targets.data()[i]};
        const auto max = l.max(row), sum = l.sum(row, max, order);
        loss_per_row.data()[i] = loss_of(max, sum, l.target_logit(), l.id);
      });
}

template <class T>
void cross_entropy_whole(Device& device, Matrix<T> logits, Vector<const std::int32_t> targets, double scale,
                         Vector<double> loss_per_row, const SumOrder& given) {
  const KernelRegion kernel(device, "cross_entropy_whole", reads(logits, targets), writes(logits, loss_per_row));
  const index_t columns = static_cast<index_t>(logits.extent(1));
  const SumOrder order = order_of(given, columns);
  for_each_row_of<T>(
      device, "cross_entropy_whole", static_cast<index_t>(logits.extent(0)), columns,
      KOKKOS_LAMBDA(const Row& row, const index_t i) {
        const LogitRow<T> l{logits.data() + i * columns, columns, targets.data()[i]};
        const auto max = l.max(row), sum = l.sum(row, max, order);
        loss_per_row.data()[i] = loss_of(max, sum, l.target_logit(), l.id);
        l.gradient(row, max, sum, scale);
      });
}

template void cross_entropy_loss<double>(Device&, Vector<const double>, Vector<const double>,
                                         Vector<const double>, Vector<const std::int32_t>,
                                         Vector<double>);
template void cross_entropy_loss<float>(Device&, Vector<const float>, Vector<const float>,
                                        Vector<const float>, Vector<const std::int32_t>,
                                        Vector<double>);
#define NANOTRON_INSTANTIATE(T)                                                                                   \
  template void cross_entropy_local_max<T>(Device&, Matrix<const T>, Vector<master_t<T>>);                        \
  template void cross_entropy_local_sum<T>(Device&, Matrix<const T>, Vector<const std::int32_t>, index_t,         \
                                           Vector<const master_t<T>>, Vector<master_t<T>>, Vector<master_t<T>>,   \
                                           const SumOrder&);                                                      \
  template void cross_entropy_whole_loss<T>(Device&, Matrix<const T>, Vector<const std::int32_t>, Vector<double>, \
                                            const SumOrder&);                                                     \
  template void cross_entropy_whole<T>(Device&, Matrix<T>, Vector<const std::int32_t>, double, Vector<double>,    \
                                       const SumOrder&);                                                          \
  template void cross_entropy_gradient<T>(Device&, Matrix<T>, Vector<const std::int32_t>, index_t,                \
                                          Vector<const master_t<T>>, Vector<const master_t<T>>, double);
NANOTRON_FOR_COMPUTE_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE

}  // namespace nanotron::kernels
