# Functions that make the project's targets from the folders: a layer, the programs.

# nanotron_add_layer(<layer> [DEPENDS <layer>...] [LIBRARIES <target>...])
#   Static library nanotron_<layer> of all sources under src/<layer>; those in a folder cuda/ only in a
#   CUDA build, those in host/ only in one without. It is linked to the layers it names (and through
#   them to those before), so that a call of a later layer does not link.
function(nanotron_add_layer layer)
  cmake_parse_arguments(arg "" "" "DEPENDS;LIBRARIES" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/src/${layer}/*.cpp")
  if(NANOTRON_ENABLE_CUDA)
    list(FILTER sources EXCLUDE REGEX "/host/")
  else()
    list(FILTER sources EXCLUDE REGEX "/cuda/")
  endif()
  set(target nanotron_${layer})
  list(TRANSFORM arg_DEPENDS PREPEND nanotron_)
  if(sources)
    add_library(${target} STATIC ${sources})
    set(scope PUBLIC)
    target_include_directories(${target} PRIVATE "${PROJECT_SOURCE_DIR}/src")
    nanotron_precompile(${target})
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

# nanotron_add_programs(): each src/apps/<name>.cpp (with src/apps/<name>/*.cpp) is the program <name>; all link
# src/apps/shared/*.cpp. nanotron_programs builds them all.
function(nanotron_add_programs)
  add_custom_target(nanotron_programs)
  file(GLOB shared CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/src/apps/shared/*.cpp")
  add_library(nanotron_apps_shared STATIC ${shared})
  target_include_directories(nanotron_apps_shared PUBLIC "${PROJECT_SOURCE_DIR}/src/apps")
  target_link_libraries(nanotron_apps_shared PUBLIC nanotron::trainer nanotron::cli11)
  nanotron_precompile(nanotron_apps_shared)
  nanotron_cuda_sources(${shared})
  file(GLOB mains CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/src/apps/*.cpp")
  foreach(main IN LISTS mains)
    get_filename_component(name "${main}" NAME_WE)
    file(GLOB helpers CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/src/apps/${name}/*.cpp")
    add_executable(${name} "${main}" ${helpers})
    target_link_libraries(${name} PRIVATE nanotron_apps_shared)
    nanotron_precompile(${name})
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
