"""Runs in which a preloaded library makes system calls of one rank fail, for the scripts beside this one."""
import os
import subprocess
import sys

from runs import check, mpiexec, program


def skip_under_sanitizers():
    if os.environ.get("NANOTRON_SANITIZE") == "ON":
        print("skipped: a sanitizer wants to be loaded first")
        sys.exit(77)


# Of cblas_dgemm, for libraries that stand in its place.
GEMM = r"""
#define GEMM_PARAMETERS                                                                                              \
  int order, int a_is, int b_is, int m, int n, int k, double alpha, const double *a, int lda, const double *b, int ldb, \
      double beta, double *c, int ldc
#define GEMM_ARGUMENTS order, a_is, b_is, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc
"""


def build(folder, text):
    source = folder / "faults.c"
    source.write_text(GEMM + text)
    subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", str(folder / "faults.so"), str(source), "-ldl"], check=True)
    return folder / "faults.so"


def run_with_faults(case, library, rank, settings, *arguments):
    """Two ranks, the library in one of them, with these variables. Exit code and output."""
    faulty = ["env", f"LD_PRELOAD={library}", *(f"{key}={value}" for key, value in settings.items())]
    ranks = [[program, *arguments, str(case.deck)], [program, *arguments, str(case.deck)]]
    ranks[rank] = faulty + ranks[rank]
    command = [mpiexec, "-n", "1", *ranks[0], ":", "-n", "1", *ranks[1]]
    try:
        done = subprocess.run(command, text=True, timeout=120, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired as late:
        check(False, f"{settings} on rank {rank}: no end in {late.timeout} s", late.stdout)
    return done.returncode, done.stdout
