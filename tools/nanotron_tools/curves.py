"""The quantities of a run as curves, and the programs that draw them: TensorBoard and W&B."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from . import common
from .metrics import Array, Run

NOT_DRAWN = ("step", "token_hash")
Values = dict[str, float]


def scalars(run: Run, times: Array | None = None) -> Iterator[tuple[int, float, Values]]:
    """(step, time, name -> value) in the order of the steps, without quantities that are not known (NaN everywhere).
    times: of the rows, where they are not those of run.times()."""
    steps, times = run.series["step"], run.times() if times is None else times
    by_step: dict[int, tuple[float, Values]] = {int(step): (when, {}) for step, when in zip(steps, times)}
    for name, values in run.series.items():
        if name not in NOT_DRAWN and not np.isnan(values.astype(np.float64)).all():
            for step, value in zip(steps, values):
                by_step[int(step)][1]["training/" + name] = float(value)
    for name, (at, losses) in run.validation.items():
        for step, value in zip(at, losses):
            row = min(int(np.searchsorted(steps, step)), steps.size - 1)
            when = times[row] if row >= 0 else 0.0
            by_step.setdefault(int(step), (when, {}))[1]["validation/" + (name or "loss")] = float(value)
    for step, (when, found) in sorted(by_step.items()):
        yield step, float(when), found


class Sink(Protocol):
    """A program that draws curves. Steps come in ascending order, except after restart()."""

    def write(self, step: int, when: float, values: Values) -> None: ...

    def restart(self, step: int, run: Run) -> bool:
        """The run went back: what was written from `step` on no longer counts. False: nothing of what was written does,
        so that all has to be written again."""

    def flush(self) -> None: ...

    def close(self) -> None: ...


class TensorBoard:
    """One event file."""

    def __init__(self, folder: Path):
        events, self.proto, self.summaries = common.require("tensorboard.summary.writer.event_file_writer",
                                                            "tensorboard.compat.proto.event_pb2",
                                                            "tensorboard.compat.proto.summary_pb2")
        self.writer = events.EventFileWriter(str(folder))

    def write(self, step: int, when: float, values: Values) -> None:
        entries = [self.summaries.Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        summary = self.summaries.Summary(value=entries)
        self.writer.add_event(self.proto.Event(wall_time=when, step=step, summary=summary))

    def restart(self, step: int, run: Run) -> bool:
        """A session that starts: TensorBoard discards events of this step and later ones."""
        start = self.proto.SessionLog(status=self.proto.SessionLog.START)
        self.writer.add_event(self.proto.Event(step=step, session_log=start))
        return True

    def flush(self) -> None:
        self.writer.flush()

    def close(self) -> None:
        self.writer.close()


class Wandb:
    """A run of W&B: offline, whatever the environment says of the mode, or as W&B's settings say. Steps of a run cannot
    be taken back: after restart() another W&B run, of the same group, has the whole curve."""

    def __init__(self, folder: Path, run: Run, offline: bool):
        if offline:
            os.environ["WANDB_MODE"] = "offline"
        self.wandb, self.folder, self.run = common.require("wandb"), folder, run
        self.mode = "offline" if offline else None
        self.number = 1
        self.open()

    def open(self) -> None:
        settings = self.wandb.Settings(console="off", disable_git=True, silent=True, x_disable_stats=True,
                                       x_disable_meta=True)
        name = self.run.label + (f" ({self.number})" if self.number > 1 else "")
        self.target: Any = self.wandb.init(mode=self.mode, dir=str(self.folder), project="nanotron_hpc", name=name,
                                           group=self.run.label, config=self.run.deck,
                                           notes=self.run.deck.get("run.title", ""), settings=settings, reinit=True)

    def write(self, step: int, when: float, values: Values) -> None:
        self.target.log(values | {"_timestamp": when}, step=step)

    def restart(self, step: int, run: Run) -> bool:
        self.target.finish()
        self.run = run
        self.number += 1
        self.open()
        return False

    def flush(self) -> None:
        """W&B writes as it is given."""

    def close(self) -> None:
        """Also ends W&B's own process, which then has written its file."""
        self.target.finish()
        self.wandb.teardown()
