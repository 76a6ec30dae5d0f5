#pragma once

// Seconds of a kernel on a machine.
//
// A GEMM C (m, n) += A (m, k) B (k, n) on a GPU of P multiprocessors is made of tiles (x, y) of C, P at a time. R is
// the rate of large GEMMs, k0 = ramp_k what a tile's first loads and last stores cost in columns of A:
//
//   t = min over tiles (x, y) and splits s of k:
//         ceil(s ceil(m/x) ceil(n/y) count / P) * 2 x y (k/s + k0) / (R/P e(x, y)) + partial sums
//   e(x, y) = 1 / (1 + 28 (1/x + 1/y - 1/256 - 1/128)): smaller tiles load more operands for each FLOP
//   partial sums: 8 s m n bytes for s > 1
//
// On a host: t = FLOPs / R + bytes of the operands / operands_gb_per_s, which packs them and writes C.
// Neither is faster than memory. All other kernels: max(bytes / memory, FLOPs / rate); see also trainer/roofline.hpp.

#include "nanotron/deck/machine.hpp"
#include "nanotron/simulation/software.hpp"
#include "nanotron/tensor/work.hpp"

namespace nanotron::simulation {

/// bytes: read and written.
double gemm_seconds(const GemmExtents& extents, ScalarType type, double bytes, const deck::Machine& machine);

/// What a step of other sizes needs to know of the deck, where the software is not this program.
struct LayerSizes {
  index_t hidden = 0, intermediate = 0;  // of this rank
};

/// Seconds of one call of the row, launches included.
double kernel_seconds(const WorkRow& row, const deck::Machine& machine, const Software& software,
                      const LayerSizes& sizes);

}  // namespace nanotron::simulation
