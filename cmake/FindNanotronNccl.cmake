# NCCL::nccl. NCCL_ROOT names an installation; the CUDA toolkit's folders are looked through too.
find_path(NCCL_INCLUDE_DIR nccl.h HINTS "${NCCL_ROOT}" "$ENV{NCCL_ROOT}" "$ENV{NCCL_HOME}"
  ${CUDAToolkit_INCLUDE_DIRS} PATH_SUFFIXES include)
find_library(NCCL_LIBRARY nccl HINTS "${NCCL_ROOT}" "$ENV{NCCL_ROOT}" "$ENV{NCCL_HOME}"
  "${CUDAToolkit_LIBRARY_DIR}" "${CUDAToolkit_LIBRARY_ROOT}" PATH_SUFFIXES lib lib64)
foreach(part MAJOR MINOR PATCH)
  if(NCCL_INCLUDE_DIR)
    file(STRINGS "${NCCL_INCLUDE_DIR}/nccl.h" line REGEX "#define NCCL_${part} ")
    string(REGEX REPLACE ".* ([0-9]+)$" "\\1" NCCL_${part} "${line}")
  endif()
endforeach()
set(NCCL_VERSION "${NCCL_MAJOR}.${NCCL_MINOR}.${NCCL_PATCH}")
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(NanotronNccl REQUIRED_VARS NCCL_LIBRARY NCCL_INCLUDE_DIR
  VERSION_VAR NCCL_VERSION
  REASON_FAILURE_MESSAGE "set NCCL_ROOT to its folder (Spack: nccl)")
if(NOT TARGET NCCL::nccl)
  add_library(NCCL::nccl UNKNOWN IMPORTED)
  set_target_properties(NCCL::nccl PROPERTIES IMPORTED_LOCATION "${NCCL_LIBRARY}"
    INTERFACE_INCLUDE_DIRECTORIES "${NCCL_INCLUDE_DIR}")
endif()
