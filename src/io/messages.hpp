#pragma once

#include <mpi.h>

#include <cstddef>
#include <vector>

namespace nanotron::io {

/// Sends outgoing[r] to rank r; returns what each rank sent here, by rank. Each message below 2 GiB. Collective.
std::vector<std::vector<std::byte>> exchange_messages(MPI_Comm world,
                                                      const std::vector<std::vector<std::byte>>& outgoing);

}  // namespace nanotron::io
