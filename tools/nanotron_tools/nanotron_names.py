"""What a model of Hugging Face's Nanotron is here, and how its tensors are named, packed and divided over ranks.

After nanotron/models/llama.py and qwen.py of 2026-04-07 (commit 2411b022): query, key and value are one matrix, as
are gate and up projection; each rank of tensor parallelism has its share of every one of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import common, layer_sets
from .model_sizes import ModelSizes
from .taken_over import Left, Part

EMBEDDING = "model.token_position_embeddings.pp_block.token_embedding.weight"
FINAL_NORM, HEAD = "model.final_layer_norm.pp_block.weight", "model.lm_head.pp_block.weight"
BLOCK = "model.decoder.{}.pp_block."
LLAMA, QWEN = "is_llama_config", "is_qwen2_config"
# Of the program, or of what is computed elsewhere.
PLAIN = {"bos_token_id", "eos_token_id", "pad_token_id", "initializer_range", "max_position_embeddings",
         "pretraining_tp", "use_cache", "_attn_implementation", "_fused_rotary_emb", "_fused_rms_norm",
         "_use_qkv_packed", "log_attn_probs", "ring_attn_heads_k_stride", LLAMA, QWEN}
READ = {"hidden_act", "hidden_size", "intermediate_size", "num_attention_heads", "num_hidden_layers", "attention_bias",
        "num_key_value_heads", "rms_norm_eps", "rope_scaling", "rope_theta", "rope_interleaved", "tie_word_embeddings",
        "vocab_size", "z_loss_enabled", "z_loss_coefficient", "flex_attention_mask", "sliding_window_size",
        "no_rope_layer", "_use_doc_masking", "rope_seq_len_interpolation_factor", "moe_config"}
NOT_HERE = {"moe_config": "its experts", "flex_attention_mask": "its masks",
            "rope_seq_len_interpolation_factor": "its interpolated positions"}


@dataclass(frozen=True)
class Whole:
    """A tensor of Nanotron on all ranks of tensor parallelism together."""

    name: str
    shape: tuple[int, ...]
    parts: tuple[Part, ...]
    split: int | None = None  # dimension that is divided
    chunks: tuple[int, ...] = ()  # stretches of it that are divided one by one; empty: it is one

    @property
    def columns(self) -> int:
        return math.prod(self.shape[1:])

    def local_shape(self, ranks: int) -> tuple[int, ...]:
        return tuple(extent // ranks if axis == self.split else extent for axis, extent in enumerate(self.shape))


def refuse_key(where: object, key: str, value: Any, why: str) -> common.ToolError:
    return common.wrong(f"{where}, {key}", why, f"{value!r:.200}",
                        "convert the weights to a Hugging Face folder with Nanotron's converters and import that, or "
                        "train with another value")


def sizes_of(config: dict[str, Any], where: Path, left: Left) -> ModelSizes:
    """Of model_config.json; common.ToolError names the key that has no counterpart here."""
    if not config.get(LLAMA) and not config.get(QWEN):
        kinds = [key for key in config if key.startswith("is_") and config[key]]
        raise refuse_key(where, kinds[0] if kinds else f"{LLAMA}, {QWEN}", config.get(kinds[0]) if kinds else None,
                         "a model of Llama's or Qwen2's classes")
    for key, what in NOT_HERE.items():
        if config.get(key) is not None:
            raise refuse_key(where, key, config[key], f"null: {what} are not read")
    for key in sorted(config.keys() - READ - PLAIN):
        left.say(f"model_config.{key} = {config[key]!r:.60}", "unknown")
    if config.get("hidden_act") != "silu":
        raise refuse_key(where, "hidden_act", config.get("hidden_act"), "silu")
    if config.get("rope_scaling"):
        left.say("model_config.rope_scaling", "Nanotron does not use it in training")
    try:
        heads, layers = int(config["num_attention_heads"]), int(config["num_hidden_layers"])
        without_rope = int(config.get("no_rope_layer") or 0)
        rope = [not without_rope or (layer + 1) % without_rope != 0 for layer in range(layers)]
        window = int(config.get("sliding_window_size") or 0)
        return ModelSizes(
            hidden_size=int(config["hidden_size"]), num_hidden_layers=layers, num_attention_heads=heads,
            num_key_value_heads=int(config.get("num_key_value_heads") or heads),
            head_dim=int(config["hidden_size"]) // heads, intermediate_size=int(config["intermediate_size"]),
            vocab_size=int(config["vocab_size"]), rms_norm_eps=float(config["rms_norm_eps"]),
            rope_theta=float(config["rope_theta"]), tie_word_embeddings=bool(config["tie_word_embeddings"]),
            qkv_bias=bool(config.get(QWEN) and config.get("attention_bias")), sliding_window=window,
            rope_interleaved=bool(config.get("rope_interleaved")), rope_layers=layer_sets.text_of(rope),
            window_layers=layer_sets.text_of(rope) if window else "all")  # a layer without RoPE has no window
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        found = f"{type(error).__name__}: {error}"
        raise common.wrong(where, "sizes of a model", found, "copy the file again") from None


def wholes_of(sizes: ModelSizes, is_qwen: bool) -> Iterator[Whole]:
    """In the order of Nanotron's modules."""
    hidden = sizes.hidden_size
    table = (sizes.vocab_size, hidden)
    yield Whole(EMBEDDING, table, (Part(0, table[0], "model/embed_tokens/weight"),), split=0)
    for layer in range(sizes.num_hidden_layers):
        yield from _block(sizes, layer, is_qwen)
    yield Whole(FINAL_NORM, (hidden,), (Part(0, hidden, "model/norm/weight"),))
    if not sizes.tie_word_embeddings:
        yield Whole(HEAD, table, (Part(0, table[0], "lm_head/weight"),), split=0)


def _block(sizes: ModelSizes, layer: int, is_qwen: bool) -> Iterator[Whole]:
    hidden, prefix = sizes.hidden_size, BLOCK.format(layer)
    queries, keys = (count * sizes.head_dim for count in (sizes.num_attention_heads, sizes.num_key_value_heads))
    qkv = ("self_attn/q_proj", "self_attn/k_proj", "self_attn/v_proj"), (queries, keys, keys)
    gate_up = ("mlp/gate_proj", "mlp/up_proj"), (sizes.intermediate_size, sizes.intermediate_size)

    def packed(name: str, kind: str, ours: tuple[str, ...], chunks: tuple[int, ...]) -> Whole:
        parts, at = [], 0
        for part, rows in zip(ours, chunks):
            parts.append(Part(at, at + rows, f"model/layers/{part}/{kind}", (layer,)))
            at += rows
        return Whole(f"{prefix}{name}.{kind}", (at, hidden) if kind == "weight" else (at,), tuple(parts), 0, chunks)

    def norm(name: str) -> Whole:
        dataset = f"model/layers/{name}/weight"
        return Whole(f"{prefix}{name}.weight", (hidden,), (Part(0, hidden, dataset, (layer,)),))

    def outward(name: str, ours: str, width: int) -> Whole:
        return Whole(f"{prefix}{name}.weight", (hidden, width),
                     (Part(0, hidden, f"model/layers/{ours}/weight", (layer,)),), split=1)

    yield norm("input_layernorm")
    if is_qwen:
        yield norm("post_attention_layernorm")
    yield packed("attn.qkv_proj", "weight", *qkv)
    if sizes.qkv_bias:
        yield packed("attn.qkv_proj", "bias", *qkv)
    yield outward("attn.o_proj", "self_attn/o_proj", queries)
    if not is_qwen:
        yield norm("post_attention_layernorm")
    yield packed("mlp.gate_up_proj", "weight", *gate_up)
    yield outward("mlp.down_proj", "mlp/down_proj", sizes.intermediate_size)
