# ranks: 2
# timeout: 200
# Checkpoints that training does not wait for, copied from an emulated GPU by a stream of their own in a random legal order:
# the bytes of those that it waits for, on a grid by the seed.
import os
import random
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "integration"))
from runs import Case, check, state_at  # noqa: E402

GRIDS = [["parallel.tp=2"], ["parallel.tp=1", "parallel.dp=2"], ["parallel.tp=1", "parallel.dp=2", "parallel.zero_stage=3"],
         ["parallel.tp=1", "parallel.dp=2", "parallel.compression=powersgd"], ["parallel.tp=1", "parallel.pp=2"]]
STEPS = 8

seed = int(os.environ.get("NANOTRON_SEED", str(int(time.time()))))
grid = random.Random(seed).choice(GRIDS)
print(f"NANOTRON_SEED={seed}: {' '.join(grid)}")
found = []
for asynchronous in ("false", "true"):
    with Case("beside", steps=STEPS, checkpoint=f"keep_last = 0 every_steps = 3 asynchronous = .{asynchronous}.") as case:
        status, text = case.run(*(word for key in grid for word in ("--set", key)))
        check(status == 0, f"asynchronous = {asynchronous}", text)
        check(asynchronous == "false" or "of which training waited" in text, "no checkpoint was asynchronous", text)
        found.append([state_at(case, step) for step in (3, 6, STEPS)])
for step, waited_for, beside in zip((3, 6, STEPS), *found, strict=True):
    check(waited_for == beside, f"step {step}: other bytes where training does not wait")
