"""Checkpoints of Megatron-LM with a file for each rank (--ckpt-format torch, the default before core 0.7):

    iter_0001000/mp_rank_TT[_PPP]/model_optim_rng.pt   rank TT of tensor, PPP of pipeline parallelism
    iter_0001000/mp_rank_TT[_PPP]/distrib_optim.pt     with --use-distributed-optimizer: masters and moments of all dp

megatron/training/checkpointing.py; in megatron/core/optimizer optimizer.py (Float16OptimizerWithFloat16Params,
FP32Optimizer) and distrib_optimizer.py (get_parameter_state_dp_zero).
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from . import common, taken_over, torch_file
from . import megatron_buckets as buckets
from . import megatron_model as names
from . import safetensors as st
from .model_sizes import ModelSizes
from .torch_pickle import Foreign, Name, Tensor

CLASSES = ("argparse.Namespace", "signal.Signals", "types.SimpleNamespace", "megatron.", "transformer_engine.",
           "numpy.",
           "torch.serialization._get_layout")
FOLDER = re.compile(r"mp_rank_(\d\d)(?:_(\d\d\d))?(_\d\d\d)?$")
MODEL, OPTIMIZER = "model_optim_rng.pt", "distrib_optim.pt"
MOMENTS = ("exp_avg", "exp_avg_sq")


def values(stored: st.StoredTensor, what: str) -> np.ndarray:
    block = taken_over.elements(stored).reshape(stored.shape)
    return taken_over.finite(taken_over.as_floats(stored, np.asarray(block)), stored, what)


def as_dict(value: Any, where: object, what: str) -> dict[Any, Any]:
    if isinstance(value, Foreign):
        value = value.state
    if not isinstance(value, dict):
        raise common.wrong(f"{where}, {what}", "a dictionary", type(value).__name__,
                           "name a checkpoint of Megatron-LM; copy the file again if it is one")
    return value


@dataclass
class Rank:
    """A file, with the names of its parameters in the order of the model's modules, by chunk (virtual stage)."""

    archive: torch_file.Archive
    chunks: list[list[str]] = field(default_factory=list)
    weights: dict[str, Tensor] = field(default_factory=dict)
    masters: dict[str, Tensor] = field(default_factory=dict)
    moments: dict[str, dict[str, Tensor]] = field(default_factory=dict)
    flat: dict[str, tuple[dict[str, st.StoredTensor], int]] = field(default_factory=dict)  # buffers, first element

    @property
    def path(self) -> Path:
        return self.archive.path

    @functools.cached_property
    def content(self) -> dict[Any, Any]:
        return as_dict(self.archive.object, self.path, "the whole")

    def stored(self, name: str) -> st.StoredTensor:
        return self.archive.stored(self.weights[name], name)

    @functools.cached_property
    def groups(self) -> list[Any]:
        return [as_dict(each, self.path, "param_groups") for each in self.inner.get("param_groups", [])]

    @functools.cached_property
    def inner(self) -> dict[Any, Any]:
        """The optimizer of PyTorch or Apex within Megatron's."""
        outer = as_dict(self.content.get("optimizer", {}), self.path, "optimizer")
        return as_dict(outer.get("optimizer", outer), self.path, "optimizer")


def open_ranks(folder: Path) -> dict[tuple[int, int], Rank]:
    """By (tensor, pipeline) rank; common.ToolError for a missing one."""
    found: dict[tuple[int, int], Rank] = {}
    for path in sorted(folder.iterdir()):
        match = FOLDER.fullmatch(path.name)
        if not match:
            continue
        if match[3]:
            raise common.wrong(path, "ranks of tensor and pipeline parallelism", "one of expert parallelism",
                               "models with experts are not read from Megatron-LM yet")
        if not (path / MODEL).is_file():
            raise common.wrong(path, MODEL, "no such file",
                               "copy the whole folder; folders of core 0.3 and older (model_rng.pt) are not read")
        found[int(match[1]), int(match[2] or 0)] = Rank(torch_file.load(path / MODEL, CLASSES))
    if not found:
        raise common.wrong(folder, "mp_rank_00 and others, or .metadata of torch_dist", "neither",
                           "name a folder of --save, or iter_XXXXXXX in it")
    return found


def args_of(rank: Rank) -> dict[str, Any]:
    if "args" not in rank.content:
        raise common.wrong(rank.path, "args", "none", "name a checkpoint of Megatron-LM's own training loop")
    return as_dict(rank.content["args"], rank.path, "args")


class Ranks:
    """The whole tensors of such a folder."""

    kind = "a file for each rank"

    def __init__(self, folder: Path):
        self.where = folder
        self.ranks = open_ranks(folder)
        first = next(iter(self.ranks.values()))
        self.args, self.common = names.checked(args_of(first), first.path), first.content
        self.tp = names.number(self.args, "tensor_model_parallel_size", first.path, 1)
        self.pp = names.number(self.args, "pipeline_model_parallel_size", first.path, 1)
        for pipeline in range(self.pp):
            for tensor in range(self.tp):
                if (tensor, pipeline) not in self.ranks:
                    end = f"_{pipeline:03d}" if self.pp > 1 else ""
                    raise common.wrong(folder, f"the ranks of tp {self.tp} x pp {self.pp}, as args "
                                       "say", f"no mp_rank_{tensor:02d}{end}",
                                       "copy the whole folder: a rank is missing")
        self._check_one_save(first)
        self.groups = first.groups
        self._name_tensors()
        embedding = self.ranks[0, 0].weights.get("embedding.word_embeddings.weight")
        if embedding is None or len(embedding.shape) != 2:
            raise common.wrong(first.path, "embedding.word_embeddings.weight", "none",
                               "models of Megatron before core (--use-legacy-models) are not read: convert them "
                               "with its tools/checkpoint/convert.py")
        self.vocab_size = embedding.shape[0] * self.tp

    def _check_one_save(self, first: Rank) -> None:
        """Files of other steps or grids, and one file under two names, have the same shapes."""
        owners: dict[Any, Rank] = {}
        for rank in self.ranks.values():
            args = args_of(rank)
            for what, found, wanted in (
                    ("iteration", rank.content.get("iteration"), self.common.get("iteration")),
                    *((key, args.get(key), self.args.get(key)) for key in ("tensor_model_parallel_size",
                                                                           "pipeline_model_parallel_size"))):
                if found != wanted:
                    raise common.wrong(f"{rank.path}, {what}", f"{wanted!r:.40}, as in {first.path}", f"{found!r:.40}",
                                       "copy all files of one checkpoint")
            number = args.get("rank")
            if isinstance(number, int) and (other := owners.setdefault(number, rank)) is not rank:
                raise common.wrong(f"{rank.path}, args, rank", "another rank in each file",
                                   f"{number}, as in {other.path}", "copy all files of one checkpoint")

    def _name_tensors(self) -> None:
        """Local layer numbers become those of the model: stages follow one another, chunk by chunk."""
        for tensor in range(self.tp):
            layers = 0
            for chunk in range(1 << 16):
                key = f"model{chunk}" if "model0" in self.common else "model"
                if key not in self.common or (key == "model" and chunk):
                    break
                for pipeline in range(self.pp):
                    layers += self._name_chunk(self.ranks[tensor, pipeline], key, layers)

    def _name_chunk(self, rank: Rank, key: str, offset: int) -> int:
        order, count = [], 0
        for name, value in as_dict(rank.content.get(key), rank.path, key).items():
            if not isinstance(value, Tensor) or "_extra_state" in name:
                continue
            layer, rest = names.split(name.removeprefix("module."))
            if layer is not None:
                count = max(count, layer + 1)
            full = names.canonical(rest if layer is None else names.in_layer(layer + offset, rest))
            rank.weights[full] = value
            order.append(full)
        rank.chunks.append(order)
        return count

    @property
    def step(self) -> int:
        return names.step_of(self.common, self.where)

    @functools.cached_property
    def adam_step(self) -> int | None:
        """None without moments."""
        rank = self.ranks[0, 0]
        found = {group["step"] for group in rank.groups if group.get("step") is not None}
        for state in as_dict(rank.inner.get("state", {}), rank.path, "state").values():
            if isinstance(state, dict) and isinstance(state.get("step"), Tensor):
                found.add(float(taken_over.elements(rank.archive.stored(state["step"], "step"))[0]))
        found = {int(taken_over.elements(rank.archive.stored(each, "step"))[0]) if isinstance(each,
                                                                                              Tensor) else int(each)
                 for each in found}
        if len(found) > 1:
            raise common.wrong(rank.path, "one number of steps of the optimizer", f"{sorted(found)}",
                               "one group at a time")
        return found.pop() if found else None

    def find_moments(self, sizes: ModelSizes) -> bool:
        """Assigns them to the parameters; False if there are none."""
        if "optimizer" not in self.common or self.args.get("no_save_optim"):
            return False
        for (_, pipeline), rank in self.ranks.items():
            if (path := rank.path.with_name(OPTIMIZER)).is_file():
                FlatState(rank, torch_file.load(path, CLASSES), self.args, sizes, pipeline, self.pp).assign()
            elif self.args.get("use_distributed_optimizer"):
                raise common.wrong(rank.path.parent, f"{OPTIMIZER}, of the distributed optimizer", "no such file",
                                   "copy the whole folder")
            else:
                _assign_states(rank)
        return True

    def weight(self, name: str, sizes: ModelSizes) -> np.ndarray:
        return self._whole(name, sizes, "weights")

    def moment(self, kind: str, name: str, sizes: ModelSizes) -> np.ndarray:
        return self._whole(name, sizes, kind)

    def _whole(self, name: str, sizes: ModelSizes, kind: str) -> np.ndarray:
        shards = []
        for tensor in range(self.tp):
            holders = [self.ranks[tensor, pipeline] for pipeline in range(self.pp)
                       if name in self.ranks[tensor, pipeline].weights]
            if not holders:
                raise common.wrong(self.where, f"{name} on tensor-parallel rank {tensor}", "none",
                                   "the files belong to different runs, or args do not fit the model")
            shard = _shard(holders[0], name, kind)
            if shard.shape != (wanted := names.shard_shape(name, self.tp, sizes)):
                raise common.wrong(f"{holders[0].path}, {name}", f"shape {wanted}, as args say", f"{shard.shape}",
                                   "the files belong to different runs")
            shards.append(shard)
        return names.joined(name, shards, sizes)

    def unknown_names(self, known: set[str]) -> list[str]:
        return sorted({name for rank in self.ranks.values() for name in rank.weights} - known)


def _shard(rank: Rank, name: str, kind: str) -> np.ndarray:
    if name in rank.flat:
        buffers, start = rank.flat[name]
        stored, shape = buffers["param" if kind == "weights" else kind], rank.weights[name].shape
        flat = taken_over.elements(stored)[start:start + math.prod(shape)]
        return taken_over.finite(np.asarray(taken_over.as_floats(stored, flat)), stored, name).reshape(shape)
    if kind == "weights":
        return values(rank.archive.stored(rank.masters.get(name, rank.weights[name]), name), name)
    if kind not in rank.moments.get(name, {}):
        raise common.wrong(rank.path, f"{kind} of {name}", "none", "the optimizer is not Adam, or the file is damaged")
    return values(rank.archive.stored(rank.moments[name][kind], f"{kind} of {name}"), name)


def decays(name: str, shape: tuple[int, ...]) -> bool:
    """Whether Megatron's parameter groups give it weight decay: megatron/core/optimizer/__init__.py."""
    return len(shape) > 1 and not name.endswith(".bias")


def _group_members(rank: Rank) -> list[list[str]]:
    """Names of the parameters of each group, in their order."""
    order = [name for chunk in rank.chunks for name in chunk]
    counts = [len(group.get("params", [])) for group in rank.groups]
    if len(counts) == 1:
        members = [order]
    else:
        kinds = [bool(group.get("wd_mult", group.get("pre_wd_mult",
                                                     group.get("weight_decay")))) for group in rank.groups]
        if kinds == [False, False]:
            kinds = [True, False]
        if sorted(kinds) != [False, True]:
            raise common.wrong(f"{rank.path}, param_groups", "one with and one without weight decay",
                               f"{len(counts)} groups",
                               "runs with other groups (--decoupled-lr, experts) are not read with their moments")
        members = [[name for name in order if decays(name, rank.weights[name].shape) == kind] for kind in kinds]
    if [len(each) for each in members] != counts:
        raise common.wrong(f"{rank.path}, param_groups", f"{[len(each) for each in members]} parameters", f"{counts}",
                           "the file belongs to another model, or to a Megatron-LM with other groups")
    return members


def _assign_states(rank: Rank) -> None:
    states = as_dict(rank.inner.get("state", {}), rank.path, "state")
    outer = as_dict(rank.content["optimizer"], rank.path, "optimizer")
    halves = outer.get("fp32_from_fp16_params", outer.get("fp32_from_fp16"))
    for number, (group, members) in enumerate(zip(rank.groups, _group_members(rank))):
        masters: Iterator[Any] = iter(halves[number] if halves else [])
        for index, name in zip(group["params"], members):
            state = as_dict(states.get(index, {}), rank.path, f"state of {name}")
            found = {kind: state[kind] for kind in MOMENTS if isinstance(state.get(kind), Tensor)}
            if halves and rank.weights[name].dtype in ("BF16", "F16"):
                rank.masters[name] = next(masters, None)  # type: ignore[assignment]
            for what, tensor in [*found.items(), ("master weights", rank.masters.get(name, rank.weights[name]))]:
                shape = getattr(tensor, "shape", None)
                if shape != rank.weights[name].shape:
                    raise common.wrong(f"{rank.path}, {what} of {name}", f"shape {rank.weights[name].shape}",
                                       f"{shape}",
                                       "the order of the parameters is not that of a known version")
            rank.moments[name] = found


@dataclass
class FlatState:
    """distrib_optim.pt of a rank: for each buffer the masters and the moments, one parameter after another."""

    rank: Rank
    archive: torch_file.Archive
    args: dict[str, Any]
    sizes: ModelSizes
    pipeline: int
    pp: int

    def assign(self) -> None:
        state = as_dict(self.archive.object, self.archive.path, "the whole")
        if not state.get("buckets_coalesced"):
            raise common.wrong(self.archive.path, "buckets_coalesced, of core 0.5 and newer", "none",
                               "load and save the run with a newer Megatron-LM")
        left = [(chunk, dtype) for chunk in range(len(self.rank.chunks)) for dtype in self._types(chunk)]
        for index in sorted(key for key in state if isinstance(key, int)):
            for key, buffer in as_dict(state[index], self.archive.path, f"buffer {index}").items():
                path = key[0].path if isinstance(key, tuple) and isinstance(key[0], Name) else ""
                dtype = {"torch.float32": "F32", "torch.bfloat16": "BF16", "torch.float16": "F16"}.get(path, "")
                place = next((each for each in left if each[1] == dtype), None)
                if place is None:
                    raise common.wrong(f"{self.archive.path}, buffer {index}", f"parameters of {left}",
                                       f"{path or type(key).__name__}",
                                       "FP8 parameters are not read: save without them")
                left.remove(place)
                self._assign_buffer(place, as_dict(buffer, self.archive.path, f"buffer {index}"))
        if left:
            raise common.wrong(self.archive.path, f"a buffer for {left}", "none", "copy the file again")

    def _types(self, chunk: int) -> list[str]:
        return list(dict.fromkeys(self.rank.weights[name].dtype for name in self.rank.chunks[chunk]))

    def _assign_buffer(self, place: tuple[int, str], buffer: dict[Any, Any]) -> None:
        chunk, dtype = place
        members = [name for name in self.rank.chunks[chunk] if self.rank.weights[name].dtype == dtype]
        shapes = {name: self.rank.weights[name].shape for name in members}
        tensors = {kind: self.archive.stored(buffer.get(kind), kind) for kind in ("param", *MOMENTS)}
        whole = taken_over.as_floats(tensors["param"], taken_over.elements(tensors["param"]))
        shared = frozenset(["embedding.word_embeddings.weight", "output_layer.weight"]
                           if self.sizes.tie_word_embeddings and self.pp > 1 else [])

        def layouts() -> Iterator[dict[str, buckets.Place]]:
            for limit in buckets.limits(self.args, sum(math.prod(shape) for shape in shapes.values())):
                places, sizes = buckets.by_limit(members, shapes, limit, shared)
                if sum(sizes) == len(whole):
                    starts = np.concatenate([[0], np.cumsum(sizes)])
                    yield {name: (0, int(starts[bucket]) + at) for name, (bucket, at) in places.items()}

        def fits(name: str, master: np.ndarray) -> bool:
            stored = self.rank.stored(name)
            return taken_over.is_copy_of(taken_over.elements(stored).reshape(-1), stored.dtype, master)

        found = buckets.find(layouts(), shapes, lambda _: whole, fits)
        if found is None:
            raise common.wrong(self.archive.path, "master weights that are, rounded, the weights of the model",
                               "none of the known orders fits", "give --no-optimizer to take over the weights alone")
        for name, (_, start) in found.items():
            self.rank.flat[name] = (tensors, start)
