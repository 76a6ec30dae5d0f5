"""Files of documents that are in memory: a token file (doc/data.md) with datasets of its own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import h5py
import numpy as np

from . import common, hdf5, token_file, token_hashes
from .tokenizers import Tokenizer


@contextmanager
def written(path: Path, documents: list[np.ndarray], tokenizer: Tokenizer, tool: str) -> Iterator[h5py.File]:
    """Open for the caller to add its datasets; it appears under its name only when it is complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = common.beside(path)
    tokens = np.concatenate(documents).astype(token_file.token_dtype(tokenizer.vocab_size))
    begins = np.cumsum([0, *(len(document) for document in documents[:-1])])
    counts = np.bincount(tokens, minlength=tokenizer.vocab_size)
    try:
        with h5py.File(temporary, "w", libver=("earliest", "v110")) as file:
            file.create_dataset("tokens", data=tokens)
            file.create_dataset("documents", data=begins.astype("<u8"))
            yield file
            token_file.write_vocabulary(file, tokenizer.vocabulary())
            token_file.write_token_attributes(
                file, vocab_size=tokenizer.vocab_size, tokenizer=tokenizer.name, tokenizer_sha256=tokenizer.sha256,
                special={"eos_token_id": tokenizer.eos, "bos_token_id": tokenizer.bos},
                entropy=token_file.unigram_entropy(counts), provenance=hdf5.tool_provenance(tool))
            token_hashes.put(file, *token_hashes.compute(file))
        with open(temporary, "rb+") as complete:
            os.fsync(complete.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
