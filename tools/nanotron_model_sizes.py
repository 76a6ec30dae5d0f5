"""What a model is: its sizes under the names of &model and &moe, and the tensors that follow from them.

The C++ counterpart is include/nanotron/deck/model_config.hpp and src/model/parameter_table.cpp.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields

import nanotron_common as common
from nanotron_common import h5py, np

# Attributes and keys that only models with experts have.
MOE_SIZES = ("num_experts", "num_experts_per_tok", "moe_intermediate_size", "shared_expert_intermediate_size",
             "norm_topk_prob")


# Those that decks and checkpoints name only where they are not at their defaults.
NEWER = ("normalization", "layer_norm_epsilon", "position_embedding_type", "max_position_embeddings", "rope_type",
         "rope_factor", "original_max_position_embeddings", "rope_low_freq_factor", "rope_high_freq_factor",
         "rope_beta_fast", "rope_beta_slow", "rope_attention_factor", "sliding_window", "o_proj_bias", "hidden_act",
         "mlp_bias")


@dataclass(frozen=True)
class ModelSizes:
    """Sizes and choices of a decoder, dense or a mixture of experts, under Hugging Face's names where it has one."""

    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    tie_word_embeddings: bool = False
    qkv_bias: bool = False
    qk_norm: bool = False
    rms_norm_eps: float = 1e-5
    rope_theta: float = 10000.0
    num_experts: int = 0  # from here on: of a mixture of experts alone
    num_experts_per_tok: int = 2
    moe_intermediate_size: int = 0
    shared_expert_intermediate_size: int = 0
    norm_topk_prob: bool = True
    normalization: str = "rms_norm"
    layer_norm_epsilon: float = 1e-5
    position_embedding_type: str = "rope"
    max_position_embeddings: int = 0
    rope_type: str = "default"
    rope_factor: float = 1.0
    original_max_position_embeddings: int = 0
    rope_low_freq_factor: float = 1.0
    rope_high_freq_factor: float = 4.0
    rope_beta_fast: float = 32.0
    rope_beta_slow: float = 1.0
    rope_attention_factor: float = 0.0
    sliding_window: int = 0
    o_proj_bias: bool = False
    hidden_act: str = "silu"
    mlp_bias: bool = False

    def first_values(self) -> dict:
        """Those that every model names."""
        return {key: value for key, value in asdict(self).items() if key not in MOE_SIZES + NEWER}

    def newer_values(self) -> dict:
        """The others of &model, where they are not at their defaults."""
        return {field.name: getattr(self, field.name) for field in fields(self)
                if field.name in NEWER and getattr(self, field.name) != field.default}

    def dense_values(self) -> dict:
        return self.first_values() | self.newer_values()

    def moe_values(self) -> dict:
        return {key: value for key, value in asdict(self).items() if key in MOE_SIZES}

    def parameter_shapes(self) -> dict[str, tuple[int, ...]]:
        """Dataset name below /parameters -> global shape, the layers stacked in front."""
        layers, hidden, ffn = self.num_hidden_layers, self.hidden_size, self.intermediate_size
        rows = {
            "q": self.num_attention_heads * self.head_dim,
            "k": self.num_key_value_heads * self.head_dim,
            "v": self.num_key_value_heads * self.head_dim,
        }
        block = "model/layers/"
        shapes = {"model/embed_tokens/weight": (self.vocab_size, hidden)}
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

        def gated(prefix, width):
            shapes[prefix + "gate_proj/weight"] = (layers, width, hidden)
            shapes[prefix + "up_proj/weight"] = (layers, width, hidden)
            shapes[prefix + "down_proj/weight"] = (layers, hidden, width)

        if self.num_experts == 0:
            shapes |= self._dense_mlp(block + "mlp/", layers, hidden, ffn)
        else:
            shapes[block + "mlp/gate/weight"] = (layers, self.num_experts, hidden)
            for expert in range(self.num_experts):
                gated(f"{block}mlp/experts/{expert}/", self.moe_intermediate_size)
        if self.shared_expert_intermediate_size > 0:
            shapes[block + "mlp/shared_expert_gate/weight"] = (layers, 1, hidden)
            gated(block + "mlp/shared_expert/", self.shared_expert_intermediate_size)
        for kind in ("weight", "bias") if self.normalization == "layer_norm" else ("weight",):
            shapes[f"{block}input_layernorm/{kind}"] = (layers, hidden)
            shapes[f"{block}post_attention_layernorm/{kind}"] = (layers, hidden)
            shapes[f"model/norm/{kind}"] = (hidden,)
        if not self.tie_word_embeddings:
            shapes["lm_head/weight"] = (self.vocab_size, hidden)
        return shapes

    def _dense_mlp(self, prefix, layers, hidden, width) -> dict[str, tuple[int, ...]]:
        rows = ({"gate_proj": width} if self.hidden_act == "silu" else {}) | {"up_proj": width}
        shapes = {f"{prefix}{name}/weight": (layers, count, hidden) for name, count in rows.items()}
        shapes[prefix + "down_proj/weight"] = (layers, hidden, width)
        if self.mlp_bias:
            rows |= {"down_proj": hidden}
            shapes |= {f"{prefix}{name}/bias": (layers, count) for name, count in rows.items()}
        return shapes

    def deck_group(self, moe: dict | None = None) -> str:
        """The &model group of a deck for this model, and &moe, with the keys of `moe` too, where it has experts."""

        def text(value):
            if isinstance(value, bool):
                return ".true." if value else ".false."
            return f"'{value}'" if isinstance(value, str) else repr(value)

        def group(name, values):
            return f"&{name}\n" + "".join(f"  {key:<20} = {text(value)}\n" for key, value in values.items()) + "/\n"

        experts = group("moe", self.moe_values() | (moe or {})) if self.num_experts else ""
        return group("model", self.dense_values()) + experts

    def to_attributes(self, group: h5py.Group) -> None:
        for key, value in (self.dense_values() | (self.moe_values() if self.num_experts else {})).items():
            if isinstance(value, str):
                common.set_text(group, key, value, attribute=True)
            else:
                group.attrs.create(key, value, dtype=np.float64 if isinstance(value, float) else np.int64)

    @classmethod
    def from_attributes(cls, group: h5py.Group) -> "ModelSizes":
        values = {}
        for key, field in cls.__dataclass_fields__.items():
            if key not in group.attrs:
                if key in NEWER or (key in MOE_SIZES and "num_experts" not in group.attrs):
                    continue
                raise common.ToolError(f"{group.file.filename}: {group.name} has no attribute '{key}'")
            kind = {"int": int, "bool": bool, "float": float, "str": common.as_text}[field.type]
            values[key] = kind(group.attrs[key])
        return cls(**values)


def hugging_face_names(name: str, layers: int) -> list[str]:
    """Hugging Face tensor names of a dataset: one per layer for stacked ones, else one."""
    dotted = name.replace("/", ".")
    prefix = "model.layers."
    if not dotted.startswith(prefix):
        return [dotted]
    return [f"{prefix}{layer}.{dotted[len(prefix):]}" for layer in range(layers)]
