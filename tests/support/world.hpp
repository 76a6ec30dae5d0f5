#pragma once

#include <mpi.h>

#include "nanotron/comm/group.hpp"

namespace nanotron::test {

/// The communicator of the test program: all ranks CTest started it with.
/// MPI and Kokkos are initialised by mpi_main.cpp before the first test runs.
MPI_Comm world();

/// Of groups that sum what is in the device's memory, as backend = 'auto' has it. Collective over world.
inline comm::Transport device_transport() {
  return comm::choose_transport(deck::Backend::automatic, comm::Communicator::duplicate(world()));
}

}  // namespace nanotron::test
