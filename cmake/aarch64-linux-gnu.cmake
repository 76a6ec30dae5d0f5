# Toolchain: cross-compiling for aarch64 Linux with the GNU compiler of Debian and Ubuntu (g++-aarch64-linux-gnu), the
# libraries of a sysroot (tests/aarch64/sysroot.sh). Programs and tests run under qemu (qemu-user-static).
#   NANOTRON_SYSROOT   the folder: of the cache, else of the environment, else build/sysroot-aarch64
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)

get_filename_component(_root "${CMAKE_CURRENT_LIST_DIR}" DIRECTORY)
if(NOT NANOTRON_SYSROOT)
  set(NANOTRON_SYSROOT "${_root}/build/sysroot-aarch64")
  if(DEFINED ENV{NANOTRON_SYSROOT})
    set(NANOTRON_SYSROOT "$ENV{NANOTRON_SYSROOT}")
  endif()
endif()
set(NANOTRON_SYSROOT "${NANOTRON_SYSROOT}" CACHE PATH "Folder of the packages of aarch64")
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES NANOTRON_SYSROOT)
if(NOT EXISTS "${NANOTRON_SYSROOT}/.complete")
  message(FATAL_ERROR "${NANOTRON_SYSROOT} is not a sysroot: run tests/aarch64/sysroot.sh, or set NANOTRON_SYSROOT.")
endif()

set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_SYSROOT "${NANOTRON_SYSROOT}")
set(CMAKE_FIND_ROOT_PATH "${NANOTRON_SYSROOT}")
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
set(ENV{PKG_CONFIG_LIBDIR} "${NANOTRON_SYSROOT}/usr/lib/aarch64-linux-gnu/pkgconfig:${NANOTRON_SYSROOT}/usr/share/pkgconfig")
set(ENV{PKG_CONFIG_SYSROOT_DIR} "${NANOTRON_SYSROOT}")

# -cpu max: with bf16 and SVE. Ranks under qemu are started by this machine's Open MPI: the same version, from the same
# apt sources.
set(CMAKE_CROSSCOMPILING_EMULATOR "qemu-aarch64-static;-cpu;max;-L;${NANOTRON_SYSROOT}")
set(MPIEXEC_PREFLAGS "${CMAKE_CROSSCOMPILING_EMULATOR}" CACHE STRING "")

# Open MPI's compiler wrapper would have to run here to be asked.
set(MPI_CXX_LIB_NAMES mpi CACHE STRING "")
set(MPI_mpi_LIBRARY "${NANOTRON_SYSROOT}/usr/lib/aarch64-linux-gnu/openmpi/lib/libmpi.so" CACHE FILEPATH "")
set(MPI_CXX_HEADER_DIR "${NANOTRON_SYSROOT}/usr/lib/aarch64-linux-gnu/openmpi/include" CACHE PATH "")
