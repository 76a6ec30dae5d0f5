#!/usr/bin/env python3
"""Losses and gradient norms of the same runs of two builds: of this machine, and for Arm under qemu.

    same_numbers.py <build folder of this machine> <build folder of the preset aarch64> [--sysroot <folder>] [--bits]

tests/regression/test_numbers.cpp runs in both. In fp64 they agree to 1e-13 of each number. Differences of the runs with
precision%reproducible = 'layout' are printed; with --bits they must be none, in fp64, fp32 and bf16. Ends with 1 if a
bound is exceeded or a run is missing.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("native", type=Path)
parser.add_argument("arm", type=Path)
parser.add_argument("--sysroot", type=Path, default=Path(os.environ.get("NANOTRON_SYSROOT", Path(__file__).parents[2] / "build/sysroot-aarch64")))
parser.add_argument("--bits", action="store_true")
options = parser.parse_args()
TOLERANCE = 1e-13


def numbers_of(build, emulator, folder):
    """{run: {"losses": [...], "grad_norms": [...]}} of a build."""
    report = Path(folder) / f"{build.name}.json"
    done = subprocess.run([*emulator, build / "tests/regression/test_regression_numbers", f"--gtest_output=json:{report}"],
                          text=True, capture_output=True)
    if done.returncode != 0:
        sys.exit(f"{build}: test_regression_numbers ended with {done.returncode}\n{done.stdout}{done.stderr}")
    runs = {}
    for suite in json.loads(report.read_text())["testsuites"]:
        for run in suite["testsuite"]:
            runs[run["name"].split("/")[-1]] = {kind: [float.fromhex(x) for x in run[kind].split()]
                                                for kind in ("losses", "grad_norms")}
    return runs


def difference(ours, theirs):
    """The largest one, relative to each number."""
    return max(abs(x - y) / abs(x) if x != y else 0.0 for x, y in zip(ours, theirs, strict=True))


with tempfile.TemporaryDirectory(prefix="nanotron_numbers_") as scratch:
    native = numbers_of(options.native, [], scratch)
    arm = numbers_of(options.arm, ["qemu-aarch64-static", "-cpu", "max", "-L", options.sysroot], scratch)
if not native or native.keys() != arm.keys():
    sys.exit(f"other runs: {sorted(native)} and {sorted(arm)}")
failed = False
for run, ours in native.items():
    bound = TOLERANCE
    if run.endswith("_layout"):
        bound = 0.0 if options.bits else float("inf")
    for kind, values in ours.items():
        found = difference(values, arm[run][kind])
        good = found <= bound
        failed = failed or not good
        print(f"{'good' if good else 'DIFFERENT'}: {run} {kind}: largest relative difference {found:.1e}, "
              f"{sum(x == y for x, y in zip(values, arm[run][kind], strict=True))} of {len(values)} equal in all bits")
sys.exit(1 if failed else 0)
