"""The chunks and blocks in which the files of a corpus (inputs.py) are read, and the records in them.

A text file is one document, each JSON line and each row too. What can be read from any place (text, JSON lines) is
cut into chunks, nominal ranges of bytes: what reads one moves its ends to places that are a pure function of the
file, so that workers need not talk. The rest is read as a stream of blocks of whole records (streams.py).
"""

from __future__ import annotations

import codecs
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from . import common

if TYPE_CHECKING:  # these read files, as blocks
    from .inputs import InputFile
    from .kinds import Kind

BOUNDARY_SCAN = 1 << 20  # bytes searched for a line end after a chunk's nominal end
COUNT_BLOCK = 1 << 24
SKIP_BAD = "--skip-bad N leaves out up to N"
IN_UTF8 = "text in UTF-8"
CONVERT = "convert the file, as with iconv -f LATIN1 -t UTF-8 if it is Latin-1, or leave it out"
CHATS = "messages"  # the field of records that are conversations, of any form


@dataclass(frozen=True)
class Chunk:
    """Bytes [start, end) of a file, both nominal."""

    path: str
    start: int
    end: int
    size: int  # bytes of the file that are used
    field: str  # JSON field of lines, '' for text


@dataclass(frozen=True)
class Block:
    """Whole records of a file: lines of JSON, or rows that are read already."""

    path: str
    first: int  # number of the first line, from 1, or of the first row, from 0; 0 for lines that were not counted
    offset: int  # bytes before it, uncompressed
    lines: bytes
    rows: list[Any] | None
    bytes: int


@dataclass(frozen=True)
class BadRow:
    """In the place of a row that cannot be used."""

    place: str
    expected: str
    found: str


@dataclass(frozen=True)
class Span:
    """Bytes [start, end) of a file, from one start of a document to another."""

    name: str
    path: Path
    start: int
    end: int
    kind: Kind


def spans_of(files: list[InputFile]) -> list[Span]:
    return [Span(file.name, file.path, 0, file.path.stat().st_size, file.kind) for file in files]


def make_chunks(spans: list[Span], chunk_bytes: int, max_bytes: int | None, field: str) -> Iterator[Chunk | Block]:
    """All chunks and blocks in document order; --max-bytes cuts the last file short (of a compressed one: its
    uncompressed bytes, of rows: those of the columns that are used)."""
    from . import streams

    left = max_bytes if max_bytes is not None else 1 << 62
    for span in spans:
        if not span.kind.has_places:
            for block in streams.blocks(span, field, chunk_bytes, left):
                left -= block.bytes
                yield block
            continue
        end = min(span.end, span.start + left)
        left -= end - span.start
        for start in range(span.start, end, chunk_bytes):
            yield Chunk(str(span.path), start, min(start + chunk_bytes, end), end,
                        field if span.kind.name == "JSON lines" else "")


def line_boundary(file: BinaryIO, position: int, size: int, whole_lines: bool) -> int:
    """The place after the first line end at or after position-1; a pure function of the file."""
    if position == 0 or position >= size:
        return min(position, size)
    file.seek(position - 1)
    scanned = 0
    while scanned < size - position + 1:
        block = file.read(min(BOUNDARY_SCAN, size - position + 1 - scanned))
        if not block:
            return size
        index = block.find(b"\n")
        if index >= 0:
            return position - 1 + scanned + index + 1
        if not whole_lines:
            # No line end near: cut there, but not inside a UTF-8 character.
            return position - 1 + character_start(block, len(block) - 1)
        scanned += len(block)
    return size


def character_start(data: bytes, index: int) -> int:
    """Where the UTF-8 character starts that data[index] is in: cut there, both parts decode as they
    do together, damaged text included."""
    for start in range(index, max(index - 4, -1), -1):
        if data[start] & 0xC0 != 0x80:
            return start
    return index  # at least three continuation bytes before it: it is in no character


def begin_of_text(file: BinaryIO) -> int:
    """After the byte order mark of a file of text, if it has one."""
    file.seek(0)
    return len(codecs.BOM_UTF8) if file.read(len(codecs.BOM_UTF8)) == codecs.BOM_UTF8 else 0


def wrong_bytes(path: object, error: UnicodeDecodeError, before: int) -> common.BadRecord:
    """`before`: bytes of the file before those that were decoded."""
    byte = error.object[error.start]
    return common.BadRecord(str(common.wrong(f"{path}, byte {before + error.start}", IN_UTF8,
                                             f"0x{byte:02x}: {error.reason}", CONVERT)))


def read_text(chunk: Chunk) -> str:
    """The text of a chunk; a last character that --max-bytes cuts in two is left out."""
    data, start = read_chunk(chunk)
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        return decoder.decode(data, final=start + len(data) == os.stat(chunk.path).st_size)
    except UnicodeDecodeError as error:
        raise wrong_bytes(chunk.path, error, start) from None


def read_chunk(chunk: Chunk) -> tuple[bytes, int]:
    """(bytes, where the first is in the file). A byte order mark is not part of a text."""
    with open(chunk.path, "rb") as file:
        whole = bool(chunk.field)
        start = line_boundary(file, chunk.start, chunk.size, whole)
        if not whole:
            start = max(start, min(begin_of_text(file), chunk.size))
        end = max(start, line_boundary(file, chunk.end, chunk.size, whole))
        file.seek(start)
        data = file.read(end - start)
        if whole and end == chunk.size and chunk.size < os.fstat(file.fileno()).st_size:
            data = data[:data.rfind(b"\n") + 1]  # --max-bytes cut a line in two
        return data, start


def block_of(chunk: Chunk) -> Block:
    data, start = read_chunk(chunk)
    return Block(chunk.path, 0, start, data, None, len(data))


def items_of(block: Block) -> Iterator[tuple[int, Any]]:
    """(position, line or row): the position is for `place`."""
    if block.rows is not None:
        yield from enumerate(block.rows)
        return
    position = 0
    for line in block.lines.split(b"\n"):
        if line and not line.isspace():
            yield position, line
        position += len(line) + 1


def record_of(block: Block, position: int, item: Any) -> Any:
    if isinstance(item, BadRow):
        raise common.BadRecord(str(common.wrong(f"{block.path}, {item.place}", item.expected, item.found,
                                                f"fix or delete it; {SKIP_BAD}")))
    if block.rows is not None:
        return item
    try:
        return common.from_json(item)
    except UnicodeDecodeError as error:
        raise wrong_record(block, position + error.start, IN_UTF8, f"0x{item[error.start]:02x}: {error.reason}",
                           CONVERT) from None
    except ValueError as error:
        raise wrong_record(block, position, "a line of JSON", f"{show(item)} ({error})",
                           "fix or delete the line") from None


def place(block: Block, position: int) -> str:
    if block.rows is not None:
        return f"{block.path}, row {block.first + position} (counted from 0)"
    before = block.lines.count(b"\n", 0, position)
    first = block.first or 1 + count_lines(block.path, block.offset)
    return f"{block.path}, line {first + before}, byte {block.offset + position}"


def count_lines(path: str, size: int) -> int:
    lines = 0
    with open(path, "rb") as file:
        while size > 0 and (data := file.read(min(size, COUNT_BLOCK))):
            lines += data.count(b"\n")
            size -= len(data)
    return lines


def show(value: Any) -> str:
    text = value[:80].decode("utf-8", "replace") if isinstance(value, bytes) else repr(value)[:80]
    return text.strip().replace("\0", "\\0")


def wrong_record(block: Block, position: int, expected: str, found: str, change: str) -> common.BadRecord:
    told = common.wrong(place(block, position), expected, found, f"{change}; {SKIP_BAD}")
    return common.BadRecord(str(told))


def text_of(block: Block, position: int, record: Any, field: str) -> bytes:
    """The text of a record: of a row its only column."""
    text = record.get(field) if isinstance(record, dict) else record if block.rows is not None else None
    if isinstance(text, bytes):  # of a column of bytes
        try:
            text = text.decode("utf-8")
        except UnicodeDecodeError as error:
            found = f"0x{text[error.start]:02x} at its byte {error.start}: {error.reason}"
            raise wrong_record(block, position, f"{IN_UTF8} in '{field}'", found, "fix or delete it") from None
    if not isinstance(text, str):
        found = f"no text in {show(record)}"
        if isinstance(record, dict):
            names = ", ".join(map(str, record))[:200]
            found = f"no text field '{field}', but {show(text)}" if field in record else \
                f"no text field '{field}', but the fields {names}"
        raise wrong_record(block, position, f"an object with a text in the field '{field}'", found,
                           "name the field with --field, fix the record, or take JSON as plain text with --as-text")
    if lone := common.lone_surrogate(text):
        raise wrong_record(block, position, f"a text in the field '{field}'", lone, "fix or delete it")
    return text.encode("utf-8")
