#pragma once

// What differs between builds with and without GPUs: implemented in gpu/ or host/.

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
/// at its start.
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

}  // namespace nanotron::comm::detail
