"""/hashes of a token file: hashes of blocks of its data (doc/data.md); the C++ counterpart is
src/data/tokens/token_hashes.cpp."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from . import common, hdf5
from .xxh3 import xxh3_64

ALGORITHM = "xxh3_64"
BLOCK = 4096  # values; as hash_block in C++
SMALLEST_BLOCK, LARGEST_BLOCK = 64, 65536
NAMES = ("tokens", "documents", "loss_mask")
TABLES = ("choices/tokens", "choices/characters", "choices/bytes", "questions/choices", "questions/answer",
          "questions/line")  # of a file of choices; not in the hash of the content
PAIRS = ("pairs",)  # the same of a file of pairs
READ_VALUES = 1 << 22
NONE = np.zeros(0, "<u8")


def names_in(file: h5py.File) -> list[str]:
    """The datasets that have hashes."""
    names = [name for name in NAMES if name in file]
    return names + [name for tables in (TABLES, PAIRS) if all(name in file for name in tables) for name in tables]


def dtype_of(file: h5py.File, name: str) -> np.dtype:
    """Of the values that are hashed."""
    return file[name].dtype if name == "tokens" else np.dtype("u1" if name == "loss_mask" else "<u8")


class BlockHasher:
    """XXH3-64 of each block of values that come piece by piece."""

    def __init__(self, dtype: np.dtype, block: int = BLOCK):
        self.dtype = np.dtype(dtype).newbyteorder("<")
        self.bytes = block * self.dtype.itemsize
        self._rest = b""

    def update(self, data: np.ndarray) -> np.ndarray:
        """The hashes of the blocks that these values complete."""
        view = np.ascontiguousarray(data, dtype=self.dtype).data.cast("B") if data.size else memoryview(b"")
        found = []
        if self._rest:
            taken = min(self.bytes - len(self._rest), len(view))
            self._rest += view[:taken]
            view = view[taken:]
            if len(self._rest) == self.bytes:
                found.append(xxh3_64(self._rest))
                self._rest = b""
        whole = len(view) // self.bytes * self.bytes
        found += [xxh3_64(view[at:at + self.bytes]) for at in range(0, whole, self.bytes)]
        if whole < len(view):
            self._rest = bytes(view[whole:])
        return np.array(found, dtype="<u8")

    def finish(self) -> np.ndarray:
        """That of the last, shorter block, if there is one."""
        rest, self._rest = self._rest, b""
        return np.array([xxh3_64(rest)], dtype="<u8") if rest else NONE


class Hashes:
    """The hashes of a dataset's blocks, and the one hash of these."""

    def __init__(self, dtype: np.dtype, block: int = BLOCK):
        self._blocks, self._above = BlockHasher(dtype, block), BlockHasher(np.dtype("<u8"), block)
        self._found: list[np.ndarray] = []
        self.count = 0

    def _add(self, hashes: np.ndarray) -> np.ndarray:
        self._found.append(self._above.update(hashes))
        self.count += hashes.size
        return hashes

    def update(self, data: np.ndarray) -> np.ndarray:
        return self._add(self._blocks.update(data))

    def finish(self) -> np.ndarray:
        return self._add(self._blocks.finish())

    def digest(self) -> int:
        """After finish()."""
        self._found.append(self._above.finish())
        return xxh3_64(np.concatenate(self._found).astype("<u8").tobytes())


def content_hash(digests: dict[str, int]) -> str:
    """Of the data of a file: the same in files of the same tokens, documents and mask."""
    text = "".join(f"{name} {digests[name]:016x}\n" for name in NAMES if name in digests)
    return f"{xxh3_64(text.encode()):016x}"


def raw_text(value: Any) -> bytes:
    """A string attribute as C sees it."""
    data = value.encode("utf-8", "surrogateescape") if isinstance(value, str) else bytes(value)
    return data.split(b"\0")[0]


def metadata(file: h5py.File) -> bytes:
    """All sizes and attributes that decide about a run, as lines."""
    lines: list[bytes] = []
    for name in NAMES:
        if name in file:
            width = {"tokens": file["tokens"].dtype.itemsize, "documents": 8, "loss_mask": 1}[name]
            lines.append(f"{name} {file[name].shape[0]} of {width} bytes".encode())
    for name in ("vocab_size", "eos_token_id", "bos_token_id"):
        if name in file.attrs:
            lines.append(f"{name} {int(file.attrs[name])}".encode())
    for name in ("tokenizer", "tokenizer_sha256"):
        if name in file.attrs and raw_text(file.attrs[name]):
            lines.append(name.encode() + b" " + raw_text(file.attrs[name]))
    if "unigram_entropy" in file.attrs:
        bits = np.float64(file.attrs["unigram_entropy"]).view(np.uint64)
        lines.append(f"unigram_entropy {int(bits):016x}".encode())
    if "chat_template" in file.attrs:
        lines.append(b"chat_template " + raw_text(file.attrs["chat_template"]))
    if "vocabulary/offsets" in file and "vocabulary/bytes" in file:
        offsets = file["vocabulary/offsets"][:].astype("<u8")
        words = file["vocabulary/bytes"][:].tobytes()
        lines.append(f"vocabulary {offsets.size} {xxh3_64(offsets.tobytes()):016x} {xxh3_64(words):016x}".encode())
    return b"".join(line + b"\n" for line in lines)


def metadata_hash(file: h5py.File, block: int, content: str) -> str:
    return f"{xxh3_64(f'block {block}{chr(10)}content {content}{chr(10)}'.encode() + metadata(file)):016x}"


def write_attributes(file: h5py.File, digests: dict[str, int], block: int = BLOCK) -> None:
    """Of /hashes, after all else is in the file."""
    group = file["hashes"]
    content = content_hash(digests)
    hdf5.set_text(group, "algorithm", ALGORITHM, attribute=True)
    group.attrs.create("block", block, dtype=np.int64)
    hdf5.set_text(group, "content", content, attribute=True)
    hdf5.set_text(group, "metadata", metadata_hash(file, block, content), attribute=True)


def pieces(dataset: h5py.Dataset) -> Iterator[tuple[int, np.ndarray]]:
    for begin in range(0, dataset.shape[0], READ_VALUES):
        yield begin, dataset[begin:begin + READ_VALUES]


@dataclass(frozen=True)
class Damage:
    name: str
    block: int
    first: int
    last: int

    def __str__(self) -> str:
        return f"block {self.block} of /{self.name} (values {self.first} to {self.last})"


class Comparison:
    """The data of an open file as they are read, against its hashes; of a file without any nothing is wrong."""

    def __init__(self, file: h5py.File):
        self.path = file.filename
        self.damages: list[Damage] = []
        self.wrong: list[str] = []  # what is not a block
        self._hashes: dict[str, Hashes] = {}
        self._expected: dict[str, h5py.Dataset] = {}
        self._sizes = {name: file[name].shape[0] for name in names_in(file)}
        if "hashes" not in file:
            return
        self.block, self.content = self._open(file["hashes"])
        for name in self._sizes:
            if name in NAMES or f"hashes/{name}" in file:  # older releases wrote none of the tables
                self._expect(file, name)
        found = metadata_hash(file, self.block, self.content)
        if found != hdf5.as_text(file["hashes"].attrs.get("metadata", "")):
            self.wrong.append("sizes or attributes have changed")

    @property
    def exists(self) -> bool:
        return bool(self._hashes)

    @property
    def names(self) -> list[str]:
        return list(self._hashes)

    def _open(self, group: h5py.Group) -> tuple[int, str]:
        kind, block = hdf5.as_text(group.attrs.get("algorithm", "nothing")), group.attrs.get("block", 0)
        if kind != ALGORITHM or not SMALLEST_BLOCK <= int(block) <= LARGEST_BLOCK:
            raise common.wrong(self.path, f"{ALGORITHM} of blocks of {SMALLEST_BLOCK} to {LARGEST_BLOCK} values",
                               f"{kind} of {block}", "rewrite them: nanotron_verify.py --replace")
        return int(block), hdf5.as_text(group.attrs.get("content", ""))

    def _expect(self, file: h5py.File, name: str) -> None:
        blocks = -(-self._sizes[name] // self.block)
        if f"hashes/{name}" not in file or file[f"hashes/{name}"].shape != (blocks,):
            raise common.wrong(self.path, f"/hashes/{name} of {blocks} hashes", "none or another number",
                               "rewrite them: nanotron_verify.py --replace")
        self._hashes[name], self._expected[name] = Hashes(dtype_of(file, name), self.block), file[f"hashes/{name}"]

    def _compare(self, name: str, found: np.ndarray, begin: int) -> None:
        for at in np.flatnonzero(found != self._expected[name][begin:begin + found.size]):
            first = (begin + int(at)) * self.block
            last = min(first + self.block, self._sizes[name]) - 1
            self.damages.append(Damage(name, begin + int(at), first, last))

    def add(self, name: str, data: np.ndarray) -> np.ndarray:
        if name in self._hashes:
            begin = self._hashes[name].count
            self._compare(name, self._hashes[name].update(data), begin)
        return data

    def finish(self) -> list[str]:
        """All that is wrong, after all data were added."""
        for name, hashes in self._hashes.items():
            begin = hashes.count
            self._compare(name, hashes.finish(), begin)
        if self.exists and not self.damages:
            found = content_hash({name: hashes.digest() for name, hashes in self._hashes.items()})
            if found != self.content:
                self.wrong.append("the hash of all hashes differs")
        return [*map(str, self.damages), *self.wrong]


def compute(file: h5py.File, block: int = BLOCK) -> tuple[dict[str, np.ndarray], dict[str, int]]:
    """The hashes of the blocks of each dataset, and the hash of these."""
    found, digests = {}, {}
    for name in names_in(file):
        hashes = Hashes(dtype_of(file, name), block)
        parts = [hashes.update(data) for _, data in pieces(file[name])]
        found[name] = np.concatenate([*parts, hashes.finish()])
        digests[name] = hashes.digest()
    return found, digests


def put(file: h5py.File, found: dict[str, np.ndarray], digests: dict[str, int], block: int = BLOCK) -> None:
    """Writes /hashes, and replaces existing ones."""
    if "hashes" in file:
        del file["hashes"]
    group = file.create_group("hashes")
    for name, hashes in found.items():
        group.create_dataset(name, data=hashes, dtype="<u8")
    write_attributes(file, digests, block)


def add(path: Path, block: int = BLOCK) -> str:
    """Writes /hashes into a file after all was read. The hash of its content."""
    with h5py.File(path, "r") as file:
        found, digests = compute(file, block)
    with h5py.File(path, "r+") as file:
        put(file, found, digests, block)
    return content_hash(digests)
