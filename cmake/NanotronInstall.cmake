# cmake --install: programs to bin, decks, job scripts and tools to share/nanotron_hpc, documents to the folder of
# documents, as GNUInstallDirs names them. Nothing that is installed holds the path of the installation: it may be moved.
include(GNUInstallDirs)
set(_data "${CMAKE_INSTALL_DATADIR}/nanotron_hpc")

# nanotron_install_programs(): RPATHs of libraries in unusual places are kept
function(nanotron_install_programs)
  get_property(programs GLOBAL PROPERTY NANOTRON_PROGRAMS)
  set_target_properties(${programs} PROPERTIES INSTALL_RPATH_USE_LINK_PATH ON)
  install(TARGETS ${programs} RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")
  # Where a program finds the decks, seen from its own folder.
  file(RELATIVE_PATH data "${CMAKE_INSTALL_FULL_BINDIR}" "${CMAKE_INSTALL_FULL_DATADIR}/nanotron_hpc")
  set_source_files_properties("${PROJECT_SOURCE_DIR}/src/apps/nanotron_bench/command_line.cpp" PROPERTIES
    COMPILE_DEFINITIONS "NANOTRON_DATA_FROM_BIN=\"${data}\"")
endfunction()

install(DIRECTORY input/ DESTINATION "${_data}/input" FILES_MATCHING PATTERN "*.deck" PATTERN "*.nml")
install(PROGRAMS jobscripts/slurm.sh jobscripts/pbs.pro.sh DESTINATION "${_data}/jobscripts")
install(FILES jobscripts/environment.sh DESTINATION "${_data}/jobscripts")
file(GLOB _tools CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/tools/*.py")
install(PROGRAMS ${_tools} DESTINATION "${_data}/tools")
install(FILES tools/pyproject.toml DESTINATION "${_data}/tools")
install(DIRECTORY tools/nanotron_tools DESTINATION "${_data}/tools" FILES_MATCHING PATTERN "*.py" PATTERN "py.typed"
  PATTERN "__pycache__" EXCLUDE)
install(FILES README.md CHANGELOG.md CONTRIBUTING.md CITATION.cff LICENSE DESTINATION "${CMAKE_INSTALL_DOCDIR}")
install(DIRECTORY doc DESTINATION "${CMAKE_INSTALL_DOCDIR}")
