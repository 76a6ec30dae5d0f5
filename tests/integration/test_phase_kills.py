#!/usr/bin/env python3
# ranks: 2
# timeout: 600
"""A rank is killed at a named point of a run, before or after a call that begins or ends something on disk, or in the middle of
a product: the same command continues and ends with the bits of a run that nothing disturbed. Half of the runs are killed
twice, the second time while they come back.

    test_phase_kills.py <folder of the programs>        NANOTRON_KILLS (10) and NANOTRON_SEED (the time) choose
"""
import os
import random
import shutil
import signal
import time

from faults import build, run_with_faults, skip_under_sanitizers
from runs import Case, Tally, alone, check, state_at

STEPS = 12
FP64 = ["--set", "precision.compute=fp64"]

# Name: call, part of its path (the target's where there are two), how often it can be met.
PHASES = {
    "deck is kept": ("rename", "run/deck.nml", 1),
    "metrics are written": ("pwrite", "metrics.h5", 40),
    "metrics are read": ("pread", "metrics.h5", 20),
    "forward and backward": ("gemm", "", 4000),
    "folder of a checkpoint": ("mkdir", ".partial", 3),
    "blocks of a checkpoint": ("pwrite", ".partial/checkpoint.h5", 3),
    "fsync of a checkpoint": ("fsync", ".partial/checkpoint.h5", 3),
    "check of what was written": ("pread", ".partial/checkpoint.h5", 9),
    "manifest": ("rename", "manifest.json", 3),
    "fsync of the folder": ("fsync", ".partial", 9),
    "publication": ("rename", "run/checkpoints/step_", 6),
    "fsync after publication": ("fsync", "run/checkpoints", 12),
    "link to the newest": ("symlink", "latest", 3),
    "newest is another": ("rename", "checkpoints/latest", 3),
    "removal of an older one begins": ("remove", "manifest.json", 1),
    "removal of an older one ends": ("remove", "run/checkpoints/step_", 2),
    "a checkpoint is read": ("pread", "/checkpoint.h5", 40),
    "a look for a stop": ("stat", "STOP", 12),
    "a look for a request": ("stat", "run/SAVE", 12),
    "removal of a request": ("remove", "run/SAVE", 1),
}

# Kills this process before or after the call FAULT_CALL whose path has FAULT_PATH in it, when it is met for the
# FAULT_COUNT-th time.
PRELOAD = r"""
#include <signal.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <sys/types.h>

static int is_met(const char *call, const char *path) {
  static atomic_long count;
  return strcmp(call, getenv("FAULT_CALL")) == 0 && strstr(path, getenv("FAULT_PATH")) != NULL &&
         atomic_fetch_add(&count, 1) == atol(getenv("FAULT_COUNT"));
}

static void die(int is_here) {
  if (!is_here) return;
  static const char text[] = "fault: killed\n";
  if (write(2, text, sizeof text - 1)) kill(getpid(), SIGKILL);
  for (;;) pause();
}

static int is_before(void) { return strcmp(getenv("FAULT_WHEN"), "before") == 0; }

static int is_met_by(const char *call, int descriptor) {
  const char *const path = path_of(descriptor);
  return *path && is_met(call, path);
}

#define AROUND(result, name, met, parameters, arguments)                        \
  result name parameters {                                                      \
    REAL(name);                                                                 \
    const int here = met;                                                       \
    die(here && is_before());                                                   \
    const result done = real arguments;                                         \
    die(here);                                                                  \
    return done;                                                                \
  }

AROUND(int, rename, is_met("rename", to), (const char *from, const char *to), (from, to))
AROUND(int, symlink, is_met("symlink", to), (const char *from, const char *to), (from, to))
AROUND(int, mkdir, is_met("mkdir", path), (const char *path, mode_t mode), (path, mode))
AROUND(int, remove, is_met("remove", path), (const char *path), (path))
AROUND(int, fstatat, is_met("stat", path), (int at, const char *path, struct stat *found, int flags), (at, path, found, flags))
AROUND(int, fsync, is_met_by("fsync", file), (int file), (file))
AROUND(ssize_t, pwrite, is_met_by("pwrite", file), (int file, const void *from, size_t bytes, off_t at), (file, from, bytes, at))
AROUND(ssize_t, pwrite64, is_met_by("pwrite", file), (int file, const void *from, size_t bytes, off64_t at), (file, from, bytes, at))
AROUND(ssize_t, pread, is_met_by("pread", file), (int file, void *to, size_t bytes, off_t at), (file, to, bytes, at))
AROUND(ssize_t, pread64, is_met_by("pread", file), (int file, void *to, size_t bytes, off64_t at), (file, to, bytes, at))

void cblas_dgemm(GEMM_PARAMETERS) {
  REAL(cblas_dgemm);
  die(is_met("gemm", ""));
  real(GEMM_ARGUMENTS);
}
"""


def main(kills, seed):
    skip_under_sanitizers()
    print(f"NANOTRON_KILLS={kills} NANOTRON_SEED={seed}", flush=True)
    chance, tally, names = random.Random(seed), Tally(), list(PHASES)
    with Case("phase_kills", steps=STEPS, checkpoint="keep_last = 1") as case:
        library, expected = build(case.folder, PRELOAD), {}
        grids = {1: [*FP64, "--set", "parallel.tp=1"], 2: FP64}
        for ranks, arguments in grids.items():
            code, text = case.run(*arguments, ranks=ranks)
            check(code == 0, "the run that nobody disturbs finishes", text)
            expected[ranks] = state_at(case, STEPS)
            shutil.rmtree(case.out)
        done = 0
        while done < kills:
            ranks = chance.choice([1, 1, 2])
            arguments = [*grids[ranks], "--set", f"checkpoint.asynchronous={chance.choice(['true', 'false'])}"]
            story = f"{ranks} ranks, {arguments[-1]}"
            for _ in range(chance.choice([1, 2])):
                if chance.random() < 0.5:  # asks for a checkpoint
                    case.out.mkdir(exist_ok=True)
                    (case.out / "SAVE").touch()
                phase = names[(done + seed) % len(names)]
                call, path, most = PHASES[phase]
                settings = {"FAULT_CALL": call, "FAULT_PATH": path, "FAULT_COUNT": str(chance.randrange(most)),
                            "FAULT_WHEN": chance.choice(["before", "after"])}
                story += f"; {phase}: {settings}"
                if ranks == 1:
                    code, text = alone(case, *arguments, LD_PRELOAD=str(library), **settings)
                else:
                    code, text = run_with_faults(case, library, chance.randrange(2), settings, *arguments)
                hit = "fault: killed" in text
                check((code != 0) == hit and (ranks > 1 or code in (0, -signal.SIGKILL)), f"{story}: exit code {code}", text)
                tally.add(f"kills: {phase}", "same bits" if hit else "not met")
                done += 1
                if code == 0:
                    break
            code, text = case.run(*arguments, ranks=ranks)
            check(code == 0, f"{story}: then the run finishes, with {code}", text)
            check(not (case.out / "SAVE").exists(), f"{story}: every request is answered", text)
            check(state_at(case, STEPS) == expected[ranks], f"{story}: other bits", text)
            shutil.rmtree(case.out)
    check(any("same bits" in outcomes for outcomes in tally.counts.values()), "nobody was killed")
    tally.print()


main(int(os.environ.get("NANOTRON_KILLS", "10")), int(os.environ.get("NANOTRON_SEED", str(int(time.time())))))
