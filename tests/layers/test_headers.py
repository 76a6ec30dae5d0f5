#!/usr/bin/env python3
# timeout: 600
# ranks: 2
"""Compiles every header of include/ and tests/support/ alone.

    test_headers.py <folder of the programs> [--root <source tree>] [--jobs <n>]

Compiler, definitions and include folders are those of the build (compile_commands.json beside the
folder of the programs), without the precompiled header. With NANOTRON_SEED and without NANOTRON_FULL a
sixteenth of them, another one for the next seed. Skipped (77) in a sanitizer build, whose headers are the
same.
"""
import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "support"))
from skips import skip  # noqa: E402


def build_flags(build):
    """The compiler, and the definitions and include folders of all sources, each once."""
    compiler, flags = "g++", []
    for entry in json.loads((build / "compile_commands.json").read_text()):
        words = shlex.split(entry["command"])
        if "nvcc" in words[0] or "kokkos_launch" in words[0]:
            continue
        compiler = words[0]
        position = 1
        while position < len(words):
            word = words[position]
            step = 2 if word in ("-isystem", "-I", "-D") else 1
            if word.startswith(("-I", "-D", "-isystem", "-std=")):
                flag = tuple(words[position:position + step])
                if flag not in flags:
                    flags.append(flag)
            position += step
    return compiler, [word for flag in flags for word in flag]


def compile_alone(compiler, flags, header):
    # As the include of an empty source: as a main file its #pragma once would be warned about.
    command = [compiler, *flags, "-fsyntax-only", "-Wall", "-Wextra", "-x", "c++",
               "-include", str(header), "/dev/null"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    return header, result.returncode, result.stderr


def check_headers(compiler, flags, headers, jobs):
    problems = []
    with ThreadPoolExecutor(jobs) as pool:
        for header, status, text in pool.map(lambda h: compile_alone(compiler, flags, h), headers):
            if status != 0:
                problems.append(f"{header}: does not compile alone\n{text}")
    return problems


def self_test(compiler, flags):
    """A header that needs another one first must be found, a complete one must not."""
    with tempfile.TemporaryDirectory() as scratch:
        good, bad = Path(scratch) / "good.hpp", Path(scratch) / "bad.hpp"
        good.write_text("#pragma once\n#include <string>\ninline std::string word;\n")
        bad.write_text("#pragma once\ninline std::string word;\n")
        problems = check_headers(compiler, flags, [good, bad], 2)
        if len(problems) == 1 and str(bad) in problems[0]:
            return []
        return [f"self-test: expected exactly bad.hpp to fail, found {problems}"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("programs", type=Path)
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parents[2])
    parser.add_argument("--jobs", type=int, default=min(os.cpu_count() or 1, 8))
    arguments = parser.parse_args()
    if os.environ.get("NANOTRON_SANITIZE") == "ON":
        skip("other builds check them")
    root = arguments.root
    compiler, flags = build_flags(arguments.programs.parent)
    headers = sorted((root / "include").rglob("*.hpp")) + sorted(
        (root / "tests/support").glob("*.hpp"))
    seed = os.environ.get("NANOTRON_SEED")
    if seed and "NANOTRON_FULL" not in os.environ:
        headers = headers[int(seed) % 16::16]
    if not headers:
        return f"FAILED: there are no headers in {root}"
    problems = self_test(compiler, flags) + check_headers(compiler, flags, headers, arguments.jobs)
    print("\n".join(problems) if problems else f"headers: {len(headers)} compile alone")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
