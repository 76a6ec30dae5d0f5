# RCCL::rccl, NCCL's interface for AMD GPUs. RCCL_ROOT or ROCM_PATH names an installation.
find_path(RCCL_INCLUDE_DIR rccl/rccl.h HINTS "${RCCL_ROOT}" "$ENV{RCCL_ROOT}" "${ROCM_PATH}" "$ENV{ROCM_PATH}" /opt/rocm
  PATH_SUFFIXES include)
find_library(RCCL_LIBRARY rccl HINTS "${RCCL_ROOT}" "$ENV{RCCL_ROOT}" "${ROCM_PATH}" "$ENV{ROCM_PATH}" /opt/rocm
  PATH_SUFFIXES lib lib64)
foreach(part MAJOR MINOR PATCH)
  if(RCCL_INCLUDE_DIR)
    file(STRINGS "${RCCL_INCLUDE_DIR}/rccl/rccl.h" line REGEX "#define NCCL_${part} ")
    string(REGEX REPLACE ".* ([0-9]+)$" "\\1" RCCL_${part} "${line}")
  endif()
endforeach()
set(RCCL_VERSION "${RCCL_MAJOR}.${RCCL_MINOR}.${RCCL_PATCH}")  # of NCCL's interface
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(NanotronRccl REQUIRED_VARS RCCL_LIBRARY RCCL_INCLUDE_DIR VERSION_VAR RCCL_VERSION
  REASON_FAILURE_MESSAGE "set RCCL_ROOT or ROCM_PATH to its folder (Debian: librccl-dev, Spack: rccl)")
if(NOT TARGET RCCL::rccl)
  add_library(RCCL::rccl UNKNOWN IMPORTED)
  set_target_properties(RCCL::rccl PROPERTIES IMPORTED_LOCATION "${RCCL_LIBRARY}"
    INTERFACE_INCLUDE_DIRECTORIES "${RCCL_INCLUDE_DIR}")
endif()
