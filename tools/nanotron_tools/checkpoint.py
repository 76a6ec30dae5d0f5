"""Checkpoints: names and shapes, the manifest, writing and finding them.

The layout is the one of doc/checkpoint_format.md; the C++ counterpart is src/io. Needs numpy and h5py, and for
hashes what xxh3.py needs.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import h5py
import numpy as np

from . import common, hdf5
from .model_sizes import ModelSizes as ModelSizes
from .model_sizes import hugging_face_tensors as hugging_face_tensors
from .xxh3 import xxh3_64

CHECKPOINT_FORMAT = "nanotron_hpc checkpoint"
CHECKPOINT_VERSION = 1
CHECKPOINT_FILE = "checkpoint.h5"
MANIFEST_FILE = "manifest.json"
MANIFEST_BLOCK = 4 * 1024 * 1024
STEP_FOLDER = re.compile(r"^step_(\d{8,})$")


# ---------------------------------------------------------------------------------------------
# Hash and manifest


def _block_hashes(path: Path, block_bytes: int) -> Iterator[str]:
    with open(path, "rb") as file:
        while block := file.read(block_bytes):
            yield f"{xxh3_64(block):016x}"


def write_atomically(path: Path, text: str) -> None:
    """Writes `text` so that `path` holds either the old content or all of the new one."""
    temporary = common.beside(path)
    with open(temporary, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def write_manifest(folder: Path, step: int) -> None:
    """Commits a finished checkpoint folder. Call last: the manifest makes it valid."""
    path = folder / CHECKPOINT_FILE
    with open(path, "rb+") as file:
        os.fsync(file.fileno())
    manifest = {
        "format": CHECKPOINT_FORMAT,
        "version": CHECKPOINT_VERSION,
        "step": step,
        "file": CHECKPOINT_FILE,
        "bytes": path.stat().st_size,
        "block_bytes": MANIFEST_BLOCK,
        "hash": "xxh3_64",
        "blocks": list(_block_hashes(path, MANIFEST_BLOCK)),
    }
    write_atomically(folder / MANIFEST_FILE, json.dumps(manifest, indent=1) + "\n")


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a checkpoint folder; common.ToolError when it is missing or malformed."""
    path = folder / MANIFEST_FILE
    if not path.is_file():
        raise common.ToolError(f"{folder}: no {MANIFEST_FILE}, so the checkpoint was never completed")
    file, size = folder / CHECKPOINT_FILE, path.stat().st_size
    limit = 65536 + 32 * (file.stat().st_size // 4096 + 1) if file.is_file() else 1 << 28
    if size > limit:
        raise common.ToolError(f"{path}: expected at most {limit} bytes, found {size}")
    try:
        manifest: dict[str, Any] = common.from_json(path.read_text(encoding="utf-8"))
        good = (
            manifest["format"] == CHECKPOINT_FORMAT
            and manifest["version"] == CHECKPOINT_VERSION
            and manifest["hash"] == "xxh3_64"
            and manifest["file"] == CHECKPOINT_FILE
            and isinstance(manifest["step"], int)
            and isinstance(manifest["bytes"], int)
            and isinstance(manifest["block_bytes"], int)
            and 4096 <= manifest["block_bytes"] <= 1 << 30
            and isinstance(manifest["blocks"], list)
        )
    except (ValueError, KeyError, TypeError, UnicodeDecodeError):
        good = False
    if not good:
        raise common.ToolError(
            f"{path}: not a manifest of format '{CHECKPOINT_FORMAT}' version {CHECKPOINT_VERSION}"
        )
    return manifest


def verify_checkpoint(folder: Path) -> dict[str, Any]:
    """Returns the manifest of a valid checkpoint folder; common.ToolError names the first damage."""
    manifest = read_manifest(folder)
    path = folder / manifest["file"]
    if not path.is_file():
        raise common.ToolError(f"{path}: missing, though the manifest names it")
    found = path.stat().st_size
    if found != manifest["bytes"]:
        raise common.ToolError(f"{path}: expected {manifest['bytes']} bytes (manifest), found {found}")
    hashes = list(_block_hashes(path, manifest["block_bytes"]))
    if len(hashes) != len(manifest["blocks"]):
        raise common.ToolError(f"{path}: expected {len(hashes)} block hashes, the manifest has "
                        f"{len(manifest['blocks'])}")
    for index, (have, want) in enumerate(zip(hashes, manifest["blocks"])):
        if have != want:
            start = index * manifest["block_bytes"]
            raise common.ToolError(f"{path}: bytes {start}.. differ from what was written "
                            f"(block {index}: XXH3 {have}, manifest {want})")
    return manifest


# ---------------------------------------------------------------------------------------------
# Checkpoint


@dataclass(frozen=True)
class Progress:
    """Counters of /state beside the step."""

    tokens_seen: int = 0
    sample_cursor: int = 0
    adam_step: int = 0


ADAM = ("exp_avg", "exp_avg_sq")


def trained_by_gradient(sizes: ModelSizes) -> list[str]:
    """The parameters that have moments."""
    return [name for name in sizes.parameter_shapes() if not name.endswith("/e_score_correction_bias")]


class CheckpointWriter:
    """Writes one checkpoint folder; `commit` writes the manifest that makes it valid. Until then a checkpoint that the
    folder had stays, also if the work fails.

    Parameters are written piecewise through `dataset(name)`, so that no more than a piece is ever
    in memory, and moments through `moment(kind, name)`. A run from a checkpoint without moments starts with zero ones.
    """

    def __init__(self, folder: Path, sizes: ModelSizes, *, dtype: str = "<f4", step: int = 0, seed: int = 0,
                 deck: str = "", provenance: dict[str, str] | None = None,
                 tokenizer: dict[str, str] | None = None, hugging_face: str = "",
                 progress: Progress | None = None, moments: Sequence[str] = (),
                 shapes: dict[str, tuple[int, ...]] | None = None, adapters: str = ""):
        """shapes: of /parameters, if they are not all of the model; adapters: /adapters then."""
        self.folder, self.step = Path(folder), step
        self.folder.mkdir(parents=True, exist_ok=True)
        self.temporary = common.beside(self.folder / CHECKPOINT_FILE)
        self.file = h5py.File(self.temporary, "w", libver=("earliest", "v110"))
        hdf5.set_text(self.file, "format", CHECKPOINT_FORMAT, attribute=True)
        self.file.attrs.create("version", CHECKPOINT_VERSION, dtype=np.int64)
        parameters = self.file.create_group("parameters")
        sizes.to_attributes(parameters)
        for name, shape in (shapes or sizes.parameter_shapes()).items():
            parameters.create_dataset(name, shape=shape, dtype=dtype, track_times=False)
        if moments:
            hdf5.set_text(self.file.create_group("optimizer"), "name", "adamw", attribute=True)
        for kind in moments:
            for name in trained_by_gradient(sizes):
                self.file["optimizer"].create_dataset(f"{kind}/{name}", shape=parameters[name].shape, dtype=dtype,
                                                      track_times=False)
        state = self.file.create_group("state")
        progress = progress or Progress(adam_step=step)
        counters = {"step": step, "seed": seed} | vars(progress)
        for key, value in counters.items():
            state.attrs.create(key, value, dtype=np.int64)
        if tokenizer:
            group = self.file.create_group("tokenizer")
            for key, text in tokenizer.items():
                hdf5.set_text(group, key, text, attribute=True)
        hdf5.set_text(self.file, "deck", deck, attribute=False)
        if hugging_face:
            hdf5.set_text(self.file, "hugging_face", hugging_face, attribute=False)
        if adapters:
            hdf5.set_text(self.file, "adapters", adapters, attribute=False)
        group = self.file.create_group("provenance")
        for key, text in (provenance or {}).items():
            hdf5.set_text(group, key, text, attribute=True)

    def dataset(self, name: str) -> h5py.Dataset:
        return self.file["parameters/" + name]

    def moment(self, kind: str, name: str) -> h5py.Dataset:
        return self.file[f"optimizer/{kind}/{name}"]

    def commit(self) -> None:
        self.file.close()
        (self.folder / MANIFEST_FILE).unlink(missing_ok=True)
        os.replace(self.temporary, self.folder / CHECKPOINT_FILE)
        write_manifest(self.folder, self.step)

    def __enter__(self) -> CheckpointWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None,
                 trace: TracebackType | None) -> None:
        if self.file:
            self.file.close()
        if value is not None:
            self.temporary.unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # not empty
                self.folder.rmdir()


def open_checkpoint(folder: Path, *, verify: bool = True) -> h5py.File:
    """Opens the checkpoint of a step folder for reading, after its hashes were checked."""
    folder = Path(folder)
    if verify:
        verify_checkpoint(folder)
    path = folder / CHECKPOINT_FILE
    try:
        return h5py.File(path, "r")
    except OSError as error:
        raise common.ToolError(f"{path}: cannot be opened as HDF5 ({error})") from None


def check_parameters(file: h5py.File, sizes: ModelSizes) -> None:
    """common.ToolError unless /parameters is of `sizes` alone and holds exactly their tensors, plain and in full."""
    for key, value in sizes.unknown.items():
        raise common.ToolError(f"{file.filename}: /parameters has the attribute {key} = {value!r}, of a newer "
                               "nanotron_hpc than this tool: what such a model computes is not known here")
    expected = sizes.parameter_shapes()
    found = {}

    def visit(name: str, item: h5py.Dataset) -> None:
        if isinstance(item, h5py.Dataset):
            found[name] = item

    file["parameters"].visititems(visit)
    where = file.filename
    for name in sorted(expected.keys() | found.keys()):
        if name not in found:
            raise common.ToolError(f"{where}: /parameters/{name} is missing")
        if name not in expected:
            raise common.ToolError(f"{where}: /parameters/{name} does not belong to this model")
        item = found[name]
        if tuple(item.shape) != expected[name]:
            raise common.ToolError(f"{where}: /parameters/{name}: expected shape {expected[name]}, "
                            f"found {tuple(item.shape)}")
        if item.dtype.kind != "f" or item.external or item.is_virtual:
            raise common.ToolError(f"{where}: /parameters/{name}: expected floats stored in the file")


def deck_values(text: str) -> dict[str, str]:
    """'group.key' -> first value of a canonical deck (a key on each line), quotes taken off."""
    values, group = {}, ""
    for line in text.splitlines():
        if match := re.match(r"&(\w+)", line):
            group = match[1]
        elif match := re.match(r"\s+(\w+)\s*=\s*(?:'((?:[^']|'')*)'|([^\s,!]+))", line):
            values[f"{group}.{match[1]}"] = (match[2] or "").replace("''", "'") if match[3] is None else match[3]
    return values


def resolve_checkpoint(path: Path) -> Path:
    """A step folder as given, or the newest valid one in a run or checkpoints folder."""
    path = Path(path)
    if path.name == CHECKPOINT_FILE and path.is_file():
        return path.parent
    if (path / CHECKPOINT_FILE).is_file() or (path / MANIFEST_FILE).is_file():
        return path
    for folder in reversed(list_checkpoints(path)):
        try:
            verify_checkpoint(folder)
            return folder
        except common.ToolError:
            continue
    raise common.ToolError(f"{path}: no valid checkpoint here (looked for step_*/{MANIFEST_FILE})")


def size_of(path: Path) -> int | None:
    """In bytes; None of what is not there: a run renames and removes its files."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return None


def unfinished_checkpoints(path: Path) -> list[Path]:
    """Folders step_XXXXXXXX.partial: being written now, or left by a job that was killed."""
    return sorted({*Path(path).glob("checkpoints/step_*.partial"),
                   *Path(path).glob("step_*.partial")})


def list_checkpoints(path: Path) -> list[Path]:
    """Step folders of a run folder or a checkpoints folder, oldest first, valid or not."""
    for folder in (Path(path) / "checkpoints", Path(path)):
        if folder.is_dir():
            found = [(int(match[1]), item) for item in folder.iterdir()
                     if item.is_dir() and (match := STEP_FOLDER.match(item.name))]
            if found:
                return [item for _, item in sorted(found)]
    return []
