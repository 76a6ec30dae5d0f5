#pragma once

// What a training step is made of, and how long a named machine would take for each kernel
// (trainer/plan/kernel_time.hpp, after the roofline of Williams, Waterman and Patterson, CACM 52(4), 2009).
//
// Communication, pipeline bubbles and waits are not part of it: see simulation/step_prediction.hpp.

#include <string>

#include "nanotron/comm/process_grid.hpp"
#include "nanotron/deck/checks/findings.hpp"
#include "nanotron/deck/machine.hpp"
#include "nanotron/tensor/tensor.hpp"
#include "nanotron/tensor/work.hpp"

namespace nanotron::trainer {

/// The kernels and the communication of one step of the rank at `at`, found by calling them on a planning device and
/// planned groups. config is resolved.
WorkList step_work(const deck::Config& config, const comm::GridCoordinate& at, Processor processor,
                   EventOrder order = EventOrder::forgotten);

inline Processor processor_of(const deck::Machine& machine) { return machine.is_gpu ? Processor::gpu : Processor::cpu; }

/// The coordinate whose kernels represent those of all ranks of a pipeline stage: the last rank of a
/// context-parallel group attends to most keys, the first tensor-parallel shard is the largest.
comm::GridCoordinate coordinate_of_stage(const deck::Config& config, int pp_rank);

/// Ranks for each core of a host, at least 1: the factor by which kernels are slower.
double crowding(const deck::Config& config, const deck::Machine& machine);

/// A line for each kernel, the longest first; with pp > 1 the mean over the stages.
std::string describe_roofline(const deck::Config& config, const deck::Machine& machine);

}  // namespace nanotron::trainer
