"""Folders of torch.distributed.checkpoint: .metadata, a pickle that says where each chunk of each tensor lies, and
__<rank>_<n>.distcp, one file of torch.save after another. torch/distributed/checkpoint/metadata.py and filesystem.py of
PyTorch 2.15.0; read by the rules of torch_pickle, with these classes as plain records.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from . import common, taken_over, torch_file, torch_pickle
from . import safetensors as st
from .torch_pickle import Foreign, Name, Tensor

METADATA = ".metadata"
CLASSES = ("torch.distributed.checkpoint.", "torch.serialization._get_layout", "torch.distributed._shard.", "megatron.",
           "pathlib.Path", "pathlib.PosixPath", "pathlib._local.PosixPath", "builtins.slice")
Index = tuple[int, ...]


@dataclass(frozen=True)
class Chunk:
    offsets: Index
    path: Path
    begin: int
    size: int


@dataclass
class Stored:
    """A tensor in chunks, or bytes in one."""

    name: str
    shape: Index = ()
    dtype: str = ""
    lengths: dict[Index, Index] = field(default_factory=dict)  # of the chunk at an offset
    chunks: list[Chunk] = field(default_factory=list)


def _record(value: Any, where: object, what: str) -> dict[str, Any]:
    state = value.state if isinstance(value, Foreign) else None
    if isinstance(state, tuple) and len(state) == 2 and isinstance(state[0], dict):
        state = state[0]
    if not isinstance(state, dict):
        raise common.wrong(where, f"a record of {what}", type(value).__name__, "copy the file again")
    return state


def _lengths(value: Any, where: object) -> Index:
    if not isinstance(value, (tuple, list)) or not all(isinstance(each, int) and each >= 0 for each in value):
        raise common.wrong(where, "lengths", f"{type(value).__name__}", "copy the file again")
    return tuple(value)


class Folder:
    def __init__(self, path: Path):
        self.path, self.where = path, path / METADATA
        size = self.where.stat().st_size if self.where.is_file() else 0
        if not size:
            raise common.wrong(self.where, "a pickle", "no such file, or an empty one",
                               "copy the whole folder, its hidden file too; without it the save did not end")
        with open(self.where, "rb") as file:
            found = _record(torch_pickle.load(file, size, self.where, CLASSES), self.where, "Metadata")
        tensors = found.get("state_dict_metadata")
        places = found.get("storage_data")
        if not isinstance(tensors, dict) or not isinstance(places, dict):
            raise common.wrong(self.where, "state_dict_metadata and storage_data", "none",
                               "save the checkpoint with PyTorch 2.1 or newer")
        self.items = {name: self._stored(name, value) for name, value in tensors.items() if isinstance(name, str)}
        for index, info in places.items():
            self._place(_record(index, self.where, "MetadataIndex"), _record(info, self.where, "_StorageInfo"))

    def _stored(self, name: str, value: Any) -> Stored:
        if not isinstance(value, Foreign) or not value.path.endswith(".TensorStorageMetadata"):
            return Stored(name)
        state = _record(value, self.where, "TensorStorageMetadata")
        properties = state.get("properties")
        inner = properties.state if isinstance(properties, Foreign) else None
        first = inner.get("dtype") if isinstance(inner, dict) else inner[0] if isinstance(inner,
                                                                                          tuple) and inner else None
        dtype = torch_pickle.DTYPES.get(first.path.removeprefix("torch."), "") if isinstance(first, Name) else ""
        stored = Stored(name, _lengths(state.get("size"), self.where), dtype)
        for chunk in state.get("chunks") or []:
            record = _record(chunk, self.where, "ChunkStorageMetadata")
            stored.lengths[_lengths(record.get("offsets"), self.where)] = _lengths(record.get("sizes"), self.where)
        return stored

    def _place(self, index: dict[str, Any], info: dict[str, Any]) -> None:
        name, file, offset = index.get("fqn"), info.get("relative_path"), index.get("offset")
        begin, size = info.get("offset"), info.get("length")
        if not isinstance(file, str) or Path(file).name != file or not isinstance(begin, int) or \
                not isinstance(size, int) or begin < 0 or size < 0 or not isinstance(name, str):
            raise common.wrong(self.where, "a file of this folder and a place in it", f"{file!r:.100}",
                               "copy the folder again")
        if info.get("transform_descriptors"):
            raise common.wrong(f"{self.where}, {name}", "bytes as torch.save writes them",
                               f"transformed by {info['transform_descriptors']!r:.100}", "save without compression")
        if name in self.items:
            self.items[name].chunks.append(Chunk(() if offset is None else _lengths(offset, self.where),
                                                 self.path / file, begin, size))

    @functools.lru_cache(maxsize=16)  # noqa: B019, as long as the folder is read
    def _archive(self, chunk: Chunk, foreign: tuple[str, ...]) -> torch_file.Archive:
        have = chunk.path.stat().st_size if chunk.path.is_file() else -1
        if have < chunk.begin + chunk.size:
            raise common.wrong(chunk.path, f"{chunk.begin + chunk.size} bytes or more", "no such file" if have < 0 else
                               f"{have} bytes", "copy the whole folder: the file is missing or truncated")
        return torch_file.load(chunk.path, foreign, chunk.begin, chunk.size)

    def load_object(self, name: str, foreign: tuple[str, ...]) -> Any:
        """An object that was saved as bytes."""
        stored = self.items.get(name)
        if stored is None or len(stored.chunks) != 1:
            raise common.wrong(self.where, f"the object {name}", "none", "copy the folder again")
        return self._archive(stored.chunks[0], foreign).object

    def read(self, name: str, row: int | None = None) -> np.ndarray:
        """The whole tensor, or a row of its first dimension, in fp32 (fp64 where it is stored so)."""
        whole = self._read(name, row, bits=False)
        if not np.isfinite(whole).all():
            raise common.wrong(f"{self.where}, {name}", "finite numbers", "infinite ones or NaN",
                               "take an earlier checkpoint")
        return whole

    def read_unchecked(self, name: str) -> np.ndarray:
        """With elements that may be anything, as what lies between the parameters of a bucket."""
        return self._read(name, None, bits=False)

    def read_bits(self, name: str, row: int | None = None) -> np.ndarray:
        """As it is stored: bf16 as 16 bits."""
        return self._read(name, row, bits=True)

    def _read(self, name: str, row: int | None, bits: bool) -> np.ndarray:
        stored = self.items[name]
        shape = stored.shape if row is None else stored.shape[1:]
        if stored.dtype not in taken_over.FLOATS:
            raise common.wrong(f"{self.where}, {name}", f"numbers of type {', '.join(taken_over.FLOATS)}",
                               stored.dtype or "another one", "save the run without FP8 or packed states")
        kind = st.STORED[stored.dtype] if bits else "<f8" if stored.dtype == "F64" else "<f4"
        self._check_bytes(stored)
        whole, filled = np.empty(shape, kind), 0
        for chunk in stored.chunks:
            block, begin = self.chunk(stored, chunk, bits)
            if row is not None:
                if not begin[0] <= row < begin[0] + block.shape[0]:
                    continue
                block, begin = block[row - begin[0]], begin[1:]
            place = tuple(slice(at, at + count) for at, count in zip(begin, block.shape))
            if any(part.stop > extent for part, extent in zip(place, shape)):
                raise common.wrong(f"{chunk.path}, {name}", f"a chunk within {shape}",
                                   f"one at {begin} of {block.shape}",
                                   "copy the folder again")
            whole[place] = block
            filled += block.size
        if filled != math.prod(shape):
            raise common.wrong(f"{self.where}, {name}", f"{math.prod(shape)} elements", f"chunks of {filled}",
                               "copy the folder again; it may hold the files of several saves")
        return whole

    def _check_bytes(self, stored: Stored) -> None:
        """Before memory for all elements is taken."""
        files = {chunk.path for chunk in stored.chunks if chunk.path.is_file()}
        have, wanted = sum(path.stat().st_size for path in files), math.prod(stored.shape) * st.BYTES_OF[stored.dtype]
        if have < wanted:
            raise common.wrong(f"{self.where}, {stored.name}", f"{wanted} bytes for {stored.shape}",
                               f"{len(files)} files of {have}", "copy the whole folder: files are missing or truncated")

    def chunk(self, stored: Stored, chunk: Chunk, bits: bool = False) -> tuple[np.ndarray, Index]:
        archive = self._archive(chunk, CLASSES)
        if not isinstance(archive.object, Tensor):
            raise common.wrong(f"{chunk.path}, {stored.name}", "a tensor", type(archive.object).__name__,
                               "copy it again")
        wanted = stored.lengths.get(chunk.offsets or (0,) * len(stored.shape))
        if archive.object.shape != wanted:
            raise common.wrong(f"{chunk.path}, {stored.name}", f"shape {wanted}, as .metadata says",
                               f"{archive.object.shape}", "the files are of different saves")
        found = archive.stored(archive.object, stored.name)
        block = np.asarray(taken_over.elements(found)).reshape(found.shape)
        return block if bits else taken_over.as_floats(found, block), chunk.offsets or (0,) * len(stored.shape)
