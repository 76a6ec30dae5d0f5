#!/usr/bin/env python3
# timeout: 600
# ranks: 2
"""Compiles sources with -Wpedantic and warnings as errors, by the compiler of the build and, in some layers, by clang.

    test_compilers.py <folder of the programs> [--root <source tree>] [--jobs <n>]

Flags are those of the build (compile_commands.json beside the folder of the programs), without the precompiled header. A
sixtieth of the sources of src, with NANOTRON_FULL a fifth; another one for the next NANOTRON_SEED. Skipped (77) in a
sanitizer build, whose sources are the same.
"""
import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "support"))
from skips import left_out, skip  # noqa: E402

WARNINGS = ("-Wall", "-Wextra", "-Wpedantic", "-Werror")
CLANG_LAYERS = ("base", "deck", "comm", "tensor", "kernels", "io")  # samples by clang; other layers were not tried
CLANG = ("-Wno-unknown-warning-option", "-Wno-pass-failed", "-Wno-mismatched-tags")  # GCC's flags; cmake/NanotronOptions.cmake


def flags_of(command):
    """Macros, include folders, language, processor: all but the warnings."""
    words, flags, position = shlex.split(command), [], 1
    while position < len(words):
        word = words[position]
        step = 2 if word in ("-isystem", "-I", "-D") else 1
        if word.startswith(("-I", "-D", "-isystem", "-std=", "-m", "-f")):
            flags += words[position:position + step]
        position += step
    return flags


def compile_source(compiler, source, flags):
    extra = CLANG if "clang" in Path(compiler).name else ()
    result = subprocess.run([compiler, *flags, *WARNINGS, *extra, "-fsyntax-only", str(source)],
                            capture_output=True, text=True, check=False)
    return [] if result.returncode == 0 else [f"{source}: {Path(compiler).name} objects\n{result.stderr}"]


def check(compilers, sources, jobs):
    """compilers: of a source (path, flags)."""
    work = [(compiler, *source) for source in sources for compiler in compilers(source[0])]
    with ThreadPoolExecutor(jobs) as pool:
        return [problem for problems in pool.map(lambda w: compile_source(*w), work) for problem in problems]


def self_test(compilers):
    """An array of variable length is not C++: each compiler must refuse it, and accept one of a constant length."""
    with tempfile.TemporaryDirectory() as scratch:
        good, bad = Path(scratch) / "good.cpp", Path(scratch) / "bad.cpp"
        good.write_text("int f() { int a[3] = {}; return a[0]; }\n")
        bad.write_text("int f(int n) { int a[n]; a[0] = n; return a[0]; }\n")
        problems = check(lambda _: compilers, [(good, []), (bad, [])], 2)
    if len(problems) == len(compilers) and all("bad.cpp" in problem for problem in problems):
        return []
    return [f"self-test: expected each compiler to refuse exactly bad.cpp, found {problems}"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("programs", type=Path)
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parents[2])
    parser.add_argument("--jobs", type=int, default=min(os.cpu_count() or 1, 8))
    arguments = parser.parse_args()
    if os.environ.get("NANOTRON_SANITIZE") == "ON":
        skip("other builds check them")
    entries = sorted((e for e in json.loads((arguments.programs.parent / "compile_commands.json").read_text())
                      if Path(e["file"]).is_relative_to(arguments.root / "src")), key=lambda e: e["file"])
    if not entries:
        return f"FAILED: there are no sources below {arguments.root / 'src'} in compile_commands.json"
    own = shlex.split(entries[0]["command"])
    compilers = [next(word for word in own if "ccache" not in Path(word).name)]
    if "nvcc" in compilers[0] or "kokkos_launch" in compilers[0]:
        skip("clang does not know the flags of nvcc")
    if "clang" not in Path(compilers[0]).name:
        if shutil.which("clang++"):
            compilers.append("clang++")
        else:
            left_out("no clang++: only the compiler of the build")
    share = 5 if "NANOTRON_FULL" in os.environ else 60
    chosen = entries[int(os.environ.get("NANOTRON_SEED", "0")) % share::share]
    layers = {arguments.root / "src" / layer for layer in CLANG_LAYERS}
    problems = self_test(compilers) + check(
        lambda source: compilers if layers & set(Path(source).parents) else compilers[:1],
        [(e["file"], flags_of(e["command"])) for e in chosen], arguments.jobs)
    names = " and ".join(Path(compiler).name for compiler in compilers)
    print("\n".join(problems) if problems else f"compilers: {len(chosen)} of {len(entries)} sources without a warning by {names}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
