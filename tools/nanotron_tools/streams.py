"""Files that are read from their beginning only: JSON lines in .gz and .zst, and rows of .parquet.

One process reads them, block by block; many may encode the blocks. Memory is a block, or the longest
record, whatever the size of a file. zstandard: Python's own package from 3.14 on, before backports.zstd.
"""

from __future__ import annotations

import gzip
import importlib
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from . import common
from .corpus import Block, show

MOST_ROWS = 256  # read at a time: what a row needs, packed, says little of its size
CHAT_COLUMNS = ("messages", "conversations", "prompt", "completion")


def blocks(path: Path, kind: str, field: str, chunk_bytes: int, limit: int) -> Iterator[Block]:
    """Blocks of about `chunk_bytes` and at most `limit` bytes of all of them; a record that is beyond is left out."""
    left = limit
    for block in row_blocks(path, field, chunk_bytes) if kind == "rows" else line_blocks(path, chunk_bytes):
        if block.bytes > left:
            if block.rows is None:
                lines = block.lines[:block.lines.rfind(b"\n", 0, left) + 1]
                yield Block(block.path, block.first, block.offset, lines, None, left)
            return
        left -= block.bytes
        yield block


def zstd_module() -> Any:
    return importlib.import_module("compression.zstd") if sys.version_info >= (3, 14) else \
        common.require("backports.zstd")


def line_blocks(path: Path, chunk_bytes: int) -> Iterator[Block]:
    first, offset = 1, 0
    for lines in whole_lines(path, chunk_bytes):
        yield Block(str(path), first, offset, lines, None, len(lines))
        first += lines.count(b"\n")
        offset += len(lines)


def whole_lines(path: Path, chunk_bytes: int) -> Iterator[bytes]:
    parts: list[bytes] = []
    for data in unpacked(path, chunk_bytes):
        end = data.rfind(b"\n") + 1
        if end:
            yield b"".join([*parts, data[:end]])
            parts = []
        parts.append(data[end:])
    if last := b"".join(parts):
        yield last


def unpacked(path: Path, chunk_bytes: int) -> Iterator[bytes]:
    damaged: tuple[type[Exception], ...] = (EOFError, gzip.BadGzipFile, zlib.error)
    if path.name.lower().endswith(".zst"):
        zstd = zstd_module()
        damaged, opener = (EOFError, zstd.ZstdError), zstd.open
    else:
        opener = gzip.open
    read = 0
    with opener(path, "rb") as file:
        while True:
            try:
                data: bytes = file.read(chunk_bytes)
            except damaged as error:
                change = "write it without --long (windows up to 128 MiB are read)" if "memory" in str(error) else \
                    "fetch or write it again"
                raise common.wrong(path, f"a whole {path.suffix[1:]} file", f"{error}, after {read} bytes of unpacked "
                                   f"text, in a file of {path.stat().st_size} bytes", change) from None
            if not data:
                return
            read += len(data)
            yield data


def open_parquet(path: Path) -> Any:
    common.require("pyarrow")
    parquet = importlib.import_module("pyarrow.parquet")
    try:
        return parquet.ParquetFile(path, buffer_size=1 << 20, pre_buffer=False)
    except (ValueError, OSError) as error:  # pyarrow's own are kinds of these
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise common.wrong(path, "a Parquet file", f"{error}, in a file of {path.stat().st_size} bytes",
                           "fetch or write it again") from None


def columns_of(file: Any, path: Path, field: str) -> list[str]:
    """The column of texts, or those of chats (no field)."""
    names: list[str] = file.schema_arrow.names
    wanted = [field] if field else [name for name in CHAT_COLUMNS if name in names]
    if not wanted or not set(wanted) <= set(names):
        expected = f"a column '{field}'" if field else "a column 'messages' or 'conversations', or 'prompt' and 'completion'"
        change = "name the column with --field" if field else "rename the columns"
        raise common.wrong(path, expected, f"the columns {', '.join(names)}", change)
    return wanted


def row_blocks(path: Path, field: str, chunk_bytes: int, group: int | None = None) -> Iterator[Block]:
    """Blocks of the file or of one of its row groups."""
    field = "" if field == CHAT_COLUMNS[0] else field
    with open_parquet(path) as file:
        columns = columns_of(file, path, field)
        metadata = file.metadata
        size = sum(metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups))
        rows = max(1, min(MOST_ROWS, chunk_bytes * metadata.num_rows // max(1, size)))
        groups = None if group is None else [group]
        first = sum(metadata.row_group(i).num_rows for i in range(group or 0))
        batches = file.iter_batches(batch_size=rows, columns=columns, use_threads=False, row_groups=groups)
        records: list[Any] = []
        size = 0
        while True:
            try:
                batch = next(batches, None)
            except (ValueError, OSError) as error:
                raise common.wrong(path, f"a row {first + len(records)} (counted from 0)", show(str(error)),
                                   "fetch or write the file again") from None
            if records and (batch is None or size + batch.nbytes > chunk_bytes):
                yield Block(str(path), first, 0, b"", records, size)
                first, records, size = first + len(records), [], 0
            if batch is None:
                return
            records += batch.column(0).to_pylist() if field else batch.to_pylist()
            size += batch.nbytes
