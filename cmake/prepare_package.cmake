# Run by CPack on the installed files, before they are packed (NanotronPackage.cmake).
if(CPACK_NANOTRON_ARCH STREQUAL "native")
  message(FATAL_ERROR "This build is for the processor of this machine alone (NANOTRON_ARCH = native). "
    "Pack one for a named processor: cmake --preset package")
endif()
if(CPACK_GENERATOR STREQUAL "DEB")  # Debian's places and forms of licence and changes, and its compressed pages
  set(root "${CPACK_TEMPORARY_INSTALL_DIRECTORY}${CPACK_PACKAGING_INSTALL_PREFIX}")
  string(TIMESTAMP year "%Y" UTC)
  string(TIMESTAMP date "%a, %d %b %Y %H:%M:%S +0000" UTC)
  set(documents "${root}/share/doc/${CPACK_PACKAGE_NAME}")
  file(WRITE "${documents}/copyright" "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: nanotron_hpc

Files: *
Copyright: ${year} ${CPACK_PACKAGE_VENDOR}
License: Apache-2.0
 The full text is in /usr/share/common-licenses/Apache-2.0.
")
  file(WRITE "${documents}/changelog" "${CPACK_PACKAGE_NAME} (${CPACK_PACKAGE_VERSION}) unstable; urgency=medium

  * The changes are in /usr/share/doc/nanotron_hpc/CHANGELOG.md.

 -- ${CPACK_PACKAGE_CONTACT}  ${date}
")
  file(GLOB_RECURSE files "${root}/share/man/*.[1-8]")
  foreach(file IN LISTS files ITEMS "${documents}/changelog")
    execute_process(COMMAND gzip -9 -n -f "${file}" COMMAND_ERROR_IS_FATAL ANY)
  endforeach()
endif()
