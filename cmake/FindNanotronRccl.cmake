# RCCL::rccl, NCCL's interface for AMD GPUs. RCCL_ROOT or ROCM_PATH names an installation.
find_path(RCCL_INCLUDE_DIR rccl/rccl.h HINTS "${RCCL_ROOT}" "$ENV{RCCL_ROOT}" "${ROCM_PATH}" "$ENV{ROCM_PATH}" /opt/rocm
  PATH_SUFFIXES include)
find_library(RCCL_LIBRARY rccl HINTS "${RCCL_ROOT}" "$ENV{RCCL_ROOT}" "${ROCM_PATH}" "$ENV{ROCM_PATH}" /opt/rocm
  PATH_SUFFIXES lib lib64)
nanotron_read_nccl_version(RCCL_VERSION "${RCCL_INCLUDE_DIR}/rccl/rccl.h")
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(NanotronRccl REQUIRED_VARS RCCL_LIBRARY RCCL_INCLUDE_DIR VERSION_VAR RCCL_VERSION
  REASON_FAILURE_MESSAGE "set RCCL_ROOT or ROCM_PATH to its folder (Debian: librccl-dev, Spack: rccl)")
nanotron_import_library(RCCL::rccl "${RCCL_LIBRARY}" "${RCCL_INCLUDE_DIR}")
