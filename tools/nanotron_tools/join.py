"""Sources of tokens, one after another, into one token file: each token read once, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from . import token_file
from .common import wrong
from .foreign import Piece, Source, TokenFile
from .token_writer import TokenWriter

MAX_IDS = 1 << 24  # without a vocabulary's size a larger id is taken for damage


def checked(source: Source, limit: int) -> Iterator[Piece]:
    """The pieces of a source, whose ids are from 0 to limit - 1."""
    position = 0
    for piece in source.pieces():
        tokens = piece.tokens
        if tokens.size and (int(tokens.min()) < 0 or int(tokens.max()) >= limit):
            at = int(np.flatnonzero((tokens < 0) | (tokens >= limit))[0])
            raise wrong(source.place(position + at), f"an id from 0 to {limit - 1}", str(tokens[at]),
                        "give the --vocab-size, the --tokenizer or the --token-type of these ids, or write them again")
        position += tokens.size
        yield piece


def largest_id(sources: Sequence[Source]) -> int:
    return max((int(piece.tokens.max()) for source in sources for piece in checked(source, MAX_IDS)
                if piece.tokens.size), default=0)


def agree(sources: Sequence[Source]) -> None:
    """All have documents or none, and so for masks."""
    first = sources[0]
    for source in sources:
        for name, here, there in (("/documents", source.documents, first.documents),
                                  ("a loss mask", source.masked, first.masked)):
            if here != there:
                has = source if here else first
                lacks = first if here else source
                change = "make separate files of them" + (", or name the id that ends documents with --eos-id"
                                                       if name == "/documents" else "")
                raise wrong(lacks.path, f"{name}, as {has.path} has", "none", change)


def write(output: Path, sources: Sequence[Source], vocab_size: int, progress: Callable[[TokenWriter], None],
          digest: bool = False) -> TokenWriter:
    """A writer with all tokens, to be finished by the caller."""
    agree(sources)
    writer = TokenWriter(output, vocab_size, masked=sources[0].masked, documents=sources[0].documents,
                         tokens=sum(source.tokens for source in sources), digest=digest)
    try:
        for source in sources:
            begin = writer.tokens
            for piece in checked(source, vocab_size):
                writer.append(piece.tokens, piece.starts - (writer.tokens - begin), piece.mask)
                progress(writer)
    except BaseException as error:
        writer.__exit__(type(error), error, error.__traceback__)
        raise
    return writer


def same_tokenizer(sources: Sequence[TokenFile]) -> None:
    first = sources[0]
    for source in sources[1:]:
        for name in ("vocab_size", "tokenizer_sha256", "eos_token_id", "bos_token_id", "chat_template"):
            ours, theirs = source.attributes.get(name), first.attributes.get(name)
            if ours != theirs:
                raise wrong(source.path, f"{name} {theirs}, as {first.path} has", str(ours),
                            "join files of one tokenizer with the same options")


def attributes_of(first: TokenFile) -> dict[str, Any]:
    """Of write_token_attributes, as the first of the joined files has them."""
    found = first.attributes
    special = {name: int(found[name]) if name in found else None for name in ("eos_token_id", "bos_token_id")}
    return {"vocab_size": int(found["vocab_size"]), "special": special, "tokenizer": found.get("tokenizer", ""),
            "tokenizer_sha256": found.get("tokenizer_sha256")}


def vocabulary_of(path: Path) -> list[bytes] | None:
    with h5py.File(path, "r") as file:
        return token_file.read_vocabulary(file)


def join_token_files(output: Path, paths: Sequence[Path], provenance: dict[str, str],
                     progress: Callable[[TokenWriter], None]) -> TokenWriter:
    sources = [TokenFile(path) for path in paths]
    same_tokenizer(sources)
    if "vocab_size" not in sources[0].attributes:
        raise wrong(sources[0].path, "the attribute vocab_size", "none", "name a file that nanotron-tokenize wrote")
    with write(output, sources, int(sources[0].attributes["vocab_size"]), progress) as writer:
        writer.finish({**attributes_of(sources[0]), "provenance": provenance}, vocabulary_of(paths[0]),
                      sources[0].attributes.get("chat_template"))
    return writer
