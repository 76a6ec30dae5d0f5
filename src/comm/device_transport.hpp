#pragma once

// What a build with GPUs has and one without has not: memory of a device. In host/ or cuda/.

#include <cstddef>
#include <functional>
#include <memory>

#include "nanotron/comm/channel.hpp"
#include "nanotron/comm/group.hpp"
#include "nanotron/comm/messages.hpp"

namespace nanotron::comm::detail {

/// For a transport of device memory; make_host makes the channel of host memory that a staged one goes through.
std::unique_ptr<Channel> make_device_channel(const Communicator& communicator, Transport transport, Sums sums,
                                             const std::function<std::unique_ptr<Channel>()>& make_host);
std::unique_ptr<Messages> make_device_messages(const Communicator& communicator, Transport transport);

/// How one rank reaches the memory that kernels work on.
Transport transport_of_device();

/// Within device memory, queued on the stream.
void copy_on_device(const void* from, void* to, std::size_t bytes, const Stream& stream);

}  // namespace nanotron::comm::detail
