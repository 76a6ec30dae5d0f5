"""The sizes of a mixture of experts in config.json: to the keys of &moe, and from them.

DeepSeek's, which say more, are a rule of family_keys.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .model_sizes import ModelSizes


@dataclass(frozen=True)
class Silence:
    """What is meant where config.json is silent."""

    experts: int
    of_token: int
    width: int
    shared: int = 0  # width of the shared expert
    normed: bool | None = False  # None: always, and config.json does not say it
    of_mlp_size: bool = False  # the width is intermediate_size


EXPERTS = {
    "mixtral": Silence(8, 2, 14336, normed=None, of_mlp_size=True), "qwen2_moe": Silence(60, 4, 1408, shared=5632),
    "qwen3_moe": Silence(128, 8, 768), "olmoe": Silence(64, 8, 2048, of_mlp_size=True),
    "gpt_oss": Silence(128, 4, 2880, normed=None, of_mlp_size=True), "deepseek_v3": Silence(256, 8, 2048)}


def expert_count(kind: str, config: dict[str, Any]) -> int:
    """transformers 4 writes num_experts except for Mixtral, transformers 5 num_local_experts more often."""
    given = {int(config[key]) for key in ("num_experts", "num_local_experts") if config.get(key) is not None}
    if len(given) > 1:
        raise ValueError("num_experts and num_local_experts differ")
    return given.pop() if given else EXPERTS[kind].experts


def chosen_experts(config: dict[str, Any], default: int) -> int:
    count = config.get("num_experts_per_tok")
    if count is not None and int(count) < 1:
        raise ValueError("num_experts_per_tok below 1")
    return default if count is None else int(count)


def expert_sizes(kind: str, config: dict[str, Any]) -> dict[str, Any]:
    """The sizes of a mixture of experts; nothing for a dense architecture."""
    if kind not in EXPERTS:
        return {}
    of = EXPERTS[kind]
    own = config.get("shared_expert_intermediate_size")
    return {
        "num_experts": expert_count(kind, config),
        "num_experts_per_tok": chosen_experts(config, of.of_token),
        "moe_intermediate_size":
            int(config.get("intermediate_size" if of.of_mlp_size else "moe_intermediate_size") or of.width),
        "shared_expert_intermediate_size": int(of.shared if own is None else own) if of.shared else 0,
        "norm_topk_prob": True if of.normed is None else bool(config.get("norm_topk_prob", of.normed)),
    }


def entries_of_experts(kind: str, sizes: ModelSizes) -> dict[str, Any]:
    """What config.json says of them; nothing for a dense architecture."""
    if kind in ("mixtral", "gpt_oss"):
        of_mixtral: dict[str, Any] = {"sliding_window": None, "router_jitter_noise": 0.0} if kind == "mixtral" else {
            "swiglu_limit": sizes.swiglu_limit}
        return {"num_local_experts": sizes.num_experts, "num_experts_per_tok": sizes.num_experts_per_tok} | of_mixtral
    if kind == "olmoe":
        return {"num_experts": sizes.num_experts, "num_experts_per_tok": sizes.num_experts_per_tok,
                "norm_topk_prob": sizes.norm_topk_prob}
    return sizes.moe_values() | {"decoder_sparse_step": 1, "mlp_only_layers": []} if kind.startswith("qwen") and \
        kind in EXPERTS else {}
