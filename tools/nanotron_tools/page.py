"""A run as one page for a browser: numbers, curves, where the time went, faults, checkpoints, the deck. One file that
loads nothing: it can be mailed, or read from a file system."""

from __future__ import annotations

import dataclasses
import html
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from . import common, ledger
from .charts import Chart, Curve, svg_of
from .ledger import CLASSES
from .metrics import Run, metrics_path, reading
from .page_style import SCRIPT, STYLE
from .tables import clock, human

Facts = dict[str, Any]
BAD_STEP = ("step", "next_step", "loss", "grad_norm", "left_out_from", "first_sample", "samples")
TEXT = 1 << 18  # bytes of a file that is shown
MEANINGS = {"useful": "training that the run still has", "lost": "training that was repeated or left out",
           "checkpoint": "training waited for checkpoints", "restart": "before the first and after the last step",
           "queued": "in the queue", "waiting": "between starts"}


def escaped(value: object) -> str:
    return html.escape(str(value))


class Markup(str):
    """Text that is HTML already."""


class Number(str):
    """Text of a number: in a table on the right."""


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f"<th>{escaped(name)}</th>" for name in header)
    body = "".join("<tr>" + "".join(f'<td{" class=number" if isinstance(cell, Number) else ""}>'
                                    f'{cell if isinstance(cell, Markup) else escaped(cell)}</td>' for cell in row)
                   + "</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def section(title: str, *parts: str) -> str:
    return f"<section><h2>{escaped(title)}</h2>{''.join(parts)}</section>" if any(parts) else ""


def text_of(path: Path) -> str:
    """The beginning of a file; '' where it cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read(TEXT).decode("utf-8", "replace")
    except OSError:
        return ""


def bad_steps_of(path: Path) -> list[dict[str, Any]]:
    def read(file: h5py.File) -> list[dict[str, Any]]:
        rows = ledger.rows_of(file["bad_steps"]) if "bad_steps" in file else []
        return [{name: row[name] for name in BAD_STEP} for row in rows]

    found: list[dict[str, Any]] = reading(path, read)
    return found


# ---------------------------------------------------------------------------------------------


def marks_of(run: Run, bad: list[dict[str, Any]]) -> list[tuple[int, str]]:
    starts = sorted({*run.resumed_at, *(start.step for start in run.starts if start.step)})
    return [(step, "a start resumed here") for step in starts] + [(int(row["step"]), "a bad step") for row in bad]


def validation_curves(run: Run) -> list[Curve]:
    return [Curve(f"validation {name!r}" if name else "validation", steps, losses, 1 + index % 5, markers=True)
            for index, (name, (steps, losses)) in enumerate(run.validation.items())]


def since(curve: Curve, step: int) -> Curve:
    rows = curve.steps >= step
    return dataclasses.replace(curve, steps=curve.steps[rows], values=curve.values[rows])


def charts_of(run: Run, bad: list[dict[str, Any]]) -> str:
    steps, series, marks = run.series["step"], run.series, marks_of(run, bad)
    losses = [Curve("training", steps, series["loss"].astype(np.float64), noisy=True), *validation_curves(run)]
    late = int(steps[steps.size // 2])
    quick = ~run.first_rows if not run.first_rows.all() else np.ones(steps.size, bool)  # the first of a start are slow
    charts = [Chart("loss", "nats per token", losses, marks)]
    if steps.size >= 20:
        charts.append(Chart("loss, second half", "nats per token", [since(curve, late) for curve in losses], marks))
    if "tokens_per_second" in series:
        speed = Curve("tokens/s", steps[quick], series["tokens_per_second"][quick], noisy=True)
        charts.append(Chart("speed", "tokens/s", [speed], marks, from_zero=True))
    if "grad_norm" in series:
        norm = Curve("norm", steps, series["grad_norm"], noisy=True)
        charts.append(Chart("gradient norm", "before clipping", [norm], marks, log=True))
    if "learning_rate" in series:
        charts.append(Chart("learning rate", "", [Curve("rate", steps, series["learning_rate"])], from_zero=True))
    drawn = {"step", "loss", "tokens_per_second", "grad_norm", "learning_rate", "seconds", "tokens", "token_hash"}
    for name, values in series.items():
        if name not in drawn and values.dtype.kind == "f":
            rows = quick if name in ("mfu", "gemm_fraction") else np.ones(steps.size, bool)
            about = run.about.get(name, {})
            unit = about.get("units", "")
            curve = Curve(name, steps[rows], values[rows], noisy=True)
            charts.append(Chart(name.replace("_", " "), "" if unit == "1" else unit, [curve], marks, from_zero=True))
    return f'<div class="charts">{"".join(map(svg_of, charts))}</div>'


def tiles_of(lines: dict[str, str]) -> str:
    shown = [(name, text) for name, text in lines.items() if name not in ("title", "state", "of the time") and text]
    return '<dl class="tiles">' + "".join(
        f"<div><dt>{escaped(name)}</dt><dd>{escaped(text)}</dd></div>" for name, text in shown) + "</dl>"


def bar(seconds: dict[str, float]) -> Markup:
    """Shares of the time side by side."""
    total = sum(max(seconds[name], 0.0) for name in CLASSES) or 1.0
    parts = "".join(f'<i class="t-{name}" style="flex-grow:{max(seconds[name], 0.0) / total:.6f}" '
                    f'title="{name} {clock(seconds[name])}"></i>' for name in CLASSES if seconds[name] > 0)
    return Markup(f'<span class="bar">{parts}</span>')


def time_section(facts: Facts) -> str:
    found = facts["ledger"]
    if not found:
        return ""
    total = found["wall_seconds"] or 1.0
    legend = table(("", "class", "time", "share", ""), (
        (Markup(f'<i class="t-{name} swatch"></i>'), name, Number(clock(found["seconds"][name])),
         Number(f'{100 * found["seconds"][name] / total:.1f} %'), MEANINGS[name]) for name in CLASSES))
    names = ("start", "began (UTC)", "from step", "to step", "kept", "lost", "time", "useful", "end", "grid", "hosts")
    starts = table(names, (
        (Number(start["start"]), time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(start["begin"])),
         *(Number(f"{start[name]:,}") for name in ("from_step", "to_step", "steps_kept", "steps_lost")),
         bar(start["seconds"]), Number(clock(start["seconds"]["useful"])), start["end"], start.get("grid", ""),
         start.get("hosts", "")) for start in found["starts"]))
    return section("Where the time went", f'<p>Goodput {100 * found["goodput"]:.1f} % of {clock(total)}</p>',
                   bar(found["seconds"]), legend, "<h3>Starts</h3>", starts)


def faults_section(facts: Facts, folder: Path, bad: list[dict[str, Any]]) -> str:
    parts = []
    if facts["state"] in ("failed", "no recent output"):
        parts.append(f'<p class="alarm">{escaped(facts["state"])}: {escaped(facts["why"])}</p>')
    if bad:
        parts.append("<h3>Bad steps</h3>" + table(
            ("step", "next step", "loss", "gradient norm", "samples left out"),
            ((Number(f"{row['step']:,}"), Number(f"{row['next_step']:,}"), Number(f"{row['loss']:.6g}"),
              Number(f"{row['grad_norm']:.6g}"),
              f"{row['left_out_from']:,} to {row['first_sample'] + row['samples'] - 1:,}") for row in bad)))
    for title, name in (("Excluded hosts", "excluded_hosts"), ("The run hung", "hang/verdict.txt")):
        if text := text_of(folder / name).strip():
            parts.append(f"<h3>{title}</h3><pre>{escaped(text)}</pre>")
    starts = facts["ledger"]["starts"] if facts["ledger"] else []
    restarts, lost = max(facts["restarts"], len(starts) - 1), sum(start["steps_lost"] for start in starts)
    if restarts > 0 or lost:
        parts.insert(0, f"<p>{restarts} restart{'s' * (restarts != 1)}, {lost:,} steps computed again or left out.</p>")
    return section("Faults and restarts", *(parts or ["<p>None recorded.</p>"]))


def checkpoint_section(facts: Facts) -> str:
    rows = [(item["name"], Number(human(item["bytes"])), item["state"]) for item in facts["checkpoints"]]
    return section("Checkpoints", table(("folder", "size", "state"), rows) if rows else "<p>None.</p>")


def chosen_keys(deck: str) -> list[str]:
    """Those that the resolved deck marks, as group%key = value."""
    found, group = [], ""
    for line in deck.splitlines():
        group = line[1:].strip() if line.startswith("&") else group
        if "! set:" in line:
            key, _, value = line.partition("! set:")[0].partition("=")
            found.append(f"{group}%{key.strip()} = {value.strip()}")
    return found


def deck_section(run: Run, folder: Path) -> str:
    deck = text_of(folder / "deck.nml")
    if not deck:
        return ""
    lines = [f"<b>{escaped(line)}</b>" if "! set:" in line else escaped(line) for line in deck.splitlines()]
    where = run.starts[-1].provenance if run.starts else {}
    rows = table(("", "of the last start"), ((name, text) for name, text in sorted(where.items()) if text))
    return section("Deck", f"<pre>{escaped(chr(10).join(chosen_keys(deck)))}</pre>",
                   f"<details><summary>all keys</summary><pre>{chr(10).join(lines)}</pre></details>",
                   f"<details><summary>program, libraries, hosts</summary>{rows}</details>" if where else "")


def page_of(run: Run, facts: Facts, lines: dict[str, str], folder: Path) -> str:
    bad = bad_steps_of(metrics_path(str(folder)))
    now = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
    title = f"{run.label}: {facts['title']}" if facts["title"] else run.label
    state = f'<span class="state s-{escaped(facts["state"].split()[0])}">{escaped(lines["state"])}</span>'
    body = (f'<header><h1>{escaped(title)}</h1><p>{state} <span class="unit">{escaped(folder.resolve())}, {now}</span>'
            '</p></header>'
            + tiles_of(lines) + charts_of(run, bad) + time_section(facts) + faults_section(facts, folder, bad)
            + checkpoint_section(facts) + deck_section(run, folder))
    policy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
    return (f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{escaped(title)}</title>'
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
            f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{STYLE}</style></head>\n'
            f"<body>{body}<script>{SCRIPT}</script></body></html>\n")


def write_page(run: Run, facts: Facts, lines: dict[str, str], folder: Path, path: Path) -> None:
    """Complete or not at all: a browser may load it at any time."""
    temporary = common.beside(path)
    temporary.write_text(page_of(run, facts, lines, folder), encoding="utf-8")
    temporary.replace(path)
