#!/usr/bin/env python3
# timeout: 120
"""A package of Kokkos whose CMake files name a library that it does not hold is used by its header and its library.

    test_kokkos.py <folder of the programs>

find_package() stops at such a package; libkokkos-dev of some distributions is one.
"""
import subprocess
import sys
import tempfile
from pathlib import Path

MODULES = Path(__file__).resolve().parents[2] / "cmake"
PROJECT = f"""
cmake_minimum_required(VERSION 3.22)
project(kokkos LANGUAGES CXX)
list(APPEND CMAKE_MODULE_PATH "{MODULES}")
find_package(Threads REQUIRED)
find_package(NanotronKokkos REQUIRED)
get_target_property(libraries nanotron_kokkos INTERFACE_LINK_LIBRARIES)
file(WRITE "${{PROJECT_BINARY_DIR}}/found" "${{NANOTRON_KOKKOS_VERSION}} ${{NANOTRON_KOKKOS_DEVICES}} ${{libraries}}")
"""
CONFIG = """
get_filename_component(_IMPORT_PREFIX "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
include("${CMAKE_CURRENT_LIST_DIR}/KokkosTargets-none.cmake")
set(Kokkos_VERSION 5.2.2)
set(Kokkos_DEVICES OPENMP)
add_library(Kokkos::kokkos INTERFACE IMPORTED)
target_link_libraries(Kokkos::kokkos INTERFACE Kokkos::core Kokkos::simd)
"""
VERSION = """
set(PACKAGE_VERSION 5.2.2)
if(NOT PACKAGE_FIND_VERSION VERSION_GREATER PACKAGE_VERSION)
  set(PACKAGE_VERSION_COMPATIBLE TRUE)
endif()
"""
TARGET = """
add_library(Kokkos::{0} UNKNOWN IMPORTED)
set_target_properties(Kokkos::{0} PROPERTIES
  IMPORTED_LOCATION_NONE "${{_IMPORT_PREFIX}}/lib/libkokkos{0}.so"
  IMPORTED_SONAME_NONE "libkokkos{0}.so.5.2"
  )
if(NOT EXISTS "${{_IMPORT_PREFIX}}/lib/libkokkos{0}.so")
  message(FATAL_ERROR "The imported target references a file that does not exist")
endif()
"""


def found(folder, libraries):
    """What the module finds where these of the two named libraries are."""
    root = folder / "kokkos"
    files = {"include/kokkos/Kokkos_Core.hpp": "",
             "include/kokkos/KokkosCore_config.h": "#define KOKKOS_VERSION 50202\n#define KOKKOS_ENABLE_OPENMP\n",
             "lib/cmake/Kokkos/KokkosConfig.cmake": CONFIG, "lib/cmake/Kokkos/KokkosConfigVersion.cmake": VERSION,
             "lib/cmake/Kokkos/KokkosTargets-none.cmake": TARGET.format("core") + TARGET.format("simd"),
             **{f"lib/libkokkos{name}.so": "" for name in libraries}}
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (folder / "CMakeLists.txt").write_text(PROJECT)
    done = subprocess.run(["cmake", "-S", folder, "-B", folder / "build", f"-DKokkos_ROOT={root}"], text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    if done.returncode != 0:
        sys.exit(f"FAILED: with {libraries}\n{done.stdout}")
    return (folder / "build/found").read_text()


def main():
    with tempfile.TemporaryDirectory(prefix="nanotron_kokkos_") as scratch:
        for libraries, words in ((("core", "simd"), ["5.2.2 OPENMP", "Kokkos::kokkos"]),
                                 (("core",), ["5.2.2 OPENMP", "lib/libkokkoscore.so", "OpenMP::OpenMP_CXX"])):
            folder = Path(scratch).resolve() / "_".join(libraries)
            folder.mkdir()
            text = found(folder, libraries)
            for word in words:
                if word not in text:
                    sys.exit(f"FAILED: with {libraries}: expected {word}, found {text}")
    print("kokkos: by its CMake files where all that they name is there, else by header and library")
    return 0


if __name__ == "__main__":
    sys.exit(main())
