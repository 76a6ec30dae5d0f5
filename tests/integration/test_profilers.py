#!/usr/bin/env python3
# ranks: 1
# timeout: 60
"""A tool of Kokkos, loaded by its environment variable, sees the regions of a step: every one that begins ends.

    test_profilers.py <folder of the programs>
"""
import os
import subprocess
from collections import Counter

from faults import build, skip_under_sanitizers
from runs import Case, check, program

TOOL = r"""
#include <stdint.h>
#include <stdio.h>
static FILE *out;
void kokkosp_init_library(int sequence, uint64_t version, uint32_t devices, void *info) {
  (void)sequence, (void)version, (void)devices, (void)info;
  out = fopen("regions.txt", "w");
}
void kokkosp_push_profile_region(const char *name) { fprintf(out, "push %s\n", name); }
void kokkosp_pop_profile_region(void) { fprintf(out, "pop\n"); }
void kokkosp_begin_parallel_for(const char *name, uint32_t device, uint64_t *id) {
  (void)device, (void)id;
  fprintf(out, "kernel %s\n", name);
}
void kokkosp_finalize_library(void) { fclose(out); }
"""


def main():
    skip_under_sanitizers()
    with Case("profilers", steps=3, tp=1) as case:
        tool = build(case.folder, TOOL)
        done = subprocess.run([program, str(case.deck)], cwd=case.folder, env={**os.environ, "KOKKOS_TOOLS_LIBS": str(tool), "KOKKOS_PROFILE_LIBRARY": str(tool)},
                              text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=50)
        check(done.returncode == 0, "the run finishes", done.stdout)
        open_regions, steps, kernels = [], 0, Counter()
        inside = Counter()
        for line in (case.folder / "regions.txt").read_text().splitlines():
            what, _, name = line.partition(" ")
            if what == "push":
                open_regions.append(name)
                steps += name == "step"
                inside[(open_regions[0], name)] += 1
            elif what == "pop":
                check(open_regions, "no region ends that did not begin")
                open_regions.pop()
            else:
                kernels[name] += 1
        check(not open_regions, f"{open_regions} never end")
        check(steps == 3, f"{steps} regions of 3 steps")
        for name in ("load tokens", "gradient norm", "optimizer"):
            check(inside[("step", name)] >= 3, f"'{name}' in each step: {inside}")
        check(kernels["adamw"] > 0, f"kernels have their names: {kernels}")


main()
