# CUDA toolkit, compiler and flags. Loaded only with NANOTRON_ENABLE_CUDA.
if(NOT CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES 90 CACHE STRING "GPU architectures; 90 is Hopper")
endif()
if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX} AND EXISTS /usr/local/cuda/bin/nvcc)
  set(CMAKE_CUDA_COMPILER /usr/local/cuda/bin/nvcc)
endif()
enable_language(CUDA)
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
set(CMAKE_CUDA_EXTENSIONS OFF)
find_package(CUDAToolkit REQUIRED)

# Fused attention of cuDNN; -DCMAKE_REQUIRE_FIND_PACKAGE_NanotronCudnn=ON makes it an error that it is missing.
find_package(NanotronCudnn)
if(NOT NanotronCudnn_FOUND)
  message(WARNING "Built without cuDNN: attention in bf16 runs on slower kernels of the program's own")
endif()

# The same floating-point rules as on the host.
function(nanotron_cuda_options target)
  set(host_options ${NANOTRON_CXX_OPTIONS})
  list(TRANSFORM host_options PREPEND "-Xcompiler=")
  target_compile_options(${target} INTERFACE
    "$<$<COMPILE_LANGUAGE:CUDA>:--extended-lambda;--expt-relaxed-constexpr;-fmad=false;${host_options}>")
  target_compile_options(${target} INTERFACE "$<$<COMPILE_LANGUAGE:CUDA>:--Werror=cross-execution-space-call>")
  if(NANOTRON_KOKKOS_LANGUAGE STREQUAL "CXX")
    # Kokkos' wrapper of nvcc compiles what links Kokkos as C++, without --expt-relaxed-constexpr: of constexpr functions
    # nvcc then only warns. All else may be given to the host's compiler, which knows none of these.
    target_compile_options(nanotron_kokkos INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:--Werror=cross-execution-space-call>"
      "$<$<COMPILE_LANGUAGE:CXX>:SHELL:-Xcudafe --diag_error=20013 -Xcudafe --diag_error=20015>")
  endif()
  target_link_libraries(${target} INTERFACE CUDA::cudart)
  if(NanotronCudnn_FOUND)
    target_compile_definitions(${target} INTERFACE NANOTRON_WITH_CUDNN NV_CUDNN_FRONTEND_USE_DYNAMIC_LOADING)
    target_include_directories(${target} SYSTEM INTERFACE
      "${NANOTRON_CUDNN_FRONTEND_INCLUDE_DIR}" "${NANOTRON_CUDNN_INCLUDE_DIR}")
  endif()
  # The driver's library only where src/base/cuda/driver_calls.cpp lacks a function of it.
  target_link_options(${target} INTERFACE "LINKER:--as-needed,--undefined=cuCtxGetDevice")
endfunction()
