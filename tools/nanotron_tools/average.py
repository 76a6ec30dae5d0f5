"""The weights of a checkpoint, or the mean of several: nanotron-convert average, and to-hf --ema."""

from __future__ import annotations

import argparse
import contextlib
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from . import checkpoint as checkpoint_file
from . import common, hdf5
from .model_sizes import ModelSizes
from .safetensors import PIECE_BYTES

EMA = "optimizer/ema"
KEPT = ("state", "tokenizer", "data", "deck", "hugging_face")  # of the newest checkpoint


def weights_of(file: h5py.File, sizes: ModelSizes, ema: bool) -> Callable[[str], h5py.Dataset]:
    """Name of a parameter -> its dataset. ema: of the average that training kept (optimizer%ema_decay), which has no
    parameters without a gradient."""
    checkpoint_file.check_parameters(file, sizes)
    if not ema:
        return lambda name: file["parameters/" + name]
    if EMA not in file:
        raise common.wrong(file.filename, "an average of the weights (--ema)", "none",
                           "train with optimizer%ema_decay > 0, or leave out --ema")
    for name in checkpoint_file.trained_by_gradient(sizes):
        item = file[EMA].get(name)
        if not isinstance(item, h5py.Dataset) or item.shape != sizes.parameter_shapes()[name] or \
                item.dtype.kind != "f" or item.external or item.is_virtual:
            raise common.ToolError(f"{file.filename}: /{EMA}/{name}: expected floats of the shape "
                                   f"{sizes.parameter_shapes()[name]}, stored in the file")
    return lambda name: file[f"{EMA}/{name}"] if name in file[EMA] else file["parameters/" + name]


def pieces(shape: tuple[int, ...]) -> Iterator[tuple[slice | int, ...]]:
    """Slices that cover an array, each of at most PIECE_BYTES in float64, or of one row."""
    if 8 * math.prod(shape) <= PIECE_BYTES or len(shape) == 0:
        yield (slice(None),) * len(shape)
    elif len(shape) > 2 and 8 * math.prod(shape[1:]) > PIECE_BYTES:
        for index in range(shape[0]):
            yield from ((index, *rest) for rest in pieces(shape[1:]))
    else:
        rows = max(1, PIECE_BYTES // (8 * max(1, math.prod(shape[1:]))))
        for begin in range(0, shape[0], rows):
            yield (slice(begin, min(begin + rows, shape[0])), *(slice(None),) * (len(shape) - 1))


def shares_of(options: argparse.Namespace) -> list[float]:
    """Of each checkpoint; they add up to 1."""
    count = len(options.sources)
    if options.weights is None:
        return [1.0 / count] * count
    try:
        given = [float(word) for word in options.weights.split(",")]
    except ValueError:
        given = []
    total, size = sum(given), sum(map(abs, given))
    if len(given) != count or not math.isfinite(size) or not abs(total) > 1e-6 * size:
        raise common.ToolError(f"--weights {options.weights}: expected {count} numbers, one of each checkpoint, with "
                               "commas between them and a sum that is not 0", common.EXIT_USAGE)
    return [share / total for share in given]


def text_attributes(file: h5py.File, group: str) -> dict[str, str]:
    return {key: hdf5.as_text(value) for key, value in file[group].attrs.items()} if group in file else {}


def require_alike(files: list[h5py.File], sizes: list[ModelSizes]) -> None:
    """The same model and, as far as they are known, the same tokenizer."""
    for file, other in zip(files[1:], sizes[1:]):
        if other != sizes[0]:
            differing = [key for key, value in vars(sizes[0]).items() if vars(other)[key] != value]
            raise common.wrong(file.filename, f"the model of {files[0].filename}", f"another {', '.join(differing)}",
                               "average checkpoints of one model")
        ours, theirs = text_attributes(file, "tokenizer"), text_attributes(files[0], "tokenizer")
        for key in ("sha256", "vocabulary_xxh3_128"):
            if ours.get(key) and theirs.get(key) and ours[key] != theirs[key]:
                raise common.wrong(file.filename, f"the tokenizer of {files[0].filename}", f"another {key}",
                                   "average checkpoints that were trained with one tokenizer")


def step_of(file: h5py.File) -> int:
    return int(file["state"].attrs["step"])


def take_over(newest: h5py.File, target: h5py.File) -> None:
    """Counters, data and deck: a run from the average continues as one from that checkpoint, with zero moments."""
    for name in KEPT:
        if name in newest:
            if name in target:
                del target[name]
            newest.copy(name, target)
    target["state"].attrs.modify("adam_step", np.int64(0))

    def keep_attributes(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset):
            for key, value in newest["parameters/" + name].attrs.items():
                item.attrs[key] = value

    target["parameters"].visititems(keep_attributes)


def average(options: argparse.Namespace) -> int:
    shares = shares_of(options)
    folders = [checkpoint_file.resolve_checkpoint(source) for source in options.sources]
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(checkpoint_file.open_checkpoint(folder)) for folder in folders]
        sizes = [ModelSizes.from_attributes(file["parameters"]) for file in files]
        require_alike(files, sizes)
        sources = [weights_of(file, size, options.ema) for file, size in zip(files, sizes)]
        newest = max(files, key=step_of)
        target = Path(options.output) / f"step_{step_of(newest):08d}"
        if any(target.exists() and target.samefile(folder) for folder in folders):
            raise common.wrong(target, "another folder than those that are averaged", "one of them",
                               "give another --output", common.EXIT_USAGE)
        options.check_target(target, options)
        shapes = sizes[0].parameter_shapes()
        wide = any(source(name).dtype.itemsize > 4 for source in sources for name in shapes)
        provenance = hdf5.tool_provenance("nanotron_convert") | {
            "averaged": ", ".join(f"{share:.6g} of {folder}" for share, folder in zip(shares, folders)),
            "weights": "exponential moving average" if options.ema else "parameters"}
        with checkpoint_file.CheckpointWriter(target, sizes[0], dtype="<f8" if wide else "<f4", step=step_of(newest),
                                              provenance=provenance) as writer:
            for name, shape in shapes.items():
                for piece in pieces(shape):
                    mean = sum(share * source(name)[piece].astype(np.float64) for share, source in zip(shares, sources))
                    writer.dataset(name)[piece] = mean
            take_over(newest, writer.file)
            writer.commit()
    parameters = sum(math.prod(shape) for shape in shapes.values())
    print(f"{target}: {parameters:,} parameters, the mean of {len(folders)} checkpoint{'s' * (len(folders) > 1)}"
          + (", of their moving averages" if options.ema else "") + "; no moments")
    return 0


def with_ema(command: argparse.ArgumentParser) -> argparse.ArgumentParser:
    command.add_argument("--ema", action="store_true", help="of the moving averages (optimizer%%ema_decay)")
    return command


def add_command(commands: Any, check_target: Callable[[Path, argparse.Namespace], None]) -> argparse.ArgumentParser:
    command: argparse.ArgumentParser = commands.add_parser(
        "average", help="mean of the weights of checkpoints -> checkpoint without moments",
        description="The mean of the weights of checkpoints of one model, of any grids. The result has the counters, "
                    "deck and data of the newest one and no moments: it can be exported, evaluated, and trained on.")
    command.add_argument("sources", nargs="+", metavar="CHECKPOINT",
                         help="step folder, checkpoints folder or run folder")
    command.add_argument("--output", "-o", required=True, metavar="FOLDER",
                         help="folder that gets step_<that of the newest>")
    command.add_argument("--weights", metavar="W1,W2,...", help="one of each checkpoint; they are divided by their sum")
    with_ema(command)
    command.add_argument("--beside-later", action="store_true",
                         help="write even where the folder has later checkpoints, which 'auto' resumes from")
    command.set_defaults(run=average, check_target=check_target)
    return command
