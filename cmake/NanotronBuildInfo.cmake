# The target nanotron_build_info writes nanotron/base/build_info.hpp in the build folder at every
# build, and touches it only when a value has changed. Include it in one source, not in headers.
string(TOUPPER "${CMAKE_BUILD_TYPE}" _type)
list(JOIN NANOTRON_CXX_OPTIONS " " _options)
string(STRIP "${CMAKE_CXX_FLAGS} ${CMAKE_CXX_FLAGS_${_type}} ${_options}" _flags)
set(_cuda "none")
set(_hip "none")
if(NANOTRON_ENABLE_CUDA)
  set(_cuda "${CUDAToolkit_VERSION} for sm_${CMAKE_CUDA_ARCHITECTURES}")
elseif(NANOTRON_ENABLE_HIP)
  set(_hip "for ${NANOTRON_HIP_ARCHITECTURES}, without hipBLASLt")
  if(NanotronHipblaslt_FOUND)
    set(_hip "for ${NANOTRON_HIP_ARCHITECTURES}, hipBLASLt ${HIPBLASLT_VERSION}")
  endif()
elseif(NANOTRON_GPU STREQUAL "hip")
  set(_hip "emulated")
endif()
file(WRITE "${PROJECT_BINARY_DIR}/build_info_values.cmake"
"set(project_version [==[${PROJECT_VERSION}]==])
set(build_type [==[${CMAKE_BUILD_TYPE}]==])
set(compiler [==[${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}]==])
set(compile_flags [==[${_flags}]==])
set(mpi [==[${NANOTRON_MPI_NAME}]==])
set(hdf5_version [==[${NANOTRON_HDF5_VERSION}]==])
set(kokkos_version [==[${NANOTRON_KOKKOS_VERSION}]==])
set(kokkos_devices [==[${NANOTRON_KOKKOS_DEVICES}]==])
set(blas [==[${NANOTRON_BLAS_NAME}]==])
set(dnnl_version [==[${NANOTRON_DNNL_VERSION}]==])
set(cuda [==[${_cuda}]==])
set(hip [==[${_hip}]==])
")
set(_command "${CMAKE_COMMAND}"
  "-DSOURCE_DIR=${PROJECT_SOURCE_DIR}"
  "-DVALUES=${PROJECT_BINARY_DIR}/build_info_values.cmake"
  "-DTEMPLATE=${PROJECT_SOURCE_DIR}/cmake/build_info.hpp.in"
  "-DOUTPUT=${PROJECT_BINARY_DIR}/include/nanotron/base/build_info.hpp"
  -P "${PROJECT_SOURCE_DIR}/cmake/write_build_info.cmake")
execute_process(COMMAND ${_command})
add_custom_target(nanotron_build_info COMMAND ${_command}
  BYPRODUCTS "${PROJECT_BINARY_DIR}/include/nanotron/base/build_info.hpp"
  COMMENT "Recording the state of the source in build_info.hpp" VERBATIM)
