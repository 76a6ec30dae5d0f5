"""Rows of Parquet and Arrow files, in batches, by pyarrow.

Arrow: files, and streams as `save_to_disk` of datasets writes them.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Union

from . import common

STREAM_END = b"\xff\xff\xff\xff\0\0\0\0"
MAX_ROWS = 256  # read at a time: what a row needs, packed, says little of its size


def show(value: object) -> str:
    return str(value)[:80].strip()


def guarded(path: Path, what: str, action: Callable[[], Any]) -> Any:
    """action(); pyarrow's errors, which are kinds of ValueError and OSError, as damage of the file."""
    try:
        return action()
    except (ValueError, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise common.wrong(path, what, f"{show(error)}, in a file of {path.stat().st_size} bytes",
                           "download or recreate it") from None


class Parquet:
    def __init__(self, path: Path):
        common.require("pyarrow")
        parquet = importlib.import_module("pyarrow.parquet")
        self.path = path
        self.file = guarded(path, "a Parquet file",
                            lambda: parquet.ParquetFile(path, buffer_size=1 << 20, pre_buffer=False))
        self.names: list[str] = self.file.schema_arrow.names
        metadata = self.file.metadata
        groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
        self.sizes, self.rows = [group.total_byte_size for group in groups], [group.num_rows for group in groups]

    def batches(self, columns: list[str], rows: int, group: int | None = None) -> Iterator[Any]:
        """Record batches of at most `rows` rows; of the file, or of one of its row groups."""
        found: Iterator[Any] = self.file.iter_batches(batch_size=rows, columns=columns, use_threads=False,
                                                      row_groups=None if group is None else [group])
        return found

    def rows_in(self, chunk_bytes: int) -> int:
        return max(1, min(MAX_ROWS, chunk_bytes * int(sum(self.rows)) // max(1, int(sum(self.sizes)))))


class Arrow:
    def __init__(self, path: Path):
        self.path, package = path, common.require("pyarrow")
        ipc = importlib.import_module("pyarrow.ipc")
        with open(path, "rb") as file:
            opener = ipc.open_file if file.read(6) == b"ARROW1" else ipc.open_stream
        self.source = package.memory_map(str(path))
        self.reader = guarded(path, "an Arrow file", lambda: opener(self.source))
        self.is_file = opener is ipc.open_file
        self.names: list[str] = self.reader.schema.names

    def batches(self, columns: list[str], rows: int, group: int | None = None) -> Iterator[Any]:
        whole = (self.reader.get_batch(i) for i in range(self.reader.num_record_batches)) if self.is_file else \
            iter(self.reader)
        count = 0
        for batch in whole:
            batch.validate(full=True)
            count += batch.num_rows
            for first in range(0, batch.num_rows, rows):
                yield batch.select(columns).slice(first, rows)
        if not self.is_file:
            self._check_end(count)

    def _check_end(self, rows: int) -> None:
        """pyarrow takes the end of the file for that of the stream."""
        with open(self.path, "rb") as file:
            file.seek(max(0, self.source.tell() - len(STREAM_END)))
            if file.read(len(STREAM_END)) != STREAM_END:
                raise common.wrong(self.path, "an Arrow stream with an end marker", f"none after {rows} rows: it is "
                                   "truncated", "download or recreate it")

    def rows_in(self, chunk_bytes: int) -> int:
        return MAX_ROWS


Table = Union[Parquet, Arrow]


def open_table(path: Path, kind: str) -> Table:
    """`kind`: the name of a kind of kinds.py."""
    return Parquet(path) if kind == "Parquet" else Arrow(path)


def batches_of(table: Table, columns: list[str], rows: int, group: int | None = None) -> Iterator[tuple[int, Any]]:
    """(number of its first row, batch); damage names the row."""
    batches, first = table.batches(columns, rows, group), 0
    while True:
        batch = guarded(table.path, f"a row {first} (counted from 0)", lambda: next(batches, None))
        if batch is None:
            return
        yield first, batch
        first += batch.num_rows
