#pragma once

// Seconds of a kernel on a machine: of a plan's roofline, and of every step that is simulated.
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
//
// Attention by a fused kernel: t = FLOPs / r, by the rows of &attention of the nearest head_dim. Between their lengths,
// and below them, 1/r is linear in 1/length; above them it is the last. A query with k keys on average counts as in a
// causal sequence of length 2 k - 1: so pieces of rings, which have no mask, and windows have a length too. Without
// such rows all shapes have one rate. The program's own kernels on tensor cores, and its grouped GEMMs of experts, have
// attention_mma.
//
// None of these is faster than memory. All other kernels: bytes / rate, that of their row of &kernels, else `memory`.

#include "nanotron/deck/machine.hpp"
#include "nanotron/tensor/work.hpp"

namespace nanotron::trainer {

inline bool is_gemm(const WorkRow& row) { return row.work.gemm.count > 0 && row.kernel.starts_with("gemm"); }
inline bool is_attention(const WorkRow& row) { return row.work.gemm.count > 0 && row.kernel.starts_with("attention"); }

/// bytes: read and written.
double gemm_seconds(const GemmExtents& extents, ScalarType type, double bytes, const deck::Machine& machine);

/// Of a copy between a GPU and host memory, or on a host.
double copy_seconds(double bytes, const deck::Machine& machine);

/// Seconds of one call of the row without its launches; and of its launches.
double work_seconds(const WorkRow& row, const deck::Machine& machine);
double launch_seconds(const WorkRow& row, const deck::Machine& machine);

/// Seconds of all calls of the row, launches included.
double row_seconds(const WorkRow& row, const deck::Machine& machine);

}  // namespace nanotron::trainer
