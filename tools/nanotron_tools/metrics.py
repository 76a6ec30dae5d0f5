"""metrics.h5 of a run: its columns, those of several parts joined, and validation losses by their sets."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import h5py
import numpy as np

from . import common

VALIDATION = "validation_loss"  # of all sets; validation_loss_<name> of each


@dataclass
class Run:
    label: str
    series: dict[str, np.ndarray] = field(default_factory=dict)  # sorted by step, each step once
    validation: dict[str, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)  # '': all sets
    resumed_at: list[int] = field(default_factory=list)


def metrics_path(text: str) -> Path:
    path = Path(text)
    path = path / "metrics.h5" if path.is_dir() else path
    if not path.is_file():
        raise common.ToolError(f"{path}: no such file; a run is given by its directory")
    return path


def read_metrics(path: Path) -> dict[str, np.ndarray]:
    try:
        with h5py.File(path, "r") as file:
            data = {name: item[:] for name, item in file.items()
                    if isinstance(item, h5py.Dataset) and item.ndim == 1}
    except OSError as error:
        raise common.ToolError(f"{path}: cannot be read as HDF5 ({error})") from None
    for name in ("step", "loss"):
        if name not in data:
            raise common.ToolError(f"{path}: no dataset '{name}', so these are no metrics of a run")
    count = data["step"].size
    main = {name: values for name, values in data.items() if not name.startswith("validation_")}
    if any(values.size < count for values in main.values()):  # caught while a record was written
        count = min(values.size for values in main.values())
    result = {name: values[:count] for name, values in main.items()}
    kept = {name: values for name, values in data.items() if name.startswith(VALIDATION)}
    if "validation_step" in data and kept:
        kept["validation_step"] = data["validation_step"]
        size = min(values.size for values in kept.values())
        result |= {name: values[:size] for name, values in kept.items()}
    return result


def last_of_each(steps: np.ndarray) -> np.ndarray:
    """Indices that keep the last record of every step, in order of the steps."""
    _, first = np.unique(steps[::-1], return_index=True)
    return steps.size - 1 - first


def load_run(text: str) -> Run:
    label, _, where = text.rpartition("=") if "=" in text else ("", "", text)
    paths = [metrics_path(part) for part in where.split("+")]
    parts = [read_metrics(path) for path in paths]
    names = set.intersection(*(set(part) for part in parts))
    data = {name: np.concatenate([part[name] for part in parts]) for name in names
            if not name.startswith("validation_")}
    steps = data["step"].astype(np.int64)
    back = [int(s) for s in steps[1:][np.diff(steps) <= 0]]
    joints = [int(part["step"][0]) for part in parts[1:] if part["step"].size]
    keep = last_of_each(steps)
    series = {name: values[keep] for name, values in data.items()}
    name = paths[0].parent.name or str(paths[0].parent.resolve().name)
    return Run(label or name, series, validation_of(parts), sorted(set(back + joints)))


def validation_of(parts: list[dict]) -> dict[str, tuple[np.ndarray, np.ndarray]]:
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
