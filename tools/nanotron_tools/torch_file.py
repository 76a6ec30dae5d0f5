"""Files of torch.save: a zip archive without compression, with data.pkl and the bytes of each storage.

    <name>/data.pkl         the object, its tensors as references
    <name>/data/<key>       a storage
    <name>/byteorder        'little', since PyTorch 2.1

The format before PyTorch 1.6, a pickle alone, is refused. Tensors are st.StoredTensor: places in the file.
"""

from __future__ import annotations

import io
import math
import struct
import zipfile
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from . import common, torch_pickle
from . import safetensors as st

LOCAL_HEADER = struct.Struct("<4s22sHH")  # signature, what the directory says too, lengths of name and extra field
CHUNK = 1 << 20


class Window(io.RawIOBase):
    """A part of a file as a file."""

    def __init__(self, file: BinaryIO, begin: int, size: int):
        super().__init__()
        self.file, self.begin, self.size, self.at = file, begin, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.at

    def seek(self, offset: int, whence: int = 0) -> int:
        self.at = offset + (0, self.at, self.size)[whence]
        if self.at < 0:
            raise zipfile.BadZipFile("a place before the beginning of the file")
        return self.at

    def read(self, count: int | None = -1) -> bytes:
        left = max(0, self.size - self.at)
        wanted = left if count is None or count < 0 else min(count, left)
        self.file.seek(self.begin + self.at)
        data = self.file.read(wanted)
        self.at += len(data)
        return data


@dataclass(frozen=True)
class Archive:
    """The object of a file, and where its tensors lie."""

    path: Path
    object: Any
    places: dict[str, tuple[int, int]]  # key of a storage -> first byte in the file, bytes

    def stored(self, tensor: Any, what: str) -> st.StoredTensor:
        """Where the elements of a tensor lie; common.ToolError if it is none, or no contiguous one."""
        if not isinstance(tensor, torch_pickle.Tensor):
            raise common.wrong(f"{self.path}, {what}", "a tensor", type(tensor).__name__, "copy the file again")
        begin, size = self.places.get(tensor.storage.key, (0, -1))
        width = st.BYTES_OF[tensor.dtype]
        first, count = tensor.offset * width, math.prod(tensor.shape)
        if size < 0 or first + count * width > size:
            raise common.wrong(f"{self.path}, {what}", f"{first + count * width} bytes of storage {tensor.storage.key}",
                               f"{max(0, size)}", "copy the file again: it is damaged")
        stride = 1
        for extent, step in zip(reversed(tensor.shape), reversed(tensor.stride)):
            if extent > 1 and step != stride:
                raise common.wrong(f"{self.path}, {what}", "a contiguous tensor",
                                   f"shape {tensor.shape} with strides {tensor.stride}", "save it .contiguous()")
            stride *= extent
        return st.StoredTensor(self.path, tensor.dtype, tensor.shape, begin + first)


def _places(archive: zipfile.ZipFile, file: BinaryIO, begin: int, where: object) -> dict[str, tuple[int, int]]:
    """Of each entry, after its checksum was compared."""
    places = {}
    for entry in archive.infolist():
        if entry.compress_type != zipfile.ZIP_STORED or entry.file_size != entry.compress_size:
            raise common.wrong(f"{where}, {entry.filename}", "an entry without compression, as torch.save writes",
                               "a compressed one", "save the file again with torch.save")
        with archive.open(entry) as data:
            while data.read(CHUNK):
                pass  # compares the checksum at its end
        file.seek(begin + entry.header_offset)
        _, _, name, extra = LOCAL_HEADER.unpack(file.read(LOCAL_HEADER.size))
        first = begin + entry.header_offset + LOCAL_HEADER.size + name + extra
        places[entry.filename.partition("/")[2]] = (first, entry.file_size)
    return places


def load(path: Path, foreign: Collection[str] = (), begin: int = 0, size: int | None = None) -> Archive:
    """The file, or its part from byte `begin` of `size` bytes; common.ToolError for what is none, or is damaged."""
    whole = path.stat().st_size if path.is_file() else 0
    size = whole - begin if size is None else size
    where = f"{path}, bytes {begin} to {begin + size}" if begin else path
    try:
        with open(path, "rb") as file, zipfile.ZipFile(Window(file, begin, min(size, whole - begin))) as archive:
            places = _places(archive, file, begin, where)
            if "data.pkl" not in places:
                raise common.wrong(where, "an archive of torch.save, with data.pkl", "none", "name another file")
            if "byteorder" in places:
                file.seek(places["byteorder"][0])
                if (order := file.read(min(16, places["byteorder"][1]))) != b"little":
                    raise common.wrong(where, "little-endian numbers", order.decode("ascii", "replace"),
                                       "save the file on a little-endian machine")
            file.seek(places["data.pkl"][0])
            found = torch_pickle.load(file, places["data.pkl"][1], f"{where}, data.pkl", foreign)
    except FileNotFoundError:
        raise common.wrong(path, "a file of torch.save", "no such file", "copy the whole folder") from None
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, struct.error, ValueError) as error:
        raise common.wrong(where, "a zip archive, as torch.save writes since PyTorch 1.6", f"{error}",
                           "copy the file again; a file of an older PyTorch: load and save it with a new one") from None
    return Archive(path, found, {key[5:]: place for key, place in places.items() if key.startswith("data/")})
