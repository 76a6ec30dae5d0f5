#!/usr/bin/env python3
# ranks: 4
# timeout: 300
"""A batch that makes the gradient norm a spike: the update is skipped, or training goes back to the last checkpoint and
leaves the batches since then out. Either way the same bits on any grid, after a resume and whenever the disk is done
with a checkpoint, and on record.

    test_bad_steps.py <folder of the programs>        NANOTRON_SEED (the time) chooses the delays
"""
import os
import random
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import h5py

from faults import SLOW_DISK, build, run_with_faults, write_spikes
from runs import Case, check, state_at

STEPS, BATCH, LENGTH, BAD = 30, 8, 16, 22  # the bad batch is that of step 22; checkpoints every 5 steps
GRIDS = {"tp": ["parallel.tp=2"], "dp": ["parallel.tp=1", "parallel.dp=2"], "pp": ["parallel.tp=1", "parallel.pp=2"],
         "zero": ["parallel.tp=1", "parallel.dp=2", "parallel.zero_stage=2"],
         "zero 3": ["parallel.tp=1", "parallel.dp=2", "parallel.zero_stage=3"],
         # The check reads the weights of every step, so that forward finds them gathered.
         "zero, host": ["parallel.tp=1", "parallel.dp=2", "parallel.zero_stage=2", "optimizer.state_memory=host",
                        "run.check_memory_every=1"]}
SAME = ["precision.reproducible=layout", "precision.compute=fp64", "data.shuffle=none", "optimizer.learning_rate=0.02"]


def metrics_of(case):
    with h5py.File(case.out / "metrics.h5") as file:
        bad = {name: column[()].tolist() for name, column in file["bad_steps"].items()} if "bad_steps" in file else {}
        return {name: file[name][()] for name in ("step", "token_hash", "grad_norm")}, bad


class Run:
    def __init__(self, tokens, run):
        self.case = Case("bad_steps", steps=STEPS, tokens=tokens, run=run, checkpoint="keep_last = 0")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.case.__exit__()

    def go(self, what, grid, code=0, more=()):
        found, text = self.case.run(*(word for key in [*SAME, *GRIDS[grid], *more] for word in ("--set", key)))
        check(found == code, f"{what}, {grid}: exit code {found}, not {code}", text)
        return text


def numbers(run):
    return state_at(run.case, STEPS), metrics_of(run.case)


def the_same(what, a, b):
    check(a[0] == b[0], f"{what}: other bits of the end state")
    check((a[1][0]["token_hash"] == b[1][0]["token_hash"]).all(), f"{what}: other tokens")
    check(a[1][1] == b[1][1], f"{what}: other bad steps", f"{a[1][1]}\n{b[1][1]}")


def bad_step(folder, policy):
    """On all grids, and stopped before and after the bad step."""
    rule = f"spike_factor = 5 max_nonfinite_steps = 1 on_bad_step = '{policy}'"
    with Run(folder / "bad.h5", rule) as whole:
        text = whole.go(policy, "tp")
        check("recomputing the step" in text, f"{policy}: it is computed again", text)
        reference = numbers(whole)
    metrics, bad = reference[1]
    check(bad["step"] == [BAD] and bad["first_sample"] == [(BAD - 1) * BATCH], f"{policy}: the bad step", str(bad))
    check(metrics["step"].tolist() == list(range(1, STEPS + 1)), f"{policy}: a row for each step", str(metrics["step"]))
    with Run(folder / "good.h5", rule) as good:  # the same tokens except that batch
        good.go("no bad batch", "dp", more=["run.spike_factor=0"])
        hashes = metrics_of(good.case)[0]["token_hash"].tolist()
    back = 20 if policy == "roll_back" else BAD  # training continues after that step
    left_out = BAD - back
    here = metrics["token_hash"].tolist()
    check(here[:back - 1] == hashes[:back - 1], f"{policy}: the tokens before")
    check(here[BAD:STEPS - left_out] == hashes[BAD + left_out:STEPS], f"{policy}: {left_out} batches are left out")
    cursor = (STEPS + left_out) * BATCH
    check(reference[0]["state"]["sample_cursor"] == cursor, f"{policy}: the cursor", str(reference[0]["state"]))
    check(bad["left_out_from"] == [(back if policy == "roll_back" else BAD - 1) * BATCH], "the samples left out", str(bad))
    check(bad["next_step"] == [back + 1], f"{policy}: the next step", str(bad))
    for grid in ("dp", "pp", "zero", "zero 3", "zero, host"):
        with Run(folder / "bad.h5", rule) as other:
            other.go(policy, grid)
            the_same(f"{policy} on {grid}", reference, numbers(other))
    for stop in (18, 25):
        with Run(folder / "bad.h5", rule) as resumed:
            resumed.go(policy, "tp", code=75, more=[f"run.stop_after_steps={stop}"])
            resumed.go(policy, "dp")
            the_same(f"{policy}, stopped after {stop} steps", reference, numbers(resumed))
    return f"{policy}: the same bits on five grids and after resumes"


def limits(folder):
    """More bad steps than max_nonfinite_steps end the run with 70, whatever is done about them."""
    for policy, grid in (("skip", "dp"), ("roll_back", "dp"), ("skip", "zero 3")):
        with Run(folder / "worse.h5", f"spike_factor = 5 max_nonfinite_steps = 1 on_bad_step = '{policy}'") as run:
            text = run.go(policy, grid, code=70)
            check("the gradient norm is a spike" in text and "gradient norm of at most" in text, policy, text)
    with Run(folder / "again.h5", "spike_factor = 5 max_nonfinite_steps = 2 on_bad_step = 'roll_back'") as run:
        text = run.go("the first step after a checkpoint is always bad", "dp", code=70)
        check(text.count("back to step 15") == 2 and "3 after the checkpoint of step 15" in text, "it ends", text)
    with Run(folder / "bad.h5", "on_bad_step = 'roll_back'") as run:
        check("max_nonfinite_steps >= 1" in run.go("no limit", "dp", code=78), "a limit is asked for")
    return "limits: 70"


def damaged(folder):
    """The checkpoint to go back to is damaged: training goes back to the one before it."""
    with Run(folder / "bad.h5", "spike_factor = 5 max_nonfinite_steps = 1 on_bad_step = 'roll_back'") as run:
        run.go("before", "dp", code=75, more=["run.stop_after_steps=21"])
        with open(run.case.out / "checkpoints/step_00000020/checkpoint.h5", "r+b") as file:
            file.seek(5000)
            byte = file.read(1)
            file.seek(5000)
            file.write(bytes([byte[0] ^ 1]))
        text = run.go("damaged", "dp")
        check("is damaged in block" in text and "back to step 15" in text, "to the one before", text)
    return "a damaged checkpoint to go back to: the one before"


def slow_disks(folder, seed):
    """Which checkpoint is known good does not depend on when the disk is done with it."""
    rule = "spike_factor = 5 max_nonfinite_steps = 1 on_bad_step = 'roll_back'"
    with Run(folder / "bad.h5", rule) as plain:
        plain.go("synchronous", "dp")
        expected = numbers(plain)
    chance = random.Random(seed)
    library = build(folder, SLOW_DISK)
    for draw in range(10):
        seconds, rank = chance.choice([0.0, 0.05, 0.2, 0.5]) * chance.random(), chance.randrange(2)
        with Run(folder / "bad.h5", rule) as later:
            keys = [*SAME, *GRIDS["dp"], "checkpoint.asynchronous=true"]
            code, text = run_with_faults(later.case, library, rank,
                                         {"SLOW_FILE": ".partial/checkpoint.h5", "SLOW_SECONDS": seconds},
                                         *(word for key in keys for word in ("--set", key)))
            what = f"NANOTRON_SEED={seed}: draw {draw}, {seconds} s on rank {rank}"
            check(code == 0 and "back to step 20" in text, what, text)
            check("step      20/30  checkpoint written" in text, f"{what}: the log has each checkpoint", text)
            the_same(what, expected, numbers(later))
    return "slow disks: the same bits whenever a checkpoint is on the disk"


def no_change(folder):
    """A run without a bad step has the same bits with the keys as without them."""
    with Run(folder / "good.h5", "") as plain, Run(folder / "good.h5", "spike_factor = 1000 check_memory_every = 1") as guarded:
        plain.go("plain", "dp")
        guarded.go("guarded", "dp")
        a, b = state_at(plain.case, STEPS), state_at(guarded.case, STEPS)
        check(len(b["state"].pop("recent_grad_norms")) == STEPS, "the norms of all updates are kept")
        check(a == b, "other bits")
    with Run(folder / "good.h5", "check_memory_every = 1") as fp8:
        fp8.go("fp8", "dp", more=["precision.compute=fp8", "precision.reproducible=run", "run.steps=4"])
    return "the keys change no bit"


with tempfile.TemporaryDirectory() as name:
    folder = Path(name)
    write_spikes(folder / "good.h5", [], STEPS, BATCH * LENGTH)
    write_spikes(folder / "bad.h5", [BAD], STEPS, BATCH * LENGTH)
    write_spikes(folder / "worse.h5", [BAD, BAD + 1, BAD + 2], STEPS, BATCH * LENGTH)
    # Back to 15 from 21, and once more from the 21 that follows: the checkpoint of 20 is never known to be good.
    write_spikes(folder / "again.h5", [21, 27, 33], STEPS, BATCH * LENGTH)
    with ThreadPoolExecutor(2) as pool:
        seed = int(os.environ.get("NANOTRON_SEED", str(int(time.time()))))
        jobs = [pool.submit(bad_step, folder, "skip"), pool.submit(bad_step, folder, "roll_back"),
                pool.submit(limits, folder), pool.submit(damaged, folder), pool.submit(no_change, folder)]
        if os.environ.get("NANOTRON_SANITIZE") != "ON":  # which wants to be loaded first
            jobs.append(pool.submit(slow_disks, folder, seed))
    for job in jobs:
        print(job.result())
sys.exit(0)
