"""Plots one or several runs: loss, validation loss, learning rate, gradient norm, tokens/s.

    nanotron-plot run/ -o loss.png --token-file tokens.h5
    nanotron-plot 'tp 2'=run-a/ 'tp 1, dp 2'=run-b/ -o both.png
    nanotron-plot resumed=run-a/+run-b/ -o one_curve.png
    nanotron-plot --sizes sizes.csv -o sizes.png

A run is its directory or its metrics.h5; LABEL= in front names it, A+B joins the parts of a run
that was resumed elsewhere. Where a step was recorded twice, because the run went back to a
checkpoint, the later record counts. --token-file draws the unigram entropy of the data: what a
model without any context reaches at best.

Bold lines are moving averages over --smooth steps. Towards the start the window narrows, since the loss
falls steeply there; towards the end it lags, so the line ends in the mean of a full window: the
number in the legend. Each named validation set is drawn with its own label.

--sizes draws what a step goes into, its time, node-hours and energy of each grid or size, as nanotron_plan --csv writes
them.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from . import common, token_file
from .metrics import Run, load_run

# Okabe and Ito's palette: told apart by everybody, in print too.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
GREY, RED = "#6b6b6b", "#B03030"
MARKERS = "Dos^vP*X"


def smooth(values: np.ndarray, width: int) -> np.ndarray:
    """Centred moving average over an odd number of values, ignoring NaN. Towards the start the window
    narrows; towards the end it lags, so the last value is the mean of a whole window."""
    if width <= 1 or values.size < 3:
        return values
    good = np.isfinite(values)
    sums = np.concatenate(([0.0], np.cumsum(np.where(good, values, 0.0))))
    counts = np.concatenate(([0], np.cumsum(good)))
    index = np.arange(values.size)
    half = np.minimum(min(width, values.size - 1) // 2, index)
    high = np.minimum(index + half + 1, values.size)
    low = high - 2 * half - 1
    with np.errstate(invalid="ignore", divide="ignore"):
        means: np.ndarray = (sums[high] - sums[low]) / (counts[high] - counts[low])
    return means


def entropy_of(path: Path) -> float:
    try:
        with h5py.File(path, "r") as file:
            if "unigram_entropy" in file.attrs:
                return float(file.attrs["unigram_entropy"])
            tokens, counts = file["tokens"], np.zeros(0, dtype=np.int64)
            for start in range(0, tokens.shape[0], 1 << 22):
                block = np.bincount(tokens[start:start + (1 << 22)], minlength=counts.size)
                block[:counts.size] += counts
                counts = block
            return token_file.unigram_entropy(counts)
    except (OSError, KeyError) as error:
        raise common.ToolError(f"{path}: not a token file ({error})") from None


# ---------------------------------------------------------------------------------------------


def style(plt: Any) -> None:
    plt.rcParams.update({
        "font.size": 10, "axes.titlesize": 11, "axes.titlelocation": "left",
        "axes.titleweight": "bold", "axes.spines.top": False, "axes.spines.right": False,
        "axes.grid": True, "grid.color": "#e6e6e6", "grid.linewidth": 0.8,
        "axes.axisbelow": True, "axes.edgecolor": GREY, "xtick.color": GREY,
        "ytick.color": GREY, "legend.frameon": False, "lines.solid_capstyle": "round"})


def draw_curve(axes: Any, run: Run, name: str, colour: str, width: int, label: str | None = None) -> None:
    """The raw values faintly and their moving average on top."""
    if name not in run.series:
        return
    steps, values = run.series["step"], run.series[name].astype(np.float64)
    marker = "o" if steps.size == 1 else None
    if width > 1 and values.size >= 3:
        axes.plot(steps, values, color=colour, alpha=0.25, linewidth=0.8)
    axes.plot(steps, smooth(values, width), color=colour, linewidth=1.7, label=label,
              marker=marker)


def loss_label(run: Run, width: int) -> str:
    """The run and the number that its bold line ends in."""
    losses = run.series["loss"].astype(np.float64)
    if not losses.size:
        return run.label
    count = 2 * (min(width, losses.size - 1) // 2) + 1 if width > 1 and losses.size >= 3 else 1
    over = f"mean of the last {count} steps" if count > 1 else "last"
    return f"{run.label} ({over} {smooth(losses, width)[-1]:.3f})"


def draw_loss(axes: Any, runs: list[Run], width: int, entropy: float | None, log_scale: bool) -> None:
    for run, colour in zip(runs, COLOURS * len(runs)):
        draw_curve(axes, run, "loss", colour, width, loss_label(run, width))
        for index, (name, (steps, losses)) in enumerate(run.validation.items()):
            title = f"validation '{name}'" if name else "validation"
            axes.plot(steps, losses, color=colour, linestyle=(0, (1, 2)) if name else "none",
                      linewidth=0.9, marker=MARKERS[index % len(MARKERS)], markersize=5, markerfacecolor="white",
                      markeredgewidth=1.4, label=f"{run.label}, {title} (last {losses[-1]:.3f})")
        mark_resumes(axes, run)
    if entropy is not None:
        axes.axhline(entropy, color=RED, linestyle=(0, (6, 3)), linewidth=1.2,
                     label=f"unigram entropy of the data ({entropy:.3f})")
    axes.set_title("loss (nats per token)")
    axes.legend(loc="upper right", fontsize=9)
    if log_scale:
        axes.set_yscale("log")


def mark_resumes(axes: Any, run: Run) -> None:
    for step in run.resumed_at:
        axes.axvline(step, color=GREY, linestyle=":", linewidth=1.1)
        axes.annotate("resumed", (step, 0), xycoords=("data", "axes fraction"), xytext=(3, 4),
                      textcoords="offset points", color=GREY, fontsize=8)


def robust_top(axes: Any, runs: list[Run], name: str) -> None:
    """Keeps a first slow step or one spike from flattening the rest of the curve."""
    found = [run.series[name].astype(np.float64) for run in runs if name in run.series]
    values = np.concatenate(found) if found else np.zeros(0)
    values = values[np.isfinite(values)]
    if values.size < 20:
        return
    top = np.percentile(values, 99)
    if values.max() > 3 * top > 0:
        axes.set_ylim(top=1.3 * top)


def make_figure(runs: list[Run], options: argparse.Namespace) -> Any:
    common.require("matplotlib").use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.ticker import EngFormatter, FuncFormatter

    style(plt)
    longest = max(run.series["step"].size for run in runs)
    width = options.smooth if options.smooth is not None else max(1, longest // 100)
    entropy = entropy_of(options.token_file) if options.token_file else None
    figure = plt.figure(figsize=(10, 6.4), layout="constrained")
    grid = figure.add_gridspec(2, 3, height_ratios=(1.9, 1))
    draw_loss(figure.add_subplot(grid[0, :]), runs, width, entropy, options.log)
    below = (("learning_rate", "learning rate", 1), ("grad_norm", "gradient norm", width),
             ("tokens_per_second", "tokens per second", width))
    for column, (name, title, average) in enumerate(below):
        axes = figure.add_subplot(grid[1, column])
        for run, colour in zip(runs, COLOURS * len(runs)):
            draw_curve(axes, run, name, colour, average)
        robust_top(axes, runs, name)
        axes.set_ylim(bottom=0)
        axes.set_title(title)
        axes.set_xlabel("step")
        if name == "tokens_per_second":
            axes.yaxis.set_major_formatter(EngFormatter(sep=""))
        elif name == "learning_rate":
            axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    if options.title:
        figure.suptitle(options.title, x=0.01, ha="left", fontsize=13, fontweight="bold")
    return figure


# Columns of the table between these are seconds of a step by what they go into.
BEFORE_SHARES, AFTER_SHARES = "mfu", "node_hours"
FIGURES = ("ranks", "seconds_per_step", "node_hours", "kilowatt_hours")


def read_sizes(path: Path) -> tuple[list[str], dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Names of the rows; column -> values; share of a step -> %, without those that are nowhere 1 %."""
    try:
        rows = list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))
        names = list(rows[0]) if rows else []
        shares = names[names.index(BEFORE_SHARES) + 1 : names.index(AFTER_SHARES)] if rows else []
        extra = ("days",) if "days" in names else ()
        values = {name: np.array([float(row[name]) for row in rows]) for name in (*FIGURES, *extra, *shares)}
    except (OSError, UnicodeDecodeError, KeyError, TypeError, ValueError) as error:
        raise common.ToolError(f"{path}: expected a table of nanotron_plan --csv ({error!r})") from None
    if not rows:
        raise common.ToolError(f"{path}: the table has no row")
    percent = {name: 100.0 * values[name] / values["seconds_per_step"] for name in shares}
    degrees = ("dp", "tp", "pp", "cp", "ep")
    grids = [" ".join(f"{axis}{row[axis]}" for axis in degrees if row[axis] != "1") or "1 rank" for row in rows]
    options = [f"micro-batch {row['micro_batch']}\nZeRO-{row['zero_stage']}" for row in rows]
    labels = [f"{row['ranks']}\n{grid}\n{how}" for row, grid, how in zip(rows, grids, options)]
    return labels, values, {name: part for name, part in percent.items() if part.max() >= 1.0}


def draw_sizes(path: Path, title: str) -> Any:
    """What each grid's step goes into; its time; what the run costs."""
    common.require("matplotlib").use("Agg")
    import matplotlib.pyplot as plt

    labels, values, shares = read_sizes(path)
    style(plt)
    figure, rows = plt.subplots(3, 1, figsize=(max(7.0, 1.1 * len(labels)), 9), layout="constrained", sharex=True)
    at = np.arange(len(labels))
    bottom = np.zeros(len(labels))
    colours = plt.get_cmap("tab20").colors
    for k, (name, part) in enumerate(shares.items()):
        rows[0].bar(at, part, bottom=bottom, color=colours[k % len(colours)], label=name.replace("_", " "))
        bottom += part
    rows[0].set_ylabel("% of a step")
    rows[0].legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=8)
    time = "days" if "days" in values else "seconds_per_step"
    rows[1].plot(at, values[time], "o-", color=COLOURS[0])
    rows[1].set_ylabel("days" if time == "days" else "s per step")
    rows[2].plot(at, values["node_hours"], "o-", color=COLOURS[1])
    rows[2].set_ylabel("node-hours")
    if values["kilowatt_hours"].any():
        energy = rows[2].twinx()
        energy.plot(at, values["kilowatt_hours"] / 1e3, "s", color=COLOURS[2], markersize=3)
        energy.set_ylabel("MWh")
        energy.set_ylim(0, 1.1e-3 * values["kilowatt_hours"].max())
        energy.grid(False)
    for axes, name in zip(rows[1:], (time, "node_hours")):
        axes.set_ylim(0, 1.1 * values[name].max())
    rows[2].set_xticks(at, labels, fontsize=8)
    rows[2].set_xlabel("ranks and grid")
    if title:
        figure.suptitle(title, x=0.01, ha="left", fontsize=13, fontweight="bold")
    return figure


def save(figure: Any, options: argparse.Namespace) -> None:
    options.output.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(options.output, dpi=options.dpi)


def main(argv: list[str] | None = None) -> int:
    parser = common.parser(__doc__)
    parser.add_argument("runs", nargs="*", metavar="[LABEL=]RUN[+RUN...]")
    parser.add_argument("--sizes", type=Path, metavar="FILE", help="a table of nanotron_plan --csv instead of runs")
    parser.add_argument("--output", "-o", type=Path, default=Path("nanotron.png"))
    parser.add_argument("--token-file", type=Path, help="draw the unigram entropy of this data")
    parser.add_argument("--title", default="")
    parser.add_argument("--smooth", type=int, metavar="N",
                        help="steps in the moving average (default: a hundredth of the run)")
    parser.add_argument("--log", action="store_true", help="logarithmic loss axis")
    parser.add_argument("--dpi", type=int, default=130)
    options = parser.parse_args(argv)
    common.check_picture("--output", options.output)
    if bool(options.runs) == bool(options.sizes):
        parser.error("expected one or more runs, or --sizes FILE")
    if options.sizes:
        save(draw_sizes(options.sizes, options.title), options)
        print(f"{options.output}")
        return 0
    runs = [load_run(text) for text in options.runs]
    if not any(run.series["step"].size for run in runs):
        raise common.ToolError("no step recorded yet in " + ", ".join(options.runs))
    save(make_figure(runs, options), options)
    for run in runs:
        loss = run.series["loss"]
        if loss.size:
            print(f"{run.label}: {loss.size} steps, loss {loss[0]:.4f} -> {loss[-1]:.4f}")
    print(f"{options.output}")
    return 0
