#pragma once

// run%gemm_algorithms (kernels/gemm/gemm_algorithms.hpp), and the multiprocessors of a GPU that GEMMs have, in a run.

#include "nanotron/base/log.hpp"
#include "nanotron/comm/group.hpp"
#include "nanotron/deck/checks/findings.hpp"
#include "nanotron/tensor/device.hpp"

namespace nanotron::trainer {

/// GEMMs of the device leave to messages of a pipeline, which NCCL sends, the multiprocessors that they may take.
void leave_multiprocessors(const deck::Config& config, Device& device);

/// The same, and they run the algorithms of the file from now on, where the deck names one. Error(deck_error) on all
/// ranks. Collective.
void use_gemm_algorithms(const deck::Config& config, Device& device, comm::Group& world, Log& log);

/// How many GEMMs the file has covered, as a line of the log. Collective.
void report_gemm_algorithms(const deck::Config& config, const Device& device, comm::Group& world, Log& log);

}  // namespace nanotron::trainer
