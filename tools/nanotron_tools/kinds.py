"""What an input file is, told by its first bytes.

A name counts where bytes cannot say: .csv and .tsv are tables, lines of .jsonl are JSON even where the first is
damaged, and a file that is not what .gz, .zst, .bz2, .xz, .parquet or .arrow promise is damaged.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from . import streams

HEAD = 1 << 16  # bytes looked at
JSON_HEAD = 1 << 20  # of what begins as JSON
TEXT_HEAD = 4096  # a NUL byte in these: no text


@dataclass(frozen=True)
class Kind:
    """`change`: what to do with a file that is not read, where `expected` was; `fatal`: it ends the tool, in a folder
    too."""

    name: str
    packing: str = ""  # gzip, zst, bzip2 or xz
    change: str = ""
    fatal: bool = False
    expected: str = "text, JSON lines or an array of objects, CSV, Parquet or Arrow"
    detail: str = ""

    @property
    def title(self) -> str:
        return f"{self.name}, {self.packing}" if self.packing else self.name

    @property
    def is_read(self) -> bool:
        return not self.change

    @property
    def has_places(self) -> bool:
        """It can be read from any place, in chunks."""
        return not self.packing and self.name in (TEXT.name, LINES.name)


TEXT, LINES, ARRAY, CSV = Kind("text"), Kind("JSON lines"), Kind("JSON array"), Kind("CSV")
PARQUET, ARROW, ARROW_STREAM = Kind("Parquet"), Kind("Arrow file"), Kind("Arrow stream")
AS_TEXT = "or take it as plain text with --as-text"
OBJECT = Kind("JSON without records", change=f"give lines or an array of objects, {AS_TEXT}")
OBJECTS = Kind("JSON objects that are no lines", change=f"write each on a line, as with jq -c ., {AS_TEXT}")
UTF16 = Kind("UTF-16 text", change="convert it: iconv -f UTF-16 -t UTF-8")
IDS = "of token ids nanotron-import makes a token file"
STREAMED = "write its texts as JSON lines or Parquet with the library that made it"
PACKINGS = {b"\x1f\x8b\x08": "gzip", b"\x28\xb5\x2f\xfd": "zst", b"BZh": "bzip2", b"\xfd7zXZ\0": "xz"}
MAGIC = {
    b"PAR1": PARQUET, b"ARROW1\0\0": ARROW,
    b"\x93NUMPY": Kind("NumPy array", change=IDS), b"\x89HDF\r\n\x1a\n": Kind("HDF5 file", change=IDS),
    b"MMIDIDX\0\0": Kind("Megatron-LM index", change=IDS),
    (20240520).to_bytes(4, "little"): Kind("llm.c tokens", change=IDS),
    (20240801).to_bytes(4, "little"): Kind("llm.c tokens", change=IDS),
    b"PK\x03\x04": Kind("zip", change="unpack it"), b"7z\xbc\xaf'\x1c": Kind("7z", change="unpack it"),
    b"%PDF-": Kind("PDF", change="write its text, as with pdftotext"),
    b"SQLite format 3\0": Kind("SQLite", change="write its texts as JSON lines"),
}
PROMISES = {".gz": "gzip", ".zst": "zst", ".bz2": "bzip2", ".xz": "xz", ".parquet": "Parquet", ".arrow": "Arrow"}
LINE_NAMES = (".jsonl", ".ndjson")
INDEXES = {re.compile(r'\{\s*"splits":\s*\['): Kind("index of splits, DatasetDict of datasets", "",
                                                  "name the folder of one split, as train", True),
           re.compile(r'"format":\s*"mds"'): Kind("index of MosaicML's MDS", "", STREAMED, True),
           re.compile(r'"chunks":\s*\[.*"data_format":', re.DOTALL): Kind("index of litdata", "", STREAMED, True)}
KEY = re.compile(r'\{\s*("(\\.|[^"\\])*"\s*:|\})')
DECODER = json.JSONDecoder()


def sniff(path: Path, size: int, as_text: bool = False) -> Kind:
    """Of a file of `size` bytes, not 0. `as_text`: what is text stays so, whatever it says."""
    with open(path, "rb") as file:
        head = file.read(HEAD)
        if head.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] in (b"{", b"["):
            head += file.read(JSON_HEAD - len(head))
    name = path.name.lower()
    packing = next((packing for magic, packing in PACKINGS.items() if head.startswith(magic)), "")
    promised = PROMISES.get(path.suffix.lower(), "")
    if packing:
        inside = next(streams.unpacked(path, packing, JSON_HEAD), b"")
        name = name.removesuffix(path.suffix.lower()) if promised else name
        name += "l" * name.endswith(".json")  # what is packed is data: its lines count, even one
        return pack(kind_of(inside, name, len(inside) < JSON_HEAD, as_text), packing, name)
    kind = kind_of(head, name, len(head) == size, as_text)
    if promised and not kind.name.startswith(promised):
        change = "fetch or write it again, or rename it"
        return Kind(kind.name, "", change, True, f"a {promised} file, as its name says")
    return kind


def pack(kind: Kind, packing: str, name: str) -> Kind:
    if kind.name == TEXT.name and name.endswith(LINE_NAMES):
        kind = LINES  # empty
    if kind.name in (LINES.name, ARRAY.name, CSV.name):
        return replace(kind, packing=packing)
    return Kind(kind.name, packing, "unpack it")


def kind_of(head: bytes, name: str, whole: bool, as_text: bool) -> Kind:
    """`head`: the beginning of a file, `whole`: all of it."""
    for magic, kind in MAGIC.items():
        if head.startswith(magic):
            return kind
    if head[257:262] == b"ustar":
        return Kind("tar", change="unpack it")
    if head[:4] == b"\xff\xff\xff\xff" and int.from_bytes(head[4:8], "little") % 8 == 0 < len(head[8:]):
        return ARROW_STREAM
    if head[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return UTF16
    if b"\0" in head[:TEXT_HEAD] and not name.endswith(LINE_NAMES):
        at = head.index(b"\0")
        return Kind("binary", change="leave it out, or mend it, as with tr -d '\\0'",
                    detail=f", a NUL byte in line {1 + head.count(10, 0, at)}, byte {at}")
    if as_text:
        return TEXT
    return json_kind(head.decode("utf-8", "ignore").lstrip("\ufeff \t\r\n"), name, whole) or \
        (CSV if name.endswith((".csv", ".tsv")) else TEXT)


def object_kind(text: str) -> Kind:
    """Of one JSON object: data of others whose index it is, or none."""
    return next((kind for pattern, kind in INDEXES.items() if pattern.search(text)), OBJECT)


def json_kind(text: str, name: str, whole: bool) -> Kind | None:
    """None where it is no JSON."""
    lines = name.endswith(LINE_NAMES)
    if lines and not text.startswith("["):
        return LINES
    if text.startswith("["):
        return array_kind(text, name, lines)
    if not KEY.match(text):
        return None
    value, end = first_value(text)
    if value is None:  # damaged, or longer than what is seen of it
        line = text.partition("\n")[0]
        return OBJECT if KEY.match(line) is None else LINES if name.endswith(".json") or not whole else None
    rest = text[end:].lstrip(" \t\r")
    if "\n" in text[:end] or rest.startswith("{"):
        return OBJECTS if rest.lstrip().startswith("{") else object_kind(text)
    if not rest.strip():
        return object_kind(text) if whole else LINES
    return LINES if rest.lstrip().startswith("{") or name.endswith(".json") else None


def array_kind(text: str, name: str, lines: bool) -> Kind | None:
    whole, end = first_value(text)
    if lines and whole is not None and text[end:].strip():
        return LINES  # each an array: refused by line
    inner = text[1:].lstrip()
    if KEY.match(inner):
        value, end = first_value(inner)
        if value is None or name.endswith(".json") or inner[end:].lstrip()[:1] in (",", "]", ""):
            return ARRAY
    if lines:
        return LINES
    return OBJECT if name.endswith(".json") and (whole is not None or inner[:1] in ('"', "[")) else None


def first_value(text: str) -> tuple[Any, int]:
    try:
        return DECODER.raw_decode(text)
    except (ValueError, RecursionError):
        return None, 0
