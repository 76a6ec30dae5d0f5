"""How a run stands: what run.log says of the last start, else /starts of metrics.h5, else their age."""

from __future__ import annotations

import contextlib
import math
import time
from dataclasses import dataclass
from pathlib import Path

from . import common, run_log
from .ledger import ENDS, read_ledger
from .tables import clock

ENDED = ("finished", "stopped", "failed")
PATIENCE, STEPS = 60.0, 10  # seconds and steps without a word
UNKNOWN_STEP = 60.0  # seconds


@dataclass
class State:
    word: str  # finished, stopped, failed; running; no recent output
    why: str = ""

    @property
    def has_ended(self) -> bool:
        return self.word in ENDED

    def __str__(self) -> str:
        between = ", " if self.word == "running" else ": "
        return f"{self.word}{between}{self.why}" if self.why else self.word


def age_of(paths: list[Path]) -> float:
    """Seconds since the newest of these files was written."""
    times = []
    for path in paths:
        with contextlib.suppress(FileNotFoundError):  # a run renames and removes its files
            times.append(path.stat().st_mtime)
    return max(0.0, time.time() - max(times, default=time.time()))


def recorded_end(metrics: Path, last: run_log.LoggedStart | None) -> str:
    """What /starts says of the last start of the log; '' where it says nothing, or is of another start."""
    try:
        ledger = read_ledger(metrics) if metrics.is_file() else None
    except common.ToolError:
        return ""
    if not ledger or not ledger.starts or ledger.starts[-1].end == ENDS[0]:
        return ""
    start = ledger.starts[-1]
    return start.end if last is None or start.words.get("start_time") == last.begin else ""


def state_of(folder: Path, starts: list[run_log.LoggedStart], step_seconds: float) -> State:
    """starts: of run.log; step_seconds: what a step takes, NaN where it is not known."""
    last = starts[-1] if starts else None
    if last and last.end:
        return State(last.end, last.why if last.end != "finished" else "")
    if end := recorded_end(folder / "metrics.h5", last):
        return State(end)
    age = age_of([folder / "run.log", folder / "metrics.h5"])
    known = math.isfinite(step_seconds)
    if age <= PATIENCE + STEPS * (step_seconds if known else UNKNOWN_STEP):
        return State("running", f"written {age:.0f} s ago")
    step = f", and a step takes {step_seconds:.3g} s" if known else ""
    return State("no recent output",
                 f"nothing was written for {clock(age)}{step}: killed, hanging, or in a long validation or checkpoint")
