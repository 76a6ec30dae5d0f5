"""Writes files that torch.load reads, with weights_only too: numbers, texts, lists, tuples, dictionaries, tensors; and
objects of other classes by their name and state, which weights_only reads where it knows the class."""

from __future__ import annotations

import math
import os
import struct
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from . import common, torch_pickle
from . import safetensors as st

STORAGE_OF = {dtype: name.removeprefix("torch.") for name, dtype in torch_pickle.STORAGES.items()
              if "storage" not in name}
BATCH = 1000  # entries between two marks


@dataclass(frozen=True)
class New:
    """A tensor to be written; its elements come in blocks."""

    dtype: str
    shape: tuple[int, ...]
    blocks: Callable[[], Iterator[np.ndarray]]

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @classmethod
    def of(cls, values: np.ndarray) -> New:
        return cls("F64" if values.dtype == np.float64 else "F32", values.shape, lambda: iter([values]))


@dataclass(frozen=True)
class Global:
    """A class, a function, a type of numbers: 'torch.float32'."""

    path: str

    def bytes(self) -> bytes:
        module, _, name = self.path.rpartition(".")
        return f"c{module}\n{name}\n".encode()


@dataclass(frozen=True)
class Record:
    """An object with these attributes, made by calling its class without arguments."""

    path: str
    state: dict[str, Any]


class Pickle:
    """Bytes of an object, and its tensors in the order of their keys."""

    def __init__(self) -> None:
        self.data, self.tensors = bytearray(b"\x80\x02"), list[New]()

    def add(self, value: Any) -> None:
        if value is None or isinstance(value, bool):
            self.data += {None: b"N", True: b"\x88", False: b"\x89"}[value]
        elif isinstance(value, int):
            small = -(1 << 31) <= value < 1 << 31
            raw = value.to_bytes((value.bit_length() + 8) // 8, "little", signed=True)
            self.data += b"J" + struct.pack("<i", value) if small else b"\x8a" + bytes([len(raw)]) + raw
        elif isinstance(value, float):
            self.data += b"G" + struct.pack(">d", value)
        elif isinstance(value, str):
            raw = value.encode("utf-8", "surrogatepass")
            self.data += b"X" + struct.pack("<I", len(raw)) + raw
        elif isinstance(value, New):
            self._tensor(value)
        elif isinstance(value, Global):
            self.data += value.bytes()
        elif isinstance(value, Record):
            self.data += Global(value.path).bytes() + b")R"
            self.add(value.state)
            self.data += b"b"
        else:
            self._container(value)

    def _container(self, value: Any) -> None:
        if isinstance(value, dict):
            self.data += b"}"
            self._batches([each for pair in value.items() for each in pair], b"u")
        elif isinstance(value, list):
            self.data += b"]"
            self._batches(value, b"e")
        elif isinstance(value, tuple):
            self.data += b"("
            for each in value:
                self.add(each)
            self.data += b"t"
        else:
            raise TypeError(type(value))

    def _batches(self, items: list[Any], end: bytes) -> None:
        for begin in range(0, len(items), 2 * BATCH):
            self.data += b"("
            for each in items[begin:begin + 2 * BATCH]:
                self.add(each)
            self.data += end

    def _tensor(self, tensor: New) -> None:
        stride = tuple(math.prod(tensor.shape[axis + 1:]) for axis in range(len(tensor.shape)))
        self.data += b"ctorch._utils\n_rebuild_tensor_v2\n((" + self._text("storage")
        self.data += f"ctorch\n{STORAGE_OF[tensor.dtype]}\n".encode()
        self.data += self._text(str(len(self.tensors))) + self._text("cpu")
        self.add(tensor.numel)
        self.data += b"tQ"
        for value in (0, tensor.shape, stride, False):
            self.add(value)
        self.data += b"ccollections\nOrderedDict\n)RtR"
        self.tensors.append(tensor)

    @staticmethod
    def _text(text: str) -> bytes:
        return b"X" + struct.pack("<I", len(text)) + text.encode()


def save(value: Any, path: Path) -> None:
    pickled, temporary = Pickle(), common.beside(path)
    pickled.add(value)
    name = path.stem
    with zipfile.ZipFile(temporary, "w") as archive:
        for entry, data in (("data.pkl", bytes(pickled.data) + b"."), ("byteorder", b"little"), ("version", b"3\n")):
            archive.writestr(f"{name}/{entry}", data)
        for key, tensor in enumerate(pickled.tensors):
            with archive.open(f"{name}/data/{key}", "w", force_zip64=True) as file:
                for block in tensor.blocks():
                    stored = st.fp32_to_bf16(block) if tensor.dtype == "BF16" else block.astype(st.STORED[tensor.dtype])
                    file.write(np.ascontiguousarray(stored).tobytes())
    with open(temporary, "rb+") as file:
        os.fsync(file.fileno())
    os.replace(temporary, path)
