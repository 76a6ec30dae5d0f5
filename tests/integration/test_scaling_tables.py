#!/usr/bin/env python3
# timeout: 120
"""The tables of doc/parallelism_formulas.md against published runs are what nanotron_plan --validate says, and the search in
doc/choosing_a_grid.md is what nanotron_plan prints.

    test_scaling_tables.py <folder of the programs> [--print]

--print: their rows as they should be.
"""
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = str(Path(sys.argv[1]).resolve() / "nanotron_plan")
PAGE = ROOT / "doc/parallelism_formulas.md"
RUNS = [("published_runs.csv", "a100_80gb.nml"), ("other_runs.csv", "a100_80gb.nml"), ("deck_runs_a100.csv", "a100_80gb.nml"),
        ("deck_runs_h100.csv", "h100.nml"), ("published_runs_2.csv", "h100.nml"),
        ("judged_runs_h100.csv", "h100.nml"), ("held_out_runs_h100.csv", "h100.nml")]
ROW = re.compile(r"^(\S.*?) {2,}(\S.*?) {2,}(\S.*?) {2,}([\d.]+) +([\d.]+) +(\S+) %  .*$", re.MULTILINE)


def rows_of(runs, machine):
    """Rows of the page, and the mean error in per cent, of one file of runs."""
    command = [PROGRAM, "--machine", ROOT / "input/machines" / machine, "--validate", ROOT / "tests/data" / runs]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL, check=False)
    mean = re.search(r"^mean error of (\d+) runs: ([\d.]+) %$", done.stdout, re.MULTILINE)
    found = ROW.findall(done.stdout)
    if done.returncode not in (0, 65) or not mean or len(found) != int(mean[1]):  # 65: a mean above the bound
        raise SystemExit(f"{command} ends with {done.returncode}\n{done.stdout}{done.stderr}")
    return [f"| {source} | {run} | {measured} s | {predicted} s | {error} % |"
            for source, run, _, measured, predicted, error in found], float(mean[2])


def compare_search():
    """Lines below the command of a search on the page that nanotron_plan does not print."""
    page = (ROOT / "doc/choosing_a_grid.md").read_text(encoding="utf-8")
    shown = re.search(r"^    nanotron_plan (--ranks .*\.deck)\n((?:    .*\n)+)", page, re.MULTILINE)
    if not shown:
        return ["doc/choosing_a_grid.md shows no search"]
    done = subprocess.run([PROGRAM, *shown[1].split()], capture_output=True, text=True, timeout=100, cwd=ROOT,
                          stdin=subprocess.DEVNULL, check=False)
    printed = [line.strip() for line in done.stdout.splitlines()]
    return [f"the search prints {line!r}" for line in printed if line not in shown[2]] + ["the search ends badly"] * (not printed)


def main():
    results = [rows_of(*names) for names in RUNS]
    if "--print" in sys.argv:
        print("\n".join("\n".join(rows) for rows, _ in results))
        return 0
    page = PAGE.read_text(encoding="utf-8")
    on_page = [line for line in page.splitlines() if re.search(r" s \| .* s \| [+-][\d.]+ % \|$", line)]
    true = [row for rows, _ in results for row in rows]
    mistakes = compare_search()
    mistakes += [f"not true: {row}" for row in on_page if row not in true] + [f"missing: {row}" for row in true if row not in on_page]
    of_decks = sum(mean for _, mean in results[2:4]) / 2
    for words, mean in (("Mean error", results[0][1]), ("mean error", results[1][1]), ("(`tests/data/deck_runs_*.csv`):", of_decks)):
        said = re.search(re.escape(words) + r" ([\d.]+) %", page)
        if not said or abs(float(said[1]) - mean) > 0.06:
            mistakes.append(f"'{words} {said[1] if said else '...'} %' is said, {mean:.2f} is true")
    print("\n".join(mistakes) or f"{len(true)} rows")
    return 1 if mistakes else 0


if __name__ == "__main__":
    sys.exit(main())
