#!/usr/bin/env python3
"""Models of transformers through nanotron_convert.py and back: the logits have to be the same numbers.

    python3 check_transformers.py PYTHON       # with transformers 4.57 or 5, and PyTorch, installed

PYTHON is one that has numpy and h5py (build/venv/bin/python): it runs the converter. For each architecture a
random model is saved by transformers, converted with from-hf and to-hf (once more from what transformers saves
of our export, with 5 also with fused experts), and logits are compared. Not part of the tests, which do
without PyTorch.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import transformers

import make_configs

EXPERTS = make_configs.EXPERTS
WINDOWS = {"sliding_window": 16, "layer_types": ["sliding_attention", "full_attention"]}
GEMMA = {"head_dim": 12, "query_pre_attn_scalar": 8, "hidden_activation": "gelu_pytorch_tanh"}
TEXT = {"Gemma3": "Gemma3Text"}
BIASES = {"attention_bias": True, "mlp_bias": True}
SIZES = make_configs.SIZES
DEEPSEEK = {"num_key_value_heads": SIZES["num_attention_heads"], "n_routed_experts": 8, "num_experts_per_tok": 3,
            "moe_intermediate_size": 24, "n_group": 4, "topk_group": 2, "n_shared_experts": 2, "first_k_dense_replace": 1,
            "q_lora_rank": 12, "kv_lora_rank": 10, "qk_nope_head_dim": 6, "qk_rope_head_dim": 8, "v_head_dim": 7,
            "rms_norm_eps": 1e-6,
            "rope_scaling": {"type": "yarn", "factor": 4.0, "mscale": 1.0, "mscale_all_dim": 1.0,
                             "original_max_position_embeddings": 32, "beta_fast": 32, "beta_slow": 1}}
# Families without a fixture of their own: class, what differs from make_configs.SIZES.
MORE = {
    "llama_biases": ("Llama", BIASES), "qwen3_bias": ("Qwen3", {"attention_bias": True, "head_dim": 12}),
    "seed_oss": ("SeedOss", BIASES | {"attention_out_bias": True, "head_dim": 12}),
    "starcoder2": ("Starcoder2", {"sliding_window": 16}), "ernie4_5": ("Ernie4_5", {"use_bias": True, "head_dim": 12}),
    "helium": ("Helium", BIASES | {"head_dim": 8}),
    "gpt_neox": ("GPTNeoX", {"use_parallel_residual": False, "rotary_pct": 1.0}),
    "pythia": ("GPTNeoX", {"use_parallel_residual": True, "rotary_pct": 0.25}),
    "apertus": ("Apertus", {"hidden_act": "xielu"}), "smollm3": ("SmolLM3", {"no_rope_layers": [1, 0]}),
    "olmo2": ("Olmo2", {}), "olmo3": ("Olmo3", WINDOWS), "gemma2": ("Gemma2", GEMMA | WINDOWS),
    "gemma3": ("Gemma3", GEMMA | WINDOWS), "glm": ("Glm", {"head_dim": 8}), "glm4": ("Glm4", {"head_dim": 8}),
    "olmoe": ("Olmoe", EXPERTS | {"num_experts": 4, "norm_topk_prob": False}),
    "gpt_oss": ("GptOss", EXPERTS | WINDOWS | {"num_local_experts": 4, "head_dim": 8, "rope_scaling": None}),
    "granite": ("Granite", {"embedding_multiplier": 3.0, "logits_scaling": 0.5, "residual_multiplier": 0.4,
                            "attention_multiplier": 0.25}),
    "stablelm": ("StableLm", {"use_qkv_bias": True, "partial_rotary_factor": 0.25}),
    "stablelm_parallel": ("StableLm", {"use_parallel_residual": True, "partial_rotary_factor": 0.5}),
    "phi4_mini": ("Phi3", {"partial_rotary_factor": 0.75, "original_max_position_embeddings": 32, "rope_scaling": {
        "type": "longrope", "short_factor": [1.0, 1.5, 2.5], "long_factor": [1.25, 4.0, 11.0]}}),
    "phi2": ("Phi", {"partial_rotary_factor": 0.5}), "deepseek_v3": ("DeepseekV3", DEEPSEEK),
    "moonlight": ("DeepseekV3", DEEPSEEK | {"q_lora_rank": None, "first_k_dense_replace": 0, "rope_scaling": None}),
    "opt": ("OPT", {"ffn_dim": 88, "word_embed_proj_dim": 32, "dropout": 0.0}),
    "gpt_bigcode": ("GPTBigCode", make_configs.GPT2), "gpt_bigcode_heads": ("GPTBigCode", make_configs.GPT2 | {"multi_query": False}),
}
TOOL = Path(__file__).resolve().parents[2] / "tools" / "nanotron_convert.py"
MAJOR = int(transformers.__version__.split(".")[0])


def logits_of(folder: Path) -> torch.Tensor:
    model, report = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
    wrong = {key: value for key, value in report.items() if value and key != "error_msgs"}
    assert not wrong, (folder, wrong)
    ids = torch.randint(0, 64, (2, 50), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        return model.eval()(ids).logits


def convert(python: str, *arguments) -> None:
    subprocess.run([python, TOOL, *map(str, arguments)], check=True, stdout=subprocess.DEVNULL)


def there_and_back(python: str, source: Path, work: Path) -> torch.Tensor:
    convert(python, "from-hf", source, work / "checkpoints")
    convert(python, "to-hf", work, work / "exported")
    return logits_of(work / "exported")


def config_of(kind: str):
    if kind not in MORE:
        return make_configs.config_of(kind)
    name, changes = MORE[kind]
    values = changes if name == "GPTBigCode" else SIZES | {"pad_token_id": None} | changes
    if MAJOR >= 5 and values.get("rope_scaling"):
        rope = dict(values.pop("rope_scaling"))
        values["rope_parameters"] = {"rope_type": rope.pop("type"), "rope_theta": 10000.0} | rope
    if name == "GPTNeoX":
        values = {key: value for key, value in values.items() if key not in ("num_key_value_heads", "rms_norm_eps")}
    config = getattr(transformers, TEXT.get(name, name) + "Config")(**values)
    config.architectures = [name + "ForCausalLM"]
    return config


def check(kind: str, python: str, root: Path) -> None:
    config = config_of(kind)
    torch.manual_seed(7)
    config.dtype = "float32"
    model = transformers.AutoModelForCausalLM.from_config(config)
    for parameter in model.parameters():  # norms and biases too, so that none can be mixed up
        torch.nn.init.normal_(parameter, mean=0.2, std=0.5)
    ways = {"": {}} if MAJOR < 5 else {"": {}, ", fused experts": {"save_original_format": False}}
    for number, (name, options) in enumerate(ways.items()):
        original = root / f"{kind}{number}"
        model.save_pretrained(original, **options)
        expected = logits_of(original)
        found = there_and_back(python, original, root / f"{kind}{number}-a")
        exported = root / f"{kind}{number}-a" / "exported"
        saved_again = root / f"{kind}{number}-again"
        transformers.AutoModelForCausalLM.from_pretrained(exported).save_pretrained(saved_again, **options)
        again = there_and_back(python, saved_again, root / f"{kind}{number}-b")
        worst = [float((expected - other).abs().max()) for other in (found, again)]
        keys = ("eos_token_id", "bos_token_id", "max_position_embeddings", "router_aux_loss_coef")
        read = transformers.AutoConfig.from_pretrained(exported)
        assert all(getattr(read, key, None) == getattr(config, key, None) for key in keys), json.dumps(read.to_dict())
        generation = transformers.GenerationConfig.from_pretrained(exported)
        assert generation.eos_token_id == config.eos_token_id
        print(f"transformers {transformers.__version__} {kind + name:25} largest |logit| "
              f"{float(expected.abs().max()):.3f}, largest difference {worst[0]:g} after the round trip, "
              f"{worst[1]:g} after saving it once more")
        assert max(worst) < 1e-5  # 0 unless the alignment of a tensor in the file chooses another GEMM


def main():
    with tempfile.TemporaryDirectory() as folder:
        for kind in sys.argv[2:] or (*make_configs.ALL, *MORE):
            check(kind, sys.argv[1], Path(folder))


if __name__ == "__main__":
    main()
