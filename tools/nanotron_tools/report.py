"""Summarises runs: how far they are, how fast, how good, how often restarted, and their checkpoints.

    nanotron-report run/
    nanotron-report 'tp 2'=run-a/ 'tp 1'=run-b/           side by side
    nanotron-report run/ --json
    nanotron-report run/ --html run.html                  a page for a browser, in one file
    nanotron-report --hang run/hang --figure hang.png     what each rank did last in a run that hung

A run is its directory (A+B: its parts, log and checkpoints those of B). Only its files are read: metrics.h5, run.log,
and the checkpoints, whose sizes are compared with their manifests (nanotron-ls checks the hashes too). Speeds omit
the first row after each start. Mean tokens/s are tokens over seconds; MFU is against the stated peak, averaged over
time. A wall time is printed as "at least" if a start ended without recording its duration: of that start only the
recorded steps count.
"""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Any

import numpy as np

from . import checkpoint as checkpoint_file
from . import common, hang, page, run_log
from . import ledger as run_ledger
from .metrics import Run, load_run, metrics_path
from .run_state import State, state_of
from .tables import clock, human, table

Facts = dict[str, Any]


def speed_of(run: Run) -> Facts:
    """Of the rows that are not the first after a start; of all where there are no others."""
    series, weights = run.series, run.steps_of_row.astype(np.float64)
    rows = ~run.first_rows if not run.first_rows.all() else ~np.zeros_like(run.first_rows)
    if not {"seconds", "tokens_per_second"} <= series.keys() or not rows.any():
        return {}
    seconds, rates = (series["seconds"] * weights)[rows], series["tokens_per_second"][rows]
    if not seconds.sum() > 0:
        return {}
    facts: Facts = {"tokens_per_second_mean": float((rates * seconds).sum() / seconds.sum()),
                    "tokens_per_second_median": float(np.median(rates))}
    for name in ("mfu", "gemm_fraction"):
        if name in series and np.isfinite(series[name][rows]).all():
            facts[name] = float((series[name][rows] * seconds).sum() / seconds.sum())
    return facts


def wall_time_of(run: Run, logged: list[run_log.LoggedStart]) -> Facts:
    """Each start's own word where it finished, else the seconds of its steps in metrics.h5."""
    begins = [start.step for start in run.starts] or [0]
    seconds = run.series.get("seconds", np.zeros(run.series["step"].size)) * run.steps_of_row
    last = np.searchsorted(run.series["step"], [*begins[1:], np.iinfo(np.int64).max], side="right")
    rows = np.searchsorted(run.series["step"], begins, side="right")
    of_steps = [float(seconds[first:end].sum()) for first, end in zip(rows, last)]
    told = [float(start.why) if start.end == "finished" else None for start in logged]
    if len(told) == len(of_steps):
        return {"wall_seconds": sum(step if word is None else word for word, step in zip(told, of_steps)),
                "wall_seconds_at_least": None in told}
    return {"wall_seconds": sum(of_steps), "wall_seconds_at_least": True}


def unfinished_of(folder: Path) -> list[Facts]:
    """What the run writes now may have another name, or be gone, at the next look."""
    found = []
    for path in checkpoint_file.unfinished_checkpoints(folder):
        size = 0
        try:
            for item in path.iterdir():
                size += checkpoint_file.size_of(item) or 0
        except FileNotFoundError:
            continue
        found.append({"name": path.name, "bytes": size, "state": "unfinished"})
    return found


def checkpoints_of(folder: Path) -> list[Facts]:
    """Names, bytes and states; hashes are not read."""
    found, unfinished = [], unfinished_of(folder)
    for path in checkpoint_file.list_checkpoints(folder):
        file, state = path / checkpoint_file.CHECKPOINT_FILE, "complete"
        size = checkpoint_file.size_of(file) or 0
        try:
            if checkpoint_file.read_manifest(path)["bytes"] != size:
                state = "damaged: not the size of its manifest"
        except common.ToolError:
            state = "damaged: no good manifest"
        if path.is_dir():  # a run removes its oldest
            found.append({"name": path.name, "bytes": size, "state": state})
    complete = {row["name"] for row in found}
    return found + [row for row in unfinished if row["name"].removesuffix(".partial") not in complete]


def checkpoint_folder(run: Run, folder: Path) -> Path:
    """checkpoint%directory, seen from where the run was started; the run's folder where that is not here."""
    named = run.deck.get("checkpoint.directory")
    where = Path(run.starts[-1].provenance.get("directory", ""), named) if named else folder
    return where if where.is_dir() else folder


def folder_of(text: str) -> Path:
    """Of the last part of a run."""
    folder = Path(text.rpartition("=")[2].rpartition("+")[2])
    return folder.parent if folder.is_file() else folder


def facts_of(text: str) -> Facts:
    run, folder = load_run(text), folder_of(text)
    logged = run_log.of_this_run(run_log.read_log(folder / "run.log"))
    steps = run.series["step"]
    if not steps.size:
        raise common.ToolError(f"no step recorded yet in {text}")
    step_seconds = float(np.median(run.series["seconds"][-20:])) if "seconds" in run.series else math.nan
    state = state_of(folder, logged, step_seconds)
    facts: Facts = {
        "run": run.label,
        "title": run.deck.get("run.title", ""),
        "state": state.word,
        "why": state.why,
        "steps": int(steps[-1]),
        "steps_planned": int(run.deck["run.steps"]) if "run.steps" in run.deck else None,
        "tokens": int(run.series["tokens"][-1]) if "tokens" in run.series else None,
        "loss": loss if math.isfinite(loss := float(run.series["loss"][-1])) else None,  # JSON has no NaN
        "restarts": max(len(logged) - 1, len(run.starts) - 1, 0),
        "restarted_after": [start.step for start in run.starts if start.step],
    }
    facts |= wall_time_of(run, logged) | speed_of(run)
    facts["validation"] = {
        name or "all": {"step": int(at[-1]), "loss": float(losses[-1]), "lowest": float(losses.min()),
                        "lowest_step": int(at[losses.argmin()])} for name, (at, losses) in run.validation.items()}
    facts["checkpoints"] = checkpoints_of(checkpoint_folder(run, folder))
    ledger = run_ledger.read_ledger(metrics_path(str(folder)))
    if ledger and state.has_ended and logged and run_ledger.is_unknown(ledger, logged[-1].begin):
        ledger.starts[-1].end = state.word
    facts["ledger"] = run_ledger.facts_of(ledger) if ledger else None
    return facts


# ---------------------------------------------------------------------------------------------


def lines_of(facts: Facts) -> dict[str, str]:
    """Name of a line -> what a person reads there."""
    planned = f" of {facts['steps_planned']:,}" if facts["steps_planned"] is not None else ""
    lines = {"title": facts["title"], "state": str(State(facts["state"], facts["why"])),
             "steps": f"{facts['steps']:,}{planned}"}
    if facts["tokens"] is not None:
        lines["tokens"] = f"{facts['tokens']:,}"
    lines["wall time"] = ("at least " if facts["wall_seconds_at_least"] else "") + clock(facts["wall_seconds"])
    if "tokens_per_second_mean" in facts:
        lines["tokens/s"] = (f"mean {facts['tokens_per_second_mean']:,.0f}, "
                             f"median {facts['tokens_per_second_median']:,.0f}")
    for key, name in (("mfu", "MFU"), ("gemm_fraction", "of GEMM peak")):
        if key in facts:
            lines[name] = f"{100 * facts[key]:.1f} %"
    lines["last loss"] = "not finite" if facts["loss"] is None else f"{facts['loss']:.4f}"
    for name, found in facts["validation"].items():
        lines["validation loss" + ("" if name == "all" else f" '{name}'")] = (
            f"{found['loss']:.4f} at step {found['step']:,}, lowest {found['lowest']:.4f} at {found['lowest_step']:,}")
    after = ", ".join(f"{step:,}" for step in facts["restarted_after"])
    lines["restarts"] = f"{facts['restarts']}" + (f", after step {after}" if after else "")
    if facts["ledger"]:
        seconds = facts["ledger"]["seconds"]
        lines["goodput"] = f"{100 * facts['ledger']['goodput']:.1f} %"
        lines["of the time"] = ", ".join(f"{name} {clock(seconds[name])}" for name in run_ledger.CLASSES
                                         if seconds[name] >= 0.5)
    kept = facts["checkpoints"]
    lines["checkpoints"] = f"{len(kept)}, {human(sum(item['bytes'] for item in kept))}" if kept else "none"
    return lines


def show_starts(name: str, starts: list[Facts]) -> None:
    print(f"starts of {name}")
    table([("", "began (UTC)", "from step", "to step", "kept", "lost", "useful", "end", "grid", "hosts")]
          + [(f"{s['start']}", time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(s["begin"])), f"{s['from_step']:,}",
              f"{s['to_step']:,}", f"{s['steps_kept']:,}", f"{s['steps_lost']:,}", clock(s["seconds"]["useful"]),
              s["end"], s.get("grid", ""), s.get("hosts", "")) for s in starts])


def show(reports: list[Facts]) -> None:
    columns = [lines_of(facts) for facts in reports]
    names = list(dict.fromkeys(name for lines in columns for name in lines))
    table([("", *(facts["run"] for facts in reports))]
          + [(name, *(lines.get(name) or "-" for lines in columns)) for name in names], indent="")
    for facts in reports:
        if facts["ledger"] and len(facts["ledger"]["starts"]) > 1:
            show_starts(facts["run"], facts["ledger"]["starts"])
        if facts["checkpoints"]:
            print(f"checkpoints of {facts['run']}")
            table([(item["name"], human(item["bytes"]), item["state"]) for item in facts["checkpoints"]])


def main(argv: list[str] | None = None) -> int:
    parser = common.parser(__doc__)
    parser.add_argument("runs", nargs="*", metavar="[LABEL=]RUN[+RUN...]")
    parser.add_argument("--json", action="store_true", help="a list of one object for each run")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a page of one run; it loads nothing else")
    parser.add_argument("--hang", type=Path, metavar="DIR", help="the reports of the ranks of a run that hung")
    parser.add_argument("--figure", type=Path, metavar="FILE", help="with --hang: draw a timeline (.png, .svg, .pdf)")
    parser.add_argument("--seconds", type=float, metavar="S", help="with --figure: how far back it goes")
    options = parser.parse_args(argv)
    if bool(options.runs) == (options.hang is not None):
        parser.error("expected runs, or --hang DIR")
    if options.hang is not None:
        return hang.main(options.hang, options.figure, options.seconds)
    if options.html is not None and (len(options.runs) != 1 or options.json):
        parser.error("--html: expected one run, and no --json")
    reports = [facts_of(text) for text in options.runs]
    if options.html is not None:
        folder = folder_of(options.runs[0])
        page.write_page(load_run(options.runs[0]), reports[0], lines_of(reports[0]), folder, options.html)
        print(f"{options.html}: {human(options.html.stat().st_size)}")
        return 0
    if options.json:
        print(json.dumps(reports, indent=2))
    else:
        show(reports)
    return 0
