"""What config.json of a family says of the parts of a layer in keys of its own: each rule reads it and writes it.

A rule is a pair of functions: config.json, and the keys of &model read so far -> keys of &model and &moe; sizes ->
keys of config.json. families.py says which family has which.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from . import layer_sets
from .model_sizes import ModelSizes

Config = dict[str, Any]
Values = Mapping[str, Any]
FULL, SLIDING = "full_attention", "sliding_attention"


@dataclass(frozen=True)
class Rule:
    keys: tuple[str, ...]  # of config.json
    read: Callable[[Config, Values], Config]
    write: Callable[[ModelSizes], Config]
    # Keys -> what config.json says that no value of ours does.
    refuse: Callable[[Config], list[str]] = lambda config: []


def same(key: str, silent: Any, ours: str = "", nothing: Any = None) -> Rule:
    """A key of the same meaning. silent: where config.json has none. nothing: our value of null there."""
    name = ours or key

    def read(config: Config, known: Values) -> Config:
        value = config.get(key, silent)
        return {name: nothing if value is None else type(silent if silent is not None else nothing)(value)}

    def write(sizes: ModelSizes) -> Config:
        value = getattr(sizes, name)
        return {key: None if nothing is not None and value == nothing else value}

    return Rule((key,), read, write)


def chosen(key: str, silent: Any, name: str, values: dict[Any, Any]) -> Rule:
    """A key of config.json whose values are some of those of `name`."""
    back = {ours: theirs for theirs, ours in values.items()}
    return Rule((key,), lambda config, known: {name: values[config.get(key, silent)]},
                lambda sizes: {key: back.get(getattr(sizes, name), silent)})


def equal(key: str, other: str, text: str) -> Rule:
    """A key that has to be the same as another one."""
    return Rule((key,), lambda config, known: {}, lambda sizes: {key: getattr(sizes, other)},
                lambda config: [f"{text} ({key})"] if config.get(key) not in (None, config.get(other)) else [])


def windows(pattern: str, period_key: str = "") -> Rule:
    """sliding_window in the layers that layer_types names; where it is silent, by `pattern`, or with a window in all
    but each n-th layer."""
    def types_of(config: Config, layers: int) -> list[bool]:
        if config.get("layer_types"):
            return [kind == SLIDING for kind in config["layer_types"]]
        period = config.get(period_key) if period_key else None
        return layer_sets.flags_of(f"{period - 1}:1" if period else pattern, layers)

    def read(config: Config, known: Values) -> Config:
        flags = types_of(config, int(config["num_hidden_layers"]))
        window = int(config.get("sliding_window", 4096) or 0) if any(flags) else 0
        return {"sliding_window": window, "window_layers": layer_sets.text_of(flags) if window else "all"}

    def write(sizes: ModelSizes) -> Config:
        flags = layer_sets.flags_of(sizes.window_layers if sizes.sliding_window else "none", sizes.num_hidden_layers)
        kinds = [SLIDING if flag else FULL for flag in flags]
        return {"sliding_window": sizes.sliding_window or None, "layer_types": kinds}

    def refuse(config: Config) -> list[str]:
        other = set(config.get("layer_types") or []) - {SLIDING, FULL}
        return [f"attention of the kind {', '.join(sorted(other))} (layer_types)"] if other else []

    return Rule(("sliding_window", "layer_types", *((period_key,) if period_key else ())), read, write, refuse)


def _rope_layers(config: Config, known: Values) -> Config:
    layers, interval = int(config["num_hidden_layers"]), int(config.get("no_rope_layer_interval") or 4)
    given = config.get("no_rope_layers")  # 1: with it
    flags = [bool(flag) for flag in given] if given else [(layer + 1) % interval != 0 for layer in range(layers)]
    return {"rope_layers": layer_sets.text_of(flags)}


def _rope_layers_of(sizes: ModelSizes) -> Config:
    flags = layer_sets.flags_of(sizes.rope_layers, sizes.num_hidden_layers)
    return {"no_rope_layers": [int(flag) for flag in flags]}


ROPE_LAYERS = Rule(("no_rope_layers", "no_rope_layer_interval"), _rope_layers, _rope_layers_of)


# Families whose layers with a window have a rotary embedding of their own, in transformers 5 as rope_parameters.
LAYER_ROPES = frozenset(("gemma3_text", "olmo3"))


def with_one_rope(config: Config) -> Config:
    """rope_parameters of transformers 5 for each kind of layer, as transformers 4 has them."""
    ropes = config.get("rope_parameters") or {}
    if FULL not in ropes:
        return config
    local = (ropes.get(SLIDING) or {}).get("rope_theta", 1e4)
    return config | {"rope_parameters": ropes[FULL], "rope_local_base_freq": local}


def ropes_of_layers(kind: str, sizes: ModelSizes, rope: Config) -> Config:
    """The same on the way back; `rope`: of layers without a window."""
    theta = sizes.rope_local_theta or sizes.rope_theta
    local = {"rope_type": "default", "rope_theta": theta}
    return {FULL: rope, SLIDING: local} if kind in LAYER_ROPES else rope


def _scale(config: Config, known: Values) -> Config:
    scalar = float(config.get("query_pre_attn_scalar", 256))
    return {"embedding_multiplier": float(config["hidden_size"]) ** 0.5,
            "attention_multiplier": 0.0 if scalar == known["head_dim"] else scalar ** -0.5}


def _scale_of(sizes: ModelSizes) -> Config:
    given = sizes.attention_multiplier
    scalar = given ** -2 if given else float(sizes.head_dim)
    whole = round(scalar)
    return {"query_pre_attn_scalar": whole if whole ** -0.5 == (given or whole ** -0.5) else scalar}


GEMMA_SCALES = Rule(("query_pre_attn_scalar",), _scale, _scale_of)


def _attention_scale(config: Config, known: Values) -> Config:
    factor = config.get("attention_multiplier")
    factor = 1.0 if factor is None else float(factor)
    return {"attention_multiplier": 0.0 if factor == known["head_dim"] ** -0.5 else factor}


GRANITE_ATTENTION = Rule(("attention_multiplier",), _attention_scale, lambda sizes: {
    "attention_multiplier": sizes.attention_multiplier or sizes.head_dim ** -0.5})


def _local_theta_is_own(config: Config, known: Values) -> Config:
    """OLMo 3: the rotary embedding of layers with a window is not scaled."""
    return {"rope_local_theta": known["rope_theta"] if known.get("rope_type", "default") != "default" else 0.0}


def _other_local_rope(config: Config) -> list[str]:
    ropes = config.get("rope_parameters") or {}
    local, full = ((ropes.get(kind) or {}).get("rope_theta") for kind in (SLIDING, FULL))
    return ["layers with a window that have another theta (rope_parameters)"] if local != full else []


OLMO3_LOCAL_ROPE = Rule((), _local_theta_is_own, lambda sizes: {}, _other_local_rope)


def _local_theta(config: Config, known: Values) -> Config:
    """Gemma 3: of the layers with a window, never scaled."""
    theta = float(config.get("rope_local_base_freq", 1e4))
    is_same = theta == known["rope_theta"] and known.get("rope_type", "default") == "default"
    return {"rope_local_theta": 0.0 if is_same else theta}


GEMMA3_LOCAL_ROPE = Rule(("rope_local_base_freq",), _local_theta, lambda sizes: {
    "rope_local_base_freq": sizes.rope_local_theta or sizes.rope_theta})


def _experts(config: Config, known: Values) -> Config:
    """DeepSeek-V3."""
    layers, first = int(config["num_hidden_layers"]), int(config.get("first_k_dense_replace", 3))
    flags = [layer >= first for layer in range(layers)]
    return {
        "num_experts": int(config.get("n_routed_experts", 256)),
        "num_experts_per_tok": int(config.get("num_experts_per_tok", 8)),
        "moe_intermediate_size": int(config.get("moe_intermediate_size", 2048)),
        "norm_topk_prob": bool(config.get("norm_topk_prob", True)),
        "n_shared_experts": int(config.get("n_shared_experts", 1) or 0), "expert_layers": layer_sets.text_of(flags),
        "router_score": "sigmoid",
        "n_group": int(config.get("n_group", 8)), "topk_group": int(config.get("topk_group", 4)),
        "routed_scaling_factor": float(config.get("routed_scaling_factor", 2.5))}


def _experts_of(sizes: ModelSizes) -> Config:
    flags = layer_sets.flags_of(sizes.expert_layers, sizes.num_hidden_layers)
    return {"n_routed_experts": sizes.num_experts, "num_experts_per_tok": sizes.num_experts_per_tok,
            "moe_intermediate_size": sizes.moe_intermediate_size, "norm_topk_prob": sizes.norm_topk_prob,
            "n_shared_experts": sizes.n_shared_experts,
            "first_k_dense_replace": flags.index(True) if any(flags) else len(flags), "moe_layer_freq": 1,
            "n_group": sizes.n_group, "topk_group": sizes.topk_group,
            "routed_scaling_factor": sizes.routed_scaling_factor, "scoring_func": "sigmoid",
            "topk_method": "noaux_tc", "num_nextn_predict_layers": 0}


def _unlike_deepseek(config: Config) -> list[str]:
    needed = {"scoring_func": "sigmoid", "topk_method": "noaux_tc", "moe_layer_freq": 1, "ep_size": 1}
    return [f"a router of another kind ({key} = {config[key]!r})" for key, value in needed.items()
            if config.get(key) not in (None, value)]


DEEPSEEK_EXPERTS = Rule(
    ("n_routed_experts", "num_experts_per_tok", "moe_intermediate_size", "norm_topk_prob", "n_shared_experts",
     "first_k_dense_replace", "moe_layer_freq", "n_group", "topk_group", "routed_scaling_factor", "scoring_func",
     "topk_method", "ep_size", "num_nextn_predict_layers", "aux_loss_alpha", "seq_aux"), _experts, _experts_of,
    _unlike_deepseek)


def _latent(config: Config, known: Values) -> Config:
    """DeepSeek's attention. YaRN also scales the scores, by mscale_all_dim."""
    sizes = {name: int(config.get(name, silent) or 0) for name, silent in LATENT.items()}
    width = sizes["qk_nope_head_dim"] + sizes["qk_rope_head_dim"]
    rope = config.get("rope_scaling") or config.get("rope_parameters") or {}
    over = float(rope.get("mscale_all_dim") or 0) if rope.get("factor") else 0.0
    magnitude = 0.1 * over * math.log(float(rope["factor"])) + 1.0 if over else 1.0
    return sizes | {"head_dim": width, "rope_interleaved": bool(config.get("rope_interleave", True)),
                    "attention_multiplier": width ** -0.5 * magnitude ** 2 if magnitude != 1.0 else 0.0}


LATENT = {"q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}


def latent_magnitude(sizes: ModelSizes) -> float:
    """mscale_all_dim of rope_scaling; 0 where the scores are not scaled by it."""
    if not sizes.attention_multiplier or sizes.rope_factor <= 1:
        return 0.0
    width = sizes.qk_nope_head_dim + sizes.qk_rope_head_dim
    magnitude: float = math.sqrt(sizes.attention_multiplier * math.sqrt(width))
    return float(round((magnitude - 1.0) / (0.1 * math.log(sizes.rope_factor)), 9))


def _latent_of(sizes: ModelSizes) -> Config:
    return {name: getattr(sizes, name) or (None if name == "q_lora_rank" else 0) for name in LATENT} | {
        "rope_interleave": sizes.rope_interleaved, "num_key_value_heads": sizes.num_attention_heads,
        "head_dim": sizes.qk_rope_head_dim, "qk_head_dim": sizes.head_dim}  # of transformers: what is rotated


DEEPSEEK_ATTENTION = Rule((*LATENT, "rope_interleave", "qk_head_dim"), _latent, _latent_of)
COMPRESSED_EPS = 1e-6  # transformers does not ask the configuration for that of compressed queries, keys and values
DEEPSEEK_NORMS = Rule((), lambda config, known: {"rms_norm_eps": COMPRESSED_EPS}, lambda sizes: {}, lambda config: [
    "an rms_norm_eps that norms of compressed queries, keys and values, which have 1e-06, do not share (rms_norm_eps)"]
    if float(config.get("rms_norm_eps", COMPRESSED_EPS)) != COMPRESSED_EPS else [])
