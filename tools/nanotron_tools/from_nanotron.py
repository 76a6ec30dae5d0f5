"""nanotron-convert from-nanotron: a checkpoint folder of Hugging Face's Nanotron -> a checkpoint and a deck."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from . import checkpoint as checkpoint_file
from . import common, hdf5, nanotron_folder, nanotron_names, taken_over
from . import safetensors as st
from .model_sizes import ModelSizes
from .nanotron_folder import Optimizer, Shard
from .nanotron_names import Whole
from .taken_over import Filled, Left

DECK_FILE = "input.deck"
KIND_OF_DECAY = {"linear": "linear", "cosine": "cosine", "1-sqrt": "1-sqrt"}
COMPUTE_OF = {"float32": "fp32", "bfloat16": "bf16", "float64": "fp64"}


def yaml_of(path: Path) -> dict[str, Any]:
    yaml = common.require("yaml")
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise common.ToolError(f"{path}: cannot be read ({error.strerror})") from None
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise common.wrong(path, "YAML of plain values", f"{error}"[:300], "copy the file again") from None
    if not isinstance(found, dict):
        raise common.wrong(path, "the groups of a configuration", type(found).__name__, "copy the file again")
    return found


class Config:
    """config.yaml; missing keys are errors with their names."""

    def __init__(self, path: Path):
        self.path, self.values = path, yaml_of(path)

    def get(self, name: str, default: Any = None) -> Any:
        found: Any = self.values
        for key in name.split("."):
            found = found.get(key) if isinstance(found, dict) else None
        return default if found is None else found

    def need(self, name: str) -> Any:
        if (found := self.get(name)) is None:
            raise common.wrong(f"{self.path}, {name}", "a value", "none", "copy config.yaml of the checkpoint")
        return found

    def number(self, name: str) -> float:
        found = self.need(name)
        try:
            return float(found)  # YAML of Python reads 1e-5 as a text
        except (TypeError, ValueError):
            raise common.wrong(f"{self.path}, {name}", "a number", f"{found!r:.60}", "correct it") from None

    def count(self, name: str) -> int:
        found = self.number(name)
        if not found.is_integer() or not 0 <= found < 1 << 53:
            raise common.wrong(f"{self.path}, {name}", "a count", f"{found}", "correct it")
        return int(found)


# ---------------------------------------------------------------------------------------------
# The deck


def schedule_of(config: Config, step: int, left: Left) -> tuple[dict[str, Any], dict[str, Any]]:
    """&schedule, and the keys of &run that belong to it. Nanotron's rate of update i (from 0) is in the warm-up
    i / warmup, ours (i + 1) / warmup; after it they are equal."""
    scheme = "optimizer.learning_rate_scheduler."
    rate, warmup = config.number(scheme + "learning_rate"), config.count(scheme + "lr_warmup_steps")
    total = config.count("tokens.train_steps")
    style = str(config.get(scheme + "lr_decay_style", "linear"))
    if style not in KIND_OF_DECAY:
        raise nanotron_names.refuse_key(config.path, scheme + "lr_decay_style", style, ", ".join(KIND_OF_DECAY))

    def given(key: str, default: int) -> int:
        return default if config.get(scheme + key) is None else config.count(scheme + key)

    begin = given("lr_decay_starting_step", warmup)
    length = given("lr_decay_steps", max(0, total - warmup))
    lowest = rate if config.get(scheme + "min_decay_lr") is None else config.number(scheme + "min_decay_lr")
    run: dict[str, Any] = {"steps": total}
    if step < warmup:
        left.say("learning rate of the warm-up", f"update i has (i + 1) / {warmup} of the peak, Nanotron's has i / "
                 f"{warmup}; equal from update {warmup} on")
    ratio = lowest / rate if rate > 0 else 0.0
    if ratio > 1:
        raise nanotron_names.refuse_key(config.path, scheme + "min_decay_lr", lowest, f"at most the peak {rate}")
    if ratio == 1 or length == 0:
        if ratio != 1 and begin < total:
            left.say(scheme + "lr_decay_steps = 0", f"the rate stays at the peak, Nanotron's is min_decay_lr from step "
                     f"{begin} on")
        return {"kind": "constant", "warmup_steps": warmup}, run
    if begin == warmup or step >= begin:  # what came before the decay is over
        return {"kind": KIND_OF_DECAY[style], "warmup_steps": begin, "decay_steps": length, "min_lr_ratio": ratio}, run
    run["steps"] = begin + length
    if run["steps"] > total:
        run["stop_after_steps"] = total - step
    elif run["steps"] < total:
        left.say(f"steps {run['steps']} to {total}", "Nanotron's are at min_decay_lr; this run ends with its decay")
    return {"kind": "wsd", "warmup_steps": warmup, "decay_steps": length, "decay_shape": KIND_OF_DECAY[style],
            "min_lr_ratio": ratio}, run


def weight_decay_of(optimizer: Optimizer | None, wholes: Sequence[Whole], config: Config, left: Left) -> dict[str, Any]:
    """Of all parameters by default, as there; those without it by name."""
    decay = config.number("optimizer.weight_decay")
    patterns: list[str] = []
    for whole in wholes if optimizer else ():
        assert optimizer is not None
        group = optimizer.states_of(0, whole.name)[0].group
        found, rate = group.get("weight_decay", decay), group.get("initial_lr")
        if found not in (0.0, decay):
            left.say(f"weight decay {found} of {whole.name}", f"it is {decay} here, as that of config.yaml")
        if rate not in (None, config.number("optimizer.learning_rate_scheduler.learning_rate")):
            raise nanotron_names.refuse_key(config.path, f"learning rate of {whole.name}", rate,
                                            "one for all parameters")
        if found == 0.0 and decay > 0:
            patterns += [part.dataset.replace("/", ".") for part in whole.parts]
    if optimizer is None and config.get("optimizer.weight_decay_exclude_named_params"):
        left.say("optimizer.weight_decay_exclude_named_params", "which parameters they are is in the optimizer's files")
    return {"weight_decay": decay, "no_weight_decay": " ".join(["!*", *dict.fromkeys(patterns)])}


def model_group(sizes: ModelSizes, config: Config, left: Left) -> str:
    std = config.get("model.init_method.std")
    if config.get("model.init_method.use_mup"):
        raise nanotron_names.refuse_key(config.path, "model.init_method.use_mup", True, "the standard parametrization")
    if std is None:
        left.say("model.init_method", "only initial weights depend on it")
    text = sizes.deck_group()
    return text if std is None else text.replace("\n/\n", f"\n  {'initializer_range':<20} = {float(std)!r}\n/\n", 1)


def batch_of(config: Config, options: argparse.Namespace, left: Left) -> dict[str, Any]:
    micro, accumulated = config.count("tokens.micro_batch_size"), config.count("tokens.batch_accumulation_per_replica")
    stages = config.get("data_stages", [])
    folders = sorted(set(re.findall(r"'dataset_folder': (\[.*?\]|'.*?')", str(stages))))
    if not options.data:
        left.say("data", f"of {', '.join(folders) or 'the configured data set'}: make a token file with "
                 "nanotron-import (.ds files) or nanotron-tokenize and name it in data%path, or give --data FILE")
    if len(stages) > 1:
        left.say(f"{len(stages)} data stages", "write them as data%stages")
    left.say("order of the samples", "the run continues at the same number of samples, in its own order (data%shuffle)")
    masked = bool(config.get("model.model_config._use_doc_masking"))
    return {"path": options.data or "tokens.h5", "sequence_length": config.count("tokens.sequence_length"),
            "global_batch_size": micro * accumulated * config.count("parallelism.dp"), "micro_batch_size": micro,
            "document_mask": "block_diagonal" if masked else None}


def deck_of(sizes: ModelSizes, config: Config, optimizer: Optimizer | None, wholes: Sequence[Whole], step: int,
            options: argparse.Namespace, left: Left) -> str:
    factory = "optimizer.optimizer_factory."
    if config.need(factory + "name") != "adamW":
        raise nanotron_names.refuse_key(config.path, factory + "name", config.get(factory + "name"), "adamW")
    dtype = str(config.get("model.dtype", "float32")).removeprefix("torch.")
    if dtype not in COMPUTE_OF:
        raise nanotron_names.refuse_key(config.path, "model.dtype", dtype, ", ".join(COMPUTE_OF))
    if dtype == "bfloat16" and not config.get("optimizer.accumulate_grad_in_fp32"):
        left.say("bf16 weights without fp32 copies", "this run has fp32 copies, which begin equal to them")
    schedule, run = schedule_of(config, step, left)
    clip = config.get("optimizer.clip_grad")
    z_loss = config.get("model.model_config.z_loss_enabled")
    if z_loss:
        left.say("z loss", "Nanotron's is of logits minus their largest, here it is of the logits; same coefficient")
    target = Path(options.target)
    groups: dict[str, dict[str, Any]] = {
        "run": {"title": str(config.get("general.run", "")) or None, "seed": config.get("general.seed"), **run,
                "output_dir": str(target.parent if target.name == "checkpoints" else target)},
        "optimizer": {"learning_rate": config.number("optimizer.learning_rate_scheduler.learning_rate"),
                      "beta1": config.number(factory + "adam_beta1"), "beta2": config.number(factory + "adam_beta2"),
                      "eps": config.number(factory + "adam_eps"),
                      **weight_decay_of(optimizer, wholes, config, left),
                      "z_loss_coefficient": config.number("model.model_config.z_loss_coefficient") if z_loss else None,
                      "clip_grad_norm": 0.0 if clip is None else float(clip)},
        "schedule": schedule, "data": batch_of(config, options, left),
        "precision": {"compute": COMPUTE_OF[dtype]},
        "checkpoint": {"directory": None if target.name == "checkpoints" else str(target)}}
    grid = ", ".join(f"{key} {config.get(f'parallelism.{key}', 1)}" for key in ("dp", "tp", "pp"))
    comments = [f"From {options.source}, step {step}, by nanotron-convert from-nanotron.",
                f"Nanotron's grid: {grid}, zero_stage {config.get('optimizer.zero_stage', 0)}; any grid continues it.",
                *left.text()]
    return taken_over.deck_text({}, comments).rstrip() + "\n" + model_group(sizes, config, left) + \
        taken_over.deck_text(groups)


# ---------------------------------------------------------------------------------------------
# The tensors


def check_no_others(folder: Path, wholes: Sequence[Whole]) -> None:
    known = {Path(*whole.name.split(".")) for whole in wholes}
    for path in sorted((folder / "model").rglob("*.safetensors")):
        kind = path.name.removeprefix("model_").partition("_pp-rank-")[0].removesuffix(".safetensors")
        tensor = path.parent.relative_to(folder / "model") / kind
        if tensor not in known:
            raise common.wrong(f"{path}", "tensors of Llama's or Qwen2's classes", ".".join(tensor.parts),
                               "convert the weights with Nanotron's converters to a Hugging Face folder")


def write_tensors(writer: checkpoint_file.CheckpointWriter, wholes: Sequence[Whole], shards: dict[str, list[Shard]],
                  optimizer: Optimizer | None, folder: Path, sizes: ModelSizes) -> None:
    masters = optimizer is not None and optimizer.has_masters
    kinds = ["weights", *(checkpoint_file.ADAM if optimizer else ())]
    shapes = sizes.parameter_shapes()
    for kind in kinds:
        filled = Filled()

        def dataset(name: str, kind: str = kind) -> Any:
            return writer.dataset(name) if kind == "weights" else writer.moment(kind, name)

        for whole in wholes:
            for rank, shard in enumerate(shards[whole.name]):
                if kind == "weights" and not masters:
                    pieces = shard.pieces()
                else:
                    assert optimizer is not None
                    pieces = optimizer.pieces(shard, rank, whole, "master" if kind == "weights" else kind)
                taken_over.place(pieces, whole.parts, dataset, filled, f"{kind} of {whole.name}")
        filled.check(shapes, kind, folder)
    for whole in wholes if masters else ():  # files of another step have the same shapes
        for shard in shards[whole.name]:
            taken_over.check_rounded(shard.pieces(), whole.parts, writer.dataset, whole.name)


def progress_of(metas: dict[str, Any], config: Config, optimizer: Optimizer | None, left: Left,
                where: Path) -> checkpoint_file.Progress:
    samples, length = metas["consumed_train_samples"], config.count("tokens.sequence_length")
    tokens = metas.get("consumed_tokens_total")
    if type(tokens) is not int or not 0 <= tokens < 1 << 62:
        tokens = samples * length
    if tokens != samples * length:
        left.say("tokens consumed", f"{tokens}, not {samples} samples of {length}: sequences had other lengths before")
    if optimizer is None:
        left.say("optimizer", "no folder optimizer: the moments start at zero")
        return checkpoint_file.Progress(tokens, samples, 0)
    steps = optimizer.steps()
    if len(steps) != 1:
        raise common.wrong(f"{where / 'optimizer'}, step", "one number of updates of all parameters",
                           ", ".join(map(str, sorted(steps))), "copy all files of one checkpoint")
    (updates,) = steps
    if not 0 <= updates <= metas["last_train_step"]:
        raise common.wrong(f"{where / 'optimizer'}, step", f"at most the {metas['last_train_step']} steps of "
                           "checkpoint_metadata.json", str(updates), "copy all files of one checkpoint")
    return checkpoint_file.Progress(tokens, samples, updates)


def folder_of(source: Path) -> Path:
    """A checkpoint folder, or the one that latest.txt names."""
    latest = source / "latest.txt"
    if (source / "checkpoint_metadata.json").is_file() or not latest.is_file():
        return source
    text = latest.read_text(encoding="utf-8", errors="replace").strip()
    if not text.isdecimal():
        raise common.wrong(latest, "a step", f"{text!r:.60}", "name the folder of a step")
    return source / text


def from_nanotron(options: argparse.Namespace) -> int:
    source, left = folder_of(Path(options.source)), Left()
    metadata, config = nanotron_folder.metadata_of(source), Config(source / "config.yaml")
    model_config = st.read_json(source / "model_config.json")
    sizes = nanotron_names.sizes_of(model_config, source / "model_config.json", left)
    wholes = list(nanotron_names.wholes_of(sizes, bool(model_config.get(nanotron_names.QWEN))))
    check_no_others(source, wholes)
    shards = {whole.name: nanotron_folder.shards_of(source, whole, metadata["tp"]) for whole in wholes}
    optimizer = Optimizer(source, metadata["tp"]) if (source / "optimizer").is_dir() else None
    step = metadata["metas"]["last_train_step"]
    progress = progress_of(metadata["metas"], config, optimizer, left, source)
    left.say("random states", "initial weights and the order of data alone depend on them")
    deck = deck_of(sizes, config, optimizer, wholes, step, options, left)
    folder = Path(options.target) / f"step_{step:08d}"
    options.check_target(folder, options)
    seed = config.get("general.seed")
    wide = any(shard.stored.dtype == "F64" for each in shards.values() for shard in each)
    with checkpoint_file.CheckpointWriter(
            folder, sizes, dtype="<f8" if wide else "<f4", step=step, seed=seed if isinstance(seed, int) else 0,
            progress=progress, moments=checkpoint_file.ADAM if optimizer else (),
            provenance=hdf5.tool_provenance("nanotron_convert") | {"source": str(source)}) as writer:
        write_tensors(writer, wholes, shards, optimizer, source, sizes)
        writer.commit()
    checkpoint_file.write_atomically(folder.parent / DECK_FILE, deck)
    parameters = sum(math.prod(shape) for shape in sizes.parameter_shapes().values())
    masters = " (fp32 copies of the optimizer)" if optimizer and optimizer.has_masters else ""
    print(f"{folder}: {parameters:,} parameters{masters}{', moments' if optimizer else ''}, "
          f"{progress.sample_cursor:,} samples, {progress.tokens_seen:,} tokens")
    print(f"{folder.parent / DECK_FILE}: the deck to continue with")
    print("\n".join(left.text()))
    return 0


def add_command(commands: Any, check_target: Any) -> argparse.ArgumentParser:
    taken: argparse.ArgumentParser = commands.add_parser(
        "from-nanotron", help="folder of Hugging Face's Nanotron -> checkpoint and deck")
    taken.add_argument("source", help="folder of a step, or one with latest.txt")
    taken.add_argument("target", help="folder that gets step_XXXXXXXX and input.deck")
    taken.add_argument("--data", metavar="FILE", help="token file, data%%path of the deck")
    taken.set_defaults(run=from_nanotron, check_target=check_target)
    return taken
