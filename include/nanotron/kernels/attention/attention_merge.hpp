#pragma once

// Attention over several sets of keys is joined from the attention over each (Liu et al. 2023; Dao 2023), and the
// gradients of its parts are added up:
//
//   lse = log(exp(lse) + exp(lse_part))      sum = exp(lse_old - lse) sum + exp(lse_part - lse) part

#include "nanotron/kernels/attention/attention.hpp"

namespace nanotron::kernels {

/// part and part_lse as attention_forward of this shape left them; sum and lse lie like them and are updated. To
/// begin with, sum is 0 and lse the lowest finite number.
template <class T>
void merge_attention(Device& device, const AttentionShape& shape, MatrixRef<const T> part,
                     Vector<const master_t<T>> part_lse, MatrixRef<master_t<T>> sum,
                     Vector<master_t<T>> lse);

/// y += x, in the master type.
template <class T>
void accumulate_matrix(Device& device, MatrixRef<const T> x, MatrixRef<master_t<T>> y);

/// y = x, rounded.
template <class T>
void round_matrix(Device& device, MatrixRef<const master_t<T>> x, MatrixRef<T> y);

}  // namespace nanotron::kernels
