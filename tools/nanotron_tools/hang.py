"""What the ranks of a run that hung did last: their reports, merged on one clock, as text and as a timeline."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from . import common
from .tables import table

FIRST_LINE = "nanotron hang report 1"
AXES = ("tp", "cp", "pp", "ep", "dp", "expert", "world", "MPI")
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#444444", "#B0B0B0")
LATE = "#B03030"


@dataclass
class Operation:
    group: str
    sequence: int
    name: str
    bytes: int
    begin: float  # seconds before the report of its rank
    end: float  # the same; below 0: not complete
    step: int
    place: str

    @property
    def complete(self) -> bool:
        return self.end >= 0


@dataclass
class Report:
    rank: int = -1
    host: str = ""
    time: str = ""
    late: bool = False
    idle: float = 0.0
    where: str = ""
    system_call: str = ""
    network: str = ""  # what its host has lost of it
    waits: tuple[str, int, str, float] | None = None  # group, sequence, name, seconds
    groups: dict[str, tuple[int, list[int]]] = field(default_factory=dict)  # entered, ranks
    operations: list[Operation] = field(default_factory=list)


def ranks_from(text: str) -> list[int]:
    """'0-15, 1-13/4, 20' -> the ranks."""
    ranks: list[int] = []
    for part in text.split(", ") if text else []:
        span, _, stride = part.partition("/")
        first, _, last = span.partition("-")
        ranks += range(int(first), int(last or first) + 1, int(stride or 1))
    return ranks


def read_report(path: Path) -> Report:
    report = Report()
    lines = path.read_text().splitlines()
    if not lines or lines[0] != FIRST_LINE:
        raise common.ToolError(f"{path}: expected '{FIRST_LINE}' in its first line")
    try:
        for key, *words in (line.split("\t") for line in lines[1:]):
            if key == "rank":
                report.rank = int(words[0])
            elif key == "host":
                report.host = words[0]
            elif key == "time":
                report.time = words[0]
            elif key == "idle":
                report.idle, report.late = float(words[0]), words[2] == "late"
            elif key == "where":
                report.where = words[0]
            elif key == "system call":
                report.system_call = words[0]
            elif key == "network":
                report.network = words[0]
            elif key == "waits":
                report.waits = words[0], int(words[1]), words[2], float(words[3])
            elif key == "group":
                report.groups[words[0]] = int(words[1]), ranks_from(words[3])
            elif key == "operation":
                report.operations.append(Operation(words[0], int(words[1]), words[2], int(words[3]), float(words[4]),
                                                   float(words[5]), int(words[6]), words[7]))
    except (ValueError, IndexError) as error:
        raise common.ToolError(f"{path}: invalid line ({error})") from None
    return report


def read_reports(folder: Path) -> dict[int, Report]:
    found = (read_report(path) for path in sorted(folder.glob("rank_*.txt")))
    reports = {report.rank: report for report in found}
    if not reports:
        raise common.ToolError(f"{folder}: expected the folder hang of a run, with a rank_*.txt of each rank")
    return reports


def silent_ranks(reports: dict[int, Report]) -> list[int]:
    """Members of groups that left no report."""
    known = {rank for report in reports.values() for _, ranks in report.groups.values() for rank in ranks}
    return sorted(known - reports.keys())


def offsets_of(reports: dict[int, Report]) -> dict[int, float]:
    """Rank -> seconds by which its report is later than that of the first rank it can be compared with.

    Clocks of hosts are not compared: ranks leave a collective within moments of each other, so the median difference of
    the ends of operations that two ranks have in common is that of their reports.
    """
    ends = {rank: {(o.group, o.sequence): o.end for o in report.operations if o.complete and o.name != "message"}
            for rank, report in reports.items()}
    members = defaultdict(set)
    for rank, known in ends.items():
        for group, _ in known:
            members[group].add(rank)
    offsets: dict[int, float] = {}
    for start in sorted(reports):
        if start in offsets:
            continue
        offsets[start] = 0.0
        todo = [start]
        while todo:
            here = todo.pop()
            others = {rank for group in {g for g, _ in ends[here]} for rank in members[group]}
            for other in sorted(others - offsets.keys()):
                shared = ends[here].keys() & ends[other].keys()
                if shared:
                    later = float(np.median([ends[other][k] - ends[here][k] for k in shared]))
                    offsets[other] = offsets[here] + later
                    todo.append(other)
    return offsets


def show(folder: Path, reports: dict[int, Report]) -> None:
    verdict = folder / "verdict.txt"
    print(verdict.read_text().rstrip() if verdict.is_file() else "no verdict: the run continued, or others ended it")
    rows: list[tuple[Any, ...]] = [("rank", "host", "s without progress", "at", "in")]
    for rank, report in sorted(reports.items()):
        waits = report.system_call or "-"
        if report.waits:
            waits = f"{report.waits[2]} {report.waits[1]} of {report.waits[0]}"
        rows.append((rank, report.host, f"{report.idle:.1f}{'' if report.late else ', in time'}",
                     "; ".join(filter(None, (report.where, report.network))), waits))
    rows += [(rank, "-", "-", "no report", "-") for rank in silent_ranks(reports)]
    table(rows, indent="")


def axis_of(group: str) -> str:
    return next((axis for axis in AXES if group.startswith(axis)), AXES[-1])


def bars_of(report: Report, offset: float) -> Iterable[tuple[float, float, Operation]]:
    """Begin and length of each operation, in seconds; 0 is the report of the first rank."""
    for o in report.operations:
        end = o.end if o.complete else 0.0
        yield offset - o.begin, max(o.begin - end, 0.0), o


def draw(reports: dict[int, Report], path: Path, seconds: float) -> None:
    """A lane per rank, at most 64: those that wait longest and those that do not wait."""
    matplotlib = common.require("matplotlib")
    matplotlib.use("Agg")
    from matplotlib import patches
    from matplotlib import pyplot as plt

    shown = sorted(sorted(reports, key=lambda r: (reports[r].waits is not None, -reports[r].idle))[:64])
    lanes = sorted([*shown, *silent_ranks(reports)[:16]])
    offsets = offsets_of(reports)
    figure, axes = plt.subplots(figsize=(11, 1.6 + 0.34 * len(lanes)))
    used: set[str] = set()
    for lane, rank in enumerate(lanes):
        if rank not in reports:
            axes.text(0, lane, "no report ", ha="right", va="center", color=LATE)
            continue
        for begin, length, operation in bars_of(reports[rank], offsets[rank]):
            axis = axis_of(operation.group)
            used.add(axis)
            axes.barh(lane, max(length, 0.002 * seconds), left=begin, height=0.7, color=COLOURS[AXES.index(axis)],
                      alpha=1.0 if operation.complete else 0.45, hatch=None if operation.complete else "//")
        if reports[rank].waits is None:
            axes.text(offsets[rank], lane, f" {reports[rank].where}", ha="right", va="center", color=LATE, fontsize=8)
    axes.set_yticks(range(len(lanes)), [f"rank {r}" + (f" {reports[r].host}" if r in reports else "") for r in lanes])
    axes.invert_yaxis()
    axes.set_xlim(-seconds, 0.02 * seconds)
    axes.set_xlabel("s before the report of the first rank; clocks aligned by common operations; hatched: not complete")
    axes.legend(handles=[patches.Patch(color=COLOURS[AXES.index(axis)], label=axis) for axis in AXES if axis in used],
                ncols=len(AXES), loc="lower left", bbox_to_anchor=(0, 1), frameon=False)
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    plt.close(figure)


def main(folder: Path, figure: Path | None, seconds: float | None) -> int:
    folder = folder / "hang" if (folder / "hang").is_dir() else folder
    if figure is not None:
        common.check_picture("--figure", figure)
    reports = read_reports(folder)
    show(folder, reports)
    if figure is not None:
        longest = max(report.idle for report in reports.values())
        draw(reports, figure, seconds if seconds else 1.25 * longest + 0.5)
        print(f"{figure}: written")
    return 0
