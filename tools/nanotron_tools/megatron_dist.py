"""Checkpoints of Megatron-LM in torch_dist (--ckpt-format torch_dist, the default since core 0.7).

Tensors of the model have their whole shape, layers stacked in front (or numbered, where they differ). The optimizer's:

    optimizer.state.<kind>.<tensor>           without a distributed optimizer; `fully_reshardable` (core 0.14 and newer)
    the same in flat pieces                   `fully_sharded_model_space` (core 0.8 to 0.15)
    optimizer.distributed.dp_group_idx_<n>... `dp_reshardable` (core 0.14 and newer) and its older name
                                              `fully_sharded_bucket_space`: the buckets of rank n of tp x pp

`dp_zero_gather_scatter` (one pickle) is refused. What every rank shares is in common.pt, from core 0.19 on in
common_state. megatron/core/dist_checkpointing/strategies/torch.py and serialization.py, distrib_optimizer.py.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from . import common, taken_over, torch_dist, torch_file
from . import megatron_buckets as buckets
from . import megatron_model as names
from .megatron_ranks import CLASSES, MOMENTS, as_dict
from .model_sizes import ModelSizes

STATE = "optimizer.state."
MASTERS = ("fp32_param", "param")
GROUP = re.compile(r"optimizer\.distributed\.dp_group_idx_(\d+)\.gbuf_idx_(\d+)\.dtype_\(torch\.(\w+), torch\.\w+\)"
                   r"\.bucket_idx_(\d+)\.(\w+)$")
FUSED = {plain: theirs for theirs, plain in names.FUSED_NORMS.items()}


class Dist:
    """The whole tensors of such a folder."""

    kind = "torch_dist"

    def __init__(self, folder: Path):
        self.where, self.folder = folder, torch_dist.Folder(folder)
        self.common = self._common()
        if "args" not in self.common:
            raise common.wrong(folder, "args in common.pt or common_state", "none",
                               "name a checkpoint of Megatron-LM's own training loop")
        self.args = names.checked(as_dict(self.common["args"], folder, "args"), folder)
        self.tp = names.number(self.args, "tensor_model_parallel_size", folder, 1)
        self.pp = names.number(self.args, "pipeline_model_parallel_size", folder, 1)
        embedding = self.folder.items.get("embedding.word_embeddings.weight")
        if embedding is None or len(embedding.shape) != 2:
            raise common.wrong(self.folder.where, "embedding.word_embeddings.weight", "none",
                               "name the checkpoint of a language model of Megatron core")
        self.vocab_size = embedding.shape[0]
        self.flat: dict[str, Buckets] = {}

    def _common(self) -> dict[Any, Any]:
        if (path := self.where / "common.pt").is_file():
            return as_dict(torch_file.load(path, CLASSES).object, path, "the whole")
        found = self.folder.load_object("common_state/shard_0_1", CLASSES)
        return as_dict(found[0] if isinstance(found, list) and found else found, self.where, "common_state")

    @property
    def step(self) -> int:
        return names.step_of(self.common, self.where)

    @functools.cached_property
    def optimizer(self) -> dict[Any, Any]:
        """What is shared of the optimizer; with dp_reshardable each group of ranks has its own."""
        outer = as_dict(self.common.get("optimizer", {}), self.where, "optimizer")
        key = "optimizer.distributed.dp_group_idx_0.optimizer/shard_0_1"
        if key in self.folder.items:
            found = self.folder.load_object(key, CLASSES)
            return as_dict(found[0] if isinstance(found, list) and found else found, self.where, key)
        return as_dict(outer.get("optimizer", outer), self.where, "optimizer")

    @property
    def groups(self) -> list[dict[Any, Any]]:
        return [as_dict(each, self.where, "param_groups") for each in self.optimizer.get("param_groups", [])]

    @functools.cached_property
    def adam_step(self) -> int | None:
        found = [group["step"] for group in self.groups if group.get("step") is not None]
        shared = as_dict(self.optimizer.get("state", {}), self.where, "state").get("common_step")
        if shared is not None and not found:
            found = [self._scalar(shared)]
        return int(found[0] if not hasattr(found[0], "storage") else self._scalar(found[0])) if found else None

    def _scalar(self, tensor: Any) -> float:
        """A tensor of what is shared."""
        if isinstance(tensor, (int, float)):
            return tensor
        stored = self.folder.items.get("common_state/shard_0_1")
        archive = torch_file.load(self.where / "common.pt", CLASSES) if stored is None else \
            self.folder._archive(stored.chunks[0], CLASSES)
        found = archive.stored(tensor, "step")
        return float(np.memmap(found.path, "<f4" if found.dtype == "F32" else "<i8", "r", found.offset, (1,))[0])

    # -----------------------------------------------------------------------------------------
    # Tensors

    def _key(self, name: str, prefix: str = "") -> tuple[str, int | None] | None:
        """The name in the folder, and the row of the layer where layers are stacked."""
        layer, rest = names.split(name)
        for each in (rest, *(rest.replace(plain, theirs) for plain, theirs in FUSED.items() if plain in rest)):
            if layer is None:
                if prefix + each in self.folder.items:
                    return prefix + each, None
                continue
            if prefix + names.LAYERS + each in self.folder.items:
                return prefix + names.LAYERS + each, layer
            if (key := prefix + names.in_layer(layer, each)) in self.folder.items:
                return key, None
        return None

    def find_moments(self, sizes: ModelSizes) -> bool:
        if any(GROUP.match(name) for name in self.folder.items):
            for tensor in range(self.tp):
                for pipeline in range(self.pp):
                    group = Buckets(self, sizes, tensor, pipeline)
                    self.flat |= {f"{tensor}/{name}": group for name in group.places}
            return True
        if any(".param_state/shard_" in name for name in self.folder.items):
            raise common.wrong(self.folder.where, "a sharded optimizer", "dp_zero_gather_scatter",
                               "load and save the run with --dist-ckpt-optim-fully-reshardable")
        return any(name.startswith(STATE + MOMENTS[0]) for name in self.folder.items)

    def weight(self, name: str, sizes: ModelSizes) -> np.ndarray:
        if self.flat:
            return self._of_buckets("param", name, sizes)
        masters = (self._key(name, f"{STATE}{kind}.") for kind in MASTERS)
        key = next((each for each in masters if each), None) or self._key(name)
        return self._whole(key, name, sizes)

    def moment(self, kind: str, name: str, sizes: ModelSizes) -> np.ndarray:
        if self.flat:
            return self._of_buckets(kind, name, sizes)
        return self._whole(self._key(name, f"{STATE}{kind}."), name, sizes)

    def bits(self, name: str) -> tuple[np.ndarray, str]:
        """The weights of the model as they are stored, and their type."""
        tied = name == "output_layer.weight" and not self.args.get("untie_embeddings_and_output_weights")
        key = self._key("embedding.word_embeddings.weight" if tied else name)
        if key is None:
            raise common.wrong(self.folder.where, name, "none", "args do not fit the model")
        return self.folder.read_bits(*key), self.folder.items[key[0]].dtype

    def _whole(self, key: tuple[str, int | None] | None, name: str, sizes: ModelSizes) -> np.ndarray:
        if key is None:
            raise common.wrong(self.folder.where, name, "none", "args do not fit the model, or files of it are missing")
        wanted = names.shape_of(name, sizes)
        stored = self.folder.items[key[0]]
        layers = (sizes.num_hidden_layers,) if key[1] is not None else ()
        if len(stored.shape) == len(layers + wanted) + 1:
            return self._unflattened(stored, key[1], layers + wanted, len(layers))
        if stored.shape != layers + wanted:
            raise common.wrong(f"{self.folder.where}, {key[0]}", f"shape {layers + wanted}, as args say",
                               f"{stored.shape}",
                               "args do not fit the model")
        return self.folder.read(*key)

    def _unflattened(self, stored: torch_dist.Stored, row: int | None, whole: Sequence[int],
                     stacked: int) -> np.ndarray:
        """Of pieces whose last dimension runs over the elements of a fragment, the others over the fragments."""
        fragments = stored.shape[:-1]
        local = [extent // count for extent, count in zip(whole, fragments)]
        if math.prod(local) != stored.shape[-1]:
            raise common.wrong(f"{self.folder.where}, {stored.name}", f"fragments of {local}", f"{stored.shape}",
                               "args do not fit the model")
        flat = self.folder.read(stored.name, row)
        axes = range(len(whole))
        if stacked and row is not None:
            fragments, local, axes = fragments[1:], local[1:], range(len(whole) - 1)
        grid = flat.reshape(*fragments, *local)
        order = [axis for pair in zip(axes, (len(fragments) + axis for axis in axes)) for axis in pair]
        return grid.transpose(order).reshape([count * extent for count, extent in zip(fragments, local)])

    def _of_buckets(self, kind: str, name: str, sizes: ModelSizes) -> np.ndarray:
        shards = [self.flat[f"{tensor}/{name}"].read(kind, name) for tensor in range(self.tp)]
        return names.joined(name, shards, sizes)

    def unknown_names(self, known: set[str]) -> list[str]:
        found = set()
        for name in self.folder.items:
            if name.startswith(("optimizer.", "common_state", "rng_state", "rerun_state", "opt_param_")) or \
                    "_extra_state" in name:
                continue
            _, rest = names.split(name) if re.match(r"decoder\.layers\.\d", name) else (None, name)
            plain = names.canonical(rest.removeprefix(names.LAYERS))
            found |= {name} if not any(each == plain or each.endswith("." + plain) for each in known) else set()
        return sorted(found)


def stages_of(args: dict[str, Any], sizes: ModelSizes, pp: int, where: object) -> list[list[list[int]]]:
    """Layers of each chunk of each pipeline rank: transformer_block.py, get_num_layers_to_build, and
    transformer_layer.py, get_transformer_layer_offset."""
    chunks = int(args.get("virtual_pipeline_model_parallel_size") or 1)
    layers, first, last = sizes.num_hidden_layers, args.get("decoder_first_pipeline_num_layers"), \
        args.get("decoder_last_pipeline_num_layers")
    for name in ("pipeline_model_parallel_layout", "account_for_embedding_in_pipeline_split",
                 "account_for_loss_in_pipeline_split"):
        if args.get(name):
            raise names.refuse(where, name, args[name], "off, with dp_reshardable (with fully_reshardable it is read)")
    if pp == 1:
        return [[[*range(layers)]]]
    if first is None and last is None:
        counts = [layers // (pp * chunks)] * (pp * chunks)
    else:
        given = (first is not None) + (last is not None)
        middle = (layers - (first or 0) - (last or 0)) // max(1, pp - given) // chunks
        rank = [(first or 0) // chunks] * (first is not None) + [middle] * (pp - given) + \
            [(last or 0) // chunks] * (last is not None)
        counts = rank * chunks
    found: list[list[list[int]]] = [[] for _ in range(pp)]
    at = 0
    for stage, count in enumerate(counts):
        found[stage % pp].append([*range(at, at + count)])
        at += count
    if at != layers:
        raise common.wrong(where, f"{layers} layers on {pp} pipeline ranks", f"{counts}", "give --no-optimizer")
    return found


class Buckets:
    """dp_reshardable: the flat buckets of one rank of tensor and pipeline parallelism."""

    def __init__(self, dist: Dist, sizes: ModelSizes, tensor: int, pipeline: int):
        self.dist, self.sizes, self.tensor = dist, sizes, tensor
        self.prefix = f"optimizer.distributed.dp_group_idx_{pipeline * dist.tp + tensor}."
        chunks = stages_of(dist.args, sizes, dist.pp, dist.where)[pipeline]
        self.places: dict[str, tuple[str, int]] = {}  # name -> key of its bucket without the kind, first element
        found: dict[int, dict[int, str]] = {}
        for name in dist.folder.items:
            if name.startswith(self.prefix) and (match := GROUP.match(name)) and match[5] == "param":
                found.setdefault(int(match[2]), {})[int(match[4])] = name.removesuffix("param")
        if len(found) != len(chunks):
            raise common.wrong(dist.folder.where, f"{len(chunks)} buffers of {self.prefix}", f"{len(found)}",
                               "parameters of two types in a model are read with fully_reshardable alone")
        for number, layers in enumerate(chunks):
            first = pipeline == 0 and number == 0
            last = pipeline == dist.pp - 1 and number == len(chunks) - 1
            self._find(layers, first, last, [found[number][each] for each in sorted(found[number])])

    def _find(self, layers: list[int], first: bool, last: bool, keys: list[str]) -> None:
        items, sizes = self.dist.folder.items, self.sizes
        counts = [math.prod(items[key + "param"].shape) for key in keys]
        shapes: dict[str, tuple[int, ...]] = {}

        def layouts() -> Iterator[dict[str, buckets.Place]]:
            for fused in (self.dist.args.get("transformer_impl") != "local", False, True):
                members = names.stage_names(sizes, layers, first, last, fused)
                shapes.update({name: names.shard_shape(name, self.dist.tp, sizes) for name in members})
                if places := buckets.by_sizes(members, shapes, counts):
                    yield places

        @functools.lru_cache(maxsize=2)
        def bucket(number: int) -> np.ndarray:
            return self.dist.folder.read_unchecked(keys[number] + "param")

        def fits(name: str, master: np.ndarray) -> bool:
            whole, dtype = self.dist.bits(name)
            shard = names.shard_of(name, whole, self.tensor, self.dist.tp, sizes)
            return taken_over.is_copy_of(shard.reshape(-1), dtype, master)

        places = buckets.find(layouts(), shapes, bucket, fits)
        if places is None:
            raise common.wrong(f"{self.dist.folder.where}, {self.prefix}",
                               "master weights that are, rounded, the weights "
                               "of the model", "none of the known orders fits", "give --no-optimizer to take over the "
                               "weights alone, or save with --dist-ckpt-optim-fully-reshardable")
        self.places |= {name: (keys[number], start) for name, (number, start) in places.items()}

    @functools.lru_cache(maxsize=4)  # noqa: B019, as long as the folder is read
    def _bucket(self, key: str) -> np.ndarray:
        return self.dist.folder.read_unchecked(key)

    def read(self, kind: str, name: str) -> np.ndarray:
        key, start = self.places[name]
        if key + kind not in self.dist.folder.items:
            raise common.wrong(self.dist.folder.where, key + kind, "none",
                               "the optimizer is not Adam: give --no-optimizer")
        shape = names.shard_shape(name, self.dist.tp, self.sizes)
        found = self._bucket(key + kind)[start:start + math.prod(shape)].reshape(shape)
        if not np.isfinite(found).all():
            raise common.wrong(f"{self.dist.folder.where}, {key}{kind}, {name}", "finite numbers",
                               "infinite ones or NaN", "take an earlier checkpoint")
        return found
