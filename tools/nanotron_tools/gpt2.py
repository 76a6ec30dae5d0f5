"""config.json of GPT-2 and of StarCoder 1 (gpt_bigcode), whose queries share a key and a value: to sizes, and back."""

from __future__ import annotations

from typing import Any

from . import model_sizes

ARCHITECTURES = {"gpt2": "GPT2LMHeadModel", "gpt_bigcode": "GPTBigCodeForCausalLM"}
# transformers' activation functions -> ours; its other names of the same are read, and written as the first.
ACTIVATIONS = {"gelu_new": "gelu_new", "gelu_pytorch_tanh": "gelu_new", "gelu": "gelu"}
WRITTEN: dict[str, dict[str, str]] = {"gpt2": {}, "gpt_bigcode": {"gelu_new": "gelu_pytorch_tanh"}}
# transformers reads these for those.
ALIASES = {"n_embd": "hidden_size", "n_head": "num_attention_heads", "n_layer": "num_hidden_layers",
           "n_positions": "max_position_embeddings"}
DROPOUTS = ("attn_pdrop", "embd_pdrop", "resid_pdrop")
# Key -> the value that means nothing, and what another one would mean.
NEUTRAL: dict[str, tuple[Any, str]] = {"scale_attn_weights": (True, "attention whose scores are not scaled"),
           "scale_attn_by_inverse_layer_idx": (False, "attention scaled by the layer's number"),
           "add_cross_attention": (False, "cross attention"), "quantization_config": (None, "quantized weights"),
           "pruned_heads": ({}, "heads left out"), "is_encoder_decoder": (False, "an encoder and a decoder")}
# Read, or of the precision alone (reorder_and_upcast_attn), or of heads of other tasks.
KNOWN = frozenset(("n_embd", "n_layer", "n_head", "n_inner", "n_positions", "n_ctx", "layer_norm_epsilon",
                   "activation_function", "reorder_and_upcast_attn", "multi_query", "num_key_value_heads",
                   "attention_softmax_in_fp32", "scale_attention_softmax_in_fp32", "inference_runner",
                   "pre_allocate_kv_cache", "max_sequence_length", "max_batch_size", "validate_runner_input",
                   "summary_activation", "summary_first_dropout", "summary_proj_to_labels", "summary_type",
                   "summary_use_proj", *DROPOUTS, *NEUTRAL, *ALIASES.values()))


def notes(config: dict[str, Any]) -> list[str]:
    """What is left out and does not change what the model computes."""
    given = [key for key in DROPOUTS if config.get(key)]
    return [f"dropout in training ({', '.join(given)}) is left out"] if given else []


def refusals(config: dict[str, Any]) -> list[str]:
    found = [f"{text} ({key})" for key, (nothing, text) in NEUTRAL.items()
             if config.get(key) is not None and config[key] != nothing]
    act = config.get("activation_function") or "gelu_new"
    if act not in ACTIVATIONS:
        found.append(f"activation_function '{act}' (only {', '.join(ACTIVATIONS)})")
    return found


def size_of(config: dict[str, Any], name: str, default: int) -> int:
    """Under GPT-2's name or the one that transformers maps to it."""
    given = {int(config[key]) for key in (name, ALIASES[name]) if config.get(key) is not None}
    if len(given) > 1:
        raise ValueError(f"{name} and {ALIASES[name]} differ")
    return given.pop() if given else default


def sizes_from_config(kind: str, config: dict[str, Any]) -> model_sizes.ModelSizes:
    """Model sizes of a config.json of which nothing is refused."""
    hidden, heads = size_of(config, "n_embd", 768), size_of(config, "n_head", 12)
    if hidden % heads:
        raise ValueError(f"n_embd {hidden} is not a multiple of n_head {heads}")
    shared = kind == "gpt_bigcode" and config.get("multi_query") is not False
    return model_sizes.ModelSizes(
        hidden_size=hidden, num_hidden_layers=size_of(config, "n_layer", 12), num_attention_heads=heads,
        num_key_value_heads=1 if shared else heads, head_dim=hidden // heads,
        intermediate_size=int(config.get("n_inner") or 4 * hidden), vocab_size=int(config.get("vocab_size", 50257)),
        tie_word_embeddings=bool(config.get("tie_word_embeddings", True)), qkv_bias=True,
        normalization="layer_norm", layer_norm_epsilon=float(config.get("layer_norm_epsilon", 1e-5)),
        position_embedding_type="learned_absolute", max_position_embeddings=size_of(config, "n_positions", 1024),
        o_proj_bias=True, hidden_act=ACTIVATIONS[config.get("activation_function") or "gelu_new"], mlp_bias=True)


def config_from_sizes(kind: str, sizes: model_sizes.ModelSizes) -> dict[str, Any]:
    """What of a config.json is this architecture's own."""
    attention: dict[str, Any] = {"multi_query": sizes.num_key_value_heads == 1} if kind == "gpt_bigcode" else \
        {"scale_attn_by_inverse_layer_idx": False, "reorder_and_upcast_attn": False}
    return {"n_embd": sizes.hidden_size, "n_layer": sizes.num_hidden_layers, "n_head": sizes.num_attention_heads,
            "n_inner": sizes.intermediate_size, "n_positions": sizes.max_position_embeddings,
            "n_ctx": sizes.max_position_embeddings, "vocab_size": sizes.vocab_size,
            "activation_function": WRITTEN[kind].get(sizes.hidden_act, sizes.hidden_act),
            "layer_norm_epsilon": sizes.layer_norm_epsilon, "tie_word_embeddings": sizes.tie_word_embeddings,
            **dict.fromkeys(DROPOUTS, 0.0), "scale_attn_weights": True, "add_cross_attention": False, **attention}
