"""Runs in which a preloaded library makes system calls of one rank fail, for the scripts beside this one."""
import os
import subprocess

import h5py
import numpy

from runs import call, commands_of_ranks, program
from skips import skip


def skip_under_sanitizers():
    if os.environ.get("NANOTRON_SANITIZE") == "ON":
        skip("a sanitizer wants to be loaded first")


# What the libraries share: REAL(name), in a function that stands in the place of another, makes that one `real`.
COMMON = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define REAL(name) static __typeof__(name) *real; if (!real) real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)
#define GEMM_PARAMETERS                                                                                              \
  int order, int a_is, int b_is, int m, int n, int k, double alpha, const double *a, int lda, const double *b, int ldb, \
      double beta, double *c, int ldc
#define GEMM_ARGUMENTS order, a_is, b_is, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc

/* Of an open file; empty where it has none. */
static inline const char *path_of(int descriptor) {
  static _Thread_local char path[PATH_MAX + 1];
  char link[64];
  snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
  const ssize_t length = readlink(link, path, PATH_MAX);
  path[length < 0 ? 0 : length] = 0;
  return path;
}
"""

# A file of this process whose path has SLOW_FILE in it takes SLOW_SECONDS longer to get onto the disk.
SLOW_DISK = r"""

int fsync(int descriptor) {
  REAL(fsync);
  if (strstr(path_of(descriptor), getenv("SLOW_FILE")) != NULL) usleep(1e6 * atof(getenv("SLOW_SECONDS")));
  return real(descriptor);
}
"""


def build(folder, text):
    source = folder / "faults.c"
    source.write_text(COMMON + text)
    subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", str(folder / "faults.so"), str(source), "-ldl"], check=True)
    return folder / "faults.so"


def run_with_faults(case, library, rank, settings, *arguments):
    """Two ranks, the library in one of them, with these variables. Exit code and output."""
    faulty = ["env", f"LD_PRELOAD={library}", *(f"{key}={value}" for key, value in settings.items())]
    ranks = [[program, *arguments, str(case.deck)], [program, *arguments, str(case.deck)]]
    ranks[rank] = faulty + ranks[rank]
    return call(*commands_of_ranks((1, ranks[0]), (1, ranks[1])), seconds=120)


def write_spikes(path, bad_steps, steps, tokens_of_step):
    """A text of period 7; one other token alone in the batches of some steps, whose gradient norm is a spike."""
    tokens = numpy.arange(2 * steps * tokens_of_step + 1, dtype=numpy.uint16) % 7
    for step in bad_steps:
        first = (step - 1) * tokens_of_step
        tokens[first + 1:first + tokens_of_step] = 99  # no token of another batch
    with h5py.File(path, "w") as file:
        file["tokens"] = tokens
        file.attrs["vocab_size"] = 131
