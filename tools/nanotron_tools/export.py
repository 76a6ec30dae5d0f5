"""Writes the quantities of a run for other programs: TensorBoard, W&B, CSV and Parquet.

    nanotron-export run/ --format csv -o run_csv                   training.csv, validation.csv
    nanotron-export run/ --format parquet -o run_parquet           training.parquet, validation.parquet
    nanotron-export run/ --format tensorboard -o events/run        tensorboard --logdir events
    nanotron-export run/ --format wandb-offline -o run_wandb       wandb sync run_wandb/wandb/offline-run-*

A run is its directory or its metrics.h5; LABEL= in front names it, A+B joins the parts of a run that was resumed
elsewhere. Each step is written once: where it was recorded twice, because the run went back to a checkpoint, the later
record counts. Columns have the names of metrics.h5; Parquet keeps their unit and description as metadata of the field.
TensorBoard and W&B get training/<quantity> and validation/<set> at their steps, W&B also the deck as its configuration.
Times are those of the starts plus the seconds of the steps. Nothing is sent anywhere.

csv needs numpy and h5py; the others the package of their name: pip install 'nanotron-tools[tensorboard,parquet,wandb]'.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from . import common
from .metrics import VALIDATION, Array, Run, load_run

NOT_DRAWN = ("step", "token_hash")  # no curves
Table = dict[str, Array]


def training_table(run: Run) -> Table:
    return {"step": run.series["step"]} | run.series


def validation_table(run: Run) -> Table:
    """Rows of all sets; NaN where a set has none of that step."""
    if not run.validation:
        return {}
    steps = np.unique(np.concatenate([steps for steps, _ in run.validation.values()]))
    table = {"validation_step": steps}
    for name, (at, losses) in run.validation.items():
        column = np.full(steps.size, np.nan)
        column[np.searchsorted(steps, at)] = losses
        table[f"{VALIDATION}_{name}" if name else VALIDATION] = column
    return table


def tables(run: Run) -> dict[str, Table]:
    found = {"training": training_table(run), "validation": validation_table(run)}
    return {name: table for name, table in found.items() if table}


def scalars(run: Run) -> Iterator[tuple[int, float, dict[str, float]]]:
    """(step, time, name -> value) in the order of the steps, without quantities that are not known (NaN everywhere)."""
    steps, times = run.series["step"], run.times()
    by_step: dict[int, tuple[float, dict[str, float]]] = {int(step): (when, {}) for step, when in zip(steps, times)}
    for name, values in run.series.items():
        if name not in NOT_DRAWN and not np.isnan(values.astype(np.float64)).all():
            for step, value in zip(steps, values):
                by_step[int(step)][1]["training/" + name] = float(value)
    for name, (at, losses) in run.validation.items():
        for step, value in zip(at, losses):
            row = min(int(np.searchsorted(steps, step)), steps.size - 1)
            by_step.setdefault(int(step), (times[row], {}))[1]["validation/" + (name or "loss")] = float(value)
    for step, (when, found) in sorted(by_step.items()):
        yield step, float(when), found


# ---------------------------------------------------------------------------------------------


def write_csv(run: Run, folder: Path) -> None:
    """Numbers in full: they read back as the same bits."""
    for name, table in tables(run).items():
        with open(folder / f"{name}.csv", "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(table)
            writer.writerows(zip(*(column.tolist() for column in table.values())))


def write_parquet(run: Run, folder: Path) -> None:
    pyarrow, parquet = common.require("pyarrow", "pyarrow.parquet")
    for name, table in tables(run).items():
        fields = [pyarrow.field(key, pyarrow.from_numpy_dtype(column.dtype), metadata=run.about.get(key))
                  for key, column in table.items()]
        schema = pyarrow.schema(fields, metadata={"run": run.label, "title": run.deck.get("run.title", "")})
        parquet.write_table(pyarrow.table(list(table.values()), schema=schema), folder / f"{name}.parquet")


def write_tensorboard(run: Run, folder: Path) -> None:
    events, proto, summaries = common.require("tensorboard.summary.writer.event_file_writer",
                                              "tensorboard.compat.proto.event_pb2",
                                              "tensorboard.compat.proto.summary_pb2")
    writer = events.EventFileWriter(str(folder))
    try:
        for step, when, values in scalars(run):
            entries = [summaries.Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
            writer.add_event(proto.Event(wall_time=when, step=step, summary=summaries.Summary(value=entries)))
    finally:
        writer.close()


def write_wandb(run: Run, folder: Path) -> None:
    """An offline run, whatever the environment says of the mode: no server is asked."""
    os.environ["WANDB_MODE"] = "offline"
    wandb = common.require("wandb")
    settings = wandb.Settings(console="off", disable_git=True, silent=True, x_disable_stats=True, x_disable_meta=True)
    with wandb.init(mode="offline", dir=str(folder), project="nanotron_hpc", name=run.label, config=run.deck,
                    notes=run.deck.get("run.title", ""), settings=settings) as target:
        for step, when, values in scalars(run):
            target.log(values | {"_timestamp": when}, step=step)


FORMATS: dict[str, tuple[Callable[[Run, Path], None], tuple[str, ...]]] = {
    "csv": (write_csv, ()),
    "parquet": (write_parquet, ("pyarrow",)),
    "tensorboard": (write_tensorboard, ("tensorboard",)),
    "wandb-offline": (write_wandb, ("wandb",)),
}


def main(argv: list[str] | None = None) -> int:
    parser = common.parser(__doc__)
    parser.add_argument("run", metavar="[LABEL=]RUN[+RUN...]")
    parser.add_argument("--format", "-f", required=True, choices=FORMATS, metavar="FORMAT", help=", ".join(FORMATS))
    parser.add_argument("--output", "-o", required=True, type=Path, help="folder to make; an empty one may be there")
    options = parser.parse_args(argv)
    write, packages = FORMATS[options.format]
    common.require(*packages)
    run = load_run(options.run)
    if not run.series["step"].size:
        raise common.ToolError(f"no step recorded yet in {options.run}")
    folder: Path = options.output
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise common.ToolError(f"--output: expected a new or empty folder, so that no two runs are mixed\n"
                               f"  found:  files in it\n  where:  {folder}\n  change: give another, or remove it",
                               common.EXIT_USAGE)
    folder.mkdir(parents=True, exist_ok=True)
    write(run, folder)
    rows = sum(steps.size for steps, _ in run.validation.values())
    print(f"{folder}: {run.label}, {run.series['step'].size} steps, {rows} validation losses")
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        print(f"  {path.relative_to(folder)}  {path.stat().st_size:,} bytes")
    return 0
