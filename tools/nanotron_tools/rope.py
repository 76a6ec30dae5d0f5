"""rope_scaling and rope_parameters of a config.json: to the keys of &model, and from them.

transformers 4 reads rope_theta and rope_scaling, transformers 5 rope_parameters, in whose place rope_scaling stands
where it says something.
"""

from __future__ import annotations

import math
from typing import Any

from .family_keys import latent_magnitude
from .model_sizes import ModelSizes

SCALED = ("linear", "llama3", "yarn", "longrope")
DYNAMIC = "dynamic"  # acts on longer sequences than max_position_embeddings alone


def _given(config: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    name = "rope_scaling" if config.get("rope_scaling") else "rope_parameters"
    return name, config.get(name) or {}


def _type_of(rope: dict[str, Any]) -> str:
    return rope.get("rope_type") or rope.get("type") or "default"


def is_allowed(kind: str, kinds: tuple[str, ...]) -> bool:
    """kinds: empty for all."""
    return not kinds or kind in kinds


def refusals(config: dict[str, Any], rotates_a_part: bool = False, kinds: tuple[str, ...] = ()) -> list[str]:
    """What is asked of the rotary embedding and the program does not have."""
    name, rope = _given(config)
    if not isinstance(rope, dict):
        return [f"rope scaling ({name} is {rope!r})"]
    found, kind = [], _type_of(rope)
    if kind not in ("default", DYNAMIC, *SCALED) or not is_allowed(kind, kinds):
        found.append(f"rope scaling of type '{kind}' ({name})")
    needed = {"llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
              "yarn": ("factor",), "linear": ("factor",), DYNAMIC: ("factor",),
              "longrope": ("short_factor", "long_factor")}.get(kind, ())
    found += [f"rope scaling of type '{kind}' without {key} ({name})" for key in needed if rope.get(key) is None]
    if not rotates_a_part and any(part.get("partial_rotary_factor") not in (None, 1) for part in (config, rope)):
        found.append("rotary embedding on a part of a head (partial_rotary_factor, rotary_pct)")
    if rope.get("mrope_section") or any(isinstance(value, dict) for value in rope.values()):
        found.append(f"rotary embeddings that differ by layer or axis ({name})")
    outer = config.get("original_max_position_embeddings")
    if kind in ("llama3", "yarn") and outer is not None and int(outer) != original_length(config, rope):
        found.append(f"two lengths before the scaling, original_max_position_embeddings = {outer} beside {name}, "
                     f"which transformers 5 reads, and {original_length(config, rope)}, which transformers 4 reads: "
                     "remove one")
    inner, outer = rope.get("rope_theta"), config.get("rope_theta")
    if inner is not None and outer is not None and float(inner) != float(outer):
        found.append(f"two values of rope_theta, {outer} and {inner} in {name}, of which transformers 4 reads the "
                     "first and transformers 5 the second: remove one")
    return found


def notes(config: dict[str, Any]) -> list[str]:
    """What is left out and does not change what the model computes within max_position_embeddings."""
    if _type_of(_given(config)[1]) != DYNAMIC:
        return []
    return [f"rope scaling of type 'dynamic' is left out: it acts on more than {config.get('max_position_embeddings')} "
            "tokens (max_position_embeddings), so keep data%sequence_length at most there"]


def original_length(config: dict[str, Any], rope: dict[str, Any]) -> int:
    return int(rope.get("original_max_position_embeddings") or config["max_position_embeddings"])


def theta_of(config: dict[str, Any], default: float) -> float:
    rope = _given(config)[1]
    inner, outer = rope.get("rope_theta"), config.get("rope_theta")
    theta = inner if inner is not None else outer
    return float(theta if theta is not None else default)


def _yarn_magnitude(rope: dict[str, Any]) -> float:
    """0 for what follows from the factor alone."""
    def magnitude(scale: float) -> float:
        return 0.1 * scale * math.log(factor) + 1.0 if factor > 1 else 1.0

    factor, over, under = float(rope["factor"]), rope.get("mscale"), rope.get("mscale_all_dim")
    if rope.get("attention_factor") is not None:
        return float(rope["attention_factor"])
    return magnitude(over) / magnitude(under) if over and under else 0.0


def scaling_of(config: dict[str, Any]) -> dict[str, Any]:
    """The keys of &model of a scaled rotary embedding; nothing without a scaling."""
    rope = _given(config)[1]
    kind = _type_of(rope)
    if kind not in SCALED:
        return {}
    if kind == "linear":
        return {"rope_type": kind, "rope_factor": float(rope["factor"])}
    if kind == "longrope":
        return _longrope(config, rope)
    sizes = {"rope_type": kind, "rope_factor": float(rope["factor"]),
             "original_max_position_embeddings": original_length(config, rope)}
    if kind == "llama3":
        return sizes | {"rope_low_freq_factor": float(rope["low_freq_factor"]),
                        "rope_high_freq_factor": float(rope["high_freq_factor"])}
    sizes |= {} if rope.get("truncate", True) else {"rope_truncate": False}
    return sizes | {"rope_beta_fast": float(rope.get("beta_fast") or 32),
                    "rope_beta_slow": float(rope.get("beta_slow") or 1), "rope_attention_factor": _yarn_magnitude(rope)}


def _longrope(config: dict[str, Any], rope: dict[str, Any]) -> dict[str, Any]:
    """Phi's: its factor is the ratio of the two lengths."""
    original = int(config.get("original_max_position_embeddings") or original_length(config, rope))
    factor = float(rope.get("factor") or int(config["max_position_embeddings"]) / original)
    texts = {f"rope_{kind}": " ".join(repr(float(value)) for value in rope[kind])
             for kind in ("short_factor", "long_factor")}
    return texts | {"rope_type": "longrope", "rope_factor": factor, "original_max_position_embeddings": original,
                    "rope_attention_factor": float(rope.get("attention_factor") or 0.0)}


def entries_of(sizes: ModelSizes, imported: dict[str, Any]) -> dict[str, Any]:
    """rope_scaling and rope_parameters of a config.json. `imported`: that of the model that the run began with, whose
    scaling of longer sequences is kept."""
    theta = {"rope_theta": sizes.rope_theta}
    if sizes.rope_type == "default":
        rope = _given(imported)[1]
        if _type_of(rope) == DYNAMIC and theta_of(imported, sizes.rope_theta) == sizes.rope_theta:
            rope = {"rope_type": DYNAMIC, "type": DYNAMIC, "factor": rope["factor"]}
            return {"rope_scaling": rope, "rope_parameters": rope | theta}
        return {"rope_scaling": None, "rope_parameters": {"rope_type": "default"} | theta}
    if sizes.rope_type == "longrope":
        return _entries_of_longrope(sizes, theta)
    rope = {"rope_type": sizes.rope_type, "type": sizes.rope_type, "factor": sizes.rope_factor}
    if sizes.rope_type != "linear":
        rope["original_max_position_embeddings"] = sizes.original_max_position_embeddings
    if sizes.rope_type == "llama3":
        rope |= {"low_freq_factor": sizes.rope_low_freq_factor, "high_freq_factor": sizes.rope_high_freq_factor}
    elif sizes.rope_type == "yarn":
        rope |= {"beta_fast": sizes.rope_beta_fast, "beta_slow": sizes.rope_beta_slow}
        rope |= {} if sizes.rope_truncate else {"truncate": False}
        rope |= _magnitudes_of_yarn(sizes, rope["factor"])
    return {"rope_scaling": rope, "rope_parameters": rope | theta}


def _magnitudes_of_yarn(sizes: ModelSizes, factor: float) -> dict[str, float]:
    """Factors of the rotated queries and keys and, with latent attention, of the scores: as DeepSeek's where they give
    the same numbers."""
    magnitude, over = sizes.rope_attention_factor, latent_magnitude(sizes) if sizes.kv_lora_rank else 0.0
    found = {"mscale_all_dim": over} if over else {}
    if over and magnitude:
        both = found | {"mscale": round((magnitude * (0.1 * over * math.log(factor) + 1.0) - 1.0) /
                                        (0.1 * math.log(factor)), 9)}
        if both["mscale"] and _yarn_magnitude({"factor": factor} | both) == magnitude:
            return both
    return found | ({"attention_factor": magnitude} if magnitude else {})


def _entries_of_longrope(sizes: ModelSizes, theta: dict[str, Any]) -> dict[str, Any]:
    """transformers 4 wants these three entries and no others, and takes the factor from the two lengths."""
    original = sizes.original_max_position_embeddings
    factors = {"short_factor": sizes.rope_short_factor, "long_factor": sizes.rope_long_factor}
    rope = {"type": "longrope", **{kind: [float(word) for word in text.split()] for kind, text in factors.items()}}
    own = {"rope_type": "longrope", "original_max_position_embeddings": original}
    return {"rope_scaling": rope, "rope_parameters": rope | own | theta, "original_max_position_embeddings": original,
            "max_position_embeddings": round(sizes.rope_factor * original)}
