# ROC::hipblaslt, of ROCm 6.1 or newer (older ones have another interface). HIPBLASLT_ROOT or ROCM_PATH names an installation.
find_path(HIPBLASLT_INCLUDE_DIR hipblaslt/hipblaslt.h HINTS "${HIPBLASLT_ROOT}" "$ENV{HIPBLASLT_ROOT}" "${ROCM_PATH}"
  "$ENV{ROCM_PATH}" /opt/rocm PATH_SUFFIXES include)
find_library(HIPBLASLT_LIBRARY hipblaslt HINTS "${HIPBLASLT_ROOT}" "$ENV{HIPBLASLT_ROOT}" "${ROCM_PATH}" "$ENV{ROCM_PATH}"
  /opt/rocm PATH_SUFFIXES lib lib64)
# Its header includes one of these.
find_path(HIPBLASLT_HIPBLAS_INCLUDE_DIR NAMES hipblas-common/hipblas-common.h hipblas/hipblas.h
  HINTS "${HIPBLASLT_ROOT}" "$ENV{HIPBLASLT_ROOT}" "${ROCM_PATH}" "$ENV{ROCM_PATH}" /opt/rocm PATH_SUFFIXES include)
set(HIPBLASLT_HAS_HIPBLAS_TYPES "")
if(HIPBLASLT_INCLUDE_DIR)
  file(STRINGS "${HIPBLASLT_INCLUDE_DIR}/hipblaslt/hipblaslt.h" HIPBLASLT_HAS_HIPBLAS_TYPES REGEX "hipblasComputeType_t +computeType")
endif()
set(HIPBLASLT_VERSION "")
foreach(part IN ITEMS MAJOR MINOR PATCH)
  if(EXISTS "${HIPBLASLT_INCLUDE_DIR}/hipblaslt/hipblaslt-version.h")
    file(STRINGS "${HIPBLASLT_INCLUDE_DIR}/hipblaslt/hipblaslt-version.h" line REGEX "HIPBLASLT_VERSION_${part} ")
    string(REGEX REPLACE ".*${part} +([0-9]+).*" ".\\1" line "${line}")
    string(APPEND HIPBLASLT_VERSION "${line}")
  endif()
endforeach()
string(REGEX REPLACE "^\\." "" HIPBLASLT_VERSION "${HIPBLASLT_VERSION}")
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(NanotronHipblaslt VERSION_VAR HIPBLASLT_VERSION
  REQUIRED_VARS HIPBLASLT_LIBRARY HIPBLASLT_INCLUDE_DIR HIPBLASLT_HIPBLAS_INCLUDE_DIR HIPBLASLT_HAS_HIPBLAS_TYPES)
if(NanotronHipblaslt_FOUND)
  nanotron_import_library(ROC::hipblaslt "${HIPBLASLT_LIBRARY}"
    "${HIPBLASLT_INCLUDE_DIR};${HIPBLASLT_HIPBLAS_INCLUDE_DIR}")
endif()
