#pragma once

// Attention's backward (FlashAttention-2, Dao 2023, algorithm 2) as two kernels, each of which adds up its gradients in
// registers in one order, without atomics; the probabilities are computed in both:
//
//   QueryGradient   queries of one head, tile by tile of keys      dQ += scale dS K;  D = rows of dO * O, kept for the
//   other KeyGradient     keys of one key head, query head by query head, tile by tile of queries
//                                                                  dV += P^T dO,  dK += scale dS^T Q
//   P = exp(scale S - lse)     dS = P * (dO V^T - D)

#include "kernels/attention/mma/forward.hpp"

namespace nanotron::kernels::mma {

/// What both kernels read. lse and dot: as long as attention.hpp says, and batch * query_heads * query_length.
struct BackwardInputs {
  blocked::Heads heads;
  MatrixRef<const bf16> q, k, v, dout;
  const float* lse;
  float* dot;  // D
  float scale;

  /// lse of query i of head n, of exponentials of 2. 0 where the query has no keys.
  NANOTRON_FUNCTION float lse_of_2(index_t n, index_t i) const {
    const float x = lse[n * heads.s.query_row_stride() + i];
    return x > no_keys ? log2_of_e * x : 0.0f;
  }
};

}  // namespace nanotron::kernels::mma
