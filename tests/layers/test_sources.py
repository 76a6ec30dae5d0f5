#!/usr/bin/env python3
# timeout: 120
"""Which sources a layer is made of: those in host/, gpu/, cuda/, hip/ or lt/ by the kind of build, wherever the checkout lies.

    test_sources.py <folder of the programs>
"""
import subprocess
import sys
import tempfile
from pathlib import Path

TARGETS = Path(__file__).resolve().parents[2] / "cmake/NanotronTargets.cmake"
PROJECT = f"""
cmake_minimum_required(VERSION 3.25)
project(sources LANGUAGES CXX)
function(nanotron_precompile target)
endfunction()
add_library(nanotron_options INTERFACE)
add_library(nanotron::options ALIAS nanotron_options)
include("{TARGETS}")
nanotron_add_layer(one)
get_target_property(sources nanotron_one SOURCES)
file(WRITE "${{PROJECT_BINARY_DIR}}/sources" "${{sources}}")
"""
FILES = ("both.cpp", "room/both.cpp", "room/ghost/both.cpp",
         *(f"{place}{name}/of_{name}.cpp" for place in ("", "room/") for name in ("host", "gpu", "cuda", "hip", "lt")))
KEPT = {"none": {"host"}, "cuda": {"gpu", "cuda", "lt"}, "hip": {"gpu", "hip"},
        "hip -DNanotronHipblaslt_FOUND=1": {"gpu", "hip", "lt"}, "hip -DNANOTRON_EMULATE_GPU=hip": {"gpu", "hip", "lt"}}


def sources_of(checkout, gpu):
    checkout.mkdir(parents=True)
    (checkout / "CMakeLists.txt").write_text(PROJECT)
    for name in FILES:
        path = checkout / "src/one" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    done = subprocess.run(["cmake", "-S", checkout, "-B", checkout / "build", *f"-DNANOTRON_GPU={gpu}".split()],
                          text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    if done.returncode != 0:
        sys.exit(f"FAILED: cmake in {checkout}\n{done.stdout}")
    text = (checkout / "build/sources").read_text()
    found = [] if text.endswith("-NOTFOUND") else text.split(";")
    return sorted(str(Path(name).relative_to(checkout / "src/one")) for name in found)


def main():
    with tempfile.TemporaryDirectory(prefix="nanotron_sources_") as folder:
        for place in ("plain", "cuda/host", "gpu/hip"):
            for gpu, kept in KEPT.items():
                found = sources_of(Path(folder).resolve() / place / gpu, gpu)
                expected = sorted(name for name in FILES if Path(name).stem in {f"of_{k}" for k in kept} | {"both"})
                if found != expected:
                    sys.exit(f"FAILED: in {place}, GPU {gpu}: expected {expected}, found {found}")
    print("sources: by the folders below the layer, not by those above the checkout")
    return 0


if __name__ == "__main__":
    sys.exit(main())
