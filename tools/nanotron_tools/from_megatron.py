"""nanotron-convert from-megatron: a checkpoint of Megatron-LM, weights and moments, as one of ours."""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from . import checkpoint, common, hdf5, megatron_deck
from . import megatron_model as names
from . import safetensors as st
from .megatron_dist import Dist
from .megatron_ranks import MOMENTS, Ranks
from .model_sizes import ModelSizes
from .taken_over import Filled, Left

TRACKER = "latest_checkpointed_iteration.txt"
Source = Dist | Ranks


def folder_of(path: Path, step: int | None) -> Path:
    """iter_XXXXXXX of a folder of --save: the one of its tracker file, or of `step`."""
    if not path.is_dir():
        raise common.wrong(path, "a folder of Megatron-LM's --save", "no such folder", "name another one")
    tracker = path / TRACKER
    if step is None and not tracker.is_file():
        return path
    text = f"{step}" if step is not None else tracker.read_text(encoding="utf-8", errors="replace").strip()
    if not text.isdecimal() and text != "release":
        raise common.wrong(tracker, "a number of steps, or release", f"{text!r:.40}", "name iter_XXXXXXX itself")
    folder = path / (text if text == "release" else f"iter_{int(text):07d}")
    if not folder.is_dir():
        raise common.wrong(path, folder.name, "no such folder", "copy it, or choose another with --step")
    return folder


def open_source(folder: Path) -> Source:
    content = folder / "metadata.json"
    backend = str(st.read_json(content).get("sharded_backend", "")) if content.is_file() else ""
    if backend not in ("", "torch_dist"):
        raise common.wrong(content, "the format torch_dist", backend,
                           "load and save the run with --ckpt-format torch_dist")
    if backend or (folder / ".metadata").is_file():
        return Dist(folder)
    return Ranks(folder)


def check_names(source: Source, sizes: ModelSizes) -> None:
    known = {*names.all_names(sizes)} | ({"output_layer.weight"} if sizes.tie_word_embeddings else set())
    if unknown := source.unknown_names(known):
        raise common.wrong(source.where, "the tensors of such a model", f"{len(unknown)} more, such as {unknown[0]}",
                           "models with these parts are not read from Megatron-LM yet")


def write_tensors(source: Source, sizes: ModelSizes, writer: checkpoint.CheckpointWriter, moments: bool) -> None:
    shapes = sizes.parameter_shapes()
    for kind in ("weights", *(MOMENTS if moments else ())):
        filled = Filled()
        for name in names.all_names(sizes):
            whole = source.weight(name, sizes) if kind == "weights" else source.moment(kind, name, sizes)
            for dataset, index, values in names.to_ours(name, whole, sizes):
                target = writer.dataset(dataset) if kind == "weights" else writer.moment(kind, dataset)
                target[index if index else ...] = values
                filled.add(dataset, values.size)
        filled.check(shapes, kind, source.where)


def describe(source: Source, sizes: ModelSizes, adam_step: int | None) -> str:
    parameters = sum(math.prod(shape) for shape in sizes.parameter_shapes().values())
    what = f"moments of {adam_step} steps of Adam" if adam_step is not None else "no moments"
    return f"{source.kind}, tp {source.tp} x pp {source.pp}: {parameters:,} parameters, {what}"


def _progress(args: Mapping[str, Any], adam_step: int | None) -> checkpoint.Progress:
    samples = int(args.get("consumed_train_samples") or 0)
    return checkpoint.Progress(tokens_seen=samples * int(args.get("seq_length") or 0), sample_cursor=samples,
                               adam_step=adam_step or 0)


def find_moments(source: Source, sizes: ModelSizes, wanted: bool, left: Left) -> int | None:
    """Updates that they have seen; None without moments."""
    if not wanted:
        left.say("the optimizer", "--no-optimizer: the run continues with zero moments")
        return None
    kind = source.args.get("optimizer", "adam")
    if kind != "adam":
        left.say(f"the states of --optimizer {kind}", "only those of adam are read: the moments begin with zero")
        return None
    if not source.find_moments(sizes):
        left.say("the optimizer", "the checkpoint has no states of it: the run continues with zero moments")
        return None
    return source.step if source.adam_step is None else source.adam_step


def run(options: argparse.Namespace) -> int:
    source = open_source(folder_of(Path(options.source), options.step))
    sizes = names.sizes_of(source.args, source.vocab_size, source.where)
    check_names(source, sizes)
    left = Left()
    adam_step = find_moments(source, sizes, not options.no_optimizer, left)
    if (true := source.args.get("vocab_size")) and true != sizes.vocab_size:
        left.say(f"the vocabulary of {true}", f"it stays padded to {sizes.vocab_size}: the padding takes part in the "
                 "softmax and has moments")
    deck = megatron_deck.deck_of(source.args, sizes.dense_values(), source.step, options.target, options.token_file,
                                 left)
    target = Path(options.target)
    folder = target / f"step_{source.step:08d}"
    if (folder / checkpoint.MANIFEST_FILE).exists() and not options.overwrite:
        raise common.ToolError(f"{folder}: holds a checkpoint already; --overwrite replaces it")
    with checkpoint.CheckpointWriter(folder, sizes, step=source.step, seed=int(source.args.get("seed") or 1234),
                                     progress=_progress(source.args, adam_step),
                                     moments=MOMENTS if adam_step is not None else (),
                                     provenance=hdf5.tool_provenance("nanotron_convert")
                                     | {"source": str(source.where)}) as writer:
        write_tensors(source, sizes, writer, adam_step is not None)
        writer.commit()
    checkpoint.write_atomically(target / "continue.deck", deck)
    print(f"{folder}: {describe(source, sizes, adam_step)}")
    print(f"{target / 'continue.deck'}: the deck to continue with")
    print("\n".join(left.text()))
    return 0


def add_command(commands: Any) -> argparse.ArgumentParser:
    read: argparse.ArgumentParser = commands.add_parser("from-megatron", help="Megatron-LM's checkpoint -> checkpoint")
    read.add_argument("source", help="folder of --save, or iter_XXXXXXX in it")
    read.add_argument("target", help="folder that gets step_XXXXXXXX and continue.deck")
    read.add_argument("--step", type=int, metavar="N", help="of the folder's checkpoints; its newest by default")
    read.add_argument("--token-file", default="tokens.h5", metavar="FILE", help="data%%path of the deck")
    read.add_argument("--no-optimizer", action="store_true", help="the weights alone")
    read.set_defaults(run=run)
    return read
