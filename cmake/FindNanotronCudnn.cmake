# Headers of cuDNN 9 and of its frontend, for fused attention: NANOTRON_CUDNN_INCLUDE_DIR, NANOTRON_CUDNN_FRONTEND_INCLUDE_DIR.
# The program opens the library itself when it first needs it.
find_path(NANOTRON_CUDNN_INCLUDE_DIR cudnn.h HINTS "$ENV{CUDNN_ROOT}" "${CUDNN_ROOT}" "${CUDAToolkit_INCLUDE_DIRS}"
  PATH_SUFFIXES include)
find_path(NANOTRON_CUDNN_FRONTEND_INCLUDE_DIR cudnn_frontend.h HINTS "$ENV{CUDNN_FRONTEND_ROOT}"
  "${CUDNN_FRONTEND_ROOT}" "${NANOTRON_CUDNN_INCLUDE_DIR}" PATH_SUFFIXES include)
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(NanotronCudnn
  REQUIRED_VARS NANOTRON_CUDNN_INCLUDE_DIR NANOTRON_CUDNN_FRONTEND_INCLUDE_DIR
  REASON_FAILURE_MESSAGE
    "set CUDNN_ROOT and CUDNN_FRONTEND_ROOT to their folders (Python's packages nvidia-cudnn-cu13 and nvidia-cudnn-frontend have the headers)")
