#!/usr/bin/env python3
"""Makes qk_clip.json: the runs of make_golden.py with Muon or AdamW and QK-clip, in float64.

    python3 tests/golden/make_qk_clip_golden.py

Needs torch, transformers 4.57, numpy, h5py. Models with latent attention are those of make_family_golden.py. QK-clip is
written out after Kimi K2 (arXiv:2507.20534, section 2.1) and, for key heads that several query heads share and for
biases, after NVIDIA/Megatron-LM (core/transformer/attention.py and multi_latent_attention.py, clip_qk, at commit
d98e8a64ddf3).
Keys of the file, besides those of golden.json:
    max_scores      of each step, over layers and heads, before its update
    clipped_heads   query heads of each step whose largest score is above qk_clip
"""

import math
from pathlib import Path
from unittest import mock

import torch
from torch import nn
from transformers.models.deepseek_v3 import modeling_deepseek_v3

import compact_json
import make_family_golden as family
import make_golden as golden
from nanotron_tools import hf_config as hf

CASES = {"llama": (True, 0.5), "qwen2": (True, 0.5), "qwen2 adamw": (False, 0.5)}  # Muon or AdamW, qk_clip
LATENT = {"deepseek_v3": 0.4, "moonlight": 0.4}  # with AdamW


def max_scores(attention, x, starts):
    """Of each query head, over the keys that each query sees."""
    m, (batch, length, _) = attention.m, x.shape
    q = attention.q_proj(x).view(batch, length, m.num_attention_heads, m.head_dim).transpose(1, 2)
    k = attention.k_proj(x).view(batch, length, m.num_key_value_heads, m.head_dim).transpose(1, 2)
    places = torch.arange(length)
    exponent = torch.arange(0, m.head_dim, 2, dtype=torch.float64) / m.head_dim
    angle = (places - starts).double()[:, None, :, None] * m.rope_theta**-exponent
    angle = torch.cat((angle, angle), dim=-1)
    q, k = (golden.rotate(t, angle.cos(), angle.sin()) for t in (q, k))
    k = k.repeat_interleave(m.num_attention_heads // m.num_key_value_heads, dim=1)
    score = q @ k.transpose(2, 3) / math.sqrt(m.head_dim)
    future = torch.ones(length, length, dtype=torch.bool).triu(1)
    return score.masked_fill(future, float("-inf")).amax(dim=(0, 2, 3))


def clip(attention, scores, tau):
    m = attention.m
    of_keys = scores.view(m.num_key_value_heads, -1).amax(dim=1)
    gamma = torch.where(of_keys > tau, tau / of_keys, torch.ones_like(of_keys))
    for projection in (attention.q_proj, attention.k_proj):
        rows = gamma.repeat_interleave(len(projection.weight) // m.num_key_value_heads)
        projection.weight.mul_(rows.sqrt()[:, None])


def train(case, is_muon, tau):
    sizes = golden.CASES[case]
    tokens = golden.make_tokens(sizes.vocab_size, golden.SEEDS[case])
    model = golden.build(sizes, golden.initial_weights(sizes, golden.SEEDS[case]), torch.float64)
    parameters = list(model.parameters())
    optimizer = golden.MuonAndAdamw(model) if is_muon else golden.adamw(parameters)
    attentions = [module for module in model.modules() if isinstance(module, golden.Attention)]
    inputs_of = {}
    for attention in attentions:
        attention.register_forward_pre_hook(lambda module, args: inputs_of.update({module: args}))
    result = {"losses": [], "grad_norms": [], "max_scores": [], "clipped_heads": []}
    for step in range(golden.STEPS):
        inputs, targets = golden.batch(tokens, step)
        optimizer.zero_grad()
        loss = golden.loss_of(model(inputs, golden.document_starts(step, ())), targets)
        loss.backward()
        with torch.no_grad():
            scores = [max_scores(attention, *inputs_of[attention]) for attention in attentions]
        norm = nn.utils.clip_grad_norm_(parameters, golden.CLIP, foreach=False)
        for group in optimizer.param_groups:
            group["lr"] = golden.learning_rate(step)
        optimizer.step()
        with torch.no_grad():
            for attention, of_heads in zip(attentions, scores, strict=True):
                clip(attention, of_heads, tau)
        result["losses"].append(float(loss.detach()))
        result["grad_norms"].append(float(norm))
        result["max_scores"].append(float(torch.stack(scores).max()))
        result["clipped_heads"].append(int((torch.stack(scores) > tau).sum()))
    return result | {"parameters": golden.summary(golden.stacked(sizes, dict(model.named_parameters())))}


def clip_latent(attention, scores, tau):
    gamma = torch.where(scores > tau, tau / scores, torch.ones_like(scores))[:, None, None]
    config, heads = attention.config, len(scores)
    nope = config.qk_nope_head_dim
    projection = attention.q_proj if config.q_lora_rank is None else attention.q_b_proj
    query = projection.weight.view(heads, nope + config.qk_rope_head_dim, -1)
    key = attention.kv_b_proj.weight.view(heads, nope + config.v_head_dim, -1)
    query[:, :nope] *= gamma.sqrt()
    query[:, nope:] *= gamma
    key[:, :nope] *= gamma.sqrt()


def train_latent(case, tau):
    """The run of make_family_golden.py, with the scores that the class of transformers computes."""
    scores, result = {}, {"max_scores": [], "clipped_heads": []}
    forward = modeling_deepseek_v3.eager_attention_forward

    def record(module, query, key, value, attention_mask, scaling, **others):
        with torch.no_grad():
            scores[module] = (query @ key.transpose(2, 3) * scaling + attention_mask).amax(dim=(0, 2, 3))
        return forward(module, query, key, value, attention_mask, scaling, **others)

    class AfterUpdate(family.BiasUpdate):
        @torch.no_grad()
        def apply(self):
            super().apply()
            for attention, of_heads in scores.items():
                clip_latent(attention, of_heads, tau)
            of_step = torch.stack(list(scores.values()))
            result["max_scores"].append(float(of_step.max()))
            result["clipped_heads"].append(int((of_step > tau).sum()))

    sizes = hf.sizes_from_config(family.config_json(case), case)
    seed = family.CASES[case][2]
    weights, tokens = golden.initial_weights(sizes, seed), golden.make_tokens(sizes.vocab_size, seed)
    with mock.patch.object(family, "BiasUpdate", AfterUpdate), family.everything_in(torch.float64), \
            mock.patch.object(modeling_deepseek_v3, "eager_attention_forward", record):
        trained = family.train(case, sizes, weights, tokens, torch.float64)
    return {key: trained[key] for key in ("losses", "grad_norms", "parameters")} | result


def main():
    torch.set_num_threads(1)
    runs = []
    for name, (is_muon, tau) in CASES.items():
        case = name.split()[0]
        runs.append({"model": case, "optimizer": "muon" if is_muon else "adamw", "qk_clip": tau,
                     **train(case, is_muon, tau)})
    for case, tau in LATENT.items():
        runs.append({"model": case, "optimizer": "adamw", "qk_clip": tau, **train_latent(case, tau)})
    compact_json.write(Path(__file__).resolve().parent / "qk_clip.json", {"torch": torch.__version__, "fp64": runs})


if __name__ == "__main__":
    main()
