#pragma once

// What differs between CUDA with NCCL and HIP with RCCL: implemented in cuda/ and hip/.

#include <string>

namespace nanotron::comm::detail {

/// Equal for the processes of a host that have the same GPU, as far as the collectives library can tell GPUs apart. A
/// fixed number of bytes.
std::string gpu_identity();

/// Before MPI_Init: variables that the GPU's runtime reads at its start. Those of the environment stay.
void set_runtime_variables();

/// The environment's variables stay: sums of a collective in the same order in every run.
void set_variables_of_repeatable_sums();

/// Error(system_error) where a message could wait for one that was queued later.
void require_launch_order();

/// Whether ranks that share a GPU are allowed, which the user asks of the library.
bool library_shares_gpus();

}  // namespace nanotron::comm::detail
