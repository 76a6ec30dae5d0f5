#!/usr/bin/env python3
# timeout: 120
"""tests/gpu.sh --bundle of programs that only print: what it refuses, what it carries, where its programs look for libraries.

    test_gpu_bundle.py <folder of the programs>
"""
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from runs import check, expect, program, root
from skips import need_tools, skip

# The programs of the bundle, which are one: it says how it was called and what it was built with, and calls a library that
# only a machine with a GPU has.
SOURCE = r"""
#include <stdio.h>
int ncclGetVersion(int* version);
int ncclGroupStart(void);
int main(int count, char** words) {
  int version = 0;
  if (count == 1) return ncclGroupStart();
  ncclGetVersion(&version);
  printf("%s\nnccl: %d\ncudnn: CUDNN\n", words[0], version);
}
"""


def build(folder, cudnn):
    """A build folder: programs with the libraries of ours for files, and NCCL."""
    (folder / "bin").mkdir(parents=True)
    (folder / "nccl.c").write_text("int ncclGetVersion(int* v) { return *v = 23007, 0; }\nint ncclGroupStart(void) { return 0; }\n")
    (folder / "main.c").write_text(SOURCE.replace("CUDNN", cudnn))
    expect("cc", "-shared", "-fPIC", "-Wl,-soname,libnccl.so.2", "-o", folder / "libnccl.so.2", folder / "nccl.c")
    linked = subprocess.run(["ldd", program], text=True, capture_output=True, check=True).stdout
    files = [line.split()[2] for line in linked.splitlines() if "libhdf5" in line]
    check(files, "the program has HDF5", linked)
    expect("cc", "-Wl,--no-as-needed", f"-Wl,-rpath,{folder}", "-o", folder / "bin/nanotron_gpu_programs", folder / "main.c",
        folder / "libnccl.so.2", *files)
    return folder


def environment_of(bundle, names, **environment):
    """What the bundle's environment.sh sets."""
    values = " ".join(f'"${name}"' for name in names)
    text = expect("bash", "-c", f"source {bundle}/environment.sh; printf '%s\\n' {values}", **environment)
    return text.splitlines()


# Configures: an option for optimisation that nvcc does not know ends the build. Builds: what the host compiler of nvcc defines.
CMAKE = r"""#!/usr/bin/env bash
if [ "$1" = --preset ]; then
  for word in "$@"; do case "$word" in *" -Os"* | *"=-Os"*) echo "nvcc fatal: 's': expected a number"; exit 1 ;; esac; done
  [[ "$*" == *REQUIRE_FIND_PACKAGE_NanotronCudnn=ON* ]] || { echo 'cuDNN is not asked for'; exit 1; }
  echo configured
else
  "$NVCC_WRAPPER_DEFAULT_COMPILER" -O2 -dM -E -x c++ - </dev/null | grep __OPTIMIZE_SIZE__
  exit 1
fi
"""


def building(work):
    """The host's code is compiled for its size; nvcc itself has no such option."""
    tools = work / "tools"
    tools.mkdir()
    (tools / "cmake").write_text(CMAKE)
    (tools / "cmake").chmod(0o755)
    copy = work / "source/tests"  # whose build folder is nobody's
    shutil.copytree(root / "tests/gpu", copy / "gpu")
    shutil.copy(root / "tests/gpu.sh", copy)
    expect("bash", copy / "gpu.sh", "--bundle", work / "built", code=1, says=["configured", "__OPTIMIZE_SIZE__ 1"],
        PATH=f"{tools}:{os.environ['PATH']}", CUDACXX="false")


def bundles(work):
    expect("bash", root / "tests/gpu.sh", "--bundle", work / "without", "--build", build(work / "old", "none: built without it"), code=1,
        says=["CUDNN_FRONTEND_ROOT"])
    check(not (work / "without").exists(), "no bundle without cuDNN")

    bundle = work / "bundle"
    expect("bash", root / "tests/gpu.sh", "--bundle", bundle, "--build", build(work / "build", "9.28.1"), says=["in all, of 50"])
    libraries = {path.name for path in (bundle / "lib").iterdir()}
    check(not any(name.startswith(("libssl", "libgnutls")) for name in libraries), "HDF5's access to the web is left out", str(libraries))
    check((bundle / "lib/absent/libnccl.so.2").is_dir() and "libnccl.so.2" not in libraries, "NCCL is the machine's", str(libraries))
    check("libcudnn.so.9" in (bundle / "lib/opened").read_text(), "cuDNN is looked for")

    # A library that is opened while the program runs is found like one that it is linked to, and told when it is nowhere.
    package = work / "packages/nvidia/cudnn/lib"
    package.mkdir(parents=True)
    (package / "libnanotron_opened.so.9").write_text("")
    (bundle / "lib/opened").write_text("libnanotron_opened.so.9\nlibnanotron_nowhere.so.9\n")
    path, missing = environment_of(bundle, ("NANOTRON_LIBRARY_PATH", "NANOTRON_NOT_OPENED"), PYTHONPATH=str(work / "packages"))
    check(str(package) in path.split(":"), "cuDNN in a Python package is on the path of libraries", path)
    check(missing == "libnanotron_nowhere.so.9", "what is nowhere is told", missing)

    here = {"NANOTRON_LIBRARY_PATH": f"{bundle}/lib:{bundle}/lib/absent/libnccl.so.2"}
    for name in ("nanotron_hpc", "nanotron_bench", "nanotron_generate", "nanotron_gpu_tests"):
        expect(bundle / "bin" / name, "--build-info", says=[f"libexec/{name}\n", "nccl: 0"], **here)
    expect(bundle / "bin/nanotron_hpc", code=71, says=["libnccl.so.2 is not on this machine"], **here)
    here = {"NANOTRON_LIBRARY_PATH": f"{bundle}/lib:{work}/build"}
    expect(bundle / "bin/nanotron_hpc", "--build-info", says=["nccl: 23007"], **here)


def configuring(work):
    """The build of a bundle ends at once where a header is missing."""
    script = work / "find.cmake"
    script.write_text(f'cmake_policy(VERSION 3.22)\nset(CMAKE_MODULE_PATH "{root}/cmake")\nfind_package(NanotronCudnn)\n')
    (work / "cudnn/include").mkdir(parents=True)
    (work / "cudnn/include/cudnn.h").write_text("")
    command = ["cmake", f"-DCUDNN_ROOT={work}/cudnn", "-DCMAKE_FIND_USE_CMAKE_SYSTEM_PATH=OFF",
               "-DCMAKE_REQUIRE_FIND_PACKAGE_NanotronCudnn=ON"]
    expect(*command, "-P", script, code=1, says=["CUDNN_FRONTEND_ROOT", "NANOTRON_CUDNN_FRONTEND_INCLUDE_DIR"])
    (work / "cudnn/include/cudnn_frontend.h").write_text("")
    expect(*command, f"-DCUDNN_FRONTEND_ROOT={work}/cudnn", "-P", script, says=["Found NanotronCudnn"])


if os.environ.get("NANOTRON_MPI_FLAVOUR", "openmpi") != "openmpi":
    skip("a bundle carries Open MPI")
need_tools("cc", "cmake", "ompi_info", "mpiexec", "orted", "strip", "readelf")
with tempfile.TemporaryDirectory(prefix="nanotron_bundle_") as name:
    configuring(Path(name))
    building(Path(name))
    bundles(Path(name))
