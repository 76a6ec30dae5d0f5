"""Sizes and tables for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")


def human(count: float) -> str:
    for unit in UNITS[:-1]:
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} {UNITS[-1]}"


def clock(seconds: float) -> str:
    whole = round(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"


def table(rows: Sequence[tuple[Any, ...]], indent: str = "  ") -> None:
    """Aligned columns; numbers to the right."""
    if not rows:
        return
    texts = [[str(cell) for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in texts) for i in range(len(texts[0]))]
    for row, cells in zip(rows, texts):
        line = [cell.rjust(width) if isinstance(value, (int, float)) else cell.ljust(width)
                for value, cell, width in zip(row, cells, widths)]
        print((indent + "  ".join(line)).rstrip())
