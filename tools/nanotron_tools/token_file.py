"""The token file of doc/data.md; its reader is src/data. Needs numpy and h5py."""

from __future__ import annotations

import h5py
import numpy as np

from . import common, hdf5

VOCABULARY_LAYOUT = (
    "/vocabulary/bytes (uint8) holds the bytes of all tokens one after another; token i is "
    "bytes[offsets[i] .. offsets[i+1]-1] with /vocabulary/offsets (uint64, vocab_size+1 values)"
)


def token_dtype(vocab_size: int) -> np.dtype:
    return np.dtype("<u2" if vocab_size <= 1 << 16 else "<u4")


def unigram_entropy(counts: np.ndarray) -> float:
    """Entropy in nats of the token frequencies: the loss of the best context-free model."""
    counts = counts[counts > 0].astype(np.float64)
    if counts.size == 0:
        return 0.0
    share = counts / counts.sum()
    return max(0.0, float(-(share * np.log(share)).sum()))


def write_vocabulary(file: h5py.File, tokens: list[bytes]) -> None:
    group = file.create_group("vocabulary")
    offsets = np.zeros(len(tokens) + 1, dtype=np.uint64)
    offsets[1:] = np.cumsum([len(token) for token in tokens], dtype=np.uint64)
    group.create_dataset("bytes", data=np.frombuffer(b"".join(tokens), dtype=np.uint8))
    group.create_dataset("offsets", data=offsets, dtype="<u8")
    hdf5.set_text(file, "vocabulary_layout", VOCABULARY_LAYOUT, attribute=True)


def read_vocabulary(file: h5py.File) -> list[bytes] | None:
    if "vocabulary/offsets" not in file or "vocabulary/bytes" not in file:
        return None
    offsets = file["vocabulary/offsets"][:].astype(np.int64)
    data = file["vocabulary/bytes"][:].tobytes()
    if offsets[0] != 0 or offsets[-1] != len(data) or (np.diff(offsets) < 0).any():
        raise common.ToolError(f"{file.filename}: /vocabulary/offsets do not fit /vocabulary/bytes")
    return [data[start:end] for start, end in zip(offsets[:-1], offsets[1:])]


def write_token_attributes(file: h5py.File, *, vocab_size: int, special: dict[str, int | None], tokenizer: str,
                           tokenizer_sha256: str | None, entropy: float, provenance: dict[str, str]) -> None:
    """`special`: eos_token_id and bos_token_id. What is None is not written: there is none."""
    hdf5.set_text(file, "format", "nanotron_hpc tokens", attribute=True)
    file.attrs.create("vocab_size", vocab_size, dtype=np.int64)
    for key, value in special.items():
        if value is not None:
            file.attrs.create(key, value, dtype=np.int64)
    hdf5.set_text(file, "tokenizer", tokenizer, attribute=True)
    if tokenizer_sha256 is not None:
        hdf5.set_text(file, "tokenizer_sha256", tokenizer_sha256, attribute=True)
    file.attrs.create("unigram_entropy", entropy, dtype=np.float64)
    group = file.create_group("provenance")
    for key, text in provenance.items():
        hdf5.set_text(group, key, text, attribute=True)
