"""What a model is: its sizes under the names of &model and &moe, and the tensors that follow from them.

The keys are made from the table of the program (model_keys.py); the C++ counterpart of the tensors is
src/model/parameters/parameter_table.cpp.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import h5py
import numpy as np

from . import common, hdf5, layer_sets
from .model_keys import ModelKeys

APPENDED = ("enorm", "hnorm", "eh_proj", "shared_head")  # of layers that predict later tokens
GATED = ("silu", "geglu", "geglu_tanh", "swiglu_clamped")


class WithoutKeys:
    """What models of other families have and no deck can ask for: where ModelKeys has the key, it counts."""

    final_logit_softcapping = 0.0
    embedding_multiplier = 1.0
    residual_multiplier = 1.0
    logits_scaling = 1.0
    embedding_norm = False
    q_lora_rank = 0
    kv_lora_rank = 0
    qk_nope_head_dim = 0
    qk_rope_head_dim = 0
    v_head_dim = 0
    expert_layers = "all"


MAX_LAYERS = 100_000


@dataclass(frozen=True)
class ModelSizes(ModelKeys, WithoutKeys):
    """Sizes and choices of a decoder, dense or a mixture of experts, under Hugging Face's names where it has one."""

    unknown: dict[str, Any] = field(default_factory=dict)  # a checkpoint's keys of which these tools know nothing

    def __post_init__(self) -> None:
        """A deck's limit: the names of all layers are listed."""
        if self.num_hidden_layers > MAX_LAYERS:
            raise common.ToolError(f"num_hidden_layers: expected at most {MAX_LAYERS}, found {self.num_hidden_layers}")

    def _values(self, which: Callable[[Mapping[str, Any]], Any]) -> dict[str, Any]:
        return {item.name: getattr(self, item.name) for item in fields(self)
                if item.name != "unknown" and which(item.metadata)}

    def first_values(self) -> dict[str, Any]:
        """Those of &model that every deck and checkpoint names."""
        return self._values(lambda of: not of)

    def chosen_values(self) -> dict[str, Any]:
        """The others of &model, where they are not at their defaults."""
        return self._not_at_default(self._values(lambda of: "omitted" in of and "of_experts" not in of))

    def _not_at_default(self, values: dict[str, Any]) -> dict[str, Any]:
        defaults = {item.name: item.default for item in fields(self)}
        return {key: value for key, value in values.items() if value != defaults[key]}

    def dense_values(self) -> dict[str, Any]:
        return self.first_values() | self.chosen_values()

    def moe_values(self) -> dict[str, Any]:
        return self._values(lambda of: "of_experts" in of and "omitted" not in of) | \
            self._not_at_default(self._values(lambda of: "of_experts" in of and "omitted" in of))

    @property
    def is_gated(self) -> bool:
        """Whether the feed-forward network has a gate beside the up projection."""
        return self.hidden_act in GATED

    def layers_of(self, name: str) -> list[int]:
        """The layers that a dataset below model/layers/ is stacked over."""
        layers, appended = self.num_hidden_layers, self.num_nextn_predict_layers
        if any(f"/{part}/" in name for part in APPENDED):
            return list(range(layers, layers + appended))
        if "/mlp/" not in name:
            return list(range(layers + appended))
        of_experts = layer_sets.flags_of(self.expert_layers if self.num_experts else "none", layers)
        of_experts += of_experts[-1:] * appended
        wanted = any(f"/mlp/{part}/" in name for part in ("gate", "experts", "shared_expert", "shared_expert_gate",
                                                          "shared_experts"))
        return [layer for layer, flag in enumerate(of_experts) if flag == wanted]

    def parameter_shapes(self) -> dict[str, tuple[int, ...]]:
        """Dataset name below /parameters -> global shape, the layers stacked in front."""
        hidden = self.hidden_size
        shapes: dict[str, tuple[int, ...]] = {"model/embed_tokens/weight": (self.vocab_size, hidden)}
        if self.position_embedding_type == "learned_absolute":
            shapes["model/embed_positions/weight"] = (self.max_position_embeddings, hidden)
        of_layer = (self._latent_attention() if self.kv_lora_rank else self._attention()) | self._mlp()
        shapes |= self._stacked(of_layer)
        if self.num_nextn_predict_layers:
            shapes |= self._stacked({"eh_proj/weight": (hidden, 2 * hidden)} | {
                f"{name}/{kind}": (hidden,) for name in ("enorm", "hnorm", "shared_head/norm")
                for kind in self._norm_parts()})
        for kind in self._norm_parts():
            shapes |= self._stacked({f"{name}/{kind}": (hidden,) for name in self._norms()})
            shapes[f"model/norm/{kind}"] = (hidden,)
        if self.embedding_norm:
            shapes |= {f"model/embed_norm/{kind}": (hidden,) for kind in self._norm_parts()}
        if not self.tie_word_embeddings:
            shapes["lm_head/weight"] = (self.vocab_size, hidden)
        if self.lm_head_bias:
            shapes["lm_head/bias"] = (self.vocab_size,)
        return shapes

    def _stacked(self, of_layer: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
        shapes: dict[str, tuple[int, ...]] = {}
        for name, shape in of_layer.items():
            full = "model/layers/" + name
            if layers := len(self.layers_of(full)):
                shapes[full] = (self.num_experts, layers, *shape) if "/experts/" in full else (layers, *shape)
        return shapes

    def _norm_parts(self) -> tuple[str, ...]:
        if self.norm_weight == "none":
            return ()
        return ("weight", "bias") if self.normalization == "layer_norm" and self.norm_bias else ("weight",)

    def _norms(self) -> tuple[str, ...]:
        """Of a layer, under Hugging Face's names."""
        if self.norm_placement == "post":
            return "post_attention_layernorm", "post_feedforward_layernorm"
        if self.norm_placement == "sandwich":
            return ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm",
                    "post_feedforward_layernorm")
        if self.parallel_residual == "one_norm":
            return ("input_layernorm",)
        return "input_layernorm", "post_attention_layernorm"

    def _attention(self) -> dict[str, tuple[int, ...]]:
        queries, keys = (count * self.head_dim for count in (self.num_attention_heads, self.num_key_value_heads))
        shapes: dict[str, tuple[int, ...]] = {}
        for key, count in (("q", queries), ("k", keys), ("v", keys)):
            shapes[f"self_attn/{key}_proj/weight"] = (count, self.hidden_size)
            if self.qkv_bias:
                shapes[f"self_attn/{key}_proj/bias"] = (count,)
        shapes["self_attn/o_proj/weight"] = (self.hidden_size, queries)
        if self.o_proj_bias:
            shapes["self_attn/o_proj/bias"] = (self.hidden_size,)
        if self.qk_norm:
            whole = self.qk_norm_over == "projection"
            shapes["self_attn/q_norm/weight"] = (queries if whole else self.head_dim,)
            shapes["self_attn/k_norm/weight"] = (keys if whole else self.head_dim,)
        if self.attention_sinks:
            shapes["self_attn/sinks"] = (self.num_attention_heads,)
        return shapes

    def _latent_attention(self) -> dict[str, tuple[int, ...]]:
        """With compressed queries, keys and values."""
        hidden, heads, rank = self.hidden_size, self.num_attention_heads, self.kv_lora_rank
        queries = heads * (self.qk_nope_head_dim + self.qk_rope_head_dim)
        shapes: dict[str, tuple[int, ...]] = {"self_attn/q_proj/weight": (queries, hidden)} if not self.q_lora_rank \
            else {"self_attn/q_a_proj/weight": (self.q_lora_rank, hidden),
                  "self_attn/q_a_layernorm/weight": (self.q_lora_rank,),
                  "self_attn/q_b_proj/weight": (queries, self.q_lora_rank)}
        return shapes | {
            "self_attn/kv_a_proj_with_mqa/weight": (rank + self.qk_rope_head_dim, hidden),
            "self_attn/kv_a_layernorm/weight": (rank,),
            "self_attn/kv_b_proj/weight": (heads * (self.qk_nope_head_dim + self.v_head_dim), rank),
            "self_attn/o_proj/weight": (hidden, heads * self.v_head_dim)}

    def _mlp(self) -> dict[str, tuple[int, ...]]:
        """Of dense layers and of those with experts, of an expert each."""
        shapes = self._feed_forward("mlp/", self.intermediate_size)
        if self.hidden_act == "xielu":
            shapes |= {"mlp/act_fn/alpha_p": (1,), "mlp/act_fn/alpha_n": (1,)}
        if not self.num_experts:
            return shapes
        shapes["mlp/gate/weight"] = (self.num_experts, self.hidden_size)
        if self.router_bias:
            shapes["mlp/gate/bias"] = (self.num_experts,)
        if self.router_score == "sigmoid":
            shapes["mlp/gate/e_score_correction_bias"] = (self.num_experts,)
        shapes |= self._feed_forward("mlp/experts/", self.moe_intermediate_size)
        if self.shared_expert_intermediate_size:
            shapes["mlp/shared_expert_gate/weight"] = (1, self.hidden_size)
            shapes |= self._feed_forward("mlp/shared_expert/", self.shared_expert_intermediate_size)
        if self.n_shared_experts:
            shapes |= self._feed_forward("mlp/shared_experts/", self.n_shared_experts * self.moe_intermediate_size)
        return shapes

    def _feed_forward(self, prefix: str, width: int) -> dict[str, tuple[int, ...]]:
        hidden = self.hidden_size
        rows = ({"gate_proj": width} if self.is_gated else {}) | {"up_proj": width}
        shapes: dict[str, tuple[int, ...]] = {f"{prefix}{name}/weight": (count, hidden) for name, count in rows.items()}
        shapes[prefix + "down_proj/weight"] = (hidden, width)
        if self.mlp_bias:
            shapes |= {f"{prefix}{name}/bias": (count,) for name, count in (rows | {"down_proj": hidden}).items()}
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


def hugging_face_tensors(name: str, shape: tuple[int, ...],
                         layers: Sequence[int] | None = None) -> list[tuple[str, tuple[int, ...]]]:
    """The tensors of a dataset of this shape under their Hugging Face names, each with its index in the dataset.
    layers: those that it is stacked over; all by default."""
    dotted, prefix, experts = name.replace("/", "."), "model.layers.", ".experts."
    if not dotted.startswith(prefix):
        return [(dotted, ())]
    block, stacked, last = dotted[len(prefix):].partition(experts)
    places = list(enumerate(range(shape[1 if stacked else 0]) if layers is None else layers))
    if not stacked:
        return [(f"{prefix}{layer}.{block}", (place,)) for place, layer in places]
    return [(f"{prefix}{layer}.{block}{experts}{expert}.{last}", (expert, place))
            for expert in range(shape[0]) for place, layer in places]
