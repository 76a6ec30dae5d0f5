#pragma once

// Cross-entropy, in place: the logits may be sharded over ranks by vocabulary and are overwritten by their gradient.
// With l the logits of a row and t its target:
//
//   lse = log(sum_j exp(l_j - max)) + max
//   loss = lse - l_t
//   dl_j = (scale (p_j - [j = t]) + 2 z_scale lse p_j) (1 - (l_j / cap)^2)        p_j = exp(l_j - max) / sum
//
// The term with z_scale is the gradient of z_scale lse^2 (z loss, Chowdhery et al. 2022, section 5). The last factor is
// the slope of a soft cap, l = cap tanh(. / cap) (Gemma 2), where there is one: the gradient is that of its argument.
//
// Order of calls: local_max; all-reduce (max) of max; local_sum; all-reduce (sum) of sum and
// target_logit; loss; gradient. A rank that holds the whole vocabulary: whole_loss, or whole. Rows with a negative
// target are ignored: loss 0, lse^2 0, gradient 0.
//
// On a GPU memory is read once for the loss, and once for the gradient; with an `order`, once more.
//
// logits (rows, local vocabulary): column j is token id vocab_begin + j; a rank may hold no column.
// Targets are global ids.

#include <cstdint>

#include "nanotron/tensor/device.hpp"
#include "nanotron/tensor/sum_order.hpp"
#include "nanotron/tensor/tensor.hpp"

namespace nanotron::kernels {

struct LossGradient {
  double scale = 1.0;
  double z_scale = 0.0;
  double cap = 0.0;                       // 0: none
  Vector<const double> row_weights = {};  // of each row, which multiplies scale; empty: 1

  /// That of a row; its weights are not used.
  NANOTRON_FUNCTION LossGradient of_row(index_t row) const {
    LossGradient of = *this;
    if (row_weights.data() != nullptr) of.scale *= row_weights.data()[row];
    return of;
  }
};

/// l <- cap tanh(l / cap), in place.
template <class T>
void cap_logits(Device& device, MatrixRef<T> logits, double cap);

/// max (rows) is overwritten: max_j l_j, or the lowest finite number if the rank holds no column. own (2 x rows)
/// receives max and sum of this rank's columns for local_sum(), called with the same order: empty on a CPU.
template <class T>
void cross_entropy_local_max(Device& device, MatrixRef<const T> logits, Vector<master_t<T>> max,
                             Vector<master_t<T>> own, const SumOrder& order = {});

/// sum(r) = sum_j exp(l_j - max(r)), added in `order` if given; target_logit(r) = l_t, or 0 if another rank holds t.
/// Both are overwritten.
template <class T>
void cross_entropy_local_sum(Device& device, MatrixRef<const T> logits, Vector<const std::int32_t> targets,
                             index_t vocab_begin, Vector<const master_t<T>> max, Vector<const master_t<T>> own,
                             Vector<master_t<T>> sum, Vector<master_t<T>> target_logit, const SumOrder& order = {});

/// loss_per_row(r) in fp64, overwritten; so is lse2_per_row(r) = lse^2, unless it is empty. M is double or float.
template <class M>
void cross_entropy_loss(Device& device, Vector<const M> max, Vector<const M> sum, Vector<const M> target_logit,
                        Vector<const std::int32_t> targets, Vector<double> loss_per_row,
                        Vector<double> lse2_per_row = {});

/// logits are overwritten by their gradient.
template <class T>
void cross_entropy_gradient(Device& device, MatrixRef<T> logits, Vector<const std::int32_t> targets,
                            index_t vocab_begin, Vector<const master_t<T>> max, Vector<const master_t<T>> sum,
                            const LossGradient& of);

/// Loss of a rank that holds the whole vocabulary; the logits are not changed. This function and the next give the same
/// bits as the calls above. On a CPU a row stays in cache from its maximum to its gradient, so that memory is read and
/// written once (the fused classifier of Karpathy's llm.c).
template <class T>
void cross_entropy_whole_loss(Device& device, MatrixRef<const T> logits, Vector<const std::int32_t> targets,
                              Vector<double> loss_per_row, const SumOrder& order = {});

/// The same loss, with lse2_per_row as cross_entropy_loss; logits are overwritten by their gradient.
template <class T>
void cross_entropy_whole(Device& device, MatrixRef<T> logits, Vector<const std::int32_t> targets,
                         const LossGradient& of, Vector<double> loss_per_row, Vector<double> lse2_per_row = {},
                         const SumOrder& order = {});

}  // namespace nanotron::kernels
