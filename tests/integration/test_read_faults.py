#!/usr/bin/env python3
# ranks: 2
# timeout: 600
"""Reads of a checkpoint that fail or come back with another byte, on one rank of a run that resumes: it ends with the
bits of a run that nothing disturbed, or says so with exit code 65 or 71. Never other bits, never a hang.

    test_read_faults.py <folder of the programs>        NANOTRON_FAULTS (8) and NANOTRON_SEED (the time) choose
"""
import os
import random
import shutil
import time

from faults import build, run_with_faults, skip_under_sanitizers
from runs import Case, Tally, check, outcome_of, state_at

STEPS = 15
MODEL = ["--set", "model.hidden_size=256", "--set", "model.intermediate_size=704"]  # several blocks of the manifest

# Counts this process' reads of the checkpoint that is resumed from; from FAULT_FIRST on FAULT_COUNT of them fail.
PRELOAD = r"""
#include <stdatomic.h>
#include <sys/uio.h>

static atomic_long count;

static ssize_t fault(int descriptor, void *to, ssize_t got) {
  const char *const path = path_of(descriptor), *const name = "/step_00000010/checkpoint.h5";
  const size_t length = strlen(path);
  if (got <= 0 || length < strlen(name) || strcmp(path + length - strlen(name), name) != 0) return got;
  const long number = atomic_fetch_add(&count, 1), first = atol(getenv("FAULT_FIRST"));
  if (number < first || number >= first + atol(getenv("FAULT_COUNT"))) return got;
  fprintf(stderr, "fault: read %ld, %s\n", number, getenv("FAULT_KIND"));
  if (strcmp(getenv("FAULT_KIND"), "flip") == 0) {
    ((unsigned char *)to)[got * 7 / 11] ^= 4;
    return got;
  }
  errno = EIO;
  return -1;
}

ssize_t pread64(int descriptor, void *to, size_t bytes, off64_t at) {
  REAL(pread64);
  return fault(descriptor, to, real(descriptor, to, bytes, at));
}
ssize_t pread(int descriptor, void *to, size_t bytes, off_t at) { return pread64(descriptor, to, bytes, at); }
ssize_t preadv64(int descriptor, const struct iovec *to, int pieces, off64_t at) {
  REAL(preadv64);
  const ssize_t got = real(descriptor, to, pieces, at);
  return fault(descriptor, to[0].iov_base, got < (ssize_t)to[0].iov_len ? got : (ssize_t)to[0].iov_len) < 0 ? -1 : got;
}
ssize_t preadv(int descriptor, const struct iovec *to, int pieces, off_t at) {
  return preadv64(descriptor, to, pieces, at);
}
ssize_t read(int descriptor, void *to, size_t bytes) {
  REAL(read);
  return fault(descriptor, to, real(descriptor, to, bytes));
}
"""


def main(faults, seed):
    skip_under_sanitizers()
    print(f"NANOTRON_FAULTS={faults} NANOTRON_SEED={seed}", flush=True)
    chance = random.Random(seed)
    tally = Tally()
    with Case("faults", steps=10, run="check_replicas_every = 0") as case:
        library = build(case.folder, PRELOAD)
        code, text = case.run(*MODEL)
        check(code == 0, "the first part of the run finishes", text)
        begun = case.folder / "begun"
        shutil.copytree(case.out, begun)

        def outcome(rank, kind, first, count):
            shutil.rmtree(case.out)
            shutil.copytree(begun, case.out)
            settings = {"FAULT_KIND": kind, "FAULT_FIRST": first, "FAULT_COUNT": count}
            return run_with_faults(case, library, rank, settings, *MODEL, "--set", f"run.steps={STEPS}")

        code, text = outcome(0, "none", 10**9, 1)
        check(code == 0, "the run resumes", text)
        expected = state_at(case, STEPS)
        for _ in range(faults):
            rank, kind, first = chance.randrange(2), chance.choice(["eio", "flip"]), chance.randrange(12)
            count = chance.choice([1, 1, 2, 10**6])
            what = f"{kind} of {count} reads from number {first} on, on rank {rank}"
            code, text = outcome(rank, kind, first, count)
            check(code in (0, 65, 71), f"{what}: exit code {code}", text)
            hit = "fault: read" in text
            if count == 1:
                check(code == 0, f"{what}: one bad read is made good", text)
            if count == 1 or kind == "eio":
                check("skipped" not in text and "moved to" not in text, f"{what}: the newest checkpoint is taken", text)
            if code == 0:
                check(state_at(case, STEPS) == expected, f"{what}: other bits at exit code 0", text)
            else:
                check("error:" in text and ("checkpoint.h5" in text), f"{what}: the error names the file", text)
            tally.add(f"checkpoint reads: {kind}", outcome_of(code, hit))
    check(any(set(outcomes) - {"not met"} for outcomes in tally.counts.values()), "no fault was met")
    tally.print()


main(int(os.environ.get("NANOTRON_FAULTS", "8")), int(os.environ.get("NANOTRON_SEED", str(int(time.time())))))
