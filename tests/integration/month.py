"""A month of a large machine, in small: a run under the job script for Slurm, whose hosts, ranks, network and memory
fail at the rate and of the causes that Llama 3's report gives for 16,384 GPUs (Grattafiori et al. 2024, "The Llama 3 Herd
of Models", section 3.3.4 and table 5: 419 unexpected and 47 planned interruptions in 54 days).

Everything is real but the size, the scheduler and the faults: each start is the program under the job script and mpiexec,
and each fault a signal, a host whose memory is gone, a bit that a preloaded library flips, or a write that it refuses. Every
metrics.h5 that an interruption leaves, and the end, are compared with a run that nobody disturbed: tokens, losses and
gradient norms of all steps, and parameters, moments and counters of the last checkpoint, bit by bit.

Time is scaled in one of two ways. A clock of steps: an interruption comes when the run first reaches a drawn step. That
leaves the time of restarts out of the distance between interruptions, so that a month of them fits into minutes; its
goodput says nothing. A clock of seconds: interruptions come every so many seconds of wall-clock time, restarts included,
so that restart : time between interruptions is what it is on the machine, if one second here stands for as many there as
restarts take there for each second here. Its goodput is measured.
"""
import atexit
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections import deque
from pathlib import Path

import h5py
import numpy

import schedulers
from faults import build
from runs import check, each_rank, program, ranks_of, report_of, root

DAYS, UNEXPECTED, PLANNED = 54, 419, 47
PER_MONTH = round((UNEXPECTED + PLANNED) * 30 / DAYS)  # 259
BETWEEN_THERE = DAYS * 86400 / (UNEXPECTED + PLANNED)  # seconds between two interruptions of any kind

# Cause, its count in the 54 days, and what stands for it here.
CAUSES = [
    ("faulty GPU", 148, "GPU fails"), ("GPU HBM3 memory", 72, "rank killed"), ("software bug", 54, "rank crashes"),
    ("network switch or cable", 35, "rank hangs"), ("host maintenance, unplanned", 32, "host is lost"),
    ("GPU SRAM memory", 19, "GPU fails"), ("GPU system processor", 17, "GPU fails"), ("NIC", 7, "rank hangs"),
    ("NCCL watchdog timeouts", 7, "rank hangs"), ("silent data corruption", 6, "bit flips"),
    ("GPU thermal interface and sensor", 6, "GPU fails"), ("SSD", 3, "writes fail"), ("power supply", 3, "host is lost"),
    ("server chassis", 2, "host is lost"), ("IO expansion board", 2, "host is lost"), ("dependency", 2, "rank crashes"),
    ("CPU", 2, "host is lost"), ("system memory", 2, "host is lost"), ("planned maintenance", PLANNED, "job stopped")]
WHAT = {"GPU fails": "SIGKILL of a rank; its host is replaced by a spare one, its memory is gone",
        "host is lost": "the same, of all its ranks", "rank killed": "SIGKILL of a rank; the host stays", "rank crashes": "SIGSEGV, SIGABRT or SIGBUS of a rank",
        "rank hangs": "SIGSTOP of a rank, until the watchdog ends the run",
        "bit flips": "of a gradient's GEMM or a stored weight of one rank; its host is excluded",
        "writes fail": "of a checkpoint (ENOSPC)", "job stopped": "SIGTERM to all ranks: a last checkpoint"}
DIRECT = ("GPU fails", "host is lost", "rank killed", "rank crashes", "rank hangs")  # at any moment; others in a run that trains

# Waits in a file that it maps for the harness to ask for a fault of this rank, and clears the word when it has done it.
PRELOAD = r"""
#include <fcntl.h>
#include <stdint.h>
#include <sys/mman.h>

static volatile int *word;  /* 1: a gradient, 2: a weight, 3: writes of checkpoints */

__attribute__((constructor)) static void begin(void) {
  const char *const name = getenv("FAULT_FILE");
  const int file = name ? open(name, O_RDWR) : -1;
  if (file < 0) return;
  void *const page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (page != MAP_FAILED) word = page;
  close(file);
}

static void flip(double *value, int bit) {
  uint64_t bits;
  memcpy(&bits, value, sizeof bits);
  bits ^= (uint64_t)1 << bit;
  memcpy(value, &bits, sizeof bits);
}

/* of the layers' MLP: no other GEMM but that of its weights has this inner dimension */
static int is_of_mlp(int k) {
  const char *const width = getenv("FAULT_WIDTH");
  return width && k == atoi(width);
}

enum { transposed = 112 };  /* CblasTrans */

void cblas_dgemm(GEMM_PARAMETERS) {
  REAL(cblas_dgemm);
  if (word && *word == 2 && a_is != transposed && is_of_mlp(k)) {
    flip((double *)b + ldb + 1, 0);
    *word = 0;
  }
  real(GEMM_ARGUMENTS);
  if (word && *word == 1 && a_is == transposed) {
    flip(&c[m / 2 * ldc + n / 2], 62);
    *word = 0;
  }
}

static int refused(int descriptor) {
  if (!word || *word != 3 || strstr(path_of(descriptor), ".partial/checkpoint.h5") == NULL) return 0;
  errno = ENOSPC;
  return 1;
}

ssize_t pwrite64(int descriptor, const void *from, size_t bytes, off64_t at) {
  REAL(pwrite64);
  return refused(descriptor) ? -1 : real(descriptor, from, bytes, at);
}
ssize_t pwrite(int descriptor, const void *from, size_t bytes, off_t at) { return pwrite64(descriptor, from, bytes, at); }
"""

# A rank on each of $HOSTS, as srun would give them.
SRUN = """#!/bin/bash
while [[ "${1:-}" == -* ]]; do shift; done
line=() ranks=0
for host in $HOSTS; do
  line+=(, 1 env NANOTRON_HOST_NAME="$host" LD_PRELOAD="$LIBRARY" FAULT_FILE="$FAULTS/$host" "$@")
  ranks=$((ranks + 1))
done
exec "$NANOTRON_MPIEXEC" -n "$ranks" "$EACH_RANK" "${line[@]:1}"
"""

GRIDS = {"dp": "parallel.dp=2 parallel.tp=1", "tp": "parallel.tp=2", "pp": "parallel.pp=2 parallel.tp=1"}
WIDTH = {"dp": 88, "tp": 44, "pp": 88}
# What such a run would have on. Copies and checkpoints: every so many steps.
KEYS = ("precision.compute=fp64 run.spike_factor=100 run.max_nonfinite_steps=3 run.check_memory_every=1 "
        "checkpoint.asynchronous=true checkpoint.keep_last=2 output.console=quiet")


class Event:
    def __init__(self, number, at, cause, fault, in_start):
        self.number, self.at, self.cause, self.fault = number, at, cause, fault
        self.in_start = in_start  # seconds after the launch of a start, if it comes while the program starts
        self.host, self.code, self.asked, self.ended = "", 0, 0.0, 0.0  # what came of it


def drawn(count, between, chance, share_of_starts=0.0):
    """So many events, on average `between` apart; causes in the shares of the report (systematic sampling). A share of those
    that end a rank comes while the program starts."""
    total = sum(weight for _, weight, _ in CAUSES)
    edges = numpy.cumsum([weight for _, weight, _ in CAUSES])
    offset = chance.random()
    picks = [int(numpy.searchsorted(edges, (k + offset) * total / count, side="right")) for k in range(count)]
    chance.shuffle(picks)
    events, at = [], 0.0
    for number, pick in enumerate(picks):
        at += chance.expovariate(1 / between)
        cause, _, fault = CAUSES[pick]
        in_start = None
        if fault == "bit flips" and chance.random() < 0.5:
            in_start = 0.0  # in the first step
        elif number > 0 and fault in ("rank killed", "rank crashes") and chance.random() < share_of_starts:
            in_start = chance.uniform(0.05, 0.6)
        events.append(Event(number, at, cause, fault, in_start))
    return events


def evenly(count, between, chance):
    """As drawn(), one event at a uniformly drawn moment of each interval: a small sample has the rate it should have."""
    events = drawn(count, between, chance)
    for event in events:
        event.at = (event.number + chance.random()) * between
    return events


def in_memory(folder):
    """A folder for the memory of the hosts, removed at the end."""
    if not os.access("/dev/shm", os.W_OK):
        return folder / "memory"
    made = Path(tempfile.mkdtemp(prefix="nanotron_month_", dir="/dev/shm"))
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return made


class Month:
    """One run, from its first job to its end."""

    def __init__(self, case, grid, keys, events, clock, chance, steps=0):
        self.case, self.events, self.clock, self.chance = case, deque(events), clock, chance
        self.done, self.launches, self.high, self.log_at, self.steps, self.stuck = [], 0, 0, 0, [], 0
        self.last = steps - 100  # no event later: its start would be over before anybody is harmed
        self.memory, self.faults = in_memory(case.folder), case.folder / "faults"
        self.options = [word for key in f"{GRIDS[grid]} {KEYS} {keys} checkpoint.neighbour_directory={self.memory}/%h".split()
                        for word in ("--set", key)]
        self.active, self.spares, self.excluded = ["n1", "n2"], deque(f"n{i}" for i in range(3, 30)), set()
        self.faults.mkdir()
        log = case.folder / "scheduler.log"
        log.touch()
        environment = schedulers.install(case.folder / "stand_ins", log)
        (case.folder / "stand_ins" / "srun").write_text(SRUN)
        # A month has more restarts than MAX_RESTARTS allows, and failures here follow each other faster than there.
        environment.update(PROGRAM=program, LIBRARY=str(build(case.folder, PRELOAD)), FAULTS=str(self.faults),
                           EACH_RANK=each_rank, FAULT_WIDTH=str(WIDTH[grid]), MAX_RESTARTS="100000", MAX_FAILURES="10", SLURM_JOB_NUM_NODES="2",
                           OMPI_MCA_odls_base_sigkill_timeout="0")  # as srun --kill-on-bad-exit
        self.environment = environment

    def logged(self):
        """The steps that the log has of this start."""
        try:
            with open(self.case.out / "run.log", "rb") as file:
                file.seek(self.log_at)
                text = file.read()
        except OSError:
            return self.steps
        whole = text[:text.rfind(b"\n") + 1]
        self.log_at += len(whole)
        self.steps += [int(step) for step in re.findall(rb"step +(\d+)/\d+  loss", whole)]
        return self.steps

    def start(self):
        """The job runs again, on the hosts that it has now."""
        for host in self.active:
            (self.memory / host).mkdir(parents=True, exist_ok=True)
            (self.faults / host).write_bytes(bytes(4096))
        self.launches += 1
        log = self.case.out / "run.log"
        self.log_at, self.steps = log.stat().st_size if log.exists() else 0, []
        self.output = self.case.folder / f"job_{self.launches:04}.log"
        with open(self.output, "w", encoding="utf-8") as file:
            return subprocess.Popen(
                ["sbatch", str(root / "jobscripts/slurm.sh"), str(self.case.deck), *self.options], cwd=self.case.folder,
                stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT,
                env=dict(self.environment, HOSTS=" ".join(self.active), EXCLUDED=",".join(sorted(self.excluded)),
                         SLURM_RESTART_COUNT=str(self.launches - 1)))

    def replace(self, host):
        """It leaves, and what was in its memory with it. Repaired, it is a spare one again, unless the run excludes it."""
        shutil.rmtree(self.memory / host, ignore_errors=True)
        self.active[self.active.index(host)] = self.spares.popleft()
        if host not in self.excluded:
            self.spares.append(host)

    def exclude(self):
        """As a scheduler does for a job that asks for other hosts."""
        file = self.case.out / "excluded_hosts"
        self.excluded = {line.split()[0] for line in file.read_text().splitlines()} if file.exists() else set()
        for host in self.excluded & set(self.active):
            self.replace(host)

    def rank_on(self, host):
        for process in ranks_of(self.case):
            try:
                words = open(f"/proc/{process}/environ", "rb").read().split(b"\0")
            except OSError:
                continue
            if b"NANOTRON_HOST_NAME=" + host.encode() in words:
                return process
        return None

    def harm(self, event):
        """Makes it happen. False: there is nobody to harm."""
        event.host = self.chance.choice(self.active)
        if event.in_start is None:
            time.sleep(self.chance.uniform(0.0, 0.1))  # steps are logged at their ends
        if event.fault in ("bit flips", "writes fail"):
            kind = self.chance.choice([1, 2]) if event.fault == "bit flips" else 3
            for host in [event.host] if event.fault == "bit flips" else self.active:  # whoever writes
                with open(self.faults / host, "r+b") as file:
                    file.write(bytes([kind]))
            return True
        number = {"job stopped": signal.SIGTERM, "rank hangs": signal.SIGSTOP, "rank crashes": self.chance.choice(
            [signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS])}.get(event.fault, signal.SIGKILL)
        victims = ranks_of(self.case) if event.fault == "job stopped" else [self.rank_on(event.host)]
        if not victims or None in victims:
            return False
        for victim in victims:
            try:
                os.kill(victim, number)
            except ProcessLookupError:
                return False
        return True

    def is_due(self, event, launched, steps):
        """steps: of this start. The program knows what its memory should hold once it has updated it."""
        if self.high > self.last:
            return False
        if event.in_start is not None:
            return time.time() - launched >= event.in_start
        if self.clock == "steps":
            return bool(steps) and self.high >= event.at and len(steps) > 1
        return time.time() - self.begin >= event.at and (event.fault in DIRECT or len(steps) > 1)

    def one_job(self):
        """Until the next event ends the job, or the run is finished: then True."""
        job, launched, event, gone = self.start(), time.time(), None, 0.0
        while job.poll() is None:
            steps = self.logged()
            self.high = max([self.high, *steps[-1:]])
            if event is None and self.events and self.is_due(self.events[0], launched, steps):
                if self.harm(self.events[0]):
                    event = self.events.popleft()
                    event.asked = time.time()
            check(time.time() - launched < 3600, "a job ends", self.text())
            if event is not None and time.time() - event.asked > 5:
                gone = (gone or time.time()) if not ranks_of(self.case) else 0.0
                check(gone or time.time() - event.asked < 60, f"{event.fault} on {event.host} ends the job", self.text())
                if gone and time.time() - gone > 5:
                    self.end_launcher(job)
            time.sleep(0.01)
        end = time.time() + 20
        while ranks_of(self.case):
            check(time.time() < end, "no rank is left behind", self.text())
            time.sleep(0.01)
        return self.judge(job.returncode, event)

    def end_launcher(self, job):
        """Open MPI's may wait for a lock of its own forever (PMIx 4, PMIx_server_finalize)."""
        for child in Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text().split():
            try:
                os.kill(int(child), signal.SIGKILL)
            except ProcessLookupError:
                continue
            self.stuck += 1
        time.sleep(0.2)

    def text(self):
        log = self.case.out / "run.log"
        return self.output.read_text() + (log.read_text()[-3000:] if log.exists() else "")

    def judge(self, code, event):
        text = self.text()
        if code == 0:
            # What came too late to be met: a flip after the last GEMM, say.
            if event is not None:
                self.events.appendleft(self.done.pop() if event in self.done else event)
            return True
        check(event is not None, f"the job ended with {code} by itself", text)
        event.ended, event.code = time.time(), code
        self.done.append(event)
        what = f"{event.fault} on {event.host}"
        check("requeueing" in text or "submitting a dependent job" in text, f"{what}: the job is submitted again", text)
        if event.fault == "rank hangs":
            check(code == 71 and "the run hangs" in text, f"{what}: the watchdog ends it, not {code}", text)
        if event.fault == "job stopped":
            check(code == 75, f"{what}: it ends in time, not with {code}", text)
        if event.fault == "writes fail":
            check(code == 71, f"{what}: it is told, not {code}", text)
        if event.fault == "bit flips":
            self.exclude()
            check(code == 71 and event.host in self.excluded, f"{what} is found, with {code}: {self.excluded}", text)
        if event.fault in ("GPU fails", "host is lost"):
            self.replace(event.host)
        return False

    def compare(self, reference):
        """Rows that the run has now with those of the undisturbed one."""
        with h5py.File(self.case.out / "metrics.h5") as file:
            steps = file["step"][()]
            rows = {name: file[name][()] for name in ("token_hash", "loss", "grad_norm")}
        for name, values in rows.items():
            count = min(len(values), len(steps))
            same = values[:count].tobytes() == reference[name][steps[:count] - 1].tobytes()
            check(same, f"{name} of steps to {steps[-1] if len(steps) else 0} has the bits of the undisturbed run", self.text())
        return len(steps)

    def run(self, reference=None):
        """reference: of reference_of(), compared after each interruption and at the end."""
        self.begin = time.time()
        while not self.one_job():
            if reference and (self.case.out / "metrics.h5").exists():
                self.compare(reference)
        self.wall = time.time() - self.begin
        if reference:
            rows = self.compare(reference)
            check(rows == len(reference["loss"]), f"{rows} steps are recorded")

    def ledger(self):
        return self.ledger_of(self.case)

    @staticmethod
    def ledger_of(case):
        return report_of(case)["ledger"]


def undisturbed(case, grid, keys, chance):
    """A run of all steps in one start. Its rows and its seconds of wall-clock time."""
    run = Month(case, grid, keys, [], "steps", chance)
    run.run()
    check(run.launches == 1, "nobody disturbs the undisturbed run", run.text())
    with h5py.File(case.out / "metrics.h5") as file:
        return {name: file[name][()] for name in ("step", "token_hash", "loss", "grad_norm", "seconds")}, run.wall


def account(month, steps):
    """The ledger of a run that is over, after checks that it adds up and tells what was done to the run."""
    ledger = month.ledger()
    told, seconds = json.dumps(ledger, indent=1), ledger["seconds"]
    total = sum(seconds.values())
    # Before the first start begins and after the last output of the last: the job script, mpiexec, the exit.
    check(0 < month.wall - total < 5.0 + 0.01 * month.wall, f"all classes are {total:.2f} s of {month.wall:.2f} s", told)
    check(all(s["seconds"][name] > -1e-3 for s in ledger["starts"] for name in s["seconds"]), "no negative time", told)
    check(sum(s["steps_kept"] for s in ledger["starts"]) == steps, "every step is kept once", told)
    kept = [s for s in ledger["starts"] if s["steps_kept"]]
    for one, following in itertools.pairwise(kept):
        check(one["from_step"] + one["steps_kept"] == following["from_step"], "each continues where another was kept", told)
    check(all(s["seconds"]["useful"] > 0 for s in kept), "steps that are kept took time", told)
    ends = [s["end"] for s in ledger["starts"]]
    of = lambda *faults: sum(event.fault in faults for event in month.done)  # noqa: E731
    for end, number in (("finished", 1), ("stopped", of("job stopped")), ("failed", of("bit flips", "writes fail"))):
        check(ends.count(end) == number, f"{number} starts {end}", told)
    check(month.launches == len(month.done) + 1, f"{month.launches} starts after {len(month.done)} interruptions")
    return ledger


def table_of_faults(month, ledger):
    """Interruptions by what stood for their causes."""
    lines = ["| interruption | causes | of them | ended within, median and longest |", "|---|---|---|---|"]
    for fault, what in WHAT.items():
        events = [event for event in month.done if event.fault == fault]
        if not events:
            continue
        took = sorted(event.ended - event.asked for event in events)
        causes = ", ".join(cause for cause, _, of in CAUSES if of == fault)
        lines.append(f"| {fault}: {what} | {causes} | {len(events)} | {took[len(took) // 2]:.1f} s, {took[-1]:.1f} s |")
    lost = sum(s["steps_lost"] for s in ledger["starts"])
    lines.append(f"| all | | {len(month.done)} | {lost} steps were computed twice |")
    return "\n".join(lines)
