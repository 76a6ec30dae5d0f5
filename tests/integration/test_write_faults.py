#!/usr/bin/env python3
# ranks: 2
# timeout: 600
"""Writes of a checkpoint that fail, get lost or change on their way, on one rank: the run ends with the bits of a run
that nothing disturbed and whole checkpoints, or with exit code 71, the earlier checkpoint as it was, and nothing half-written;
the same command then continues from there. Never other bits, never a hang. Half of the runs write while they train.

    test_write_faults.py <folder of the programs>        NANOTRON_FAULTS (8) and NANOTRON_SEED (the time) choose
"""
import json
import os
import random
import shutil
import time

from faults import build, run_with_faults, skip_under_sanitizers
from runs import Case, Tally, check, outcome_of, state_at

STEPS = 15
MODEL = ["--set", "model.hidden_size=256", "--set", "model.intermediate_size=704"]  # several blocks of the manifest
KINDS = ["eio", "enospc", "lost", "torn", "flip", "short", "fsync"]

# Counts this process' writes into half-written checkpoints; from FAULT_FIRST on FAULT_COUNT of them go wrong.
PRELOAD = r"""
#include <stdatomic.h>

static atomic_long count;

static int meets(int descriptor, int kind_is_fsync) {
  const char *const kind = getenv("FAULT_KIND");
  if ((strcmp(kind, "fsync") == 0) != kind_is_fsync || strstr(path_of(descriptor), ".partial/checkpoint.h5") == NULL) return 0;
  const long number = atomic_fetch_add(&count, 1), first = atol(getenv("FAULT_FIRST"));
  if (number < first || number >= first + atol(getenv("FAULT_COUNT"))) return 0;
  fprintf(stderr, "fault: write %ld, %s\n", number, kind);
  return 1;
}

static size_t half(size_t bytes) { return bytes >= 8192 ? bytes / 8192 * 4096 : bytes / 2 + 1; }

static ssize_t put(int descriptor, const void *from, size_t bytes, off64_t at) {
  REAL(pwrite64);
  if (bytes == 0 || !meets(descriptor, 0)) return real(descriptor, from, bytes, at);
  const char *const kind = getenv("FAULT_KIND");
  if (strcmp(kind, "eio") == 0 || strcmp(kind, "enospc") == 0) {
    errno = strcmp(kind, "eio") == 0 ? EIO : ENOSPC;
    return -1;
  }
  if (strcmp(kind, "short") == 0) return real(descriptor, from, half(bytes), at);
  if (strcmp(kind, "torn") == 0) real(descriptor, from, half(bytes), at);
  if (strcmp(kind, "flip") == 0) {
    char *const other = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);  // as direct I/O wants it
    memcpy(other, from, bytes);
    other[bytes * 7 / 11] ^= 4;
    const ssize_t done = real(descriptor, other, bytes, at);
    free(other);
    return done;
  }
  return (ssize_t)bytes;
}
ssize_t pwrite64(int descriptor, const void *from, size_t bytes, off64_t at) { return put(descriptor, from, bytes, at); }
ssize_t pwrite(int descriptor, const void *from, size_t bytes, off_t at) { return put(descriptor, from, bytes, at); }

int fsync(int descriptor) {
  REAL(fsync);
  if (!meets(descriptor, 1)) return real(descriptor);
  errno = EIO;
  return -1;
}
"""


def main(faults, seed):
    skip_under_sanitizers()
    print(f"NANOTRON_FAULTS={faults} NANOTRON_SEED={seed}", flush=True)
    chance = random.Random(seed)
    tally = Tally()
    with Case("write_faults", steps=10, run="check_replicas_every = 0") as case:
        library = build(case.folder, PRELOAD)
        arguments = [*MODEL, "--set", f"run.steps={STEPS}"]
        code, text = case.run(*MODEL, "--set", "run.stop_after_steps=5")
        check(code == 75, "the first part of the run stops", text)
        begun = case.folder / "begun"
        shutil.copytree(case.out, begun, symlinks=True)
        code, text = case.run(*arguments)
        check(code == 0, "the run goes on", text)
        expected = {step: state_at(case, step) for step in (5, 10, STEPS)}

        def restart():
            shutil.rmtree(case.out)
            shutil.copytree(begun, case.out, symlinks=True)

        for number in range(faults):
            kind, rank = KINDS[(number + seed) % len(KINDS)], chance.randrange(2)
            first, count = chance.randrange(6), chance.choice([1, 1, 2, 10**6])
            later = ["--set", "checkpoint.asynchronous=true"] if chance.random() < 0.5 else []
            what = f"{kind} of {count} writes from number {first} on, on rank {rank}, {later}"
            restart()
            code, text = run_with_faults(case, library, rank, dict(FAULT_KIND=kind, FAULT_FIRST=first, FAULT_COUNT=count),
                                         *arguments, *later)
            hit = "fault: write" in text
            check(code in (0, 71), f"{what}: exit code {code}", text)
            check(code == 0 or hit, f"{what}: exit code {code} without a fault", text)
            if kind == "short" or (kind == "eio" and count <= 2):
                check(code == 0, f"{what}: made good", text)
            if kind in ("enospc", "lost", "torn", "flip", "fsync") and hit:
                check(code == 71 and "step_000000" in text, f"{what}: found before it counts, and named", text)
            folders = sorted(p.name for p in (case.out / "checkpoints").glob("step_*"))
            # A rank that ends all of them by force may meet one that still removes it.
            check(all(".partial" not in name for name in folders) or "[rank " in text, f"{what}: {folders} are left", text)
            for name in (name for name in folders if ".partial" not in name):
                json.loads((case.out / "checkpoints" / name / "manifest.json").read_text())
                step = int(name.split("_")[1])
                check(state_at(case, step) == expected[step], f"{what}: other bits at step {step}", text)
            if code != 0:
                check(folders, f"{what}: no checkpoint is left", text)
                again, text = case.run(*arguments)
                check(again == 0 and state_at(case, STEPS) == expected[STEPS], f"{what}: then the run goes on", text)
            tally.add(f"checkpoint writes: {kind}", outcome_of(code, hit))
        restart()
        (case.out / "STOP").touch()
        code, text = run_with_faults(case, library, 0, dict(FAULT_KIND="enospc", FAULT_FIRST=0, FAULT_COUNT=10**6), *arguments)
        check(code == 71 and (case.out / "STOP").exists(), "STOP stays where the checkpoint that it asks for fails", text)
        code, text = case.run(*arguments)
        check(code == 75 and not (case.out / "STOP").exists(), "and stops the next start", text)
    check(any(set(outcomes) - {"not met"} for outcomes in tally.counts.values()), "no fault was met")
    tally.print()


main(int(os.environ.get("NANOTRON_FAULTS", "8")), int(os.environ.get("NANOTRON_SEED", str(int(time.time())))))
