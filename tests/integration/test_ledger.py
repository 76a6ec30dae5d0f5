#!/usr/bin/env python3
# ranks: 2
# timeout: 900
"""The ledger of a run that is killed at drawn moments: its classes sum up to the wall-clock time, and each start kept the
steps before the checkpoint from which the next one went on.

    test_ledger.py <folder of the programs>        NANOTRON_SEED draws the moments
"""
import importlib.util
import itertools
import json
import os
import random
import re
import time

import h5py
import numpy

from runs import Case, check, kill_all, killed_end, ranks_of, report_of, wait_for
from skips import lacking

STEPS, KILLS, QUEUED = 1500, 3, 5.0
seed = int(os.environ.get("NANOTRON_SEED") or random.SystemRandom().randrange(10000))
draw = random.Random(seed)
print(f"NANOTRON_SEED={seed}")


def steps_logged(case):
    found = re.findall(r"step +(\d+)/", (case.out / "run.log").read_text())
    return int(found[-1]) if found else 0


def report(case):
    return report_of(case)["ledger"]


def rows(case, group):
    with h5py.File(case.out / "metrics.h5") as file:
        return {name: item[()] for name, item in file[group].items()}


with Case("ledger", steps=STEPS, checkpoint="keep_last = 0") as case:
    os.environ["NANOTRON_SUBMIT_TIME"] = os.environ["NANOTRON_JOB_START_TIME"] = f"{time.time():.3f}"
    begin = time.time()
    moments = []
    for kill in range(KILLS):
        running = case.start("--set", f"checkpoint.every_steps={25 if kill else 1000}")
        before = steps_logged(case) if (case.out / "run.log").exists() else 0
        wait_for(case.out / "run.log")
        # The first is killed before its first checkpoint, which makes the next one begin again.
        until = draw.randrange(5, 20) if kill == 0 else before + draw.randrange(30, 350)
        end = time.time() + 60
        while steps_logged(case) < until or (kill > 0 and steps_logged(case) == before):
            check(time.time() < end and running.poll() is None, "the run goes on", (case.out / "run.log").read_text())
            time.sleep(0.01)
        kill_all(ranks_of(case))
        killed_end(case, running)
        moments.append(steps_logged(case))
        time.sleep(draw.random())
    # The ledger is written with the checkpoints: its last start has steps to lose where the newest of them is damaged.
    newest = sorted((case.out / "checkpoints").glob("step_????????"))[-1]
    os.truncate(newest / "checkpoint.h5", 1000)
    submitted = time.time()
    time.sleep(QUEUED)
    started = time.time()
    os.environ["NANOTRON_SUBMIT_TIME"], os.environ["NANOTRON_JOB_START_TIME"] = f"{submitted:.3f}", f"{started:.3f}"
    code, text = case.run("--set", "checkpoint.every_steps=25")
    wall = time.time() - begin
    check(code == 0, "the last start", text)

    ledger = report(case)
    starts, seconds = ledger["starts"], ledger["seconds"]
    told = json.dumps(ledger, indent=1)
    check(len(starts) == KILLS + 1, "a row for each start", told)
    total = sum(seconds.values())
    check(abs(total - wall) < 1 + 0.02 * wall, f"all classes are {total:.2f} s of {wall:.2f} s", told)
    check(abs(total - ledger["wall_seconds"]) < 1e-6 and 0 < ledger["goodput"] < 1, "goodput", told)
    check(abs(seconds["queued"] - (started - submitted)) < 0.01, f"{seconds['queued']:.2f} s in the queue", told)
    check([s["end"] for s in starts] == ["killed"] * KILLS + ["finished"], "how they ended", told)
    check(starts[0]["steps_kept"] == 0 and starts[1]["from_step"] == 0, "no checkpoint of the first", told)
    check(sum(s["steps_kept"] for s in starts) == STEPS, "every step is kept once", told)
    for one, following in itertools.pairwise(starts):
        check(one["from_step"] + one["steps_kept"] == following["from_step"], "each continues where another was kept", told)
        check(0 <= one["steps_lost"] <= 200 and (one["seconds"]["lost"] > 0) == (one["steps_lost"] > 0), "lost steps", told)
    check(starts[-2]["steps_lost"] > 0 and seconds["lost"] == sum(s["seconds"]["lost"] for s in starts), "those of the damaged one", told)
    check(all(s["seconds"][name] > -1e-3 for s in starts for name in s["seconds"]), "no negative time", told)
    check("tp 2" in starts[0]["grid"] and starts[0]["hosts"], "grid and hosts", told)

    # Useful time is that of the steps in the metrics, and what comes between steps.
    with h5py.File(case.out / "metrics.h5") as file:
        of_steps = file["seconds"][()].sum()
        check(file["starts/last"].dims[0].keys() == ["start"], "the number of the start is the scale")
    check(0.9 * of_steps < seconds["useful"] < 1.5 * of_steps + 1, f"{of_steps:.2f} s of steps", told)
    table = rows(case, "starts")
    check((numpy.diff(table["begin"]) > 0).all() and (table["last"] > table["begin"]).all(), "times", str(table))
    absent = [name for name in ("xarray", "h5netcdf") if importlib.util.find_spec(name) is None]
    if absent:
        lacking(f"Python has no {absent[0]}: metrics.h5 in xarray")
    else:
        import xarray
        with xarray.open_dataset(case.out / "metrics.h5", group="starts", engine="h5netcdf") as data:
            check(data.sizes["start"] == KILLS + 1 and float(data.training_seconds.sum()) > 0, "xarray", str(data))

print(f"ledger: {wall:.1f} s of wall-clock time, {total:.1f} s in classes: "
      + ", ".join(f"{name} {value:.2f}" for name, value in seconds.items()))
