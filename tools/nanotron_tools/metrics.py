"""metrics.h5 of a run: its columns, those of several parts joined, its starts, and validation losses by their sets."""

from __future__ import annotations

import calendar
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from . import common, hdf5, row_hashes
from .checkpoint import deck_values

VALIDATION = "validation_loss"  # of all sets; validation_loss_<name> of each
ABOUT = ("units", "long_name")
TRIES = 5
DAMAGE = (OSError, KeyError, RuntimeError, ValueError, TypeError, AttributeError, MemoryError)  # of h5py in such a file
START = re.compile(r"provenance(?:_step_(\d+))?$")
Array = np.ndarray[Any, np.dtype[Any]]


@dataclass
class Start:
    """One start of the program: the steps done before it, what ran, and its deck."""

    step: int
    provenance: dict[str, str]
    deck: dict[str, str]

    @property
    def time(self) -> float | None:
        """Seconds since 1970, to a second."""
        try:
            return calendar.timegm(time.strptime(self.provenance.get("start_time", ""), "%Y-%m-%dT%H:%M:%SZ"))
        except ValueError:
            return None


@dataclass
class Run:
    label: str
    series: dict[str, Array] = field(default_factory=dict)  # sorted by step, each step once
    validation: dict[str, tuple[Array, Array]] = field(default_factory=dict)  # set -> steps, losses; '': all sets
    resumed_at: list[int] = field(default_factory=list)
    starts: list[Start] = field(default_factory=list)
    about: dict[str, dict[str, str]] = field(default_factory=dict)  # column -> attribute -> text

    @property
    def deck(self) -> dict[str, str]:
        return self.starts[-1].deck if self.starts else {}

    @property
    def steps_of_row(self) -> Array:
        """How many steps each row stands for: more than 1 where output%metrics_every is."""
        counts: Array = np.diff(self.series["step"], prepend=0)
        return counts

    @property
    def first_rows(self) -> Array:
        """Which rows are the first after a start: they are slow."""
        first = np.zeros(self.series["step"].size, dtype=bool)
        begins = [0, *self.resumed_at, *(start.step for start in self.starts)]
        rows = np.searchsorted(self.series["step"], begins, side="right")
        first[rows[rows < first.size]] = True
        return first

    def times(self) -> Array:
        """Seconds since 1970 at each row's end, from the times of the starts and the seconds of the steps."""
        steps = self.series["step"]
        passed = np.cumsum(self.series.get("seconds", np.zeros(steps.size)) * self.steps_of_row)
        result: Array = np.full(steps.size, time.time() - (passed[-1] if passed.size else 0.0)) + passed
        for start in self.starts:
            row = int(np.searchsorted(steps, start.step, side="right"))
            if start.time is not None and row < steps.size:
                result[row:] = start.time + passed[row:] - (passed[row - 1] if row else 0.0)
        return result


def metrics_path(text: str) -> Path:
    path = Path(text)
    path = path / "metrics.h5" if path.is_dir() else path
    if not path.is_file():
        raise common.ToolError(f"{path}: no such file; a run is given by its directory")
    return path


def read_metrics(path: Path, last: int = 0) -> dict[str, Array]:
    """All columns, or their `last` rows. Those of a kind have the same length, also while a record is written."""

    def read(file: h5py.File) -> dict[str, Array]:
        items = columns(file)
        for name in ("step", "loss"):
            if name not in items:
                raise common.ToolError(f"{path}: no dataset '{name}', so this is not a metrics file of a run")
        training = {name: item for name, item in items.items() if not name.startswith("validation_")}
        validation = {name: item for name, item in items.items() if name.startswith(VALIDATION)}
        if validation and "validation_step" in items:
            validation["validation_step"] = items["validation_step"]
        else:
            validation = {}
        return aligned(training, last) | aligned(validation, last)

    found: dict[str, Array] = reading(path, read)
    return found


def reading(path: Path, read: Callable[[h5py.File], Any]) -> Any:
    """read(file), some times over: a look at a file that is written in this moment can fail."""
    for attempt in range(1, TRIES + 1):
        try:
            with h5py.File(path, "r") as file:
                return read(file)
        except DAMAGE as error:
            if attempt == TRIES:
                raise common.wrong(f"{path} cannot be read", "metrics of a run, in HDF5", f"{type(error).__name__}: "
                                   f"{error}", "copy it again if it is a copy; the next start of the run moves a "
                                   "damaged one aside") from None
        time.sleep(0.1)


def columns(file: h5py.File) -> dict[str, h5py.Dataset]:
    return {name: item for name, item in file.items()
            if isinstance(item, h5py.Dataset) and item.ndim == 1 and item.dtype.kind in "iuf"
            and name not in row_hashes.COLUMNS}


def aligned(items: dict[str, h5py.Dataset], last: int) -> dict[str, Array]:
    count = min((item.shape[0] for item in items.values()), default=0)
    return {name: item[max(0, count - last) if last else 0:count] for name, item in items.items()}


def read_starts(path: Path) -> tuple[list[Start], dict[str, dict[str, str]]]:
    """The starts that wrote the file, in their order, and what its columns say of themselves."""

    def read(file: h5py.File) -> tuple[list[Start], dict[str, dict[str, str]]]:
        starts = []
        for name, group in file.items():
            if match := START.match(name):
                values = {key: hdf5.as_text(value) for key, value in group.attrs.items()}
                deck = file.get(name.replace("provenance", "deck"))
                starts.append(Start(int(match[1] or 0), values,
                                    deck_values(hdf5.as_text(deck[()])) if deck is not None else {}))
        about = {name: {key: hdf5.as_text(item.attrs[key]) for key in ABOUT if key in item.attrs}
                 for name, item in columns(file).items()}
        return sorted(starts, key=lambda start: start.step), about

    found: tuple[list[Start], dict[str, dict[str, str]]] = reading(path, read)
    return found


def last_of_each(steps: Array) -> Array:
    """Indices that keep the last record of every step, in order of the steps."""
    _, first = np.unique(steps[::-1], return_index=True)
    kept: Array = steps.size - 1 - first
    return kept


def load_run(text: str) -> Run:
    """The run that [LABEL=]RUN[+RUN...] names."""
    label, _, where = text.rpartition("=") if "=" in text else ("", "", text)
    paths = [metrics_path(part) for part in where.split("+")]
    parts = [read_metrics(path) for path in paths]
    names = set.intersection(*(set(part) for part in parts))
    data = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]
            if name in names and not name.startswith("validation_")}
    steps = data["step"].astype(np.int64)
    back = [int(s) for s in steps[1:][np.diff(steps) <= 0]]
    joints = [int(part["step"][0]) for part in parts[1:] if part["step"].size]
    keep = last_of_each(steps)
    series = {name: values[keep] for name, values in data.items()}
    name = paths[0].parent.name or str(paths[0].parent.resolve().name)
    run = Run(label or name, series, validation_of(parts), sorted(set(back + joints)))
    for path in paths:
        starts, about = read_starts(path)
        run.starts += starts
        run.about |= about
    return run


def validation_of(parts: list[dict[str, Array]]) -> dict[str, tuple[Array, Array]]:
    """Name of a set -> (steps, losses); '' is the loss of all sets, left out where it is that of the only one."""
    result = {}
    for key in sorted({key for part in parts for key in part if key.startswith(VALIDATION)}):
        having = [part for part in parts if key in part]
        steps = np.concatenate([part["validation_step"] for part in having])
        losses = np.concatenate([part[key] for part in having]).astype(np.float64)
        keep = last_of_each(steps.astype(np.int64))
        keep = keep[np.isfinite(losses[keep])]
        if keep.size:
            result[key[len(VALIDATION) + 1:]] = (steps[keep], losses[keep])
    if len(result) == 2 and "" in result:
        (_, (steps, losses)), (_, (all_steps, all_losses)) = sorted(result.items(), reverse=True)
        if np.array_equal(steps, all_steps) and np.array_equal(losses, all_losses):
            del result[""]
    return result
