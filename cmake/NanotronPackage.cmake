# cpack -G DEB and -G TGZ, from a build with a named NANOTRON_ARCH: a package is not for the machine that built it.
set(CPACK_PACKAGE_NAME nanotron-hpc)
set(CPACK_PACKAGE_VENDOR "The nanotron_hpc developers")
if(NOT CPACK_PACKAGE_CONTACT)
  set(CPACK_PACKAGE_CONTACT "The nanotron_hpc developers <root@localhost>")
endif()
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "distributed transformer training for MPI machines")
set(CPACK_PACKAGE_DESCRIPTION "nanotron_hpc trains transformers with data, tensor, pipeline, context
and expert parallelism from one Fortran-namelist deck. Beside it are programs
that generate text from a checkpoint and that measure a deck, job scripts for
Slurm, PBS and PJM, and Python tools.")
set(CPACK_RESOURCE_FILE_LICENSE "${PROJECT_SOURCE_DIR}/LICENSE")
set(CPACK_STRIP_FILES ON)
set(CPACK_VERBATIM_VARIABLES ON)
string(TOLOWER "${CPACK_PACKAGE_NAME}-${PROJECT_VERSION}-${CMAKE_SYSTEM_NAME}-${CMAKE_SYSTEM_PROCESSOR}"
  CPACK_PACKAGE_FILE_NAME)
set(CPACK_PRE_BUILD_SCRIPTS "${PROJECT_SOURCE_DIR}/cmake/prepare_package.cmake")
set(CPACK_NANOTRON_ARCH "${NANOTRON_ARCH}")

set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
if(CMAKE_CROSSCOMPILING)  # the tools of this machine know its own libraries: the package does not name those it needs
  set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS OFF)
  if(CMAKE_SYSTEM_PROCESSOR STREQUAL "aarch64")
    set(CPACK_DEBIAN_PACKAGE_ARCHITECTURE arm64)
  endif()
endif()
if(NANOTRON_MPI_FLAVOUR STREQUAL openmpi)
  set(CPACK_DEBIAN_PACKAGE_DEPENDS openmpi-bin)
elseif(NANOTRON_MPI_FLAVOUR STREQUAL mpich)
  set(CPACK_DEBIAN_PACKAGE_DEPENDS mpich)
endif()
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS "python3, python3-h5py, python3-numpy, python3-xxhash")
set(CPACK_DEBIAN_PACKAGE_SUGGESTS "python3-matplotlib")
include(CPack)
