# nanotron::hdf5: the C library of parallel HDF5 and its high-level library, built with the MPI in use;
# NANOTRON_HDF5_VERSION.
# HDF5_ROOT (or HDF5_DIR) names an installation; without it Debian's per-MPI packages are looked
# for by pkg-config (hdf5-openmpi, hdf5-mpich), then CMake's own search is used.
if(NOT "${NANOTRON_HDF5_CHECKED}" STREQUAL "${NANOTRON_MPI_FLAVOUR}:${HDF5_ROOT}:$ENV{HDF5_ROOT}")
  unset(NANOTRON_HDF5_LIBRARY CACHE)
  unset(NANOTRON_HDF5_HL_LIBRARY CACHE)
  unset(NANOTRON_HDF5_INCLUDE_DIR CACHE)
  unset(NANOTRON_HDF5_IS_PARALLEL CACHE)
  set(NANOTRON_HDF5_CHECKED "${NANOTRON_MPI_FLAVOUR}:${HDF5_ROOT}:$ENV{HDF5_ROOT}"
    CACHE INTERNAL "")
endif()

if(NOT HDF5_ROOT AND NOT HDF5_DIR AND NOT DEFINED ENV{HDF5_ROOT})
  find_package(PkgConfig QUIET)
  if(PKG_CONFIG_FOUND)
    pkg_check_modules(PC_HDF5 QUIET hdf5-${NANOTRON_MPI_FLAVOUR})
  endif()
  if(PC_HDF5_FOUND)
    find_library(NANOTRON_HDF5_LIBRARY hdf5 PATHS ${PC_HDF5_LIBRARY_DIRS} NO_DEFAULT_PATH)
    find_library(NANOTRON_HDF5_HL_LIBRARY hdf5_hl PATHS ${PC_HDF5_LIBRARY_DIRS} NO_DEFAULT_PATH)
    # From HDF5 2 on they are in the system's folder.
    find_library(NANOTRON_HDF5_LIBRARY hdf5_${NANOTRON_MPI_FLAVOUR})
    find_library(NANOTRON_HDF5_HL_LIBRARY hdf5_${NANOTRON_MPI_FLAVOUR}_hl)
    find_path(NANOTRON_HDF5_INCLUDE_DIR H5public.h PATHS ${PC_HDF5_INCLUDE_DIRS} NO_DEFAULT_PATH)
  endif()
endif()
add_library(nanotron_hdf5 INTERFACE)
add_library(nanotron::hdf5 ALIAS nanotron_hdf5)
if(NANOTRON_HDF5_LIBRARY AND NANOTRON_HDF5_HL_LIBRARY AND NANOTRON_HDF5_INCLUDE_DIR)
  set(_libraries "${NANOTRON_HDF5_HL_LIBRARY}" "${NANOTRON_HDF5_LIBRARY}")
  set(_include_dirs "${NANOTRON_HDF5_INCLUDE_DIR}")
else()
  enable_language(C)
  set(HDF5_PREFER_PARALLEL ON)
  find_package(HDF5 QUIET COMPONENTS C HL)
  if(NOT HDF5_FOUND)
    message(FATAL_ERROR "HDF5, with its high-level library, was not found. A parallel build for ${NANOTRON_MPI_FLAVOUR} is needed "
      "(Debian: libhdf5-openmpi-dev or libhdf5-mpich-dev; Spack: hdf5+mpi+hl). "
      "Set HDF5_ROOT to its folder.")
  endif()
  set(_libraries ${HDF5_HL_LIBRARIES} ${HDF5_C_LIBRARIES})
  set(_include_dirs ${HDF5_C_INCLUDE_DIRS} ${HDF5_INCLUDE_DIRS})
endif()
target_link_libraries(nanotron_hdf5 INTERFACE ${_libraries} nanotron::mpi)
target_include_directories(nanotron_hdf5 SYSTEM INTERFACE ${_include_dirs})

include(CheckCXXSourceCompiles)
set(CMAKE_REQUIRED_INCLUDES ${_include_dirs})
set(CMAKE_REQUIRED_LIBRARIES ${_libraries} MPI::MPI_CXX)
check_cxx_source_compiles("#include <hdf5.h>
#ifndef H5_HAVE_PARALLEL
#error serial
#endif
int main() { return H5Pset_fapl_mpio(H5P_DEFAULT, MPI_COMM_SELF, MPI_INFO_NULL); }"
  NANOTRON_HDF5_IS_PARALLEL)
unset(CMAKE_REQUIRED_INCLUDES)
unset(CMAKE_REQUIRED_LIBRARIES)
if(NOT NANOTRON_HDF5_IS_PARALLEL)
  message(FATAL_ERROR "This HDF5 is serial, or was built with another MPI than "
    "${NANOTRON_MPI_NAME}: ${_libraries}\nA parallel build is needed "
    "(Debian: libhdf5-openmpi-dev or libhdf5-mpich-dev; Spack: hdf5+mpi; modules: "
    "cray-hdf5-parallel, hdf5-mpi or the like). Set HDF5_ROOT to its folder.")
endif()

set(NANOTRON_HDF5_VERSION "unknown")
foreach(_dir IN LISTS _include_dirs)
  if(EXISTS "${_dir}/H5public.h")
    file(STRINGS "${_dir}/H5public.h" _lines REGEX "define H5_VERS_(MAJOR|MINOR|RELEASE) ")
    if("${_lines}" MATCHES "MAJOR ([0-9]+).*MINOR ([0-9]+).*RELEASE ([0-9]+)")
      set(NANOTRON_HDF5_VERSION "${CMAKE_MATCH_1}.${CMAKE_MATCH_2}.${CMAKE_MATCH_3}")
    endif()
  endif()
endforeach()
message(STATUS "HDF5: ${NANOTRON_HDF5_VERSION}, parallel, ${_libraries}")
set(NanotronHdf5_FOUND TRUE)
