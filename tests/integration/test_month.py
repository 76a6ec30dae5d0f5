#!/usr/bin/env python3
# ranks: 2
# timeout: 1000
"""A day of a large machine in small (month.py): a run under the job script whose hosts, ranks, network and memory fail as
those of Llama 3 did ends with the bits of one that nobody disturbed, and its ledger adds up.

    test_month.py <folder of the programs>        NANOTRON_INTERRUPTIONS (8) and NANOTRON_SEED (the time) choose
"""
import os
import random
import time

from faults import skip_under_sanitizers
from month import GRIDS, Month, account, drawn, table_of_faults, undisturbed
from runs import Case, check, state_at

BETWEEN = 150  # steps
KEYS = "checkpoint.every_steps=110 checkpoint.neighbour_every_steps=40 run.hang_timeout=4 run.log_every=10"


def main(count, seed):
    skip_under_sanitizers()
    print(f"NANOTRON_INTERRUPTIONS={count} NANOTRON_SEED={seed}", flush=True)
    chance, steps = random.Random(seed), count * BETWEEN
    grid = chance.choice(list(GRIDS))
    with Case("whole", steps=steps) as whole, Case("month", steps=steps) as case:
        rows, _ = undisturbed(whole, grid, KEYS, chance)
        month = Month(case, grid, KEYS, drawn(count, BETWEEN * 0.9, chance, 0.1), "steps", chance, steps)
        month.run(rows)
        check(state_at(case, steps) == state_at(whole, steps), "parameters, moments and counters have the same bits")
        ledger = account(month, steps)
        check(len(month.done) >= count // 2, f"{len(month.done)} of {count} interruptions came", month.text())
        print(table_of_faults(month, ledger))
        print(f"{grid}: {len(month.done)} interruptions in {month.wall:.0f} s, the same bits; "
              + ", ".join(f"{name} {value:.1f} s" for name, value in ledger["seconds"].items()))


main(int(os.environ.get("NANOTRON_INTERRUPTIONS", "8")), int(os.environ.get("NANOTRON_SEED", str(int(time.time())))))
