"""Makes a token file for nanotron_hpc from tokens that another program wrote.

    nanotron-import megatron/my_text_document --tokenizer tokenizer.json --output tokens.h5
    nanotron-import datatrove/ --tokenizer tokenizer.json --output tokens.h5
    nanotron-import train.bin --format bare --token-type uint16 --vocab-size 50304 --output tokens.h5
    nanotron-import data.parquet --tokenizer tokenizer.json --output tokens.h5
    nanotron-import a.h5 b.h5 --output tokens.h5

Formats, detected from the names of the inputs or set by --format; several inputs are joined in the given order:
    megatron  <prefix>.bin and .idx of Megatron-LM's preprocess_data.py: give the prefix or either file
    ds        .ds files of Nanotron and datatrove, or folders of them (sorted by name), with .ds.index (documents),
              .ds.metadata and .ds.loss (a loss mask) if they exist
    bare      plain ids of --token-type, such as nanoGPT's train.bin; or ids after a header of NumPy (.npy) or
              llm.c, which has the type
    rows      Parquet and Arrow files, or folders of them, with a column input_ids, one document per row;
              attention_mask 0: padding; labels -100: ids that do not count in the loss
    token-file  .h5 files of nanotron-tokenize or of this tool, of one tokenizer, are joined

The tokens are copied unchanged. Document boundaries are taken from the index, or from --eos-id, the id that
ends each document; documents without tokens are left out. Without either the file has no /documents, and
document_mask cannot be used. --tokenizer supplies the size, text and hash of the vocabulary. Without it the
size is --vocab-size, or else the largest id plus one (which reads everything twice). Every id is checked.

Memory is bounded for any size of the inputs. The output appears under its name only when it is complete.
Exit codes: 0 done; 2 or 64 wrong command line; 65 unusable files; 71 system failure.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from . import common, foreign, hdf5, id_rows, inputs, join, kinds
from .foreign import Source
from .megatron import Megatron
from .token_writer import TokenWriter
from .tokenize import progress_line
from .tokenizers import HuggingFaceTokenizer, load_tokenizer

PROGRAM = "nanotron_import"
ROWS = (kinds.PARQUET.name, kinds.ARROW.name, kinds.ARROW_STREAM.name)
FORMATS = ("megatron", "ds", "bare", "rows", "token-file")


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = common.parser(__doc__)
    parser.add_argument("inputs", nargs="+", help="files, prefixes or folders")
    parser.add_argument("--output", "-o", required=True, type=Path, help="token file to write")
    parser.add_argument("--format", choices=FORMATS, help="of all inputs (default: by their names)")
    parser.add_argument("--tokenizer", type=Path, metavar="tokenizer.json", help="that made the tokens")
    parser.add_argument("--eos", metavar="TOKEN|none",
                        help="its token that ends a text (default: its usual one); for the attribute alone")
    parser.add_argument("--vocab-size", type=int, metavar="N", help="ids are below it")
    parser.add_argument("--eos-id", type=int, metavar="ID", help="the id that ends documents")
    parser.add_argument("--token-type", choices=list(foreign.TYPES), help="of bare ids and of .ds files")
    parser.add_argument("--quiet", action="store_true")
    options = parser.parse_args(argv)
    for name in ("vocab_size", "eos_id"):
        if (value := getattr(options, name)) is not None and value < (name == "vocab_size"):
            parser.error(f"--{name.replace('_', '-')}: expected a number above {-(name == 'eos_id')}")
    if options.eos and not options.tokenizer:
        parser.error("--eos names a token of --tokenizer; without one give --eos-id")
    return options


def format_of(name: str) -> str:
    path = Path(name)
    if path.suffix == ".ds" or (path.is_dir() and any(path.rglob("*.ds"))):
        return "ds"
    if path.is_dir():
        return "rows"
    if path.suffix == ".h5":
        return "token-file"
    if prefix_of(name).with_name(prefix_of(name).name + ".idx").is_file():
        return "megatron"
    if path.is_file() and path.stat().st_size:
        kind = kinds.sniff(path, path.stat().st_size).name
        if kind in ("NumPy array", "llm.c tokens"):
            return "bare"
        if kind in ROWS:
            return "rows"
    raise common.wrong(name, "a .ds file or a folder of them, a .h5 file, the prefix of .bin and .idx, Parquet, Arrow, "
                       "NumPy or llm.c",
                       "none of them" if path.exists() else "no such file", "give --format, or another name")


def prefix_of(name: str) -> Path:
    path = Path(name)
    return path.with_suffix("") if path.suffix in (".bin", ".idx") else path


def ds_paths(name: str) -> list[Path]:
    path = Path(name)
    if not path.is_dir():
        return [path]
    if not (found := sorted(path.rglob("*.ds"))):
        raise common.wrong(name, "a folder with .ds files", "none in it", "name another one")
    return found


def row_paths(name: str) -> list[Path]:
    if not Path(name).is_dir():
        return [Path(name)]
    if not (found := [file.path for file in inputs.find_files([name]).files if file.kind.name in ROWS]):
        raise common.wrong(name, "a folder with .ds, Parquet or Arrow files", "none in it", "name another one")
    return found


def sources_of(name: str, kind: str, options: argparse.Namespace) -> Iterator[Source]:
    dtype = foreign.TYPES[options.token_type] if options.token_type else None
    if kind == "megatron":
        if options.token_type:
            raise common.ToolError("--token-type: the .idx file has the type; leave it out", common.EXIT_USAGE)
        yield Megatron(prefix_of(name))
        return
    paths = ds_paths(name) if kind == "ds" else row_paths(name) if kind == "rows" else [Path(name)]
    for path in paths:
        if not path.is_file():
            raise common.wrong(path, "a file", "none", "name another one")
        if kind == "ds":
            yield foreign.ds_file(path, dtype, options.eos_id)
        elif kind == "bare":
            yield foreign.bare_file(path, dtype, options.eos_id)
        elif kind == "rows":
            found = kinds.sniff(path, path.stat().st_size).name
            if found not in ROWS:
                raise common.wrong(path, "a Parquet or Arrow file", found, "give another --format")
            yield id_rows.IdRows(path, found)
        else:
            yield foreign.TokenFile(path)


def attributes(options: argparse.Namespace, tokenizer: HuggingFaceTokenizer | None, vocab_size: int) -> dict[str, Any]:
    eos = options.eos_id if options.eos_id is not None else tokenizer.eos if tokenizer else None
    return {"vocab_size": vocab_size, "special": {"eos_token_id": eos},
            "tokenizer": tokenizer.name if tokenizer else "", "provenance": hdf5.tool_provenance(PROGRAM),
            "tokenizer_sha256": tokenizer.sha256 if tokenizer else None}


def choose_tokenizer(options: argparse.Namespace) -> HuggingFaceTokenizer | None:
    if options.tokenizer is None:
        return None
    eos = options.eos or ("none" if options.eos_id is not None else None)
    return HuggingFaceTokenizer(*load_tokenizer(options.tokenizer), eos, None)


def vocab_size_of(options: argparse.Namespace, tokenizer: HuggingFaceTokenizer | None, sources: list[Source]) -> int:
    size: int | None = options.vocab_size
    if tokenizer is not None:
        if size is not None and size < tokenizer.vocab_size:
            raise common.wrong("--vocab-size", f"{tokenizer.vocab_size} or more, as {tokenizer.name} has", str(size),
                               "leave it out", common.EXIT_USAGE)
        size = size or tokenizer.vocab_size
    if size is None:
        size = 1 + max(join.largest_id(sources), options.eos_id or 0)
        if not options.quiet:
            print(f"vocab_size is {size}, the largest id and one: neither --tokenizer nor --vocab-size is given",
                  file=sys.stderr)
    if options.eos_id is not None and options.eos_id >= size:
        raise common.wrong("--eos-id", f"an id below {size}", str(options.eos_id), "give another one",
                           common.EXIT_USAGE)
    return size


def import_all(options: argparse.Namespace, sources: list[Source]) -> TokenWriter:
    tokenizer = choose_tokenizer(options)
    vocab_size = vocab_size_of(options, tokenizer, sources)
    vocabulary = tokenizer.vocabulary() if tokenizer else None
    if vocabulary is not None:
        vocabulary += [b""] * (vocab_size - len(vocabulary))
    with join.write(options.output, sources, vocab_size, progress_line(options.quiet)) as writer:
        if writer.tokens == 0:
            raise common.ToolError("the input holds no tokens")
        writer.finish(attributes(options, tokenizer, vocab_size), vocabulary)
    return writer


def main(argv: list[str] | None = None) -> int:
    options = parse(argv)
    kinds = [options.format or format_of(name) for name in options.inputs]
    if len(set(kinds)) > 1:
        raise common.ToolError(f"expected inputs of one format, found {', '.join(sorted(set(kinds)))}; "
                               "make a token file of each, then join these", common.EXIT_USAGE)
    begin = time.perf_counter()
    if kinds[0] == "token-file":
        given = [name for name in ("tokenizer", "vocab_size", "eos_id", "token_type")
                 if getattr(options, name) is not None]
        if given:
            raise common.ToolError(f"--{given[0].replace('_', '-')}: token files say that themselves; leave it out",
                                   common.EXIT_USAGE)
        writer = join.join_token_files(options.output, [Path(name) for name in options.inputs],
                                       hdf5.tool_provenance(PROGRAM), progress_line(options.quiet))
    else:
        writer = import_all(options, [source for name, kind in zip(options.inputs, kinds)
                                      for source in sources_of(name, kind, options)])
    if not options.quiet:
        if sys.stderr.isatty():
            print(file=sys.stderr)
        documents = f"{writer.documents:,} documents" if writer.has_documents else \
            "documents unknown (no index, no --eos-id)"
        print(f"{options.output}: {writer.tokens:,} tokens, {documents}, vocabulary {writer.vocab_size}; "
              f"{writer.tokens / max(time.perf_counter() - begin, 1e-9):,.0f} tokens/s")
    return 0
