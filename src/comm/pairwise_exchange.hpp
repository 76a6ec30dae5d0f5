#pragma once

// The all-to-all of host memory.

#include <cstddef>
#include <span>

#include <mpi.h>

#include "nanotron/comm/channel.hpp"

namespace nanotron::comm {

/// all_to_all of collectives.hpp: in round s with the ranks s behind and s before, in messages of at most
/// `most` elements. A pair of ranks with nothing to exchange does not meet.
void pairwise_exchange(MPI_Comm comm, const void* send, std::span<const std::size_t> send_counts, void* recv,
                       std::span<const std::size_t> recv_counts, DataType type, std::size_t most);

}  // namespace nanotron::comm
