#pragma once

// run%gemm_algorithms (kernels/gemm/gemm_algorithms.hpp) in a run, and the multiprocessors available to GEMMs.

#include "nanotron/base/log.hpp"
#include "nanotron/comm/group.hpp"
#include "nanotron/deck/checks/findings.hpp"
#include "nanotron/tensor/device.hpp"

namespace nanotron::trainer {

/// Chooses GEMMs for the multiprocessors that NCCL's pipeline messages do not use.
void leave_multiprocessors(const deck::Config& config, Device& device);

/// The same; in addition GEMMs use the algorithms of the file from now on, if the deck names one. Error(deck_error) on
/// all ranks. Collective.
void use_gemm_algorithms(const deck::Config& config, Device& device, comm::Group& world, Log& log);

/// A log line: the number of GEMMs with an algorithm of the file. Collective.
void report_gemm_algorithms(const deck::Config& config, const Device& device, comm::Group& world, Log& log);

}  // namespace nanotron::trainer
