#!/usr/bin/env python3
"""What checkpoints cost on this machine, beside the disk's own speed.

    checkpoint_cost.py <folder of the programs> [--ranks 2] [--rounds 3] [--folder DIR] [--deck FILE] [--set key=value ...]

Each round, one after the other: dd, a run whose checkpoints training waits for, and the same run with
checkpoint%asynchronous. For each round, and the median of all:

    dd            seconds for as many bytes as a checkpoint has, with fsync; the faster one of with and without oflag=direct
    synchronous   seconds of a checkpoint, and dd's over them (aim: 0.70); it is written, read back and compared
    waited        seconds that training waited for an asynchronous one, over the synchronous seconds (aim: 0.05)
    slower        seconds that the steps beside it took longer, over the same; where all cores compute, the writer is one more

The first checkpoint of a run is left out: it meets memory that nobody has used. The folder must be on the disk in question,
with room for four checkpoints. Other work on the machine moves the figures.
"""
import argparse
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import h5py

ROOT = Path(__file__).resolve().parents[2]
STEPS, EVERY = 20, 5
MODEL = ["model.hidden_size=1024", "model.intermediate_size=2816", "data.sequence_length=16",
         f"data.path={ROOT / 'tests/golden/llama/tokens.h5'}"]  # about 1.5 GB
WRITTEN = re.compile(r"checkpoint written in ([0-9.]+) s(?:, of which training waited ([0-9.]+) s)?")


def run(arguments, folder, *settings):
    shutil.rmtree(folder, ignore_errors=True)
    given = [*MODEL, f"run.output_dir={folder}", f"run.stop_after_steps={STEPS}", f"checkpoint.every_steps={EVERY}",
             "checkpoint.at_end=false", *settings, *arguments.overrides]
    command = [os.environ.get("NANOTRON_MPIEXEC", "mpirun"), "-n", arguments.ranks, arguments.programs / "nanotron_hpc",
               *(word for value in given for word in ("--set", value)), arguments.deck]
    done = subprocess.run(list(map(str, command)), text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    written = WRITTEN.findall(done.stdout)[1:]
    beside = [pair for pair in written if pair[1]]  # the last one of a run is waited for in any case
    found = [(float(taken), float(waited or taken)) for taken, waited in beside or written]
    if done.returncode not in (0, 75) or not found:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stdout}")
    with h5py.File(folder / "metrics.h5") as file:
        steps = file["seconds"][EVERY:]
    return [statistics.fmean(column) for column in zip(*found, strict=True)], float(sum(steps)) / (STEPS / EVERY - 1)


def disk(path, size):
    """Seconds of the faster dd."""
    found = []
    for flags in ([], ["oflag=direct"]):
        begin = time.time()
        subprocess.run(["dd", "if=/dev/zero", f"of={path}", "bs=8M", f"count={-(-size // (8 << 20))}", "conv=fsync", *flags],
                       check=True, stderr=subprocess.DEVNULL)
        found.append(time.time() - begin)
        path.unlink()
    return min(found)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("programs", type=Path)
    parser.add_argument("--deck", default=str(ROOT / "input/llama_30m.deck"))
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--set", action="append", default=[], dest="overrides")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="nanotron_checkpoint_", dir=arguments.folder))
    rows = []
    print(f"{'bytes':>14}{'dd s':>8}{'sync s':>8}{'dd/sync':>9}{'waited':>8}{'slower':>8}")
    try:
        for _ in range(arguments.rounds):
            (written, _), plain_steps = run(arguments, folder / "run")
            size = next((folder / "run/checkpoints").glob("step_*/checkpoint.h5")).stat().st_size
            (_, waited), steps = run(arguments, folder / "run", "checkpoint.asynchronous=true")
            seconds = disk(folder / "dd", size)
            rows.append((size, seconds, written, seconds / written, waited / written, (steps - plain_steps) / written))
            print("{:14}{:8.2f}{:8.2f}{:9.2f}{:8.2f}{:8.2f}".format(*rows[-1]), flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    median = [statistics.median(column) for column in zip(*rows, strict=True)]
    print("{:14.0f}{:8.2f}{:8.2f}{:9.2f}{:8.2f}{:8.2f}  median".format(*median))


main()
