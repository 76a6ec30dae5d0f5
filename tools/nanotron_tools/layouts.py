"""How the tensors of a checkpoint lie in a Hugging Face model's files: under other names, several in one, transposed.

A family with names or a layout of its own is a row of the tables. Everything moves in pieces.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import h5py
import numpy as np

from . import common, model_sizes
from . import safetensors as st

# What of our dotted names is written otherwise, in this order.
OF_GPT2 = (("model.layers.", "transformer.h."), ("model.embed_tokens.", "transformer.wte."),
           ("model.embed_positions.", "transformer.wpe."), ("model.norm.", "transformer.ln_f."),
           (".input_layernorm.", ".ln_1."), (".post_attention_layernorm.", ".ln_2."))
NAMES = {
    "mixtral": ((".mlp.", ".block_sparse_moe."), ("gate_proj", "w1"), ("down_proj", "w2"), ("up_proj", "w3")),
    "gpt2": (*OF_GPT2, (".self_attn.o_proj.", ".attn.c_proj."), (".self_attn.", ".attn."),
             (".mlp.up_proj.", ".mlp.c_fc."), (".mlp.down_proj.", ".mlp.c_proj.")),
    "starcoder2": ((".mlp.up_proj.", ".mlp.c_fc."), (".mlp.down_proj.", ".mlp.c_proj.")),
    "gpt_neox": (("model.layers.", "gpt_neox.layers."), ("model.embed_tokens.", "gpt_neox.embed_in."),
                 ("model.norm.", "gpt_neox.final_layer_norm."), ("lm_head.", "embed_out."),
                 (".self_attn.o_proj.", ".attention.dense."), (".self_attn.", ".attention."),
                 (".mlp.up_proj.", ".mlp.dense_h_to_4h."), (".mlp.down_proj.", ".mlp.dense_4h_to_h.")),
    "internlm2": (("model.embed_tokens.", "model.tok_embeddings."), ("lm_head.", "output."),
                  (".self_attn.o_proj.", ".attention.wo."), (".self_attn.", ".attention."),
                  (".mlp.gate_proj.", ".feed_forward.w1."), (".mlp.up_proj.", ".feed_forward.w3."),
                  (".mlp.down_proj.", ".feed_forward.w2."), (".input_layernorm.", ".attention_norm."),
                  (".post_attention_layernorm.", ".ffn_norm.")),
    "exaone": (*OF_GPT2, (".self_attn.o_proj.", ".attn.attention.out_proj."), (".self_attn.", ".attn.attention."),
               (".mlp.gate_proj.", ".mlp.c_fc_0."), (".mlp.up_proj.", ".mlp.c_fc_1."),
               (".mlp.down_proj.", ".mlp.c_proj.")),
    "apertus": ((".input_layernorm.", ".attention_layernorm."),
                (".post_attention_layernorm.", ".feedforward_layernorm.")),
    "glm4": ((".post_attention_layernorm.", ".post_self_attn_layernorm."),
             (".pre_feedforward_layernorm.", ".post_attention_layernorm."),
             (".post_feedforward_layernorm.", ".post_mlp_layernorm.")),
    "gpt_oss": ((".mlp.gate.", ".mlp.router."),),
    "opt": (("model.layers.", "model.decoder.layers."), ("model.embed_", "model.decoder.embed_"),
            ("model.norm.", "model.decoder.final_layer_norm."), (".self_attn.o_proj.", ".self_attn.out_proj."),
            (".input_layernorm.", ".self_attn_layer_norm."), (".post_attention_layernorm.", ".final_layer_norm."),
            (".mlp.up_proj.", ".fc1."), (".mlp.down_proj.", ".fc2.")),
    "phi": (("model.norm.", "model.final_layernorm."), (".self_attn.o_proj.", ".self_attn.dense."),
            (".mlp.up_proj.", ".mlp.fc1."), (".mlp.down_proj.", ".mlp.fc2.")),
}
NAMES["gpt_bigcode"] = NAMES["gpt2"]
# Projections that are one tensor there: the last part of their names, in order, and of its own.
QKV = ("q_proj", "k_proj", "v_proj")
FUSED: dict[str, dict[tuple[str, ...], str]] = {
    "gpt2": {QKV: "c_attn"}, "gpt_bigcode": {QKV: "c_attn"}, "gpt_neox": {QKV: "query_key_value"},
    "internlm2": {QKV: "wqkv"}, "phi3": {QKV: "qkv_proj", ("gate_proj", "up_proj"): "gate_up_proj"},
    "glm": {("gate_proj", "up_proj"): "gate_up_proj"}, "glm4": {("gate_proj", "up_proj"): "gate_up_proj"},
}
# Families whose files have the experts of a layer in one tensor (experts, in, out), gate and up alternating.
EXPERT_BLOCKS = frozenset(("gpt_oss",))
# Rows before the first position's that the class stores and does not use.
UNUSED_POSITIONS = {"opt": 2}
# Buffers that the class saves in each layer: a constant, in bfloat16 whatever the type of the model.
CONSTANTS = {"apertus": {"mlp.act_fn.beta": 0.5, "mlp.act_fn.eps": -9.98377799987793e-07}}
# Families whose fused q, k and v alternate: the queries of a KV head, its key, its value, then those of the next.
GROUPED = frozenset(("gpt_bigcode", "gpt_neox", "internlm2"))
# Families that rotate rows 2i and 2i+1 of a head as a pair, where ours are i and i + head_dim / 2.
INTERLEAVED = frozenset(("ernie4_5", "helium"))
# Families whose projections are stored as (in, out): transformers' Conv1D.
TRANSPOSED = frozenset(("gpt2",))
# What a backbone's tensors lack in front of their names when it is saved alone.
PREFIX = {"gpt2": "transformer.", "gpt_bigcode": "transformer."}
# Families whose files may have layers after the last one, which predict further tokens: they are left out.
FURTHER_LAYERS = frozenset(("deepseek_v3",))
# What stays in float32 when a model is written in 16 bits: rounded, a router would choose other experts.
WIDE = ".e_score_correction_bias"
# Causal masks that old versions saved.
BUFFERS = {"gpt2": (".attn.bias", ".attn.masked_bias"), "gpt_bigcode": (".attn.bias", ".attn.masked_bias"),
           "gpt_neox": (".attention.bias", ".attention.masked_bias")}

Source = tuple[str, tuple[int, ...], tuple[int, ...]]  # dataset, index in it, shape of what is there


@dataclass(frozen=True)
class Rows:
    """Rows [first, first + count) of a tensor of the checkpoint, which are at, at + step, ... in what is stored."""

    dataset: str
    index: tuple[int, ...]
    first: int
    count: int
    at: int
    step: int = 1

    def within(self, start: int, stop: int) -> tuple[slice, slice]:
        """Of the stored rows [start, stop): those of this part, counted from `start`, and its own."""
        begin, end = (min(self.count, max(0, -(-(edge - self.at) // self.step))) for edge in (start, stop))
        first = self.at + begin * self.step - start
        return slice(first, first + (end - begin - 1) * self.step + 1 if end > begin else first, self.step), \
            slice(self.first + begin, self.first + end)


@dataclass(frozen=True)
class Stored:
    """A tensor of a model's files, and the rows of the checkpoint's tensors that it is made of."""

    shape: tuple[int, ...]
    parts: Sequence[Rows]
    transposed: bool = False

    def pack(self, source: Callable[[str], Any], start: int, stop: int) -> np.ndarray:
        """Rows [start, stop) of it, out of the checkpoint's."""
        block = np.zeros((stop - start, *self.shape[1:]), source(self.parts[0].dataset).dtype)
        for part in self.parts:
            if self.transposed:
                theirs, ours = part.within(0, self.shape[1])
                block[:, theirs] = source(part.dataset)[(*part.index, ours, slice(start, stop))].T
                continue
            theirs, ours = part.within(start, stop)
            if ours.stop > ours.start:
                block[theirs] = source(part.dataset)[(*part.index, ours)]
        return block

    def unpack(self, block: np.ndarray, start: int, target: Callable[[str], Any]) -> None:
        """Writes its rows from `start` on into the checkpoint's tensors."""
        stop = start + block.shape[0]
        for part in self.parts:
            if self.transposed:
                theirs, ours = part.within(0, self.shape[1])
                target(part.dataset)[(*part.index, ours, slice(start, stop))] = block[:, theirs].T
                continue
            theirs, ours = part.within(start, stop)
            if ours.stop > ours.start:
                target(part.dataset)[(*part.index, ours)] = block[theirs]


@dataclass(frozen=True)
class ExpertBlock(Stored):
    """The experts of a layer in one tensor: (experts, in, out) or, of biases, (experts, out). Its datasets alternate in
    the last dimension."""

    datasets: tuple[str, ...] = ()
    layer: int = 0

    def pack(self, source: Callable[[str], Any], start: int, stop: int) -> np.ndarray:
        block = np.empty((stop - start, *self.shape[1:]), source(self.datasets[0]).dtype)
        for slot, name in enumerate(self.datasets):
            block[..., slot::len(self.datasets)] = np.moveaxis(source(name)[start:stop, self.layer], 1, -1)
        return block

    def unpack(self, block: np.ndarray, start: int, target: Callable[[str], Any]) -> None:
        for slot, name in enumerate(self.datasets):
            target(name)[start:start + block.shape[0], self.layer] = \
                np.moveaxis(block[..., slot::len(self.datasets)], -1, 1)


@dataclass(frozen=True)
class Constant(Stored):
    """A scalar of the class, which a checkpoint does not have."""

    value: float = 0.0


def published_name(name: str, kind: str) -> str:
    """The name in a model's files of a tensor of the checkpoint, dots for slashes."""
    for parts, fused in FUSED.get(kind, {}).items():
        for part in parts:
            name = name.replace(f".{part}.", f".{fused}.")
    for ours, theirs in NAMES.get(kind, ()):
        name = name.replace(ours, theirs)
    return name


def _rows_of(sources: list[Source], sizes: model_sizes.ModelSizes, kind: str) -> list[Rows]:
    """Each with (first row, rows) and its place, by the order of the family."""
    heads = sizes.num_key_value_heads if kind in GROUPED and len(sources) == len(QKV) else 1
    result, at = [], 0
    for head in range(heads):
        for dataset, index, shape in sources:
            count = shape[0] // heads
            if kind in INTERLEAVED and any(f"/{name}/" in dataset for name in QKV[:2]):
                half = sizes.head_dim // 2
                result += [Rows(dataset, index, first, half, first // half // 2 * 2 * half + first // half % 2, 2)
                           for first in range(0, count, half)]
            else:
                result.append(Rows(dataset, index, head * count, count, at))
            at += count
    return result


def stored_tensors(sizes: model_sizes.ModelSizes, kind: str) -> dict[str, Stored]:
    """Name in a model's files -> what it is made of, in file order."""
    sources: dict[str, list[Source]] = {}
    result: dict[str, Stored] = {}
    for name, shape in sizes.parameter_shapes().items():
        if kind in EXPERT_BLOCKS and "/experts/" in name:
            continue
        for full, index in model_sizes.hugging_face_tensors(name, shape, sizes.layers_of(name)):
            sources.setdefault(published_name(full, kind), []).append((name, index, shape[len(index):]))
    for full, parts in sources.items():
        shape = (sum(part[2][0] for part in parts), *parts[0][2][1:])
        transposed = kind in TRANSPOSED and "_proj/weight" in parts[0][0]
        unused = UNUSED_POSITIONS.get(kind, 0) if "embed_positions" in full else 0
        rows = [replace(part, at=part.at + unused) for part in _rows_of(parts, sizes, kind)]
        result[full] = Stored(shape[::-1] if transposed else (shape[0] + unused, *shape[1:]), rows, transposed)
    if kind in EXPERT_BLOCKS:
        result |= _expert_blocks(sizes)
    return result | {f"model.layers.{layer}.{name}": Constant((), (), value=value)
                     for name, value in CONSTANTS.get(kind, {}).items() for layer in range(sizes.num_hidden_layers)}


def _expert_blocks(sizes: model_sizes.ModelSizes) -> dict[str, Stored]:
    """As GPT-OSS has them."""
    result: dict[str, Stored] = {}
    shapes = sizes.parameter_shapes()
    for layer in range(sizes.num_hidden_layers):
        for fused, parts in {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}.items():
            for kind, ending in (("weight", ""), ("bias", "_bias")):
                names = tuple(f"model/layers/mlp/experts/{part}/{kind}" for part in parts)
                if names[0] in shapes:
                    experts, _, out, *inner = shapes[names[0]]
                    result[f"model.layers.{layer}.mlp.experts.{fused}{ending}"] = ExpertBlock(
                        (experts, *inner, out * len(parts)), (), datasets=names, layer=layer)
    return result


def _require_finite(block: np.ndarray, start: int, name: str, where: object) -> None:
    if (wrong := np.argwhere(~np.isfinite(block))).size:
        first = wrong[0]
        index = ", ".join(map(str, (start + first[0], *first[1:])))
        raise common.ToolError(f"{where}: {name}[{index}]: expected a finite number, found {block[tuple(first)]}: "
                               "these weights are broken, take another copy of the model or an earlier one")


def load(name: str, stored: Stored, tensor: st.StoredTensor, dataset_of: Callable[[str], h5py.Dataset]) -> None:
    """Reads a tensor of a model's files into the datasets of its parts."""
    if isinstance(stored, Constant):
        return
    for start, block in tensor.pieces():
        _require_finite(block, start, name, tensor.path)
        stored.unpack(block, start, dataset_of)


def save(stored: Stored, dtype: str, dataset_of: Callable[[str], h5py.Dataset], writer: st.SafetensorsWriter) -> None:
    """Writes it from them."""
    if isinstance(stored, Constant):
        writer.write(np.full(stored.shape, stored.value), dtype)
        return
    step = max(1, st.PIECE_BYTES // (8 * math.prod(stored.shape[1:])))
    for start in range(0, stored.shape[0], step):
        writer.write(stored.pack(dataset_of, start, min(start + step, stored.shape[0])), dtype)


# ---------------------------------------------------------------------------------------------
# What is found in a folder


Tensors = dict[str, st.StoredTensor]


def same_tensor(a: st.StoredTensor, b: st.StoredTensor) -> bool:
    return a.shape == b.shape and all(
        np.array_equal(x, y, equal_nan=True)
        for (_, x), (_, y) in itertools.zip_longest(a.pieces(), b.pieces(), fillvalue=(0, np.empty(0))))


def split_experts(tensors: Tensors, sizes: model_sizes.ModelSizes, kind: str, where: object) -> Tensors:
    """The tensors with those of fused experts, as transformers 5 holds them, under a name for each expert:
    gate_up_proj (experts, 2 x width, hidden), gate above up, and down_proj (experts, hidden, width)."""
    if kind in EXPERT_BLOCKS:
        return tensors
    result = dict(tensors)
    experts, width, hidden = sizes.num_experts, sizes.moe_intermediate_size, sizes.hidden_size
    shapes = {"gate_up_proj": (experts, 2 * width, hidden), "down_proj": (experts, hidden, width)}
    for layer in range(sizes.num_hidden_layers if experts else 0):
        mlp = f"model.layers.{layer}.mlp."
        if kind == "mixtral" and mlp + "gate.weight" in result:
            result[published_name(mlp + "gate.weight", kind)] = result.pop(mlp + "gate.weight")
        for name, shape in shapes.items():
            fused = result.pop(f"{mlp}experts.{name}", None)
            if fused is None:
                continue
            if fused.shape != shape:
                raise common.ToolError(f"{where}: {mlp}experts.{name}: expected shape {shape}, found {fused.shape}")
            parts = {"gate_proj": (0, width), "up_proj": (width, 2 * width)} if "gate" in name else \
                {"down_proj": (0, hidden)}
            for expert in range(experts):
                for part, (start, stop) in parts.items():
                    full = published_name(f"{mlp}experts.{expert}.{part}.weight", kind)
                    result[full] = fused.rows_of(expert, start, stop)
    return result


def with_full_names(tensors: Tensors, kind: str) -> Tensors:
    """The tensors of a backbone saved alone (as openai-community/gpt2 is), under their names in the model, and a head
    that transformers 5 names as all heads."""
    head = published_name("lm_head.weight", kind)
    if "lm_head.weight" in tensors and head not in tensors:
        tensors = {head if name == "lm_head.weight" else name: tensor for name, tensor in tensors.items()}
    prefix = PREFIX.get(kind)
    if prefix is None or any(name.startswith(prefix) for name in tensors):
        return tensors
    return {name if name.startswith("lm_head.") else prefix + name: tensor for name, tensor in tensors.items()}


def is_no_parameter(name: str, kind: str) -> bool:
    """Buffers that old versions saved: rotary frequencies, causal masks."""
    return name.endswith(("rotary_emb.inv_freq", *BUFFERS.get(kind, ())))


def is_left_out(name: str, sizes: model_sizes.ModelSizes, kind: str) -> bool:
    """A tensor of a layer after the last one."""
    layer = re.match(r"model\.layers\.(\d+)\.", name)
    return kind in FURTHER_LAYERS and layer is not None and int(layer[1]) >= sizes.num_hidden_layers


def dtype_of(name: str, dtype: str) -> str:
    """Of a tensor in a model that is written as `dtype`."""
    return "F32" if name.endswith(WIDE) and dtype in ("BF16", "F16") else dtype


def match(tensors: Tensors, sizes: model_sizes.ModelSizes, kind: str, where: object) -> dict[str, Stored]:
    """Checks names and shapes; returns what each tensor is made of."""
    expected = stored_tensors(sizes, kind)
    head, embedding = (published_name(name, kind) for name in ("lm_head.weight", "model.embed_tokens.weight"))
    if sizes.tie_word_embeddings and head in tensors and embedding in tensors and \
            not same_tensor(tensors[head], tensors[embedding]):
        raise common.ToolError(f"{where}: tie_word_embeddings is set, yet {head} differs from "
                               f"{embedding}")
    for name in sorted(expected.keys() | tensors.keys()):
        if name not in tensors:
            if isinstance(expected[name], Constant):
                continue
            raise common.ToolError(f"{where}: {name} is missing")
        if name not in expected:
            if is_no_parameter(name, kind) or name == head or is_left_out(name, sizes, kind):
                continue
            raise common.ToolError(f"{where}: {name} {tensors[name].shape} does not belong to this model")
        if tensors[name].dtype not in st.FLOATS:
            raise common.ToolError(f"{where}: {name}: type {tensors[name].dtype} is not supported (supported: "
                                   f"{', '.join(st.FLOATS)})")
        if tensors[name].shape != expected[name].shape:
            raise common.ToolError(f"{where}: {name}: expected shape {expected[name].shape}, found "
                                   f"{tensors[name].shape}")
    return expected
