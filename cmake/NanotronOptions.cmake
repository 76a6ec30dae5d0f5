# nanotron::options: the compile flags of every target of this project, stated once.
add_library(nanotron_options INTERFACE)
add_library(nanotron::options ALIAS nanotron_options)
target_compile_features(nanotron_options INTERFACE cxx_std_20)

# -ffast-math is never used: the numbers must be those that were written. What is given up is errno and trapping, which
# nothing here reads. The compiler contracts no product and sum to an fma: where one is meant, the sources say so, and
# every compiler and instruction set rounds alike (doc/reproducibility.md).
set(NANOTRON_CXX_OPTIONS -Wall -Wextra -fno-math-errno -fno-trapping-math -ffp-contract=off)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # False alarms of GCC 12 on std::string and its own AVX-512 headers (GCC bugs 105651, 105593).
  list(APPEND NANOTRON_CXX_OPTIONS -Wno-restrict -Wno-array-bounds -Wno-stringop-overflow -Wno-stringop-overread
    -Wno-maybe-uninitialized -Wno-uninitialized)
endif()
if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  # NANOTRON_INDEPENDENT_ITERATIONS is clang's order to vectorise; a loop with calls in it cannot be. A class that is
  # declared as a struct matters to Microsoft's linker only.
  list(APPEND NANOTRON_CXX_OPTIONS -Wno-pass-failed -Wno-mismatched-tags)
endif()
# portable: AVX2 and FMA, which x86 processors for servers have had since 2013.
if(NOT NANOTRON_ARCH STREQUAL "portable")
  set(_arch "${NANOTRON_ARCH}")
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64)$")
  set(_arch x86-64-v3)
endif()
# On Arm -mcpu, which also says for which processor to order instructions; the name of an architecture is for -march.
if(_arch AND CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64)$" AND NOT _arch MATCHES "^armv")
  list(APPEND NANOTRON_CXX_OPTIONS "-mcpu=${_arch}")
elseif(_arch)
  list(APPEND NANOTRON_CXX_OPTIONS "-march=${_arch}")
endif()
# Compilers halve the vectors of AVX-512 unless told; the memory-bound kernels want them whole.
include(CheckCXXCompilerFlag)
check_cxx_compiler_flag(-mprefer-vector-width=512 NANOTRON_HAVE_VECTOR_WIDTH)
if(NANOTRON_HAVE_VECTOR_WIDTH)
  list(APPEND NANOTRON_CXX_OPTIONS -mprefer-vector-width=512)
endif()
if(NANOTRON_WARNINGS_AS_ERRORS)
  list(APPEND NANOTRON_CXX_OPTIONS -Werror)
endif()
if(NANOTRON_SANITIZE)
  list(APPEND NANOTRON_CXX_OPTIONS -fsanitize=address,undefined -fno-sanitize-recover=undefined
    -fno-omit-frame-pointer)
  target_link_options(nanotron_options INTERFACE -fsanitize=address,undefined)
  target_compile_definitions(nanotron_options INTERFACE NANOTRON_WITH_SANITIZERS)
endif()
# libstdc++ checks indices and iterators.
target_compile_definitions(nanotron_options INTERFACE $<$<CONFIG:Debug,Asan>:_GLIBCXX_ASSERTIONS>)
if(NANOTRON_FUZZ)
  list(APPEND NANOTRON_CXX_OPTIONS -fsanitize=fuzzer-no-link)
endif()
target_compile_options(nanotron_options INTERFACE
  "$<$<COMPILE_LANGUAGE:CXX>:${NANOTRON_CXX_OPTIONS}>")

target_include_directories(nanotron_options INTERFACE
  "${PROJECT_SOURCE_DIR}/include" "${PROJECT_BINARY_DIR}/include")
if(NOT NANOTRON_GPU STREQUAL "none")
  string(TOUPPER "NANOTRON_WITH_${NANOTRON_GPU}" _with)
  target_compile_definitions(nanotron_options INTERFACE NANOTRON_WITH_GPU ${_with})
endif()
if(NANOTRON_ENABLE_CUDA)
  nanotron_cuda_options(nanotron_options)
elseif(NANOTRON_ENABLE_HIP)
  nanotron_hip_options(nanotron_options)
elseif(NANOTRON_EMULATE_GPU)
  include(NanotronEmulatedGpu)
endif()

# Kokkos alone costs seconds in each source. A compiler refuses a precompiled header made with other flags (GCC from 14 on:
# with another -O), so there is one for each set of them.
# nanotron_precompile(<target> [<option>...]): the target is compiled with these options, and with the header made with them
function(nanotron_precompile target)
  target_compile_options(${target} PRIVATE ${ARGN})
  if(NOT NANOTRON_PRECOMPILE OR NANOTRON_GPU_COMPILER)
    return()
  endif()
  string(REGEX REPLACE "[^A-Za-z0-9]+" "_" owner "nanotron_precompiled${ARGN}")
  if(NOT TARGET ${owner})
    add_library(${owner} OBJECT "${PROJECT_SOURCE_DIR}/cmake/precompiled.cpp")
    target_link_libraries(${owner} PRIVATE nanotron::options nanotron::mpi nanotron::kokkos nanotron::fmt)
    target_compile_options(${owner} PRIVATE ${ARGN})
    target_precompile_headers(${owner} PRIVATE <Kokkos_Core.hpp> <fmt/format.h> <mpi.h>
      <algorithm> <array> <cmath> <cstdint> <cstring> <filesystem> <functional> <map> <memory>
      <optional> <span> <stdexcept> <string> <string_view> <type_traits> <utility> <variant> <vector>)
  endif()
  target_precompile_headers(${target} REUSE_FROM ${owner})
endfunction()
