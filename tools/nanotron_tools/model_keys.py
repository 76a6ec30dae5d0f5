"""The keys of &model and &moe that a checkpoint holds.

Made by `nanotron_hpc --parameters-python`; edit src/deck/keys instead.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


def of_experts(default: Any) -> Any:
    """A key that only models with experts have."""
    return field(default=default, metadata={"of_experts": True})


def omitted(default: Any) -> Any:
    """A key that decks and checkpoints name only where it is not at its default."""
    return field(default=default, metadata={"omitted": True})


def omitted_of_experts(default: Any) -> Any:
    """Both."""
    return field(default=default, metadata={"of_experts": True, "omitted": True})


@dataclass(frozen=True)
class ModelKeys:
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    rms_norm_eps: float = 1e-05
    rope_theta: float = 10000.0
    tie_word_embeddings: bool = False
    qkv_bias: bool = False
    qk_norm: bool = False
    qk_norm_over: str = omitted("head")
    normalization: str = omitted("rms_norm")
    layer_norm_epsilon: float = omitted(1e-05)
    norm_bias: bool = omitted(True)
    norm_weight: str = omitted("plain")
    norm_placement: str = omitted("pre")
    parallel_residual: str = omitted("none")
    residual_multiplier: float = omitted(1.0)
    position_embedding_type: str = omitted("rope")
    max_position_embeddings: int = omitted(0)
    rope_type: str = omitted("default")
    rope_factor: float = omitted(1.0)
    original_max_position_embeddings: int = omitted(0)
    rope_low_freq_factor: float = omitted(1.0)
    rope_high_freq_factor: float = omitted(4.0)
    rope_beta_fast: float = omitted(32.0)
    rope_beta_slow: float = omitted(1.0)
    rope_attention_factor: float = omitted(0.0)
    rope_truncate: bool = omitted(True)
    rope_short_factor: str = omitted("")
    rope_long_factor: str = omitted("")
    partial_rotary_factor: float = omitted(1.0)
    rope_interleaved: bool = omitted(False)
    sliding_window: int = omitted(0)
    window_layers: str = omitted("all")
    rope_layers: str = omitted("all")
    rope_local_theta: float = omitted(0.0)
    attention_multiplier: float = omitted(0.0)
    attn_logit_softcapping: float = omitted(0.0)
    attention_sinks: bool = omitted(False)
    kv_lora_rank: int = omitted(0)
    q_lora_rank: int = omitted(0)
    qk_nope_head_dim: int = omitted(0)
    qk_rope_head_dim: int = omitted(0)
    v_head_dim: int = omitted(0)
    embedding_multiplier: float = omitted(1.0)
    embedding_norm: bool = omitted(False)
    logits_scaling: float = omitted(1.0)
    final_logit_softcapping: float = omitted(0.0)
    lm_head_bias: bool = omitted(False)
    o_proj_bias: bool = omitted(False)
    hidden_act: str = omitted("silu")
    swiglu_limit: float = omitted(7.0)
    swiglu_alpha: float = omitted(1.702)
    mlp_bias: bool = omitted(False)
    num_nextn_predict_layers: int = omitted(0)
    num_experts: int = of_experts(0)
    num_experts_per_tok: int = of_experts(2)
    expert_layers: str = omitted_of_experts("all")
    moe_intermediate_size: int = of_experts(0)
    shared_expert_intermediate_size: int = of_experts(0)
    n_shared_experts: int = omitted_of_experts(0)
    router_score: str = omitted_of_experts("softmax")
    router_bias: bool = omitted_of_experts(False)
    n_group: int = omitted_of_experts(1)
    topk_group: int = omitted_of_experts(1)
    routed_scaling_factor: float = omitted_of_experts(1.0)
    norm_topk_prob: bool = of_experts(True)
