"""The hashes of the rows of metrics.h5: XXH3-64 of a row's values, 8 bytes each, in the order of the attribute `of`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import h5py
import numpy as np

from . import hdf5
from .xxh3 import xxh3_64

COLUMNS = {"row_hash": "training", "validation_hash": "validation"}  # and of what
TABLES = ("starts", "start_checkpoints", "bad_steps")  # groups with rows of their own
PIECE = 1 << 16  # rows


@dataclass
class Comparison:
    rows: int = 0
    unknown: int = 0  # rows that were written before there were hashes
    damaged: list[str] = field(default_factory=list)


def is_metrics(file: h5py.File) -> bool:
    return hdf5.as_text(file.attrs.get("format", "")) == "nanotron_hpc metrics"


def covered(file: h5py.Group, name: str) -> tuple[list[h5py.Dataset], int]:
    """The columns under the hashes of this name, and how many of them count also where they are NaN."""
    of = hdf5.as_text(file[name].attrs["of"]).split()
    always = [file[column] for column in of if not column.endswith("*")]
    others = [prefix[:-1] for prefix in of if prefix.endswith("*")]
    return always + [file[column] for column in sorted(file) if any(column.startswith(p) for p in others)], len(always)


def rows(file: h5py.Group, name: str, first: int = 0) -> Iterator[tuple[int, bool | None]]:
    """Of each row from `first` on the first value, and whether its hash is right; None: not known."""
    columns, always = covered(file, name)
    count = min(column.shape[0] for column in [file[name], *columns])
    for begin in range(first, count, PIECE):
        piece = slice(begin, min(begin + PIECE, count))
        hashes, values = file[name][piece], [column[piece] for column in columns]
        bits = np.stack([column.view("<u8") for column in values], axis=1)
        wanted = np.ones(bits.shape, bool)
        for i in range(always, len(columns)):
            wanted[:, i] = ~np.isnan(values[i])
        for row, (hashed, kept) in enumerate(zip(bits, wanted)):
            known = None if hashes[row] == 0 else xxh3_64(hashed[kept].tobytes()) == int(hashes[row])
            yield int(values[0][row]), known


def compare(file: h5py.File) -> Comparison | None:
    """None: the file has no hashes."""
    if not all(name in file for name in COLUMNS):
        return None
    found = Comparison()

    def add(known: bool | None, row: str) -> None:
        found.rows += 1
        found.unknown += known is None
        if known is False:
            found.damaged.append(row)

    for name in COLUMNS:
        for step, known in rows(file, name):
            add(known, f"the row of {COLUMNS[name]} of step {step:,}")
    for name in (table for table in TABLES if table in file):
        group = file[name]
        if "row_hash" in group:
            for number, (_, known) in enumerate(rows(group, "row_hash"), 1):
                add(known, f"row {number:,} of {name}")
        else:
            found.rows += (without := min((column.shape[0] for column in group.values()), default=0))
            found.unknown += without
    return found
