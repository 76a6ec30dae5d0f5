#!/usr/bin/env python3
"""Makes the golden values of this folder with PyTorch: the same weights and tokens, 20 AdamW steps.

    python3 tests/golden/make_golden.py [--check-transformers] [case ...]

Needs torch, numpy, h5py (only to make the values; the tests that read them need none of it).
For each case it writes
    <case>/tokens.h5                       token file
    <case>/step_00000000/                  checkpoint with the initial weights (exact in float32)
    <case>/input.deck                      deck of the run; paths relative to the repository root
    <case>/golden.json                     hyperparameters and results, in float64 and in float32
    muon.json                              (--muon) the same runs with Muon, in float64
    <case>/generate.json                   greedy continuation by the initial weights (llama, qwen2_moe)

The model below is written out plainly in the convention of Hugging Face's Llama, Qwen2 and Qwen3;
--check-transformers compares its logits, loss and gradients with the package `transformers`.
Version 5.23.0 agrees to 1.5e-7 in the logits, 1.2e-9 in the loss and 7e-7 in the gradients, which
is what its float32 norms and rotary tables leave in a float64 model.
Mixtures of experts (Mixtral, Qwen2-MoE, Qwen3-MoE) train on the cross-entropy and the router's losses of
doc/numerics.md, per sequence; transformers are compared without the latter, which they average otherwise. The
same figures hold.
Conventions of golden.json:
    losses[t]       mean cross-entropy over the global batch of step t, before the update of step t
    load_balance, router_z   of step t, mean over the layers; without their factors
    later_losses[t]          mean loss of the layers that predict later tokens; without its factor
    grad_norms[t]   global L2 norm of the gradient before clipping
    clipping        g *= min(1, max_norm / (norm + 1e-6))      (torch.nn.utils.clip_grad_norm_)
    learning_rates  t < warmup: lr (t+1)/warmup; then min + (lr-min)(1 + cos(pi p))/2 with
                    p = (t - warmup)/(steps - warmup), min = min_lr_ratio lr
    parameters      sum and L2 norm of every stacked tensor after the last step
"""

import argparse
import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import compact_json

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "tools"))
from nanotron_tools import checkpoint as checkpoint_file  # noqa: E402
from nanotron_tools import token_file  # noqa: E402

STEPS, WARMUP, GLOBAL_BATCH, SEQUENCE = 20, 4, 8, 16
LEARNING_RATE, MIN_LR_RATIO = 1e-2, 0.1
BETA1, BETA2, EPS, WEIGHT_DECAY, CLIP = 0.9, 0.95, 1e-8, 0.1, 1.0
PROMPT, NEW_TOKENS = 8, 20

def of_sizes(layers: int, head_dim: int, **others: Any) -> checkpoint_file.ModelSizes:
    return checkpoint_file.ModelSizes(hidden_size=32, num_hidden_layers=layers, num_attention_heads=4, num_key_value_heads=2,
                                      head_dim=head_dim, intermediate_size=88, vocab_size=131, **others)


CASES = {
    "llama": of_sizes(2, 8, rms_norm_eps=1e-5, rope_theta=10000.0),
    "qwen2": of_sizes(2, 8, tie_word_embeddings=True, qkv_bias=True, rms_norm_eps=1e-6, rope_theta=1000000.0),
    "qwen3": of_sizes(3, 12, qk_norm=True, rms_norm_eps=1e-6, rope_theta=1000000.0),
}
CASES |= {
    "mixtral": replace(CASES["llama"], intermediate_size=64, num_experts=4, moe_intermediate_size=64),
    "qwen2_moe": replace(CASES["qwen2"], tie_word_embeddings=False, num_experts=6, num_experts_per_tok=3,
                         moe_intermediate_size=28, shared_expert_intermediate_size=44, norm_topk_prob=False),
    "qwen3_moe": replace(CASES["qwen3"], num_hidden_layers=2, num_experts=8, moe_intermediate_size=24),
}
SEEDS = {"llama": 11, "qwen2": 22, "qwen3": 33, "mixtral": 44, "qwen2_moe": 55, "qwen3_moe": 66}
# Layers that predict later tokens; a row of their own, so that the others stay as they are.
CASES |= {
    "later_tokens": replace(CASES["llama"], num_nextn_predict_layers=2),
    "later_tokens_moe": replace(CASES["mixtral"], tie_word_embeddings=True, num_nextn_predict_layers=1),
}
SEEDS |= {"later_tokens": 401, "later_tokens_moe": 402}
LATER = 0.4  # mtp_loss_coefficient
BALANCE, ROUTER_Z = 0.02, 0.001
ROUTER = {"router_aux_loss_coef": BALANCE, "router_z_loss_coef": ROUTER_Z}
DENSE = [case for case, sizes in CASES.items() if sizes.num_experts == sizes.num_nextn_predict_layers == 0]


class RMSNorm(nn.Module):
    def __init__(self, size, eps):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(size)), eps

    def forward(self, x):
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps))


def rotate(x, cos, sin):
    half = x.shape[-1] // 2
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), dim=-1) * sin


class Attention(nn.Module):
    def __init__(self, m):
        super().__init__()
        self.m = m
        rows, kv_rows = m.num_attention_heads * m.head_dim, m.num_key_value_heads * m.head_dim
        self.q_proj = nn.Linear(m.hidden_size, rows, bias=m.qkv_bias)
        self.k_proj = nn.Linear(m.hidden_size, kv_rows, bias=m.qkv_bias)
        self.v_proj = nn.Linear(m.hidden_size, kv_rows, bias=m.qkv_bias)
        self.o_proj = nn.Linear(rows, m.hidden_size, bias=False)
        if m.qk_norm:
            self.q_norm = RMSNorm(m.head_dim, m.rms_norm_eps)
            self.k_norm = RMSNorm(m.head_dim, m.rms_norm_eps)

    def forward(self, x, starts):
        """starts (batch, length): where the document of each position begins."""
        m, (batch, length, _) = self.m, x.shape
        q = self.q_proj(x).view(batch, length, m.num_attention_heads, m.head_dim)
        k = self.k_proj(x).view(batch, length, m.num_key_value_heads, m.head_dim)
        v = self.v_proj(x).view(batch, length, m.num_key_value_heads, m.head_dim)
        if m.qk_norm:
            q, k = self.q_norm(q), self.k_norm(k)
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        exponent = torch.arange(0, m.head_dim, 2, dtype=torch.float64) / m.head_dim
        places = torch.arange(length)
        angle = (places - starts).double()[:, None, :, None] * m.rope_theta**-exponent
        angle = torch.cat((angle, angle), dim=-1)
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        group = m.num_attention_heads // m.num_key_value_heads
        k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
        score = q @ k.transpose(2, 3) / math.sqrt(m.head_dim)
        future = torch.ones(length, length, dtype=torch.bool).triu(1)
        elsewhere = places < starts[:, None, :, None]
        weight = torch.softmax(score.masked_fill(future | elsewhere, float("-inf")), dim=-1)
        return self.o_proj((weight @ v).transpose(1, 2).reshape(batch, length, -1))


class MLP(nn.Module):
    def __init__(self, hidden, width):
        super().__init__()
        self.gate_proj = nn.Linear(hidden, width, bias=False)
        self.up_proj = nn.Linear(hidden, width, bias=False)
        self.down_proj = nn.Linear(width, hidden, bias=False)

    def forward(self, x):
        return self.down_proj(nn.functional.silu(self.gate_proj(x)) * self.up_proj(x))


class MoE(nn.Module):
    """Leaves (load-balancing loss, z loss) of its last input in `losses`, without their factors."""

    def __init__(self, m):
        super().__init__()
        self.m = m
        self.gate = nn.Linear(m.hidden_size, m.num_experts, bias=False)
        self.experts = nn.ModuleList(MLP(m.hidden_size, m.moe_intermediate_size) for _ in range(m.num_experts))
        if m.shared_expert_intermediate_size:
            self.shared_expert = MLP(m.hidden_size, m.shared_expert_intermediate_size)
            self.shared_expert_gate = nn.Linear(m.hidden_size, 1, bias=False)

    def forward(self, x):
        logits = self.gate(x)
        probabilities = torch.softmax(logits, dim=-1)
        weights, choices = torch.topk(probabilities, self.m.num_experts_per_tok, dim=-1)
        if self.m.norm_topk_prob:
            weights = weights / weights.sum(dim=-1, keepdim=True)
        chosen = nn.functional.one_hot(choices, self.m.num_experts).to(x.dtype)  # (batch, length, k, experts)
        weight_of = (chosen * weights[..., None]).sum(dim=2)
        y = sum(weight_of[..., e, None] * expert(x) for e, expert in enumerate(self.experts))
        if self.m.shared_expert_intermediate_size:
            y = y + torch.sigmoid(self.shared_expert_gate(x)) * self.shared_expert(x)
        share = chosen.mean(dim=(1, 2))  # of a sequence's choices
        balance = self.m.num_experts * (share * probabilities.mean(dim=1)).sum(dim=-1).mean()
        self.losses = (balance, torch.logsumexp(logits, dim=-1).square().mean())
        return y


class DecoderLayer(nn.Module):
    def __init__(self, m):
        super().__init__()
        self.self_attn = Attention(m)
        self.mlp = MoE(m) if m.num_experts else MLP(m.hidden_size, m.intermediate_size)
        self.input_layernorm = RMSNorm(m.hidden_size, m.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(m.hidden_size, m.rms_norm_eps)

    def forward(self, x, starts):
        x = x + self.self_attn(self.input_layernorm(x), starts)
        return x + self.mlp(self.post_attention_layernorm(x))


class LaterTokensLayer(DecoderLayer):
    """A layer that predicts a later token (DeepSeek-V3 technical report, section 2.2)."""

    def __init__(self, m):
        super().__init__(m)
        self.enorm, self.hnorm = (RMSNorm(m.hidden_size, m.rms_norm_eps) for _ in range(2))
        self.eh_proj = nn.Linear(2 * m.hidden_size, m.hidden_size, bias=False)
        self.shared_head = nn.ModuleDict({"norm": RMSNorm(m.hidden_size, m.rms_norm_eps)})

    def forward(self, hidden, embedded, starts):
        x = self.eh_proj(torch.cat((self.enorm(embedded), self.hnorm(hidden)), dim=-1))
        return self.shared_head["norm"](super().forward(x, starts))


class Backbone(nn.Module):
    def __init__(self, m):
        super().__init__()
        self.embed_tokens = nn.Embedding(m.vocab_size, m.hidden_size)
        self.layers = nn.ModuleList([DecoderLayer(m) for _ in range(m.num_hidden_layers)] +
                                    [LaterTokensLayer(m) for _ in range(m.num_nextn_predict_layers)])
        self.norm = RMSNorm(m.hidden_size, m.rms_norm_eps)
        self.appended = m.num_nextn_predict_layers

    def forward(self, tokens, starts):
        x = self.embed_tokens(tokens)
        for layer in self.layers[:len(self.layers) - self.appended]:
            x = layer(x, starts)
        return self.norm(x)


class CausalLM(nn.Module):
    def __init__(self, m):
        super().__init__()
        self.model = Backbone(m)
        self.lm_head = nn.Linear(m.hidden_size, m.vocab_size, bias=False)
        if m.tie_word_embeddings:
            self.lm_head.weight = self.model.embed_tokens.weight

    def forward(self, tokens, starts=None):
        starts = torch.zeros_like(tokens) if starts is None else starts
        return self.lm_head(self.model(tokens, starts))

    def later_loss(self, tokens, targets, starts):
        """Mean over the layers that predict later tokens of the sum of their losses, over the number of targets."""
        hidden, places, total = self.model(tokens, starts), torch.arange(tokens.shape[1]), 0.0
        if not self.model.appended:
            return torch.zeros(())
        for distance, layer in enumerate(self.model.layers[-self.model.appended:], 1):
            moved = (places + distance).clamp(max=len(places) - 1)
            known = ((places + distance < len(places)) & (starts[:, moved] == starts))[..., None]
            embedded = self.model.embed_tokens(tokens[:, moved]) * known
            hidden = layer(hidden, embedded, starts)
            losses = nn.functional.cross_entropy(self.lm_head(hidden).flatten(0, 1), targets[:, moved].flatten(),
                                                 reduction="none")
            total = total + (losses * known.flatten()).sum() / targets.numel()
        return total / self.model.appended

    def router_losses(self):
        """(load balance, z), summed over the layers; zeros for a dense model."""
        of_layers = [layer.mlp.losses for layer in self.model.layers if isinstance(layer.mlp, MoE)]
        return tuple(sum(values) for values in zip(*of_layers, strict=True)) if of_layers else (torch.zeros(()), torch.zeros(()))


def initial_weights(sizes, seed):
    """Stacked name -> float32 array. Wider than in practice, so that every term is felt."""
    generator = np.random.default_rng(seed)
    weights = {name: np.empty(shape, np.float32) for name, shape in sizes.parameter_shapes().items()}
    for name, index, shape in drawn_in_turn(sizes.parameter_shapes()):
        draw = generator.standard_normal(shape)
        if name.endswith("norm/weight"):
            value = 0.1 * draw + (sizes.norm_weight != "one_plus")
        elif name.endswith(("sinks", "alpha_p", "alpha_n")):
            value = 0.5 * draw
        elif name.endswith("bias"):
            value = 0.1 * draw
        else:
            value = 0.08 * draw
        weights[name][index] = value.astype(np.float32)
    return weights


def drawn_in_turn(shapes):
    """(name, index, shape) of what is drawn at a time: a dataset, and all of an expert before the next one."""
    experts = [name for name in shapes if "/experts/" in name]
    for name, shape in shapes.items():
        if name not in experts:
            yield name, (), shape
        elif name == experts[0]:
            yield from ((each, (expert,), shapes[each][1:]) for expert in range(shape[0]) for each in experts)


def make_tokens(vocab_size, seed):
    """A noisy Markov chain: something to learn, every token reachable."""
    generator = np.random.default_rng(1000 + seed)
    successor = generator.integers(0, vocab_size, size=(vocab_size, 2))
    count = STEPS * GLOBAL_BATCH * SEQUENCE + 1
    tokens = np.zeros(count, dtype=np.int64)
    for i in range(1, count):
        if generator.random() < 0.2:
            tokens[i] = generator.integers(0, vocab_size)
        else:
            tokens[i] = successor[tokens[i - 1], generator.integers(0, 2)]
    return tokens


def build(sizes, weights, dtype):
    model = CausalLM(sizes).to(dtype)
    state = {}
    for name, value in weights.items():
        for full, index in checkpoint_file.hugging_face_tensors(name, value.shape, sizes.layers_of(name)):
            state[full] = torch.from_numpy(value[index].copy()).to(dtype)
    if sizes.tie_word_embeddings:
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model.load_state_dict(state)
    return model


def stacked(sizes, named):
    """Stacked name -> float64 array of a dict of Hugging Face names."""
    result = {}
    for name, shape in sizes.parameter_shapes().items():
        result[name] = np.empty(shape)
        for full, index in checkpoint_file.hugging_face_tensors(name, shape, sizes.layers_of(name)):
            result[name][index] = named[full].detach().double().numpy()
    return result


def summary(arrays):
    """Of each tensor, of experts one by one."""
    def tensors():
        for name, a in arrays.items():
            if "/experts/" in name:
                yield from ((name.replace("/experts/", f"/experts/{expert}/"), of) for expert, of in enumerate(a))
            else:
                yield name, a
    return {name: {"sum": float(a.sum()), "l2": float(np.sqrt((a * a).sum()))} for name, a in tensors()}


def learning_rate(step):
    if step < WARMUP:
        return LEARNING_RATE * (step + 1) / WARMUP
    low = MIN_LR_RATIO * LEARNING_RATE
    progress = (step - WARMUP) / (STEPS - WARMUP)
    return low + (LEARNING_RATE - low) * 0.5 * (1.0 + math.cos(math.pi * progress))


def batch(tokens, step):
    start = step * GLOBAL_BATCH * SEQUENCE
    count = GLOBAL_BATCH * SEQUENCE
    window = torch.from_numpy(tokens[start:start + count + 1])
    return window[:-1].view(GLOBAL_BATCH, SEQUENCE), window[1:].view(GLOBAL_BATCH, SEQUENCE)


def loss_of(logits, targets):
    return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def document_starts(step, documents):
    """As batch(): the begin of each position's document in its sequence, 0 where that lies before it."""
    first = step * GLOBAL_BATCH * SEQUENCE
    places = np.arange(first, first + GLOBAL_BATCH * SEQUENCE)
    begins = np.concatenate(([0], documents))
    begin = begins[np.searchsorted(begins, places, side="right") - 1]
    sequence = (places - first) // SEQUENCE * SEQUENCE + first
    return torch.from_numpy(np.maximum(begin - sequence, 0)).view(GLOBAL_BATCH, SEQUENCE)


def adamw(parameters, flags=None):
    """flags: which of them are 1-D, where their numbers of dimensions do not say it."""
    parameters = list(parameters)
    flags = [p.ndim == 1 for p in parameters] if flags is None else flags
    return torch.optim.AdamW(
        [{"params": [p for p, flag in zip(parameters, flags, strict=True) if not flag], "weight_decay": WEIGHT_DECAY},
         {"params": [p for p, flag in zip(parameters, flags, strict=True) if flag], "weight_decay": 0.0}],
        lr=LEARNING_RATE, betas=(BETA1, BETA2), eps=EPS, foreach=False, fused=False)


def newton_schulz(grad, coefficients, steps, eps):
    """torch.optim's, but in the type of the gradient instead of bfloat16."""
    a, b, c = coefficients
    x = grad.T if grad.size(0) > grad.size(1) else grad
    x = x / x.norm().clamp(min=eps)
    for _ in range(steps):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if grad.size(0) > grad.size(1) else x


class MuonAndAdamw:
    """torch.optim.Muon for the matrices of the layers, AdamW for the rest."""

    def __init__(self, model):
        torch.optim._muon._zeropower_via_newtonschulz = newton_schulz
        hidden = [p for name, p in model.named_parameters() if "layers" in name and p.ndim > 1]
        ids = {id(p) for p in hidden}
        self.muon = torch.optim.Muon(hidden, lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY, momentum=0.95,
                                     nesterov=True, ns_steps=5, adjust_lr_fn="match_rms_adamw")
        self.adamw = adamw([p for p in model.parameters() if id(p) not in ids])

    @property
    def param_groups(self):
        return self.muon.param_groups + self.adamw.param_groups

    @property
    def state(self):
        return self.muon.state | self.adamw.state

    def zero_grad(self):
        self.muon.zero_grad()
        self.adamw.zero_grad()

    def step(self):
        self.muon.step()
        self.adamw.step()


def train(sizes, weights, tokens, dtype, documents=(), muon=False):
    model = build(sizes, weights, dtype)
    parameters = list(model.parameters())
    optimizer = MuonAndAdamw(model) if muon else adamw(parameters)
    losses, norms, first, balances, squares, laters = [], [], None, [], [], []
    layers = sizes.num_hidden_layers + sizes.num_nextn_predict_layers
    for step in range(STEPS):
        inputs, targets = batch(tokens, step)
        optimizer.zero_grad()
        starts = document_starts(step, documents)
        loss = loss_of(model(inputs, starts), targets)
        later = model.later_loss(inputs, targets, starts)
        balance, z = model.router_losses()
        (loss + BALANCE * balance + ROUTER_Z * z + LATER * later).backward()
        balances.append(float(balance.detach()) / layers)
        squares.append(float(z.detach()) / layers)
        laters.append(float(later.detach()))
        if first is None:
            grads = {name: p.grad for name, p in model.named_parameters()}
            first = summary(stacked(sizes, grads))
        norm = nn.utils.clip_grad_norm_(parameters, CLIP, foreach=False)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step)
        optimizer.step()
        losses.append(float(loss.detach()))
        norms.append(float(norm))
    named = dict(model.named_parameters())
    if muon:
        buffers = {name: optimizer.state[p].get("momentum_buffer", torch.zeros(1)) for name, p in named.items()}
        momentum = summary(stacked(sizes, buffers))
        return {"losses": losses, "grad_norms": norms, "parameters": summary(stacked(sizes, named)),
                "momentum": {name: value for name, value in momentum.items() if name.endswith("proj/weight")}}
    moments = {}
    for kind in ("exp_avg", "exp_avg_sq"):
        moments[kind] = summary(stacked(
            sizes, {name: optimizer.state[p][kind] for name, p in named.items()}))
    router = {"load_balance": balances, "router_z": squares} if sizes.num_experts else {}
    later = {"later_losses": laters} if sizes.num_nextn_predict_layers else {}
    return {"losses": losses, "grad_norms": norms, **router, **later, "first_gradients": first,
            "parameters": summary(stacked(sizes, named)), **moments}


def write_inputs(folder, case, sizes, weights, tokens, router=ROUTER):
    entropy = token_file.unigram_entropy(np.bincount(tokens, minlength=sizes.vocab_size))
    with checkpoint_file.h5py.File(folder / "tokens.h5", "w", libver=("earliest", "v110")) as file:
        file.create_dataset("tokens", data=tokens, dtype=token_file.token_dtype(sizes.vocab_size))
        file.create_dataset("documents", data=[0], dtype="<u8")
        token_file.write_token_attributes(file, vocab_size=sizes.vocab_size, special={}, tokenizer="none",
                                          tokenizer_sha256=None, entropy=entropy,
                                          provenance={"program": "tests/golden/make_golden.py"})
    with checkpoint_file.CheckpointWriter(folder / "step_00000000", sizes, seed=SEEDS[case],
                             provenance={"program": "tests/golden/make_golden.py"}) as writer:
        for name, value in weights.items():
            writer.dataset(name)[...] = value
        writer.commit()
    (folder / "input.deck").write_text(deck(case, sizes, router), encoding="utf-8")


def deck_groups(sizes, router):
    groups = sizes.deck_group()
    factors = "".join(f"  {key:<20} = {value}\n" for key, value in router.items())
    return groups[:-2] + factors + "/\n" if sizes.num_experts else groups


def deck(case, sizes, router):
    return f"""! Golden run '{case}': tests/golden/{case}/golden.json has PyTorch's numbers for it.
! Paths are relative to the repository root. Made by tests/golden/make_golden.py.
&run
  title      = 'golden {case}'
  steps      = {STEPS}
  output_dir = 'run-golden-{case}'
  log_every  = 1
/
{deck_groups(sizes, router)}&parallel
  dp = 0
  tp = 1
/
&optimizer
  name           = 'adamw'
  learning_rate  = {LEARNING_RATE}
  beta1          = {BETA1}
  beta2          = {BETA2}
  eps            = {EPS}
  weight_decay   = {WEIGHT_DECAY}
  clip_grad_norm = {CLIP}
{f"  mtp_loss_coefficient = {LATER}" + chr(10) if sizes.num_nextn_predict_layers else ""}/
&schedule
  kind         = 'cosine'
  warmup_steps = {WARMUP}
  min_lr_ratio = {MIN_LR_RATIO}
/
&data
  path              = 'tests/golden/{case}/tokens.h5'
  sequence_length   = {SEQUENCE}
  global_batch_size = {GLOBAL_BATCH}
  micro_batch_size  = 1
  shuffle           = 'none'
/
&precision
  compute = 'fp64'
/
&checkpoint
  resume = 'tests/golden/{case}/step_00000000'
/
"""


def generate(sizes, weights, tokens):
    """Greedy continuation in float64, without a cache."""
    model = build(sizes, weights, torch.float64)
    sequence, margins, first_logits = tokens[:PROMPT].tolist(), [], None
    with torch.no_grad():
        for _ in range(NEW_TOKENS):
            logits = model(torch.tensor([sequence]))[0, -1]
            first_logits = logits.tolist() if first_logits is None else first_logits
            top = torch.topk(logits, 2)
            margins.append(float(top.values[0] - top.values[1]))
            sequence.append(int(top.indices[0]))
    return {"prompt": sequence[:PROMPT], "tokens": sequence[PROMPT:], "top2_margins": margins,
            "first_logits": first_logits}


def fused_experts(named, sizes):
    """The tensors of experts as transformers has them in memory: stacked, gate and up in one."""
    if not sizes.num_experts:
        return named
    result = {name: value for name, value in named.items() if ".experts." not in name}
    for layer in range(sizes.num_hidden_layers):
        prefix = f"model.layers.{layer}.mlp.experts."
        of = [[named[f"{prefix}{e}.{kind}_proj.weight"] for kind in ("gate", "up", "down")]
              for e in range(sizes.num_experts)]
        result[prefix + "gate_up_proj"] = torch.stack([torch.cat((gate, up)) for gate, up, _ in of])
        result[prefix + "down_proj"] = torch.stack([down for _, _, down in of])
    return result


def check_transformers(case, sizes, weights, tokens):
    """Largest relative difference of logits, loss and gradients from the package's model."""
    import transformers

    kind = {"llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3", "mixtral": "Mixtral", "qwen2_moe": "Qwen2Moe",
            "qwen3_moe": "Qwen3Moe"}[case]
    experts = dict(sizes.moe_values(), num_local_experts=sizes.num_experts, output_router_logits=False) \
        if sizes.num_experts else {}
    config = getattr(transformers, kind + "Config")(
        hidden_size=sizes.hidden_size, num_hidden_layers=sizes.num_hidden_layers,
        num_attention_heads=sizes.num_attention_heads, head_dim=sizes.head_dim,
        num_key_value_heads=sizes.num_key_value_heads, vocab_size=sizes.vocab_size,
        intermediate_size=sizes.intermediate_size, rms_norm_eps=sizes.rms_norm_eps,
        rope_theta=sizes.rope_theta, tie_word_embeddings=sizes.tie_word_embeddings,
        attn_implementation="eager", experts_implementation="eager",
        pad_token_id=None, bos_token_id=None, eos_token_id=None, **experts)
    theirs = getattr(transformers, kind + "ForCausalLM")(config).double()
    ours = build(sizes, weights, torch.float64)
    theirs.load_state_dict(fused_experts(ours.state_dict(), sizes))
    inputs, targets = batch(tokens, 0)
    results = []
    for model in (ours, theirs):
        logits = model(inputs)
        logits = getattr(logits, "logits", logits)
        loss = loss_of(logits, targets)
        loss.backward()
        grads = {name: p.grad for name, p in model.named_parameters()}
        if model is ours:
            grads = fused_experts(grads, sizes)
        results.append((logits.detach(), loss.detach(), grads))
    (a, loss_a, grads_a), (b, loss_b, grads_b) = results
    worst = max(float((grads_a[n] - grads_b[n]).norm() / grads_a[n].norm()) for n in grads_a)
    print(f"{case}: transformers {transformers.__version__}: logits "
          f"{float((a - b).norm() / a.norm()):.1e}, "
          f"loss {float(abs(loss_a - loss_b) / loss_a):.1e}, gradients {worst:.1e} (relative)")


def hyperparameters():
    """Of golden.json."""
    return {"steps": STEPS, "sequence_length": SEQUENCE, "global_batch_size": GLOBAL_BATCH,
            "optimizer": {"learning_rate": LEARNING_RATE, "beta1": BETA1, "beta2": BETA2,
                          "eps": EPS, "weight_decay": WEIGHT_DECAY, "clip_grad_norm": CLIP},
            "schedule": {"kind": "cosine", "warmup_steps": WARMUP, "min_lr_ratio": MIN_LR_RATIO},
            "learning_rates": [learning_rate(step) for step in range(STEPS)]}


def write_documents():
    """documents.json: the qwen3 case with packed documents, a block-diagonal mask and positions of their own."""
    sizes, seed = CASES["qwen3"], SEEDS["qwen3"]
    tokens = make_tokens(sizes.vocab_size, seed)
    documents = np.cumsum(np.random.default_rng(4).integers(1, 3 * SEQUENCE // 2, size=len(tokens)))
    documents = documents[documents < len(tokens)]
    numbers = train(sizes, initial_weights(sizes, seed), tokens, torch.float64, documents)
    compact_json.write(HERE / "documents.json", {
        "case": "qwen3", "torch": torch.__version__, "documents": documents.tolist(), "fp64": numbers})


def write_muon():
    """muon.json: every case with Muon."""
    numbers = {}
    for case in DENSE:
        sizes = CASES[case]
        weights, tokens = initial_weights(sizes, SEEDS[case]), make_tokens(sizes.vocab_size, SEEDS[case])
        numbers[case] = train(sizes, weights, tokens, torch.float64, muon=True)
    compact_json.write(HERE / "muon.json", {"torch": torch.__version__, "fp64": numbers})


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*", default=list(CASES))
    parser.add_argument("--check-transformers", action="store_true",
                        help="compare with the package instead of writing anything")
    parser.add_argument("--documents", action="store_true", help="write documents.json alone")
    parser.add_argument("--muon", action="store_true", help="write muon.json alone")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    if options.documents:
        return write_documents()
    if options.muon:
        return write_muon()
    for case in options.cases or list(CASES):
        sizes = CASES[case]
        weights = initial_weights(sizes, SEEDS[case])
        tokens = make_tokens(sizes.vocab_size, SEEDS[case])
        if options.check_transformers:
            check_transformers(case, sizes, weights, tokens)
            continue
        folder = HERE / case
        folder.mkdir(exist_ok=True)
        write_inputs(folder, case, sizes, weights, tokens)
        golden = {
            "case": case,
            "torch": torch.__version__,
            "model": sizes.dense_values() | sizes.moe_values(),
            **hyperparameters(),
            "fp64": train(sizes, weights, tokens, torch.float64),
            "fp32": train(sizes, weights, tokens, torch.float32),
        }
        compact_json.write(folder / "golden.json", golden)
        if case in ("llama", "qwen2_moe"):
            compact_json.write(folder / "generate.json", generate(sizes, weights, tokens))
        a, b = np.array(golden["fp64"]["losses"]), np.array(golden["fp32"]["losses"])
        print(f"{case}: loss {a[0]:.4f} -> {a[-1]:.4f}, grad norm "
              f"{min(golden['fp64']['grad_norms']):.2f}..{max(golden['fp64']['grad_norms']):.2f}, "
              f"float32 off by {np.max(np.abs(a - b) / a):.1e}")


if __name__ == "__main__":
    main()
