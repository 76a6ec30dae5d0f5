#!/usr/bin/env python3
"""Makes the golden values of the families that transformers itself is the model of: 20 AdamW steps and a continuation.

    python3 tests/golden/make_family_golden.py [case ...]        # with torch and transformers (4.57 or 5), numpy, h5py

For each case the same files as make_golden.py writes, and generate.json. The model is the package's own class, eager
attention; nothing of it is written out here. Its norms, its softmax and its rotary frequencies are in float32 whatever
the type of the model: for the values in float64 the name torch.float32 means float64 while it is built and run, so that
all of it is. Weights are drawn under our names and handed over by tools/nanotron_tools/layouts.py, transposed and fused as in the
package.
"""

import argparse
import contextlib
import sys
from pathlib import Path
from unittest import mock

import numpy as np
import torch
import transformers

import compact_json
import make_golden as golden

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "tools"))
from nanotron_tools import hf_config as hf  # noqa: E402
from nanotron_tools import layouts  # noqa: E402

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
         "intermediate_size": 88, "vocab_size": 131}
# Pairs of all three kinds: wavelengths of 6, 63, 628 and 6283 against 64 / 4 and 64.
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 64}
YARN = {"rope_type": "yarn", "factor": 4.0, "beta_fast": 8.0, "beta_slow": 1.0, "original_max_position_embeddings": 64}
# Case -> class, config.json as published models have it, seed.
CASES = {
    "gpt2": ("GPT2", {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_inner": 90, "n_positions": 32, "vocab_size": 131,
                      "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "tie_word_embeddings": True}, 77),
    "llama3_rope": ("Llama", SIZES | {"rope_scaling": LLAMA3, "rope_theta": 10000.0, "max_position_embeddings": 512,
                                      "rms_norm_eps": 1e-5, "tie_word_embeddings": True}, 88),
    "llama_yarn": ("Llama", SIZES | {"rope_scaling": YARN, "rope_theta": 10000.0, "max_position_embeddings": 256,
                                     "rms_norm_eps": 1e-5, "tie_word_embeddings": False}, 99),
    "mistral": ("Mistral", SIZES | {"sliding_window": 5, "rope_theta": 10000.0, "max_position_embeddings": 128,
                                    "rms_norm_eps": 1e-5, "tie_word_embeddings": False}, 110),
    "starcoder2": ("Starcoder2", SIZES | {"sliding_window": 5, "rope_theta": 10000.0, "max_position_embeddings": 128,
                                          "norm_epsilon": 1e-5, "use_bias": True, "tie_word_embeddings": True}, 121),
    "gpt_bigcode": ("GPTBigCode", {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_inner": 90, "n_positions": 32,
                                   "vocab_size": 131, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0,
                                   "multi_query": True, "tie_word_embeddings": True}, 209),
    "gpt_neox": ("GPTNeoX", {**{key: value for key, value in SIZES.items() if "key_value" not in key},
                             "use_parallel_residual": False, "rotary_pct": 1.0, "rotary_emb_base": 10000.0,
                             "max_position_embeddings": 128, "layer_norm_eps": 1e-5, "hidden_act": "gelu",
                             "tie_word_embeddings": False}, 143),
    "ernie4_5": ("Ernie4_5", SIZES | {"use_bias": True, "rope_theta": 10000.0, "max_position_embeddings": 128,
                                      "rms_norm_eps": 1e-5, "tie_word_embeddings": False}, 154),
}
# No stored value is one that hides a mistake: windows cut, soft caps bend, factors are not 1, layers differ.
COMMON = {"rope_theta": 10000.0, "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "tie_word_embeddings": False}
THREE = SIZES | COMMON | {"num_hidden_layers": 3}
SLIDING, FULL = "sliding_attention", "full_attention"
WINDOWS = {"sliding_window": 5, "layer_types": [SLIDING, SLIDING, FULL]}
GEMMA = THREE | {"hidden_activation": "gelu_pytorch_tanh", "hidden_act": "gelu_pytorch_tanh", "rms_norm_eps": 1e-6,
                 "tie_word_embeddings": True}
LAYER_NORMED = {key: value for key, value in (SIZES | COMMON).items() if key not in ("rms_norm_eps", "head_dim")}
DEEPSEEK = {key: value for key, value in THREE.items() if key != "head_dim"} | {
    "num_key_value_heads": 4, "rms_norm_eps": 1e-6, "kv_lora_rank": 10, "qk_nope_head_dim": 6, "qk_rope_head_dim": 8,
    "v_head_dim": 7, "moe_intermediate_size": 24, "n_routed_experts": 8, "num_experts_per_tok": 3,
    "n_shared_experts": 2, "scoring_func": "sigmoid", "topk_method": "noaux_tc", "num_nextn_predict_layers": 0}
LONGROPE = {"type": "longrope", "short_factor": [1.0, 1.5, 2.5],
            "long_factor": [1.25, 4.0, 11.0]}
PHI4 = {key: value for key, value in (SIZES | COMMON).items() if key != "head_dim"} | {
    "partial_rotary_factor": 0.75, "rope_scaling": LONGROPE, "tie_word_embeddings": True,
    "max_position_embeddings": 256, "sliding_window": 262144}
CASES |= {
    "apertus": ("Apertus", SIZES | COMMON | {"rope_scaling": LLAMA3, "max_position_embeddings": 512,
                                             "hidden_act": "xielu"}, 301),
    "smollm3": ("SmolLM3", THREE | {"no_rope_layers": [1, 1, 0], "tie_word_embeddings": True}, 302),
    "olmo2": ("Olmo2", SIZES | COMMON, 303),
    "olmo3": ("Olmo3", THREE | WINDOWS | {"rope_scaling": YARN | {"attention_factor": 1.2079441541679836},
                                          "max_position_embeddings": 256}, 404),
    "olmoe": ("Olmoe", {key: value for key, value in (SIZES | COMMON).items() if key != "head_dim"} | {
        "intermediate_size": 24, "num_experts": 6, "num_experts_per_tok": 3, "norm_topk_prob": False}, 305),
    "gemma2": ("Gemma2", GEMMA | {"head_dim": 12, "query_pre_attn_scalar": 8, "attn_logit_softcapping": 0.5,
                                  "final_logit_softcapping": 2.0, "sliding_window": 5,
                                  "layer_types": [SLIDING, FULL, SLIDING]}, 406),
    "gemma3": ("Gemma3", GEMMA | WINDOWS | {
        "query_pre_attn_scalar": 8, "rope_theta": 1000000.0, "rope_local_base_freq": 10000.0,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0}}, 407),
    "gpt_oss": ("GptOss", SIZES | COMMON | {
        "intermediate_size": 24, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 5,
        "layer_types": [SLIDING, FULL], "rope_theta": 150000.0,
        "rope_scaling": YARN | {"truncate": False}, "max_position_embeddings": 256}, 308),
    "granite": ("Granite", SIZES | COMMON | {
        "embedding_multiplier": 3.0, "logits_scaling": 0.5, "residual_multiplier": 0.4, "attention_multiplier": 0.25,
        "tie_word_embeddings": True}, 309),
    "stablelm": ("StableLm", LAYER_NORMED | {"head_dim": 8, "partial_rotary_factor": 0.25, "use_qkv_bias": True,
                                             "layer_norm_eps": 1e-5}, 310),
    "pythia": ("GPTNeoX", {**{key: value for key, value in SIZES.items() if "key_value" not in key},
                           "use_parallel_residual": True, "rotary_pct": 0.25, "rotary_emb_base": 10000.0,
                           "max_position_embeddings": 128, "layer_norm_eps": 1e-5, "hidden_act": "gelu",
                           "tie_word_embeddings": False}, 311),
    "phi4_mini": ("Phi3", PHI4 | {"original_max_position_embeddings": 64}, 313),
    "phi4_mini_long": ("Phi3", PHI4 | {"original_max_position_embeddings": 4}, 314),
    "falcon3": ("Llama", SIZES | COMMON | {"head_dim": 16, "rope_theta": 1000042.0, "rms_norm_eps": 1e-6}, 315),
    "glm4": ("Glm4", SIZES | COMMON | {"partial_rotary_factor": 0.5, "attention_bias": True}, 316),
    "deepseek_v3": ("DeepseekV3", DEEPSEEK | {
        "q_lora_rank": 12, "first_k_dense_replace": 1, "n_group": 4, "topk_group": 2, "routed_scaling_factor": 1.7,
        "norm_topk_prob": True, "rope_scaling": YARN | {"mscale": 1.0, "mscale_all_dim": 1.0},
        "max_position_embeddings": 256}, 318),
    "moonlight": ("DeepseekV3", DEEPSEEK | {  # queries are not compressed, one group; YaRN with two factors
        "q_lora_rank": None, "first_k_dense_replace": 0, "n_group": 1, "topk_group": 1, "routed_scaling_factor": 2.446,
        "norm_topk_prob": False, "rope_interleave": False, "rope_scaling": YARN | {"mscale": 0.7, "mscale_all_dim": 1.3},
        "max_position_embeddings": 256}, 319),
    "phi2": ("Phi", {key: value for key, value in LAYER_NORMED.items() if "key_value" not in key} | {
        "partial_rotary_factor": 0.5, "hidden_act": "gelu_new", "layer_norm_eps": 1e-5, "resid_pdrop": 0.0,
        "embd_pdrop": 0.0, "attention_dropout": 0.0, "qk_layernorm": False}, 320),
    "opt": ("OPT", {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "ffn_dim": 88,
                    "word_embed_proj_dim": 32, "vocab_size": 131, "max_position_embeddings": 32, "dropout": 0.0,
                    "activation_function": "relu", "do_layer_norm_before": True, "tie_word_embeddings": True}, 317),
}
# Keys of &moe that config.json does not say: the classes add no losses of the router. DeepSeek-V3's biases are updated.
ROUTER = {"router_aux_loss_coef": 0.0}
UPDATE_RATES = {"deepseek_v3": 0.001, "moonlight": 0.02}
TEXT = {"Gemma3": "Gemma3Text"}  # class of the configuration where it has another stem
MAJOR = int(transformers.__version__.split(".")[0])


@contextlib.contextmanager
def everything_in(dtype):
    """float32 means `dtype`, for code that asks for float32 by name."""
    before = torch.get_default_dtype()
    with mock.patch.multiple(torch, float32=dtype, float=dtype), \
            mock.patch.object(torch.Tensor, "float", lambda tensor: tensor.to(dtype)):
        torch.set_default_dtype(dtype)
        yield
    torch.set_default_dtype(before)


def config_class(name):
    return getattr(transformers, TEXT.get(name, name) + "Config")


def config_json(case) -> dict:
    """As a folder of the Hub has it."""
    name, values, _ = CASES[case]
    return {"architectures": [name + ("LMHeadModel" if name == "GPT2" else "ForCausalLM")],
            "model_type": config_class(name).model_type, **values}


def config_of(case):
    name, values, _ = CASES[case]
    values = dict(values)
    if MAJOR >= 5 and "rope_theta" in values:
        rope = values.pop("rope_scaling", None) or {"rope_type": "default"}
        values["rope_parameters"] = rope | {"rope_theta": values.pop("rope_theta")}
    return config_class(name)(
        **values, attn_implementation="eager", pad_token_id=None, bos_token_id=None, eos_token_id=None)


def to_theirs(stored, weights):
    if isinstance(stored, layouts.Constant):
        return torch.tensor(stored.value, dtype=torch.bfloat16)
    return torch.from_numpy(stored.pack(weights.__getitem__, 0, stored.shape[0]))


def build(case, sizes, weights, dtype):
    """In evaluation mode: nothing of it is random."""
    model = transformers.AutoModelForCausalLM.from_config(config_of(case), attn_implementation="eager").to(dtype).eval()
    state = {name: to_theirs(stored, weights).to(dtype) for name, stored in tensors_of(case, sizes).items()}
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected and set(missing) <= {"lm_head.weight"}, (missing, unexpected)
    assert missing == [] or sizes.tie_word_embeddings
    model.tie_weights()
    return model


def tensors_of(case, sizes):
    return layouts.stored_tensors(sizes, config_json(case)["model_type"])


def stacked(case, sizes, named):
    """Stacked name -> float64 array, of a dict of their names."""
    tensors = {full: stored for full, stored in tensors_of(case, sizes).items() if full in named}
    datasets = {part.dataset for stored in tensors.values() for part in stored.parts} | {
        name for stored in tensors.values() for name in getattr(stored, "datasets", ())}
    result = {name: np.zeros(shape) for name, shape in sizes.parameter_shapes().items() if name in datasets}
    for full, stored in tensors.items():
        stored.unpack(named[full].detach().double().numpy(), 0, result.__getitem__)
    return result


def is_one_dimensional(name, parameter):
    """Of an expert, where the class has one tensor of all of them."""
    return parameter.ndim == 1 or name.endswith("_bias")


class BiasUpdate:
    """Of routers that balance by a bias: after each step it moves against the load that the expert had."""

    def __init__(self, model, rate):
        self.rate, self.loads = rate, {}
        self.gates = {name: module for name, module in model.named_modules() if hasattr(module, "e_score_correction_bias")}
        for name, gate in self.gates.items():
            gate.register_forward_hook(lambda module, inputs, outputs, name=name: self.count(
                name, next(output for output in outputs if not output.is_floating_point())))

    def count(self, name, chosen):
        experts = len(self.gates[name].e_score_correction_bias)
        self.loads[name] = torch.bincount(chosen.flatten(), minlength=experts)

    def apply(self):
        for name, load in self.loads.items():
            bias = self.gates[name].e_score_correction_bias
            bias += self.rate * torch.sign(load.to(bias.dtype).mean() - load).to(bias.dtype)


def train(case, sizes, weights, tokens, dtype):
    model = build(case, sizes, weights, dtype)
    parameters = dict(model.named_parameters())
    optimizer = golden.adamw(parameters.values(), [is_one_dimensional(*item) for item in parameters.items()])
    balance = BiasUpdate(model, UPDATE_RATES.get(case, 0.0))
    losses, norms, first = [], [], None
    for step in range(golden.STEPS):
        inputs, targets = golden.batch(tokens, step)
        optimizer.zero_grad()
        loss = golden.loss_of(model(inputs).logits, targets)
        loss.backward()
        for parameter in parameters.values():  # of experts without a token
            parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        if first is None:
            first = golden.summary(stacked(case, sizes, {name: p.grad for name, p in parameters.items()}))
        norm = torch.nn.utils.clip_grad_norm_(parameters.values(), golden.CLIP, foreach=False)
        for group in optimizer.param_groups:
            group["lr"] = golden.learning_rate(step)
        optimizer.step()
        balance.apply()
        losses.append(float(loss.detach()))
        norms.append(float(norm))
    moments = {kind: golden.summary(stacked(case, sizes, {name: optimizer.state[p][kind] for name, p in parameters.items()}))
               for kind in ("exp_avg", "exp_avg_sq")}
    biases = {name: buffer for name, buffer in model.named_buffers() if name.endswith("e_score_correction_bias")}
    return {"losses": losses, "grad_norms": norms, "first_gradients": first,
            "parameters": golden.summary(stacked(case, sizes, parameters | biases)), **moments}


def generate(case, sizes, weights, tokens):
    """Greedy, by the package's own generate() with its cache of keys and values."""
    model = build(case, sizes, weights, torch.float64)
    prompt = torch.from_numpy(tokens[:golden.PROMPT])[None]
    with torch.no_grad():
        first = model(prompt).logits[0, -1].tolist()
        out = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=golden.NEW_TOKENS,
                             do_sample=False, return_dict_in_generate=True, output_scores=True)
    tops = [torch.topk(scores[0], 2).values for scores in out.scores]
    return {"prompt": prompt[0].tolist(), "tokens": out.sequences[0, golden.PROMPT:].tolist(),
            "top2_margins": [float(top[0] - top[1]) for top in tops], "first_logits": first}


def make(case):
    _, _, seed = CASES[case]
    sizes = hf.sizes_from_config(config_json(case), case)
    golden.SEEDS[case] = seed
    weights, tokens = golden.initial_weights(sizes, seed), golden.make_tokens(sizes.vocab_size, seed)
    folder = HERE / case
    folder.mkdir(exist_ok=True)
    rate = {"router_bias_update_rate": UPDATE_RATES[case]} if case in UPDATE_RATES else {}
    golden.write_inputs(folder, case, sizes, weights, tokens, ROUTER | rate)
    with everything_in(torch.float64):
        wide, continuation = train(case, sizes, weights, tokens, torch.float64), generate(case, sizes, weights, tokens)
    values = {"case": case, "torch": torch.__version__, "transformers": transformers.__version__,
              "config": config_json(case), "model": sizes.dense_values() | sizes.moe_values(), **golden.hyperparameters(),
              "fp64": wide, "fp32": train(case, sizes, weights, tokens, torch.float32)}
    compact_json.write(folder / "golden.json", values)
    compact_json.write(folder / "generate.json", continuation)
    a, b = np.array(wide["losses"]), np.array(values["fp32"]["losses"])
    print(f"{case}: loss {a[0]:.4f} -> {a[-1]:.4f}, float32 off by {np.max(np.abs(a - b) / a):.1e}, least margin "
          f"{min(continuation['top2_margins']):.1e}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*", default=[])
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    for case in parser.parse_args().cases or CASES:
        make(case)


if __name__ == "__main__":
    main()
