"""Tokens that another program wrote, read piece by piece: what every format gives, and the formats without a header.

    .ds     Nanotron's and datatrove's: bare ids of 2 or 4 bytes; <name>.ds.index has where each document ends, in
            tokens (uint64), .ds.metadata two lines, 'tokenizer' or 'tokenizer|bytes of a token' and the number of
            tokens, .ds.loss a byte for each token, 1 where it counts
    bare    ids one after another, as nanoGPT's train.bin, or after a header of NumPy (.npy) or llm.c
    rows    lists of ids in the column input_ids of Parquet and Arrow files, as datasets of Hugging Face have them
    .h5     token files of nanotron_hpc

All numbers are little-endian.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import h5py
import numpy as np

from . import common, hdf5, kinds, token_hashes
from .common import wrong

PIECE = 1 << 22  # tokens read at a time
NO_STARTS = np.zeros(0, np.int64)
TYPES: dict[str, np.dtype] = {"uint16": np.dtype("<u2"), "uint32": np.dtype("<u4"), "int32": np.dtype("<i4"),
                              "int64": np.dtype("<i8")}
LLMC = {20240520: (1, TYPES["uint16"]), 20240801: (7, TYPES["uint32"])}  # magic -> version, type of an id
LLMC_HEADER = 1024


@dataclass(frozen=True)
class Piece:
    """`starts`: of documents, counted from the source's first token, rising; they may be ahead of the tokens."""

    tokens: np.ndarray
    starts: np.ndarray = field(default_factory=lambda: NO_STARTS)
    mask: np.ndarray | None = None


class Source(Protocol):
    @property
    def path(self) -> Path: ...
    @property
    def tokens(self) -> int: ...
    @property
    def documents(self) -> bool: ...
    @property
    def masked(self) -> bool: ...
    def pieces(self) -> Iterator[Piece]: ...
    def place(self, token: int) -> str: ...


def read_array(path: Path, offset: int, dtype: np.dtype, count: int) -> np.ndarray:
    """`count` values from the byte `offset` on; a file that ends before is an error."""
    with open(path, "rb") as file:
        file.seek(offset)
        data = np.fromfile(file, dtype=dtype, count=count)
    if data.size != count:
        raise wrong(f"{path}, byte {offset}", f"{count * dtype.itemsize} bytes",
                    f"{data.size * dtype.itemsize}: the file ends there", "download or recreate it")
    return data


def after_each(tokens: np.ndarray, eos: int, position: int) -> np.ndarray:
    """Where documents begin if each ends with `eos`."""
    starts = np.flatnonzero(tokens == eos) + 1 + position
    return np.concatenate(([0], starts)) if position == 0 else starts


@dataclass(frozen=True)
class IdFile:
    """A file of ids alone; documents by an index of their ends, or by the id that ends each, or unknown."""

    path: Path
    dtype: np.dtype
    eos: int | None = None
    index: Path | None = None
    loss: Path | None = None
    header: int = 0  # bytes before the first id

    @property
    def tokens(self) -> int:
        return (self.path.stat().st_size - self.header) // self.dtype.itemsize

    @property
    def documents(self) -> bool:
        return self.index is not None or self.eos is not None

    @property
    def masked(self) -> bool:
        return self.loss is not None

    def place(self, token: int) -> str:
        return f"{self.path}, byte {self.header + token * self.dtype.itemsize} (token {token})"

    def index_starts(self) -> Iterator[np.ndarray]:
        if self.index is None:
            return
        count = self.index.stat().st_size // 8
        last = 0
        for begin in range(0, count, PIECE):
            ends = read_array(self.index, begin * 8, np.dtype("<u8"), min(PIECE, count - begin)).astype(np.int64)
            falls = np.flatnonzero(np.diff(ends, prepend=last) < 0)
            if falls.size:
                at = int(falls[0])
                raise wrong(f"{self.index}, byte {8 * (begin + at)}", "increasing ends of documents",
                            f"{ends[at]} after {ends[at - 1] if at else last}", "rewrite the file")
            yield np.concatenate(([last], ends[:-1]))
            last = int(ends[-1])

    def pieces(self) -> Iterator[Piece]:
        empty = np.zeros(0, self.dtype)
        for starts in self.index_starts():
            yield Piece(empty, starts)
        for begin in range(0, self.tokens, PIECE):
            count = min(PIECE, self.tokens - begin)
            tokens = read_array(self.path, self.header + begin * self.dtype.itemsize, self.dtype, count)
            starts = NO_STARTS if self.index or self.eos is None else after_each(tokens, self.eos, begin)
            mask = None if self.loss is None else read_array(self.loss, begin, np.dtype(np.uint8), count) != 0
            yield Piece(tokens, starts, mask)


def bare_file(path: Path, dtype: np.dtype | None, eos: int | None) -> IdFile:
    """Only ids, of `dtype`, or ids after a header that gives their type."""
    with open(path, "rb") as file:
        begin = file.read(16)
    header = numpy_header(path) if begin.startswith(b"\x93NUMPY") else llmc_header(path)
    if header is None:
        if other := kinds.known_by_magic(begin):
            raise wrong(path, "ids one after another, or a header of NumPy or llm.c", f"another kind: {other.name}",
                        "give --format, or another name")
        if dtype is None:
            raise common.ToolError(f"{path}: expected --token-type for bare ids, found none; give the type that the "
                                   "other program wrote", common.EXIT_USAGE)
        return id_file(path, dtype, eos)
    if dtype is not None and dtype != header[0]:
        raise wrong("--token-type", f"{header[0].name}, as the header of {path} says", dtype.name, "leave it out",
                    common.EXIT_USAGE)
    return IdFile(path, header[0], eos, header=header[1])


def numpy_header(path: Path) -> tuple[np.dtype, int]:
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise wrong(path, "a NumPy array", str(error), "download or recreate it") from None
    if array.dtype.kind not in "iu" or array.dtype.byteorder == ">" or not array.flags.c_contiguous:
        raise wrong(path, "an array of little-endian integers, row after row", f"{array.dtype}, {array.shape}",
                    "write the ids as numpy.uint16 or uint32")
    if path.stat().st_size != array.offset + array.nbytes:
        raise wrong(path, f"{array.offset + array.nbytes} bytes, as its header says with the shape {array.shape}",
                    f"{path.stat().st_size}", "download or recreate it")
    return array.dtype, array.offset


def llmc_header(path: Path) -> tuple[np.dtype, int] | None:
    """llm.c's 256 numbers of int32: magic, version, tokens; None where there is no such magic."""
    if path.stat().st_size < LLMC_HEADER:
        return None
    magic, version, tokens = read_array(path, 0, np.dtype("<i4"), 3).tolist()
    if magic not in LLMC:
        return None
    expected, dtype = LLMC[magic]
    found = (path.stat().st_size - LLMC_HEADER) / dtype.itemsize
    if version != expected or tokens != found:
        raise wrong(path, f"llm.c's version {expected} and {tokens} tokens, as its header says",
                    f"version {version} and {found:g}", "download or recreate it")
    return dtype, LLMC_HEADER


def id_file(path: Path, dtype: np.dtype, eos: int | None) -> IdFile:
    size = path.stat().st_size
    if size % dtype.itemsize:
        raise wrong(path, f"ids of {dtype.itemsize} bytes", f"{size} bytes, which {dtype.itemsize} does not divide",
                    "give the --token-type that was written, or fetch the file again")
    return IdFile(path, dtype, eos)


def metadata_of(path: Path) -> tuple[int | None, int | None]:
    """(bytes of a token, tokens) as far as <path>.metadata says them."""
    metadata = path.with_name(path.name + ".metadata")
    if not metadata.is_file():
        return None, None
    lines = metadata.read_text(encoding="utf-8", errors="replace").splitlines()
    name, _, size = lines[0].rpartition("|") if lines else ("", "", "")
    if len(lines) < 2 or not lines[1].strip().isdigit():
        raise wrong(f"{metadata}, line 2", "the number of tokens", repr(lines[1:2]), "rewrite or delete it")
    return (int(size) if name and size in ("2", "4") else None), int(lines[1])


def type_of(path: Path, width: int | None, tokens: int | None) -> np.dtype:
    """uint16 or uint32, by the bytes of a token or by their number."""
    size = path.stat().st_size
    if width is None and tokens:
        width = next((width for width in (2, 4) if size == tokens * width), None)
        if width is None:
            raise wrong(path, f"{tokens} tokens of 2 or 4 bytes, as the files beside it say", f"{size} bytes",
                        "download or recreate the files")
    if width is None and size:
        raise wrong(path, "to know how many bytes an id has", f"neither {path.name}.index nor {path.name}.metadata",
                    "give --token-type uint16 or uint32")
    return TYPES["uint32" if width == 4 else "uint16"]


def ds_file(path: Path, dtype: np.dtype | None, eos: int | None) -> IdFile:
    """A .ds file and what lies beside it. The size of an id is what --token-type, .metadata and .index agree on."""
    index, loss = (path.with_name(path.name + suffix) for suffix in (".index", ".loss"))
    bytes_said, tokens = metadata_of(path)
    if index.is_file():
        if index.stat().st_size % 8:
            raise wrong(index, "ends of documents of 8 bytes", f"{index.stat().st_size} bytes", "rewrite it")
        count = index.stat().st_size // 8
        last = int(read_array(index, 8 * (count - 1), np.dtype("<u8"), 1)[0]) if count else 0
        if tokens is not None and tokens != last:
            raise wrong(index, f"{tokens} tokens, as {path.name}.metadata says", f"documents that end at {last}",
                        "rewrite the files")
        tokens = last
    dtype = dtype or type_of(path, bytes_said, tokens)
    made = id_file(path, dtype, eos)
    if tokens is not None and tokens != made.tokens:
        raise wrong(path, f"{tokens} tokens, as the files beside it say", f"{made.tokens} of {dtype.itemsize} bytes",
                    "give the --token-type that was written, or rewrite the files")
    if loss.is_file() and loss.stat().st_size != made.tokens:
        raise wrong(loss, f"{made.tokens} bytes, one for each token", f"{loss.stat().st_size}", "rewrite it")
    return IdFile(path, dtype, eos, index if index.is_file() else None, loss if loss.is_file() else None)


def proof(file: h5py.File, name: str) -> str:
    """An attribute of /provenance, '' where there is none."""
    attributes = file["provenance"].attrs if "provenance" in file else {}
    return hdf5.as_text(attributes[name]) if name in attributes else ""


class Digests:
    """Hashes of the data of a token file, as they are read, against those that the file has: of its blocks, and of a
    shard of each dataset."""

    def __init__(self, file: h5py.File):
        self.expected = {name: proof(file, f"{name}_blake2b") for name in ("tokens", "documents", "loss_mask")
                         if name in file and proof(file, f"{name}_blake2b")}
        self.found = {name: hashlib.blake2b(digest_size=16) for name in self.expected}
        self.blocks = token_hashes.Comparison(file)

    def add(self, name: str, data: np.ndarray) -> np.ndarray:
        if name in self.found:
            self.found[name].update(np.ascontiguousarray(data).data.cast("B"))
        return self.blocks.add(name, data)

    def wrong(self) -> list[str]:
        return [*(f"/{name}" for name, digest in self.found.items() if digest.hexdigest() != self.expected[name]),
                *self.blocks.finish()[:8]]


class TokenFile:
    """A token file of nanotron_hpc."""

    def __init__(self, path: Path):
        self.path = path
        try:
            with h5py.File(path, "r") as file:
                if "tokens" not in file or file["tokens"].ndim != 1 or file["tokens"].dtype.kind not in "iu":
                    raise wrong(path, "a token file, with a one-dimensional /tokens of integers", ", ".join(file) or
                                "nothing", "name a file that nanotron-tokenize wrote")
                self.tokens: int = file["tokens"].shape[0]
                self.documents, self.masked = "documents" in file, "loss_mask" in file
                if self.masked and file["loss_mask"].shape != (self.tokens,):
                    raise wrong(path, f"/loss_mask of {self.tokens} values", f"the shape {file['loss_mask'].shape}",
                                "rewrite the file")
                self.attributes = {name: hdf5.as_text(value) if isinstance(value, bytes) else value
                                   for name, value in file.attrs.items()}
        except OSError as error:
            raise wrong(path, "an HDF5 file", str(error), "download or recreate it") from None

    def place(self, token: int) -> str:
        return f"{self.path}, /tokens[{token}]"

    def pieces(self) -> Iterator[Piece]:
        with h5py.File(self.path, "r") as file:
            digests = Digests(file)
            empty = np.zeros(0, file["tokens"].dtype)
            for begin in range(0, file["documents"].shape[0] if self.documents else 0, PIECE):
                starts = digests.add("documents", file["documents"][begin:begin + PIECE])
                yield Piece(empty, starts.astype(np.int64))
            for begin in range(0, self.tokens, PIECE):
                part = slice(begin, begin + PIECE)
                mask = digests.add("loss_mask", file["loss_mask"][part]) if self.masked else None
                yield Piece(digests.add("tokens", file["tokens"][part]), NO_STARTS, mask)
            if bad := digests.wrong():
                raise wrong(self.path, "the data that were written", f"another hash of {', '.join(bad)}",
                            "delete the file and recreate it")
