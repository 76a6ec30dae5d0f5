"""nanotron-convert to-nanotron: a checkpoint of ours as a folder that Hugging Face's Nanotron resumes from.

What trainer.py and serialize/ of Nanotron (commit 2411b022) read with the parallelism that the folder is written for.
Two values differ from what Nanotron itself writes, since it reads them in another sense than it writes them:
last_epoch is one less (load_lr_scheduler makes one step more), and lr of a parameter group is the peak (the schedule
is built from it after the optimizer was loaded). With them the rates are those of a run that was not interrupted.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from . import checkpoint, common, hdf5, nanotron_config, nanotron_names, taken_over, torch_save
from . import safetensors as st
from .from_nanotron import yaml_of
from .model_sizes import ModelSizes
from .nanotron_config import Deck
from .nanotron_names import Whole
from .taken_over import Left

VERSION = "1.5"
STORED = {"float32": "F32", "bfloat16": "BF16", "float64": "F64"}
ALL = "None,None,None"


def slices_of(whole: Whole, rank: int, ranks: int) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Of the dimension that is divided: (first, end) in the shard and in the whole, chunk by chunk."""
    assert whole.split is not None
    found, local, begin = [], 0, 0
    for extent in whole.chunks or (whole.shape[whole.split],):
        count = extent // ranks
        first = begin + rank * count
        found.append(((local, local + count), (first, first + count)))
        local, begin = local + count, begin + extent
    return found


def metadata_of(whole: Whole, rank: int, ranks: int) -> dict[str, str]:
    """As TensorMetadata of serialize/metadata.py has it."""
    def text(span: tuple[int, int], is_all: bool) -> str:
        sides = [ALL] * len(whole.shape)
        if not is_all:
            assert whole.split is not None
            sides[whole.split] = f"{span[0]},{span[1]},None"
        return "|".join(sides)

    pairs = (f"{text(local, not whole.chunks)}#{text(part, False)}" for local, part in slices_of(whole, rank, ranks))
    return {"version": VERSION, "local_global_slices_pairs": ";".join(pairs), "unsharded_shape": str(whole.shape)}


@dataclass(frozen=True)
class Writer:
    file: h5py.File
    target: Path
    deck: Deck
    stages: list[list[Whole]]  # of pipeline parallelism
    ranks: int  # of tensor parallelism
    dtype: str
    step: int
    adam_step: int
    moments: bool

    @property
    def masters(self) -> bool:
        return self.dtype == "bfloat16"

    def blocks(self, kind: str, whole: Whole, rank: int) -> Iterator[np.ndarray]:
        """Of a rank's shard, rows in their order."""
        group = "parameters" if kind == "weights" else f"optimizer/{kind}"
        width = whole.columns // (self.ranks if whole.split == 1 else 1)
        columns = slice(rank * width, (rank + 1) * width) if whole.split == 1 else slice(None)
        for part in whole.parts:
            count = (part.end - part.begin) // (self.ranks if whole.split == 0 else 1)
            first = part.row + (rank * count if whole.split == 0 else 0)
            rows = max(1, st.PIECE_BYTES // (8 * width))
            for row in range(first, first + count, rows):
                stop = min(first + count, row + rows)
                if kind != "weights" and not self.moments:
                    yield np.zeros((stop - row, width), np.float32)
                    continue
                index = (*part.index, slice(row, stop)) + ((columns,) if len(whole.shape) > 1 else ())
                yield self.file[f"{group}/{part.dataset}"][index]

    def tensor(self, kind: str, whole: Whole, rank: int, dtype: str) -> torch_save.New:
        return torch_save.New(dtype, whole.local_shape(self.ranks), lambda: self.blocks(kind, whole, rank))

    def weights(self) -> None:
        seen: set[str] = set()  # a tied embedding is on two stages and saved by the first
        for stage, members in enumerate(self.stages):
            for whole in members:
                if whole.name not in seen:
                    for rank in range(self.ranks if whole.split is not None else 1):
                        self._shard(whole, stage, rank)
                seen.add(whole.name)

    def _shard(self, whole: Whole, stage: int, rank: int) -> None:
        *modules, kind = whole.name.split(".")
        folder = self.target / "model" / Path(*modules)
        folder.mkdir(parents=True, exist_ok=True)
        split = whole.split is not None
        grid = f"_pp-rank-{stage}-of-{len(self.stages)}_tp-rank-{rank}-of-{self.ranks}" if split else ""
        writer = st.SafetensorsWriter(folder / f"model_{kind}{grid}.safetensors",
                                      [("data", STORED[self.dtype], whole.local_shape(self.ranks))],
                                      metadata_of(whole, rank, self.ranks) if split else {})
        for block in self.blocks("weights", whole, rank):
            writer.write(block, STORED[self.dtype])
        writer.commit()

    def _group(self, whole: Whole, index: int) -> dict[str, Any]:
        number, rate = self.deck.number, self.deck.number("optimizer.learning_rate")
        return {"lr": rate, "weight_decay": nanotron_config.weight_decays(whole, self.deck),
                "betas": (number("optimizer.beta1", 0.9), number("optimizer.beta2", 0.95)),
                "eps": number("optimizer.eps", 1e-8), "amsgrad": False, "maximize": False, "foreach": None,
                "capturable": False, "differentiable": False, "fused": False, "decoupled_weight_decay": True,
                "initial_lr": rate, "params": [index]}

    def optimizer(self) -> None:
        folder, scheduler = self.target / "optimizer", self.target / "lr_scheduler"
        for each in (folder, scheduler):
            each.mkdir(parents=True, exist_ok=True)
        wide = "F64" if self.dtype == "float64" else "F32"
        for stage, members in enumerate(self.stages):
            for rank in range(self.ranks):
                grid = f"_pp-{stage}-of-{len(self.stages)}_tp-{rank}-of-{self.ranks}_exp-0-of-1.pt"
                states = {index: {"step": torch_save.New.of(np.array(self.adam_step, np.float32))} |
                          {kind: self.tensor(kind, whole, rank, wide) for kind in checkpoint.ADAM}
                          for index, whole in enumerate(members)}
                content = {"state": states, "param_groups": [self._group(w, i) for i, w in enumerate(members)],
                           "names": {index: whole.name for index, whole in enumerate(members)}}
                if self.masters:
                    content["gradient_accumulator"] = {
                        whole.name: self.tensor("weights", whole, rank, "F32") for whole in members}
                torch_save.save(content, folder / f"optimizer{grid}")
                torch_save.save(self._scheduler(len(members)), scheduler / f"lr_scheduler{grid}")

    def _scheduler(self, count: int) -> dict[str, Any]:
        rates = [self.deck.number("optimizer.learning_rate")] * count
        return {"base_lrs": rates, "last_epoch": self.step - 1, "_step_count": self.step, "_last_lr": rates,
                "_is_initial": False, "_get_lr_called_within_step": False, "lr_lambdas": [{} for _ in rates]}

    def optimizer_config(self, dp: int) -> dict[str, Any]:
        kind = "OptimizerFromGradientAccumulator" if self.masters else "NamedOptimizer"
        return {"type": kind, "configs": {}, "parallelism": {
            "tp_size": str(self.ranks), "dp_size": str(dp), "pp_size": str(len(self.stages)),
            "expert_parallel_size": "1"}}


def check(sizes: ModelSizes, options: argparse.Namespace, where: object) -> None:
    taken_over.check_divides(where, sizes, options.tp)
    if options.pp < 1 or options.dp < 1 or options.pp > sizes.num_hidden_layers:
        raise common.wrong(where, "--dp at least 1, --pp between 1 and the number of layers",
                           f"--dp {options.dp}, --pp {options.pp}, {sizes.num_hidden_layers} layers",
                           "give other ones", common.EXIT_USAGE)


def metas_of(state: dict[str, int], config: dict[str, Any], left: Left) -> dict[str, Any]:
    """metas of checkpoint_metadata.json: one data stage, which has consumed everything."""
    if len(config["data_stages"]) != 1:
        raise common.wrong("--config, data_stages", "one data stage", str(len(config["data_stages"])),
                           "leave the one that goes on, with start_training_step 1", common.EXIT_USAGE)
    stage = config["data_stages"][0]
    data = (stage.get("data") or {}).get("dataset") or {}
    folders = data.get("dataset_folder") or "tokens"
    folders = [folders] if isinstance(folders, str) else list(folders)
    if not data:
        left.say("data_stages", "dataset is null, so Nanotron makes up tokens: name the data in config.yaml, or give "
                 "--config FILE, a config.yaml with it")
    if len(folders) > 1:
        left.say("data consumed of each folder", f"all is counted at {folders[0]}")
    samples, length = state["sample_cursor"], config["tokens"]["sequence_length"]
    count = state["tokens_seen"]
    return {"consumed_tokens_total": count, "consumed_train_samples": samples, "last_stage_idx": 0,
            "last_train_step": state["step"],
            "data_stages": [{"consumed_tokens_per_dataset_folder": {str(folders[0]): count},
                             "consumed_train_samples": samples, "name": stage["name"], "sequence_length": length,
                             "start_training_step": stage.get("start_training_step", 1)}]}


def moments_are_there(file: h5py.File, left: Left) -> bool:
    name = hdf5.as_text(file["optimizer"].attrs.get("name", "adamw")) if "optimizer" in file else "none"
    if name != "adamw":
        left.say("moments", f"those of optimizer {name} are none of AdamW: Nanotron starts with zero ones")
    return name == "adamw"


def run(options: argparse.Namespace) -> int:
    yaml, left = common.require("yaml"), Left()
    folder = checkpoint.resolve_checkpoint(Path(options.source))
    base = yaml_of(Path(options.config)) if options.config else {}
    with checkpoint.open_checkpoint(folder) as file:
        if "adapters" in file:
            raise common.wrong(folder, "whole weights", "adapters of &lora", "nanotron-convert merge them first")
        sizes = ModelSizes.from_attributes(file["parameters"])
        deck = Deck(taken_over.deck_in(file, options.deck, folder, "input.deck"), options.deck or folder)
        model = nanotron_config.model_config(sizes, deck, (base.get("model") or {}).get("model_config") or {}, folder)
        checkpoint.check_parameters(file, sizes)
        check(sizes, options, folder)
        wholes = list(nanotron_names.wholes_of(sizes, nanotron_names.QWEN in model))
        stages = nanotron_config.stages(wholes, sizes, options.pp, folder)
        state = {key: int(value) for key, value in file["state"].attrs.items() if np.ndim(value) == 0}
        compute = options.dtype or deck.text("precision.compute", "fp32")
        dtype = nanotron_config.DTYPES.get(compute, "float32")
        moments = moments_are_there(file, left)
        config = nanotron_config.config(deck, model, (options.dp, options.tp, options.pp), dtype, base,
                                        (state["step"], state["sample_cursor"], state["seed"]), left)
        metas = metas_of(state, config, left)
        target = Path(options.target) / str(state["step"])
        config["checkpoints"]["resume_checkpoint_path"] = str(target.parent.absolute())
        for whole in wholes:
            nanotron_config.weight_decays(whole, deck)
        with taken_over.new_folder(target, options.overwrite) as made:
            writer = Writer(file, made, deck, stages, options.tp, dtype, state["step"],
                            state["adam_step"] if moments else 0, moments)
            writer.weights()
            writer.optimizer()
            for name, text in {
                    "optimizer/optimizer_config.json": json.dumps(writer.optimizer_config(options.dp)),
                    "model_config.json": json.dumps(model), "config.yaml": yaml.safe_dump(config),
                    "checkpoint_metadata.json": json.dumps({
                        "version": VERSION, "tp": options.tp, "dp": options.dp, "cp": 1, "custom_metas": None,
                        "metas": metas}, indent=2, sort_keys=True)}.items():
                checkpoint.write_atomically(made / name, text)
    checkpoint.write_atomically(target.parent / "latest.txt", str(state["step"]))
    say(target, config, left, sizes)
    return 0


def say(target: Path, config: dict[str, Any], left: Left, sizes: ModelSizes) -> None:
    parallelism = config["parallelism"]
    step, steps = config["general"]["step"], config["tokens"]["train_steps"]
    left.say("random states", "Nanotron starts them from general.seed")
    left.say("order of the samples", "the run continues at the same number of samples, in Nanotron's order")
    if config["model"]["model_config"]["z_loss_enabled"]:
        left.say("z loss", "Nanotron's is of logits minus their largest, here it is of the logits; same coefficient")
    if step >= steps:
        left.say("tokens.train_steps", f"{steps} steps are done: raise it")
    parameters = sum(math.prod(shape) for shape in sizes.parameter_shapes().values())
    print(f"{target}: {parameters:,} parameters, {config['model']['dtype']}, " +
          " x ".join(f"{key} {parallelism[key]}" for key in ("dp", "tp", "pp")))
    print(f"{target / 'config.yaml'}: for --config-file of Nanotron's run_train.py; it resumes from {target.parent}")
    print("\n".join(left.text()))


def add_command(commands: Any) -> argparse.ArgumentParser:
    write: argparse.ArgumentParser = commands.add_parser(
        "to-nanotron", help="checkpoint -> folder of Hugging Face's Nanotron")
    write.add_argument("source", help="step folder, checkpoints folder or run folder")
    write.add_argument("target", help="folder that gets the step's folder and latest.txt")
    for name, what in (("dp", "data"), ("tp", "tensor"), ("pp", "pipeline")):
        write.add_argument(f"--{name}", type=int, default=1, metavar="N", help=f"{what} parallelism of the run there")
    write.add_argument("--dtype", choices=("fp32", "bf16"), help="of the weights (default: the deck's "
                       "precision%%compute); bf16 with fp32 masters")
    write.add_argument("--deck", metavar="FILE", help="deck of the run, where the checkpoint has none")
    write.add_argument("--config", metavar="FILE", help="config.yaml of Nanotron, whose data and other groups are kept")
    write.set_defaults(run=run)
    return write
