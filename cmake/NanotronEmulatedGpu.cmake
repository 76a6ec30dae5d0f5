# NANOTRON_EMULATE_GPU: the real headers of CUDA and NCCL, the functions of tests/emulation. No CUDA compiler, no driver.
find_path(NANOTRON_CUDA_INCLUDE_DIR cuda_runtime_api.h HINTS "$ENV{CUDA_HOME}" /usr/local/cuda PATH_SUFFIXES include)
find_path(NANOTRON_NCCL_INCLUDE_DIR nccl.h HINTS "$ENV{NCCL_ROOT}" "${NANOTRON_CUDA_INCLUDE_DIR}" PATH_SUFFIXES include)
if(NOT NANOTRON_CUDA_INCLUDE_DIR OR NOT NANOTRON_NCCL_INCLUDE_DIR)
  message(FATAL_ERROR "The emulated GPU needs the headers of CUDA and NCCL: set CUDA_HOME and NCCL_ROOT.")
endif()
add_library(nanotron_emulated_gpu STATIC
  "${PROJECT_SOURCE_DIR}/tests/emulation/scheduler.cpp" "${PROJECT_SOURCE_DIR}/tests/emulation/device_memory.cpp"
  "${PROJECT_SOURCE_DIR}/tests/emulation/closure.cpp" "${PROJECT_SOURCE_DIR}/tests/emulation/runtime.cpp" "${PROJECT_SOURCE_DIR}/tests/emulation/nccl.cpp"
  "${PROJECT_SOURCE_DIR}/tests/emulation/nccl_connections.cpp" "${PROJECT_SOURCE_DIR}/tests/emulation/nccl_parts.cpp"
  "${PROJECT_SOURCE_DIR}/tests/emulation/nccl_memory.cpp"
  "${PROJECT_SOURCE_DIR}/tests/emulation/cublas.cpp" "${PROJECT_SOURCE_DIR}/tests/emulation/cudnn.cpp")
target_include_directories(nanotron_emulated_gpu PUBLIC
  "${PROJECT_SOURCE_DIR}/tests" "${PROJECT_SOURCE_DIR}/tests/emulation/cudnn")
target_include_directories(nanotron_emulated_gpu SYSTEM PUBLIC
  "${NANOTRON_CUDA_INCLUDE_DIR}" "${NANOTRON_NCCL_INCLUDE_DIR}")
target_link_libraries(nanotron_emulated_gpu PUBLIC nanotron::kokkos nanotron::fmt nanotron::xxhash)
target_compile_features(nanotron_emulated_gpu PUBLIC cxx_std_20)
target_compile_options(nanotron_emulated_gpu PRIVATE -O2)  # also where all else is compiled quickly
target_include_directories(nanotron_emulated_gpu PRIVATE "${PROJECT_SOURCE_DIR}/include")
# Kokkos_Core.hpp of tests/emulation/kokkos comes before Kokkos' own, which it includes.
target_include_directories(nanotron_options INTERFACE "${PROJECT_SOURCE_DIR}/tests/emulation/kokkos")
target_link_libraries(nanotron_options INTERFACE nanotron_emulated_gpu)
target_compile_definitions(nanotron_options INTERFACE NANOTRON_WITH_CUDA NANOTRON_WITH_CUDNN NANOTRON_EMULATED_GPU)
