#!/usr/bin/env python3
# ranks: 2
# timeout: 240
"""Ranks killed at random moments: the run continues from its newest checkpoint and ends with the same bits.

    test_kills.py <folder of the programs>        NANOTRON_KILLS (3) and NANOTRON_SEED (the time) choose
"""
import os
import random
import time

from runs import Case, Tally, check, kill_all, killed_end, ranks_of, state_at, wait_for

STEPS = 120


def kill_once(case, chance):
    """Starts the run, kills one rank or all of them a moment later. False when it was done before."""
    running = case.start()
    wait_for(case.out / "run.log")
    time.sleep(chance.uniform(0.0, 2.5))
    victims = ranks_of(case)
    if victims and chance.random() < 0.5:
        victims = [chance.choice(victims)]
    kill_all(victims)
    text = killed_end(case, running)
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
        expected = state_at(whole, STEPS)
    done, tally = 0, Tally()
    while done < kills:
        later = chance.choice(["true", "true", "false"])
        os.environ["NANOTRON_MPI_THREADS"] = chance.choice(["multiple", "multiple", "funneled"])
        with Case("killed", steps=STEPS, checkpoint=f"keep_last = 2 asynchronous = .{later}.") as case:
            while done < kills and kill_once(case, chance):
                done += 1
            code, text = case.run()
            check(code == 0, f"after {done} kills the run finishes, with {code} (asynchronous: {later})", text)
            check(state_at(case, STEPS) == expected, f"after {done} kills the last checkpoint has the same bits", text)
    for _ in range(done):
        tally.add("kills of ranks", "same bits")
    tally.print()


main(int(os.environ.get("NANOTRON_KILLS", "3")), int(os.environ.get("NANOTRON_SEED", str(int(time.time())))))
