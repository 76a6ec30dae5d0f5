# Every library this project uses, found on the machine (nothing is downloaded) and given one
# name: nanotron::<what>. Look here to see what is used, and how it is told where to be.
include(NanotronImported)
find_package(Threads REQUIRED)

# nanotron::mpi ------------------------------------------------------------------------------------
# MPI_CXX_COMPILER and MPIEXEC_EXECUTABLE choose among several (preset mpich).
set(MPI_CXX_SKIP_MPICXX ON)
find_package(MPI REQUIRED COMPONENTS CXX)
add_library(nanotron_mpi INTERFACE)
add_library(nanotron::mpi ALIAS nanotron_mpi)
target_link_libraries(nanotron_mpi INTERFACE MPI::MPI_CXX)
target_compile_definitions(nanotron_mpi INTERFACE OMPI_SKIP_MPICXX MPICH_SKIP_MPICXX)
include(NanotronMpiFlavour)

find_package(NanotronHdf5 REQUIRED)    # nanotron::hdf5
find_package(NanotronKokkos REQUIRED)  # nanotron::kokkos

# GEMMs of the host: empty targets in a build for (emulated) GPUs -----------------------------------
if(NOT NANOTRON_GPU STREQUAL "none")
  add_library(nanotron::cblas INTERFACE IMPORTED)
  add_library(nanotron::dnnl INTERFACE IMPORTED)
  set(NANOTRON_BLAS_NAME "none")
  set(NANOTRON_DNNL_VERSION "none")
else()
  find_package(NanotronCblas REQUIRED)  # nanotron::cblas
  find_package(NanotronDnnl REQUIRED)   # nanotron::dnnl
endif()

find_package(NanotronLapack REQUIRED)  # nanotron::lapack

# Small helpers ------------------------------------------------------------------------------------
find_package(fmt REQUIRED)
add_library(nanotron_fmt INTERFACE)
add_library(nanotron::fmt ALIAS nanotron_fmt)
target_link_libraries(nanotron_fmt INTERFACE fmt::fmt)
if(NANOTRON_ENABLE_CUDA)
  # nvcc refuses fmt's compile-time check of format strings.
  if(fmt_VERSION VERSION_LESS 11)
    target_compile_definitions(nanotron_fmt INTERFACE FMT_CONSTEVAL= FMT_USE_CONSTEXPR=1)
  else()
    target_compile_definitions(nanotron_fmt INTERFACE FMT_USE_CONSTEVAL=0)
  endif()
endif()
find_package(nlohmann_json REQUIRED)
add_library(nanotron::json ALIAS nlohmann_json::nlohmann_json)
find_package(CLI11 REQUIRED)
add_library(nanotron::cli11 ALIAS CLI11::CLI11)

find_path(XXHASH_INCLUDE_DIR xxhash.h)
find_library(XXHASH_LIBRARY xxhash)
if(NOT XXHASH_INCLUDE_DIR OR NOT XXHASH_LIBRARY)
  message(FATAL_ERROR "xxHash was not found (Debian: libxxhash-dev, Spack: xxhash). "
    "Set XXHASH_INCLUDE_DIR and XXHASH_LIBRARY if it is in an unusual place.")
endif()
nanotron_import_library(nanotron::xxhash "${XXHASH_LIBRARY}" "${XXHASH_INCLUDE_DIR}")

# GPU libraries: empty targets without a GPU -------------------------------------------------------
add_library(nanotron_gpublas INTERFACE)
add_library(nanotron::gpublas ALIAS nanotron_gpublas)
add_library(nanotron_nccl INTERFACE)
add_library(nanotron::nccl ALIAS nanotron_nccl)
if(NANOTRON_ENABLE_CUDA)
  target_link_libraries(nanotron_gpublas INTERFACE CUDA::cublas CUDA::cublasLt CUDA::cudart)
  # 2.26: NCCL_LAUNCH_ORDER_IMPLICIT, without which groups that overlap could wait for each other.
  find_package(NanotronNccl 2.26 REQUIRED)
  target_link_libraries(nanotron_nccl INTERFACE NCCL::nccl CUDA::cudart)
elseif(NANOTRON_ENABLE_HIP)
  find_package(NanotronRocblas REQUIRED)
  target_link_libraries(nanotron_gpublas INTERFACE ROC::rocblas)
  find_package(NanotronHipblaslt)
  if(NanotronHipblaslt_FOUND)
    target_link_libraries(nanotron_gpublas INTERFACE ROC::hipblaslt)
  else()
    message(STATUS "GEMMs are rocBLAS's alone; with hipBLASLt (ROCm 6.1 or newer) bf16 and FP8 would be faster")
  endif()
  find_package(NanotronRccl REQUIRED)
  target_link_libraries(nanotron_nccl INTERFACE RCCL::rccl)
endif()
