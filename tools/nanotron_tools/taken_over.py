"""Checkpoints of other training programs: what their readers and writers share.

A tensor of theirs lies in pieces (ranks of tensor parallelism, of ZeRO) and may hold several of ours (query, key and
value in one). A reader says for each piece which part of the whole it is, and for each part of the whole where it
belongs; everything moves in blocks of st.PIECE_BYTES.
"""

from __future__ import annotations

import contextlib
import math
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from . import common, hdf5
from . import safetensors as st
from .model_sizes import ModelSizes

FLOATS = ("F32", "BF16", "F16", "F64")


@dataclass(frozen=True)
class Part:
    """Rows [begin, end) of a whole tensor are the rows from `row` on of a dataset, or of one of its layers."""

    begin: int
    end: int
    dataset: str
    index: tuple[int, ...] = ()
    row: int = 0


@dataclass(frozen=True)
class Piece:
    """Elements that one file holds: rows [row, row + n) and columns [column, column + m) of the whole, from row `first`
    of the stored matrix on. Vectors are matrices with one column."""

    stored: st.StoredTensor
    row: int
    rows: int
    column: int = 0
    columns: int = 1
    first: int = 0  # row of what is stored
    begin: int = 0  # its column

    @property
    def end(self) -> int:
        return self.row + self.rows


@dataclass(frozen=True)
class Slice:
    """A rectangle of a rank's shard and the same one of the whole tensor, vectors with one column:
    (first row, first column) of both, rows, columns."""

    local: tuple[int, int]
    whole: tuple[int, int]
    rows: int
    columns: int


@dataclass
class Filled:
    """Elements written to each dataset, to find what is missing or written twice."""

    counts: dict[str, int] = field(default_factory=dict)

    def add(self, name: str, count: int) -> None:
        self.counts[name] = self.counts.get(name, 0) + count

    def check(self, shapes: dict[str, tuple[int, ...]], what: str, where: object) -> None:
        for name, shape in shapes.items():
            count, wanted = self.counts.get(name, 0), math.prod(shape)
            if count != wanted:
                raise common.wrong(f"{where}, {what}", f"{wanted} elements for {name.replace('/', '.')}", f"{count}",
                                   "copy the whole folder: shards are missing or belong to another run")


def as_floats(stored: st.StoredTensor, block: np.ndarray) -> np.ndarray:
    if stored.dtype == "BF16":
        return st.bf16_to_fp32(block)
    return block.astype(np.float32) if stored.dtype == "F16" else block


def elements(stored: st.StoredTensor) -> np.ndarray:
    """As they lie in the file, unread."""
    if stored.dtype not in st.STORED:
        raise common.wrong(stored.path, f"numbers of type {', '.join(FLOATS)}", stored.dtype,
                           "save the weights and the optimizer in one of these types")
    return np.memmap(stored.path, st.STORED[stored.dtype], "r", stored.offset, stored.shape or (1,))


def as_matrix(stored: st.StoredTensor, columns: int) -> np.ndarray:
    return elements(stored).reshape(-1, columns)


def finite(block: np.ndarray, stored: st.StoredTensor, what: str) -> np.ndarray:
    if not np.isfinite(block).all():
        raise common.wrong(f"{stored.path}, {what}", "finite numbers", "infinite ones or NaN",
                           "take an earlier checkpoint")
    return block


def _blocks(pieces: Iterable[Piece], parts: Sequence[Part]) -> Iterator[tuple[Piece, Part, int, np.ndarray]]:
    """Elements as they are stored, and the first row of their part."""
    for piece in pieces:
        matrix = as_matrix(piece.stored, _width(piece.stored))
        for part in parts:
            begin, end = max(piece.row, part.begin), min(piece.end, part.end)
            step = max(1, st.PIECE_BYTES // (8 * piece.columns))
            for row in range(begin, end, step):
                stop = min(end, row + step)
                local = piece.first + row - piece.row
                block = matrix[local:local + stop - row, piece.begin:piece.begin + piece.columns]
                yield piece, part, part.row + row - part.begin, np.ascontiguousarray(block)


def place(pieces: Iterable[Piece], parts: Sequence[Part], dataset: Callable[[str], h5py.Dataset], filled: Filled,
          what: str) -> None:
    """Writes every element of the pieces to the dataset of its part."""
    for piece, part, row, block in _blocks(pieces, parts):
        values = finite(as_floats(piece.stored, block), piece.stored, what)
        target = dataset(part.dataset)
        where = _place(target, part, row, piece, len(values))
        target[where] = values[:, 0] if len(where) == len(part.index) + 1 else values
        filled.add(part.dataset, values.size)


def check_rounded(pieces: Iterable[Piece], parts: Sequence[Part], dataset: Callable[[str], h5py.Dataset],
                  what: str) -> None:
    """common.ToolError unless the pieces are what the datasets have, rounded to the type of the pieces."""
    for piece, part, row, block in _blocks(pieces, parts):
        target = dataset(part.dataset)
        if not is_copy_of(block, piece.stored.dtype, target[_place(target, part, row, piece, len(block))]):
            raise common.wrong(f"{piece.stored.path}, {what}", "the fp32 copies of the optimizer, rounded",
                               "other weights", "copy all files of one checkpoint")


def is_copy_of(weights: np.ndarray, stored: str, master: np.ndarray) -> bool:
    """Whether the model's weights, as they are stored, are these master weights rounded."""
    master = np.ascontiguousarray(master, np.float32).reshape(weights.shape)
    if stored == "BF16":
        return bool(np.array_equal(st.fp32_to_bf16(master), weights))
    return bool(np.array_equal(master.astype(weights.dtype), weights, equal_nan=True))


def _width(stored: st.StoredTensor) -> int:
    return math.prod(stored.shape[1:])


def _place(target: h5py.Dataset, part: Part, row: int, piece: Piece, rows: int) -> tuple[int | slice, ...]:
    """Of a block of a piece, from the first row of its part on."""
    columns = slice(piece.column, piece.column + piece.columns)
    is_vector = target.ndim == len(part.index) + 1
    return (*part.index, slice(row, row + rows), *(() if is_vector else (columns,)))


def rectangles(stored: st.StoredTensor, begin: int, width: int) -> list[tuple[int, int, st.StoredTensor]]:
    """A stretch of a shard's elements, row after row from element `begin` on, as ZeRO divides it, as matrices: the
    first row, the first column and the elements of each."""
    found = []
    at, end = begin, begin + math.prod(stored.shape)
    while at < end:
        row, column = divmod(at, width)
        count = min(end - at, width - column) if column or end - at < width else (end - at) // width * width
        shape = (count // width, width) if column == 0 and count >= width else (1, count)
        offset = stored.offset + (at - begin) * st.BYTES_OF[stored.dtype]
        found.append((row, column, st.StoredTensor(stored.path, stored.dtype, shape, offset)))
        at += count
    return found


def pieces_of(row: int, column: int, stored: st.StoredTensor, slices: Iterable[Slice]) -> Iterable[Piece]:
    """What of a matrix at (row, column) of a rank's shard lies where in the whole tensor."""
    rows, columns = stored.shape
    for each in slices:
        top, left = max(row, each.local[0]), max(column, each.local[1])
        height = min(row + rows, each.local[0] + each.rows) - top
        width = min(column + columns, each.local[1] + each.columns) - left
        if height > 0 and width > 0:
            yield Piece(stored, each.whole[0] + top - each.local[0], height, each.whole[1] + left - each.local[1],
                        width, top - row, left - column)


# ---------------------------------------------------------------------------------------------
# The deck


def deck_text(groups: dict[str, dict[str, Any]], comments: Sequence[str] = ()) -> str:
    """Groups of a deck, without those that are empty; None leaves a key out."""
    lines = [f"! {line}".rstrip() for line in comments]
    for name, values in groups.items():
        said = {key: value for key, value in values.items() if value is not None}
        if said:
            lines += [f"&{name}", *(f"  {key:<20} = {_value(value)}" for key, value in said.items()), "/"]
    return "\n".join(lines) + "\n"


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return ".true." if value else ".false."
    return "'" + value.replace("'", "''") + "'" if isinstance(value, str) else repr(value)


# ---------------------------------------------------------------------------------------------
# Writing


def check_divides(where: object, sizes: ModelSizes, tp: int) -> None:
    """What both programs divide evenly over ranks of tensor parallelism."""
    for what, value in (("query heads", sizes.num_attention_heads), ("key and value heads", sizes.num_key_value_heads),
                        ("rows of the feed-forward network", sizes.intermediate_size),
                        ("words of the vocabulary", sizes.vocab_size)):
        require_divides(where, what, value, "--tp", tp)


def require_divides(where: object, what: str, value: int, option: str, by: int) -> None:
    if by < 1 or value % by:
        raise common.wrong(where, f"{what} that divide by {option} {by}", str(value), f"give another {option}",
                           common.EXIT_USAGE)


def deck_in(file: h5py.File, given: str | None, where: object, beside: str) -> str:
    """The text of the deck in a checkpoint, or of the file that was given; beside: a file that may have it."""
    text = hdf5.as_text(file["deck"][()]) if "deck" in file else ""
    if given:
        try:
            text = Path(given).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise common.ToolError(f"{given}: cannot be read ({error})") from None
    if not text.strip():
        raise common.wrong(where, "a deck in the checkpoint", "none, since no run has written it",
                           f"give --deck FILE, for example the {beside} beside it", common.EXIT_USAGE)
    return text


@contextlib.contextmanager
def new_folder(folder: Path, overwrite: bool) -> Iterator[Path]:
    """A folder to write into, which becomes `folder` if the work comes to its end; else it is gone."""
    if folder.exists() and not overwrite:
        raise common.ToolError(f"{folder}: exists already; --overwrite replaces it")
    folder.parent.mkdir(parents=True, exist_ok=True)
    made = folder.with_name(folder.name + ".tmp")
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir()
    try:
        yield made
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)
        raise
    shutil.rmtree(folder, ignore_errors=True)
    made.rename(folder)


@dataclass
class Left:
    """What could not be taken over, for people."""

    lines: list[str] = field(default_factory=list)

    def say(self, what: str, why: str) -> None:
        self.lines.append(f"{what}: {why}")

    def text(self) -> list[str]:
        return ["not taken over:", *(f"  {line}" for line in self.lines)] if self.lines else \
            ["everything was taken over"]
