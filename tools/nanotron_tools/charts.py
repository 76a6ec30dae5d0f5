"""Curves as SVG text for a page: nothing but numbers and escaped words, no other files."""

from __future__ import annotations

import html
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .metrics import Array
from .plot import smooth

WIDTH, HEIGHT = 640, 260
LEFT, RIGHT, TOP, BOTTOM = 58, 14, 12, 30
POINTS = 500  # of a curve; what lies between two of them is in the band
LARGEST = 1e150  # value that is drawn
WINDOW = 1 / 40  # of the curve, for the moving average


@dataclass
class Curve:
    name: str
    steps: Array
    values: Array
    colour: int = 0
    markers: bool = False  # few values: points on a thin line
    noisy: bool = False  # a moving average on top


@dataclass
class Chart:
    title: str
    unit: str
    curves: list[Curve]
    marks: list[tuple[int, str]] = field(default_factory=list)  # steps where something happened, and what
    from_zero: bool = False
    log: bool = False  # where the values differ by more than a factor of 20


def ticks(low: float, high: float, wanted: int = 5) -> list[float]:
    """Round numbers between the two."""
    if not high > low:
        return [low]
    rough = (high - low) / wanted
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [round(i * step, 12) for i in range(first, math.floor(high / step + 1e-9) + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    decades = [10.0 ** power for power in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)]
    found = [base * factor for base in decades for factor in ((1, 2, 5) if len(decades) < 5 else (1,))]
    return [tick for tick in found if low <= tick <= high]


def short(value: float) -> str:
    """2.5, 12k, 3.4M, 2e-05."""
    size = abs(value)
    if size and size < 1e-3:
        return f"{value:.3g}"
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if size >= limit:
            return f"{value / (1e3 if unit == 'k' else limit):.4g}{unit}"
    return f"{value:.6g}"


def thinned(steps: Array, values: Array) -> tuple[Array, Array, Array, Array]:
    """Steps, means, least and greatest of at most POINTS parts, without parts that hold no value that can be drawn."""
    good = np.abs(values) < LARGEST
    steps, values = steps[good].astype(np.float64), values[good].astype(np.float64)
    if not steps.size:
        return steps, values, values, values
    begins = np.unique(np.linspace(0, steps.size, min(POINTS, steps.size) + 1)[:-1].astype(np.int64))
    counts = np.diff(np.append(begins, steps.size))
    return (steps[np.append(begins[1:], steps.size) - 1], np.add.reduceat(values, begins) / counts,
            np.minimum.reduceat(values, begins), np.maximum.reduceat(values, begins))


@dataclass
class Scale:
    low: float
    high: float
    begin: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        low, high, at = self.low, self.high, value
        if self.log:
            low, high, at = math.log(low), math.log(high), math.log(max(value, self.low))
        return self.begin + (self.end - self.begin) * (at - low) / (high - low if high > low else 1.0)


def limits(chart: Chart, drawn: Sequence[tuple[Array, Array, Array, Array]]) -> tuple[float, float, bool]:
    lows, highs = np.concatenate([low for _, _, low, _ in drawn]), np.concatenate([high for *_, high in drawn])
    low, high = float(lows.min()), float(highs.max())
    log = chart.log and low > 0 and high > 20 * low
    if log:
        return low / 1.1, high * 1.1, True
    if chart.from_zero:
        low = min(low, 0.0)
    margin = 0.05 * (high - low) or max(abs(high), 1e-12) * 0.1
    return (low if chart.from_zero and low == 0.0 else low - margin), high + margin, False


def path_of(points: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)


def svg_of(chart: Chart) -> str:
    """A figure with its legend, and its means for the script of the page; empty where there is nothing to draw."""
    drawn = [(curve, thinned(curve.steps, curve.values)) for curve in chart.curves]
    drawn = [(curve, parts) for curve, parts in drawn if parts[0].size]
    if not drawn:
        return ""
    low, high, log = limits(chart, [parts for _, parts in drawn])
    first, last = min(parts[0][0] for _, parts in drawn), max(parts[0][-1] for _, parts in drawn)
    across = Scale(first, last if last > first else first + 1, LEFT, WIDTH - RIGHT)
    up = Scale(low, high, HEIGHT - BOTTOM, TOP, log)
    lines = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{html.escape(chart.title)}">']
    for tick in log_ticks(low, high) if log else ticks(low, high):
        lines.append(f'<path class="grid" d="M{LEFT} {up(tick):.1f}H{WIDTH - RIGHT}"/>'
                     f'<text class="left" x="{LEFT - 7}" y="{up(tick) + 4:.1f}">{short(tick)}</text>')
    for tick in ticks(first, last, 6):
        lines.append(f'<text class="below" x="{across(tick):.1f}" y="{HEIGHT - 9}">{short(tick)}</text>')
    for step, why in chart.marks:
        if first <= step <= last:
            lines.append(f'<path class="mark" d="M{across(step):.1f} {TOP}V{HEIGHT - BOTTOM}">'
                         f'<title>step {step:,}: {html.escape(why)}</title></path>')
    data: list[Any] = []
    for curve, (steps, means, least, most) in drawn:
        xs = [across(step) for step in steps]
        points = [(x, up(mean)) for x, mean in zip(xs, means)]
        if not curve.markers and steps.size < np.isfinite(curve.values).sum():
            band = [*zip(xs, map(up, most)), *zip(xs[::-1], map(up, least[::-1]))]
            lines.append(f'<path class="band c{curve.colour}" d="{path_of(band)}Z"/>')
        averages = smooth(means, round(WINDOW * means.size)) if curve.noisy else means
        if averages is not means:
            lines.append(f'<path class="line raw c{curve.colour}" d="{path_of(points)}"/>')
        kind = f'line c{curve.colour}{" thin" if curve.markers else ""}'
        lines.append(f'<path class="{kind}" d="{path_of([*zip(xs, map(up, averages))])}"/>')
        if curve.markers or steps.size == 1:
            lines += [f'<circle class="c{curve.colour}" cx="{x:.1f}" cy="{y:.1f}" r="3"/>' for x, y in points]
        data.append([curve.name, [int(step) for step in steps], [float(f"{mean:.6g}") for mean in averages]])
    lines.append(f'<path class="cursor" d="M0 {TOP}V{HEIGHT - BOTTOM}"/></svg>')
    legend = "".join(f'<span class="key c{curve.colour}">{html.escape(curve.name)}</span>' for curve, _ in drawn)
    scale = json.dumps({"first": across.low, "last": across.high, "curves": data}).replace("<", "\\u003c")
    unit = f' <span class="unit">{html.escape(chart.unit)}{", logarithmic" if log else ""}</span>' if chart.unit else ""
    return (f'<figure class="chart"><figcaption>{html.escape(chart.title)}{unit}<span class="legend">{legend}</span>'
            f'</figcaption>{"".join(lines)}<output></output><script type="application/json">{scale}</script></figure>')
