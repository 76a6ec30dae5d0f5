"""Files that are read from their beginning only: what is packed, JSON arrays, CSV, and rows of Parquet and Arrow.

One process reads them, block by block; many may encode the blocks. Memory is a block, or the longest
record, whatever the size of a file. zstandard: Python's own package from 3.14 on, before backports.zstd.
"""

from __future__ import annotations

import bz2
import codecs
import csv
import gzip
import importlib
import io
import itertools
import json
import lzma
import re
import sys
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from . import columnar, common
from .corpus import CHATS, IN_UTF8, BadRow, Block, Span, show, wrong_bytes

CHAT_COLUMNS = (CHATS, "conversations", "prompt", "completion", "instruction", "input", "output", "system",
                "history", "tools")
CSV_FIELD = 1 << 30  # characters at most
IDS = "input_ids"
PACKED = 1 << 16  # bytes read at a time
LONGEST_LITERAL = len("-Infinity") + 1
NO_UTF8 = re.compile("[\udc80-\udcff]")  # bytes, as surrogateescape has them
WHITE_SPACE = re.compile(r"[ \t\r\n]*")


def blocks(span: Span, field: str, chunk_bytes: int, limit: int) -> Iterator[Block]:
    """Blocks of about `chunk_bytes` and at most `limit` bytes of all of them; a record that is beyond is left out."""
    path, kind, left = span.path, span.kind, limit
    if kind.name in ("Parquet", "Arrow file", "Arrow stream"):
        found = row_blocks(path, kind.name, field, chunk_bytes)
    else:
        data = unpacked(path, kind.packing, chunk_bytes)
        found = line_blocks(path, data) if kind.name == "JSON lines" else \
            record_blocks(path, array_records(path, data) if kind.name == "JSON array" else
                          whole_record(path, data) if kind.name == "JSON object" else
                          csv_records(path, data, field), chunk_bytes)
    for block in found:
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


def line_blocks(path: Path, data: Iterator[bytes]) -> Iterator[Block]:
    first, offset = 1, 0
    for lines in whole_lines(data):
        yield Block(str(path), first, offset, lines, None, len(lines))
        first += lines.count(b"\n")
        offset += len(lines)


def whole_lines(pieces: Iterator[bytes]) -> Iterator[bytes]:
    parts: list[bytes] = []
    for data in pieces:
        end = data.rfind(b"\n") + 1
        if end:
            yield b"".join([*parts, data[:end]])
            parts = []
        parts.append(data[end:])
    if last := b"".join(parts):
        yield last


def opener_of(packing: str) -> tuple[Any, tuple[type[Exception], ...]]:
    """(open, what it raises for damage)"""
    if packing == "zst":
        zstd = zstd_module()
        return zstd.open, (EOFError, zstd.ZstdError)
    if packing == "gzip":
        return gzip.open, (EOFError, gzip.BadGzipFile, zlib.error)
    if packing == "bzip2":
        return partial(open_streams, decompressor=bz2.BZ2Decompressor), (EOFError, OSError, ValueError)
    return (partial(open_streams, decompressor=lzma.LZMADecompressor), (EOFError, lzma.LZMAError)) \
        if packing == "xz" else (open, ())


class Streams(io.RawIOBase):
    """Unpacked, stream after stream, with zeros between them.

    bz2.open and lzma.open take a later stream whose beginning is damaged for the end of the file.
    """

    def __init__(self, path: Path, decompressor: Callable[[], Any]):
        self.file, self.decompressor = path.open("rb"), decompressor
        self.stream, self.packed = decompressor(), b""

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        self.file.close()
        super().close()

    def readinto(self, buffer: Any) -> int:
        data = b""
        while not data:
            if self.stream.eof:
                self.packed = self.packed.lstrip(b"\0")
            if not self.packed and (self.stream.eof or self.stream.needs_input):
                self.packed = self.file.read(PACKED)
                if not self.packed and not self.stream.eof:
                    raise EOFError("the file ends inside a stream")
                if not self.packed:
                    return 0
            else:
                self.stream = self.decompressor() if self.stream.eof else self.stream
                data = self.stream.decompress(self.packed, len(buffer))
                self.packed = self.stream.unused_data
        buffer[:len(data)] = data
        return len(data)


def open_streams(path: Path, mode: str, decompressor: Callable[[], Any]) -> io.BufferedReader:
    return io.BufferedReader(Streams(path, decompressor), PACKED)


def unpacked(path: Path, packing: str, chunk_bytes: int) -> Iterator[bytes]:
    opener, damaged = opener_of(packing)
    read = 0
    with opener(path, "rb") as file:
        while True:
            try:
                data: bytes = file.read(chunk_bytes)
            except damaged as error:
                if isinstance(error, OSError) and error.errno is not None:
                    raise
                change = "write it without --long (windows up to 128 MiB are read)" if "memory" in str(error) else \
                    "download or recreate it"
                raise common.wrong(path, f"a whole {packing} file", f"{error}, after {read} bytes of unpacked "
                                   f"text, in a file of {path.stat().st_size} bytes", change) from None
            if not data:
                return
            read += len(data)
            yield data


def record_blocks(path: Path, records: Iterator[tuple[Any, int]], chunk_bytes: int) -> Iterator[Block]:
    """Of (record, bytes)."""
    first, rows, size = 0, list[Any](), 0
    for record, count in records:
        rows.append(record)
        size += count
        if size >= chunk_bytes:
            yield Block(str(path), first, 0, b"", rows, size)
            first, rows, size = first + len(rows), [], 0
    if rows:
        yield Block(str(path), first, 0, b"", rows, size)


def decoded(path: Path, data: Iterator[bytes]) -> Iterator[str]:
    decoder, before = codecs.getincrementaldecoder("utf-8-sig")(), 0
    for piece in itertools.chain(data, [b""]):
        try:
            text = decoder.decode(piece, final=not piece)
        except UnicodeDecodeError as error:
            raise wrong_bytes(path, error, before + len(piece) - len(error.object)) from None
        if text:
            yield text
        before += len(piece)


def is_cut(error: json.JSONDecodeError, text: str) -> bool:
    """The text ends inside of a value; it may be whole with more text."""
    return error.msg.startswith("Unterminated") or error.pos > len(text) - LONGEST_LITERAL


def whole_record(path: Path, data: Iterator[bytes]) -> Iterator[tuple[Any, int]]:
    """The record that is the whole file."""
    text = "".join(decoded(path, data))
    try:
        yield common.from_json(text), len(text)
    except ValueError as error:
        raise common.wrong(path, "one JSON object", str(error), "fix the file") from None


def array_records(path: Path, data: Iterator[bytes]) -> Iterator[tuple[Any, int]]:
    """The elements of a JSON array, and their sizes, one after another."""
    decode, pieces = json.JSONDecoder().raw_decode, decoded(path, data)
    text, at, number = next(pieces, "").lstrip(), 1, 0
    while True:
        begin = white_space_to(text, at)
        try:
            value, end = (None, begin) if text[begin:begin + 1] == "]" else decode(text, begin)
            after = white_space_to(text, end)
            separator, found, ends = text[after:after + 1], text[after:], after == len(text)
        except json.JSONDecodeError as error:
            separator, found = "", str(error)
            ends = is_cut(error, text)
        except RecursionError:
            separator, found, ends = "", "nested too deeply", False
        if ends and (piece := next(pieces, None)) is not None:
            text, at = text[begin:] + piece, 0
            continue
        if separator not in (",", "]") or (separator == "]" and (text[after + 1:] + "".join(pieces)).strip()):
            raise common.wrong(f"{path}, record {number} (counted from 0)", "an element of a JSON array, then , or ]",
                               show(found) or "the end of the file", "fix the file")
        if end > begin:
            yield value, end - begin
        if separator == "]":
            return
        at, number = after + 1, number + 1


def white_space_to(text: str, at: int) -> int:
    found = WHITE_SPACE.match(text, at)
    return found.end() if found else at


def csv_records(path: Path, data: Iterator[bytes], field: str) -> Iterator[tuple[Any, int]]:
    """The texts of a column, or rows with the columns of chats."""
    lines = Lines(line for text in csv_texts(data) for line in io.StringIO(text, newline=""))
    csv.field_size_limit(CSV_FIELD)
    by_tabs = ".tsv" in path.name.lower()
    reader = csv.DictReader(lines, dialect="excel-tab" if by_tabs else "excel", strict=True)
    try:
        columns = columns_of(list(reader.fieldnames or []), path, field)
        tabs = max(0, len(reader.fieldnames or ()) - 1)
        lines.taken()
        for row in reader:
            read = lines.taken()
            if by_tabs and len(read) > 1 and all(line.count("\t") == tabs for line in read):
                where = f"{path}, lines {reader.line_num - len(read) + 1} to {reader.line_num}"
                raise common.wrong(where, "a quote at the beginning of a field to be one around it",
                                   "lines that are rows without it",
                                   "write the quote twice, in quotes, as Python's csv does, or write JSON lines")
            if None in row or None in row.values():
                extra, missing = len(row.get(None) or ()), sum(value is None for value in row.values())
                names = len(reader.fieldnames or ())
                yield BadRow(f"line {reader.line_num}", f"{names} fields, as the first line names",
                             f"{names + extra - missing}"), 0
                continue
            found = {name: row[name] for name in columns}
            if bad := next(filter(None, map(NO_UTF8.search, found.values())), None):
                yield BadRow(f"line {reader.line_num}", IN_UTF8, f"the byte 0x{ord(bad[0]) - 0xdc00:02x}"), 0
                continue
            yield found if field == CHATS else found[field], sum(len(text or "") for text in found.values())
    except csv.Error as error:
        raise common.wrong(f"{path}, after line {reader.line_num}", "a row of CSV", str(error),
                           "fix the file") from None


class Lines:
    """An iterator that keeps what was taken of it."""

    def __init__(self, lines: Iterator[str]):
        self.lines, self.kept = lines, list[str]()

    def __iter__(self) -> Lines:
        return self

    def __next__(self) -> str:
        self.kept.append(next(self.lines))
        return self.kept[-1]

    def taken(self) -> list[str]:
        """Since the last call, without empty lines."""
        kept, self.kept = [line for line in self.kept if line.strip("\r\n")], []
        return kept


def csv_texts(data: Iterator[bytes]) -> Iterator[str]:
    """Whole lines, without a byte order mark at the beginning; bytes that are no UTF-8 stay recognizable."""
    for number, part in enumerate(whole_lines(data)):
        yield (part if number else part.removeprefix(codecs.BOM_UTF8)).decode("utf-8", "surrogateescape")


def columns_of(names: list[str], path: Path, field: str) -> list[str]:
    """The column of texts, or those of chats (the field messages)."""
    is_chat = field == CHATS
    wanted = [name for name in CHAT_COLUMNS if name in names] if is_chat else [field]
    if twice := next((name for name in wanted if names.count(name) > 1), ""):
        raise common.wrong(path, f"one column '{twice}'", f"{names.count(twice)} of this name", "rename the others")
    if not wanted or not set(wanted) <= set(names):
        expected = "a column 'messages' or 'conversations', or 'prompt' and 'completion'" if is_chat else \
            f"a column '{field}'"
        change = "rename the columns" if is_chat else "name the column with --field"
        if not is_chat and IDS in names:
            change += "; of its token ids nanotron-import makes a token file"
        elif not is_chat:
            change += ", or take tables of CSV as plain text with --as-text"
        raise common.wrong(path, expected, f"the columns {', '.join(names)}" if names else "an empty file", change)
    return wanted


def row_blocks(path: Path, kind: str, field: str, chunk_bytes: int, group: int | None = None) -> Iterator[Block]:
    """Blocks of the file or of one of its row groups."""
    table = columnar.open_table(path, kind)
    columns = columns_of(table.names, path, field)
    begin = sum(table.rows[:group]) if isinstance(table, columnar.Parquet) and group else 0
    records: list[Any] = []
    first, size = begin, 0
    for row, batch in columnar.batches_of(table, columns, table.rows_in(chunk_bytes), group):
        if records and size + batch.nbytes > chunk_bytes:
            yield Block(str(path), first, 0, b"", records, size)
            first, records, size = begin + row, [], 0
        records += batch.to_pylist() if field == CHATS else batch.column(0).to_pylist()
        size += batch.nbytes
    if records:
        yield Block(str(path), first, 0, b"", records, size)
