# NANOTRON_MPI_FLAVOUR: openmpi | mpich | other, from the header in use; NANOTRON_MPI_NAME for
# reports; NANOTRON_MPI_TEST_FLAGS: what mpiexec needs to start more ranks than cores.
include(CheckCXXSourceCompiles)
set(CMAKE_REQUIRED_LIBRARIES MPI::MPI_CXX)
# The answers belong to one MPI: ask again when it is another.
if(NOT "${NANOTRON_MPI_CHECKED}" STREQUAL "${MPI_CXX_LIBRARIES}")
  unset(NANOTRON_MPI_IS_OPENMPI CACHE)
  unset(NANOTRON_MPI_IS_MPICH CACHE)
  set(NANOTRON_MPI_CHECKED "${MPI_CXX_LIBRARIES}" CACHE INTERNAL "")
endif()
check_cxx_source_compiles("#include <mpi.h>
#ifndef OPEN_MPI
#error
#endif
int main() {}" NANOTRON_MPI_IS_OPENMPI)
if(NOT NANOTRON_MPI_IS_OPENMPI)
  check_cxx_source_compiles("#include <mpi.h>
#ifndef MPICH_VERSION
#error
#endif
int main() {}" NANOTRON_MPI_IS_MPICH)
endif()
unset(CMAKE_REQUIRED_LIBRARIES)

set(NANOTRON_MPI_TEST_FLAGS "")
if(NANOTRON_MPI_IS_OPENMPI)
  set(NANOTRON_MPI_FLAVOUR openmpi)
  set(NANOTRON_MPI_TEST_FLAGS --oversubscribe --bind-to none)
elseif(NANOTRON_MPI_IS_MPICH)
  set(NANOTRON_MPI_FLAVOUR mpich)
else()
  set(NANOTRON_MPI_FLAVOUR other)
endif()
set(NANOTRON_MPI_NAME "${NANOTRON_MPI_FLAVOUR}, MPI ${MPI_CXX_VERSION}")
message(STATUS "MPI: ${NANOTRON_MPI_NAME}, started by ${MPIEXEC_EXECUTABLE}")
