"""The tokens of a long text chunk by chunk, equal to those of the text encoded whole.

A tokenizer cannot be given a piece of a text alone: at its start it would put the marks of a beginning
(a prefix space, SentencePiece's '▁'), at both ends it would miss merges across them. So a chunk is
encoded with text on both sides, and the tokens between two cuts are kept. A cut is a place between two
tokens that a pure function of the text finds: around it the tokens of several windows agree, so it does
not matter where a window begins and ends. Where none is found (a token or a repeated pattern of many
KiB), the chunk extends to the next nominal end; memory is bounded by chunks and such runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, BinaryIO

from . import common, corpus

NEAR = 2048  # bytes on each side of a nominal end in the smallest window
WIDER = (0, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 233, 377, 610)  # a repeated pattern is out of step with some
CONTEXT = 2 * NEAR  # bytes on each side of a chunk


@dataclass(frozen=True)
class Cut:
    """`characters` after the byte `position`, where a character starts."""

    position: int
    characters: int


Token = tuple[int, int, int]  # start, end, id


class TextFile:
    """The first `size` bytes of an open file of UTF-8, without a byte order mark and without a last character that is
    cut in two."""

    def __init__(self, file: BinaryIO, size: int, total: int):
        self.file, self.size = file, size
        self.begin = min(corpus.begin_of_text(file), size)
        if size < total:
            self.size = self.align(size)

    def align(self, position: int) -> int:
        """The start of the character of the text that the byte at `position` is in."""
        if position <= self.begin:
            return self.begin
        low = max(0, position - 3)
        self.file.seek(low)
        data = self.file.read(position + 1 - low)
        if position != low + len(data) - 1:
            return position
        return low + corpus.character_start(data, position - low)

    def read(self, low: int, high: int) -> str:
        """Text of the bytes [low, high), both starts of characters."""
        self.file.seek(low)
        try:
            return self.file.read(high - low).decode("utf-8")
        except UnicodeDecodeError as error:
            raise corpus.wrong_bytes(self.file.name, error, low) from None

    def around(self, position: int, margin: int) -> tuple[int, int]:
        return (self.align(position - margin),
                self.align(position + margin) if position + margin < self.size else self.size)


def tokens_near(tokenizer: Any, text: TextFile, position: int, margin: int) -> tuple[list[Token], int, int]:
    """([(start, end, id)] relative to `position` in characters, characters before and after it that
    are far from a made-up end of text)."""
    low, high = text.around(position, margin)
    left, right = text.read(low, position), text.read(position, high)
    encoding = tokenizer.encode(left + right, add_special_tokens=False)
    tokens = [(start - len(left), end - len(left), token)
              for (start, end), token in zip(encoding.offsets, encoding.ids)]
    return (tokens, len(left) if low == text.begin else len(left) // 2,
            len(right) if high == text.size else len(right) // 2)


def find_cut(tokenizer: Any, text: TextFile, nominal: int) -> Cut | None:
    """The first token's start at or after the byte `nominal`; None where far text decides about it."""
    position = text.align(nominal)
    near, before, after = tokens_near(tokenizer, text, position, NEAR)

    def inside(tokens: list[Token]) -> list[Token]:
        return [token for token in tokens if -before <= token[0] < after]

    agreed = inside(near)
    for more in WIDER[1:]:
        if inside(tokens_near(tokenizer, text, position, NEAR + more)[0]) != agreed:
            return None
    reached = -before
    for start, end, _ in agreed:
        if start >= max(0, reached) and end > start:
            return Cut(position, start)
        reached = max(reached, end)
    return None


def token_at(encoding: Any, character: int, where: str) -> int:
    """The index of the token that starts at `character` of the encoded text."""
    index: int | None = encoding.char_to_token(character)
    good = index is not None and encoding.token_to_chars(index)[0] == character and \
        (index == 0 or encoding.token_to_chars(index - 1)[1] <= character)
    if index is None or not good:
        raise common.ToolError(f"{where}: the tokenizer makes other tokens here with more text on both sides; "
                               "expected them to depend on a few KiB; give a --chunk-mb larger than the file")
    return index


def encode_part(tokenizer: Any, text: TextFile, start: int, end: int, step: int, name: str) -> list[int]:
    """The tokens of the text that belong to the nominal bytes [start, end), `step` being their usual
    number: over all parts of a file, each token once."""
    first = last = None
    if start > 0 and (first := find_cut(tokenizer, text, start)) is None:
        return []  # an earlier part has gone on
    while end < text.size and (last := find_cut(tokenizer, text, end)) is None:
        end += step
    if start >= text.size:
        return []
    low = text.around(first.position, CONTEXT)[0] if first else text.begin
    high = text.around(last.position, CONTEXT)[1] if last else text.size
    inner_low, inner_high = first.position if first else text.begin, last.position if last else text.size
    left, inner = text.read(low, inner_low), text.read(inner_low, inner_high)
    encoding = tokenizer.encode(left + inner + text.read(inner_high, high), add_special_tokens=False)
    ids: list[int] = encoding.ids
    begin = token_at(encoding, len(left) + first.characters, f"{name}, byte {start}") if first else 0
    if last is None:
        return ids[begin:]
    stop = token_at(encoding, len(left) + len(inner) + last.characters, f"{name}, byte {end}")
    return ids[begin:stop]
