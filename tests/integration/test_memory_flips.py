#!/usr/bin/env python3
# ranks: 2
# timeout: 600
"""A bit of a stored weight, of a moment or of a gradient flips in one rank's memory: the run ends with exit code 71 before an
update uses it and names the host, and the same command then continues to the bits of a run that nothing disturbed.

    test_memory_flips.py <folder of the programs>        NANOTRON_FAULTS (6) and NANOTRON_SEED (the time) choose
"""
import os
import random
import shutil
import time

from faults import build, run_with_faults, skip_under_sanitizers
from runs import Case, Tally, check, outcome_of, state_at

STEPS, FLIPPED = 12, 5  # what is stored flips when the checkpoint of step 5 is published
GRIDS = {"tp": ["parallel.tp=2"], "dp": ["parallel.tp=1", "parallel.dp=2"],
         "zero": ["parallel.tp=1", "parallel.dp=2", "parallel.zero_stage=1"]}
NEEDLE = 32  # bytes that are looked for
SAME = ["precision.compute=fp64"]

PRELOAD = r"""
#include <stdint.h>

enum { needle_bytes = 32, transposed = 112 /* CblasTrans */ };

static long number(const char *name) { return getenv(name) ? atol(getenv(name)) : -1; }

static void flip(void *at, long bit) {
  unsigned char *const bytes = at;
  bytes[bit / 8] ^= (unsigned char)(1 << bit % 8);
  fprintf(stderr, "fault: flipped bit %ld\n", bit);
}

/* All places of this process' memory that hold FAULT_NEEDLE (hexadecimal). */
static void flip_stored(void) {
  const char *const text = getenv("FAULT_NEEDLE");
  if (text == NULL) return;
  static volatile unsigned char inverse[needle_bytes];  /* so that this copy is not found */
  for (int i = 0; i < needle_bytes; ++i) {
    unsigned byte;
    sscanf(text + 2 * i, "%2x", &byte);
    inverse[i] = (unsigned char)~byte;
  }
  FILE *const maps = fopen("/proc/self/maps", "r");
  char line[512];
  while (fgets(line, sizeof line, maps) != NULL) {
    unsigned long begin, end;
    char access[8], name[256] = "";
    if (sscanf(line, "%lx-%lx %7s %*s %*s %*s %255s", &begin, &end, access, name) < 3 || strcmp(access, "rw-p") != 0) continue;
    if (strcmp(name, "[stack]") == 0) continue;
    for (unsigned long at = (begin + 7) / 8 * 8; at + needle_bytes <= end; at += 8) {
      const unsigned char *const here = (const unsigned char *)at;
      int i = 0;
      while (i < needle_bytes && here[i] == (unsigned char)~inverse[i]) ++i;
      if (i == needle_bytes) flip((void *)at, number("FAULT_BIT"));
    }
  }
  fclose(maps);
}

int rename(const char *from, const char *to) {
  REAL(rename);
  const char *const step = getenv("FAULT_STEP");
  if (step && strstr(from, step) && strstr(from, ".partial") && !strstr(to, ".partial")) flip_stored();
  return real(from, to);
}

/* Weight gradients: C = A^T B. */
void cblas_dgemm(GEMM_PARAMETERS) {
  REAL(cblas_dgemm);
  static long count;
  real(GEMM_ARGUMENTS);
  if (a_is == transposed && count++ == number("FAULT_GEMM")) flip(&c[m / 2 * ldc + n / 2], 62);
}
"""


def stored(state, kind, chance):
    """A place in a weight or a moment as the checkpoint has it: its name and bytes, which nothing else in memory has: no
    zeros, and not the ones of a norm."""
    group = {"a weight": "parameters/", "a moment": "optimizer/"}[kind]
    names = sorted(key for key, value in state.items() if key.startswith(group) and len(value) >= NEEDLE)
    while True:
        name = chance.choice(names)
        begin = chance.randrange(0, len(state[name]) - NEEDLE + 1, 8)
        needle = state[name][begin:begin + NEEDLE]
        words = {needle[i:i + 8] for i in range(0, NEEDLE, 8)}
        if len(words) == NEEDLE // 8 and bytes(8) not in words:
            return name, needle


def main(faults, seed):
    skip_under_sanitizers()
    print(f"NANOTRON_FAULTS={faults} NANOTRON_SEED={seed}", flush=True)
    chance, tally = random.Random(seed), Tally()
    with Case("memory_flips", steps=STEPS, run="check_memory_every = 1 spike_factor = 10", checkpoint="keep_last = 0") as case:
        library = build(case.folder, PRELOAD)
        expected = {}
        for grid, keys in GRIDS.items():
            arguments = [word for key in [*SAME, *keys] for word in ("--set", key)]
            code, text = case.run(*arguments)
            check(code == 0, "the run that nobody disturbs finishes", text)
            expected[grid] = {step: state_at(case, step) for step in (FLIPPED, STEPS)}
            shutil.rmtree(case.out)
        for number in range(faults):
            kind = ["a weight", "a moment", "a gradient"][(number + seed) % 3]
            grid, bit = chance.choice(list(GRIDS)), chance.randrange(8 * NEEDLE)
            arguments = [word for key in [*SAME, *GRIDS[grid]] for word in ("--set", key)]
            rank, what, settings = 0, f"{kind} on {grid}", {"NANOTRON_HOST_NAME": "ill"}
            if kind == "a gradient":
                rank, call = chance.randrange(2), chance.randrange(400)
                settings |= {"FAULT_GEMM": call}
                what += f", product {call} on rank {rank}"
            else:
                name, needle = stored(expected[grid][FLIPPED], kind, chance)
                what += f", bit {bit} of {needle.hex()} in {name}"
                settings |= {"FAULT_STEP": f"step_{FLIPPED:08d}", "FAULT_NEEDLE": needle.hex(), "FAULT_BIT": bit}
            code, text = run_with_faults(case, library, rank, settings, *arguments)
            check(code == 0 or (code == 71 and "fault: flipped" in text), f"{what}: exit code {code}", text)
            if code != 0:
                excluded = case.out / "excluded_hosts"
                named = excluded.read_text() if excluded.exists() else ""
                check("ill" in named, f"{what}: the host is named, not {named!r}", text)
                again, text = case.run(*arguments)
                check(again == 0, f"{what}: then the run goes on, with {again}", text)
            check(state_at(case, STEPS) == expected[grid][STEPS], f"{what}: other bits at the end", text)
            tally.add(f"memory: {kind}", outcome_of(code, code != 0))  # else what flipped was another rank's, in a buffer
            shutil.rmtree(case.out)
    check(any(set(outcomes) - {"not met"} for outcomes in tally.counts.values()), "no fault was met")
    tally.print()


main(int(os.environ.get("NANOTRON_FAULTS", "6")), int(os.environ.get("NANOTRON_SEED", str(int(time.time())))))
