#include "nanotron/kernels/vocab/cross_entropy.hpp"

#include <cfloat>
#include <cmath>

#include "nanotron/base/elementary/exponential.hpp"
#include "nanotron/base/elementary/hyperbolic.hpp"
#include "nanotron/base/elementary/logarithm.hpp"
#include "nanotron/kernels/loop/loop.hpp"

// exp is computed twice, in the sum and in the gradient. Storing it in the logits in between would
// overwrite them, round bf16 twice, and cost a write that takes longer than the vectorised exp.

namespace nanotron::kernels {
namespace {

template <class M>
NANOTRON_FUNCTION double lse_of(M max, M sum) {
  return logarithm(static_cast<double>(sum)) + static_cast<double>(max);
}

template <class M>
struct MaxAndSum {
  M max, sum;  // of l, and of exp(l - max)
};

// A row of logits of this rank, and its target.
template <class T>
struct LogitRow {
  using Element = std::remove_const_t<T>;
  using M = master_t<Element>;

  static constexpr M lowest = std::is_same_v<M, double> ? M(-DBL_MAX) : M(-FLT_MAX);

  NANOTRON_FUNCTION M max(const Row& row) const {
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
    for (int s = 0; s < order.shards_on_rank; ++s) {
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

  // In one pass, by a team: each thread scales its sum by exp(before - now) where its maximum grows (Milakov and
  // Gimelshein, 2018).
  template <class Team>
  NANOTRON_FUNCTION MaxAndSum<M> max_and_sum(const Team& row) const {
    const T* const l = logits;
    M most = lowest, total = 0;
    row.template each_chunk<Element>(columns, [&](const index_t c, const auto n) {
      const auto value = load(l + c, n);
      const M of_chunk = kernels::max(n, [&](const int k) { return value[k]; });
      if (most < of_chunk) {
        total *= exponential(most - of_chunk);
        most = of_chunk;
      }
      total += kernels::sum(n, [&](const int k) { return exponential(value[k] - most); });
    });
    const M top = row.max_of_threads(most);
    return {top, row.sum_of_threads(total * exponential(most - top))};
  }

  NANOTRON_FUNCTION bool has_target() const { return id >= vocab_begin && id - vocab_begin < columns && id >= 0; }
  NANOTRON_FUNCTION M target_logit() const { return has_target() ? static_cast<M>(logits[id - vocab_begin]) : M(0); }

  // Overwrites the logits.
  NANOTRON_FUNCTION void gradient(const Row& row, const M top, const M sum, const LossGradient& of) const {
    T* const l = logits;
    if (id < 0) {
      row.for_each(columns, [=](const index_t c) { l[c] = T(0.0f); });
      return;
    }
    const M scale = static_cast<M>(of.scale);
    const M of_softmax = of.z_scale > 0.0 ? scale + static_cast<M>(2.0 * of.z_scale * lse_of(top, sum)) : scale;
    const M factor = of_softmax / sum, per_cap = of.cap > 0.0 ? static_cast<M>(1.0 / of.cap) : M(0);
    // The target's probability is computed first, in M: the difference is rounded to T once.
    const M logit = target_logit();
    const M probability = has_target() ? exponential(logit - top) * factor : M(0);
    row.barrier();  // the target's logit is read before another thread overwrites it
    if (of.cap > 0.0) {
      row.template for_each_chunk<Element>(columns, [=](const index_t c, const auto n) {
        const auto value = load(l + c, n);
        store(l + c, n,
              [&](const int k) { return exponential(value[k] - top) * factor * slope_of_cap(value[k], per_cap); });
      });
    } else {
      row.template for_each_chunk<Element>(columns, [=](const index_t c, const auto n) {
        const auto value = load(l + c, n);
        store(l + c, n, [&](const int k) { return exponential(value[k] - top) * factor; });
      });
    }
    const M slope = of.cap > 0.0 ? slope_of_cap(logit, per_cap) : M(1);
    if (has_target()) l[id - vocab_begin] = static_cast<T>((probability - scale) * slope);
  }

  static NANOTRON_FUNCTION M slope_of_cap(M logit, M per_cap) {
    const M tanh = logit * per_cap;
    return (M(1) - tanh) * (M(1) + tanh);
  }

  T* logits;
  index_t columns;
  std::int32_t id;  // of the target; negative: ignored
  index_t vocab_begin = 0;
};

template <class M>
NANOTRON_FUNCTION double loss_of(M max, M sum, M target_logit, std::int32_t target) {
  return target < 0 ? 0.0 : lse_of(max, sum) - static_cast<double>(target_logit);
}
template <class M>
NANOTRON_FUNCTION double lse2_of(M max, M sum, std::int32_t target) {
  const double lse = lse_of(max, sum);
  return target < 0 ? 0.0 : lse * lse;
}

// The sum of a row in the order that is given, after its maximum.
struct InOrder {
  SumOrder order;
  // A team's threads take turns at the terms of a shard: the same number of threads on every grid.
  index_t length_of_loop(index_t) const { return order.block_0.extent / order.shards; }
  template <class T>
  NANOTRON_FUNCTION auto operator()(const Row& row, const LogitRow<T>& l) const {
    const auto max = l.max(row);
    return MaxAndSum<decltype(max + max)>{max, l.sum(row, max, order)};
  }
};
// Both in one pass over the row.
struct Online {
  index_t length_of_loop(index_t columns) const { return columns; }
  template <class T>
  NANOTRON_FUNCTION auto operator()(const Row& row, const LogitRow<T>& l) const {
    return l.max_and_sum(row);
  }
};

bool is_online(Processor processor, const SumOrder& given) {
  return processor == Processor::gpu && given.block_count == 0;
}
// launch(how a row is summed).
template <class Launch>
void for_order(const SumOrder& given, index_t columns, const Launch& launch) {
  if constexpr (!on_host) {
    if (is_online(built_for, given)) return launch(Online());
  }
  launch(InOrder{given.block_count == 0 ? SumOrder({{columns, 1}}, 1, 1, 0) : given});
}

// Passes over the logits that memory sees, of the maximum and the sum, and `more`. A core's cache holds a row between
// them; that of a GPU does not hold the rows of all its teams.
template <class T>
Reads passes_over(const Device& device, const MatrixRef<T>& logits, const SumOrder& given, int more = 0) {
  const bool on_cpu = device.processor() == Processor::cpu;
  return {bytes_of(logits) * (on_cpu ? 1 : is_online(device.processor(), given) ? 1 + more : 2 + more)};
}
Reads operator+(Reads a, Reads b) { return {a.bytes + b.bytes}; }

// The kernels, of which `sums` is InOrder or Online. -------------------------------------------------

template <class T>
void local_max(Device& device, MatrixRef<const T> logits, Vector<master_t<T>> max, Vector<master_t<T>>,
               const InOrder&) {
  const index_t columns = logits.columns;
  for_each_row_of<T>(
      device, "cross_entropy_local_max", logits.rows, columns, KOKKOS_LAMBDA(const Row& row, const index_t i) {
        max.data()[i] = LogitRow<const T>{logits.data + i * logits.leading, columns, -1}.max(row);
      });
}
template <class T>
void local_max(Device& device, MatrixRef<const T> logits, Vector<master_t<T>> max, Vector<master_t<T>> own, Online) {
  const index_t columns = logits.columns, rows = logits.rows;
  for_each_row_of<T>(
      device, "cross_entropy_local_max", rows, columns, KOKKOS_LAMBDA(const Row& row, const index_t i) {
        const auto of_row = LogitRow<const T>{logits.data + i * logits.leading, columns, -1}.max_and_sum(row);
        max.data()[i] = own.data()[i] = of_row.max;
        own.data()[rows + i] = of_row.sum;
      });
}

template <class T>
void local_sum(Device& device, MatrixRef<const T> logits, Vector<const std::int32_t> targets, index_t vocab_begin,
               Vector<const master_t<T>> max, Vector<const master_t<T>>, Vector<master_t<T>> sum,
               Vector<master_t<T>> target_logit, const InOrder& sums) {
  const index_t columns = logits.columns;
  for_each_row_of<T>(
      device, "cross_entropy_local_sum", logits.rows, sums.length_of_loop(columns),
      KOKKOS_LAMBDA(const Row& row, const index_t i) {
        const LogitRow<const T> l{logits.data + i * logits.leading, columns, targets.data()[i], vocab_begin};
        sum.data()[i] = l.sum(row, max.data()[i], sums.order);
        target_logit.data()[i] = l.target_logit();
      });
}
template <class T>
void local_sum(Device& device, MatrixRef<const T> logits, Vector<const std::int32_t> targets, index_t vocab_begin,
               Vector<const master_t<T>> max, Vector<const master_t<T>> own, Vector<master_t<T>> sum,
               Vector<master_t<T>> target_logit, Online) {
  const index_t columns = logits.columns, rows = logits.rows;
  for_each_element(
      device, "cross_entropy_local_sum", rows, KOKKOS_LAMBDA(const index_t i) {
        const LogitRow<const T> l{logits.data + i * logits.leading, columns, targets.data()[i], vocab_begin};
        sum.data()[i] = own.data()[rows + i] * exponential(own.data()[i] - max.data()[i]);
        target_logit.data()[i] = l.target_logit();
      });
}

template <class T, class Sums>
void whole_loss(Device& device, MatrixRef<const T> logits, Vector<const std::int32_t> targets,
                Vector<double> loss_per_row, const Sums& sums) {
  const index_t columns = logits.columns;
  for_each_row_of<T>(
      device, "cross_entropy_whole_loss", logits.rows, sums.length_of_loop(columns),
      KOKKOS_LAMBDA(const Row& row, const index_t i) {
        const LogitRow<const T> l{logits.data + i * logits.leading, columns, targets.data()[i]};
        const auto of_row = sums(row, l);
        loss_per_row.data()[i] = loss_of(of_row.max, of_row.sum, l.target_logit(), l.id);
      });
}

template <class T, class Sums>
void whole(Device& device, MatrixRef<T> logits, Vector<const std::int32_t> targets, const LossGradient& of,
           Vector<double> loss_per_row, Vector<double> lse2_per_row, const Sums& sums) {
  const index_t columns = logits.columns;
  const bool has_lse2 = lse2_per_row.extent(0) > 0;
  for_each_row_of<T>(
      device, "cross_entropy_whole", logits.rows, sums.length_of_loop(columns),
      KOKKOS_LAMBDA(const Row& row, const index_t i) {
        const LogitRow<T> l{logits.data + i * logits.leading, columns, targets.data()[i]};
        const auto of_row = sums(row, l);
        loss_per_row.data()[i] = loss_of(of_row.max, of_row.sum, l.target_logit(), l.id);
        if (has_lse2) lse2_per_row.data()[i] = lse2_of(of_row.max, of_row.sum, l.id);
        l.gradient(row, of_row.max, of_row.sum, of.of_row(i));
      });
}

}  // namespace

template <class T>
void cross_entropy_local_max(Device& device, MatrixRef<const T> logits, Vector<master_t<T>> max,
                             Vector<master_t<T>> own, const SumOrder& given) {
  const KernelRegion kernel(device, "cross_entropy_local_max", reads(logits), writes(max, own));
  for_order(given, logits.columns, [&](const auto& sums) { local_max<T>(device, logits, max, own, sums); });
}

template <class T>
void cross_entropy_local_sum(Device& device, MatrixRef<const T> logits, Vector<const std::int32_t> targets,
                             index_t vocab_begin, Vector<const master_t<T>> max, Vector<const master_t<T>> own,
                             Vector<master_t<T>> sum, Vector<master_t<T>> target_logit, const SumOrder& given) {
  const Reads of_logits = is_online(device.processor(), given) ? reads(own) : reads(logits);
  const KernelRegion kernel(device, "cross_entropy_local_sum", of_logits + reads(targets, max),
                            writes(sum, target_logit));
  for_order(given, logits.columns, [&](const auto& sums) {
    local_sum<T>(device, logits, targets, vocab_begin, max, own, sum, target_logit, sums);
  });
}

template <class M>
void cross_entropy_loss(Device& device, Vector<const M> max, Vector<const M> sum, Vector<const M> target_logit,
                        Vector<const std::int32_t> targets, Vector<double> loss_per_row, Vector<double> lse2_per_row) {
  const KernelRegion kernel(device, "cross_entropy_loss", reads(max, sum, target_logit, targets),
                            writes(loss_per_row, lse2_per_row));
  const bool has_lse2 = lse2_per_row.extent(0) > 0;
  for_each_element(
      device, "cross_entropy_loss", static_cast<index_t>(max.extent(0)), KOKKOS_LAMBDA(const index_t i) {
        loss_per_row.data()[i] = loss_of(max.data()[i], sum.data()[i], target_logit.data()[i], targets.data()[i]);
        if (has_lse2) lse2_per_row.data()[i] = lse2_of(max.data()[i], sum.data()[i], targets.data()[i]);
      });
}

template <class T>
void cross_entropy_gradient(Device& device, MatrixRef<T> logits, Vector<const std::int32_t> targets,
                            index_t vocab_begin, Vector<const master_t<T>> max, Vector<const master_t<T>> sum,
                            const LossGradient& of) {
  const KernelRegion kernel(device, "cross_entropy_gradient", reads(logits, targets, max, sum, of.row_weights),
                            writes(logits));
  const index_t columns = logits.columns;
  for_each_row_of<T>(
      device, "cross_entropy_gradient", logits.rows, columns, KOKKOS_LAMBDA(const Row& row, const index_t i) {
        const LogitRow<T> l{logits.data + i * logits.leading, columns, targets.data()[i], vocab_begin};
        l.gradient(row, max.data()[i], sum.data()[i], of.of_row(i));
      });
}

template <class T>
void cross_entropy_whole_loss(Device& device, MatrixRef<const T> logits, Vector<const std::int32_t> targets,
                              Vector<double> loss_per_row, const SumOrder& given) {
  const KernelRegion kernel(device, "cross_entropy_whole_loss", passes_over(device, logits, given) + reads(targets),
                            writes(loss_per_row));
  for_order(given, logits.columns,
            [&](const auto& sums) { whole_loss<T>(device, logits, targets, loss_per_row, sums); });
}

template <class T>
void cross_entropy_whole(Device& device, MatrixRef<T> logits, Vector<const std::int32_t> targets,
                         const LossGradient& of, Vector<double> loss_per_row, Vector<double> lse2_per_row,
                         const SumOrder& given) {
  const KernelRegion kernel(device, "cross_entropy_whole",
                            passes_over(device, logits, given, 1) + reads(targets, of.row_weights),
                            writes(logits, loss_per_row, lse2_per_row));
  for_order(given, logits.columns,
            [&](const auto& sums) { whole<T>(device, logits, targets, of, loss_per_row, lse2_per_row, sums); });
}

template <class T>
void cap_logits(Device& device, MatrixRef<T> logits, double cap) {
  const KernelRegion kernel(device, "cap_logits", reads(logits), writes(logits));
  using M = master_t<T>;
  const M factor = static_cast<M>(cap), per_cap = static_cast<M>(1.0 / cap);
  for_each_row_of<T>(
      device, "cap_logits", logits.rows, logits.columns, KOKKOS_LAMBDA(const Row& row, const index_t i) {
        T* const l = logits.data + i * logits.leading;
        row.template for_each_chunk<T>(logits.columns, [=](const index_t c, const auto n) {
          const auto value = load(l + c, n);
          store(l + c, n, [&](const int k) { return factor * hyperbolic_tangent(value[k] * per_cap); });
        });
      });
}

#define NANOTRON_INSTANTIATE(M)                                                                   \
  template void cross_entropy_loss<M>(Device&, Vector<const M>, Vector<const M>, Vector<const M>, \
                                      Vector<const std::int32_t>, Vector<double>, Vector<double>);
NANOTRON_FOR_MASTER_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE
#define NANOTRON_INSTANTIATE(T)                                                                                       \
  template void cross_entropy_local_max<T>(Device&, MatrixRef<const T>, Vector<master_t<T>>, Vector<master_t<T>>,     \
                                           const SumOrder&);                                                          \
  template void cross_entropy_local_sum<T>(Device&, MatrixRef<const T>, Vector<const std::int32_t>, index_t,          \
                                           Vector<const master_t<T>>, Vector<const master_t<T>>, Vector<master_t<T>>, \
                                           Vector<master_t<T>>, const SumOrder&);                                     \
  template void cross_entropy_whole_loss<T>(Device&, MatrixRef<const T>, Vector<const std::int32_t>, Vector<double>,  \
                                            const SumOrder&);                                                         \
  template void cap_logits<T>(Device&, MatrixRef<T>, double);                                                         \
  template void cross_entropy_whole<T>(Device&, MatrixRef<T>, Vector<const std::int32_t>, const LossGradient&,        \
                                       Vector<double>, Vector<double>, const SumOrder&);                              \
  template void cross_entropy_gradient<T>(Device&, MatrixRef<T>, Vector<const std::int32_t>, index_t,                 \
                                          Vector<const master_t<T>>, Vector<const master_t<T>>, const LossGradient&);
NANOTRON_FOR_COMPUTE_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE

}  // namespace nanotron::kernels
