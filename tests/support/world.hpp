#pragma once

#include <mpi.h>

#include <cstdlib>

#include "nanotron/comm/group.hpp"

namespace nanotron::test {

/// The communicator of the test program: all ranks CTest started it with.
/// MPI and Kokkos are initialised by mpi_main.cpp before the first test runs.
MPI_Comm world();

/// parallel%backend of a run on ranks that may share a GPU: NCCL where it is asked to let them, else messages through
/// the host. Collective over them.
inline deck::Backend backend_of(deck::Backend wanted, const comm::Communicator& ranks) {
  if (std::getenv("NCCL_MULTI_RANK_GPU_ENABLE") != nullptr) return wanted;
  return comm::ranks_share_gpus(ranks) ? deck::Backend::mpi : wanted;
}

/// Of groups that sum what is in the memory of the device, which ranks may share here. Collective over world.
inline comm::Transport device_transport() {
  const comm::Communicator all = comm::Communicator::duplicate(world());
  return comm::choose_transport(backend_of(deck::Backend::automatic, all), all);
}

}  // namespace nanotron::test
