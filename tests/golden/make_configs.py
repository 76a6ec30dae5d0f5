#!/usr/bin/env python3
"""Writes tests/golden/configs/transformers_<major>.json with the transformers that is installed.

    python3 make_configs.py                # once with transformers 4.57, once with 5

For each architecture of nanotron_convert.py the config.json that save_pretrained writes of a small model, and
as "unsaved" the keys, with their defaults, that the classes have and that are written only when they are changed.
Needs the package transformers, without torch.
"""

import json
import sys
import tempfile
from pathlib import Path

import transformers

import compact_json

SIZES = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 88, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "bos_token_id": 1,
         "eos_token_id": 2}
EXPERTS = {"num_experts_per_tok": 2, "router_aux_loss_coef": 0.02}
KINDS = {
    "llama": ("Llama", {}),
    "qwen2": ("Qwen2", {"tie_word_embeddings": True}),
    "qwen3": ("Qwen3", {"head_dim": 12}),
    "mixtral": ("Mixtral", EXPERTS | {"num_local_experts": 4}),
    "qwen2_moe": ("Qwen2Moe", EXPERTS | {"num_experts": 4, "moe_intermediate_size": 24,
                                         "shared_expert_intermediate_size": 40}),
    "qwen3_moe": ("Qwen3Moe", EXPERTS | {"num_experts": 4, "moe_intermediate_size": 24, "head_dim": 12,
                                         "norm_topk_prob": True}),
    "mistral": ("Mistral", {"sliding_window": 16}),
    "phi3": ("Phi3", {"sliding_window": 16, "pad_token_id": None}),
    "llama3_rope": ("Llama", {"rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                                               "high_freq_factor": 4.0, "original_max_position_embeddings": 32}}),
    "llama_yarn": ("Llama", {"rope_scaling": {"rope_type": "yarn", "factor": 4.0,
                                              "original_max_position_embeddings": 32}}),
}
# Keys of their own for the same sizes.
GPT2 = {"vocab_size": 64, "n_embd": 32, "n_inner": 88, "n_layer": 2, "n_head": 4, "n_positions": 128, "bos_token_id": 1,
        "eos_token_id": 2, "layer_norm_epsilon": 1e-6}
OTHERS = {"gpt2": ("GPT2Config", "GPT2LMHeadModel", GPT2)}
ALL = (*KINDS, *OTHERS)


def config_of(kind: str):
    if kind in OTHERS:
        config, model, values = OTHERS[kind]
        made = getattr(transformers, config)(**values)
        made.architectures = [model]
        return made
    name, more = KINDS[kind]
    major = int(transformers.__version__.split(".")[0])
    scaling = more.get("rope_scaling") or {}
    theta = {"rope_theta": 5e4}
    rope = theta if major < 5 else {"rope_parameters": {"rope_type": "default"} | scaling | theta}
    more = {key: value for key, value in more.items() if key != "rope_scaling" or major < 5}
    made = getattr(transformers, name + "Config")(**SIZES, **more, **rope)
    made.architectures = [name + "ForCausalLM"]
    return made


def saved(made) -> dict:
    with tempfile.TemporaryDirectory() as folder:
        made.save_pretrained(folder)
        return json.loads((Path(folder) / "config.json").read_text())


def main():
    major = transformers.__version__.split(".")[0]
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent / "configs"
    folder.mkdir(exist_ok=True)
    result = {kind: saved(config_of(kind)) for kind in ALL}
    unsaved = {}
    for kind, written in ((kind, result[kind]) for kind in KINDS):
        full = json.loads(config_of(kind).to_json_string(use_diff=False))
        unsaved |= {key: value for key, value in full.items() if key not in written}
    result["unsaved"] = unsaved
    compact_json.write(folder / f"transformers_{major}.json", json.loads(json.dumps(result, sort_keys=True)))


if __name__ == "__main__":
    main()
