#!/usr/bin/env python3
"""Predicted and measured steps on this machine, side by side.

    plan_here.py <folder of the programs> [--deck FILE] [--set key=value ...] [--rounds 3] [--folder DIR] [--json FILE]

For each round, one after the other: nanotron_bench --machine measures a machine file with as many ranks as cores (and with
one rank, which has the machine to itself), nanotron_bench --only step measures steps on 1, 2, 4 and 8 ranks, and
nanotron_hpc --plan --machine predicts them. Ranks beyond the cores share them: reported, not judged. The median ratio over
the rounds is printed; other work on the machine moves it, so run it alone.
"""
import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

GRIDS = {1: ["dp=1"], 2: ["dp=2", "tp=2"], 4: ["dp=4", "dp=2 tp=2"], 8: ["dp=8", "dp=4 tp=2"]}


def settings(values):
    return [word for value in values for word in ("--set", value)]


def grid(text):
    degrees = {"dp": "1", "tp": "1", "pp": "1", **dict(part.split("=") for part in text.split())}
    return [f"parallel.{axis}={degree}" for axis, degree in degrees.items()]


def run(ranks, *command):
    launcher = [os.environ.get("NANOTRON_MPIEXEC", "mpirun"), "-n", str(ranks)]
    done = subprocess.run([*launcher, *map(str, command)], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stdout}")
    return done.stdout


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("programs", type=Path)
    parser.add_argument("--deck", default=str(Path(__file__).resolve().parents[2] / "input/llama_30m.deck"))
    parser.add_argument("--set", action="append", default=[], dest="overrides")
    parser.add_argument("--ranks", default="1,2,4,8")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="keep the machine files here")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    folder = arguments.folder or Path(tempfile.mkdtemp(prefix="nanotron_plan_"))
    folder.mkdir(parents=True, exist_ok=True)
    cores = len(os.sched_getaffinity(0))
    bench, program = arguments.programs / "nanotron_bench", arguments.programs / "nanotron_hpc"
    chosen = settings(["data.path=none", *arguments.overrides])
    ratios = {}
    for number in range(arguments.rounds):
        for ranks in map(int, arguments.ranks.split(",")):
            machine = folder / f"machine_{min(ranks, cores)}_{number}.nml"
            if ranks <= cores:
                run(ranks, bench, "--machine", machine, "--deck", arguments.deck, *chosen)
            else:  # the same cores, shared by more ranks
                text = machine.read_text(encoding="utf-8")
                machine = folder / f"machine_{ranks}_{number}.nml"
                machine.write_text(re.sub(r"(&node\n +ranks = )[0-9]+", rf"\g<1>{ranks}", text), encoding="utf-8")
            for text in GRIDS[ranks]:
                sets = [*chosen, *settings(grid(text))]
                measured_file = folder / "steps.json"
                run(ranks, bench, "--only", "step", "--rounds", 2, "--steps", 3, "--seconds", 0.05, "--json", measured_file,
                    "--deck", arguments.deck, *sets)
                measured = statistics.median(json.loads(measured_file.read_text())["step_samples"][0]["seconds"])
                plan = run(1, program, "--plan", "--machine", machine, *sets, arguments.deck)
                predicted = float(re.search(r"^  step +([0-9.]+) ms$", plan, re.MULTILINE)[1]) / 1e3
                ratios.setdefault((ranks, text), []).append((predicted, measured))
                print(f"round {number}: {ranks} ranks, {text}: {1e3 * measured:.1f} ms, {1e3 * predicted:.1f} predicted",
                      flush=True)
    rows = []
    print(f"{'ranks':>5}  {'grid':<12}{'measured ms':>12}{'predicted ms':>14}{'ratio':>8}   {cores} cores")
    for (ranks, text), pairs in ratios.items():
        ratio = statistics.median(predicted / measured for predicted, measured in pairs)
        measured = statistics.median(m for _, m in pairs)
        predicted = statistics.median(p for p, _ in pairs)
        rows.append({"ranks": ranks, "grid": text, "measured": measured, "predicted": predicted, "ratio": ratio})
        print(f"{ranks:>5}  {text:<12}{1e3 * measured:>12.1f}{1e3 * predicted:>14.1f}{ratio:>8.3f}")
    inside = [abs(row["ratio"] - 1) for row in rows if row["ranks"] <= cores]
    print(f"mean error where every rank has a core: {100 * statistics.mean(inside):.1f} %")
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
