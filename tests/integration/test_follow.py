#!/usr/bin/env python3
# ranks: 2
# timeout: 300
"""nanotron_export --follow beside a run that is killed, resumes from an earlier step and finishes: TensorBoard reads what
metrics.h5 holds.

    test_follow.py <folder of the programs>
"""
import os
import subprocess
import sys

import h5py
import numpy as np

from runs import Case, check, kill_all, killed_end, ranks_of, root, wait_for
from skips import BROUGHT, lacking, skip

STEPS = 300
python = os.environ.get("NANOTRON_PYTHON", sys.executable)
READ = """
import sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
found = EventAccumulator(sys.argv[1], size_guidance={"scalars": 0})
found.Reload()
for event in found.Scalars("training/loss"):
    print(event.step, repr(event.value))
"""


def shown(folder):
    done = subprocess.run([python, "-c", READ, folder], text=True, capture_output=True)
    check(done.returncode == 0, "TensorBoard reads the events", done.stderr)
    return [(int(step), float(value)) for step, value in map(str.split, done.stdout.splitlines())]


def main():
    if subprocess.run([python, "-c", "import tensorboard"], stderr=subprocess.DEVNULL).returncode != 0:
        lacking("no tensorboard")
        skip(BROUGHT)
    with Case("follow", steps=STEPS) as case:
        events = case.folder / "events"
        follower = subprocess.Popen(
            [python, root / "tools/nanotron_export.py", case.out, "--follow", "--every", "0.1", "--wait", "60", "--format",
             "tensorboard", "-o", events], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        for last in (20, 90):
            running = case.start()
            wait_for(case.out / f"checkpoints/step_{last:08}")
            kill_all(ranks_of(case))
            killed_end(case, running)
        code, text = case.run()
        check(code == 0 and "resumed from" in text, "the run resumes and finishes", text)
        text, _ = follower.communicate(timeout=60)
        check(follower.returncode == 0 and f"step {STEPS}; finished" in text, "the tool ends with the run", text)
        with h5py.File(case.out / "metrics.h5") as file:
            expected = [(int(step), float(np.float32(loss))) for step, loss in zip(file["step"], file["loss"], strict=True)]
        check(len(expected) == STEPS and shown(events) == expected, "TensorBoard shows each step once, as the file has it",
              f"{shown(events)[:40]}\n{expected[:40]}")


sys.exit(main())
