#!/usr/bin/env python3
"""Runs the tests that plant faults, with as many as asked for, and prints one table of what became of them.

    tests/fault_table.py <folder of the programs> [--faults 4000] [--seed N] [--jobs 2] [--markdown FILE]

Each fault is a run of the program. A run that ends with other bits, without a word, by a signal or not at all ends its
test: the row "FAILED" says which, and the exit code is 1. About a second a fault on two cores. A table that is interrupted has
what was counted until then in the file of --markdown.
"""
import argparse
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

TESTS = Path(__file__).resolve().parent / "integration"
# Test, its variable, its share of all faults, what one counts as.
SHARES = [("test_damage.py", "NANOTRON_FAULTS", 0.40), ("test_read_faults.py", "NANOTRON_FAULTS", 0.11),
          ("test_write_faults.py", "NANOTRON_FAULTS", 0.11), ("test_metadata_faults.py", "NANOTRON_FAULTS", 0.10),
          ("test_kills.py", "NANOTRON_KILLS", 0.05), ("test_phase_kills.py", "NANOTRON_KILLS", 0.10),
          ("test_memory_flips.py", "NANOTRON_FAULTS", 0.05), ("test_data_faults.py", "NANOTRON_FAULTS", 0.04)]  # the last plants two for each
PYTHON = os.environ.get("NANOTRON_PYTHON", sys.executable)
MOST = 50  # of one run of a test
OUTCOMES = ["same bits", "refused", "ended with 71", "not met"]


def pieces(faults):
    """(test, variable, number of faults) of each run of a test; those of all tests spread over the whole."""
    plan = []
    for test, variable, share in SHARES:
        left = max(1, round(faults * share))
        runs = -(-left // MOST)
        for i in range(runs):
            plan.append(((i + 0.5) / runs, (test, variable, min(MOST, left - i * MOST))))
    return [piece for _, piece in sorted(plan)]


def run(test, variable, count, seed, programs):
    environment = dict(os.environ, **{variable: str(count), "NANOTRON_SEED": str(seed)})
    parts = ["flipped_bytes"] if test == "test_data_faults.py" else []
    done = subprocess.run([PYTHON, TESTS / test, programs, *parts], text=True, env=environment,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    rows = {}
    for kind, counts in re.findall(r"^faults: (.*): (.*)$", done.stdout, re.MULTILINE):
        rows[kind] = {outcome: int(number) for number, outcome in re.findall(r"(\d+) ([^,]+)", counts)}
    if done.returncode != 0 or not rows:
        failed = re.search(r"^FAILED: (.*)$", done.stdout, re.MULTILINE)
        rows[f"{test}, {variable}={count}, seed {seed}"] = {"FAILED: " + (failed[1] if failed else f"exit code {done.returncode}"): 1}
        print(done.stdout[-4000:], file=sys.stderr)
    return rows


def table(rows):
    lines = ["| fault | runs | " + " | ".join(OUTCOMES) + " | FAILED |", "|---" * (len(OUTCOMES) + 3) + "|"]
    total = dict.fromkeys([*OUTCOMES, "FAILED"], 0)
    for kind, counts in sorted(rows.items()):
        known = {outcome: counts.get(outcome, 0) for outcome in OUTCOMES}
        known["FAILED"] = sum(counts.values()) - sum(known.values())
        for outcome, number in known.items():
            total[outcome] += number
        words = "".join(f" ({word})" for word in counts if word not in OUTCOMES)
        lines.append(f"| {kind}{words} | {sum(known.values())} | " + " | ".join(map(str, known.values())) + " |")
    lines.append(f"| all | {sum(total.values())} | " + " | ".join(map(str, total.values())) + " |")
    return "\n".join(lines), total["FAILED"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("programs", type=Path)
    parser.add_argument("--faults", type=int, default=4000)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--jobs", type=int, default=2, help="tests at a time")
    parser.add_argument("--markdown", type=Path, help="the table, written again after each test")
    arguments = parser.parse_args()
    if subprocess.run([PYTHON, "-c", "import h5py"], capture_output=True, check=False).returncode != 0:
        sys.exit(f"fault_table.py: {PYTHON} has no h5py, which the tests read files with: NANOTRON_PYTHON=build/venv/bin/python "
                 "tests/fault_table.py ..., after jobscripts/install_dependencies.sh --tests")
    print(f"seed {arguments.seed}", flush=True)
    begin, rows = time.time(), {}
    with ThreadPoolExecutor(arguments.jobs) as pool:
        runs = [pool.submit(run, test, variable, count, seed, arguments.programs.resolve())
                for seed, (test, variable, count) in enumerate(pieces(arguments.faults), start=arguments.seed)]
        for number, done in enumerate(as_completed(runs), start=1):
            for kind, counts in done.result().items():
                row = rows.setdefault(kind, {})
                for outcome, times in counts.items():
                    row[outcome] = row.get(outcome, 0) + times
            text, failed = table(rows)
            print(f"{number} of {len(runs)} tests after {time.time() - begin:.0f} s, {failed} failed", flush=True)
            if arguments.markdown:
                arguments.markdown.write_text(text + "\n", encoding="utf-8")
    print(text)
    sys.exit(1 if failed else 0)


main()
