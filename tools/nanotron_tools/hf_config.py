"""config.json of a Hugging Face model: to model sizes, and from them.

Every key that transformers 4.57 and 5 write for these architectures is one of: read (KNOWN), without
influence on the numbers (HARMLESS), or NEUTRAL: accepted with the value that means "nothing", else refused
by name. Keys of other architectures that change the mathematics (FOREIGN) are refused unless neutral. A key
that is in none of them is ignored by transformers in these architectures; the converter says so.
"""

from __future__ import annotations

from typing import Any

from . import common, gpt2
from . import rope as ropes
from .model_sizes import ModelSizes

ARCHITECTURES = {"LlamaForCausalLM": "llama", "MistralForCausalLM": "mistral", "Qwen2ForCausalLM": "qwen2",
                 "Phi3ForCausalLM": "phi3",
                 "Qwen3ForCausalLM": "qwen3", "MixtralForCausalLM": "mixtral",
                 "Qwen2MoeForCausalLM": "qwen2_moe", "Qwen3MoeForCausalLM": "qwen3_moe"}
# Families whose config.json has keys of its own: modules with sizes_from_config, config_from_sizes, fits, notes, KNOWN.
OTHERS = {"gpt2": gpt2}
ARCHITECTURES |= {module.ARCHITECTURE: kind for kind, module in OTHERS.items()}
# Architectures of the same sizes as another, which tell themselves apart by their files alone.
ALIKE = {"phi3": ("llama", "mistral")}
# What an architecture has where config.json is silent.
RMS_NORM_EPS = {"mixtral": 1e-5, "phi3": 1e-5}  # others: 1e-6
ROPE_THETA = {"mixtral": 1e6}  # others: 1e4
WINDOWS = {"mistral": 4096, "phi3": None}  # others: none, and none is read
KEY_VALUE_HEADS = {"mistral": 8, "qwen2": 32, "qwen3": 32, "mixtral": 8, "qwen2_moe": 16, "qwen3_moe": 4}  # llama: all
AUX_LOSS_COEF = 0.001
# Experts, of a token, their width, the shared one's, normed.
EXPERTS = {"mixtral": (8, 2, 14336, 0, True), "qwen2_moe": (60, 4, 1408, 5632, False),
           "qwen3_moe": (128, 8, 768, 0, False)}

KNOWN = frozenset((
    "architectures", "model_type", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
    "head_dim", "intermediate_size", "vocab_size", "tie_word_embeddings", "qkv_bias", "rms_norm_eps", "rope_theta",
    "rope_scaling", "rope_parameters", "partial_rotary_factor", "sliding_window", "layer_types", "hidden_act",
    "num_experts", "num_local_experts", "num_experts_per_tok", "moe_intermediate_size", "norm_topk_prob",
    "shared_expert_intermediate_size", "router_aux_loss_coef", "max_position_embeddings",
    "original_max_position_embeddings", "bos_token_id",
    "eos_token_id", "pad_token_id"))
# Those of architectures with keys of their own too.
SHARED = frozenset(("architectures", "model_type", "vocab_size", "tie_word_embeddings", "bos_token_id", "eos_token_id",
                    "pad_token_id"))
# Key -> what it would mean. Accepted without a value, false, 0 or empty.
NEUTRAL = {
    "attention_bias": "a bias on o_proj", "mlp_bias": "biases in the feed-forward network",
    "attention_dropout": "dropout", "router_jitter_noise": "noise on the router's input",
    "use_sliding_window": "sliding-window attention", "quantization_config": "quantized weights",
    "compression_config": "quantized weights", "mlp_only_layers": "dense layers among those with experts",
    "pruned_heads": "heads left out", "per_layer_config": "layers that differ", "attention_chunk_size":
    "chunked attention", "is_encoder_decoder": "an encoder and a decoder",
    "add_cross_attention": "cross attention", "cross_attention_hidden_size": "cross attention",
}
# These mean "nothing" with another value.
NEUTRAL_VALUES = {"decoder_sparse_step": (1, "dense layers among those with experts"),
                  "is_causal": (True, "attention to later tokens")}
HARMLESS = frozenset((
    # of the file and of what runs the model
    "transformers_version", "dtype", "torch_dtype", "_name_or_path", "name_or_path", "use_cache", "torchscript",
    "use_bfloat16", "tf_legacy_loss", "return_dict", "output_attentions", "output_hidden_states",
    "output_router_logits", "output_scores", "return_dict_in_generate", "chunk_size_feed_forward", "pretraining_tp",
    "attn_implementation", "_attn_implementation", "_attn_implementation_autoset", "experts_implementation",
    "_experts_implementation", "tokenizer_class", "sep_token_id", "is_decoder", "tie_encoder_decoder",
    # of the initial weights; of windows that are not used
    "initializer_range", "max_window_layers",
    # of heads of other tasks
    "id2label", "label2id", "num_labels", "problem_type", "finetuning_task", "task_specific_params",
    "classifier_dropout",
    # of generation
    "bad_words_ids", "begin_suppress_tokens", "decoder_start_token_id", "diversity_penalty", "do_sample",
    "early_stopping", "encoder_no_repeat_ngram_size", "exponential_decay_length_penalty", "forced_bos_token_id",
    "forced_eos_token_id", "length_penalty", "max_length", "min_length", "no_repeat_ngram_size", "num_beam_groups",
    "num_beams", "num_return_sequences", "prefix", "remove_invalid_values", "repetition_penalty", "suppress_tokens",
    "temperature", "top_k", "top_p", "typical_p"))
FOREIGN = frozenset((
    "attention_multiplier", "residual_multiplier", "embedding_multiplier", "logits_scaling", "logit_scale",
    "final_logit_softcapping", "attn_logit_softcapping", "query_pre_attn_scalar", "clip_qkv", "use_qk_norm",
    "qk_layernorm", "no_rope_layers", "no_rope_layer_interval", "use_mrope", "rotary_pct", "rope_interleaved",
    "alibi", "embd_pdrop",
    "resid_pdrop", "hidden_dropout", "hidden_dropout_prob", "attention_probs_dropout_prob", "layerdrop", "n_group",
    "topk_group", "routed_scaling_factor", "scoring_func", "topk_method", "first_k_dense_replace",
    "moe_layer_freq", "n_shared_experts", "n_routed_experts", "expert_capacity", "q_lora_rank", "kv_lora_rank",
    "num_nextn_predict_layers", "use_sliding_window_per_layer", "attention_sink", "scale_embedding", "bias",
    "use_bias", "norm_bias", "parallel_attn", "use_parallel_residual", "add_bias_linear", "lm_head_bias",
    "adapters", "lora_rank"))


# ---------------------------------------------------------------------------------------------
# Reading


def neutral(value: Any, nothing: Any = None) -> bool:
    return value is None or value == nothing or (nothing is None and value in (False, 0, "", [], {}))


def own_code(kind: str, config: dict[str, Any]) -> list[str]:
    """Classes of auto_map that are not called as transformers' own of this architecture."""
    family = next(name for name, value in ARCHITECTURES.items() if value == kind).removesuffix("ForCausalLM") \
        .removesuffix("LMHeadModel")
    classes = [str(name).rsplit(".", 1)[-1] for name in (config.get("auto_map") or {}).values()]
    return [name for name in classes if not name.startswith(family)]


def mismatches(kind: str, config: dict[str, Any]) -> list[str]:
    """What is refused in every architecture."""
    found = []
    if config.get("model_type") not in (None, kind):
        found.append(f"model_type '{config['model_type']}' with the architecture of '{kind}'")
    if foreign := own_code(kind, config):
        found.append(f"a model of its own code, {', '.join(foreign)} (auto_map)")
    return found


def refusals(kind: str, config: dict[str, Any]) -> list[str]:
    """What config.json asks for and nanotron_hpc does not have, each with its key."""
    found = ropes.refusals(config) + mismatches(kind, config)
    found += [f"{text} ({key})" for key, text in NEUTRAL.items() if not neutral(config.get(key))]
    found += [f"{text} ({key})" for key, (nothing, text) in NEUTRAL_VALUES.items()
              if not neutral(config.get(key), nothing)]
    found += [f"{key}, which belongs to another architecture" for key in sorted(FOREIGN & config.keys())
              if not neutral(config[key])]
    if set(config.get("layer_types") or []) - {"full_attention"}:
        found.append("sliding-window or other attention in some layers (layer_types)")
    window = None if kind in WINDOWS else config.get("sliding_window")
    if kind in WINDOWS and (config.get("sliding_window") or 0) < 0:
        found.append("a negative window of attention (sliding_window)")
    if (kind == "llama" and window) or (kind == "mixtral" and window is not None):  # Mixtral has one of 0 tokens too
        found.append("sliding-window attention (sliding_window)")
    act = config.get("hidden_act") or "silu"
    if act not in ("silu", "swish"):
        found.append(f"hidden_act '{act}' (only SwiGLU, 'silu')")
    if kind == "qwen2" and config.get("qkv_bias") not in (None, True):
        found.append("Qwen2 without biases on q, k and v (qkv_bias)")
    return found


def notes(config: dict[str, Any], where: object = "") -> list[str]:
    """What is left out and does not change what the model computes."""
    kind = kind_of_config(config, where)
    code = ["the model's own code (auto_map), in place of which transformers' class of the same name is read,"]
    return (code if config.get("auto_map") else []) + (OTHERS[kind].notes(config) if kind in OTHERS else [])


def unknown_keys(config: dict[str, Any], where: object = "") -> list[str]:
    """Keys that say something and are in no list."""
    kind = kind_of_config(config, where)
    known = HARMLESS | {"auto_map"} | (
        SHARED | OTHERS[kind].KNOWN if kind in OTHERS else KNOWN | FOREIGN | NEUTRAL.keys() | NEUTRAL_VALUES.keys())
    return sorted(key for key in config.keys() - known if config[key] is not None and config[key] is not False)


def expert_count(kind: str, config: dict[str, Any]) -> int:
    """transformers 4 writes num_experts but for Mixtral, transformers 5 num_local_experts more often."""
    given = {int(config[key]) for key in ("num_experts", "num_local_experts") if config.get(key) is not None}
    if len(given) > 1:
        raise ValueError("num_experts and num_local_experts differ")
    return given.pop() if given else EXPERTS[kind][0]


def chosen_experts(config: dict[str, Any], default: int) -> int:
    count = config.get("num_experts_per_tok")
    if count is not None and int(count) < 1:
        raise ValueError("num_experts_per_tok below 1")
    return default if count is None else int(count)


def expert_sizes(kind: str, config: dict[str, Any]) -> dict[str, Any]:
    """The sizes of a mixture of experts; nothing for a dense architecture."""
    if kind not in EXPERTS:
        return {}
    _, of_token, width, shared, normed = EXPERTS[kind]
    mixtral = kind == "mixtral"
    return {
        "num_experts": expert_count(kind, config),
        "num_experts_per_tok": chosen_experts(config, of_token),
        "moe_intermediate_size": int(config.get("intermediate_size" if mixtral else "moe_intermediate_size") or width),
        "shared_expert_intermediate_size":
            int(shared if (own := config.get("shared_expert_intermediate_size")) is None else own) if shared else 0,
        "norm_topk_prob": True if mixtral else bool(config.get("norm_topk_prob", normed)),
    }


def kind_of_config(config: dict[str, Any], where: object) -> str:
    names = config.get("architectures") or []
    kinds = [ARCHITECTURES[name] for name in names if name in ARCHITECTURES] if names else \
        [kind for kind in ARCHITECTURES.values() if kind == config.get("model_type")]
    if len(kinds) != 1 or len(names) > 1:
        raise common.ToolError(f"{where}: architecture {names or config.get('model_type')} is not "
                               f"supported (supported: {', '.join(ARCHITECTURES)})")
    return kinds[0]


def sizes_from_config(config: dict[str, Any], where: object) -> ModelSizes:
    """Model sizes of a config.json; ToolError for whatever cannot be represented."""
    kind = kind_of_config(config, where)
    if kind in OTHERS:
        sizes: ModelSizes = OTHERS[kind].sizes_from_config(config, where, mismatches(kind, config))
        return sizes
    try:
        if problems := refusals(kind, config):
            raise common.ToolError(f"{where}: this model needs what nanotron_hpc does not have: "
                                   + "; ".join(problems))
        heads, hidden = int(config["num_attention_heads"]), int(config["hidden_size"])
        default_kv = KEY_VALUE_HEADS.get(kind, heads) if "num_key_value_heads" not in config else heads
        default_dim = 128 if kind == "qwen3" else hidden // heads
        sizes = ModelSizes(
            hidden_size=hidden,
            num_hidden_layers=int(config["num_hidden_layers"]),
            num_attention_heads=heads,
            num_key_value_heads=int(config.get("num_key_value_heads") or default_kv),
            head_dim=int(config.get("head_dim") or default_dim),
            intermediate_size=int(config["intermediate_size"]),
            vocab_size=int(config["vocab_size"]),
            tie_word_embeddings=bool(config.get("tie_word_embeddings", False)),
            qkv_bias=bool(config.get("qkv_bias", True)) if kind == "qwen2_moe" else kind == "qwen2",
            qk_norm=kind in ("qwen3", "qwen3_moe"),
            rms_norm_eps=float(config.get("rms_norm_eps", RMS_NORM_EPS.get(kind, 1e-6))),
            rope_theta=ropes.theta_of(config, ROPE_THETA.get(kind, 1e4)),
            **expert_sizes(kind, config),
            **ropes.scaling_of(config),
            sliding_window=int(config.get("sliding_window", WINDOWS[kind]) or 0) if kind in WINDOWS else 0,
        )
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        raise common.ToolError(f"{where}: missing or malformed entry ({error!r})") from None
    if sizes.num_attention_heads % sizes.num_key_value_heads:
        raise common.ToolError(f"{where}: {sizes.num_attention_heads} attention heads are no multiple "
                               f"of {sizes.num_key_value_heads} key/value heads")
    return sizes


# ---------------------------------------------------------------------------------------------
# Writing


def kind_of(sizes: ModelSizes, where: object, imported: str = "") -> str:
    """The architecture of these sizes: that of the model imported, if it has such; ToolError when there is none."""
    kind = first_kind_of(sizes, where)
    return imported if kind in ALIKE.get(imported, ()) else kind


def first_kind_of(sizes: ModelSizes, where: object) -> str:
    for kind, module in OTHERS.items():
        if module.fits(sizes):
            return kind
    if left := [key for key in sizes.chosen_values() if not key.startswith("rope_") and
                key not in ("original_max_position_embeddings", "sliding_window")]:
        raise common.ToolError(f"{where}: no Hugging Face architecture that is known here has these keys of &model in "
                               f"this combination: {', '.join(left)}")
    if sizes.qkv_bias and sizes.qk_norm:
        raise common.ToolError(f"{where}: no Hugging Face architecture of this family has both "
                               "qkv_bias and qk_norm")
    shared = sizes.shared_expert_intermediate_size > 0
    plain = not (sizes.qkv_bias or sizes.qk_norm or sizes.num_experts)
    if sizes.sliding_window and not plain:
        raise common.ToolError(f"{where}: no Hugging Face architecture that is known here has a sliding_window with "
                               "qkv_bias, qk_norm or experts")
    if plain:
        return "mistral" if sizes.sliding_window else "llama"
    if sizes.num_experts == 0:
        return "qwen2" if sizes.qkv_bias else "qwen3"
    kind = "qwen2_moe" if shared else "qwen3_moe" if sizes.qk_norm else "mixtral"
    fits = not (shared and sizes.qk_norm) and (kind != "mixtral" or (
        not sizes.qkv_bias and sizes.norm_topk_prob and sizes.moe_intermediate_size == sizes.intermediate_size))
    if not fits:
        raise common.ToolError(f"{where}: no Hugging Face architecture has these experts: Mixtral has neither qkv_bias "
                               "nor qk_norm nor a shared expert, normed weights, and experts of intermediate_size; "
                               "Qwen2-MoE has a shared expert and no qk_norm, Qwen3-MoE qk_norm and none")
    return kind


def loading_limits(sizes: ModelSizes, kind: str) -> list[str]:
    """Which transformers cannot load a model that is right otherwise."""
    heads = sizes.num_attention_heads
    found = []
    if kind == "qwen2_moe" and heads * sizes.head_dim != sizes.hidden_size:
        found.append("transformers 4 refuses a Qwen2-MoE whose num_attention_heads * head_dim is not hidden_size")
    if kind == "llama" and sizes.hidden_size % heads:
        found.append("transformers 5 refuses a Llama whose hidden_size is no multiple of num_attention_heads")
    return found


def config_from_sizes(sizes: ModelSizes, where: object, *, dtype: str, max_positions: int,
                      special: dict[str, Any], aux_loss_coef: float, initializer_range: float,
                      output_router_logits: bool = False, imported: str = "") -> dict[str, Any]:
    """A config.json that transformers 4 and 5 read alike; `dtype` is torch's name."""
    kind = kind_of(sizes, where, imported)
    architecture = next(name for name, value in ARCHITECTURES.items() if value == kind)
    shared = special | {"initializer_range": initializer_range, "use_cache": True, "torch_dtype": dtype, "dtype": dtype}
    if kind in OTHERS:
        own: dict[str, Any] = OTHERS[kind].config_from_sizes(sizes)
        return {"architectures": [architecture], "model_type": kind} | own | shared
    config: dict[str, Any] = {"architectures": [architecture], "model_type": kind, "hidden_act": "silu"}
    for key, value in sizes.first_values().items():
        if key not in ("qkv_bias", "qk_norm"):
            config[key] = value
    if kind == "mixtral":
        config |= {"num_local_experts": sizes.num_experts, "num_experts_per_tok": sizes.num_experts_per_tok,
                   "sliding_window": None, "router_jitter_noise": 0.0}
    elif kind in EXPERTS:
        config |= sizes.moe_values() | {"decoder_sparse_step": 1, "mlp_only_layers": []}
    if kind in EXPERTS:
        config |= {"router_aux_loss_coef": aux_loss_coef, "output_router_logits": output_router_logits}
    if kind == "llama":
        config |= {"attention_bias": False, "mlp_bias": False}
    elif kind in WINDOWS:
        config["sliding_window"] = sizes.sliding_window or None
    elif kind in ("qwen3", "qwen3_moe"):
        config["attention_bias"] = False
    elif kind == "qwen2_moe":
        config["qkv_bias"] = sizes.qkv_bias
    if kind.startswith("qwen"):
        config["use_sliding_window"] = False
    config |= ropes.entries_of(sizes) | {"attention_dropout": 0.0, "max_position_embeddings": max_positions}
    return config | shared
