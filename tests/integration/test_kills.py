#!/usr/bin/env python3
# ranks: 2
# timeout: 240
"""Ranks killed at random moments: the run goes on from its newest checkpoint and ends with the same bits.

    test_kills.py <folder of the programs>        NANOTRON_KILLS (3) and NANOTRON_SEED (the time) choose
"""
import os
import random
import signal
import subprocess
import time

import h5py
from runs import Case, check, ranks_of, wait_for

STEPS = 120


def state(case):
    """Every tensor of the last checkpoint as bytes, and the counters."""
    content = {}
    with h5py.File(case.out / f"checkpoints/step_{STEPS:08d}/checkpoint.h5") as file:
        for group in ("parameters", "optimizer"):
            file[group].visititems(lambda name, item, group=group: content.__setitem__(
                f"{group}/{name}", item[()].tobytes()) if isinstance(item, h5py.Dataset) else None)
        content["state"] = {key: int(value) for key, value in file["state"].attrs.items()}
    return content


def kill_once(case, chance):
    """Starts the run, kills one rank or all of them a moment later. False when it was done before."""
    running = case.start()
    wait_for(case.out / "run.log")
    time.sleep(chance.uniform(0.0, 2.5))
    victims = ranks_of(case)
    if victims and chance.random() < 0.5:
        victims = [chance.choice(victims)]
    for rank in victims:
        try:
            os.kill(rank, signal.SIGKILL)
        except ProcessLookupError:
            pass
    text, _ = running.communicate(timeout=60)
    end = time.time() + 20
    while ranks_of(case) and time.time() < end:
        time.sleep(0.05)
    check(not ranks_of(case), "no rank is left behind", text)
    return running.returncode != 0


def main(kills, seed):
    print(f"NANOTRON_KILLS={kills} NANOTRON_SEED={seed}", flush=True)
    chance = random.Random(seed)
    with Case("whole", steps=STEPS, checkpoint="keep_last = 2") as whole:
        code, text = whole.run()
        check(code == 0, "the run that nobody disturbs finishes", text)
        expected = state(whole)
    done = 0
    while done < kills:
        with Case("killed", steps=STEPS, checkpoint="keep_last = 2") as case:
            while done < kills and kill_once(case, chance):
                done += 1
            code, text = case.run()
            check(code == 0, f"after {done} kills the run finishes, with {code}", text)
            check(state(case) == expected, f"after {done} kills the last checkpoint has the same bits", text)
    print(f"{done} kills: the same bits")


main(int(os.environ.get("NANOTRON_KILLS", "3")), int(os.environ.get("NANOTRON_SEED", str(int(time.time())))))
