#!/usr/bin/env python3
# ranks: 2
# timeout: 200
"""A run that continues from a folder of Nanotron has the losses of Nanotron continuing: ten steps, on several grids.

    test_from_nanotron.py <folder of the programs>
"""
import json
import shutil
import sys
import tempfile
from pathlib import Path

import h5py
import numpy as np

from runs import call, check, expect, mpiexec, program, root

import skips

DATA = root / "tests/data/nanotron"
GRIDS = (("parallel.dp=2",), ("parallel.tp=2",), ("parallel.pp=2",), ("parallel.dp=2", "parallel.zero_stage=1"))


def goes_on(folder, name, tolerance, *settings):
    """Largest relative difference of the ten losses from those of Nanotron."""
    target = folder / "-".join((name, *settings)) / "checkpoints"
    expect(sys.executable, root / "tools/nanotron_convert.py", "from-nanotron", DATA / name, target, "--data",
           folder / "tokens.h5")
    words = [word for text in ("data.shuffle=none", "run.log_every=1", *settings) for word in ("--set", text)]
    code, text = call(mpiexec, "-n", "2", program, *words, target / "input.deck")
    check(code == 0 and "resumed from" in text and "moments start at zero" not in text, f"{name} continues", text)
    wanted = np.array(json.loads((DATA / f"{name}.json").read_text())["losses"])
    with h5py.File(target.parent / "metrics.h5") as file:
        losses = file["loss"][()]
    check(losses.shape == (10,) == wanted.shape, f"{name}: ten losses", losses)
    worst = np.max(np.abs(losses / wanted - 1))
    print(f"{name}, {' '.join(settings)}: {worst:.1e}", flush=True)
    check(worst < tolerance, f"{name} on {settings}: losses as Nanotron's within {tolerance}", f"{losses}\n{wanted}")


def main():
    try:
        import yaml  # noqa: F401
    except ImportError:
        skips.lacking("no PyYAML")
        skips.skip(skips.BROUGHT)
    folder = Path(tempfile.mkdtemp(prefix="nanotron_from_nanotron_"))
    try:
        expect(sys.executable, root / "tools/nanotron_import.py", DATA / "tokens.bin", "--format", "bare", "--token-type",
               "uint16", "--vocab-size", 64, "--output", folder / "tokens.h5")
        for settings in GRIDS:
            goes_on(folder, "llama_tp2_pp2", 1e-6, *settings)
        goes_on(folder, "qwen2_zero1_dp2", 2e-3, "parallel.tp=2")  # bf16
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
