"""Turns text into a token file for nanotron_hpc.

    nanotron-tokenize /usr/include --glob '*.h' --output tokens.h5
    nanotron-tokenize corpus/ more.jsonl --tokenizer tokenizer.json --output tokens.h5
    nanotron-tokenize corpus/ --train-bpe 8192 --output tokens.h5

Input: files, and folders that are searched for --glob. Each text file is one document, each line of
a .jsonl file too (its field --jsonl-field); files with NUL bytes are not text and are passed over.
Every file is used once, however often it is reached. Files come sorted by their names below the
folders given, those of equal names in the order of the folders on the command line; or with
--shuffle-seed in an order drawn from the seed and the names alone (of equal names, also which one it
is).

Every document ends with the end-of-text token (--eos; none: without) and, where --bos is given,
begins with that one. --train-bpe trains tokens of these names (--eos: <|endoftext|> by default).

Output, an HDF5 file that appears under its name only when it is complete:
    /tokens             uint16, or uint32 from a vocabulary of 65537
    /documents          uint64, where each document starts
    /vocabulary/bytes   uint8, the bytes of all tokens one after another
    /vocabulary/offsets uint64 (vocab_size + 1); token i is bytes[offsets[i] .. offsets[i+1]-1].
                        Special tokens and unused ids are empty.
    attributes          vocab_size, eos_token_id, bos_token_id, tokenizer, tokenizer_sha256,
                        unigram_entropy in nats; group /provenance

tokenizer_sha256 is a hash of what decides about ids: equal tokenizers have equal ones, whatever the
name or the formatting of their files.

--tokenizer bytes (default) needs no other package: 256 bytes and one end-of-text token. A Hugging
Face tokenizer.json needs the package `tokenizers`. Text is read in chunks of --chunk-mb, so memory
stays bounded. A document's tokens are those of encoding it whole, whatever the size of the chunks and
the number of --workers: chunks meet where tokens do not depend on text further away, and grow where
there is no such place near (many KiB of one character). --train-bpe learns from chunks that end at
line ends: what it trains, not how it encodes, depends on their size.

Exit codes: 0; 2 or 64 a wrong command line; 65 texts or a tokenizer that cannot be used; 71 the system failed, as where
a worker is killed because memory ran out.
"""

from __future__ import annotations

import argparse
import array
import collections
import functools
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import h5py
import numpy as np

from . import checkpoint as checkpoint_file
from . import common, corpus, hdf5, stitch, token_file
from .corpus import Chunk
from .tokenizers import ByteTokenizer, HuggingFaceTokenizer, Tokenizer, import_tokenizers, tokenizer_from_recipe

COPY_TOKENS = 1 << 22
DEFAULT_EOS = "<|endoftext|>"
Encoded = tuple[np.ndarray, list[int], int]  # tokens, starts of documents in them, bytes read


# ---------------------------------------------------------------------------------------------
# Training and work of one process


def train_bpe(vocab_size: int, special: list[str], chunks: Iterable[Chunk], path: Path) -> str:
    """Trains a byte-level BPE tokenizer on the same text, saves it next to the output."""
    package = import_tokenizers()
    least = 256 + len(special)
    if vocab_size < least:
        raise common.ToolError(f"--train-bpe: expected {least} or more tokens (256 bytes and {len(special)} special), "
                               f"found {vocab_size}", common.EXIT_USAGE)
    tokenizer = package.Tokenizer(package.models.BPE())
    tokenizer.pre_tokenizer = package.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = package.decoders.ByteLevel()
    trainer = package.trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=special, show_progress=False,
        initial_alphabet=sorted(package.pre_tokenizers.ByteLevel.alphabet()))

    def texts() -> Iterator[str]:
        for chunk in chunks:
            data, _, _ = corpus.read_chunk(chunk)
            for text in corpus.documents_of(data, chunk.field):
                yield text.decode("utf-8", "replace")

    tokenizer.train_from_iterator(texts(), trainer=trainer)
    text: str = tokenizer.to_str()
    checkpoint_file.write_atomically(path, text)
    return text


_tokenizer: Any = None
_step = 0


def start_worker(recipe: Any, step: int) -> None:
    global _tokenizer, _step
    _tokenizer, _step = tokenizer_from_recipe(recipe), step


def encode_in_worker(chunk: Chunk) -> Encoded:
    return encode_chunk(chunk, _tokenizer, _step)


def encode_texts(chunk: Chunk, tokenizer: Tokenizer, step: int) -> tuple[list[tuple[np.ndarray, bool, bool]], int]:
    """(tokens of a document or of a part of one, starts it, ends it) of a chunk, and bytes read."""
    if chunk.field or isinstance(tokenizer, ByteTokenizer):
        data, first, last = corpus.read_chunk(chunk)
        texts = corpus.documents_of(data, chunk.field)
        whole = bool(chunk.field)
        return [(tokenizer.encode(text), whole or first, whole or last) for text in texts], len(data)
    with open(chunk.path, "rb") as file:
        whole_file = stitch.TextFile(file, chunk.size, os.fstat(file.fileno()).st_size)
        ids = stitch.encode_part(tokenizer.tokenizer, whole_file, chunk.start, chunk.end, step, chunk.path)
    part = (tokenizer.ids_of(ids), chunk.start == 0, chunk.end == chunk.size)
    return [part], chunk.end - chunk.start


def encode_chunk(chunk: Chunk, tokenizer: Tokenizer, step: int) -> Encoded:
    """(tokens, starts of documents in them, bytes read) of one chunk; `step`: bytes of a full one."""
    dtype = token_file.token_dtype(tokenizer.vocab_size)
    pieces: list[np.ndarray] = []
    starts: list[int] = []
    count = 0

    def mark(token: int | None) -> np.ndarray:
        return np.array([] if token is None else [token], dtype=dtype)

    parts, read = encode_texts(chunk, tokenizer, step)
    for tokens, first, last in parts:
        if first:
            starts.append(count)
        piece = np.concatenate((mark(tokenizer.bos if first else None), tokens, mark(tokenizer.eos if last else None)))
        pieces.append(piece)
        count += piece.size
    return np.concatenate([mark(None), *pieces]), starts, read


def encode_all(chunks: Iterable[Chunk], tokenizer: Tokenizer, workers: int, step: int) -> Iterator[Encoded]:
    """Encoded chunks in order. At most 4 per worker are under way, which bounds the memory."""
    if workers <= 1:
        for chunk in chunks:
            yield encode_chunk(chunk, tokenizer, step)
        return
    pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), start_worker, (tokenizer.recipe(), step))
    under_way: collections.deque[Future[Encoded]] = collections.deque()
    try:
        for chunk in chunks:
            under_way.append(pool.submit(encode_in_worker, chunk))
            if len(under_way) == 4 * workers:
                yield under_way.popleft().result()
        while under_way:
            yield under_way.popleft().result()
    except BrokenProcessPool:
        raise common.ToolError(
            f"expected {workers} worker processes to the end, found that one was killed or could not start (the kernel "
            "does so where memory runs out: dmesg); change: fewer --workers or a smaller --chunk-mb",
            common.EXIT_SYSTEM) from None
    finally:
        pool.shutdown(cancel_futures=True)


# ---------------------------------------------------------------------------------------------
# Output


@dataclass
class Totals:
    tokens: int
    bytes: int
    counts: np.ndarray
    documents: array.array[int]


def spool(results: Iterable[Encoded], raw: BinaryIO, tokenizer: Tokenizer,
          progress: Callable[[Totals], None]) -> Totals:
    """Writes the tokens to the plain file `raw`: their number is known only at the end."""
    totals = Totals(0, 0, np.zeros(tokenizer.vocab_size, np.int64), array.array("Q"))
    for tokens, starts, read in results:
        tokens.tofile(raw)
        totals.counts += np.bincount(tokens, minlength=tokenizer.vocab_size)
        totals.documents.extend(totals.tokens + start for start in starts)
        totals.tokens += tokens.size
        totals.bytes += read
        progress(totals)
    return totals


def write_file(path: Path, raw_path: Path, totals: Totals, tokenizer: Tokenizer, entropy: float,
               provenance: dict[str, str]) -> None:
    temporary = path.with_name(path.name + ".tmp")
    dtype = token_file.token_dtype(tokenizer.vocab_size)
    with h5py.File(temporary, "w", libver=("earliest", "v110")) as file, \
            open(raw_path, "rb") as raw:
        tokens = file.create_dataset("tokens", shape=(totals.tokens,), dtype=dtype)
        for start in range(0, totals.tokens, COPY_TOKENS):
            count = min(COPY_TOKENS, totals.tokens - start)
            tokens[start:start + count] = np.fromfile(raw, dtype=dtype, count=count)
        starts = np.frombuffer(totals.documents, dtype=np.uint64)
        file.create_dataset("documents", data=starts, dtype="<u8")
        token_file.write_vocabulary(file, tokenizer.vocabulary())
        token_file.write_token_attributes(
            file, vocab_size=tokenizer.vocab_size, tokenizer=tokenizer.name, tokenizer_sha256=tokenizer.sha256,
            special={"eos_token_id": tokenizer.eos, "bos_token_id": tokenizer.bos}, entropy=entropy,
            provenance=provenance)
    with open(temporary, "rb+") as written:
        os.fsync(written.fileno())
    os.replace(temporary, path)


def progress_line(quiet: bool) -> Callable[[Totals], None]:
    begin, last = time.perf_counter(), [0.0]

    def show(totals: Totals) -> None:
        now = time.perf_counter()
        if not quiet and sys.stderr.isatty() and now - last[0] > 0.5:
            last[0] = now
            print(f"\r{totals.bytes / 1e6:10.1f} MB  {totals.tokens:>14,} tokens  "
                  f"{totals.tokens / (now - begin):>12,.0f} tokens/s", end="", file=sys.stderr)

    return show


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = common.parser(__doc__)
    parser.add_argument("inputs", nargs="+", help="text files, .jsonl files, folders")
    parser.add_argument("--output", "-o", required=True, type=Path, help="token file to write")
    parser.add_argument("--glob", action="append", metavar="PATTERN",
                        help="files to take from folders; may be repeated (default '*')")
    parser.add_argument("--tokenizer", default="bytes", metavar="bytes|tokenizer.json")
    parser.add_argument("--train-bpe", type=int, metavar="N",
                        help="train a byte-level BPE of N tokens on the input and use it")
    parser.add_argument("--eos", metavar="TOKEN|none",
                        help="token that ends each document (default: the tokenizer's usual one)")
    parser.add_argument("--bos", metavar="TOKEN|none",
                        help="token that begins each document (default: none)")
    parser.add_argument("--jsonl-field", default="text", metavar="NAME")
    parser.add_argument("--max-bytes", type=int, metavar="N", help="stop after N bytes of input")
    parser.add_argument("--shuffle-seed", type=int, metavar="N", help="order the files at random")
    parser.add_argument("--workers", type=int, metavar="N",
                        help="processes (default: one per core; 1 for bytes, where sending the "
                        "result costs more than making it)")
    parser.add_argument("--chunk-mb", type=float, default=4.0, metavar="MB")
    parser.add_argument("--quiet", action="store_true")
    options = parser.parse_args(argv)
    for name in ("workers", "chunk_mb"):
        if (value := getattr(options, name)) is not None and value <= 0:
            parser.error(f"--{name.replace('_', '-')}: expected a positive number")
    if options.max_bytes is not None and options.max_bytes <= 0:
        parser.error("--max-bytes: expected a positive number")
    if options.train_bpe is not None and options.tokenizer != "bytes":
        parser.error("--train-bpe makes a tokenizer of its own; leave --tokenizer out")
    if options.tokenizer == "bytes" and options.train_bpe is None:
        check_names_for_bytes(options)
    if options.workers is None:
        plain = options.tokenizer == "bytes" and options.train_bpe is None
        options.workers = 1 if plain else len(os.sched_getaffinity(0))
    return options


def check_names_for_bytes(options: argparse.Namespace) -> None:
    for option, value in (("--eos", options.eos), ("--bos", options.bos)):
        if value not in (None, "none"):
            raise common.ToolError(f"{option}: bytes have no named tokens: expected none, found {value!r}; leave "
                                   "it out, or use --train-bpe or --tokenizer tokenizer.json", common.EXIT_USAGE)


def choose_tokenizer(options: argparse.Namespace, chunks: Callable[[], Iterable[Chunk]]) -> Tokenizer:
    if options.train_bpe is not None:
        path, eos, bos = options.output.with_suffix(".tokenizer.json"), options.eos or DEFAULT_EOS, options.bos
        special = list(dict.fromkeys(name for name in (eos, bos) if name not in (None, "none")))
        return HuggingFaceTokenizer(path.name, train_bpe(options.train_bpe, special, chunks(), path), eos, bos)
    if options.tokenizer == "bytes":
        return ByteTokenizer(options.eos != "none")
    path = Path(options.tokenizer)
    if path.is_dir():
        path = path / "tokenizer.json"
    if not path.is_file():
        raise common.ToolError(f"--tokenizer: expected 'bytes' or a tokenizer.json, found {path}",
                               common.EXIT_USAGE)
    return HuggingFaceTokenizer(path.name, path.read_text(encoding="utf-8"), options.eos, options.bos)


def main(argv: list[str] | None = None) -> int:
    options = parse(argv)
    files = corpus.order_files(corpus.find_files(options.inputs, options.glob or ["*"]), options.shuffle_seed)
    if not files:
        raise common.ToolError("no text files found in " + ", ".join(options.inputs))
    chunk_bytes = max(1, int(options.chunk_mb * 1e6))
    chunks = functools.partial(corpus.make_chunks, files, chunk_bytes, options.max_bytes,
                               options.jsonl_field)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    tokenizer = choose_tokenizer(options, chunks)
    raw_path = options.output.with_name(options.output.name + ".raw")
    begin = time.perf_counter()
    try:
        with open(raw_path, "wb") as raw:
            totals = spool(encode_all(chunks(), tokenizer, options.workers, chunk_bytes), raw, tokenizer,
                           progress_line(options.quiet))
        seconds = time.perf_counter() - begin
        if totals.tokens == 0:
            raise common.ToolError("the input holds no text")
        entropy = token_file.unigram_entropy(totals.counts)
        write_file(options.output, raw_path, totals, tokenizer, entropy,
                   hdf5.tool_provenance("nanotron_tokenize"))
    finally:
        raw_path.unlink(missing_ok=True)
        options.output.with_name(options.output.name + ".tmp").unlink(missing_ok=True)
    if not options.quiet:
        if sys.stderr.isatty():
            print(file=sys.stderr)
        print(f"{options.output}: {totals.tokens:,} tokens of {totals.bytes:,} bytes in "
              f"{len(totals.documents):,} documents, vocabulary {tokenizer.vocab_size} "
              f"({tokenizer.name})")
        print(f"{totals.tokens / max(seconds, 1e-9):,.0f} tokens/s with {options.workers} "
              f"worker{'s' * (options.workers > 1)}; unigram entropy {entropy:.6f} nats "
              "(the loss of the best model without context)")
    return 0
