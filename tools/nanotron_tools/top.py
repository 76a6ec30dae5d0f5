"""Shows a running job: step, loss, speed, time left, validation, newest checkpoint.

    nanotron-top run/                  until Ctrl-C, or the run ends
    nanotron-top run/ --once           a single time, for scripts
    nanotron-top run/ --every 10       seconds between updates (default 2)

It reads the last rows of metrics.h5, or run.log if that cannot be read; the run itself is not disturbed. The
loss is the mean and the speed the median of at most 20 rows. The program writes both files about once a second; over a
network file system other nodes may see them later.
"""

from __future__ import annotations

import math
import shutil
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from . import checkpoint as checkpoint_file
from . import common, metrics, run_log
from .run_state import age_of, state_of
from .tables import clock, human

ROWS, CURVE = 20, 400  # of means; of the curve
BARS = "▁▂▃▄▅▆▇█"


@dataclass
class View:
    """What one look finds; NaN: not known."""

    source: str
    step: int
    loss: float
    grad_norm: float
    learning_rate: float
    tokens_per_second: float
    seconds: float = math.nan  # of a step
    losses: metrics.Array | None = None


def from_metrics(path: Path) -> View | None:
    """None where there is no row yet, or no file that can be read."""
    if not path.is_file():
        return None
    try:
        data = metrics.read_metrics(path, CURVE)
    except common.ToolError:
        return None
    if not data["step"].size:
        return None

    def rows(name: str) -> metrics.Array:
        return data.get(name, np.array([math.nan]))[-ROWS:]

    return View("metrics.h5", int(data["step"][-1]), float(np.mean(rows("loss"))), float(rows("grad_norm")[-1]),
                float(rows("learning_rate")[-1]), float(np.median(rows("tokens_per_second"))),
                float(np.median(rows("seconds"))), data["loss"])


def from_log(starts: list[run_log.LoggedStart]) -> View | None:
    for start in reversed(starts):
        if at := start.progress:
            return View("run.log", at.step, at.loss, at.grad_norm, at.learning_rate, at.tokens_per_second)
    return None


def curve(values: metrics.Array, width: int) -> str:
    """The losses as bars, each the mean of some steps."""
    parts = [float(np.mean(part)) for part in np.array_split(values, min(width, values.size)) if part.size]
    low, high = min(parts), max(parts)
    if not math.isfinite(high - low) or high <= low:
        return ""
    return "".join(BARS[min(len(BARS) - 1, int((part - low) / (high - low) * len(BARS)))] for part in parts)


def steps_planned(folder: Path, starts: list[run_log.LoggedStart]) -> int:
    """Of the newest progress line, else of the deck; 0: not known."""
    for start in reversed(starts):
        if start.progress:
            return start.progress.steps
    try:
        deck = checkpoint_file.deck_values((folder / "deck.nml").read_text(encoding="utf-8", errors="replace"))
        return int(deck.get("run.steps", "0"))
    except (OSError, ValueError):
        return 0


def newest_checkpoint(starts: list[run_log.LoggedStart], folder: Path) -> str:
    names = checkpoint_file.list_checkpoints(folder)
    if names:
        file = names[-1] / checkpoint_file.CHECKPOINT_FILE
        found = checkpoint_file.size_of(file)
        size = "-" if found is None else human(found)
        return f"{names[-1].name}, {size}, {clock(age_of([file]))} ago"
    steps = [step for start in starts for step in start.checkpoints]
    return f"step {steps[-1]:,}" if steps else "none"


def look(folder: Path) -> tuple[list[str], bool]:
    """The lines to show, and whether the run has ended."""
    starts = run_log.read_log(folder / "run.log", run_log.TAIL)
    view = from_metrics(folder / "metrics.h5") or from_log(starts)
    last = starts[-1] if starts else run_log.LoggedStart()
    state = state_of(folder, starts, view.seconds if view else math.nan)
    lines = [f"{folder}: {state}"]
    if view is None:
        return [*lines, "  no step done yet"], state.has_ended
    planned = steps_planned(folder, starts)
    seconds_left = (planned - view.step) * view.seconds
    left = clock(seconds_left) if math.isfinite(seconds_left) else last.progress.eta if last.progress else "-"
    if state.word != "running" and view.step < planned:
        left = "-"
    share = f" of {planned:,} ({100 * view.step / planned:.1f} %), ETA {left}" if planned else ""
    lines += [f"  step           {view.step:,}{share}",
              f"  loss           {view.loss:.4f}   grad norm {view.grad_norm:.3f}   lr {view.learning_rate:.2e}",
              f"  tokens/s       {view.tokens_per_second:,.0f}"]
    if last.validation:
        lines.append(f"  validation     {last.validation[1]} at step {last.validation[0]:,}")
    lines += [f"  checkpoint     {newest_checkpoint(starts, folder)}", f"  from           {view.source}"]
    if view.losses is not None and view.losses.size > 1:
        lines.append(f"  last {view.losses.size:>3} rows  " + curve(view.losses, 40))
    return lines, state.has_ended


def main(argv: list[str] | None = None) -> int:
    parser = common.parser(__doc__)
    parser.add_argument("run", type=Path, help="its directory")
    parser.add_argument("--once", action="store_true")
    parser.add_argument("--every", type=float, default=2.0, metavar="SECONDS")
    options = parser.parse_args(argv)
    if options.every <= 0:
        parser.error(f"--every: expected a positive number, found {options.every}")
    if not any((options.run / name).is_file() for name in ("metrics.h5", "run.log")):
        raise common.ToolError(f"expected the directory of a run\n  found:  neither metrics.h5 nor run.log\n"
                               f"  where:  {options.run}\n  change: give run%output_dir of its deck")
    shown = 0
    try:
        while True:
            lines, ended = look(options.run)
            if shown and sys.stdout.isatty():
                print(f"\033[{shown}F\033[J", end="")
            width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 0
            print("\n".join(line[:width - 1] if width else line for line in lines), flush=True)
            shown = len(lines)
            if options.once or ended:
                return 0
            time.sleep(options.every)
    except KeyboardInterrupt:
        return 0
