"""run.log of a run: its starts, progress lines, checkpoints, and how each start ended."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

TAIL = 1 << 20  # bytes: what a live view reads
PROGRESS = re.compile(r"step +(\d+)/(\d+)  loss (\S+)  grad norm (\S+)  lr (\S+) +(\S+) tokens/s.*  ETA ([\d:]+)")
CHECKPOINT = re.compile(r"step +(\d+)/\d+  checkpoint written")
VALIDATION = re.compile(r"step +(\d+)/\d+  validation loss (.*)")
ENDS = (("finished", re.compile(r"finished: \d+ steps, ([\d.]+) s")),
        ("stopped", re.compile(r"stopped after step \d+ of \d+: ([^;]*)")),
        ("failed", re.compile(r"(?:\[rank \d+\] )?error: (.*)")))


@dataclass
class Progress:
    step: int
    steps: int
    loss: float
    grad_norm: float
    learning_rate: float
    tokens_per_second: float
    eta: str


@dataclass
class LoggedStart:
    begin: str = ""  # as in the provenance of metrics.h5
    resumed: bool = False
    is_idle: bool = False  # the run was at its end before
    progress: Progress | None = None
    checkpoints: list[int] = field(default_factory=list)
    validation: tuple[int, str] | None = None
    end: str = ""  # finished, stopped, failed; '': running, or it ended without a word
    why: str = ""  # seconds, reason or message of that end


def number(text: str) -> float:
    """10.8k, 1.25M: as the program shortens rates."""
    scale = {"k": 1e3, "M": 1e6}.get(text[-1], 1.0)
    return float(text.rstrip("kM")) * scale


def read_log(path: Path, last_bytes: int = 0) -> list[LoggedStart]:
    """All starts in the log that had something to do, or what its last bytes tell; none where there is no log."""
    try:
        with open(path, "rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - last_bytes) if last_bytes else 0)
            lines = file.read().decode("utf-8", "replace").splitlines()
    except FileNotFoundError:
        return []
    starts: list[LoggedStart] = []
    for line in lines:
        if line.startswith("program: ") or not starts:
            starts.append(LoggedStart())
        read_line(line, starts[-1])
    return [start for start in starts if not start.is_idle] or starts


def read_line(line: str, start: LoggedStart) -> None:
    if match := PROGRESS.match(line):
        step, steps, loss, norm, rate, speed, eta = match.groups()
        start.progress = Progress(int(step), int(steps), float(loss), float(norm), float(rate), number(speed), eta)
    elif match := CHECKPOINT.match(line):
        start.checkpoints.append(int(match[1]))
    elif match := VALIDATION.match(line):
        start.validation = int(match[1]), match[2].strip()
    elif line.startswith("start_time: "):
        start.begin = line.partition(" ")[2]
    elif line.startswith("resumed from "):
        start.resumed = True
    elif line.startswith("nothing to do: "):
        start.end, start.why, start.is_idle = "finished", "0", True
    else:
        for end, pattern in ENDS:
            if match := pattern.match(line):
                start.end, start.why = end, match[1].strip()


def of_this_run(starts: list[LoggedStart]) -> list[LoggedStart]:
    """Without those of earlier runs in the same folder: from the last one on that did not resume."""
    fresh = [i for i, start in enumerate(starts) if not start.resumed and start.progress]
    return starts[fresh[-1]:] if fresh else starts
