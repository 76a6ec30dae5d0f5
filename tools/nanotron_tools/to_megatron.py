"""nanotron-convert to-megatron: a checkpoint of ours as one that Megatron-LM loads, with a file for each rank.

What load_checkpoint of megatron/training/checkpointing.py (core 0.20) asks for with --ckpt-format torch: args,
iteration, model, optimizer (of FP32Optimizer, Float16OptimizerWithFloat16Params, or DistributedOptimizer with
distrib_optim.pt), opt_param_scheduler.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from . import checkpoint, hdf5, megatron_args, taken_over, torch_save
from . import megatron_buckets as buckets
from . import megatron_model as names
from .from_megatron import TRACKER
from .megatron_ranks import MODEL, MOMENTS, OPTIMIZER, decays
from .model_sizes import ModelSizes

DTYPES = {"fp32": ("F32", "torch.float32"), "bf16": ("BF16", "torch.bfloat16")}


@dataclass(frozen=True)
class Writer:
    file: h5py.File
    sizes: ModelSizes
    options: argparse.Namespace
    args: dict[str, Any]
    step: int
    adam_step: int

    @property
    def fused(self) -> bool:
        return bool(self.options.transformer_impl == "transformer_engine")

    @property
    def moments(self) -> bool:
        return "optimizer" in self.file and all(kind in self.file["optimizer"] for kind in MOMENTS)

    def shard(self, kind: str, name: str, tensor: int, dtype: str = "F32") -> torch_save.New:
        group = "parameters" if kind == "param" else f"optimizer/{kind}"

        def blocks() -> Iterator[np.ndarray]:
            whole = names.from_ours(name, lambda dataset: self.file[f"{group}/{dataset}"], self.sizes)
            yield names.shard_of(name, whole, tensor, self.options.tp, self.sizes).astype(np.float32)

        return torch_save.New(dtype, names.shard_shape(name, self.options.tp, self.sizes), blocks)

    def stage(self, pipeline: int) -> list[str]:
        count = self.sizes.num_hidden_layers // self.options.pp
        return names.stage_names(self.sizes, range(pipeline * count, (pipeline + 1) * count), pipeline == 0,
                                 pipeline == self.options.pp - 1, self.fused)

    def write(self, folder: Path, tensor: int, pipeline: int) -> None:
        end = f"_{pipeline:03d}" if self.options.pp > 1 else ""
        rank = folder / f"mp_rank_{tensor:02d}{end}"
        rank.mkdir(parents=True, exist_ok=True)
        members = self.stage(pipeline)
        dtype = DTYPES[self.options.dtype][0]
        model = {self._local(name, pipeline): self.shard("param", name, tensor, dtype) for name in members}
        content: dict[str, Any] = {
            "args": torch_save.Record("argparse.Namespace", self.args), "checkpoint_version": 3.0,
            "iteration": self.step,
            "model": model, "opt_param_scheduler": megatron_args.scheduler(self.args, self.step),
            "num_floating_point_operations_so_far": 0}
        if self.moments:
            content["optimizer"] = self._optimizer(members, tensor)
            if self.options.distributed_optimizer:
                torch_save.save(self._flat(members, tensor), rank / OPTIMIZER)
        torch_save.save(content, rank / MODEL)

    def _local(self, name: str, pipeline: int) -> str:
        """The name in the state of a stage's model."""
        layer, rest = names.split(name)
        if layer is None:
            return rest
        if self.fused:
            for theirs, plain in names.FUSED_NORMS.items():
                rest = rest.replace(plain, theirs)
        return names.in_layer(layer - pipeline * (self.sizes.num_hidden_layers // self.options.pp), rest)

    def _groups(self, members: list[str]) -> list[list[str]]:
        return [[name for name in members if decays(name, names.shape_of(name, self.sizes)) == kind]
                for kind in (True, False)]

    def _group(self, decay: bool) -> dict[str, Any]:
        args = self.args
        found = {"is_expert_parallel": False, "default_config": True, "wd_mult": 1.0 if decay else 0.0, "lr_mult": 1.0,
                 "is_decoupled_lr": False, "max_lr": args["lr"], "min_lr": args["min_lr"], "lr": args["lr"],
                 "betas": (args["adam_beta1"], args["adam_beta2"]), "eps": args["adam_eps"],
                 "weight_decay": args["weight_decay"] if decay else 0.0}
        if self.fused:
            return found | {"bias_correction": True, "step": self.adam_step}
        if self.options.distributed_optimizer:
            found["step"] = float(self.adam_step)
        return found | {"amsgrad": False, "maximize": False, "foreach": None, "capturable": False,
                        "differentiable": False, "fused": None, "decoupled_weight_decay": True}

    def _optimizer(self, members: list[str], tensor: int) -> dict[str, Any]:
        groups: list[dict[str, Any]] = []
        state: dict[int, Any] = {}
        for decay, group in zip((True, False), self._groups(members)):
            indices = [*range(len(state), len(state) + len(group))]
            for index, name in zip(indices, group):
                steps = {} if self.fused else {"step": torch_save.New.of(np.array(self.adam_step, np.float32))}
                state[index] = steps | {kind: self.shard(kind, name, tensor) for kind in MOMENTS}
            if group:
                groups.append(self._group(decay) | {"params": indices})
        if self.options.distributed_optimizer:
            for each in groups:
                del each["params"]
            return {"optimizer": {"param_groups": groups}}
        inner = {"state": state, "param_groups": groups}
        if self.options.dtype == "fp32":
            return inner
        return {"optimizer": inner, "fp32_from_fp16_params": [
            [self.shard("param", name, tensor) for name in group] for group in self._groups(members) if group]}

    def _flat(self, members: list[str], tensor: int) -> dict[Any, Any]:
        """distrib_optim.pt: one buffer, all parameters of the stage in reverse."""
        shapes = {name: names.shard_shape(name, self.options.tp, self.sizes) for name in members}
        tied = self.sizes.tie_word_embeddings and self.options.pp > 1
        shared = frozenset(["embedding.word_embeddings.weight", "output_layer.weight"] if tied else [])
        first = "embedding.word_embeddings.weight" in members  # other stages have one bucket
        places, sizes = buckets.by_limit(members, shapes, (self.options.bucket_size or None) if first else None, shared)
        starts = [0, *np.cumsum(sizes).tolist()]
        at = {name: starts[bucket] + begin for name, (bucket, begin) in places.items()}

        def blocks(kind: str) -> Callable[[], Iterator[np.ndarray]]:
            def made() -> Iterator[np.ndarray]:
                end = 0
                for name in sorted(members, key=at.__getitem__):
                    yield np.zeros(at[name] - end, np.float32)
                    yield from (block.reshape(-1) for block in self.shard(kind, name, tensor).blocks())
                    end = at[name] + math.prod(shapes[name])
                yield np.zeros(starts[-1] - end, np.float32)
            return made

        key = (torch_save.Global(DTYPES[self.options.dtype][1]), torch_save.Global("torch.float32"))
        tensors = {kind: torch_save.New("F32", (starts[-1],), blocks(kind)) for kind in ("param", *MOMENTS)}
        return {"buckets_coalesced": True, 0: {key: tensors | {"numel_unpadded": starts[-1]}}}


def run(options: argparse.Namespace) -> int:
    folder, target = checkpoint.resolve_checkpoint(Path(options.source)), Path(options.target)
    with checkpoint.open_checkpoint(folder) as file:
        sizes = ModelSizes.from_attributes(file["parameters"])
        checkpoint.check_parameters(file, sizes)
        taken_over.check_divides(folder, sizes, options.tp)
        taken_over.require_divides(folder, "layers", sizes.num_hidden_layers, "--pp", options.pp)
        deck = taken_over.deck_in(file, options.deck, folder, "continue.deck")
        state = {key: int(value) for key, value in file["state"].attrs.items() if np.ndim(value) == 0}
        if file.get("optimizer") is not None and hdf5.as_text(file["optimizer"].attrs.get("name", "adamw")) != "adamw":
            print("warning: the moments of this optimizer are left out: Megatron-LM starts with zero ones")
        args = megatron_args.model_args(sizes, folder) | megatron_args.training_args(
            checkpoint.deck_values(deck), state["step"], state["sample_cursor"]) | {
            "tensor_model_parallel_size": options.tp, "pipeline_model_parallel_size": options.pp,
            "virtual_pipeline_model_parallel_size": None, "make_vocab_size_divisible_by":
            megatron_args.divisor(sizes.vocab_size, options.tp), "ckpt_format": "torch",
            "bf16": options.dtype == "bf16",
            "transformer_impl": options.transformer_impl, "use_distributed_optimizer": options.distributed_optimizer}
        args.setdefault("max_position_embeddings", args["seq_length"])
        step_folder = target / f"iter_{state['step']:07d}"
        writer = Writer(file, sizes, options, args, state["step"], state["adam_step"])
        with taken_over.new_folder(step_folder, options.overwrite) as made:
            for tensor in range(options.tp):
                for pipeline in range(options.pp):
                    writer.write(made, tensor, pipeline)
        checkpoint.write_atomically(target / TRACKER, str(state["step"]))
        print(f"{step_folder}: tp {options.tp} x pp {options.pp}, {options.dtype}, "
              f"{'with' if writer.moments else 'without'} moments. Arguments for Megatron-LM:")
        print(f"  --load {target} " + " ".join(megatron_args.command_line(args)))
    return 0


def add_command(commands: Any) -> argparse.ArgumentParser:
    write: argparse.ArgumentParser = commands.add_parser("to-megatron", help="checkpoint -> Megatron-LM's checkpoint")
    write.add_argument("source", help="step folder, checkpoints folder or run folder")
    write.add_argument("target", help="folder for Megatron-LM's --load")
    write.add_argument("--tp", type=int, default=1, metavar="N", help="tensor parallelism of the run there")
    write.add_argument("--pp", type=int, default=1, metavar="N", help="its pipeline parallelism")
    write.add_argument("--dtype", choices=list(DTYPES), default="bf16", help="of the weights; masters are fp32")
    write.add_argument("--transformer-impl", choices=("transformer_engine", "local"), default="transformer_engine")
    write.add_argument("--distributed-optimizer", action="store_true", help="for --use-distributed-optimizer")
    write.add_argument("--bucket-size", type=int, default=0, metavar="N",
                       help="of its buckets with --overlap-grad-reduce (default: one bucket)")
    write.add_argument("--deck", metavar="FILE", help="deck of the run, where the checkpoint has none")
    write.set_defaults(run=run)
    return write
