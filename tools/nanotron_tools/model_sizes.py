"""What a model is: its sizes under the names of &model and &moe, and the tensors that follow from them.

The keys are made from the table of the program (model_keys.py); the C++ counterpart of the tensors is
src/model/parameters/parameter_table.cpp.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import h5py
import numpy as np

from . import common, hdf5
from .model_keys import ModelKeys


@dataclass(frozen=True)
class ModelSizes(ModelKeys):
    """Sizes and choices of a decoder, dense or a mixture of experts, under Hugging Face's names where it has one."""

    unknown: dict[str, Any] = field(default_factory=dict)  # a checkpoint's keys of which these tools know nothing

    def _values(self, which: Callable[[Mapping[str, Any]], Any]) -> dict[str, Any]:
        return {item.name: getattr(self, item.name) for item in fields(self)
                if item.name != "unknown" and which(item.metadata)}

    def first_values(self) -> dict[str, Any]:
        """Those of &model that every deck and checkpoint names."""
        return self._values(lambda of: not of)

    def chosen_values(self) -> dict[str, Any]:
        """The others of &model, where they are not at their defaults."""
        defaults = {item.name: item.default for item in fields(self)}
        return {key: value for key, value in self._values(lambda of: "omitted" in of).items() if value != defaults[key]}

    def dense_values(self) -> dict[str, Any]:
        return self.first_values() | self.chosen_values()

    def moe_values(self) -> dict[str, Any]:
        return self._values(lambda of: "of_experts" in of)

    def parameter_shapes(self) -> dict[str, tuple[int, ...]]:
        """Dataset name below /parameters -> global shape, the layers stacked in front."""
        layers, hidden, ffn = self.num_hidden_layers, self.hidden_size, self.intermediate_size
        rows = {
            "q": self.num_attention_heads * self.head_dim,
            "k": self.num_key_value_heads * self.head_dim,
            "v": self.num_key_value_heads * self.head_dim,
        }
        block = "model/layers/"
        shapes: dict[str, tuple[int, ...]] = {"model/embed_tokens/weight": (self.vocab_size, hidden)}
        if self.position_embedding_type == "learned_absolute":
            shapes["model/embed_positions/weight"] = (self.max_position_embeddings, hidden)
        for key, count in rows.items():
            shapes[f"{block}self_attn/{key}_proj/weight"] = (layers, count, hidden)
            if self.qkv_bias:
                shapes[f"{block}self_attn/{key}_proj/bias"] = (layers, count)
        shapes[block + "self_attn/o_proj/weight"] = (layers, hidden, rows["q"])
        if self.o_proj_bias:
            shapes[block + "self_attn/o_proj/bias"] = (layers, hidden)
        if self.qk_norm:
            shapes[block + "self_attn/q_norm/weight"] = (layers, self.head_dim)
            shapes[block + "self_attn/k_norm/weight"] = (layers, self.head_dim)

        def gated(prefix: str, stacked: tuple[int, ...], width: int) -> None:
            shapes[prefix + "gate_proj/weight"] = (*stacked, width, hidden)
            shapes[prefix + "up_proj/weight"] = (*stacked, width, hidden)
            shapes[prefix + "down_proj/weight"] = (*stacked, hidden, width)

        if self.num_experts == 0:
            shapes |= self._dense_mlp(block + "mlp/", layers, hidden, ffn)
        else:
            shapes[block + "mlp/gate/weight"] = (layers, self.num_experts, hidden)
            gated(block + "mlp/experts/", (self.num_experts, layers), self.moe_intermediate_size)
        if self.shared_expert_intermediate_size > 0:
            shapes[block + "mlp/shared_expert_gate/weight"] = (layers, 1, hidden)
            gated(block + "mlp/shared_expert/", (layers,), self.shared_expert_intermediate_size)
        for kind in ("weight", "bias") if self.normalization == "layer_norm" else ("weight",):
            shapes[f"{block}input_layernorm/{kind}"] = (layers, hidden)
            shapes[f"{block}post_attention_layernorm/{kind}"] = (layers, hidden)
            shapes[f"model/norm/{kind}"] = (hidden,)
        if not self.tie_word_embeddings:
            shapes["lm_head/weight"] = (self.vocab_size, hidden)
        return shapes

    def _dense_mlp(self, prefix: str, layers: int, hidden: int, width: int) -> dict[str, tuple[int, ...]]:
        rows = ({"gate_proj": width} if self.hidden_act == "silu" else {}) | {"up_proj": width}
        shapes: dict[str, tuple[int, ...]] = {
            f"{prefix}{name}/weight": (layers, count, hidden) for name, count in rows.items()}
        shapes[prefix + "down_proj/weight"] = (layers, hidden, width)
        if self.mlp_bias:
            rows |= {"down_proj": hidden}
            shapes |= {f"{prefix}{name}/bias": (layers, count) for name, count in rows.items()}
        return shapes

    def deck_group(self, moe: dict[str, Any] | None = None) -> str:
        """The &model group of a deck for this model, and &moe, with the keys of `moe` too, where it has experts."""

        def text(value: Any) -> str:
            if isinstance(value, bool):
                return ".true." if value else ".false."
            return f"'{value}'" if isinstance(value, str) else repr(value)

        def group(name: str, values: dict[str, Any]) -> str:
            return f"&{name}\n" + "".join(f"  {key:<20} = {text(value)}\n" for key, value in values.items()) + "/\n"

        experts = group("moe", self.moe_values() | (moe or {})) if self.num_experts else ""
        return group("model", self.dense_values()) + experts

    def to_attributes(self, group: h5py.Group) -> None:
        values = self.dense_values() | (self.moe_values() if self.num_experts else {}) | self.unknown
        for key, value in values.items():
            if isinstance(value, str):
                hdf5.set_text(group, key, value, attribute=True)
            else:
                group.attrs.create(key, value, dtype=np.float64 if isinstance(value, float) else np.int64)

    @classmethod
    def from_attributes(cls, group: h5py.Group) -> ModelSizes:
        """All attributes of /parameters; common.ToolError where one is missing."""
        found = dict(group.attrs.items())
        kinds: dict[Any, Callable[[Any], Any]] = {"int": int, "bool": bool, "float": float, "str": hdf5.as_text}
        values: dict[str, Any] = {}
        for item in fields(cls):
            if item.name in found:
                values[item.name] = kinds[item.type](found.pop(item.name))
                continue
            optional = item.name == "unknown" or item.metadata.get("omitted") or \
                (item.metadata.get("of_experts") and "num_experts" not in values)
            if not optional:
                raise common.ToolError(f"{group.file.filename}: {group.name} has no attribute '{item.name}'")
        return cls(**values, unknown={key: hdf5.as_text(value) if isinstance(value, bytes) else value
                                      for key, value in found.items()})


def hugging_face_tensors(name: str, shape: tuple[int, ...]) -> list[tuple[str, tuple[int, ...]]]:
    """The tensors of a dataset of this shape under their Hugging Face names, each with its index in the dataset."""
    dotted, prefix, experts = name.replace("/", "."), "model.layers.", ".experts."
    if not dotted.startswith(prefix):
        return [(dotted, ())]
    block, stacked, last = dotted[len(prefix):].partition(experts)
    if not stacked:
        return [(f"{prefix}{layer}.{block}", (layer,)) for layer in range(shape[0])]
    return [(f"{prefix}{layer}.{block}{experts}{expert}.{last}", (expert, layer))
            for expert in range(shape[0]) for layer in range(shape[1])]
