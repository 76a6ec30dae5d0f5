#!/usr/bin/env python3
# timeout: 60
"""spack.yaml and the package in packaging/spack, which no test can install, say what CMake asks for: packages, versions,
C++ standard, GPU. The package has the versions of spack.yaml.

    test_spack.py <folder of the programs>
"""
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# Spack's names, by what find_package is asked for.
PACKAGES = {"MPI": "mpi", "NanotronHdf5": "hdf5", "NanotronKokkos": "kokkos", "NanotronCblas": "openblas",
            "NanotronLapack": "openblas",
            "NanotronDnnl": "onednn", "fmt": "fmt", "nlohmann_json": "nlohmann-json", "CLI11": "cli11",
            "CUDAToolkit": "cuda", "NanotronNccl": "nccl", "NanotronCudnn": "cudnn", "NanotronRccl": "rccl",
            "NanotronRocblas": "rocblas", "NanotronHipblaslt": "hipblaslt", "GTest": "googletest", "Threads": ""}


def cmake_text():
    files = [ROOT / "CMakeLists.txt", ROOT / "cmake/NanotronDependencies.cmake", ROOT / "cmake/NanotronCuda.cmake"]
    return "\n".join(file.read_text() for file in files)


def specs():
    """(name, whole spec), those in comments included."""
    found = re.findall(r"^ +(?:# )?- (([a-z0-9-]+)[^#\n]*)", (ROOT / "spack.yaml").read_text(), re.MULTILINE)
    return [(name, text.strip()) for text, name in found]


def package_specs():
    """{name: [specs]} of the package's depends_on."""
    text = (ROOT / "packaging/spack/spack_repo/nanotron/packages/nanotron_hpc/package.py").read_text()
    found = {}
    for spec in re.findall(r'depends_on\("([^"]+)"', text):
        found.setdefault(re.match(r"[a-z0-9-]+", spec).group(), []).append(spec)
    return found


def package_mistakes(listed):
    """Each library of spack.yaml is in the package, with the same versions."""
    package, mistakes = package_specs(), []
    for name, text in listed:
        versions = re.search(r"@[\d.:]+", text)
        if name in ("ninja", "mpi") or "@5:" in text or text.startswith("cmake@3.25"):
            continue  # of a choice that the package does not make
        specs = package.get(name, [])
        if not specs or (versions and not any(versions.group() in spec for spec in specs)):
            wanted = name + (versions.group() if versions else "")
            mistakes.append(f"package.py: expected {wanted}, as spack.yaml, found {specs}")
    return mistakes


def one(pattern, text):
    found = re.search(pattern, text)
    return found.group(1) if found else f"nothing like {pattern}"


def main():
    mistakes = []
    cmake, listed = cmake_text(), specs()
    names = {name for name, _ in listed}
    asked = set(re.findall(r"find_package\((\w+)", cmake))
    mistakes += [f"test_spack.py: no find_package({name})" for name in sorted(set(PACKAGES) - asked)]
    for wanted in sorted(asked):
        if wanted not in PACKAGES:
            mistakes.append(f"find_package({wanted}): test_spack.py knows no Spack package for it")
        elif PACKAGES[wanted] and PACKAGES[wanted] not in names:
            mistakes.append(f"find_package({wanted}): spack.yaml has no {PACKAGES[wanted]}")

    standard = one(r"set\(CMAKE_CXX_STANDARD (\d+)\)", cmake)
    architectures = set()
    for name, text in listed:
        if name == "kokkos" and f"cxxstd={standard}" not in text:
            mistakes.append(f"{text}: expected cxxstd={standard}, as CMakeLists.txt")
        if name == "kokkos" and "+cuda" in text and "@4" in text and "+cuda_lambda" not in text:
            mistakes.append(f"{text}: expected +cuda_lambda, which Spack switches off and kernels are made of")
        if name == "nccl" or "+cuda" in text:
            architectures.add(one(r"cuda_arch=(\d+)", text))
    default = one(r'CMAKE_CUDA_ARCHITECTURES (\d+)', cmake)
    if architectures != {default}:
        mistakes.append(f"cuda_arch: expected {default} everywhere, as NanotronCuda.cmake, found {sorted(architectures)}")

    texts = [text for _, text in listed]
    for start in ("cmake@" + one(r"cmake_minimum_required\(VERSION ([\d.]+)\)", cmake) + ":",
                  "nccl@" + one(r"find_package\(NanotronNccl ([\d.]+)", cmake) + ":"):
        if not any(text.startswith(start) for text in texts):
            mistakes.append(f"expected {start}, the version that CMake asks for")
    if not any(text.startswith("hdf5") and "+mpi" in text for text in texts):
        mistakes.append("expected hdf5+mpi")
    mistakes += package_mistakes(listed)
    print("\n".join(mistakes) or f"{len(listed)} specs")
    return 1 if mistakes else 0


if __name__ == "__main__":
    sys.exit(main())
