# HIP, its compiler and flags. Loaded only with NANOTRON_ENABLE_HIP. Sources are C++ that hipcc, or a clang that knows HIP,
# compiles twice, for the host and for the GPUs that Kokkos was built for (its target brings -x hip --offload-arch).
if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  message(FATAL_ERROR "NANOTRON_ENABLE_HIP needs hipcc or a clang++ that compiles HIP, not ${CMAKE_CXX_COMPILER}: "
    "-DCMAKE_CXX_COMPILER=hipcc")
endif()

function(nanotron_hip_options target)
  target_compile_definitions(${target} INTERFACE __HIP_PLATFORM_AMD__)
  if(NanotronHipblaslt_FOUND)
    target_compile_definitions(${target} INTERFACE NANOTRON_WITH_HIPBLASLT)
    # FP8 of MI300 (CDNA 3), and of MI350 as NVIDIA's.
    if(NANOTRON_HIP_ARCHITECTURES MATCHES "GFX94")
      target_compile_definitions(${target} INTERFACE NANOTRON_WITH_HIP_FP8 NANOTRON_FP8_FNUZ)
    elseif(NANOTRON_HIP_ARCHITECTURES MATCHES "GFX95")
      target_compile_definitions(${target} INTERFACE NANOTRON_WITH_HIP_FP8)
    endif()
  endif()
  target_compile_options(${target} INTERFACE "SHELL:-include ${PROJECT_SOURCE_DIR}/cmake/hip_prelude.hpp")
endfunction()
