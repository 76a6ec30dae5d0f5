# For libraries that bring no CMake file.

# nanotron_import_library(<target> <library> <folder of its headers>)
function(nanotron_import_library target library folder)
  if(NOT TARGET ${target})
    add_library(${target} UNKNOWN IMPORTED)
    set_target_properties(${target} PROPERTIES IMPORTED_LOCATION "${library}" INTERFACE_INCLUDE_DIRECTORIES "${folder}")
  endif()
endfunction()

# nanotron_read_nccl_version(<variable> <header>): of NCCL's interface, which RCCL's header states by the same names. Empty without it.
function(nanotron_read_nccl_version variable header)
  set(version "")
  if(EXISTS "${header}")
    foreach(part MAJOR MINOR PATCH)
      file(STRINGS "${header}" line REGEX "#define NCCL_${part} ")
      string(REGEX REPLACE ".* ([0-9]+)$" "\\1" number "${line}")
      list(APPEND version "${number}")
    endforeach()
  endif()
  list(JOIN version "." version)
  set(${variable} "${version}" PARENT_SCOPE)
endfunction()
