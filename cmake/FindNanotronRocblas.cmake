# ROC::rocblas. ROCBLAS_ROOT or ROCM_PATH names an installation.
find_path(ROCBLAS_INCLUDE_DIR rocblas/rocblas.h HINTS "${ROCBLAS_ROOT}" "$ENV{ROCBLAS_ROOT}" "${ROCM_PATH}"
  "$ENV{ROCM_PATH}" /opt/rocm PATH_SUFFIXES include)
find_library(ROCBLAS_LIBRARY rocblas HINTS "${ROCBLAS_ROOT}" "$ENV{ROCBLAS_ROOT}" "${ROCM_PATH}" "$ENV{ROCM_PATH}"
  /opt/rocm PATH_SUFFIXES lib lib64)
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(NanotronRocblas REQUIRED_VARS ROCBLAS_LIBRARY ROCBLAS_INCLUDE_DIR
  REASON_FAILURE_MESSAGE "set ROCBLAS_ROOT or ROCM_PATH to its folder (Debian: librocblas-dev, Spack: rocblas)")
nanotron_import_library(ROC::rocblas "${ROCBLAS_LIBRARY}" "${ROCBLAS_INCLUDE_DIR}")
