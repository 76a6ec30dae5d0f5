"""Megatron-LM's indexed dataset: <prefix>.bin, ids one after another, and <prefix>.idx, little-endian:

    9 bytes   'MMIDIDX' and two zeros
    uint64    version, 1
    uint8     type of an id: 1 uint8, 2 int8, 3 int16, 4 int32, 5 int64, 6 float64, 7 float32, 8 uint16
    uint64    n sequences
    uint64    d, the documents and one
    int32 n   tokens of each sequence
    int64 n   its first byte in .bin
    int64 d   the first sequence of each document, from 0 to n
    int8  n   only in multimodal ones: what each sequence is
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from .common import wrong
from .foreign import PIECE, Piece, read_array

MAGIC = b"MMIDIDX\x00\x00"
HEADER = struct.Struct("<9sQBQQ")
CODES = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
SEQUENCES = 1 << 20  # entries of the index read at a time


class Megatron:
    documents, masked = True, False

    def __init__(self, prefix: Path):
        self.path, self.index = Path(f"{prefix}.bin"), Path(f"{prefix}.idx")
        for path in (self.path, self.index):
            if not path.is_file():
                raise wrong(path, f"{prefix}.bin and {prefix}.idx", "no such file",
                            "name the prefix of both, or give --format bare")
        size = self.index.stat().st_size
        with open(self.index, "rb") as file:
            header = file.read(HEADER.size)
        if not header.startswith(MAGIC) or len(header) < HEADER.size:
            raise wrong(f"{self.index}, byte 0", f"{MAGIC!r} and {HEADER.size} bytes of header",
                        f"{header[:9]!r}, in a file of {size} bytes",
                        "make it with Megatron-LM's preprocess_data.py (older kinds of index are not read)")
        _, version, code, self.sequences, self.entries = HEADER.unpack(header)
        if version != 1:
            raise wrong(f"{self.index}, byte 9", "the version 1", str(version), "rewrite it")
        if code not in CODES:
            raise wrong(f"{self.index}, byte 17", f"a type of integers, {', '.join(map(str, CODES))}", str(code),
                        "this is not a file of token ids, or it is damaged: rewrite it")
        self.dtype = np.dtype(CODES[code])
        needed = HEADER.size + 12 * self.sequences + 8 * self.entries
        if size not in (needed, needed + self.sequences):
            raise wrong(self.index, f"{needed} bytes for {self.sequences} sequences and {self.entries} places of "
                        "documents", f"{size} bytes", "download or recreate it")
        if size != needed and self.sequences:
            self._check_modes(needed)
        self._check_documents()
        self.tokens = sum(int(lengths.sum(dtype=np.int64)) for _, lengths, _ in self.blocks())

    def _check_modes(self, offset: int) -> None:
        for begin in range(0, self.sequences, SEQUENCES):
            modes = read_array(self.index, offset + begin, np.dtype("i1"), min(SEQUENCES, self.sequences - begin))
            if modes.any():
                at = begin + int(np.flatnonzero(modes)[0])
                raise wrong(f"{self.index}, byte {offset + at}", "sequences of text alone, of mode 0",
                            f"the mode {modes[at - begin]} of sequence {at}", "leave out what is not text")

    def _check_documents(self) -> None:
        last, offset = 0, self._documents_at
        for begin in range(0, self.entries, SEQUENCES):
            entries = read_array(self.index, offset + 8 * begin, np.dtype("<i8"), min(SEQUENCES, self.entries - begin))
            wrong_at = np.flatnonzero(np.diff(entries, prepend=last) < 0)
            if begin == 0 and entries[0] != 0:
                wrong_at = np.array([0])
            if wrong_at.size:
                at = int(wrong_at[0])
                raise wrong(f"{self.index}, byte {offset + 8 * (begin + at)}",
                            "first sequences of documents, from 0 on and rising", str(entries[at]), "rewrite it")
            last = int(entries[-1])
        if last != self.sequences:
            raise wrong(f"{self.index}, byte {offset + 8 * (self.entries - 1)}", f"documents up to sequence "
                        f"{self.sequences}", f"up to {last}", "rewrite it")

    @property
    def _documents_at(self) -> int:
        return HEADER.size + 12 * int(self.sequences)

    def blocks(self) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
        """(first sequence, lengths, first bytes), each inside .bin."""
        size = self.path.stat().st_size
        for begin in range(0, self.sequences, SEQUENCES):
            count = min(SEQUENCES, self.sequences - begin)
            lengths = read_array(self.index, HEADER.size + 4 * begin, np.dtype("<i4"), count)
            pointers = read_array(self.index, HEADER.size + 4 * self.sequences + 8 * begin, np.dtype("<i8"), count)
            ends = pointers + lengths.astype(np.int64) * self.dtype.itemsize
            bad = np.flatnonzero((lengths < 0) | (pointers < 0) | (ends > size))
            if bad.size:
                at = int(bad[0])
                raise wrong(f"{self.index}, sequence {begin + at}",
                            f"tokens inside of {self.path.name}, of {size} bytes",
                            f"{lengths[at]} tokens from byte {pointers[at]} on", "download or recreate both files")
            yield begin, lengths, pointers

    def place(self, token: int) -> str:
        return f"{self.path}, token {token} in the order of the sequences"

    def starts_in(self, begin: int, before: np.ndarray, entry: int) -> np.ndarray:
        """Starts of the documents, from `entry` on, whose first sequence is in a block: `before` has the tokens before
        each sequence of it and, last, after it."""
        found: list[np.ndarray] = []
        while entry < self.entries:
            count = min(SEQUENCES, self.entries - entry)
            first = read_array(self.index, self._documents_at + 8 * entry, np.dtype("<i8"), count) - begin
            inside = first[first < before.size - 1]
            found.append(before[inside])
            entry += inside.size
            if inside.size < count:
                break
        return np.concatenate([np.zeros(0, np.int64), *found])

    def pieces(self) -> Iterator[Piece]:
        entry = tokens = 0
        for begin, lengths, pointers in self.blocks():
            before = tokens + np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))
            starts = self.starts_in(begin, before, entry)
            entry += starts.size
            yield Piece(np.zeros(0, self.dtype), starts)
            yield from self._runs(lengths.astype(np.int64), pointers)
            tokens = int(before[-1])

    def _runs(self, lengths: np.ndarray, pointers: np.ndarray) -> Iterator[Piece]:
        """Sequences that follow one another in .bin are read together."""
        width = self.dtype.itemsize
        breaks = np.flatnonzero(pointers[1:] != pointers[:-1] + lengths[:-1] * width) + 1
        for first, last in zip([0, *breaks.tolist()], [*breaks.tolist(), lengths.size]):
            count, offset = int(lengths[first:last].sum()), int(pointers[first])
            for start in range(0, count, PIECE):
                yield Piece(read_array(self.path, offset + start * width, self.dtype, min(PIECE, count - start)))
