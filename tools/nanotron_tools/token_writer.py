"""Writes a token file as its tokens come, in bounded memory: nothing of it is kept but the counts of the ids.

Tokens are written once. Where their number is not known they go to byte 4096 and on of a plain file; HDF5 then makes
a file for that number, whose /tokens it puts at this place and does not write. Its other bytes are put around them.
Beside the output, until it is complete: <output>.tmp and <output>.<dataset>.tmp; starts of documents, the mask and
hashes are copied from theirs, last part first, while these are cut shorter, so that the disk holds them once.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import h5py
import numpy as np

from . import common, hdf5, token_file, token_hashes
from .xxh3 import xxh3_64

COPY_BYTES = 1 << 26
TOKENS_AT = 4096
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)
MASK_MEANING = ("uint8, one for each token of /tokens: 1 where the loss of predicting this token counts, that is where "
                "it is a target of the training, else 0")


def open_locked(path: Path) -> IO[bytes]:
    """The file, empty, and of this process only, where the file system has locks. The lock ends when the process closes
    any descriptor of the file, as those that numpy makes: it is read and written by its own methods alone."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        file: IO[bytes] = os.fdopen(descriptor, "r+b", buffering=1 << 20)
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EAGAIN):
                file.close()
                raise common.ToolError(f"{path}: expected to be the only process that writes it, found another one; "
                                       "wait for it or end it, or give another --output", common.EXIT_SYSTEM) from None
            if error.errno not in NO_LOCKS:
                raise
        with contextlib.suppress(FileNotFoundError):
            if os.fstat(file.fileno()).st_ino == os.stat(path).st_ino:
                file.truncate(0)
                return file
        file.close()  # another process finished, and removed the file


def move_into(raw: IO[bytes], dataset: h5py.Dataset, count: int, begin: int = 0) -> None:
    """Copies the file from the byte `begin` on, last part first, and cuts off what is copied."""
    dtype = dataset.dtype
    step = COPY_BYTES // dtype.itemsize
    raw.flush()
    for start in range((count - 1) // step * step if count else -1, -1, -step):
        part = np.empty(min(step, count - start), dtype)
        raw.seek(begin + start * dtype.itemsize)
        if raw.readinto(part.data.cast("B")) != part.nbytes:  # type: ignore[attr-defined]
            raise common.ToolError(f"{raw.name}: expected {count * dtype.itemsize} bytes, found fewer: another program "
                                   "wrote the file", common.EXIT_SYSTEM)
        dataset[start:start + part.size] = part
        raw.seek(begin + start * dtype.itemsize)
        raw.truncate()


def create_tokens(file: h5py.File, count: int, dtype: np.dtype) -> h5py.Dataset:
    """/tokens, contiguous, with its place in the file, and nothing written there."""
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_layout(h5py.h5d.CONTIGUOUS)
    properties.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    properties.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    space = h5py.h5s.create_simple((count,))
    return h5py.Dataset(h5py.h5d.create(file.id, b"tokens", h5py.h5t.py_create(dtype, logical=True), space, properties))


def create_file(path: Path) -> h5py.File:
    """A file whose data of some size begin at multiples of TOKENS_AT."""
    access = h5py.h5p.create(h5py.h5p.FILE_ACCESS)
    access.set_libver_bounds(h5py.h5f.LIBVER_EARLIEST, h5py.h5f.LIBVER_V110)
    access.set_alignment(TOKENS_AT // 2 + 1, TOKENS_AT)
    return h5py.File(h5py.h5f.create(os.fsencode(path), h5py.h5f.ACC_TRUNC, fapl=access))


def put_around(made: Path, raw: IO[bytes], begin: int, end: int) -> None:
    """Copies the bytes of the file `made` to their offsets in `raw`, except [begin, end)."""
    with open(made, "rb") as file:
        for place, stop in ((0, begin), (end, made.stat().st_size)):
            file.seek(place)
            raw.seek(place)
            while place < stop:
                data = file.read(min(COPY_BYTES, stop - place))
                raw.write(data)
                place += len(data)
    raw.flush()


class TokenWriter:
    """A token file that appears under its name when `finish` has been called, and not otherwise.

    `tokens`: how many there will be, where that is known (they are then written into the file at once).
    """

    def __init__(self, path: Path, vocab_size: int, *, masked: bool = False, documents: bool = True,
                 tokens: int | None = None, digest: bool = False):
        self.path, self.vocab_size, self.expected = path, vocab_size, tokens
        self.dtype = token_file.token_dtype(vocab_size)
        self.tokens = self.documents = self.counted = 0
        self.has_documents = documents
        self.counts = np.zeros(vocab_size, np.int64)
        self.digests = {name: hashlib.blake2b(digest_size=16) for name in ("tokens", "documents", "loss_mask")} \
            if digest else {}
        self.hashes = {"tokens": token_hashes.Hashes(self.dtype)}
        if documents:
            self.hashes["documents"] = token_hashes.Hashes(np.dtype("<u8"))
        if masked:
            self.hashes["loss_mask"] = token_hashes.Hashes(np.dtype(np.uint8))
        xxh3_64(b"")  # if it is missing, an error before the work
        self._pending = np.zeros(0, np.int64)  # the last start: a document begins there if a token follows
        self._raw: dict[str, IO[bytes]] = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._raw["documents"] = open_locked(self._side("documents"))
            if tokens is None:
                self._raw["tokens"] = open_locked(self._side("tokens"))
                self._raw["tokens"].seek(TOKENS_AT)
            if masked:
                self._raw["loss_mask"] = open_locked(self._side("loss_mask"))
            for name in self.hashes:
                self._raw[f"hashes.{name}"] = open_locked(self._side(f"hashes.{name}"))
            self.temporary = common.beside(path)
            self._file = create_file(self.temporary)
            if tokens is not None:
                self._dataset = create_tokens(self._file, tokens, self.dtype)
        except BaseException:
            self._close()
            raise

    def _side(self, name: str) -> Path:
        return self.path.with_name(f"{self.path.name}.{name}.tmp")

    def __enter__(self) -> TokenWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 traceback: TracebackType | None) -> None:
        self._file.close()
        self.temporary.unlink(missing_ok=True)
        self._close()

    def _close(self) -> None:
        for name, file in self._raw.items():
            self._side(name).unlink(missing_ok=True)  # before the lock ends
            file.close()
        self._raw = {}

    def _spool(self, name: str, data: np.ndarray) -> None:
        data = np.ascontiguousarray(data)
        if name in self._raw:
            self._raw[name].write(data.data.cast("B"))
        if name in self.digests:
            self.digests[name].update(data.data.cast("B"))
        if name in self.hashes:
            self._raw[f"hashes.{name}"].write(self.hashes[name].update(data).data.cast("B"))

    def append(self, tokens: np.ndarray, starts: np.ndarray, mask: np.ndarray | None = None) -> None:
        """`starts`: where documents begin, counted from these tokens; one without tokens is left out."""
        if self.has_documents and len(starts):
            self._add_starts(np.asarray(starts, dtype=np.int64) + self.tokens)
        if not tokens.size:
            return
        tokens = tokens.astype(self.dtype, copy=False)
        self.counts += np.bincount(tokens, minlength=self.vocab_size)
        if self.expected is not None:
            self._dataset[self.tokens:self.tokens + tokens.size] = tokens
        self._spool("tokens", tokens)
        if mask is not None:
            self.counted += int(np.count_nonzero(mask))
            self._spool("loss_mask", mask.astype(np.uint8, copy=False))
        self.tokens += tokens.size

    def _add_starts(self, starts: np.ndarray) -> None:
        """What is known to have tokens is written, the last start kept back."""
        starts = np.concatenate((self._pending, starts))
        self._pending = starts[-1:]
        kept = starts[:-1][np.diff(starts) > 0]
        self.documents += kept.size
        self._spool("documents", kept.astype("<u8"))

    def entropy(self) -> float:
        return token_file.unigram_entropy(self.counts)

    def finish(self, attributes: dict[str, Any], vocabulary: list[bytes] | None,
               chat_template: str | None = None) -> None:
        """`attributes`: of token_file.write_token_attributes, without the entropy."""
        if self.expected is not None and self.tokens != self.expected:
            raise common.ToolError(f"{self.path}: expected {self.expected} tokens, found {self.tokens}")
        self._add_starts(np.array([self.tokens], np.int64))
        file = self._file
        if self.expected is None:
            place = create_tokens(file, self.tokens, self.dtype).id.get_offset()
        if self.has_documents:
            starts = file.create_dataset("documents", shape=(self.documents,), dtype="<u8")
            move_into(self._raw["documents"], starts, self.documents)
        if "loss_mask" in self._raw:
            mask = file.create_dataset("loss_mask", shape=(self.tokens,), dtype=np.uint8)
            mask.attrs["meaning"] = np.bytes_(MASK_MEANING)
            move_into(self._raw["loss_mask"], mask, self.tokens)
        if vocabulary is not None:
            token_file.write_vocabulary(file, vocabulary)
        token_file.write_token_attributes(file, entropy=self.entropy(), **attributes)
        if chat_template is not None:
            hdf5.set_text(file, "chat_template", chat_template, attribute=True)
        self._write_hashes()
        for name, digest in self.digests.items():
            if name in file:
                hdf5.set_text(file["provenance"], f"{name}_blake2b", digest.hexdigest(), attribute=True)
        file.close()
        if self.expected is None:
            self._complete_tokens(place)
        publish(self.temporary, self.path)

    def _write_hashes(self) -> None:
        """/hashes; what they are of is complete."""
        group = self._file.create_group("hashes")
        for name, hashes in self.hashes.items():
            raw = self._raw[f"hashes.{name}"]
            raw.write(hashes.finish().data.cast("B"))
            move_into(raw, group.create_dataset(name, shape=(hashes.count,), dtype="<u8"), hashes.count)
        token_hashes.write_attributes(self._file, {name: hashes.digest() for name, hashes in self.hashes.items()})

    def _complete_tokens(self, place: int | None) -> None:
        """<output>.tokens.tmp becomes <output>.tmp."""
        size = self.tokens * self.dtype.itemsize
        if place != TOKENS_AT:  # a few tokens only, or an HDF5 that begins otherwise: copied
            with h5py.File(self.temporary, "r+") as file:
                move_into(self._raw["tokens"], file["tokens"], self.tokens, TOKENS_AT)
            return
        put_around(self.temporary, self._raw["tokens"], place, place + size)
        os.replace(self._side("tokens"), self.temporary)


def publish(temporary: Path, path: Path) -> None:
    """`path` is the file, and it is on the disk."""
    with open(temporary, "rb+") as written:
        os.fsync(written.fileno())
    os.replace(temporary, path)
    with contextlib.suppress(OSError):  # some file systems cannot fsync a folder
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
