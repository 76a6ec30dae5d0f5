"""What an input file is, told by its first bytes.

A name counts where bytes cannot say: .csv and .tsv are tables, lines of .jsonl are JSON even where the first is
damaged, and a file that is not what .gz, .zst, .bz2, .xz, .parquet or .arrow promise is damaged.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Collection
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
RECORD = Kind("JSON object")  # a record that is the whole file
PARQUET, ARROW, ARROW_STREAM = Kind("Parquet"), Kind("Arrow file"), Kind("Arrow stream")
AS_TEXT = "or take it as plain text with --as-text"
OBJECT = Kind("JSON without records", change=f"give lines or an array of objects, {AS_TEXT}")
OBJECTS = Kind("JSON objects that are not lines", change=f"write each on a line, as with jq -c ., {AS_TEXT}")
IDS = "of token ids nanotron-import makes a token file"
STREAMED = "write its texts as JSON lines or Parquet with the library that made it"
# Patterns of first bytes that no text has: prose may begin with BZh, PAR1 or %PDF.
PACKINGS = {rb"\x1f\x8b\x08": "gzip", rb"\x28\xb5\x2f\xfd": "zst", rb"BZh[1-9](1AY&SY|\x17rE8P\x90)": "bzip2",
            rb"\xfd7zXZ\0": "xz"}
MAGIC = {
    rb"PAR1[^\s -~]": PARQUET, rb"ARROW1\0\0": ARROW,
    rb"\x93NUMPY": Kind("NumPy array", change=IDS), rb"\x89HDF\r\n\x1a\n": Kind("HDF5 file", change=IDS),
    rb"MMIDIDX\0\0": Kind("Megatron-LM index", change=IDS),
    re.escape((20240520).to_bytes(4, "little")): Kind("llm.c tokens", change=IDS),
    re.escape((20240801).to_bytes(4, "little")): Kind("llm.c tokens", change=IDS),
    rb"PK\x03\x04": Kind("zip", change="unpack it"), rb"7z\xbc\xaf'\x1c": Kind("7z", change="unpack it"),
    rb"%PDF-\d\.\d\s*[\r\n]": Kind("PDF", change="write its text, as with pdftotext"),
    rb"SQLite format 3\0": Kind("SQLite", change="write its texts as JSON lines"),
    rb".{257}ustar[\0 ]": Kind("tar", change="unpack it"),
}
MARKS = {codecs.BOM_UTF32_LE: "UTF-32", codecs.BOM_UTF32_BE: "UTF-32", codecs.BOM_UTF16_LE: "UTF-16",
         codecs.BOM_UTF16_BE: "UTF-16"}
# Which bytes of each four are 0 where most characters are ASCII.
ZEROS: dict[tuple[int, ...], str] = {(0, 1, 1, 1): "UTF-32LE", (1, 1, 1, 0): "UTF-32BE", (0, 1, 0, 1): "UTF-16LE",
                                     (1, 0, 1, 0): "UTF-16BE"}
PROMISES = {".gz": "gzip", ".zst": "zst", ".bz2": "bzip2", ".xz": "xz", ".parquet": "Parquet", ".arrow": "Arrow"}
LINE_NAMES = (".jsonl", ".ndjson")
INDEXES = {re.compile(r'\{\s*"splits":\s*\['): Kind("index of splits, DatasetDict of datasets", "",
                                                  "name the folder of one split, as train", True),
           re.compile(r'"format":\s*"mds"'): Kind("index of MosaicML's MDS", "", STREAMED, True),
           re.compile(r'"chunks":\s*\[.*"data_format":', re.DOTALL): Kind("index of litdata", "", STREAMED, True)}
KEY = re.compile(r'\{\s*("(\\.|[^"\\])*"\s*:|\})')
DECODER = json.JSONDecoder()


def sniff(path: Path, size: int, as_text: bool = False, fields: Collection[str] = ("text",)) -> Kind:
    """Of a file of `size` bytes, not 0. `as_text`: what is text stays so, whatever it says. `fields`: an object with
    one is a record."""
    with open(path, "rb") as file:
        head = file.read(HEAD)
        if head.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] in (b"{", b"["):
            head += file.read(JSON_HEAD - len(head))
    name = path.name.lower()
    packing = next((packing for magic, packing in PACKINGS.items() if re.match(magic, head)), "")
    promised = PROMISES.get(path.suffix.lower(), "")
    if packing:
        inside = next(streams.unpacked(path, packing, JSON_HEAD), b"")
        name = name.removesuffix(path.suffix.lower()) if promised else name
        return pack(kind_of(inside, name, len(inside) < JSON_HEAD, as_text, fields), packing, name)
    kind = kind_of(head, name, len(head) == size, as_text, fields)
    if promised and not kind.name.startswith(promised):
        change = "download or recreate it, or rename it"
        return Kind(kind.name, "", change, True, f"a {promised} file, as its name says")
    return kind


def pack(kind: Kind, packing: str, name: str) -> Kind:
    if kind.name == TEXT.name and name.endswith(LINE_NAMES):
        kind = LINES  # empty
    if kind.name in (LINES.name, ARRAY.name, RECORD.name, CSV.name, OBJECT.name, OBJECTS.name) or kind.fatal:
        return replace(kind, packing=packing)
    return Kind(kind.name, packing, "unpack it")


def known_by_magic(head: bytes) -> Kind | None:
    return next((kind for magic, kind in MAGIC.items() if re.match(magic, head, re.DOTALL)), None)


def wide_encoding(head: bytes) -> str:
    """UTF-16 or UTF-32 where the head is text of it, with a mark or without; else ''."""
    if marked := next((name for mark, name in MARKS.items() if head.startswith(mark)), ""):
        return marked
    head = head[:min(TEXT_HEAD, len(head) // 4 * 4)]
    name = ZEROS.get(tuple(int(2 * head[i::4].count(0) > len(head[i::4])) for i in range(4)), "")
    text = head.decode(name, "ignore") if name else ""
    return name if all(each.isprintable() or each.isspace() for each in text) else ""


def kind_of(head: bytes, name: str, whole: bool, as_text: bool, fields: Collection[str]) -> Kind:
    """`head`: the beginning of a file, `whole`: all of it."""
    if known := known_by_magic(head):
        return known
    if head[:4] == b"\xff\xff\xff\xff" and int.from_bytes(head[4:8], "little") % 8 == 0 < len(head[8:]):
        return ARROW_STREAM
    if wide := wide_encoding(head):
        return Kind(f"{wide} text", change=f"convert it: iconv -f {wide} -t UTF-8")
    if b"\0" in head[:TEXT_HEAD] and not name.endswith(LINE_NAMES):
        at = head.index(b"\0")
        return Kind("binary", change="leave it out, or fix it, as with tr -d '\\0'",
                    detail=f", a NUL byte in line {1 + head.count(10, 0, at)}, byte {at}")
    if as_text:
        return TEXT
    return json_kind(head.decode("utf-8", "ignore").lstrip("\ufeff \t\r\n"), name, whole, fields) or \
        (CSV if name.endswith((".csv", ".tsv")) else TEXT)


def object_kind(text: str, value: Any, fields: Collection[str]) -> Kind:
    """Of a file that is one JSON object: data of others whose index it is, a record, or none."""
    if index := next((kind for pattern, kind in INDEXES.items() if pattern.search(text)), None):
        return index
    if any(isinstance(value.get(name), (str, list)) for name in fields):
        return RECORD if "\n" in text.strip() else LINES
    return OBJECT


def json_kind(text: str, name: str, whole: bool, fields: Collection[str]) -> Kind | None:
    """None where it is no JSON."""
    if text.startswith("["):
        return array_kind(text, name, whole)
    lines = name.endswith(LINE_NAMES)
    is_object = KEY.match(text) is not None
    value, end, is_cut = first_value(text) if is_object else (None, 0, False)
    is_long = is_object and is_cut and not whole  # longer than what is seen of it
    if "\n" in (text if is_long else text[:end]):
        rest = text[end:].strip()
        if rest.startswith("{") and not is_long:
            return OBJECTS
        if not rest and whole:
            return object_kind(text, value, fields)
        return OBJECT if is_long or not rest or lines or name.endswith(".json") else None
    if lines or is_long:
        return LINES
    rest = text[end:].lstrip(" \t\r")
    if value is None or rest.lstrip()[:1] not in ("", "{"):  # damaged, or followed by prose
        return LINES if is_object and name.endswith(".json") else None
    if rest.startswith("{"):
        return OBJECTS
    return LINES if rest.strip() or not whole else object_kind(text, value, fields)


def array_kind(text: str, name: str, whole: bool) -> Kind | None:
    lines, value, end, _ = (name.endswith(LINE_NAMES), *first_value(text))
    if lines and value is not None and text[end:].strip():
        return LINES  # each an array: refused by line
    inner, named = text[1:].lstrip(), lines or name.endswith(".json")
    if KEY.match(inner):
        first, stop, is_cut = first_value(inner)
        after = inner[stop:].lstrip()
        if named or (first is None and is_cut and not whole):
            return ARRAY
        is_whole = value is not None and not text[end:].strip()
        if first is not None and (is_whole or not after or re.match(r",\s*(\{|$)", after)):
            return ARRAY
    if lines:
        return LINES
    return OBJECT if named and (value is not None or inner[:1] in ('"', "[")) else None


def first_value(text: str) -> tuple[Any, int, bool]:
    """(value or None, where it ends, the text ends inside of it)"""
    try:
        return (*DECODER.raw_decode(text), False)
    except json.JSONDecodeError as error:
        return None, 0, streams.is_cut(error, text)
    except RecursionError:
        return None, 0, False
