#!/usr/bin/env python3
# timeout: 120
# labels: once
"""jobscripts/build_libraries.sh with tiny archives instead of the libraries: which archives it takes, in which order, and how it
refuses missing, doubled, damaged and failing ones.

    test_build_libraries.py <folder of the programs>
"""
import io
import os
import shutil
import tarfile
import tempfile
from pathlib import Path

from runs import check, expect, root
from skips import skip

SCRIPT = root / "jobscripts/build_libraries.sh"
# A library that installs a file of its name, with what it was configured with.
PROJECT = """cmake_minimum_required(VERSION 3.22)
project(tiny LANGUAGES NONE)
file(WRITE ${{CMAKE_BINARY_DIR}}/{name} "${{CMAKE_BUILD_TYPE}} ${{PLANTED}}")
install(FILES ${{CMAKE_BINARY_DIR}}/{name} DESTINATION include)
"""
ARCHIVES = {"fmt-10.2.1.tar.gz": "CMakeLists.txt", "cli11_2.1.2+ds.orig.tar.xz": "CMakeLists.txt",
            "json-3.11.3.tar.gz": "CMakeLists.txt", "xxHash-0.8.2.tar.gz": "cmake_unofficial/CMakeLists.txt",
            "googletest-1.14.0.tar.gz": "CMakeLists.txt"}


class Folder:
    """Archives, and a prefix."""

    def __enter__(self):
        self.path = Path(tempfile.mkdtemp(prefix="nanotron_libraries_"))
        self.archives, self.prefix = self.path / "my archives", self.path / "pre fix"
        self.archives.mkdir()
        for name, member in ARCHIVES.items():
            self.add(name, member)
        return self

    def __exit__(self, *_):
        shutil.rmtree(self.path, ignore_errors=True)

    def add(self, name, member, text=PROJECT):
        with tarfile.open(self.archives / name, "w:xz" if name.endswith("xz") else "w:gz") as archive:
            data = text.format(name=name).encode()
            info = tarfile.TarInfo(f"{name.split('.')[0]}/{member}")
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))

    def build(self, *options, code=0, says=""):
        return expect(SCRIPT, self.archives, self.prefix, *options, code=code, says=[says])


if os.environ.get("NANOTRON_SANITIZE") == "ON" or os.environ.get("NANOTRON_MPI_FLAVOUR") == "mpich":
    skip("no program is run: once is enough")

with Folder() as folder:
    text = folder.build("-DPLANTED=option", says=f"cmake --preset release -DCMAKE_PREFIX_PATH={folder.prefix}")
    for name in ARCHIVES:
        installed = folder.prefix / "include" / name
        check(installed.is_file() and installed.read_text() == "Release option", f"{name} is installed", text)
    for name in ("kokkos", "oneDNN"):
        check(f"no archive of {name}: not built" in text, f"{name} is optional", text)

    folder.add("fmt-11.0.0.tar.gz", "CMakeLists.txt")
    folder.build(code=65, says="more than one archive of fmt")
    for version in ("10.2.1", "11.0.0"):
        (folder.archives / f"fmt-{version}.tar.gz").unlink()
    (folder.archives / "xxHash-0.8.2.tar.gz").unlink()
    folder.build(code=65, says="fmt-<version>.tar.gz xxHash-<version>.tar.gz")

    folder.add("xxHash-0.8.2.tar.gz", "CMakeLists.txt")
    folder.add("fmt-10.2.1.tar.gz", "CMakeLists.txt")
    folder.build(code=65, says="has no cmake_unofficial/CMakeLists.txt")
    (folder.archives / "fmt-10.2.1.tar.gz").write_bytes(b"\x1f\x8bno archive")
    folder.build(code=65, says="cannot be unpacked")
    folder.add("fmt-10.2.1.tar.gz", "CMakeLists.txt", "message(FATAL_ERROR planted)\n")
    check("planted" in folder.build(code=71, says="fmt-10.2.1.tar.gz cannot be built"), "the lines of cmake are shown")

expect(SCRIPT, code=64, says=["usage: jobscripts/build_libraries.sh"])
print("build_libraries: passed")
