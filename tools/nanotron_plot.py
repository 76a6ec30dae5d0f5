#!/usr/bin/env python3
"""Plots one or several runs: loss, validation loss, learning rate, gradient norm, tokens/s.

    nanotron_plot.py run/ -o loss.png --token-file tokens.h5
    nanotron_plot.py 'tp 2'=run-a/ 'tp 1, dp 2'=run-b/ -o both.png
    nanotron_plot.py resumed=run-a/+run-b/ -o one_curve.png

A run is its directory or its metrics.h5; LABEL= in front names it, A+B joins the parts of a run
that was resumed elsewhere. Where a step was recorded twice, because the run went back to a
checkpoint, the later record counts. --token-file draws the unigram entropy of the data: what a
model without any context reaches at best.

Bold lines are moving averages over --smooth steps. Towards the start the window narrows, since the loss
falls steeply there; towards the end it stays behind, so the line ends in the mean of a whole window: the
number in the legend. Validation sets of names of their own are drawn and labelled each.
"""

from __future__ import annotations

import argparse
import math
import sys
from dataclasses import dataclass, field
from pathlib import Path

import nanotron_checkpoint as checkpoint_file
import nanotron_common as common
import nanotron_token_file as token_file
from nanotron_common import np

# Okabe and Ito's palette: told apart by everybody, in print too.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
GREY, RED = "#6b6b6b", "#B03030"
VALIDATION = "validation_loss"  # of all sets; validation_loss_<name> of each
MARKERS = "Dos^vP*X"


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
        with checkpoint_file.h5py.File(path, "r") as file:
            data = {name: item[:] for name, item in file.items()
                    if isinstance(item, checkpoint_file.h5py.Dataset) and item.ndim == 1}
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


def smooth(values: np.ndarray, width: int) -> np.ndarray:
    """Centred moving average over an odd number of values, NaN passed over. Towards the start the window
    narrows; towards the end it stays behind, so the last value is the mean of a whole window."""
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
        return (sums[high] - sums[low]) / (counts[high] - counts[low])


def entropy_of(path: Path) -> float:
    try:
        with checkpoint_file.h5py.File(path, "r") as file:
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


def style(plt) -> None:
    plt.rcParams.update({
        "font.size": 10, "axes.titlesize": 11, "axes.titlelocation": "left",
        "axes.titleweight": "bold", "axes.spines.top": False, "axes.spines.right": False,
        "axes.grid": True, "grid.color": "#e6e6e6", "grid.linewidth": 0.8,
        "axes.axisbelow": True, "axes.edgecolor": GREY, "xtick.color": GREY,
        "ytick.color": GREY, "legend.frameon": False, "lines.solid_capstyle": "round"})


def draw_curve(axes, run: Run, name: str, colour: str, width: int, label=None) -> None:
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


def draw_loss(axes, runs: list[Run], width: int, entropy: float | None, log_scale: bool) -> None:
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


def mark_resumes(axes, run: Run) -> None:
    for step in run.resumed_at:
        axes.axvline(step, color=GREY, linestyle=":", linewidth=1.1)
        axes.annotate("resumed", (step, 0), xycoords=("data", "axes fraction"), xytext=(3, 4),
                      textcoords="offset points", color=GREY, fontsize=8)


def robust_top(axes, runs: list[Run], name: str) -> None:
    """Keeps a first slow step or one spike from flattening the rest of the curve."""
    values = [run.series[name].astype(np.float64) for run in runs if name in run.series]
    values = np.concatenate(values) if values else np.zeros(0)
    values = values[np.isfinite(values)]
    if values.size < 20:
        return
    top = np.percentile(values, 99)
    if values.max() > 3 * top > 0:
        axes.set_ylim(top=1.3 * top)


def make_figure(runs: list[Run], options):
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


def main(argv=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", metavar="[LABEL=]RUN[+RUN...]")
    parser.add_argument("--output", "-o", type=Path, default=Path("nanotron.png"))
    parser.add_argument("--token-file", type=Path, help="draw the unigram entropy of this data")
    parser.add_argument("--title", default="")
    parser.add_argument("--smooth", type=int, metavar="N",
                        help="steps in the moving average (default: a hundredth of the run)")
    parser.add_argument("--log", action="store_true", help="logarithmic loss axis")
    parser.add_argument("--dpi", type=int, default=130)
    options = parser.parse_args(argv)
    common.require("matplotlib")
    runs = [load_run(text) for text in options.runs]
    if not any(run.series["step"].size for run in runs):
        raise common.ToolError("no step recorded yet in " + ", ".join(options.runs))
    figure = make_figure(runs, options)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(options.output, dpi=options.dpi)
    for run in runs:
        loss = run.series["loss"]
        if loss.size:
            print(f"{run.label}: {loss.size} steps, loss {loss[0]:.4f} -> {loss[-1]:.4f}")
    print(f"{options.output}")
    return 0


if __name__ == "__main__":
    sys.exit(common.run_main(main))
