#pragma once

// What differs between builds with and without GPUs: implemented in gpu/ or host/, prepare_environment in cuda/ and
// hip/.

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "nanotron/comm/group.hpp"
#include "nanotron/comm/transport/channel.hpp"
#include "nanotron/comm/transport/messages.hpp"

namespace nanotron::comm::detail {

struct CollectiveSetup {
  Sums sums = Sums::any_order;
  deck::CollectiveEngine engine = deck::CollectiveEngine::blocks;
};

/// For a transport of GPU memory. make_host makes the host channel that a staged one goes through.
std::unique_ptr<Channel> make_device_channel(const Communicator& communicator, Transport transport,
                                             const CollectiveSetup& setup,
                                             const std::function<std::unique_ptr<Channel>()>& make_host);
std::unique_ptr<Messages> make_device_messages(const Communicator& communicator, Transport transport, int blocks);

/// Before MPI_Init, in which an MPI that knows GPUs may begin to use them: the variables that the GPU's runtime reads
/// at its start. Those of the environment stay.
void prepare_environment();

/// The transport of a group of one rank: that of the memory that kernels use.
Transport transport_of_device();

/// Copies within GPU memory, queued on the stream.
void copy_on_device(const void* from, void* to, std::size_t bytes, const Stream& stream);

/// From any thread: what a transport of GPU memory knows to have failed in the background, empty if nothing; and the
/// end of all its operations, which frees a host that waits for the device.
std::string device_transport_error();
void abort_device_transports();

/// Bytes of GPU memory that a transport has allocated for itself in this process, where it can tell, else 0.
std::uint64_t device_transport_bytes();

// What differs between CUDA with NCCL and HIP with RCCL: implemented in cuda/ and hip/.

/// Equal for the processes of a host that have the same GPU, as far as the collectives library can tell GPUs apart. A
/// fixed number of bytes.
std::string gpu_identity();

/// The environment's variables stay: sums of a collective in the same order in every run.
void set_variables_of_repeatable_sums();

/// Error(system_error) where a message could wait for one that was queued later.
void require_launch_order();

/// Whether ranks that share a GPU are allowed, which the user asks of the library.
bool library_shares_gpus();

}  // namespace nanotron::comm::detail
