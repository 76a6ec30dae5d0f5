# Run by CMake in script mode: -DPROGRAMS -DFOLDER (of the programs) -DSHARE -DEMULATOR (NanotronManuals.cmake).

# print(<file below SHARE> <program> <option>...): what the program prints; a warning where it cannot start
function(print file program)
  execute_process(COMMAND ${EMULATOR} "${FOLDER}/${program}" ${ARGN}
    OUTPUT_VARIABLE text ERROR_VARIABLE said RESULT_VARIABLE status)
  if(status EQUAL 0)
    file(WRITE "${SHARE}/${file}" "${text}")
  else()
    file(REMOVE "${SHARE}/${file}")
    message(WARNING "${program} does not start here (${status}), and is installed without ${file}:\n${said}")
  endif()
endfunction()

foreach(program IN LISTS PROGRAMS)
  print("man/man1/${program}.1" ${program} --man)
  print("bash-completion/completions/${program}" ${program} --completion bash)
  print("zsh/site-functions/_${program}" ${program} --completion zsh)
endforeach()
print("man/man5/nanotron_hpc.5" nanotron_hpc --parameters-man)
