# nanotron_add_manuals(): the programs print their manual pages and shell completion into share/ of the build folder, as
# part of nanotron_programs. Not in a cross build without an emulator, nor with sanitizers: their leak check is slow.
function(nanotron_add_manuals)
  set(share "${PROJECT_BINARY_DIR}/share")
  file(MAKE_DIRECTORY "${share}/man" "${share}/bash-completion/completions" "${share}/zsh/site-functions")
  if((CMAKE_CROSSCOMPILING AND NOT CMAKE_CROSSCOMPILING_EMULATOR) OR NANOTRON_SANITIZE)
    return()
  endif()
  get_property(programs GLOBAL PROPERTY NANOTRON_PROGRAMS)
  set(script "${PROJECT_SOURCE_DIR}/cmake/write_manuals.cmake")
  set(stamp "${PROJECT_BINARY_DIR}/manuals.stamp")
  add_custom_command(OUTPUT "${stamp}"
    COMMAND "${CMAKE_COMMAND}" "-DPROGRAMS=${programs}" "-DFOLDER=$<TARGET_FILE_DIR:nanotron_hpc>" "-DSHARE=${share}"
      "-DEMULATOR=${CMAKE_CROSSCOMPILING_EMULATOR}" -P "${script}"
    COMMAND "${CMAKE_COMMAND}" -E touch "${stamp}"
    DEPENDS ${programs} "${script}" COMMENT "Manual pages and shell completion" VERBATIM)
  add_custom_target(nanotron_manuals ALL DEPENDS "${stamp}")
  add_dependencies(nanotron_programs nanotron_manuals)
endfunction()
