#!/usr/bin/env python3
# ranks: 1
# timeout: 3600
# labels: long
"""The deck reader against gfortran on 200,000 generated decks.

    test_decks_long.py <folder of the programs>
"""
import os
import re
import subprocess
import sys
import time
from pathlib import Path

from runs import check, mpiexec

DECKS = 10000
judge = Path(sys.argv[1]).resolve().parent / "tests/deck/test_deck_gfortran"
first = int(os.environ.get("NANOTRON_SEED", str(int(time.time()))))
for seed in range(first, first + 20):
    environment = dict(os.environ, NANOTRON_SEED=str(seed), NANOTRON_DECKS=str(DECKS))
    done = subprocess.run([mpiexec, "-n", "1", str(judge)], env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    judged = sum(int(count) for count in re.findall(r"^ *(\d+)  ", done.stdout, re.MULTILINE))
    check(done.returncode == 0 and judged >= DECKS, f"NANOTRON_SEED={seed}: {judged} decks are read alike", done.stdout)
    print(done.stdout, flush=True)
