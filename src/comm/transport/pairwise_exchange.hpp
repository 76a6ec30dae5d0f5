#pragma once

// All-to-all in host memory.

#include <cstddef>
#include <span>

#include <mpi.h>

#include "nanotron/comm/transport/channel.hpp"

namespace nanotron::comm {

/// all_to_all of collectives.hpp. Round s sends to rank + s and receives from rank - s, in messages of max
/// `most` elements. Empty messages are not sent.
void pairwise_exchange(MPI_Comm comm, const void* send, std::span<const std::size_t> send_counts, void* recv,
                       std::span<const std::size_t> recv_counts, DataType type, std::size_t most);

}  // namespace nanotron::comm
