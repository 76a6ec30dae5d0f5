# Functions that make the project's targets from the folders: a layer, the programs.

# Of what is compiled for a short build, not for speed. (nvcc would warn of a second -O.)
set(NANOTRON_COLD_OPTIONS "")
if(NOT NANOTRON_ENABLE_CUDA)
  set(NANOTRON_COLD_OPTIONS "$<$<CONFIG:Release>:-O1>")
endif()

# nanotron_without_kernels(<target>): none of its sources has a kernel: a compiler for GPUs that compiles every source twice
# compiles these for the host alone.
function(nanotron_without_kernels target)
  if(NANOTRON_ENABLE_HIP)
    target_compile_options(${target} PRIVATE --offload-host-only)
  endif()
endfunction()

# nanotron_keep_sources(<variable>): of sources below a folder those of this build: of host/ without a GPU; of gpu/ with
# an (emulated) GPU, with those of cuda/ or hip/.
function(nanotron_keep_sources variable)
  set(kept ${${variable}})
  set(folders host gpu cuda hip)
  if(NANOTRON_GPU STREQUAL "none")
    list(REMOVE_ITEM folders host)
  else()
    list(REMOVE_ITEM folders gpu ${NANOTRON_GPU})
  endif()
  foreach(folder IN LISTS folders)
    list(FILTER kept EXCLUDE REGEX "(^|/)${folder}/")
  endforeach()
  set(${variable} ${kept} PARENT_SCOPE)
endfunction()

# nanotron_add_layer(<layer> [COLD] [WITHOUT_KOKKOS] [WITHOUT_KERNELS] [OPTIONS <compile option>...] [DEPENDS <layer>...] [LIBRARIES <target>...])
#   Static library nanotron_<layer> of all sources under src/<layer>; of those in folders gpu/, cuda/, hip/ and host/
#   only those of this build (nanotron_keep_sources). It is linked to the layers it names and, through them, to those
#   they use, so that a call of another layer does not link. COLD: with NANOTRON_COLD_OPTIONS, and with NANOTRON_UNITY
#   a dozen sources at a time.
#   WITHOUT_KERNELS, and COLD: as nanotron_without_kernels. WITHOUT_KOKKOS: its sources are compiled as quickly without the precompiled header. OPTIONS: for the sources of this layer alone.
function(nanotron_add_layer layer)
  cmake_parse_arguments(arg "COLD;WITHOUT_KOKKOS;WITHOUT_KERNELS" "" "OPTIONS;DEPENDS;LIBRARIES" ${ARGN})
  set(folder "${PROJECT_SOURCE_DIR}/src/${layer}")
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS RELATIVE "${folder}" "${folder}/*.cpp")
  nanotron_keep_sources(sources)
  list(TRANSFORM sources PREPEND "${folder}/")
  set(target nanotron_${layer})
  list(TRANSFORM arg_DEPENDS PREPEND nanotron_)
  if(sources)
    add_library(${target} STATIC ${sources})
    set(scope PUBLIC)
    target_include_directories(${target} PRIVATE "${PROJECT_SOURCE_DIR}/src")
    if(arg_COLD)
      list(APPEND arg_OPTIONS ${NANOTRON_COLD_OPTIONS})
      set_target_properties(${target} PROPERTIES UNITY_BUILD ${NANOTRON_UNITY} UNITY_BUILD_BATCH_SIZE 12)
      if(NANOTRON_UNITY AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")  # takes such a source for a header
        target_compile_options(${target} PRIVATE -Wno-subobject-linkage)
      endif()
    endif()
    if(arg_COLD OR arg_WITHOUT_KERNELS)
      nanotron_without_kernels(${target})
    endif()
    if(arg_WITHOUT_KOKKOS)
      target_compile_options(${target} PRIVATE ${arg_OPTIONS})
    else()
      nanotron_precompile(${target} ${arg_OPTIONS})
    endif()
    nanotron_cuda_sources(${sources})
  else()
    add_library(${target} INTERFACE)
    set(scope INTERFACE)
  endif()
  add_library(nanotron::${layer} ALIAS ${target})
  target_link_libraries(${target} ${scope} nanotron::options ${arg_DEPENDS} ${arg_LIBRARIES})
  if(layer STREQUAL base)
    add_dependencies(${target} nanotron_build_info)
  endif()
  set_property(GLOBAL APPEND PROPERTY NANOTRON_LAYERS ${layer})
endfunction()

# nanotron_add_processor_check(): the target of src/apps/processor, which no program runs without.
function(nanotron_add_processor_check)
  set(check "${PROJECT_SOURCE_DIR}/src/apps/processor/check.cpp")
  add_library(nanotron_processor_check OBJECT "${check}" "${PROJECT_SOURCE_DIR}/src/apps/processor/built_for.cpp")
  target_link_libraries(nanotron_processor_check PRIVATE nanotron::options nanotron::fmt)
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64)$")
    set_source_files_properties("${check}" PROPERTIES COMPILE_OPTIONS "-march=x86-64")
  endif()
endfunction()

# nanotron_add_programs(): each src/apps/<name>.cpp (with src/apps/<name>/*.cpp) is the program <name>; all link
# src/apps/shared/*.cpp. nanotron_programs builds them all.
function(nanotron_add_programs)
  nanotron_add_processor_check()
  add_custom_target(nanotron_programs)
  file(GLOB shared CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/src/apps/shared/*.cpp")
  add_library(nanotron_apps_shared STATIC ${shared})
  target_include_directories(nanotron_apps_shared PUBLIC "${PROJECT_SOURCE_DIR}/src/apps")
  target_link_libraries(nanotron_apps_shared PUBLIC nanotron::simulation nanotron::cli11)
  nanotron_precompile(nanotron_apps_shared ${NANOTRON_COLD_OPTIONS})
  nanotron_without_kernels(nanotron_apps_shared)
  nanotron_cuda_sources(${shared})
  file(GLOB mains CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/src/apps/*.cpp")
  foreach(main IN LISTS mains)
    get_filename_component(name "${main}" NAME_WE)
    file(GLOB helpers CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/src/apps/${name}/*.cpp")
    add_library(${name}_parts OBJECT ${helpers})
    target_link_libraries(${name}_parts PUBLIC nanotron_apps_shared)
    nanotron_precompile(${name}_parts ${NANOTRON_COLD_OPTIONS})
    add_executable(${name} "${main}")
    target_link_libraries(${name} PRIVATE ${name}_parts nanotron_processor_check)
    nanotron_precompile(${name} ${NANOTRON_COLD_OPTIONS})
    nanotron_cuda_sources("${main}" ${helpers})
    nanotron_keep_plugins(${name})
    add_dependencies(nanotron_programs ${name})
    set_property(GLOBAL APPEND PROPERTY NANOTRON_PROGRAMS ${name})
  endforeach()
endfunction()

# nanotron_keep_plugins(<target>): in a sanitizer build dlclose() does nothing, so that a leak
# report can name the library an MPI plugin belongs to and the suppressions find it.
function(nanotron_keep_plugins target)
  if(NANOTRON_SANITIZE)
    if(NOT TARGET nanotron_no_dlclose)
      add_library(nanotron_no_dlclose OBJECT "${PROJECT_SOURCE_DIR}/tests/support/no_dlclose.cpp")
    endif()
    target_link_libraries(${target} PRIVATE nanotron_no_dlclose)
    set_target_properties(${target} PROPERTIES ENABLE_EXPORTS ON)
  endif()
endfunction()

# nanotron_cuda_sources(<source>...): with a Kokkos that was built as the CMake language CUDA, the
# sources are CUDA too. With nvcc_wrapper or kokkos_launch_compiler the compiler is switched by
# Kokkos and nothing is to be done.
function(nanotron_cuda_sources)
  if(NANOTRON_ENABLE_CUDA AND NANOTRON_KOKKOS_LANGUAGE STREQUAL "CUDA")
    set_source_files_properties(${ARGN} TARGET_DIRECTORY nanotron_options PROPERTIES LANGUAGE CUDA)
  endif()
endfunction()
