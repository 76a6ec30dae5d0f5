"""Reads metrics.h5 while the run writes it, and draws the new rows: what a program shows is what the file holds.

A start that resumes drops the rows of later steps, and a run from step 0 begins with another file: both are seen by
rows that are no longer where they were. Rows with a wrong hash may be half written and wait for the next look.
"""

from __future__ import annotations

import contextlib
import math
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import h5py
import numpy as np

from . import common, row_hashes, run_log
from .curves import Sink, scalars
from .metrics import VALIDATION, Array, Run, Start, columns, load_run, read_starts, reading, validation_of
from .run_state import ENDED, state_of

TRIES = 3  # looks at a row with a wrong hash before it counts as it is


@dataclass
class Taken:
    """Rows of one kind that were taken: enough to notice that the file no longer has them."""

    step: str  # the column of their steps
    value: str
    hashes: str
    keys: Array = field(default_factory=lambda: np.zeros((0, 2), np.int64))  # step, bits of the value
    tries: int = 0

    def keys_of(self, file: h5py.File, begin: int, end: int) -> Array:
        steps, values = file[self.step][begin:end], file[self.value][begin:end]
        found: Array = np.stack([steps.astype(np.int64), values.astype(np.float64).view(np.int64)], axis=1)
        return found

    def kept(self, file: h5py.File, count: int) -> int:
        """How many of these rows the file still has, at the same place."""
        most = min(count, len(self.keys))
        if most == 0 or np.array_equal(self.keys_of(file, most - 1, most), self.keys[most - 1:most]):
            return most
        differ = np.flatnonzero((self.keys_of(file, 0, most) != self.keys[:most]).any(axis=1))
        return int(differ[0]) if differ.size else most

    def complete(self, file: h5py.File, begin: int, count: int) -> int:
        """The end of the rows from `begin` on that are written whole."""
        if self.hashes not in file:
            return count
        for row, (_, known) in enumerate(row_hashes.rows(file, self.hashes, begin), begin):
            if known is False:
                self.tries += 1
                return row if self.tries <= TRIES else count
        self.tries = 0
        hashed = int(file[self.hashes].shape[0])
        return max(begin, min(count, hashed))


@dataclass
class News:
    """What one look finds."""

    columns: dict[str, Array] = field(default_factory=dict)  # rows to draw, of training and validation
    taken_back: int | None = None  # rows of this step and later ones no longer count

    @property
    def rows(self) -> int:
        return int(self.columns.get("step", np.zeros(0)).size + self.columns.get("validation_step", np.zeros(0)).size)


class Follower:
    def __init__(self, path: Path):
        self.path = path
        self.training = Taken("step", "loss", "row_hash")
        self.validation = Taken("validation_step", VALIDATION, "validation_hash")
        self.about: tuple[list[Start], dict[str, dict[str, str]]] = ([], {})

    def look(self) -> News:
        """Nothing where there is no file, or where it cannot be read in this moment."""
        if not self.path.is_file():
            return News()
        try:
            news: News = reading(self.path, self.read)
        except common.ToolError:
            return News()
        return news

    def read(self, file: h5py.File) -> News:
        items, news = columns(file), News()
        kinds = []
        for taken, is_validation in ((self.training, False), (self.validation, True)):
            names = [name for name in items if name.startswith("validation_") == is_validation]
            if taken.step in names and taken.value in names:
                count = min(items[name].shape[0] for name in names)
                kinds.append((taken, names, count, taken.kept(file, count)))
        gone = [int(taken.keys[kept, 0]) for taken, _, _, kept in kinds if kept < len(taken.keys)]
        if gone:
            news.taken_back = min(gone)
        for taken, names, count, kept in kinds:
            begin = kept
            if news.taken_back is not None:
                begin = min(begin, int(np.searchsorted(taken.keys[:, 0], news.taken_back)))
            end = taken.complete(file, begin, count)
            news.columns |= {name: items[name][begin:end] for name in names}
            taken.keys = np.concatenate([taken.keys[:begin], taken.keys_of(file, begin, end)])
        return news

    def run_of(self, news: News, label: str) -> tuple[Run, Array]:
        """The new rows as a run, and the times of its rows of training."""
        found = {name: values for name, values in news.columns.items() if not name.startswith("validation_")}
        with contextlib.suppress(common.ToolError):  # not readable since the look: as it was before
            self.about = read_starts(self.path)
        starts, about = self.about
        run = Run(label, found or {"step": np.zeros(0, np.int64)}, {}, [], starts, about)
        if news.columns.get("validation_step", np.zeros(0)).size:
            run.validation = validation_of([news.columns])
        steps = self.training.keys[:, 0]
        seconds = np.zeros(0)
        with contextlib.suppress(common.ToolError):
            seconds = reading(self.path, lambda file: file["seconds"][:steps.size] if "seconds" in file else seconds)
        if seconds.size != steps.size:
            return run, np.full(run.series["step"].size, time.time())
        times = Run(label, {"step": steps, "seconds": seconds}, starts=starts).times()
        return run, times[steps.size - run.series["step"].size:]


@contextlib.contextmanager
def ending_on_signals() -> Iterator[None]:
    """SIGTERM ends the tool as Ctrl-C does: what it writes is complete."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def follow(path: Path, label: str, make_sink: Callable[[Run], Sink], every: float, patience: float) -> tuple[int, str]:
    """Draws until the run ends, or Ctrl-C. patience: seconds that a run which stopped or failed may take to start
    again. The last step drawn, and why it ended."""
    follower, sink = Follower(path), None
    ended_at, steps, why = 0.0, 0, "interrupted"
    try:
        with ending_on_signals():
            while True:
                state = state_of(path.parent, run_log.read_log(path.parent / "run.log", run_log.TAIL), math.nan)
                news = follower.look()
                if news.rows or news.taken_back is not None:
                    run, times = follower.run_of(news, label)
                    sink = sink or make_sink(run)
                    if news.taken_back is not None and not sink.restart(news.taken_back, run):
                        run = load_run(f"{label}={path}")
                        times = run.times()
                    for step, when, values in scalars(run, times):
                        sink.write(step, when, values)
                    sink.flush()
                    steps = int(follower.training.keys[-1, 0]) if len(follower.training.keys) else 0
                if state.word not in ENDED:
                    ended_at = 0.0
                elif ended_at and (state.word == "finished" or time.monotonic() - ended_at >= patience):
                    why = str(state)  # seen twice: over a network file system rows may come later than the log
                    break
                else:
                    ended_at = ended_at or time.monotonic()
                time.sleep(every)
    except KeyboardInterrupt:
        pass
    finally:
        if sink is not None:
            sink.close()
    return steps, why
