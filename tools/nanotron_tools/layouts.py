"""How the tensors of a checkpoint lie in a Hugging Face model's files: under other names, several in one, transposed.

A family with names or a layout of its own is a row of NAMES and FUSED. Everything moves in pieces.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import h5py
import numpy as np

from . import common, model_sizes
from . import safetensors as st

# What of our dotted names is written otherwise, in this order.
NAMES = {
    "mixtral": ((".mlp.", ".block_sparse_moe."), ("gate_proj", "w1"), ("down_proj", "w2"), ("up_proj", "w3")),
    "gpt2": (("model.layers.", "transformer.h."), ("model.embed_tokens.", "transformer.wte."),
             ("model.embed_positions.", "transformer.wpe."), ("model.norm.", "transformer.ln_f."),
             (".input_layernorm.", ".ln_1."), (".post_attention_layernorm.", ".ln_2."),
             (".self_attn.o_proj.", ".attn.c_proj."), (".self_attn.", ".attn."), (".mlp.up_proj.", ".mlp.c_fc."),
             (".mlp.down_proj.", ".mlp.c_proj.")),
}
# Projections that are one tensor there, one above the other: the last part of their names, in order, and of its own.
FUSED: dict[str, dict[tuple[str, ...], str]] = {
    "gpt2": {("q_proj", "k_proj", "v_proj"): "c_attn"},
    "phi3": {("q_proj", "k_proj", "v_proj"): "qkv_proj", ("gate_proj", "up_proj"): "gate_up_proj"},
}
# Families whose projections are stored as (in, out): transformers' Conv1D.
TRANSPOSED = frozenset(("gpt2",))


@dataclass
class Stored:
    """A tensor of a model's files, and those of the checkpoint that it is made of: (dataset, index in it, shape)."""

    shape: tuple[int, ...] = ()
    parts: list[tuple[str, tuple[int, ...], tuple[int, ...]]] = field(default_factory=list)
    transposed: bool = False

    def add(self, dataset: str, index: tuple[int, ...], shape: tuple[int, ...]) -> None:
        self.parts.append((dataset, index, shape))
        above = (sum(part[2][0] for part in self.parts), *shape[1:])
        self.shape = above[::-1] if self.transposed else above

    def rows(self) -> Iterator[tuple[str, tuple[int, ...], int, int]]:
        """(dataset, index, first row, last row) of each part, rows counted in what is stored, turned back."""
        first = 0
        for dataset, index, shape in self.parts:
            yield dataset, index, first, first + shape[0]
            first += shape[0]


def published_name(name: str, kind: str) -> str:
    """The name in a model's files of a tensor of the checkpoint, dots for slashes."""
    for parts, fused in FUSED.get(kind, {}).items():
        for part in parts:
            name = name.replace(f".{part}.", f".{fused}.")
    for ours, theirs in NAMES.get(kind, ()):
        name = name.replace(ours, theirs)
    return name


def stored_tensors(sizes: model_sizes.ModelSizes, kind: str) -> dict[str, Stored]:
    """Name in a model's files -> what it is made of, in file order."""
    result: dict[str, Stored] = {}
    for name, shape in sizes.parameter_shapes().items():
        for full, index in model_sizes.hugging_face_tensors(name, shape):
            transposed = kind in TRANSPOSED and "_proj/weight" in name
            stored = result.setdefault(published_name(full, kind), Stored(transposed=transposed))
            stored.add(name, index, shape[len(index):])
    return result


def load(stored: Stored, tensor: st.StoredTensor, dataset_of: Callable[[str], h5py.Dataset]) -> None:
    """Reads a tensor of a model's files into the datasets of its parts."""
    for start, block in tensor.pieces():
        stop = start + block.shape[0]
        for name, index, first, last in stored.rows():
            dataset = dataset_of(name)
            if stored.transposed:
                dataset[(*index, slice(None), slice(start, stop))] = block[:, first:last].T
                continue
            begin, end = max(start, first), min(stop, last)
            if begin >= end:
                continue
            rows = slice(begin - first, end - first)
            dataset[(*index, rows)] = block[begin - start:end - start]


def save(stored: Stored, dtype: str, dataset_of: Callable[[str], h5py.Dataset], writer: st.SafetensorsWriter) -> None:
    """Writes it from them."""
    if stored.transposed:
        return _save_transposed(stored, dtype, dataset_of, writer)
    for name, index, shape in stored.parts:
        dataset = dataset_of(name)
        row = max(1, math.prod(shape[1:])) * dataset.dtype.itemsize
        step = max(1, st.PIECE_BYTES // row)
        for start in range(0, shape[0], step):
            rows = slice(start, min(start + step, shape[0]))
            writer.write(dataset[(*index, rows)], dtype)


def _save_transposed(stored: Stored, dtype: str, dataset_of: Callable[[str], h5py.Dataset],
                     writer: st.SafetensorsWriter) -> None:
    inputs, outputs = stored.shape
    step = max(1, st.PIECE_BYTES // (outputs * 8))
    for start in range(0, inputs, step):
        columns = slice(start, min(start + step, inputs))
        blocks = [dataset_of(name)[(*index, slice(None), columns)].T for name, index, _ in stored.parts]
        writer.write(np.concatenate(blocks, axis=1), dtype)


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


def with_prefix(tensors: Tensors, kind: str) -> Tensors:
    """The tensors of a backbone saved alone (as openai-community/gpt2 is), under their names in the model."""
    if kind != "gpt2" or any(name.startswith("transformer.") for name in tensors):
        return tensors
    return {name if name.startswith("lm_head.") else "transformer." + name: tensor for name, tensor in tensors.items()}


def is_no_parameter(name: str, kind: str) -> bool:
    """Buffers that old versions saved: rotary frequencies, causal masks."""
    masks = (".attn.bias", ".attn.masked_bias") if kind == "gpt2" else ()
    return name.endswith(("rotary_emb.inv_freq", *masks))


def match(tensors: Tensors, sizes: model_sizes.ModelSizes, kind: str, where: object) -> dict[str, Stored]:
    """Checks names and shapes; returns what each tensor is made of."""
    expected = stored_tensors(sizes, kind)
    head, embedding = "lm_head.weight", published_name("model.embed_tokens.weight", kind)
    if sizes.tie_word_embeddings and head in tensors and embedding in tensors and \
            not same_tensor(tensors[head], tensors[embedding]):
        raise common.ToolError(f"{where}: tie_word_embeddings is set, yet {head} differs from "
                               f"{embedding}")
    for name in sorted(expected.keys() | tensors.keys()):
        if name not in tensors:
            raise common.ToolError(f"{where}: {name} is missing")
        if name not in expected:
            if is_no_parameter(name, kind) or name == head:
                continue
            raise common.ToolError(f"{where}: {name} {tensors[name].shape} has no place in this model")
        if tensors[name].shape != expected[name].shape:
            raise common.ToolError(f"{where}: {name}: expected shape {expected[name].shape}, found "
                                   f"{tensors[name].shape}")
    return expected
