#pragma once

// What a training step is made of and how long a named machine would take for it (roofline: Williams, Waterman and
// Patterson, CACM 52(4), 2009):
//
//   t = sum over kernels of max(bytes / memory rate, FLOPs / rate of the products) + launches * launch time
//
// Communication, pipeline bubbles and waits are not part of it.

#include <string>

#include "nanotron/comm/process_grid.hpp"
#include "nanotron/deck/config_forward.hpp"
#include "nanotron/deck/machine.hpp"
#include "nanotron/tensor/processor.hpp"
#include "nanotron/tensor/work.hpp"

namespace nanotron::trainer {

/// The kernels and the communication of one step of the rank at `at`, found by calling them on a planning device and
/// planned groups. config is resolved.
WorkList step_work(const deck::Config& config, const comm::GridCoordinate& at, Processor processor,
                   EventOrder order = EventOrder::forgotten);

inline Processor processor_of(const deck::Machine& machine) { return machine.is_gpu ? Processor::gpu : Processor::cpu; }

/// Seconds of the row's calls.
double roofline_seconds(const WorkRow& row, const deck::Machine& machine);

/// A line for each kernel, the longest first, and the step's time, tokens per second and share of the peak.
std::string describe_roofline(const deck::Config& config, const comm::GridCoordinate& at, const deck::Machine& machine);

}  // namespace nanotron::trainer
