"""Converts between nanotron_hpc checkpoints and folders of other programs: Hugging Face (Llama, Mistral, Qwen, Mixtral,
GPT-2 and others; doc/fine_tuning.md has all), PEFT, Megatron-LM, Nanotron. Averages checkpoints.

    nanotron-convert from-hf  meta-llama/  run/checkpoints      -> run/checkpoints/step_00000000
    nanotron-convert to-hf    run/  exported/  --dtype bf16
    nanotron-convert merge    run/  merged/checkpoints          -> merged/checkpoints/step_00000500
    nanotron-convert from-peft  adapter/  base/step_00000000  run/checkpoints
    nanotron-convert to-peft  run/  adapter/
    nanotron-convert from-megatron  megatron-run/  run/checkpoints
    nanotron-convert to-megatron  run/  megatron-run/  --tp 2 --pp 2
    nanotron-convert from-nanotron  nanotron-run/  run/checkpoints
    nanotron-convert to-nanotron  run/  nanotron-run/  --tp 2
    nanotron-convert average  a/  b/  -o averaged/checkpoints

from-hf reads config.json and model.safetensors (or the shards of model.safetensors.index.json) as
transformers 4 and 5 write them, writes step_00000000 with its manifest, prints the &model group (and
&moe) of a deck for the model and leaves it beside the step folder as model.nml. config.json and
generation_config.json are kept in the checkpoint, and a run copies them to its own checkpoints, for to-hf.
bf16 and fp16 weights are converted to fp32 without loss; infinite or NaN weights are refused. The result has no
optimizer state: a run from it starts with zero moments. A folder with later checkpoints is refused, since a run
there would resume from the newest.

to-hf takes a step folder, or the newest valid one of a run or checkpoints folder, and writes
config.json, generation_config.json and safetensors. --dtype fp32 is exact for a run in fp32 or bf16
(master weights); bf16 rounds to nearest even. The tokenizer's own files are not part of a checkpoint.
Other entries come from the options; else from the files that from-hf kept, if the run started from an
imported model; else from the checkpoint's deck (max_position_embeddings is its sequence_length) and the
deck's token file (bos and eos).

A run with &lora writes checkpoints of its adapters alone. merge adds them to the weights that they were trained on,
W + alpha / rank B A; to-hf does the same first. from-peft and to-peft read and write PEFT's folders of such adapters
(adapter_config.json, adapter_model.safetensors); from-peft prints the &lora group of a deck and leaves it as lora.nml.

from-megatron and from-nanotron read a checkpoint of Megatron-LM or of Hugging Face's Nanotron, of any tensor x pipeline
parallelism, with the moments and the master weights, and write the checkpoint and the deck that continue the run.
to-megatron and to-nanotron write one for a given parallelism (doc/coming_from.md). Pickles are read as data: nothing in
them is run. average writes the mean of the weights of checkpoints.

With --overwrite an older checkpoint, or folder of Megatron-LM or Nanotron, stays until the new one is complete.
Tensors are converted in blocks of 64 MiB. Needs numpy and h5py; the safetensors format is read and written here.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
from pathlib import Path
from typing import Any

import h5py

from . import (
    adapter_commands,
    adapters,
    average,
    common,
    from_megatron,
    hdf5,
    layouts,
    to_megatron,
    to_nanotron,
    tokenizers,
)
from . import checkpoint as checkpoint_file
from . import hf_config as hf
from . import safetensors as st
from .from_nanotron import add_command as add_from_nanotron
from .model_sizes import ModelSizes

TORCH_NAMES = {"F64": "float64", "F32": "float32", "BF16": "bfloat16"}
ORIGIN_FILE = "hugging_face.json"
SPECIAL = ("bos_token_id", "eos_token_id", "pad_token_id")


# ---------------------------------------------------------------------------------------------
# The two directions


def tokenizer_of(folder: Path) -> dict[str, str]:
    """/tokenizer of a checkpoint, of the folder's tokenizer.json; empty without one."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        return {}
    return {"name": str(path), "sha256": tokenizers.hash_of(st.read_json(path))}


def say_tokenizer(file: h5py.File, target: Path) -> None:
    """Which tokenizer's files belong into the exported folder, and whether they are there."""
    if "tokenizer" not in file:
        return
    known = {key: hdf5.as_text(value) for key, value in file["tokenizer"].attrs.items()}
    wanted, there = known.get("sha256"), tokenizer_of(target).get("sha256")
    print(f"{target}: trained with the tokenizer {known.get('name', '')!r}, sha256 {wanted or 'unknown'}")
    if wanted and there and wanted != there:
        print(f"warning: {target / 'tokenizer.json'} is another one, sha256 {there}", file=sys.stderr)


def check_target(folder: Path, options: argparse.Namespace) -> None:
    if (folder / checkpoint_file.MANIFEST_FILE).exists() and not options.overwrite:
        raise common.ToolError(f"{folder}: holds a checkpoint already; --overwrite replaces it")
    later = [item for item in checkpoint_file.list_checkpoints(folder.parent) if item.parent == folder.parent
             and item.name != folder.name]
    if later and not options.beside_later:
        raise common.ToolError(
            f"{folder.parent}: expected no later checkpoints, found {later[-1].name}: a run with checkpoint%resume = "
            "'auto' would resume from it and never read the import. Give another folder (and run%output_dir), or move "
            f"the old run away; or --beside-later, and resume with --set checkpoint.resume={folder}")


def read_origin(source: Path, config: dict[str, Any]) -> dict[str, Any]:
    generation = source / "generation_config.json"
    return {"config": config, "generation_config": st.read_json(generation) if generation.is_file() else None}


def from_hugging_face(options: argparse.Namespace) -> int:
    source = Path(options.source)
    config_path = source / "config.json"
    config = st.read_json(config_path)
    sizes = hf.sizes_from_config(config, config_path)
    for note in hf.notes(config, config_path):
        print(f"warning: {config_path}: {note}", file=sys.stderr)
    for key in hf.unknown_keys(config, config_path):
        print(f"warning: {config_path}: {key} = {config[key]!r} is unknown here and to transformers in this "
              "architecture; it is left out", file=sys.stderr)
    folder = Path(options.target) / "step_00000000"
    check_target(folder, options)
    kind = hf.kind_of_config(config, config_path)
    tensors = layouts.split_experts(layouts.with_full_names(st.read_tensors(source), kind), sizes, kind, source)
    expected = layouts.match(tensors, sizes, kind, source)
    wide = any(tensors[name].dtype == "F64" for name in expected.keys() & tensors.keys())
    with checkpoint_file.CheckpointWriter(folder, sizes, dtype="<f8" if wide else "<f4", seed=options.seed,
                             tokenizer=tokenizer_of(source), hugging_face=json.dumps(read_origin(source, config)),
                             provenance=hdf5.tool_provenance("nanotron_convert")
                             | {"source": str(source)}) as writer:
        for name, stored in expected.items():
            if name in tensors:
                layouts.load(name, stored, tensors[name], writer.dataset)
        writer.commit()
    group = sizes.deck_group(hf.balance_of(sizes, config))
    checkpoint_file.write_atomically(folder.parent / "model.nml", group)
    parameters = sum(math.prod(shape) for shape in sizes.parameter_shapes().values())
    print(f"! {folder}: {parameters:,} parameters as fp{64 if wide else 32}")
    print(group, end="")
    return 0


# ---------------------------------------------------------------------------------------------
# To Hugging Face: what is not in the weights


def origin_of(file: h5py.File, folder: Path, sizes: ModelSizes) -> dict[str, Any]:
    """What from-hf kept of the model that this run began with; empty dicts where there is none. Older checkpoints have
    it in a file beside them."""
    path = folder.resolve().parent / ORIGIN_FILE
    if "hugging_face" in file:
        found = st.json_object(hdf5.as_text(file["hugging_face"][()]), f"{file.filename}: /hugging_face")
    else:
        found = st.read_json(path) if path.is_file() else {}
    config, generation = found.get("config") or {}, found.get("generation_config") or {}
    fits = config.get("vocab_size") in (None, sizes.vocab_size) and \
        sizes.hidden_size in (config.get("hidden_size"), config.get("n_embd"))
    return {"config": config, "generation": generation} if fits else {"config": {}, "generation": {}}


def max_positions_of(options: argparse.Namespace, origin: dict[str, Any], deck: dict[str, str], sizes: ModelSizes,
                     folder: Path) -> int:
    learned = sizes.max_position_embeddings
    if learned > 0 and options.max_positions not in (None, learned):
        print(f"warning: --max-positions {options.max_positions} has no effect: the model has learned {learned} "
              "positions", file=sys.stderr)
    if learned > 0 or options.max_positions is not None:
        return learned or options.max_positions
    stages = re.findall(r"\bsequence_length=([0-9.e+]+)", deck.get("data.stages", ""))  # each from a token on
    known = [int(float(value)) for value in (origin["config"].get("max_position_embeddings"),
                                             deck.get("data.sequence_length"), *stages) if value]
    if not known:
        raise common.ToolError(f"{folder}: expected the checkpoint's deck or /hugging_face to say "
                               "max_position_embeddings, found neither: give --max-positions N", common.EXIT_USAGE)
    return max(known)


def token_file_ids(path: Path, sizes: ModelSizes) -> dict[str, Any]:
    try:
        with h5py.File(path, "r") as file:
            if int(file.attrs.get("vocab_size", 0)) > sizes.vocab_size:
                raise common.ToolError(f"{path}: its vocabulary of {file.attrs['vocab_size']} is larger than the "
                                       f"model's of {sizes.vocab_size}, so it is not the token file of this model")
            return {key: int(file.attrs[key]) for key in SPECIAL if key in file.attrs}
    except OSError as error:
        raise common.ToolError(f"{path}: cannot be read as a token file ({error})") from None


def ids_of_deck(path: Path, sizes: ModelSizes) -> dict[str, Any]:
    """Those of the deck's token file, which may have become another one: then none, with a warning."""
    try:
        return token_file_ids(path, sizes) if path.is_file() else {}
    except common.ToolError as error:
        print(f"warning: {error}; bos and eos are not taken from it", file=sys.stderr)
        return {}


def warn_of_other_eos(ours: int | None, origin: dict[str, Any], options: argparse.Namespace, path: Path) -> None:
    values = [part.get("eos_token_id") for part in (origin["config"], origin["generation"])]
    theirs = {value for item in values for value in (item if isinstance(item, list) else [item])} - {None}
    if ours is not None and theirs and ours not in theirs and options.eos_id is None:
        print(f"warning: texts of {path} end with token {ours}, the imported model stops at {sorted(theirs)}, which is "
              "exported: --eos-id or --token-file chooses", file=sys.stderr)


def first_file(paths: str) -> str:
    """Of the deck's data%path: a path, 'name=path ...' or 'weight path ...', whose files are of one tokenizer."""
    number = r"[0-9]*\.?[0-9]+(?:[eE][-+]?[0-9]+)?"
    if weighted := re.match(rf"\s*{number}\s+(\S.*?)(?:\s+{number}\s.*)?$", paths):
        paths = weighted.group(1)
    named = re.match(r"\s*[A-Za-z][A-Za-z0-9_]*=(\S+)", paths)
    return named.group(1) if named else paths


def special_ids(options: argparse.Namespace, origin: dict[str, Any], deck: dict[str, str],
                sizes: ModelSizes) -> dict[str, Any]:
    """bos, eos and pad: options, then the imported model, then the deck's token file where it still is."""
    path = Path(options.token_file or first_file(deck.get("data.path") or ""))
    ids = token_file_ids(path, sizes) if options.token_file else ids_of_deck(path, sizes)
    if not options.token_file:
        warn_of_other_eos(ids.get("eos_token_id"), origin, options, path)
        ids |= {key: origin["config"][key] for key in SPECIAL if origin["config"].get(key) is not None}
    for key, value in (("bos_token_id", options.bos_id), ("eos_token_id", options.eos_id)):
        if value is not None:
            ids[key] = None if value == "none" else int(value)
    for key in SPECIAL:
        for value in ids[key] if isinstance(ids.setdefault(key, None), list) else [ids[key]]:
            if value is not None and not 0 <= value < sizes.vocab_size:
                raise common.ToolError(f"{key}: expected an id below the vocabulary of {sizes.vocab_size}, found "
                                       f"{value}", common.EXIT_USAGE)
    if ids["eos_token_id"] is None and options.eos_id is None:
        print("warning: no token that ends a text is known, so generation will not stop by itself: give --eos-id ID, "
              "--token-file FILE, or --eos-id none", file=sys.stderr)
    return ids


def aux_loss_coef_of(origin: dict[str, Any], deck: dict[str, Any], sizes: ModelSizes) -> float:
    """In transformers' scale: per_layer counts each layer's loss, transformers num_experts_per_tok times their mean."""
    if "moe.router_aux_loss_coef" in deck:
        value = float(deck["moe.router_aux_loss_coef"].lower().replace("d", "e"))
        if deck.get("moe.router_aux_loss_scale") == "hugging_face":
            return value
        return value * sizes.num_hidden_layers / sizes.num_experts_per_tok
    return float(origin["config"].get("router_aux_loss_coef") or hf.AUX_LOSS_COEF)


def configs_of(file: h5py.File, sizes: ModelSizes, dtype: str, folder: Path,
               options: argparse.Namespace) -> tuple[dict[str, Any], dict[str, Any]]:
    """config.json and generation_config.json."""
    deck = checkpoint_file.deck_values(hdf5.as_text(file["deck"][()])) if "deck" in file else {}
    origin = origin_of(file, folder, sizes)
    special = special_ids(options, origin, deck, sizes)
    config = hf.config_from_sizes(
        sizes, folder, dtype=TORCH_NAMES[dtype], max_positions=max_positions_of(options, origin, deck, sizes, folder),
        special=special, aux_loss_coef=aux_loss_coef_of(origin, deck, sizes), imported=origin["config"],
        initializer_range=float(origin["config"].get("initializer_range") or deck.get("model.initializer_range", 0.02)))
    given = {key: value for key, value in special.items() if key not in origin["generation"] or
             getattr(options, key[:4] + "id", None) is not None or options.token_file}
    return config, origin["generation"] | given


Entry = tuple[str, str, tuple[int, ...]]  # name, type, shape of a tensor


def shards_of(entries: list[Entry], shard_bytes: int) -> list[list[Entry]]:
    """Splits the tensors, in order, into files of at most shard_bytes (or one tensor)."""
    shards: list[list[Entry]] = [[]]
    used = 0
    for entry in entries:
        size = math.prod(entry[2]) * st.BYTES_OF[entry[1]]
        if shards[-1] and used + size > shard_bytes:
            shards.append([])
            used = 0
        shards[-1].append(entry)
        used += size
    return shards


def to_hugging_face(options: argparse.Namespace) -> int:
    source, target = checkpoint_file.resolve_checkpoint(options.source), Path(options.target)
    if (target / "config.json").exists() and not options.overwrite:
        raise common.ToolError(f"{target}: holds a model already; --overwrite replaces it")
    with adapters.whole_weights(source, options.base, target) as folder:
        return export(folder, target, options)


def export(folder: Path, target: Path, options: argparse.Namespace) -> int:
    dtype = st.DTYPES[options.dtype]
    with checkpoint_file.open_checkpoint(folder) as file:
        say_tokenizer(file, target)
        if "parameters" not in file:
            raise common.ToolError(f"{folder}: no /parameters in the checkpoint")
        sizes = ModelSizes.from_attributes(file["parameters"])
        weights = average.weights_of(file, sizes, options.ema)
        config, generation = configs_of(file, sizes, dtype, folder, options)
        expected = layouts.stored_tensors(sizes, config["model_type"])
        shards = shards_of([(name, layouts.dtype_of(name, dtype), stored.shape) for name, stored in expected.items()],
                           int(options.shard_gb * 1e9))
        target.mkdir(parents=True, exist_ok=True)
        for stale in [target / "config.json", *target.glob("model*.safetensors"),
                      target / "model.safetensors.index.json"]:
            stale.unlink(missing_ok=True)
        weight_map, total = {}, 0
        for number, entries in enumerate(shards, 1):
            name = "model.safetensors" if len(shards) == 1 else \
                f"model-{number:05d}-of-{len(shards):05d}.safetensors"
            writer = st.SafetensorsWriter(target / name, entries)
            for tensor, of_tensor, shape in entries:
                layouts.save(expected[tensor], of_tensor, weights, writer)
                weight_map[tensor] = name
                total += math.prod(shape) * st.BYTES_OF[of_tensor]
            writer.commit()
    if len(shards) > 1:
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        checkpoint_file.write_atomically(target / "model.safetensors.index.json", json.dumps(index, indent=1))
    checkpoint_file.write_atomically(target / "generation_config.json", json.dumps(generation, indent=1) + "\n")
    checkpoint_file.write_atomically(target / "config.json", json.dumps(config, indent=1) + "\n")
    for text in hf.loading_limits(sizes, config["model_type"]):
        print(f"warning: {target}: {text}", file=sys.stderr)
    print(f"{target}: {config['architectures'][0]}, {len(weight_map)} tensors, "
          f"{total:,} bytes as {options.dtype}, from {checkpoint_file.resolve_checkpoint(options.source)}")
    return 0


def id_or_none(text: str) -> str:
    if text != "none" and not text.isdecimal():
        raise argparse.ArgumentTypeError(f"expected an id or none, found {text!r}")
    return text


def main(argv: list[str] | None = None) -> int:
    parser = common.parser(__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    read = commands.add_parser("from-hf", help="Hugging Face folder -> checkpoint")
    read.add_argument("source", help="folder with config.json and safetensors")
    read.add_argument("target", help="folder that gets step_00000000 and model.nml")
    read.add_argument("--seed", type=int, default=1234, help="seed noted in the checkpoint")
    read.set_defaults(run=from_hugging_face)
    taken = add_from_nanotron(commands, check_target)
    write = adapter_commands.with_base(commands.add_parser("to-hf", help="checkpoint -> Hugging Face folder"))
    average.with_ema(write)
    write.add_argument("source", help="step folder, checkpoints folder or run folder")
    write.add_argument("target", help="folder that gets config.json and safetensors")
    write.add_argument("--dtype", choices=list(st.DTYPES), default="fp32")
    write.add_argument("--shard-gb", type=float, default=5.0, metavar="GB")
    write.add_argument("--max-positions", type=int, metavar="N",
                       help="max_position_embeddings (default: the imported model's, or the run's sequence_length)")
    write.add_argument("--bos-id", type=id_or_none, metavar="ID|none", help="bos_token_id")
    write.add_argument("--eos-id", type=id_or_none, metavar="ID|none", help="eos_token_id")
    write.add_argument("--token-file", type=Path, metavar="FILE", help="token file that says bos and eos")
    write.set_defaults(run=to_hugging_face)
    adapted = adapter_commands.add_commands(commands, check_target)
    for command in (read, taken):
        command.add_argument("--beside-later", action="store_true",
                             help="import even where the folder has later checkpoints, which 'auto' resumes from")
    others = (from_megatron.add_command(commands), to_megatron.add_command(commands),
              to_nanotron.add_command(commands),
              average.add_command(commands, check_target))
    for command in (read, taken, write, *adapted, *others):
        command.add_argument("--overwrite", action="store_true")
    options = parser.parse_args(argv)
    for name in ("shard_gb", "max_positions"):
        if (value := getattr(options, name, None)) is not None and value <= 0:
            parser.error(f"--{name.replace('_', '-')}: expected a positive number, found {value}")
    code: int = options.run(options)
    return code
