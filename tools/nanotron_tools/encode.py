"""Chunks and blocks of a corpus to tokens, in this process or in several, in the order of the corpus."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field, replace
from typing import Any, Optional

import numpy as np

from . import chat, common, corpus, stitch, token_file
from .corpus import Block, Chunk
from .tokenizers import ByteTokenizer, Tokenizer, tokenizer_from_recipe


@dataclass(frozen=True)
class Encoded:
    tokens: np.ndarray
    mask: np.ndarray | None
    starts: np.ndarray  # of documents in them
    bytes: int  # of the input
    path: str
    bad: list[str]  # records that were left out
    silent: int = 0  # conversations of which nothing counts in the loss
    roles: Counter[str] = field(default_factory=Counter)  # of these, how often each that no template knows
    left: Counter[str] = field(default_factory=Counter)  # what the template leaves out


@dataclass(frozen=True)
class Settings:
    """What decides, with the tokenizer, about the tokens of a corpus; and `step`, bytes of a chunk, which does not."""

    field: str
    chat: chat.Template | None
    ends: bool  # documents of chats end with the tokenizer's eos
    step: int
    skip_bad: int = 0  # records that may be left out


Part = tuple[np.ndarray, Optional[np.ndarray], bool, bool, bool]  # tokens, mask, starts a document, ends it, eos counts


@contextlib.contextmanager
def chats_of(block: Block, position: int) -> Iterator[None]:
    """What is wrong with a conversation is said with its place."""
    try:
        yield
    except chat.WrongChat as error:
        raise corpus.wrong_record(block, position, error.args[0], error.args[1], "fix or delete it") from None


class Encoder:
    def __init__(self, tokenizer: Tokenizer, settings: Settings):
        self.tokenizer, self.settings = tokenizer, settings
        self.chat = chat.ChatEncoder(settings.chat, tokenizer) if settings.chat else None

    def recipe(self) -> tuple[Any, Settings]:
        return self.tokenizer.recipe(), self.settings

    def encode(self, chunk: Chunk | Block) -> Encoded:
        if isinstance(chunk, Chunk) and not chunk.field:
            return self._document(chunk)
        block, bad = corpus.block_of(chunk) if isinstance(chunk, Chunk) else chunk, list[str]()
        encoded = self._joined(self._records(block, bad), block.bytes, block.path, bad)
        if self.chat is None:
            return encoded
        silent, roles, left = self.chat.take_silent()
        return replace(encoded, silent=silent, roles=roles, left=left)

    def _document(self, chunk: Chunk) -> Encoded:
        """A text that is one chunk is a record, which may be left out; of others a part is written already."""
        try:
            return self._joined(*self._text(chunk), chunk.path, [])
        except common.BadRecord as error:
            if not self.settings.skip_bad or (chunk.start, chunk.end) != (0, chunk.size):
                raise
            return self._joined([], chunk.size, chunk.path, [str(error)])

    def _text(self, chunk: Chunk) -> tuple[list[Part], int]:
        first, last = chunk.start == 0, chunk.end == chunk.size
        if isinstance(self.tokenizer, ByteTokenizer):
            data, _ = corpus.read_chunk(chunk)
            return [(self.tokenizer.encode(data), None, first, last, False)], len(data)
        with open(chunk.path, "rb") as file:
            whole_file = stitch.TextFile(file, chunk.size, os.fstat(file.fileno()).st_size)
            ids = stitch.encode_part(self.tokenizer.plain, whole_file, chunk.start, chunk.end, self.settings.step,
                                     chunk.path)
        return [(self.tokenizer.ids_of(ids), None, first, last, False)], chunk.end - chunk.start

    def _records(self, block: Block, bad: list[str]) -> Iterator[Part]:
        """Records that cannot be used are added to `bad`, where that is allowed."""
        for position, item in corpus.items_of(block):
            try:
                part = self._record(block, position, item)
            except common.BadRecord as error:
                if not self.settings.skip_bad:
                    raise
                bad.append(str(error))
                continue
            yield part

    def _record(self, block: Block, position: int, item: Any) -> Part:
        record = corpus.record_of(block, position, item)
        if self.chat is None:
            text = corpus.text_of(block, position, record, self.settings.field)
            return self.tokenizer.encode(text), None, True, True, False
        with chats_of(block, position):
            tokens, mask, ends = self.chat.encode(record)
        return tokens, mask, True, True, ends

    def _joined(self, parts: Iterable[Part], read: int, path: str, bad: list[str]) -> Encoded:
        dtype = token_file.token_dtype(self.tokenizer.vocab_size)
        bos = np.array([] if self.tokenizer.bos is None else [self.tokenizer.bos], dtype=dtype)
        has_eos = self.tokenizer.eos is not None and (self.chat is None or self.settings.ends)
        eos = np.array([self.tokenizer.eos] if has_eos else [], dtype=dtype)
        pieces, masks, starts, count = [np.zeros(0, dtype)], [np.zeros(0, np.uint8)], [], 0
        for tokens, mask, first, last, end_counts in parts:
            if first:
                starts.append(count)
                count += bos.size
                pieces.append(bos)
            pieces.append(tokens)
            count += tokens.size
            if last:
                count += eos.size
                pieces.append(eos)
            if mask is not None:
                masks += [np.zeros(bos.size, np.uint8), mask, np.full(eos.size, end_counts, np.uint8)]
        return Encoded(np.concatenate(pieces), np.concatenate(masks) if self.chat else None,
                       np.array(starts, dtype=np.int64), read, path, bad)


_encoder: Encoder


def start_worker(recipe: tuple[Any, Settings]) -> None:
    global _encoder
    _encoder = Encoder(tokenizer_from_recipe(recipe[0]), recipe[1])


def encode_in_worker(chunk: Chunk | Block) -> Encoded:
    return _encoder.encode(chunk)


class Pool:
    """Encodes in `workers` processes, or in this one. At most 4 chunks a worker are under way: so memory is bounded.

    `bad` has what is wrong with the records that were left out.
    """

    def __init__(self, encoder: Encoder, workers: int):
        self.encoder, self.workers, self.bad = encoder, workers, list[str]()
        self.pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), start_worker,
                                        (encoder.recipe(),)) if workers > 1 else None

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        if self.pool is not None:
            self.pool.shutdown(cancel_futures=True)

    def encode_all(self, chunks: Iterable[Chunk | Block]) -> Iterator[Encoded]:
        """In the order of the chunks. More bad records than may be are an error."""
        allowed = self.encoder.settings.skip_bad
        for encoded in self._encode_all(chunks):
            self.bad += encoded.bad
            if len(self.bad) > allowed:
                raise common.BadRecord(f"{self.bad[allowed]}\n  and {allowed} others: more than --skip-bad {allowed}")
            yield encoded

    def _encode_all(self, chunks: Iterable[Chunk | Block]) -> Iterator[Encoded]:
        if self.pool is None:
            yield from map(self.encoder.encode, chunks)
            return
        under_way: deque[Future[Encoded]] = deque()
        try:
            for chunk in chunks:
                under_way.append(self.pool.submit(encode_in_worker, chunk))
                if len(under_way) == 4 * self.workers:
                    yield under_way.popleft().result()
            while under_way:
                yield under_way.popleft().result()
        except BrokenProcessPool:
            raise common.ToolError(
                f"expected {self.workers} worker processes to the end, found that one was killed or could not start "
                "(the kernel kills some when memory runs out: dmesg); change: fewer --workers or a smaller --chunk-mb",
                common.EXIT_SYSTEM) from None
