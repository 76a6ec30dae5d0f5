#!/usr/bin/env python3
# ranks: 1
# timeout: 120
"""A program on a processor older than the one that it is compiled for says so and ends with 71.

    test_processor.py <folder of the programs>

An instruction set that no processor has today (XOP) is planted into the table of those that are needed; where qemu is
there, the program itself runs on an old processor.
"""
import json
import os
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

from runs import check, program
from skips import skip

build = Path(program).parents[1]
commands = [entry for entry in json.loads((build / "compile_commands.json").read_text())
            if "/apps/processor/" in entry["file"]]
if os.uname().machine != "x86_64":
    skip("the check is of x86-64")


def run(words):
    return subprocess.run(words, text=True, capture_output=True, timeout=100)


def linked_with(scratch, *options):
    """A program of nothing but the check, its sources compiled as the build does and with these options."""
    objects = []
    for entry in commands:
        words = shlex.split(entry["command"]) + list(options)
        objects.append(scratch / (Path(entry["file"]).stem + ".o"))
        words[words.index("-o") + 1] = str(objects[-1])
        done = subprocess.run(words, cwd=entry["directory"], text=True, capture_output=True)
        check(done.returncode == 0, "the check compiles", done.stderr)
    main = scratch / "main.cpp"
    main.write_text("int main() {}\n")
    compiler = next(word for word in shlex.split(commands[0]["command"]) if "ccache" not in word)
    sanitizers = ["-fsanitize=address,undefined"] if os.environ.get("NANOTRON_SANITIZE") == "ON" else []
    done = run([compiler, main, *objects, *sanitizers, "-o", scratch / "main"])
    check(done.returncode == 0, "and links", done.stderr)
    return run([scratch / "main"])


check(len(commands) == 2, "the check has two sources")
with tempfile.TemporaryDirectory(prefix="nanotron_processor_") as folder:
    plain, planted = linked_with(Path(folder)), linked_with(Path(folder), "-D__XOP__=1")
check(plain.returncode == 0, "it lets a program run where it was built", plain.stderr)
check(planted.returncode == 71, f"a processor without XOP: 71, not {planted.returncode}", planted.stderr)
check("a processor without xop\n" in planted.stderr and "NANOTRON_ARCH" in planted.stderr, "and what is missing", planted.stderr)
done = run(["nm", "-C", program])
check("check_processor" in done.stdout, "the program has the check")
qemu = shutil.which("qemu-x86_64")
if qemu and "-march=native" in commands[0]["command"] and "avx512f" in Path("/proc/cpuinfo").read_text():
    done = run([qemu, "-cpu", "Haswell", program, "--version"])
    check(done.returncode == 71, f"nanotron_hpc without AVX-512: 71, not {done.returncode}", done.stderr)
    check(" avx512f " in done.stderr, "and what is missing", done.stderr)
print("processor: a program that is not for it ends with 71 and says what is missing")
