"""Writes the quantities of a run for other programs: TensorBoard, W&B, CSV and Parquet.

    nanotron-export run/ --format csv -o run_csv                   training.csv, validation.csv
    nanotron-export run/ --format parquet -o run_parquet           training.parquet, validation.parquet
    nanotron-export run/ --format tensorboard -o events/run        tensorboard --logdir events
    nanotron-export run/ --format wandb-offline -o run_wandb       wandb sync run_wandb/wandb/offline-run-*
    nanotron-export run/ --follow --format tensorboard -o events/run    live, beside a running job
    nanotron-export run/ --follow --wait 86400 --format wandb -o run_wandb

A run is its directory or its metrics.h5; LABEL= in front names it, A+B joins the parts of a run that was resumed
elsewhere. Each step is written once: where it was recorded twice, because the run went back to a checkpoint, the later
record counts. Columns have the names of metrics.h5; Parquet keeps their unit and description as metadata of the field.
TensorBoard and W&B get training/<quantity> and validation/<set> at their steps, W&B also the deck as its configuration.
Times are those of the starts plus the seconds of the steps. Nothing is sent anywhere, except with --format wandb, where
the settings of W&B decide (wandb login, WANDB_MODE).

--follow looks at metrics.h5 every --every seconds and writes the new rows, until the run has finished, has stopped or
failed for --wait seconds, or Ctrl-C. The run is not disturbed and need not exist yet. The same command continues later.
Where the run goes back to a checkpoint, or begins again, so do the curves: TensorBoard discards the later steps; W&B
gets another run, of the same group, with the whole curve.

csv needs numpy and h5py; the others the package of their name: pip install 'nanotron-tools[tensorboard,parquet,wandb]'.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Callable
from pathlib import Path

import numpy as np

from . import common, follow
from .curves import Sink, TensorBoard, Wandb, scalars
from .metrics import VALIDATION, Array, Run, load_run

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


def write_curves(run: Run, sink: Sink) -> None:
    try:
        for step, when, values in scalars(run):
            sink.write(step, when, values)
    finally:
        sink.close()


TABLES: dict[str, tuple[Callable[[Run, Path], None], tuple[str, ...]]] = {
    "csv": (write_csv, ()),
    "parquet": (write_parquet, ("pyarrow",)),
}
CURVES: dict[str, tuple[Callable[[Path, Run], Sink], tuple[str, ...]]] = {
    "tensorboard": (lambda folder, run: TensorBoard(folder), ("tensorboard",)),
    "wandb-offline": (lambda folder, run: Wandb(folder, run, offline=True), ("wandb",)),
    "wandb": (lambda folder, run: Wandb(folder, run, offline=False), ("wandb",)),
}
FORMATS = (*TABLES, *CURVES)
FOLLOWED = "nanotron_export.txt"  # in the folder of --follow: the run that it shows


def make_folder(folder: Path, owner: str) -> None:
    """A new or empty folder; or the one that --follow of the same run made before."""
    mark = folder / FOLLOWED
    if owner and mark.is_file() and mark.read_text(encoding="utf-8") == owner:
        return
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise common.ToolError(f"--output: expected a new or empty folder, so that no two runs are mixed\n"
                               f"  found:  files in it\n  where:  {folder}\n  change: give another, or remove it",
                               common.EXIT_USAGE)
    folder.mkdir(parents=True, exist_ok=True)
    if owner:
        mark.write_text(owner, encoding="utf-8")


def follow_run(options: argparse.Namespace) -> int:
    label, _, where = options.run.rpartition("=")
    path = Path(where)
    path = path if path.name == "metrics.h5" else path / "metrics.h5"
    label = label or path.resolve().parent.name
    make, _ = CURVES[options.format]
    folder: Path = options.output
    is_again = folder.exists() and any(folder.iterdir()) if folder.is_dir() else False
    make_folder(folder, f"{path.resolve()}\n")

    def sink(run: Run) -> Sink:
        made = make(folder, run)
        if is_again and options.format == "tensorboard":
            made.restart(0, run)  # what an earlier --follow wrote
        return made

    print(f"{folder}: follows {path.parent}, until it ends or Ctrl-C"
          + ("" if path.is_file() else f"; there is no {path} yet"), flush=True)
    steps, why = follow.follow(path, label, sink, options.every, options.wait)
    print(f"{folder}: {label}, step {steps:,}; {why}")
    return 0


def main(argv: list[str] | None = None) -> int:
    parser = common.parser(__doc__)
    parser.add_argument("run", metavar="[LABEL=]RUN[+RUN...]")
    parser.add_argument("--format", "-f", required=True, choices=FORMATS, metavar="FORMAT", help=", ".join(FORMATS))
    parser.add_argument("--output", "-o", required=True, type=Path, help="folder to make; an empty one may be there")
    parser.add_argument("--follow", action="store_true", help="draw new rows while the run writes them")
    parser.add_argument("--every", type=float, default=10.0, metavar="SECONDS", help="between looks (default 10)")
    parser.add_argument("--wait", type=float, default=0.0, metavar="SECONDS",
                        help="how long a run that stopped or failed may take to start again (default 0)")
    options = parser.parse_args(argv)
    if options.every <= 0 or options.wait < 0:
        parser.error("--every: expected a positive number, and of --wait one that is not negative")
    if options.follow and (options.format not in CURVES or "+" in options.run):
        parser.error(f"--follow: expected one run and --format {', '.join(CURVES)}")
    common.require(*(TABLES | CURVES)[options.format][1])
    if options.follow:
        return follow_run(options)
    run = load_run(options.run)
    if not run.series["step"].size:
        raise common.ToolError(f"no step recorded yet in {options.run}")
    folder: Path = options.output
    make_folder(folder, "")
    if options.format in TABLES:
        TABLES[options.format][0](run, folder)
    else:
        write_curves(run, CURVES[options.format][0](folder, run))
    rows = sum(steps.size for steps, _ in run.validation.values())
    print(f"{folder}: {run.label}, {run.series['step'].size} steps, {rows} validation losses")
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        print(f"  {path.relative_to(folder)}  {path.stat().st_size:,} bytes")
    return 0
