# cmake --install: programs to bin, decks, job scripts and tools to share/nanotron_hpc, documents, manual pages, shell
# completion and the modulefile to their folders, as GNUInstallDirs names them. Nothing that is installed holds the path
# of the installation: it may be moved.
include(GNUInstallDirs)
set(_data "${CMAKE_INSTALL_DATADIR}/nanotron_hpc")

# nanotron_install_programs(): RPATHs of libraries in unusual places are kept. They are those of the build too: CMake would
# make room for others with an empty one, which is the folder that a program is started in.
function(nanotron_install_programs)
  get_property(programs GLOBAL PROPERTY NANOTRON_PROGRAMS)
  set_target_properties(${programs} PROPERTIES INSTALL_RPATH_USE_LINK_PATH ON BUILD_WITH_INSTALL_RPATH ON)
  install(TARGETS ${programs} RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")
  # Where a program finds the decks, seen from its own folder.
  file(RELATIVE_PATH data "${CMAKE_INSTALL_FULL_BINDIR}" "${CMAKE_INSTALL_FULL_DATADIR}/nanotron_hpc")
  set_source_files_properties("${PROJECT_SOURCE_DIR}/src/apps/nanotron_bench/command_line.cpp" PROPERTIES
    COMPILE_DEFINITIONS "NANOTRON_DATA_FROM_BIN=\"${data}\"")
endfunction()

install(DIRECTORY input/ DESTINATION "${_data}/input" FILES_MATCHING PATTERN "*.deck" PATTERN "*.nml")
install(PROGRAMS jobscripts/slurm.sh jobscripts/pbs.pro.sh jobscripts/pjm.sh jobscripts/submit.sh
  DESTINATION "${_data}/jobscripts")
install(DIRECTORY jobscripts/machines DESTINATION "${_data}/jobscripts" FILES_MATCHING PATTERN "*.sh")
install(FILES jobscripts/environment.sh DESTINATION "${_data}/jobscripts")
file(GLOB _tools CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/tools/*.py")
install(PROGRAMS ${_tools} DESTINATION "${_data}/tools")
install(FILES tools/pyproject.toml DESTINATION "${_data}/tools")
install(DIRECTORY tools/nanotron_tools DESTINATION "${_data}/tools" FILES_MATCHING PATTERN "*.py" PATTERN "py.typed"
  PATTERN "__pycache__" EXCLUDE)
install(FILES README.md CHANGELOG.md CONTRIBUTING.md SECURITY.md CITATION.cff LICENSE DESTINATION "${CMAKE_INSTALL_DOCDIR}")
install(DIRECTORY doc DESTINATION "${CMAKE_INSTALL_DOCDIR}" PATTERN site EXCLUDE)
install(DIRECTORY "${PROJECT_BINARY_DIR}/share/man/" DESTINATION "${CMAKE_INSTALL_MANDIR}")
foreach(_shell IN ITEMS bash-completion zsh)
  install(DIRECTORY "${PROJECT_BINARY_DIR}/share/${_shell}" DESTINATION "${CMAKE_INSTALL_DATADIR}")
endforeach()

# One modulefile, for Environment Modules and Lmod.
function(nanotron_install_modulefile data)
  set(folder "${CMAKE_INSTALL_DATADIR}/modulefiles/${PROJECT_NAME}")
  file(RELATIVE_PATH prefix_from_modulefile "/prefix/${folder}" "/prefix")
  configure_file("${PROJECT_SOURCE_DIR}/cmake/modulefile.in" "${PROJECT_BINARY_DIR}/modulefile" @ONLY)
  install(FILES "${PROJECT_BINARY_DIR}/modulefile" DESTINATION "${folder}" RENAME "${PROJECT_VERSION}")
endfunction()
nanotron_install_modulefile("${_data}")
