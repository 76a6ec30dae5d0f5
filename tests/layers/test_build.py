#!/usr/bin/env python3
# timeout: 120
"""What a build is made of: precompiled headers with the flags of those that use them, programs that look for libraries in
named folders only.

    test_build.py <folder of the programs>

A compiler may refuse a precompiled header made with other flags, and says nothing but a warning: the build is slow. An
empty folder in a RUNPATH is the one that a program is started in, where anybody's library may lie.
"""
import itertools
import json
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

FLAG = re.compile(r"-(O|f|m|g|std=)")


def unusable_headers(commands):
    """commands: of compile_commands.json."""
    users = {}
    for entry in commands:
        words = shlex.split(entry["command"])
        for word, header in itertools.pairwise(words):
            if word == "-include" and "cmake_pch" in header:
                flags = " ".join(word for word in words if FLAG.match(word))
                users.setdefault(header, {}).setdefault(flags, []).append(entry["file"])
    return [f"{header}: used with different flags: " + "; ".join(f"{flags}: {files[0]}" for flags, files in sorted(by_flags.items()))
            for header, by_flags in users.items() if len(by_flags) > 1]


def searched_folders(program):
    """Of its RPATH and RUNPATH."""
    done = subprocess.run(["readelf", "-d", program], text=True, capture_output=True, check=True)
    return [folder for path in re.findall(r"\((?:RUNPATH|RPATH)\).*\[(.*)\]", done.stdout) for folder in path.split(":")]


def searches_elsewhere(program):
    return [f"{program}: looks for libraries in {folder or 'the folder that it is started in'!r}"
            for folder in searched_folders(program) if not folder.startswith(("/", "$ORIGIN"))]


def programs_of(build):
    for folder in (build / "bin", build / "tests"):
        for path in sorted(folder.rglob("*")):
            if path.is_file() and path.stat().st_mode & 0o100 and path.read_bytes()[:4] == b"\x7fELF":
                yield path


def self_test(compiler):
    def command(name, flags):
        return {"file": name, "command": f"g++ {flags} -Winvalid-pch -include /b/cmake_pch.hxx -c {name}"}
    problems = []
    for flags, expected in (("-O3", 0), ("-O3 -O1", 1)):
        found = unusable_headers([command("a.cpp", "-O3"), command("b.cpp", flags)])
        if len(found) != expected:
            problems.append(f"self-test: a header for -O3, used with {flags}: {found}")
    with tempfile.TemporaryDirectory() as scratch:
        source, program = Path(scratch) / "a.cpp", Path(scratch) / "a"
        source.write_text("int main() {}\n")
        for path, expected in (("/usr/lib", 0), ("/usr/lib:", 1), ("lib", 1)):
            subprocess.run([compiler, source, f"-Wl,-rpath,{path}", "-o", program], check=True)
            if len(searches_elsewhere(program)) != expected:
                problems.append(f"self-test: an rpath {path!r}: {searches_elsewhere(program)}")
    return problems


def main():
    build = Path(sys.argv[1]).resolve().parent
    programs = list(programs_of(build))
    if not programs:
        return f"FAILED: there are no programs in {build}"
    problems = self_test("g++") + unusable_headers(json.loads((build / "compile_commands.json").read_text()))
    for program in programs:
        problems += searches_elsewhere(program)
    print("\n".join(problems) if problems else f"build: {len(programs)} programs, and the precompiled headers, as they should be")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
