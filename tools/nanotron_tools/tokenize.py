"""Turns text into a token file for nanotron_hpc.

    nanotron-tokenize /usr/include --glob '*.h' --output tokens.h5
    nanotron-tokenize corpus/ more.jsonl.zst --tokenizer tokenizer.json --output tokens.h5
    nanotron-tokenize corpus/ --train-bpe 8192 --output tokens.h5
    nanotron-tokenize talks.jsonl --chat chatml --tokenizer tokenizer.json --output tokens.h5
    nanotron-tokenize corpus/ --tokenizer tokenizer.json --count --sample 0.01
    nanotron-tokenize corpus/ --tokenizer tokenizer.json --shards parts/     (by srun or mpirun, too)
    nanotron-tokenize --merge parts/ --output tokens.h5

Input: files, and folders that are searched for --glob. A document is a text file, a line of JSON, an element
of a JSON array, or a row of CSV, Parquet or Arrow (its field or column --field). Files may be compressed
with gzip, zstandard, bzip2 or xz. The kind of a file is detected from its content. A file given by name is
read or refused; in folders, hidden files, dataset cards and unreadable kinds are skipped and reported.
Each file is used once. Files are sorted by their path below the given folder (equal paths: in the order of
the folders on the command line), or shuffled with --shuffle-seed, in an order that depends only on the seed
and the paths.

The name of a special token in a text, such as <s> in HTML, is text; with --parse-special it is the token.

Every document ends with the end-of-text token (--eos; 'none' disables it) and, if --bos is given, begins
with that token. --train-bpe adds special tokens of these names (--eos: <|endoftext|> by default).

--chat: each line or row is a conversation, {"messages": [{"role", "content"}, ...]}, ShareGPT's
{"conversations": [{"from", "value"}, ...]} or {"prompt", "completion"}. Only answers count in the loss:
contents of the role assistant, completions, and the token that ends them. Templates: chatml, llama3,
concatenate (only prompt and completion), or a custom turn such as '### {role}:\\n{content}\\n'. With chatml
and llama3 a document ends with its last turn, unless --eos names a token to follow it. --chat without a
value, or --chat model, uses the model's own template, from tokenizer_config.json or chat_template.jinja
next to the tokenizer.

Output, an HDF5 file that appears under its name only when it is complete:
    /tokens             uint16, or uint32 from a vocabulary of 65537
    /documents          uint64, where each document starts
    /loss_mask          with --chat: uint8, 1 where the loss of predicting this token counts
    /vocabulary/bytes   uint8, the bytes of all tokens one after another
    /vocabulary/offsets uint64 (vocab_size + 1); token i is bytes[offsets[i] .. offsets[i+1]-1].
                        Special tokens and unused ids are empty.
    attributes          vocab_size, eos_token_id, bos_token_id, tokenizer, tokenizer_sha256,
                        unigram_entropy in nats, chat_template; group /provenance

tokenizer_sha256 is a hash of everything that determines ids: equal tokenizers have equal hashes, whatever
the name or formatting of their files.

--tokenizer bytes (default) needs no other package: 256 bytes and one end-of-text token. A Hugging
Face tokenizer.json needs the package `tokenizers`. Text is read in chunks of --chunk-mb, so memory
stays bounded. The tokens of a document do not depend on the chunk size or on --workers: chunks are split
where tokens do not depend on distant text, and extended if there is no such position nearby (many KiB of
one character). --train-bpe learns from chunks that end at line ends: the trained tokenizer depends on their
size, its encoding does not.

--shards: token files of about --shard-mb of input each, in a folder, for any number of processes. Each
process makes the shards of its rank (from the launcher, or --rank and --ranks). Complete shards of the same
texts and settings are skipped, so the same command continues after it was killed. --merge joins the shards:
/tokens has the bytes that one process would have written.

--count: counts documents, bytes and tokens, and writes nothing. With --sample SHARE it reads only a share of
the chunks, and prints the error of the estimate.

Exit codes: 0 done; 2 or 64 wrong command line; 65 unusable texts or tokenizer; 71 system failure, such as a
worker killed because memory ran out, or a missing package.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from . import chat, common, corpus, count, encode, hdf5, inputs, join, model_chat, shards, tokenize_options
from . import checkpoint as checkpoint_file
from .corpus import Block, Chunk, Span
from .encode import Encoder, Pool, Settings
from .token_writer import TokenWriter
from .tokenizers import (
    ByteTokenizer,
    HuggingFaceTokenizer,
    Tokenizer,
    import_tokenizers,
    load_tokenizer,
    say_bos,
    special_names,
)

DEFAULT_EOS = "<|endoftext|>"
CHANGE = "\n  change:"  # of an error, after what was found
PROGRAM = "nanotron_tokenize"


def train_bpe(vocab_size: int, special: list[str], texts: Iterable[str], path: Path) -> str:
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
    tokenizer.train_from_iterator(texts, trainer=trainer)
    made: str = tokenizer.to_str()
    path.parent.mkdir(parents=True, exist_ok=True)
    checkpoint_file.write_atomically(path, made)
    return made


def texts_of(chunks: Iterable[Chunk | Block], field: str, template: chat.Template | None,
             skip_bad: int) -> Iterator[str]:
    """Chunks of texts, texts of records, or contents of conversations."""
    for chunk in chunks:
        if isinstance(chunk, Chunk) and not chunk.field:
            try:
                yield corpus.read_text(chunk)
            except common.BadRecord:
                if not skip_bad:
                    raise
            continue
        block = corpus.block_of(chunk) if isinstance(chunk, Chunk) else chunk
        for position, item in corpus.items_of(block):
            try:
                record = corpus.record_of(block, position, item)
                if template is None:
                    yield corpus.text_of(block, position, record, field).decode("utf-8")
                    continue
                with encode.chats_of(block, position):
                    yield from chat.texts_of(record, template)
            except common.BadRecord:  # counted where the records are encoded
                if not skip_bad:
                    raise


def progress_line(quiet: bool) -> Callable[[TokenWriter], None]:
    begin, last = time.perf_counter(), [0.0]

    def show(writer: TokenWriter) -> None:
        now = time.perf_counter()
        if not quiet and sys.stderr.isatty() and now - last[0] > 0.5:
            last[0] = now
            print(f"\r{writer.documents:>12,} documents  {writer.tokens:>14,} tokens  "
                  f"{writer.tokens / (now - begin):>12,.0f} tokens/s", end="", file=sys.stderr)

    return show


def choose_tokenizer(options: argparse.Namespace, template: chat.Template | None,
                     texts: Callable[[], Iterable[str]]) -> tuple[Tokenizer, chat.Template | None]:
    """The tokenizer, and the template with its special tokens."""
    if options.tokenizer == "bytes" and options.train_bpe is None:
        return ByteTokenizer(options.eos != "none"), template.resolved(()) if template else None
    bos = options.bos or (template.bos if template else None)
    if options.train_bpe is not None:
        path = options.output.with_suffix(".tokenizer.json")
        trained = template.trained if isinstance(template, chat.Turns) else []
        template = template.resolved(trained) if template else None
        eos = options.eos or (template.end if template else None) or DEFAULT_EOS
        wanted = [*trained, *(name for name in (eos, bos) if name not in (None, "none"))]
        name, text = path.name, train_bpe(options.train_bpe, list(dict.fromkeys(wanted)), texts(), path)
    else:
        name, text = load_tokenizer(Path(options.tokenizer))
        template = template.resolved(special_names(common.from_json(text))) if template else None
        eos = options.eos or (template.end if template else None)
    tokenizer = HuggingFaceTokenizer(name, text, eos, bos, options.parse_special)
    if template is None:
        say_bos(tokenizer, options.bos)
    elif isinstance(template, model_chat.ModelTemplate) and options.bos and template.begins_with(options.bos):
        raise common.wrong("--bos", f"none: the model's chat template itself begins with {options.bos}", options.bos,
                           "leave it out: conversations would begin with two", common.EXIT_USAGE)
    return tokenizer, template


def template_of(options: argparse.Namespace) -> chat.Template | None:
    if options.chat is None:
        return None
    if options.chat != tokenize_options.MODEL:
        return chat.turns_of(options.chat)
    found = None if options.tokenizer == "bytes" else model_chat.read(Path(options.tokenizer), options.chat_date)
    if found is None:
        raise common.wrong("--chat model", "a --tokenizer with a chat template beside it (tokenizer_config.json or "
                           "chat_template.jinja)", f"none beside {options.tokenizer}",
                           f"fetch these files, or give --chat {', '.join(chat.TEMPLATES)} or a turn of your own",
                           common.EXIT_USAGE)
    if found.uses_date() and not options.quiet:
        print(f"the model's chat template has a date: it is {options.chat_date} in all conversations (--chat-date)",
              file=sys.stderr)
    return found


def attributes_of(tokenizer: Tokenizer, provenance: dict[str, str]) -> dict[str, Any]:
    return {"vocab_size": tokenizer.vocab_size, "tokenizer": tokenizer.name, "tokenizer_sha256": tokenizer.sha256,
            "special": {"eos_token_id": tokenizer.eos, "bos_token_id": tokenizer.bos}, "provenance": provenance}


def write_tokens(output: Path, pool: Pool, chunks: Iterable[Chunk | Block], progress: Callable[[TokenWriter], None],
                 tally: inputs.Tally, shard: shards.Shard | None = None) -> tuple[TokenWriter, int]:
    """The token file of the chunks, or of a shard with its proofs, and the bytes that were read."""
    tokenizer, template = pool.encoder.tokenizer, pool.encoder.settings.chat
    read = 0
    with TokenWriter(output, tokenizer.vocab_size, masked=template is not None, digest=shard is not None) as writer:
        proofs, times, left = {}, [], len(pool.bad)
        if shard is not None:
            times = shards.times_of(shard.spans)
            proofs = {"shard_key": shard.key, "input_blake2b": shards.hash_of_texts(shard.spans)}
        for encoded in pool.encode_all(chunks):
            writer.append(encoded.tokens, encoded.starts, encoded.mask)
            read += encoded.bytes
            tally.add(encoded)
            progress(writer)
        if writer.tokens == 0 and shard is None:
            raise common.ToolError("the input holds no text")
        tally.check_answers()
        if shard is not None and times != shards.times_of(shard.spans):
            raise common.ToolError(f"{shard.path}: expected texts that do not change, found that one was modified "
                                   "meanwhile; start again when they are complete")
        if shard is not None:
            proofs[shards.LEFT_OUT] = str(len(pool.bad) - left)
        writer.finish(attributes_of(tokenizer, {**hdf5.tool_provenance(PROGRAM), **proofs}), tokenizer.vocabulary(),
                      template.turn if template else None)
    return writer, read


def report(options: argparse.Namespace, output: Path, writer: TokenWriter, read: int, seconds: float,
           tokenizer: Tokenizer, tally: inputs.Tally) -> None:
    if options.quiet:
        return
    if sys.stderr.isatty():
        print(file=sys.stderr)
    print("\n".join(tally.lines()))
    print(f"{output}: {writer.tokens:,} tokens of {read:,} bytes in {writer.documents:,} documents, "
          f"vocabulary {tokenizer.vocab_size} ({tokenizer.name})")
    if options.chat:
        print(f"{writer.counted:,} tokens count in the loss ({100 * writer.counted / max(1, writer.tokens):.1f} %)")
    print(f"{writer.tokens / max(seconds, 1e-9):,.0f} tokens/s with {options.workers} "
          f"worker{'s' * (options.workers > 1)}; unigram entropy {writer.entropy():.6f} nats "
          "(the loss of the best model without context)")


def make_shards(options: argparse.Namespace, pool: Pool, spans: list[Span], tally: inputs.Tally) -> None:
    place = shards.place_of(options.rank, options.ranks, os.environ)
    for name in options.inputs:
        if Path(name).is_dir() and options.shards.resolve().is_relative_to(Path(name).resolve()):
            raise common.wrong("--shards", "a folder outside of the input", f"{options.shards} in {name}",
                               "give another one, so that it is not an input itself", common.EXIT_USAGE)
    planned = shards.plan(options.shards, spans, max(1, int(options.shard_mb * 1e6)), pool.encoder.tokenizer,
                          pool.encoder.settings)
    mine = planned[place.rank::place.ranks]
    options.shards.mkdir(parents=True, exist_ok=True)
    if place.rank == 0:
        shards.write_plan(options.shards, planned)
    if not options.quiet:
        print(f"rank {place.rank} of {place.ranks} ({place.source}): {len(mine)} of {len(planned)} shards", flush=True)
    done = 0
    for shard in mine:
        if shards.is_done(shard):
            done += 1
            if left := shards.left_out(shard):
                print(f"{shard.path}: {left:,} records were left out when it was made", file=sys.stderr)
            continue
        begin = time.perf_counter()
        chunks = corpus.make_chunks(shard.spans, pool.encoder.settings.step, None, pool.encoder.settings.field)
        writer, read = write_tokens(shard.path, pool, chunks, progress_line(options.quiet), tally, shard)
        if not options.quiet:
            print(f"{shard.path}: {writer.tokens:,} tokens of {read:,} bytes in {writer.documents:,} documents, "
                  f"{writer.tokens / max(time.perf_counter() - begin, 1e-9):,.0f} tokens/s", flush=True)
    if not options.quiet:
        print("\n".join([*tally.lines(), f"rank {place.rank}: {len(mine) - done} shards made, {done} already existed"]))


def merge(options: argparse.Namespace) -> None:
    paths = shards.check_keys(options.merge)
    writer = join.join_token_files(options.output, paths, hdf5.tool_provenance(PROGRAM), progress_line(options.quiet))
    if not options.quiet:
        print(f"{options.output}: {writer.tokens:,} tokens in {writer.documents:,} documents, of {len(paths)} shards")


def main(argv: list[str] | None = None) -> int:
    options = tokenize_options.parse(argv, __doc__)
    if options.merge:
        merge(options)
        return 0
    template = template_of(options)
    field = corpus.CHATS if template else options.field
    found = inputs.find_files(options.inputs, options.glob, options.as_text, chat.FIELDS if template else (field,))
    files = inputs.order_files(found.files, options.shuffle_seed)
    if not files:
        raise common.ToolError("\n  ".join(["no text files found in " + ", ".join(options.inputs),
                                           *inputs.describe(found.passed)]))
    if not options.quiet and found.passed:
        print("\n".join(inputs.describe(found.passed)), file=sys.stderr)
    if template and (plain := [str(file.path) for file in files if file.kind.name == "text"]):
        raise common.ToolError(f"{plain[0]}: expected JSON lines or rows with --chat\n  found:  a file of text\n"
                               "  change: leave it out, as by --glob '*.jsonl'")
    step, spans = max(1, int(options.chunk_mb * 1e6)), corpus.spans_of(files)

    def chunks() -> Iterator[Chunk | Block]:
        return corpus.make_chunks(spans, step, options.max_bytes, field)

    def texts() -> Iterator[str]:
        return texts_of(chunks(), field, template, options.skip_bad)

    tokenizer, resolved = choose_tokenizer(options, template, texts)
    ends = resolved is None or resolved.end is None or (options.eos not in (None, "none", resolved.end))
    settings, tally = Settings(field, resolved, ends, step, options.skip_bad), inputs.Tally(found)
    with Pool(Encoder(tokenizer, settings), options.workers) as pool:
        if options.count:
            counted = count.count(pool, spans, step, field, options.sample or 1.0, options.sample_seed)
            print("\n".join(count.lines(counted, options.sample_seed)))
        elif options.shards:
            make_shards(options, pool, spans, tally)
        else:
            begin = time.perf_counter()
            writer, read = write_tokens(options.output, pool, chunks(), progress_line(options.quiet), tally)
            report(options, options.output, writer, read, time.perf_counter() - begin, tokenizer, tally)
        for told in tally.silent_lines():
            print(told, file=sys.stderr)
        for told in pool.bad:
            print(f"left out: {' '.join(told.partition(CHANGE)[0].split())}", file=sys.stderr)
        if pool.bad:
            print(f"{len(pool.bad)} records left out (--skip-bad {options.skip_bad})", file=sys.stderr)
    return 0
