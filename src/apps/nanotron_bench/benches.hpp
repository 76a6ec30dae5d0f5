#pragma once

// The parts of the benchmark: one function each, and what one part uses of another.

#include <string>
#include <vector>

#include "bench.hpp"
#include "command_line.hpp"
#include "nanotron/comm/communicator.hpp"

namespace nanotron::apps::bench {

// (a) GEMMs: square ones in these types and fp32, the deck's own shapes in these types. Collective.
void measure_gemm(const Bench& bench, const std::vector<ScalarType>& types);

// A linear layer that is computed `per_layer` times in a layer of the model, its inputs or outputs split over tp.
struct LinearShape {
  std::string name;
  index_t rows, in, out, per_layer;
  bool in_is_split, out_is_split;
};
// Those of a feed-forward block that routes tokens, if all its networks receive equally many; else none.
std::vector<LinearShape> routed_linears(const Bench& bench);

// How shape changes the rate of a GEMM on this rank (trainer/plan/kernel_time.hpp): of the deck's shapes and square
// ones,
//   seconds = FLOPs / rate + bytes / operands, fitted to relative errors, whose mean by their share of a step is
//   `error`.
struct GemmFit {
  double rate = 0.0, operands = 0.0, error = 0.0;  // operands = 0: no such term
};
GemmFit fit_gemms(const Bench& bench, ScalarType type);

// Measured GEMM peak: FLOP/s of all ranks at once, the better of square GEMMs of order 1024 and 2048.
template <class T>
double matrix_ceiling(const Bench& bench, Device& device);

// (b) Every kernel but GEMMs, at the sizes of the deck, compared with a copy of as many bytes;
// attention compared with the measured GEMM peak. Collective.
void measure_kernels(const Bench& bench, const std::vector<ScalarType>& types);

// Of rank 0, by kernel: bytes per second where memory bounds it, else FLOP/s.
struct MeasuredRate {
  std::string kernel;
  double bytes = 0.0, flops = 0.0;
};
std::vector<MeasuredRate> kernel_rates(const Bench& bench, ScalarType type);

// Bytes read and written per second by a copy on this rank that moves `bytes` (at most 512 MB).
double copy_rate(const Bench& bench, Device& device, double bytes);

// (c) all_reduce, all_gather and reduce_scatter of the tp group in these types and of the dp group
// in their master types, compared with a copy of as many bytes. Collective.
void measure_collectives(const Bench& bench, const std::vector<ScalarType>& types);

/// All-gathers before a GEMM and reduce-scatters after a GEMM over the tp group, with and without overlap in chunks,
/// compared with the GEMM and the communication by themselves. Collective.
void measure_overlap(const Bench& bench, const std::vector<ScalarType>& types);

/// Bubble of each schedule over the ranks of the run: by count, and measured with messages of the deck's size and
/// delays instead of computation. Collective.
void measure_pipelines(const Bench& bench, const std::vector<ScalarType>& types);

// (d) Training steps in these types, in turn with the measured GEMM peak: speed, where the time goes,
// communication. Collective.
void measure_steps(const Bench& bench, const std::vector<ScalarType>& types);

// Reading tokens on the host, with hashes of blocks of several sizes and without. Rank 0 measures while the others
// wait; the token file of the workload is hashed again and again, and ends with the blocks that the tools write.
// Collective.
void measure_data(const Bench& bench, const std::vector<ScalarType>& types);

// Measures the GEMMs of a training step in each of these types and writes options.gemm_algorithms. Collective.
void write_gemm_algorithms(const Bench& bench, const std::vector<ScalarType>& types);

// The machine of these ranks (deck/machine.hpp), written by rank 0 to options.machine: all ranks at once, so that what
// they share is shared. `type`: of the shapes and kernels. Collective.
void write_machine(const Bench& bench, const comm::Communicator& world, ScalarType type);

}  // namespace nanotron::apps::bench
