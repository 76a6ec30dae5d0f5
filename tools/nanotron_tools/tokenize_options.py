"""The command line of nanotron_tokenize."""

from __future__ import annotations

import argparse
import datetime
import os
from pathlib import Path

from . import common, model_chat

MODEL = "model"  # of --chat: the template beside the tokenizer


def make_parser(doc: str | None) -> argparse.ArgumentParser:
    parser = common.parser(doc)
    parser.add_argument("inputs", nargs="*", help="text, JSON lines and arrays, CSV, Parquet, Arrow; folders")
    parser.add_argument("--output", "-o", type=Path, help="token file to write")
    parser.add_argument("--glob", action="append", metavar="PATTERN",
                        help="files to take from folders, may be repeated (default: all but cards of datasets)")
    parser.add_argument("--as-text", action="store_true", help="JSON and CSV are plain text, as source code is")
    parser.add_argument("--tokenizer", default="bytes", metavar="bytes|tokenizer.json")
    parser.add_argument("--train-bpe", type=int, metavar="N",
                        help="train a byte-level BPE of N tokens on the input and use it")
    parser.add_argument("--eos", metavar="TOKEN|none",
                        help="token that ends each document (default: the tokenizer's usual one)")
    parser.add_argument("--bos", metavar="TOKEN|none",
                        help="token that begins each document (default: none; with --chat llama3 its own)")
    parser.add_argument("--field", default="text", metavar="NAME", help="of JSON lines and rows")
    parser.add_argument("--parse-special", action="store_true",
                        help="names of special tokens in a text are these tokens (default: text)")
    parser.add_argument("--chat", metavar="TEMPLATE", nargs="?", const=MODEL,
                        help="chatml, llama3, concatenate, a turn of your own, or model (default): the model's own")
    parser.add_argument("--chat-date", metavar="YYYY-MM-DD", default=model_chat.DATE,
                        help=f"where the model's template asks for the date (default {model_chat.DATE})")
    parser.add_argument("--skip-bad", type=int, metavar="N", default=0,
                        help="leave out and list up to N records that cannot be read, in each process (default 0)")
    parser.add_argument("--max-bytes", type=int, metavar="N", help="stop after N bytes of input")
    parser.add_argument("--shuffle-seed", type=int, metavar="N", help="order the files at random")
    parser.add_argument("--workers", type=int, metavar="N",
                        help="processes (default: one per core; 1 for bytes, where sending the "
                        "result costs more than making it)")
    parser.add_argument("--chunk-mb", type=float, default=4.0, metavar="MB")
    parser.add_argument("--count", action="store_true", help="count documents and tokens, write nothing")
    parser.add_argument("--sample", type=float, metavar="SHARE", help="with --count: of a share of the chunks, 0 to 1")
    parser.add_argument("--sample-seed", type=int, default=0, metavar="N")
    parser.add_argument("--shards", type=Path, metavar="FOLDER", help="write a token file for each part of the input")
    parser.add_argument("--shard-mb", type=float, default=1024.0, metavar="MB", help="input of a shard (default 1024)")
    parser.add_argument("--rank", type=int, metavar="R", help="with --shards: which process (default: the launcher's)")
    parser.add_argument("--ranks", type=int, metavar="N", help="with --shards: how many (default: the launcher's)")
    parser.add_argument("--merge", type=Path, metavar="FOLDER", help="join the shards of a folder")
    parser.add_argument("--quiet", action="store_true")
    return parser


def parse(argv: list[str] | None, doc: str | None) -> argparse.Namespace:
    parser = make_parser(doc)
    options = parser.parse_args(argv)
    modes = [name for name in ("--count", "--shards", "--merge") if getattr(options, name[2:])]
    if len(modes) > 1:
        parser.error(f"{' and '.join(modes)}: expected one of them")
    mode = modes[0] if modes else ""
    if mode in ("", "--merge") and options.output is None:
        parser.error("the following arguments are required: --output/-o")
    if mode in ("--count", "--shards") and options.output is not None:
        parser.error(f"{mode} writes no --output; leave it out")
    if bool(options.inputs) == (mode == "--merge"):
        parser.error("--merge takes no inputs" if mode == "--merge" else "expected inputs: files or folders")
    if not options.field:
        parser.error("--field: expected a name")
    if options.skip_bad < 0:
        parser.error("--skip-bad: expected 0 or more")
    try:
        datetime.date.fromisoformat(options.chat_date)
    except ValueError as error:
        parser.error(f"--chat-date: {error}")
    for name in ("workers", "chunk_mb", "max_bytes", "shard_mb", "sample"):
        if (value := getattr(options, name)) is not None and value <= 0:
            parser.error(f"--{name.replace('_', '-')}: expected a positive number")
    if options.sample is not None and (mode != "--count" or options.sample > 1):
        parser.error("--sample: expected a share up to 1, with --count")
    if (options.rank is not None or options.ranks is not None) and mode != "--shards":
        parser.error("--rank and --ranks belong to --shards")
    if options.max_bytes is not None and mode:
        parser.error(f"--max-bytes does not go with {mode}")
    if options.train_bpe is not None and mode:
        parser.error(f"--train-bpe does not go with {mode}: train on a part of the corpus first, then give --tokenizer")
    if options.train_bpe is not None and options.tokenizer != "bytes":
        parser.error("--train-bpe makes a tokenizer of its own; leave --tokenizer out")
    plain = options.tokenizer == "bytes" and options.train_bpe is None
    if options.parse_special and (plain or options.chat):
        parser.error("--parse-special: bytes have no special tokens" if plain else
                     "--parse-special: with --chat those of the template are special, those in contents are text")
    if plain:
        check_names_for_bytes(options)
    if options.workers is None:
        options.workers = 1 if plain else len(os.sched_getaffinity(0))
    return options


def check_names_for_bytes(options: argparse.Namespace) -> None:
    for option, value in (("--eos", options.eos), ("--bos", options.bos)):
        if value not in (None, "none"):
            raise common.ToolError(f"{option}: bytes have no named tokens: expected none, found {value!r}; leave "
                                   "it out, or use --train-bpe or --tokenizer tokenizer.json", common.EXIT_USAGE)
