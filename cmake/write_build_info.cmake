# Run by CMake in script mode: -DSOURCE_DIR -DVALUES -DTEMPLATE -DOUTPUT (NanotronBuildInfo.cmake).
include("${VALUES}")
set(git_hash "unknown")
set(git_dirty "false")
string(TIMESTAMP source_date "%Y-%m-%d" UTC)  # without git: today, or SOURCE_DATE_EPOCH
find_program(GIT git)
if(GIT)
  execute_process(COMMAND "${GIT}" -c "safe.directory=*" -C "${SOURCE_DIR}" rev-parse HEAD
    OUTPUT_VARIABLE hash OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE status ERROR_QUIET)
  if(status EQUAL 0)
    set(git_hash "${hash}")
    execute_process(COMMAND "${GIT}" -c "safe.directory=*" -C "${SOURCE_DIR}" log -1 --format=%cs
      OUTPUT_VARIABLE source_date OUTPUT_STRIP_TRAILING_WHITESPACE)
    execute_process(COMMAND "${GIT}" -c "safe.directory=*" -C "${SOURCE_DIR}" status --porcelain -- CMakeLists.txt CMakePresets.json
      cmake include src
      OUTPUT_VARIABLE changes ERROR_QUIET)
    if(NOT changes STREQUAL "")
      set(git_dirty "true")
    endif()
  endif()
endif()
configure_file("${TEMPLATE}" "${OUTPUT}" @ONLY)
