#pragma once

#include <mpi.h>

namespace nanotron::test {

/// The communicator of the test program: all ranks CTest started it with.
/// MPI and Kokkos are initialised by mpi_main.cpp before the first test runs.
MPI_Comm world();

}  // namespace nanotron::test
