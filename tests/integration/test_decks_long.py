#!/usr/bin/env python3
# ranks: 1
# timeout: 3600
# labels: long
"""The deck reader against gfortran on 200,000 generated decks.

    test_decks_long.py <folder of the programs>
"""
import os
import subprocess
import sys
import time
from pathlib import Path

judge = Path(sys.argv[1]).resolve().parent / "tests/deck/test_deck_gfortran"
first = int(os.environ.get("NANOTRON_SEED", str(int(time.time()))))
for seed in range(first, first + 20):
    environment = dict(os.environ, NANOTRON_SEED=str(seed), NANOTRON_DECKS="10000")
    subprocess.run([os.environ["NANOTRON_MPIEXEC"], "-n", "1", str(judge)], env=environment, check=True)
