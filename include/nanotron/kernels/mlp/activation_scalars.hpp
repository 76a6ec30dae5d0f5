#pragma once

// The learnt scalars of an activation and the order of the sums in their gradients.

#include "nanotron/tensor/sum_order.hpp"
#include "nanotron/tensor/tensor.hpp"

namespace nanotron::kernels {

/// Each (1), for positive and for other arguments.
template <class M>
struct ActivationScalars {
  Vector<const M> a_p{}, a_n{};
};

/// Sums over tokens and columns: of each segment of the tokens a tree over the shards of `columns`
/// (tensor/sum_order.hpp), then a tree over the segments. Segments are as even as can be, longer ones first.
struct ScalarOrder {
  SumOrder columns{};
  index_t token_segments = 1;
};

}  // namespace nanotron::kernels
