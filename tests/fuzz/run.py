#!/usr/bin/env python3
"""Fuzzes what reads foreign bytes: builds the targets with clang, replays their inputs, then lets libFuzzer go on.

    tests/fuzz/run.py [--seconds N] [--keep FOLDER] [--no-build] [TARGET...]

N seconds for each target (300). NANOTRON_SEED, printed, is the seed. FOLDER (build/fuzz/found) keeps the inputs that
were found and, below <target>/failures, those that failed. Where the innermost call is one of libhdf5, they lie in
<target>/of_hdf5 and are no failure of ours (SECURITY.md). Exit code 1 where any other input fails, 77 without clang.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build/fuzz"
CORPUS = ROOT / "tests/fuzz/corpus"
TARGETS = sorted(p.stem.removeprefix("fuzz_") for p in (ROOT / "tests/fuzz").glob("fuzz_*.cpp"))
LONGEST = {"deck": 12288, "manifest": 4096, "copy_table": 65536}  # bytes; of HDF5 files:
LONGEST_FILE = 65536
LIMITS = ["-rss_limit_mb=2048", "-timeout=20"]
RUNTIME = re.compile(r"^(__asan|__interceptor|__sanitizer|__lsan|__ubsan|fuzzer::|operator (new|delete)|(m|c|re)alloc$|free$|"
                     r"mem|str|raise$|abort$|__pthread_kill|std::|nanotron::fuzz::broken)")
FRAME = re.compile(r"^ *#\d+ 0x[0-9a-f]+ +(?:in (.*?) )?(\S+)(?: \(BuildId: .*\))?$")


def has_clang():
    """Whether clang can link a program of libFuzzer's."""
    main = b'extern "C" int LLVMFuzzerTestOneInput(const unsigned char*, unsigned long) { return 0; }'
    command = ["clang++", "-x", "c++", "-", "-fsanitize=fuzzer", "-o", os.devnull]
    return shutil.which("clang++") and subprocess.run(command, input=main, capture_output=True).returncode == 0


def build():
    for command in (["cmake", "--preset", "fuzz", "-DNANOTRON_BUILD_TESTS=ON"], ["cmake", "--build", "--preset", "fuzz"]):
        subprocess.run(command, cwd=ROOT, check=True)


def environment(temporary):
    leaks = f"suppressions={ROOT}/tests/support/lsan.supp:print_suppressions=0"
    return os.environ | {
        "ASAN_OPTIONS": "detect_leaks=1:allocator_may_return_null=1",
        "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
        "LSAN_OPTIONS": leaks,
        "TMPDIR": str(temporary),
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "OMPI_MCA_pml": "ob1",
    }


def innermost(report):
    """The innermost call in a report that is none of the sanitizers' or the C library's: (function, module or place)."""
    for line in report.splitlines():
        frame = FRAME.match(line)
        if frame and not RUNTIME.match(frame[1] or "") and "/libc.so" not in frame[2]:
            return frame[1] or "?", frame[2]
    return "?", "?"


def replay(target, file, env):
    """None if the input runs well, else what the report says of it, and whether it ended inside of libhdf5."""
    run = subprocess.run([BUILD / f"tests/fuzz/fuzz_{target}", *LIMITS, file], env=env, capture_output=True, text=True,
                         errors="replace", timeout=300)
    if run.returncode == 0:
        return None
    report = run.stderr
    function, place = innermost(report)
    lines = [line for line in report.splitlines() if line.startswith(("fuzz: ", "SUMMARY: ", "terminate"))]
    return f"{lines[0] if lines else '?'} in {function} {place}", "libhdf5" in place and not any(line.startswith("fuzz: ") for line in lines)


def fuzz(target, options, seed):
    """The number of failures."""
    folder = options.keep / target
    found, failures, of_hdf5 = (folder / name for name in ("inputs", "failures", "of_hdf5"))
    artifacts, temporary = folder / "artifacts", folder / "tmp"
    for path in (artifacts, temporary):
        shutil.rmtree(path, ignore_errors=True)
    for path in (found, failures, of_hdf5, artifacts, temporary):
        path.mkdir(parents=True, exist_ok=True)
    env = environment(temporary)
    failed = 0

    def judge(file, name):
        nonlocal failed
        result = replay(target, file, env)
        if result is None:
            return
        text, is_of_hdf5 = result
        shutil.copy(file, (of_hdf5 if is_of_hdf5 else failures) / name)
        failed += not is_of_hdf5
        print(f"{target}: {'libhdf5' if is_of_hdf5 else 'FAILED'}: {name}: {text}", flush=True)

    for file in sorted((CORPUS / target).iterdir()):
        judge(file, file.name)
    command = [BUILD / f"tests/fuzz/fuzz_{target}", *LIMITS, "-fork=1", "-ignore_crashes=1", "-ignore_timeouts=1",
               "-ignore_ooms=1", f"-max_total_time={options.seconds}", f"-seed={seed}",
               f"-max_len={LONGEST.get(target, LONGEST_FILE)}", f"-artifact_prefix={artifacts}/"]
    if target == "deck":
        subprocess.run([BUILD / "tests/fuzz/nanotron_fuzz_corpus", temporary], env=env, check=True)
        command.append(f"-dict={temporary}/deck.dict")
    began = time.monotonic()
    log = folder / "log"
    with open(log, "w") as output:
        subprocess.run([*command, found, CORPUS / target], env=env, stdout=output, stderr=subprocess.STDOUT)
    told = log.read_text(errors="replace").splitlines()
    progress = [line for line in told if re.match(r"#\d+: cov:", line)]
    ended = any(line.startswith("INFO: exiting: ") for line in told)  # with the code of its last process, whatever that met
    for file in sorted(artifacts.iterdir()):
        judge(file, file.name)
    shutil.rmtree(temporary, ignore_errors=True)
    print(f"{target}: {time.monotonic() - began:.0f} s, {len(list(artifacts.iterdir()))} ended, {failed} failed; "
          f"{progress[-1] if progress else 'nothing was run'}{'' if ended else ', not to the end, see ' + str(log)}", flush=True)
    return failed + (not progress or not ended)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=300)
    parser.add_argument("--keep", type=Path, default=BUILD / "found")
    parser.add_argument("--no-build", action="store_true")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=", ".join(TARGETS))
    options = parser.parse_args()
    unknown = set(options.targets) - set(TARGETS)
    if unknown:
        parser.error(f"no target {', '.join(sorted(unknown))}: {', '.join(TARGETS)}")
    if not has_clang():
        print("skipped: clang++ with libFuzzer is not here (Debian: clang libclang-rt-dev)")
        return 77
    seed = int(os.environ.get("NANOTRON_SEED", time.time())) % 2**31
    print(f"NANOTRON_SEED={seed}, {options.seconds} s for each target, in {options.keep}", flush=True)
    if not options.no_build:
        build()
    failed = sum(fuzz(target, options, seed) for target in options.targets or TARGETS)
    print(f"{failed} failed" if failed else "nothing failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
