"""The safetensors format: 8 bytes of header length, a JSON header, the data; bf16 included.

Reads and writes in pieces of PIECE_BYTES, so that a tensor is never whole in memory.
"""

from __future__ import annotations

import json
import math
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from . import common

PIECE_BYTES = 64 << 20
AGAIN = "copy or download the file again"
MAX_HEADER_BYTES = 100 << 20  # the limit of the safetensors library
FLOATS = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
BYTES_OF = FLOATS | {"BOOL": 1, "U8": 1, "I8": 1, "U16": 2, "I16": 2, "U32": 4, "I32": 4, "U64": 8, "I64": 8,
                     "F8_E4M3": 1, "F8_E5M2": 1}  # the others are of buffers, which are not read
DTYPES = {"fp64": "F64", "fp32": "F32", "bf16": "BF16"}  # of --dtype
STORED = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}


def bf16_to_fp32(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def fp32_to_bf16(values: np.ndarray) -> np.ndarray:
    """Bits of the nearest bf16, ties to even; NaN stays NaN."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    rounded = (bits + (((bits >> 16) & 1) + 0x7FFF).astype(np.uint32)) >> 16
    nan = (bits & 0x7FFFFFFF) > 0x7F800000
    return np.where(nan, (bits >> 16) | 0x40, rounded).astype(np.uint16)


@dataclass(frozen=True)
class StoredTensor:
    path: Path
    dtype: str
    shape: tuple[int, ...]
    offset: int

    def rows_of(self, index: int, start: int, stop: int) -> StoredTensor:
        """Rows [start, stop) of the matrix `index` of a stack of matrices."""
        _, rows, columns = self.shape
        skipped = (index * rows + start) * columns * BYTES_OF[self.dtype]
        return StoredTensor(self.path, self.dtype, (stop - start, columns), self.offset + skipped)

    def pieces(self) -> Iterator[tuple[int, np.ndarray]]:
        """(first row, float array) in blocks of whole rows; one block for a scalar or vector."""
        row = max(1, math.prod(self.shape[1:]))
        step = max(1, PIECE_BYTES // (row * BYTES_OF[self.dtype]))
        data = np.memmap(self.path, STORED[self.dtype], "r", self.offset, self.shape)
        for start in range(0, self.shape[0], step):
            block = np.array(data[start:start + step])
            if self.dtype == "BF16":
                block = bf16_to_fp32(block)
            elif self.dtype == "F16":
                block = block.astype(np.float32)
            yield start, block


def read_header(path: Path) -> dict[str, StoredTensor]:
    """Tensors of one safetensors file, each checked against the size of the file."""
    try:
        size = path.stat().st_size
        with open(path, "rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            if length > min(MAX_HEADER_BYTES, size - 8):
                raise ValueError(f"header of {length} bytes")
            header = common.from_json(file.read(length))
        tensors: dict[str, StoredTensor] = {}
        for name, entry in header.items():
            if name == "__metadata__":
                continue
            dtype, shape = entry["dtype"], tuple(entry["shape"])
            start, end = entry["data_offsets"]
            if dtype not in BYTES_OF:
                raise common.ToolError(f"{path}: {name}: type {dtype} is not supported "
                                   f"(supported: {', '.join(BYTES_OF)})")
            if any(not isinstance(extent, int) or extent < 1 for extent in shape) or \
                    end - start != math.prod(shape) * BYTES_OF[dtype] or \
                    not 0 <= start <= end <= size - 8 - length:
                raise ValueError(f"{name}: shape {shape} does not fit its bytes {start}..{end}")
            tensors[name] = StoredTensor(path, dtype, shape, 8 + length + start)
        data = sum(math.prod(each.shape) * BYTES_OF[each.dtype] for each in tensors.values())
        if data != size - 8 - length:
            raise ValueError(f"{size - 8 - length} bytes of data, of {data} in its tensors")
        return tensors
    except (OSError, ValueError, KeyError, TypeError, AttributeError, struct.error) as error:
        raise common.wrong(path, "tensors", f"not a safetensors file ({error})", AGAIN) from None


def read_metadata(path: Path) -> dict[str, str]:
    """The texts of a safetensors file whose header was read."""
    with open(path, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        found = common.from_json(file.read(length)).get("__metadata__")
    return {str(key): str(value) for key, value in found.items()} if isinstance(found, dict) else {}


def read_tensors(folder: Path) -> dict[str, StoredTensor]:
    """All tensors of a Hugging Face folder, in one file or in shards."""
    single, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if single.is_file():
        return read_header(single)
    if not index.is_file():
        raise common.ToolError(f"{folder}: neither {single.name} nor {index.name} here")
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict):
        raise common.ToolError(f"{index}: no 'weight_map'")
    tensors: dict[str, StoredTensor] = {}
    for shard in sorted(set(weight_map.values())):
        if Path(shard).name != shard:
            raise common.ToolError(f"{index}: shard '{shard}' lies outside the folder")
        tensors |= read_header(folder / shard)
    missing = weight_map.keys() - tensors.keys()
    if missing:
        raise common.ToolError(f"{index}: {sorted(missing)[0]} is in none of the shards")
    return tensors


class SafetensorsWriter:
    """Writes tensors whose names, types and shapes are known beforehand, in that order."""

    def __init__(self, path: Path, entries: list[tuple[str, str, tuple[int, ...]]],
                 metadata: dict[str, str] | None = None):
        self.path, self.temporary = path, common.beside(path)
        header: dict[str, dict[str, Any]] = {"__metadata__": {"format": "pt"} if metadata is None else dict(metadata)}
        offset = 0
        for name, dtype, shape in entries:
            size = math.prod(shape) * BYTES_OF[dtype]
            header[name] = {"dtype": dtype, "shape": list(shape),
                            "data_offsets": [offset, offset + size]}
            offset += size
        text = json.dumps(header, separators=(",", ":")).encode("utf-8")
        text += b" " * (-len(text) % 8)
        self.file = open(self.temporary, "wb")  # noqa: SIM115, closed by commit
        self.file.write(struct.pack("<Q", len(text)) + text)
        self.expected = 8 + len(text) + offset

    def write(self, values: np.ndarray, dtype: str) -> None:
        data = fp32_to_bf16(values) if dtype == "BF16" else values.astype(STORED[dtype])
        self.file.write(np.ascontiguousarray(data).data)

    def commit(self) -> None:
        self.file.flush()
        os.fsync(self.file.fileno())
        written = self.file.tell()
        self.file.close()
        if written != self.expected:
            raise common.ToolError(f"{self.path}: wrote {written} bytes of {self.expected}", 71)
        os.replace(self.temporary, self.path)


def json_object(text: str, where: object) -> dict[str, Any]:
    try:
        content = common.from_json(text)
    except ValueError as error:
        raise common.wrong(where, "a JSON object", f"not JSON ({error})", AGAIN) from None
    if not isinstance(content, dict):
        raise common.wrong(where, "a JSON object", type(content).__name__, AGAIN)
    return content


def read_json(path: Path) -> dict[str, Any]:
    try:
        return json_object(path.read_text(encoding="utf-8"), path)
    except OSError as error:
        raise common.wrong(path, "a JSON object", f"it cannot be read ({error.strerror})", AGAIN) from None
    except UnicodeDecodeError as error:
        raise common.wrong(path, "a JSON object", f"not JSON ({error})", AGAIN) from None
