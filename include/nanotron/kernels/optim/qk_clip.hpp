#pragma once

// QK-clip (Kimi K2, arXiv:2507.20534, section 2.1): after an update, the rows of query and key projections of heads
// whose largest score S of the step was above tau are scaled, such that the same tokens would have scores up to tau:
//
//   gamma = min(1, tau / max of S over the query heads that share a key head)
//   q, k <- sqrt(gamma) q, sqrt(gamma) k
//
// With latent attention each head has its key. Its part without positions and that of its query are scaled by
// sqrt(gamma), the query's part with positions by gamma: all heads read the key's.

#include "nanotron/kernels/optim/update_scalars.hpp"
#include "nanotron/tensor/device.hpp"
#include "nanotron/tensor/tensor.hpp"

namespace nanotron::kernels {

/// gamma (layers, key heads) from maxima (layers, query heads): equal numbers of consecutive query heads share one.
void clip_factors(Device& device, double tau, Matrix<const double> maxima, Matrix<double> gamma);

/// The logical matrix of a projection, row-major: the heads' rows one after another.
struct HeadRows {
  enum class Rest { gamma, one };

  index_t columns = 1;
  index_t rows = 1;             // of a head
  index_t heads_per_gamma = 1;  // consecutive heads that share a key head
  index_t balanced = 1;         // the first rows of a head, scaled by sqrt(gamma); the others:
  Rest rest = Rest::one;
};

/// p(i) *= the factor of element first + i of the matrix, if scalars (1) allow it; where that is 1 nothing is written.
/// gamma: of the layer. copy (as p, or empty): p rounded to bf16.
template <class M>
void clip_rows(Device& device, Vector<M> p, index_t first, const HeadRows& heads, Vector<const double> gamma,
               Vector<const UpdateScalars> scalars, Vector<bf16> copy = {});

}  // namespace nanotron::kernels
