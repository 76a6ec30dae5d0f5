"""Which files a corpus has, in which order, and the chunks in which they are read.

A text file is one document, each line of a .jsonl file too. A chunk is a nominal range of bytes: what
reads it moves its ends to places that are a pure function of the file, so that workers need not talk.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from . import common

BOUNDARY_SCAN = 1 << 20  # bytes searched for a line end after a chunk's nominal end


@dataclass(frozen=True)
class Chunk:
    """Bytes [start, end) of a file, both nominal."""

    path: str
    start: int
    end: int
    size: int  # bytes of the file that are used
    field: str  # JSON field of a .jsonl file, '' for text


def find_files(inputs: list[str], globs: list[str]) -> list[tuple[str, Path]]:
    """(name, path) of every text file with bytes in it, each file once however often it is reached.

    The name is the path below its input folder, or the path as given. Files come sorted by name, those
    of equal names (in different folders) in the order of the inputs.
    """
    found: list[tuple[str, int, Path]] = []
    for position, item in enumerate(inputs):
        root = Path(item)
        if root.is_file():
            found.append((str(root), position, root))
        elif root.is_dir():
            found += [(str(path.relative_to(root)), position, path)
                      for pattern in globs for path in root.rglob(pattern) if path.is_file()]
        else:
            raise common.ToolError(f"{item}: no such file or folder")
    seen, result = set(), []
    for name, _, path in sorted(found):
        status = path.stat()
        identity = (status.st_dev, status.st_ino)
        if status.st_size and identity not in seen and is_text(path):
            seen.add(identity)
            result.append((name, path))
    return result


def is_text(path: Path) -> bool:
    try:
        with open(path, "rb") as file:
            return b"\0" not in file.read(4096)
    except OSError as error:
        print(f"passed over: {error}", file=sys.stderr)
        return False


def order_files(files: list[tuple[str, Path]], seed: int | None) -> list[tuple[str, Path]]:
    """Sorted, or in an order drawn from the seed, the names and the rank among equal names alone."""
    if seed is None:
        return files
    used: dict[str, int] = {}
    keyed = []
    for name, path in files:
        nth = used[name] = used.get(name, -1) + 1
        text = f"{seed}:{name}" + (f":{nth}" if nth else "")
        keyed.append((hashlib.blake2b(os.fsencode(text), digest_size=16).digest(), name, nth, path))
    return [(name, path) for _, name, _, path in sorted(keyed)]


def make_chunks(files: list[tuple[str, Path]], chunk_bytes: int, max_bytes: int | None, field: str) -> Iterator[Chunk]:
    """All chunks in document order; --max-bytes cuts the last file short."""
    left = max_bytes if max_bytes is not None else 1 << 62
    for _, path in files:
        size = min(path.stat().st_size, left)
        left -= size
        kind = field if path.suffix == ".jsonl" else ""
        for start in range(0, size, chunk_bytes):
            yield Chunk(str(path), start, min(start + chunk_bytes, size), size, kind)


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


def read_chunk(chunk: Chunk) -> tuple[bytes, bool, bool]:
    """(bytes, starts the file, ends the file)."""
    with open(chunk.path, "rb") as file:
        whole = bool(chunk.field)
        start = line_boundary(file, chunk.start, chunk.size, whole)
        end = max(start, line_boundary(file, chunk.end, chunk.size, whole))
        file.seek(start)
        data = file.read(end - start)
        last = chunk.end == chunk.size
        if whole and end == chunk.size and chunk.size < os.fstat(file.fileno()).st_size:
            data = data[:data.rfind(b"\n") + 1]  # --max-bytes cut a line in two
        return data, chunk.start == 0, last


def documents_of(data: bytes, field: str) -> list[bytes]:
    if not field:
        return [data]
    texts = []
    for line in data.splitlines():
        if line.strip():
            try:
                texts.append(json.loads(line)[field].encode("utf-8", "replace"))
            except (ValueError, KeyError, TypeError, AttributeError):
                raise common.ToolError(f"a .jsonl line has no text field '{field}': "
                                       f"{line[:60].decode('utf-8', 'replace')!r}") from None
    return texts
