#!/usr/bin/env python3
# ranks: 4
# timeout: 300
"""Ranks that are stopped, killed, held by the file system, or make another call than the others: the run ends with exit
code 71 within its limit and ten seconds, on all ranks, and names the right one. A rank that is only slow ends nothing.

    test_hangs.py <folder of the programs>        NANOTRON_FULL (all cases) and NANOTRON_SEED (the time) choose
"""
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from faults import build, skip_under_sanitizers
from runs import Case, check, commands_of_ranks, mpiexec, program, ranks_of, wait_for

TIMEOUT = 2.0
FILES_TIMEOUT = 4.0  # disks stall by themselves
FILE_PATIENCE = 60.0  # seconds, of src/trainer/hang/hang_case.hpp
ALLOWED = 3.0  # times the timeout: at the start and with files
hanging_ranks = str(Path(sys.argv[1]).resolve().parent / "tests" / "integration" / "hanging_ranks")

# On the rank with FAULT: fsync of a checkpoint never returns. With NO_SHARED_MEMORY groups on one host use MPI.
PRELOAD = r"""
#include <sys/types.h>

static int meant(int descriptor, const char *fault) {
  const char *const wanted = getenv("FAULT");
  if (!wanted || strcmp(wanted, fault) != 0) return 0;
  const char *const path = path_of(descriptor);
  return strstr(path, "checkpoint.h5") != NULL && strstr(path, "step_00000005") == NULL;
}

int fsync(int descriptor) {
  REAL(fsync);
  while (meant(descriptor, "fsync")) pause();
  return real(descriptor);
}

int shm_open(const char *name, int flags, mode_t mode) {
  REAL(shm_open);
  if (!getenv("NO_SHARED_MEMORY") || strncmp(name, "/nanotron_", 10) != 0) return real(name, flags, mode);
  errno = ENOSPC;
  return -1;
}
"""

GRIDS = {
    "tp": ["parallel.tp=2", "parallel.dp=2"],
    "dp": ["parallel.tp=1", "parallel.dp=4"],
    "pp": ["parallel.tp=1", "parallel.pp=2", "parallel.dp=2"],
    "cp": ["parallel.tp=1", "parallel.cp=2", "parallel.dp=2"],
    "ep": ["parallel.tp=1", "parallel.ep=2", "parallel.dp=4", "moe.num_experts=4", "moe.moe_intermediate_size=24"],
    "zero": ["parallel.tp=2", "parallel.dp=2", "parallel.zero_stage=3"],
}
SHAPES = {"tp": (2, 1, 1, 2, 1), "dp": (2, 1, 1, 2, 1), "pp": (2, 2, 1, 1, 1), "cp": (2, 1, 2, 1, 1), "ep": (4, 1, 1, 1, 2),
          "world": (2, 1, 1, 2, 1)}  # dp, pp, cp, tp, ep


def wait_for_end(running, seconds, what):
    try:
        return running.communicate(timeout=seconds)[0]
    except subprocess.TimeoutExpired:
        running.kill()
        check(False, f"{what}: no end within {seconds:.0f} s", running.communicate()[0])


def check_verdict(what, code, text, folder, rank, began, limit, phrase=""):
    """rank: the one to be named."""
    took = time.time() - began
    check(code == 71, f"{what}: exit code {code}, not 71", text)
    found = re.search(r"error: the run hangs: rank (\d+) on \S+ is late|"
                      r"error: operations of ranks differ: rank (\d+) on \S+ does not", text)
    check(found, f"{what}: no verdict", text)
    named = int(found[1] or found[2])
    check(named == rank, f"{what}: rank {named} is named, not {rank}", text)
    check(phrase in text, f"{what}: the verdict does not say '{phrase}'", text)
    reports = "".join(file.read_text() for file in (folder / "hang").glob("rank_*.txt"))
    limit = max([limit, *map(float, re.findall(r"^idle\t\S+\t(\S+)", reports, re.M))])  # ten times its longest step, as each says
    check(took < limit + 10, f"{what}: {took:.1f} s, at most {limit:.0f} + 10", text)
    check((folder / "hang" / "verdict.txt").read_text() in text, f"{what}: verdict.txt", text)
    return f"{what}: {took:.1f} s of {limit:.0f} + 10"


def check_ended(case, what):
    end = time.time() + 5
    while ranks_of(case) and time.time() < end:
        time.sleep(0.05)
    check(not ranks_of(case), f"{what}: a rank is left behind")


def stepping(case, steps=5):
    """Waits until the run has done some steps."""
    wait_for(case.out / "run.log")
    end = time.time() + 60
    while f"step {steps:>7}/" not in (case.out / "run.log").read_text():
        check(time.time() < end, "the run does not begin", (case.out / "run.log").read_text())
        time.sleep(0.05)


def world_rank(process):
    for word in Path(f"/proc/{process}/environ").read_bytes().split(b"\0"):
        name, _, value = word.partition(b"=")
        if name in (b"OMPI_COMM_WORLD_RANK", b"PMI_RANK", b"PMIX_RANK"):
            return int(value)
    return -1


def run_of(grid, **keys):
    return Case("hang", **({"steps": 1000000, "run": f"hang_timeout = {TIMEOUT}", "checkpoint": "keep_last = 1"} | keys)), [
        word for key in GRIDS[grid] for word in ("--set", key)]


def signalled(grid, rank, number):
    """SIGSTOP, or SIGKILL under a launcher that does not notice."""
    name = signal.Signals(number).name
    what = f"{name} of rank {rank}, {grid}"
    case, arguments = run_of(grid, checkpoint="every_steps = 0")
    with case:
        shell = 'x() { "$@"; c=$?; if [ $c = 137 ]; then sleep 60; fi; exit $c; }; x "$@"'
        line = ["sh", "-c", shell, "sh", program, *arguments, str(case.deck)]
        running = subprocess.Popen([mpiexec, "-n", "4", *line], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        stepping(case)
        victim, = (p for p in ranks_of(case) if world_rank(p) == rank)
        began = time.time()
        os.kill(victim, number)
        text = wait_for_end(running, 60, what)
        told = check_verdict(what, running.returncode, text, case.out, rank, began, TIMEOUT, "it wrote no report")
        check_ended(case, what)
        return told


def slow(grid, rank):
    """Stopped for less than the limit, some times; the run goes on."""
    what = f"SIGSTOP for {0.6 * TIMEOUT:.1f} s of rank {rank}, {grid}"
    case, arguments = run_of(grid, checkpoint="every_steps = 0")
    with case:
        running = subprocess.Popen(
            [mpiexec, "-n", "4", program, *arguments, str(case.deck)], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        stepping(case)
        processes = ranks_of(case)
        victim, = (p for p in processes if world_rank(p) == rank)
        for _ in range(2):
            os.kill(victim, signal.SIGSTOP)
            time.sleep(0.6 * TIMEOUT)
            os.kill(victim, signal.SIGCONT)
            time.sleep(0.5)
        for process in processes:  # the whole job is suspended for longer than the limit
            os.kill(process, signal.SIGSTOP)
        time.sleep(2 * TIMEOUT)
        for process in processes:
            os.kill(process, signal.SIGCONT)
        time.sleep(1.5 * TIMEOUT)
        check(running.poll() is None, f"{what}: the run has ended", "")
        for process in processes:
            os.kill(process, signal.SIGTERM)
        text = wait_for_end(running, 60, what)
        check(running.returncode == 75 and "hangs" not in text, f"{what}: exit code {running.returncode}", text)
        check(not (case.out / "hang").exists(), f"{what}: reports are left", text)
        return f"{what}, and twice the limit of all: the run goes on"


def in_files(library, fault, rank):
    """While the second checkpoint is written."""
    what = f"{fault} of a checkpoint on rank {rank}"
    case, arguments = run_of("tp", steps=20, checkpoint="every_steps = 5", run=f"hang_timeout = {FILES_TIMEOUT}")
    with case:
        line = [program, *arguments, str(case.deck)]
        ranks = [["env", f"LD_PRELOAD={library}", f"FAULT={fault}", *line] if r == rank else line for r in range(4)]
        running = subprocess.Popen(commands_of_ranks(*((1, command) for command in ranks)), text=True, stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT)
        wait_for(case.out / "checkpoints" / "step_00000005" / "manifest.json")
        began = time.time()
        text = wait_for_end(running, 90, what)
        told = check_verdict(what, running.returncode, text, case.out, rank, began, ALLOWED * FILES_TIMEOUT, "> checkpoint")
        check_ended(case, what)
        return told


def mute(grid, rank):
    """SIGSTOP, and no report can be written, as on a full disk: there is no verdict, and the run ends all the same."""
    what = f"SIGSTOP of rank {rank}, {grid}, where no report can be written"
    case, arguments = run_of(grid, checkpoint="every_steps = 0")
    with case:
        running = subprocess.Popen([mpiexec, "-n", "4", program, *arguments, str(case.deck)], text=True,
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        stepping(case)
        (case.out / "hang").touch()  # no folder
        victim, = (p for p in ranks_of(case) if world_rank(p) == rank)
        began = time.time()
        os.kill(victim, signal.SIGSTOP)
        text = wait_for_end(running, FILE_PATIENCE + 60, what)
        took = time.time() - began
        check(running.returncode == 71 and "its report cannot be written" in text, f"{what}: exit code {running.returncode}", text)
        check(took < TIMEOUT + FILE_PATIENCE + 10, f"{what}: {took:.1f} s", text)
        check_ended(case, what)
        return f"{what}: {took:.1f} s of {TIMEOUT + FILE_PATIENCE:.0f} + 10"


def mistaken(fault, group, channel, rank, folder, library):
    """A rank that skips, adds or changes one operation of a group: no others hear of it but through that group."""
    what = f"{fault} in {group} by {channel} on rank {rank}"
    out = folder / f"{fault}_{group}_{channel}_{rank}"
    out.mkdir()
    preload = ["env", f"LD_PRELOAD={library}", "NO_SHARED_MEMORY=1"] if channel == "MPI" else []
    began = time.time()
    done = subprocess.run([mpiexec, "-n", "4", *preload, hanging_ranks, str(out), str(TIMEOUT), *map(str, SHAPES[group]), fault,
                           group, str(rank), "6"], text=True, timeout=90, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if fault in ("none", "late"):
        check(done.returncode == 0 and "all steps are done" in done.stdout and not (out / "hang").exists(),
              f"{what}: exit code {done.returncode}", done.stdout)
        return f"{what}: no alarm"
    start = 8.0  # of the program, and its steps before
    return check_verdict(what, done.returncode, done.stdout, out, rank, began, TIMEOUT + start)


COLLECTIVE = ("skip", "add", "count", "less", "more", "operation", "reduction", "type", "stall")
MESSAGES = ("skip", "add", "count", "less", "more", "stall")
MISTAKES = {"tp": COLLECTIVE, "dp": COLLECTIVE, "pp": MESSAGES, "cp": MESSAGES, "ep": ("skip", "add", "operation", "stall"),
            "world": ("skip", "add", "operation", "stall")}


def sample(chance, everything):
    """(function, arguments); `library` and `folder` are put in by their names."""
    rank = lambda: chance.randrange(4)  # noqa: E731
    mistakes = [(fault, group, channel) for group in SHAPES for fault in MISTAKES[group] for channel in ("shared memory", "MPI")
                if channel == "shared memory" or group in ("tp", "dp", "ep")]  # the others use MPI alone
    quiet = [(fault, group, "shared memory") for fault in ("none", "late") for group in SHAPES]
    cases = [(signalled, grid, rank(), number) for grid in GRIDS for number in (signal.SIGSTOP, signal.SIGKILL)]
    files = [(in_files, "library", fault, r) for fault, r in [("fsync", rank())]]
    if everything:
        return cases + files + [(mute, chance.choice(list(GRIDS)), rank())] + [(slow, grid, rank()) for grid in GRIDS] + [
            (mistaken, *mistake, rank(), "folder", "library") for mistake in mistakes + quiet]
    skips = [m for m in mistakes if m[0] == "skip"]
    others = [m for m in mistakes if m[0] not in ("skip", "stall")]
    return [*chance.sample(cases[0::2], 1), *chance.sample(cases[1::2], 1), files[0], (slow, chance.choice(list(GRIDS)), rank()),
            *((mistaken, *mistake, rank(), "folder", "library") for mistake in
              [chance.choice(skips), *chance.sample(others, 3), chance.choice(quiet)])]


def main(seed, everything):
    skip_under_sanitizers()
    print(f"NANOTRON_SEED={seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="nanotron_hangs_") as scratch:
        folder = Path(scratch)
        put = {"library": build(folder, PRELOAD), "folder": folder}
        only = os.environ.get("NANOTRON_ONLY", "")
        cases = [c for c in sample(random.Random(seed), everything) if only in " ".join(map(str, c))]
        check(cases, f"NANOTRON_ONLY={only} is of no case")
        with ThreadPoolExecutor(int(os.environ.get("NANOTRON_AT_ONCE", "2"))) as pool:  # they mostly wait
            waiting = [pool.submit(case[0], *(put.get(a, a) if isinstance(a, str) else a for a in case[1:])) for case in cases]
            failed = False
            for future in waiting:
                try:
                    print(future.result(), flush=True)
                except SystemExit:
                    failed = True
        sys.exit(1 if failed else 0)


main(int(os.environ.get("NANOTRON_SEED", str(int(time.time())))), bool(os.environ.get("NANOTRON_FULL")))
