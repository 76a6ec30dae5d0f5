#pragma once

#include "nanotron/kernels/attention/attention.hpp"

namespace nanotron::kernels::blocked {

/// Raises shape.scores.maxima, if they are wanted, as attention_backward of this shape promises: one more GEMM of
/// queries and keys, by batched GEMMs over all heads. What a GPU runs before backward; a host has the scores there. It
/// compiles for the host too, where a test compares both. workspace as in attention.hpp, overwritten.
template <class T>
void raise_maxima(Device& device, const AttentionShape& shape, MatrixRef<const T> q, MatrixRef<const T> k,
                  Vector<std::byte> workspace);

}  // namespace nanotron::kernels::blocked
