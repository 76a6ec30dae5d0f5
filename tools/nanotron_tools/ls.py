"""Lists what is in a checkpoint, a run directory or a token file.

    nanotron-ls run/checkpoints/step_00000100     tensors, state, provenance; hashes verified
    nanotron-ls run/                              every checkpoint, valid or damaged; metrics
    nanotron-ls tokens.h5 --text 400              sizes, vocabulary, the first 400 tokens as text

Exit code 0, or 65 when something named is damaged or cannot be read.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import h5py
import numpy as np

from . import checkpoint as checkpoint_file
from . import common, hdf5, token_file
from .tables import human, table


def attribute_rows(item: h5py.HLObject) -> list[tuple[str, str]]:
    return [(key, hdf5.as_text(value)) for key, value in item.attrs.items()]


def datasets_below(group: h5py.Group) -> list[tuple[str, h5py.Dataset]]:
    found: list[tuple[str, h5py.Dataset]] = []
    group.visititems(lambda name, item: found.append((name, item))
                     if isinstance(item, h5py.Dataset) else None)
    return found


# ---------------------------------------------------------------------------------------------


def list_checkpoint(folder: Path, options: argparse.Namespace) -> int:
    """Prints one step folder; damage found by the manifest ends the listing."""
    print(f"checkpoint {folder}")
    manifest = checkpoint_file.read_manifest(folder) if options.no_verify else checkpoint_file.verify_checkpoint(folder)
    state = "not verified (--no-verify)" if options.no_verify else \
        f"verified, {len(manifest['blocks'])} XXH3 blocks"
    print(f"  {human(manifest['bytes'])} in {manifest['file']}; manifest {state}")
    with checkpoint_file.open_checkpoint(folder, verify=False) as file:
        for title in ("state", "parameters", "tokenizer", "provenance"):
            if title in file and len(file[title].attrs):
                print("model" if title == "parameters" else title)
                table(attribute_rows(file[title]))
        list_data(file)
        for title in ("parameters", *(f"optimizer/{name}" for name in sorted(file.get("optimizer", ())))):
            if title in file:
                list_tensors(title, datasets_below(file[title]), options.values)
        if "optimizer" not in file:
            print("optimizer\n  none: a run from here starts with zero moments")
        if options.deck:
            print("deck")
            print(hdf5.as_text(file["deck"][()]) or "  (empty)")
    return 0


def list_data(file: h5py.File) -> None:
    """The token files of the run, as far as the checkpoint says them."""
    rows = []
    for number in sorted(file["data"], key=int) if "data" in file else ():
        said = {key: hdf5.as_text(value) for key, value in file["data"][number].attrs.items()}
        proof = f"content {said['content']}" if "content" in said else f"sample {said.get('sample', 'unknown')}"
        rows.append((said.get("use", ""), said.get("name", ""), f"{int(said['tokens']):,} tokens", proof))
    if rows:
        print("data")
        table(rows)


def type_of(item: h5py.Dataset) -> str:
    """The type in the file. NumPy has no bfloat16: h5py reads it as float32."""
    return "bfloat16" if item.dtype.kind == "f" and item.id.get_type().get_size() == 2 else str(item.dtype)


def list_tensors(title: str, items: list[tuple[str, h5py.Dataset]], values: bool) -> None:
    count = sum(math.prod(item.shape) for _, item in items)
    size = sum(math.prod(item.shape) * item.id.get_type().get_size() for _, item in items)
    print(f"{title}: {len(items)} tensors, {count:,} numbers, {human(size)}")
    rows = []
    for name, item in items:
        row: tuple[str, ...] = (name, type_of(item), " x ".join(map(str, item.shape)))
        if values:
            row += moments_of(item)
        rows.append(row)
    table(rows)


def moments_of(item: h5py.Dataset) -> tuple[str, ...]:
    """Mean, standard deviation and largest magnitude, read slice by slice."""
    total, square, largest = 0.0, 0.0, 0.0
    for index in range(item.shape[0]):
        block = item[index].astype(np.float64)
        total, square = total + block.sum(), square + (block * block).sum()
        largest = max(largest, float(np.abs(block).max()))
    count = math.prod(item.shape)
    mean = total / count
    deviation = math.sqrt(max(0.0, square / count - mean * mean))
    return (f"mean {mean:+.3e}", f"std {deviation:.3e}", f"max {largest:.3e}")


def list_run(folder: Path, options: argparse.Namespace) -> int:
    """Prints all checkpoints of a run and the end of its metrics; 65 when one is damaged."""
    print(f"run {folder}")
    rows, damaged, newest = [], 0, None
    for step in checkpoint_file.list_checkpoints(folder):
        found = checkpoint_file.size_of(step / checkpoint_file.CHECKPOINT_FILE)
        size = "-" if found is None else human(found)
        try:
            checkpoint_file.read_manifest(step) if options.no_verify else checkpoint_file.verify_checkpoint(step)
            rows.append((step.name, size, "not verified" if options.no_verify else "valid"))
            newest = step
        except common.ToolError as error:
            if not step.is_dir():  # a run removes its oldest
                continue
            damaged += 1
            rows.append((step.name, size, f"DAMAGED: {error}"))
    rows += [(path.name, "-", "unfinished: being written, or left by a killed job")
             for path in checkpoint_file.unfinished_checkpoints(folder)]
    print(f"checkpoints: {len(rows)}, {damaged} damaged" if rows else "checkpoints: none")
    table(rows)
    if newest is not None:
        print(f"resume='auto' takes {newest.name}")
    metrics = folder / "metrics.h5"
    if metrics.is_file():
        list_metrics(metrics)
    return common.EXIT_DATA if damaged else 0


def list_metrics(path: Path) -> None:
    try:
        with h5py.File(path, "r") as file:
            names = [name for name, item in file.items()
                     if isinstance(item, h5py.Dataset) and item.ndim == 1]
            print(f"metrics {path}")
            table([(name, int(file[name].shape[0]),
                    f"last {file[name][-1]:.6g}" if file[name].shape[0] else "")
                   for name in names])
    except OSError as error:
        print(f"metrics {path}: cannot be read now ({error})")


def list_tokens(path: Path, options: argparse.Namespace) -> int:
    with h5py.File(path, "r") as file:
        tokens = file["tokens"]
        print(f"token file {path}")
        rows = [("tokens", f"{tokens.shape[0]:,} as {tokens.dtype}, {human(path.stat().st_size)}")]
        if "documents" in file:
            rows.append(("documents", f"{file['documents'].shape[0]:,}"))
        if "loss_mask" in file:
            rows.append(("loss mask", "of every token"))
        if "hashes" in file:
            hashes = file["hashes"].attrs
            rows.append(("hashes", f"of blocks of {hashes['block']} values, content {hdf5.as_text(hashes['content'])}"))
        else:
            rows.append(("hashes", "none: nanotron-verify --add writes them"))
        table(rows + [row for row in attribute_rows(file) if row[0] != "vocabulary_layout"])
        if "provenance" in file:
            print("provenance")
            table(attribute_rows(file["provenance"]))
        if options.text:
            print_text(file, options.text)
    return 0


def print_text(file: h5py.File, count: int) -> None:
    vocabulary = token_file.read_vocabulary(file)
    if vocabulary is None:
        raise common.ToolError(f"{file.filename}: no /vocabulary, so tokens have no text")
    ids = file["tokens"][:count]
    print("text")
    print(b"".join(vocabulary[index] for index in ids).decode("utf-8", "replace"))


def list_path(path: Path, options: argparse.Namespace) -> int:
    if path.name == checkpoint_file.CHECKPOINT_FILE:
        path = path.parent
    if path.is_dir():
        if checkpoint_file.STEP_FOLDER.match(path.name) or (path / checkpoint_file.CHECKPOINT_FILE).exists():
            return list_checkpoint(path, options)
        if checkpoint_file.list_checkpoints(path) or (path / "metrics.h5").is_file():
            return list_run(path, options)
        raise common.ToolError(f"{path}: neither a checkpoint nor a run directory")
    if not path.is_file():
        raise common.ToolError(f"{path}: no such file or folder")
    try:
        with h5py.File(path, "r") as file:
            kind = "tokens" if "tokens" in file else "metrics" if "step" in file else ""
    except OSError as error:
        raise common.ToolError(f"{path}: not a readable HDF5 file ({error})") from None
    if kind == "tokens":
        return list_tokens(path, options)
    if kind == "metrics":
        list_metrics(path)
        return 0
    raise common.ToolError(f"{path}: neither a token file nor metrics")


def main(argv: list[str] | None = None) -> int:
    parser = common.parser(__doc__)
    parser.add_argument("paths", nargs="+", type=Path)
    parser.add_argument("--deck", action="store_true", help="print the checkpoint's deck")
    parser.add_argument("--values", action="store_true", help="mean, deviation, maximum of tensors")
    parser.add_argument("--text", type=int, default=0, metavar="N", help="N tokens as text")
    parser.add_argument("--no-verify", action="store_true", help="do not read data to hash it")
    options = parser.parse_args(argv)
    return common.for_each(options.paths, lambda path: list_path(path, options))
