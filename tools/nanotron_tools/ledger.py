"""The ledger of a run: where its wall-clock time went over all its starts, and what became of each of them.

Every second from the submission of the first job (else the beginning of the first start) to the last record of the run
belongs to one class: useful, lost (steps that a later start computed again, or that training went back from),
checkpoint (training waited for one), restart (a start before its first step and after its last), queued, and waiting
(no start was alive, and no job in the queue).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h5py

from . import common, hdf5, row_hashes
from .metrics import reading

CLASSES = ("useful", "lost", "checkpoint", "restart", "queued", "waiting")
TIMES, LATEST = ("begin", "last", "training_seconds", "checkpoint_seconds", "left_out_seconds"), 1e11  # seconds
ENDS = {0: "running, or killed", 1: "finished", 2: "stopped", 3: "failed"}


@dataclass
class Start:
    """One start of the program. Steps are counts of updates, times seconds since 1970."""

    number: int
    begin: float
    last: float
    resumed: int
    low: int  # the lowest step that it computed on from: resumed, or one that it went back to
    steps: int  # the last step
    kept: int  # the last step that the run still has of it
    end: str
    words: dict[str, str]
    seconds: dict[str, float] = field(default_factory=dict)  # by class


@dataclass
class Ledger:
    starts: list[Start]

    @property
    def seconds(self) -> dict[str, float]:
        return {name: sum(start.seconds[name] for start in self.starts) for name in CLASSES}

    @property
    def wall_seconds(self) -> float:
        return sum(self.seconds.values())

    @property
    def goodput(self) -> float:
        """Useful time over all time."""
        return self.seconds["useful"] / self.wall_seconds if self.wall_seconds > 0 else math.nan


def read_ledger(path: Path) -> Ledger | None:
    """None for a file of a release without one."""

    def read(file: h5py.File) -> Ledger | None:
        if "starts" not in file:
            return None
        rows = rows_of(file["starts"])
        check_times(rows, path)
        kept = {(int(row["start"]), int(row["step"])): float(row["training_seconds"])
                for row in rows_of(file["start_checkpoints"])}
        words = {int(name.rpartition("_")[2]): {key: hdf5.as_text(value) for key, value in group.attrs.items()}
                 for name, group in file["lineage"].items()}
        return made_of(rows, kept, words)

    found: Ledger | None = reading(path, read)
    return found


def rows_of(group: h5py.Group) -> list[dict[str, Any]]:
    columns = {name: item[()] for name, item in group.items() if name not in row_hashes.COLUMNS}
    count = min((values.size for values in columns.values()), default=0)
    return [{name: values[i] for name, values in columns.items()} for i in range(count)]


def check_times(rows: list[dict[str, Any]], path: Path) -> None:
    for number, row in enumerate(rows, 1):
        if not all(0 <= float(row[name]) < LATEST for name in TIMES):
            raise common.wrong(f"{path}, /starts, row {number}", "times of a start",
                               ", ".join(f"{name} {float(row[name]):g}" for name in TIMES),
                               "the file is damaged: use a copy of it")


def seconds_until(step: int, points: dict[int, float]) -> float:
    """points: seconds of training of a start at some steps, its first and last among them. Between two of them, as
    where a run resumes from copies on its hosts, each step counts the same."""
    if step in points:
        return points[step]
    before, after = max(s for s in points if s < step), min(s for s in points if s > step)
    return points[before] + (points[after] - points[before]) * (step - before) / (after - before)


def made_of(rows: list[dict[str, Any]], kept: dict[tuple[int, int], float], words: dict[int, dict[str, str]]) -> Ledger:
    """kept: (start, step of a checkpoint) -> seconds of training of that start until then."""
    starts: list[Start] = []
    for i, row in enumerate(rows):
        number = int(row["start"])
        back = min((min(int(later["resumed_step"]), int(later["lowest_step"])) for later in rows[i + 1:]), default=None)
        last = int(row["last_step"])
        end = last if back is None else min(last, back)
        training, left_out = float(row["training_seconds"]), float(row["left_out_seconds"])
        useful = training - left_out
        low = min(int(row["resumed_step"]), int(row["lowest_step"]))
        if end < last:
            points = {s: at for (n, s), at in kept.items() if n == number} | {low: 0.0, last: useful}
            useful = seconds_until(end, points) if end > low else 0.0
        begin = float(row["begin"])
        before = starts[-1].last if starts else begin
        submitted, ran = float(row["submitted"]), float(row["job_began"])
        if not starts and math.isfinite(submitted):
            before = min(begin, submitted)
        gap, queued = max(begin - before, 0.0), 0.0
        if math.isfinite(submitted) and math.isfinite(ran):
            queued = max(min(ran, begin) - max(submitted, before), 0.0)
        seconds = {"useful": useful, "lost": training - useful, "checkpoint": float(row["checkpoint_seconds"]),
                   "queued": queued, "waiting": gap - queued}
        seconds["restart"] = float(row["last"]) - begin - training - seconds["checkpoint"]
        starts.append(Start(number, begin, float(row["last"]), int(row["resumed_step"]), low, last, end,
                            ENDS.get(int(row["end"]), "unknown"), words.get(number, {}), seconds))
    for start in starts[:-1]:
        if start.end == ENDS[0]:
            start.end = "killed"
    return Ledger(starts)


def is_unknown(ledger: Ledger, begin: str) -> bool:
    """Whether its last start is the one that began then, and wrote no end."""
    last = ledger.starts[-1:]
    return any(start.end == ENDS[0] and start.words.get("start_time") == begin for start in last)


def facts_of(ledger: Ledger) -> dict[str, Any]:
    """For --json."""
    return {"goodput": ledger.goodput, "wall_seconds": ledger.wall_seconds, "seconds": ledger.seconds,
            "starts": [{"start": s.number, "begin": s.begin, "last": s.last, "from_step": s.resumed, "to_step": s.steps,
                        "steps_kept": max(s.kept - s.low, 0), "steps_lost": s.steps - max(s.kept, s.low),
                        "end": s.end, "seconds": s.seconds, **s.words} for s in ledger.starts]}
