#!/usr/bin/env python3
# ranks: 2
# timeout: 600
"""Metadata calls that fail, on one rank: stat, open, listings (also ones that come back empty), rename, unlink, mkdir,
fsync, close, truncate, reservations and writes of small files, of a start, a resume, a checkpoint and an end. The run ends
with the bits of a run that nothing disturbed, or with exit code 71; never from step 0 where there is a checkpoint, never
with another code or by a signal; what it lacks it says. The same command then continues to the same bits.

    test_metadata_faults.py <folder of the programs>     NANOTRON_FAULTS (6; 0: all) and NANOTRON_SEED (the time) choose
"""
import itertools
import os
import random
import re
import shutil
import time

import h5py
from faults import build, run_with_faults, skip_under_sanitizers
from runs import Case, Tally, check, outcome_of, state_at

STEPS = 15
KINDS = ["ESTALE", "EIO", "EDQUOT"]

# Counts this process' calls for what lies in FAULT_UNDER; from FAULT_FIRST on FAULT_COUNT of them fail. With the kind
# "empty" it counts listings, and they have no entries.
PRELOAD = r"""
#include <dirent.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <sys/stat.h>

static atomic_long count;

__attribute__((destructor)) static void tell(void) {
  if (getenv("FAULT_TELL")) fprintf(stderr, "metadata calls: %ld\n", atomic_load(&count));
}

static int counts(const char *call, const char *path) {
  const char *const under = getenv("FAULT_UNDER");
  if (!under || !path || strncmp(path, under, strlen(under)) != 0) return 0;
  const long number = atomic_fetch_add(&count, 1), first = atol(getenv("FAULT_FIRST"));
  if (number < first || number >= first + atol(getenv("FAULT_COUNT"))) return 0;
  fprintf(stderr, "fault: %s of %s, number %ld\n", call, path, number);
  return 1;
}

static int fails(const char *call, int folder, const char *path) {
  char whole[2 * PATH_MAX];
  const char *const kind = getenv("FAULT_KIND");
  if (!kind || strcmp(kind, "empty") == 0) return 0;
  if (!path || (path[0] != '/' && folder != AT_FDCWD)) {
    const char *const of = path_of(folder);
    if (!*of) return 0;
    snprintf(whole, sizeof whole, "%s%s%s", of, path ? "/" : "", path ? path : "");
    path = whole;
  }
  if (!counts(call, path)) return 0;
  errno = strcmp(kind, "ESTALE") == 0 ? ESTALE : strcmp(kind, "EIO") == 0 ? EIO : EDQUOT;
  return 1;
}

#define CALL(type, name, parameters, folder, path, arguments) \
  type name parameters { REAL(name); return fails(#name, folder, path) ? (type)-1 : real arguments; }
#define POINTER(type, name, parameters, path, arguments) \
  type *name parameters { REAL(name); return fails(#name, AT_FDCWD, path) ? NULL : real arguments; }

CALL(int, stat, (const char *restrict p, struct stat *restrict s), AT_FDCWD, p, (p, s))
CALL(int, stat64, (const char *restrict p, struct stat64 *restrict s), AT_FDCWD, p, (p, s))
CALL(int, lstat, (const char *restrict p, struct stat *restrict s), AT_FDCWD, p, (p, s))
CALL(int, lstat64, (const char *restrict p, struct stat64 *restrict s), AT_FDCWD, p, (p, s))
CALL(int, fstat, (int d, struct stat *s), d, NULL, (d, s))
CALL(int, fstat64, (int d, struct stat64 *s), d, NULL, (d, s))
CALL(int, fstatat, (int d, const char *restrict p, struct stat *restrict s, int f), d, p, (d, p, s, f))
CALL(int, fstatat64, (int d, const char *restrict p, struct stat64 *restrict s, int f), d, p, (d, p, s, f))
CALL(int, statx, (int d, const char *restrict p, int f, unsigned m, struct statx *restrict s), d, p, (d, p, f, m, s))
CALL(int, access, (const char *p, int m), AT_FDCWD, p, (p, m))
CALL(int, mkdir, (const char *p, mode_t m), AT_FDCWD, p, (p, m))
CALL(int, rmdir, (const char *p), AT_FDCWD, p, (p))
CALL(int, unlink, (const char *p), AT_FDCWD, p, (p))
CALL(int, unlinkat, (int d, const char *p, int f), d, p, (d, p, f))
CALL(int, remove, (const char *p), AT_FDCWD, p, (p))
CALL(int, rename, (const char *p, const char *to), AT_FDCWD, p, (p, to))
CALL(int, renameat2, (int d, const char *p, int e, const char *to, unsigned f), d, p, (d, p, e, to, f))
CALL(int, symlink, (const char *to, const char *p), AT_FDCWD, p, (to, p))
CALL(ssize_t, readlink, (const char *restrict p, char *restrict b, size_t n), AT_FDCWD, p, (p, b, n))
CALL(int, truncate, (const char *p, off_t n), AT_FDCWD, p, (p, n))
CALL(int, truncate64, (const char *p, off64_t n), AT_FDCWD, p, (p, n))
CALL(int, ftruncate, (int d, off_t n), d, NULL, (d, n))
CALL(int, ftruncate64, (int d, off64_t n), d, NULL, (d, n))
CALL(int, fallocate, (int d, int m, off_t b, off_t n), d, NULL, (d, m, b, n))
CALL(int, fallocate64, (int d, int m, off64_t b, off64_t n), d, NULL, (d, m, b, n))
CALL(int, fsync, (int d), d, NULL, (d))
CALL(ssize_t, write, (int d, const void *b, size_t n), d, NULL, (d, b, n))
CALL(ssize_t, pwrite, (int d, const void *b, size_t n, off_t at), d, NULL, (d, b, n, at))
CALL(ssize_t, pwrite64, (int d, const void *b, size_t n, off64_t at), d, NULL, (d, b, n, at))
POINTER(FILE, fopen, (const char *restrict p, const char *restrict m), p, (p, m))
POINTER(FILE, fopen64, (const char *restrict p, const char *restrict m), p, (p, m))
POINTER(DIR, opendir, (const char *p), p, (p))

int close(int d) {  // closes all the same, as the system does
  REAL(close);
  const int failed = fails("close", d, NULL), cause = errno, status = real(d);
  if (!failed) return status;
  errno = cause;
  return -1;
}

#define OPEN(name, parameters, folder, arguments) \
  int name parameters { \
    REAL(name); \
    va_list rest; \
    va_start(rest, flags); \
    const mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0; \
    va_end(rest); \
    return fails(#name, folder, path) ? -1 : real arguments; \
  }
OPEN(open, (const char *path, int flags, ...), AT_FDCWD, (path, flags, mode))
OPEN(open64, (const char *path, int flags, ...), AT_FDCWD, (path, flags, mode))
OPEN(openat, (int folder, const char *path, int flags, ...), folder, (folder, path, flags, mode))
OPEN(openat64, (int folder, const char *path, int flags, ...), folder, (folder, path, flags, mode))

static struct dirent *next(DIR *d, struct dirent *(*real)(DIR *)) {
  static _Thread_local DIR *empty;
  if (strcmp(getenv("FAULT_KIND") ? getenv("FAULT_KIND") : "", "empty") != 0)
    return fails("readdir", dirfd(d), NULL) ? NULL : real(d);
  if (d == empty) return NULL;
  const char *const path = path_of(dirfd(d));
  if (!*path || telldir(d) != 0 || !counts("listing", path)) return real(d);
  empty = d;
  return NULL;
}
struct dirent *readdir(DIR *d) { REAL(readdir); return next(d, real); }
struct dirent64 *readdir64(DIR *d) { REAL(readdir64); return (struct dirent64 *)next(d, (struct dirent *(*)(DIR *))real); }
"""


class Sweep:
    """A case whose run was begun, and what became of one that nothing disturbed."""

    def __init__(self, case):
        self.case, self.tally = case, Tally()
        self.library = build(case.folder, PRELOAD)
        self.work = case.folder / "work"  # all that is looked at: run and status
        self.begun = {"start": case.folder / "nothing", "resume": case.folder / "begun"}
        self.begun["start"].mkdir()
        code, text = self.undisturbed("--set", "run.steps=10")
        check(code == 0, "the first part of the run finishes", text)
        shutil.copytree(self.work, self.begun["resume"], symlinks=True)
        code, text = self.undisturbed()
        check(code == 0, "the run goes on", text)
        self.expected = {step: state_at(case, step) for step in (10, STEPS)}

    def arguments(self):
        return ["--status", str(self.work / "status"), "--set", f"run.steps={STEPS}"]

    def undisturbed(self, *more):
        self.work.mkdir(exist_ok=True)
        return self.case.run(*self.arguments(), *more)

    def disturbed(self, phase, rank, kind, first, count, **more):
        shutil.rmtree(self.work)
        shutil.copytree(self.begun[phase], self.work, symlinks=True)
        settings = dict(FAULT_UNDER=self.work, FAULT_KIND=kind, FAULT_FIRST=first, FAULT_COUNT=count, **more)
        return run_with_faults(self.case, self.library, rank, settings, *self.arguments())

    def number_of_calls(self, phase, rank, kind):
        code, text = self.disturbed(phase, rank, kind, 10**9, 1, FAULT_TELL=1)
        check(code == 0, f"{phase}: a run without faults", text)
        return int(re.search(r"metadata calls: (\d+)", text)[1])

    def all_faults(self):
        for phase, rank in itertools.product(self.begun, range(2)):
            for first in range(self.number_of_calls(phase, rank, "EIO")):
                yield phase, rank, None, first
            for first in range(self.number_of_calls(phase, rank, "empty")):
                yield phase, rank, "empty", first

    def rows(self):
        try:
            with h5py.File(self.case.out / "metrics.h5") as file:
                return file["step"][()].tolist()
        except (OSError, KeyError):
            return []

    def plant(self, phase, rank, kind, first, count):
        what = f"{phase}: {kind} of {count} calls from number {first} on, on rank {rank}"
        code, text = self.disturbed(phase, rank, kind, first, count)
        met = re.findall(r"fault: (\w+) of", text)
        check(code in (0, 71), f"{what}: exit code {code}", text)
        check(code == 0 or met, f"{what}: exit code {code} without a fault", text)
        if phase == "resume":
            check("step       1/" not in text, f"{what}: a start from step 0", text)
            check(not list(self.case.out.glob("*.superseded-*")), f"{what}: a checkpoint is moved aside", text)
            check(code == 71 or "resumed from" in text, f"{what}: continues from step 10", text)
        if code == 0:
            check(state_at(self.case, STEPS) == self.expected[STEPS], f"{what}: other bits at exit code 0", text)
            check(self.rows() == list(range(1, STEPS + 1)) or "metrics" in text, f"{what}: metrics are lost silently", text)
        else:
            check("error:" in text, f"{what}: the error is told", text)
            again, text = self.undisturbed()
            check(again == 0 and state_at(self.case, STEPS) == self.expected[STEPS], f"{what}: then the run goes on", text)
        self.tally.add(f"metadata calls, {phase}: {kind}", outcome_of(code, bool(met)))


def main(faults, seed):
    skip_under_sanitizers()
    print(f"NANOTRON_FAULTS={faults} NANOTRON_SEED={seed}", flush=True)
    chance = random.Random(seed)
    with Case("metadata_faults", steps=10, run="check_replicas_every = 0", checkpoint="keep_last = 2") as case:
        case.out = case.folder / "work/run"
        case.deck.write_text(case.deck.read_text().replace(str(case.folder / "run"), str(case.out)))
        sweep = Sweep(case)
        every = list(sweep.all_faults())
        chance.shuffle(every)
        sweep.plant("resume", 0, "empty", 0, 1)  # the listing of all checkpoints
        for phase, rank, kind, first in every[:faults or None]:
            sweep.plant(phase, rank, kind or chance.choice(KINDS), first, chance.choice([1, 3, 10**6]))
    check(any(set(outcomes) - {"not met"} for outcomes in sweep.tally.counts.values()), "no fault was met")
    sweep.tally.print()


main(int(os.environ.get("NANOTRON_FAULTS", "6")), int(os.environ.get("NANOTRON_SEED", str(int(time.time())))))
