#!/usr/bin/env python3
"""Turns text into a token file for nanotron_hpc.

    nanotron_tokenize.py /usr/include --glob '*.h' --output tokens.h5
    nanotron_tokenize.py corpus/ more.jsonl --tokenizer tokenizer.json --output tokens.h5
    nanotron_tokenize.py corpus/ --train-bpe 8192 --output tokens.h5

Input: files, and folders that are searched for --glob. Each text file is one document, each line of
a .jsonl file too (its field --jsonl-field); files with NUL bytes are not text and are passed over.
Every document ends with the end-of-text token. Files come in sorted order, or with --shuffle-seed
in an order drawn from the seed and the names alone, so that a held-out tail looks like the rest.

Output, an HDF5 file that appears under its name only when it is complete:
    /tokens             uint16, or uint32 from a vocabulary of 65537
    /documents          uint64, where each document starts
    /vocabulary/bytes   uint8, the bytes of all tokens one after another
    /vocabulary/offsets uint64 (vocab_size + 1); token i is bytes[offsets[i] .. offsets[i+1]-1].
                        Special tokens and unused ids are empty.
    attributes          vocab_size, eos_token_id, tokenizer, tokenizer_sha256, unigram_entropy in
                        nats; group /provenance

--tokenizer bytes (default) needs no other package: 256 bytes and one end-of-text token. A Hugging
Face tokenizer.json needs the package `tokenizers`. Text is read in chunks of --chunk-mb that end at
a line end, so memory stays bounded; the result depends on the chunk size only where a tokenizer
joins characters across a line end, and never on the number of --workers.
"""

from __future__ import annotations

import argparse
import array
import functools
import hashlib
import json
import multiprocessing
import os
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import nanotron_checkpoint as checkpoint_file
import nanotron_common as common
import nanotron_token_file as token_file
from nanotron_tokenizers import (ByteTokenizer, HuggingFaceTokenizer, import_tokenizers,
                                 tokenizer_from_recipe)

BOUNDARY_SCAN = 1 << 20  # bytes searched for a line end behind a chunk's nominal end
COPY_TOKENS = 1 << 22


@dataclass(frozen=True)
class Chunk:
    """Bytes [start, end) of a file, both nominal: the worker moves them to line ends."""

    path: str
    start: int
    end: int
    size: int  # bytes of the file that are used
    field: str  # JSON field of a .jsonl file, '' for text


# ---------------------------------------------------------------------------------------------
# Which files, which chunks


def find_files(inputs: list[str], globs: list[str]) -> list[tuple[str, Path]]:
    """(name, path) of every text file, sorted by name, each file once."""
    found: dict[str, Path] = {}
    for item in inputs:
        root = Path(item)
        if root.is_file():
            found[str(root)] = root
        elif root.is_dir():
            for pattern in globs:
                for path in root.rglob(pattern):
                    if path.is_file():
                        found[str(path.relative_to(root))] = path
        else:
            raise common.ToolError(f"{item}: no such file or folder")
    seen, result = set(), []
    for name in sorted(found):
        status = found[name].stat()
        identity = (status.st_dev, status.st_ino)
        if status.st_size and identity not in seen and is_text(found[name]):
            seen.add(identity)
            result.append((name, found[name]))
    return result


def is_text(path: Path) -> bool:
    try:
        with open(path, "rb") as file:
            return b"\0" not in file.read(4096)
    except OSError as error:
        print(f"passed over: {error}", file=sys.stderr)
        return False


def order_files(files, seed):
    if seed is None:
        return files

    def key(item):
        return hashlib.blake2b(f"{seed}:{item[0]}".encode(), digest_size=16).digest()

    return sorted(files, key=key)


def make_chunks(files, chunk_bytes: int, max_bytes: int | None, field: str):
    """All chunks in document order; --max-bytes cuts the last file short."""
    left = max_bytes if max_bytes is not None else 1 << 62
    for _, path in files:
        size = min(path.stat().st_size, left)
        left -= size
        kind = field if path.suffix == ".jsonl" else ""
        for start in range(0, size, chunk_bytes):
            yield Chunk(str(path), start, min(start + chunk_bytes, size), size, kind)


def line_boundary(file, position: int, size: int, whole_lines: bool) -> int:
    """The place behind the first line end at or behind position-1; a pure function of the file."""
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
            cut = len(block) - 1
            while cut > len(block) - 4 and cut > 0 and block[cut] & 0xC0 == 0x80:
                cut -= 1
            return position - 1 + cut
        scanned += len(block)
    return size


def read_chunk(chunk: Chunk) -> tuple[bytes, bool, bool]:
    """(bytes, starts the file, ends the file)."""
    with open(chunk.path, "rb") as file:
        whole = bool(chunk.field)
        start = line_boundary(file, chunk.start, chunk.size, whole)
        end = max(start, line_boundary(file, chunk.end, chunk.size, whole))
        file.seek(start)
        data = file.read(end - start)
        last = chunk.end == chunk.size
        if whole and last and chunk.size < os.fstat(file.fileno()).st_size:
            data = data[:data.rfind(b"\n") + 1]  # --max-bytes cut a line in two
        return data, chunk.start == 0, last


# ---------------------------------------------------------------------------------------------
# Training and work of one process


def train_bpe(vocab_size: int, chunks, path: Path) -> str:
    """Trains a byte-level BPE tokenizer on the same text, saves it next to the output."""
    package = import_tokenizers()
    if vocab_size < 257:
        raise common.ToolError("--train-bpe: expected 257 or more tokens (256 bytes and an end of "
                           f"text), found {vocab_size}", common.EXIT_USAGE)
    tokenizer = package.Tokenizer(package.models.BPE())
    tokenizer.pre_tokenizer = package.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = package.decoders.ByteLevel()
    trainer = package.trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=["<|endoftext|>"], show_progress=False,
        initial_alphabet=sorted(package.pre_tokenizers.ByteLevel.alphabet()))

    def texts():
        for chunk in chunks:
            data, _, _ = read_chunk(chunk)
            for text in documents_of(data, chunk.field):
                yield text.decode("utf-8", "replace")

    tokenizer.train_from_iterator(texts(), trainer=trainer)
    text = tokenizer.to_str()
    checkpoint_file.write_atomically(path, text)
    return text


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


_tokenizer = None


def start_worker(recipe):
    global _tokenizer
    _tokenizer = tokenizer_from_recipe(recipe)


def encode_chunk(chunk: Chunk, tokenizer=None):
    """(tokens, starts of documents in them, bytes read) of one chunk."""
    tokenizer = tokenizer or _tokenizer
    data, first, last = read_chunk(chunk)
    pieces, starts, count = [], [], 0
    for text in documents_of(data, chunk.field):
        if chunk.field or first:
            starts.append(count)
        tokens = tokenizer.encode(text)
        pieces.append(tokens)
        count += tokens.size
        if tokenizer.eos is not None and (chunk.field or last):
            pieces.append(np.array([tokenizer.eos], dtype=tokens.dtype))
            count += 1
    empty = np.zeros(0, dtype=token_file.token_dtype(tokenizer.vocab_size))
    return (np.concatenate(pieces) if pieces else empty), starts, len(data)


def encode_all(chunks, tokenizer, workers: int):
    """Encoded chunks in order. At most 4 per worker are under way, which bounds the memory."""
    if workers <= 1:
        for chunk in chunks:
            yield encode_chunk(chunk, tokenizer)
        return
    room = threading.Semaphore(4 * workers)

    def throttled():
        for chunk in chunks:
            room.acquire()
            yield chunk

    context = multiprocessing.get_context("spawn")
    with context.Pool(workers, start_worker, (tokenizer.recipe(),)) as pool:
        for result in pool.imap(encode_chunk, throttled()):
            room.release()
            yield result


# ---------------------------------------------------------------------------------------------
# Output


@dataclass
class Totals:
    tokens: int
    bytes: int
    counts: np.ndarray
    documents: array.array


def spool(results, raw, tokenizer, progress) -> Totals:
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


def write_file(path: Path, raw_path: Path, totals: Totals, tokenizer, entropy, provenance):
    temporary = path.with_name(path.name + ".tmp")
    dtype = token_file.token_dtype(tokenizer.vocab_size)
    with checkpoint_file.h5py.File(temporary, "w", libver=("earliest", "v110")) as file, \
            open(raw_path, "rb") as raw:
        tokens = file.create_dataset("tokens", shape=(totals.tokens,), dtype=dtype)
        for start in range(0, totals.tokens, COPY_TOKENS):
            count = min(COPY_TOKENS, totals.tokens - start)
            tokens[start:start + count] = np.fromfile(raw, dtype=dtype, count=count)
        starts = np.frombuffer(totals.documents, dtype=np.uint64)
        file.create_dataset("documents", data=starts, dtype="<u8")
        token_file.write_vocabulary(file, tokenizer.vocabulary())
        token_file.write_token_attributes(file, vocab_size=tokenizer.vocab_size,
                                  eos_token_id=tokenizer.eos, tokenizer=tokenizer.name,
                                  entropy=entropy, provenance=provenance)
        if tokenizer.sha256:
            common.set_text(file, "tokenizer_sha256", tokenizer.sha256, attribute=True)
    with open(temporary, "rb+") as file:
        os.fsync(file.fileno())
    os.replace(temporary, path)


def progress_line(quiet: bool):
    begin, last = time.perf_counter(), [0.0]

    def show(totals: Totals):
        now = time.perf_counter()
        if not quiet and sys.stderr.isatty() and now - last[0] > 0.5:
            last[0] = now
            print(f"\r{totals.bytes / 1e6:10.1f} MB  {totals.tokens:>14,} tokens  "
                  f"{totals.tokens / (now - begin):>12,.0f} tokens/s", end="", file=sys.stderr)

    return show


def parse(argv):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("inputs", nargs="+", help="text files, .jsonl files, folders")
    parser.add_argument("--output", "-o", required=True, type=Path, help="token file to write")
    parser.add_argument("--glob", action="append", metavar="PATTERN",
                        help="files to take from folders; may be repeated (default '*')")
    parser.add_argument("--tokenizer", default="bytes", metavar="bytes|tokenizer.json")
    parser.add_argument("--train-bpe", type=int, metavar="N",
                        help="train a byte-level BPE of N tokens on the input and use it")
    parser.add_argument("--eos", metavar="TOKEN|none", help="end-of-text token of the tokenizer")
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
    if options.workers is None:
        plain = options.tokenizer == "bytes" and options.train_bpe is None
        options.workers = 1 if plain else len(os.sched_getaffinity(0))
    return options


def choose_tokenizer(options, chunks):
    if options.train_bpe is not None:
        path = options.output.with_suffix(".tokenizer.json")
        return HuggingFaceTokenizer(path.name, train_bpe(options.train_bpe, chunks(), path), None)
    if options.tokenizer == "bytes":
        return ByteTokenizer()
    path = Path(options.tokenizer)
    if path.is_dir():
        path = path / "tokenizer.json"
    if not path.is_file():
        raise common.ToolError(f"--tokenizer: expected 'bytes' or a tokenizer.json, found {path}",
                           common.EXIT_USAGE)
    return HuggingFaceTokenizer(path.name, path.read_text(encoding="utf-8"), options.eos)


def main(argv=None):
    options = parse(argv)
    files = order_files(find_files(options.inputs, options.glob or ["*"]), options.shuffle_seed)
    if not files:
        raise common.ToolError("no text files found in " + ", ".join(options.inputs))
    chunk_bytes = max(1, int(options.chunk_mb * 1e6))
    chunks = functools.partial(make_chunks, files, chunk_bytes, options.max_bytes,
                               options.jsonl_field)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    tokenizer = choose_tokenizer(options, chunks)
    raw_path = options.output.with_name(options.output.name + ".raw")
    begin = time.perf_counter()
    try:
        with open(raw_path, "wb") as raw:
            totals = spool(encode_all(chunks(), tokenizer, options.workers), raw, tokenizer,
                           progress_line(options.quiet))
        seconds = time.perf_counter() - begin
        if totals.tokens == 0:
            raise common.ToolError("the input holds no text")
        entropy = token_file.unigram_entropy(totals.counts)
        write_file(options.output, raw_path, totals, tokenizer, entropy,
                   common.tool_provenance("nanotron_tokenize"))
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


if __name__ == "__main__":
    sys.exit(common.run_main(main))
