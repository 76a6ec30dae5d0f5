"""config.json of a Hugging Face model: to model sizes, and from them.

Every key that transformers 4.57 and 5 write for these architectures is one of: read (KNOWN), without
influence on the numbers (HARMLESS), or NEUTRAL: accepted with the value that means "nothing", else refused
by name. Keys of other architectures that change the mathematics (FOREIGN) are refused unless neutral. A key
that is in none of them is ignored by transformers in these architectures; the converter says so.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from . import common, gpt2, layer_sets
from . import rope as ropes
from .expert_keys import EXPERTS, entries_of_experts, expert_sizes
from .families import FAMILIES, LAYER_NORM, ROTATED_PART
from .family_keys import LAYER_ROPES, ropes_of_layers, with_one_rope
from .model_sizes import ModelSizes

OTHERS = gpt2.ARCHITECTURES  # whose config.json has keys of its own
ARCHITECTURES = {family.architecture: kind for kind, family in FAMILIES.items()} | \
    {architecture: kind for kind, architecture in OTHERS.items()}
# What is written for a model that no folder was imported for: of equal ones the first.
WRITTEN = ("llama", "mistral", "qwen2", "qwen3", "mixtral", "qwen2_moe", "qwen3_moe", "gpt2", "starcoder2", "gpt_neox",
           "seed_oss", "gpt_bigcode", "granite", "apertus", "smollm3", "olmo2", "olmo3", "olmoe", "gemma2",
           "gemma3_text", "gpt_oss", "stablelm", "phi3", "glm", "glm4", "opt", "phi", "deepseek_v3")
AUX_LOSS_COEF = 0.001
# Sizes of what a class always has.
ALWAYS_THERE = {"qwen2_moe": ("shared_expert_intermediate_size",),
                "deepseek_v3": ("n_shared_experts", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim",
                                "v_head_dim")}

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
    "initializer_range", "init_std", "max_window_layers", "_sliding_window_pattern",
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


def own_classes(config: dict[str, Any]) -> list[str]:
    """Of auto_map, those of a model; a tokenizer's code is none."""
    return [str(name).rsplit(".", 1)[-1] for key, name in (config.get("auto_map") or {}).items()
            if key == "AutoConfig" or key.startswith("AutoModel")]


def mismatches(kind: str, config: dict[str, Any]) -> list[str]:
    """What is refused in every architecture."""
    stem = FAMILIES[kind].stem if kind in FAMILIES else OTHERS[kind].removesuffix("LMHeadModel")
    stem = stem.removesuffix("ForCausalLM")
    found = []
    if config.get("model_type") not in (None, kind):
        found.append(f"model_type '{config['model_type']}' with the architecture of '{kind}'")
    if foreign := [name for name in own_classes(config) if not name.startswith(stem)]:
        found.append(f"a model with its own code, {', '.join(foreign)} (auto_map)")
    return found


def refusals(kind: str, config: dict[str, Any]) -> list[str]:
    """What config.json asks for and nanotron_hpc does not have, each with its key."""
    if kind in OTHERS:
        return mismatches(kind, config) + gpt2.refusals(config)
    family = FAMILIES[kind]
    rules = [text for rule in family.rules for text in rule.refuse(config)]
    config = with_one_rope(config) if kind in LAYER_ROPES else config
    plain, own = family.in_llamas_keys(config), family.keys()
    found = ropes.refusals(plain, family.rotates_a_part, family.rope_types) + mismatches(kind, config)
    found += rules
    found += [f"{text} ({key})" for key, text in NEUTRAL.items() if key not in own and not neutral(config.get(key))]
    found += [f"{text} ({key})" for key, (nothing, text) in NEUTRAL_VALUES.items()
              if not neutral(config.get(key), nothing)]
    found += [f"{key}, which belongs to another architecture" for key in sorted((FOREIGN - own) & config.keys())
              if not neutral(config[key]) and (key, family.fixed.get("qk_norm")) != ("use_qk_norm", True)]
    found += [f"{text} ({key})" for key, (value, silent, text) in family.only.items()
              if config.get(key, silent) != value]
    if "layer_types" not in own and set(config.get("layer_types") or []) - {"full_attention"}:
        found.append("sliding-window or other attention in some layers (layer_types)")
    window = None if family.has_window else config.get("sliding_window")
    if family.has_window and (config.get("sliding_window") or 0) < 0:
        found.append("a negative window of attention (sliding_window)")
    if (kind == "llama" and window) or (kind == "mixtral" and window is not None):  # Mixtral has one of 0 tokens too
        found.append("sliding-window attention (sliding_window)")
    act = plain.get("hidden_act") or "silu"
    if act not in family.activations:
        found.append(f"hidden_act '{act}' (only {', '.join(family.activations)})")
    if kind == "qwen2" and config.get("qkv_bias") not in (None, True):
        found.append("Qwen2 without biases on q, k and v (qkv_bias)")
    return found


def notes(config: dict[str, Any], where: object = "") -> list[str]:
    """What is left out and does not change what the model computes, and what is computed in another way."""
    kind = kind_of_config(config, where)
    code = ["the model's own code (auto_map) is not read, it is taken for the published one of this architecture"]
    found = code if own_classes(config) else []
    if kind in OTHERS:
        return found + gpt2.notes(config)
    family = FAMILIES[kind]
    given = [key for key in family.dropouts if config.get(key)]
    found += [f"dropout in training ({', '.join(given)}) is left out"] if given else []
    if config.get("num_nextn_predict_layers"):
        found.append(f"{config['num_nextn_predict_layers']} layers that predict further tokens "
                     "(num_nextn_predict_layers) are left out")
    return found + ropes.notes(config)


def unknown_keys(config: dict[str, Any], where: object = "") -> list[str]:
    """Keys that say something and are in no list."""
    return _unknown_to(kind_of_config(config, where), config)


def _unknown_to(kind: str, config: dict[str, Any]) -> list[str]:
    known = HARMLESS | {"auto_map"} | (
        SHARED | gpt2.KNOWN if kind in OTHERS else
        KNOWN | FOREIGN | NEUTRAL.keys() | NEUTRAL_VALUES.keys() | FAMILIES[kind].keys())
    return sorted(key for key in config.keys() - known if config[key] is not None and config[key] is not False)


MALFORMED = (KeyError, TypeError, ValueError, AttributeError, OverflowError, ZeroDivisionError)  # what entries cause


def kind_of_config(config: dict[str, Any], where: object) -> str:
    names = config.get("architectures") or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise common.wrong(f"{where}, architectures", "a list of names", f"{names!r:.100}", "correct it")
    kinds = [ARCHITECTURES[name] for name in names if name in ARCHITECTURES] if names else \
        [kind for kind in ARCHITECTURES.values() if kind == config.get("model_type")]
    if len(kinds) != 1 or len(names) > 1:
        raise common.ToolError(f"{where}: architecture {names or config.get('model_type')} is not "
                               f"supported (supported: {', '.join(ARCHITECTURES)}). {nearest_of_config(config)}")
    return kinds[0]


def nearest_of_config(config: dict[str, Any]) -> str:
    """Of an architecture that is not known: the one that asks for least beyond what the program has."""
    asked = {key: value for key, value in config.items() if key not in ("architectures", "model_type", "auto_map")}

    def lacking(kind: str) -> list[str]:
        try:
            found = refusals(kind, asked)
            found += [f"the key {key}" for key in _unknown_to(kind, asked)]
            _read(kind, asked)
            return found
        except MALFORMED as error:
            return [*found, f"an entry that is missing or malformed ({error!r})", *[""] * len(asked)]

    kind, found = min(((kind, lacking(kind)) for kind in ARCHITECTURES.values()), key=lambda item: len(item[1]))
    name = next(name for name, value in ARCHITECTURES.items() if value == kind)
    return f"Nearest by its keys is {name}, which does not have: " + \
        ("; ".join(filter(None, found)) or "anything that config.json says; its code may differ, so it is not read")


def sizes_from_config(config: dict[str, Any], where: object) -> ModelSizes:
    """Model sizes of a config.json; ToolError for whatever cannot be represented."""
    kind = kind_of_config(config, where)
    try:
        if problems := refusals(kind, config):
            raise common.ToolError(f"{where}: this model needs features that nanotron_hpc does not have: "
                                   + "; ".join(problems))
        sizes = _read(kind, config)
    except MALFORMED as error:
        raise common.wrong(where, "the entries of such a model", f"missing or malformed entry ({error!r})",
                           "download it again") from None
    if sizes.num_attention_heads % sizes.num_key_value_heads:
        raise common.ToolError(f"{where}: {sizes.num_attention_heads} attention heads are not a multiple "
                               f"of {sizes.num_key_value_heads} key/value heads")
    return sizes


def _read(kind: str, config: dict[str, Any]) -> ModelSizes:
    if kind in OTHERS:
        return gpt2.sizes_from_config(kind, config)
    family = FAMILIES[kind]
    config = with_one_rope(config) if kind in LAYER_ROPES else config
    plain = family.in_llamas_keys(config)
    heads, hidden = int(plain["num_attention_heads"]), int(plain["hidden_size"])
    head_dim = int(plain.get("head_dim") or family.defaults.get("head_dim") or hidden // heads)
    tied = bool(plain.get("tie_word_embeddings", False))
    norm = {"layer_norm_epsilon": float(plain.get("layer_norm_epsilon", 1e-5))} if "normalization" in family.fixed \
        else {"rms_norm_eps": float(plain.get("rms_norm_eps", 1e-6))}
    chosen: dict[str, Any] = {name: family.bias(name, config) for name in family.biases} | family.fixed | norm
    known: dict[str, Any] = {
        "hidden_size": hidden,
        "num_hidden_layers": int(plain["num_hidden_layers"]),
        "num_attention_heads": heads,
        "num_key_value_heads": int(plain.get("num_key_value_heads") or heads),
        "head_dim": head_dim,
        "intermediate_size": int(plain["intermediate_size"]),
        "vocab_size": int(plain["vocab_size"]),
        "tie_word_embeddings": tied,
        "rope_theta": ropes.theta_of(plain, family.rope_theta),
        "hidden_act": family.activations[plain.get("hidden_act") or "silu"],
        "sliding_window": int(plain.get("sliding_window") or 0) if family.has_window else 0,
        **chosen,
        **expert_sizes(kind, config),
        **ropes.scaling_of(plain),
    }
    if family.rotates_a_part:
        known["partial_rotary_factor"] = float(plain[ROTATED_PART])
    for rule in family.rules:
        known |= rule.read(config, known)
    return ModelSizes(**known)


def balance_of(sizes: ModelSizes, config: dict[str, Any]) -> dict[str, Any]:
    """Keys of &moe that config.json does not say of every family: how the load of the experts is balanced."""
    if sizes.router_score == "sigmoid":  # by a bias alone, as DeepSeek-V3 was trained
        return {"router_aux_loss_coef": 0.0, "router_bias_update_rate": 0.001}
    coefficient = config.get("router_aux_loss_coef")
    return {"router_aux_loss_coef": float(AUX_LOSS_COEF if coefficient is None else coefficient),
            "router_aux_loss_scale": "hugging_face"}


# ---------------------------------------------------------------------------------------------
# Writing


def _fitted(kind: str, sizes: ModelSizes) -> ModelSizes:
    """The sizes with what this architecture's config.json cannot be written without."""
    family = FAMILIES.get(kind)
    activations = list((family.activations if family else gpt2.ACTIVATIONS).values())
    heads = sizes.num_attention_heads
    whole = -(-sizes.hidden_size // heads) * heads if family is None or "head_dim" in family.without else 0
    return replace(
        sizes, hidden_act=sizes.hidden_act if sizes.hidden_act in activations else activations[0],
        normalization=(family.fixed if family else LAYER_NORM).get("normalization", "rms_norm"),
        hidden_size=whole or sizes.hidden_size)


def _beside(theirs: ModelSizes, sizes: ModelSizes) -> set[str]:
    """Keys of a choice that one of the two has not made."""
    found = {"rms_norm_eps" if sizes.normalization == "layer_norm" else "layer_norm_epsilon"}
    if theirs.normalization != sizes.normalization:
        found = {"rms_norm_eps", "layer_norm_epsilon"}
    positions = {theirs.position_embedding_type, sizes.position_embedding_type}
    if positions != {"rope"}:
        found |= {item.name for item in fields(ModelSizes) if item.name.startswith("rope_")}
        found |= {"original_max_position_embeddings", "partial_rotary_factor"}
    return found | (set() if positions == {"learned_absolute"} else {"max_position_embeddings"})


def _same(key: str, theirs: ModelSizes, sizes: ModelSizes) -> bool:
    a, b = getattr(theirs, key), getattr(sizes, key)
    if key.endswith("_layers") and isinstance(a, str):
        return layer_sets.flags_of(a, sizes.num_hidden_layers) == layer_sets.flags_of(b, sizes.num_hidden_layers)
    return bool(a == b)


def differences(kind: str, sizes: ModelSizes) -> dict[str, Any]:
    """What config.json of this architecture, which has experts where the model has, would say otherwise: key of &model
    or &moe -> its value there. The program has the same rules in src/model/architectures.cpp."""
    config = _own_entries(kind, _fitted(kind, sizes), {})
    theirs = _read(kind, config)
    found = {item.name: getattr(theirs, item.name) for item in fields(ModelSizes)
             if item.name not in _beside(theirs, sizes) and not _same(item.name, theirs, sizes)}
    found |= {key: "more than 0" for key in ALWAYS_THERE.get(kind, ()) if not getattr(sizes, key)}
    if kind in FAMILIES and not ropes.is_allowed(sizes.rope_type, FAMILIES[kind].rope_types) and \
            sizes.position_embedding_type == "rope":
        found["rope_type"] = "default"
    return found


def kind_of(sizes: ModelSizes, where: object, imported: str = "") -> str:
    """The architecture whose config.json says these sizes: that of the model imported, where transformers has it and it
    does, else the first of WRITTEN; ToolError when there is none."""
    family = FAMILIES.get(imported)
    own = (imported,) if imported in OTHERS or (family and family.is_of_transformers) else ()
    told = {kind: differences(kind, sizes) for kind in (*own, *WRITTEN) if (kind in EXPERTS) == (sizes.num_experts > 0)}
    fitting: list[str] = [kind for kind, found in told.items() if not found]
    if fitting:
        return next((kind for kind in fitting if not loading_limits(sizes, kind)), fitting[0])
    least = min(len(found) for found in told.values())
    names = {kind: name for name, kind in ARCHITECTURES.items()}
    nearest = [f"{names[kind]} with {', '.join(f'{key} = {value!r}' for key, value in found.items())}"
               for kind, found in told.items() if len(found) == least]
    raise common.ToolError(f"{where}: no Hugging Face architecture that is known here has these keys of &model and "
                           f"&moe in this combination; nearest: {'; '.join(nearest)}")


def loading_limits(sizes: ModelSizes, kind: str) -> list[str]:
    """Which transformers cannot load a model that is right otherwise."""
    heads = sizes.num_attention_heads
    found = []
    if kind == "qwen2_moe" and heads * sizes.head_dim != sizes.hidden_size:
        found.append("transformers 4 refuses a Qwen2-MoE whose num_attention_heads * head_dim is not hidden_size")
    if kind == "llama" and sizes.hidden_size % heads:
        found.append("transformers 5 refuses a Llama whose hidden_size is not a multiple of num_attention_heads")
    if kind in FAMILIES and not FAMILIES[kind].is_of_transformers:
        found.append(f"transformers has no {FAMILIES[kind].architecture}: it needs the code of a published model of "
                     "that name, and auto_map in config.json")
    return found


def _own_entries(kind: str, sizes: ModelSizes, imported: dict[str, Any]) -> dict[str, Any]:
    """What of a config.json says the sizes."""
    if kind in OTHERS:
        return gpt2.config_from_sizes(kind, sizes)
    family = FAMILIES[kind]
    activations = {ours: theirs for theirs, ours in reversed(family.activations.items())}
    config: dict[str, Any] = {"hidden_act": activations.get(sizes.hidden_act, sizes.hidden_act)}
    config |= {key: value for key, value in sizes.first_values().items() if key not in ("qkv_bias", "qk_norm")}
    if sizes.normalization == "layer_norm":
        del config["rms_norm_eps"]
        config["layer_norm_epsilon"] = sizes.layer_norm_epsilon
    config |= {key: getattr(sizes, name) for name, (key, _) in family.biases.items()}
    config |= {key: value for key, (value, _, _) in family.only.items()} | dict.fromkeys(family.dropouts, 0.0)
    config |= entries_of_experts(kind, sizes)
    if family.has_window:
        config["sliding_window"] = sizes.sliding_window or None
    if kind.startswith("qwen"):
        config["use_sliding_window"] = False
    config |= ropes.entries_of(sizes, imported) | {"attention_dropout": 0.0}
    config["rope_parameters"] = ropes_of_layers(kind, sizes, config["rope_parameters"])
    if family.rotates_a_part:
        config[ROTATED_PART] = config["rope_parameters"][ROTATED_PART] = sizes.partial_rotary_factor
    config = {family.aliases.get(key, key): value for key, value in config.items()
              if key in family.aliases or key not in family.without}
    for rule in family.rules:
        config |= rule.write(sizes)
    return config


def config_from_sizes(sizes: ModelSizes, where: object, *, dtype: str, max_positions: int,
                      special: dict[str, Any], aux_loss_coef: float, initializer_range: float,
                      imported: dict[str, Any]) -> dict[str, Any]:
    """A config.json that transformers 4 and 5 read alike; `dtype` is torch's name, `imported` the config.json of the
    model that the run began with, or empty."""
    kind = kind_of(sizes, where, imported.get("model_type") or "")
    config = {"architectures": [next(name for name, value in ARCHITECTURES.items() if value == kind)],
              "model_type": kind} | _own_entries(kind, sizes, imported)
    if kind in EXPERTS and kind != "deepseek_v3":  # which has none
        config |= {"router_aux_loss_coef": aux_loss_coef,
                   "output_router_logits": bool(imported.get("output_router_logits"))}
    if kind not in OTHERS:
        config.setdefault("max_position_embeddings", max_positions)
    if kind == "phi3":  # llama.cpp does not read a Phi-3 without it
        config["original_max_position_embeddings"] = sizes.original_max_position_embeddings or \
            imported.get("original_max_position_embeddings") or max_positions
    return config | special | {"initializer_range": initializer_range, "use_cache": True, "torch_dtype": dtype,
                               "dtype": dtype}
