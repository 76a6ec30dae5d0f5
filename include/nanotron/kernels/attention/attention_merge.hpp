#pragma once

// Ring attention (Liu et al. 2023): attention over several sets of keys is merged from the attention over each set,
// by its log-sum-exp (Dao 2023). Gradients of the parts are added.
//
//   lse = log(exp(lse) + exp(lse_part))      sum = exp(lse_old - lse) sum + exp(lse_part - lse) part

#include "nanotron/kernels/attention/attention.hpp"

namespace nanotron::kernels {

/// part and part_lse: outputs of attention_forward of this shape. sum and lse have the same layout and are updated;
/// initially sum is 0 and lse the lowest finite number.
template <class T>
void merge_attention(Device& device, const AttentionShape& shape, MatrixRef<const T> part,
                     Vector<const master_t<T>> part_lse, MatrixRef<master_t<T>> sum, Vector<master_t<T>> lse);

/// y += x, in the master type.
template <class T>
void accumulate_matrix(Device& device, MatrixRef<const T> x, MatrixRef<master_t<T>> y);

/// y = x, rounded to T.
template <class T>
void round_matrix(Device& device, MatrixRef<const master_t<T>> x, MatrixRef<T> y);

}  // namespace nanotron::kernels
