# NCCL::nccl. NCCL_ROOT names an installation; the CUDA toolkit's folders are looked through too.
find_path(NCCL_INCLUDE_DIR nccl.h HINTS "${NCCL_ROOT}" "$ENV{NCCL_ROOT}" "$ENV{NCCL_HOME}"
  ${CUDAToolkit_INCLUDE_DIRS} PATH_SUFFIXES include)
find_library(NCCL_LIBRARY nccl HINTS "${NCCL_ROOT}" "$ENV{NCCL_ROOT}" "$ENV{NCCL_HOME}"
  "${CUDAToolkit_LIBRARY_DIR}" "${CUDAToolkit_LIBRARY_ROOT}" PATH_SUFFIXES lib lib64)
nanotron_read_nccl_version(NCCL_VERSION "${NCCL_INCLUDE_DIR}/nccl.h")
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(NanotronNccl REQUIRED_VARS NCCL_LIBRARY NCCL_INCLUDE_DIR
  VERSION_VAR NCCL_VERSION
  REASON_FAILURE_MESSAGE "set NCCL_ROOT to its folder (Spack: nccl)")
nanotron_import_library(NCCL::nccl "${NCCL_LIBRARY}" "${NCCL_INCLUDE_DIR}")
