#!/usr/bin/env python3
"""Training steps of PyTorch, for comparison: torch.compile, scaled_dot_product_attention, fused AdamW.

    pytorch_step.py <JSON file of nanotron_bench> [--steps 10] [--eager] [--json <file>]

Model, batch and optimizer are those of the deck that nanotron_bench measured and wrote to its file. Forward and backward
run in bf16 (autocast); weights, gradients and moments are fp32, as precision%compute = 'bf16' keeps them. On a GPU if
there is one, else on the CPU. Where the micro-batch does not fit, half of it is taken, and said.
"""
import argparse
import json
import re
import statistics
import sys
import time


def deck_of(path):
    """Keys of the resolved deck, in which every key has a value."""
    def value(text):
        if text.startswith("'"):
            return text.strip("'")
        if text.startswith("."):
            return text == ".true."
        return float(text) if re.search(r"[.e]", text) else int(text)

    with open(path, encoding="utf-8") as file:
        text = json.load(file)["deck"]
    return {key: value(found) for key, found in re.findall(r"^  (\w+) *= *('[^']*'|\S+)", text, re.MULTILINE)}


def check_model(deck):
    only = {"num_experts": 0, "normalization": "rms_norm", "position_embedding_type": "rope", "rope_type": "default",
            "hidden_act": "silu", "sliding_window": 0, "qk_norm": False, "o_proj_bias": False, "mlp_bias": False,
            "document_mask": "none", "recompute": "none", "parametrization": "standard"}
    other = [f"{key} = {deck[key]}" for key, needed in only.items() if deck[key] != needed]
    if other or deck["name"] != "adamw":
        sys.exit(f"no PyTorch model here for a deck with {', '.join(other) or deck['name']}")


try:
    import torch
    from torch import nn
    from torch.nn import functional as F
except ImportError as error:
    sys.exit(f"PyTorch is not in {sys.executable}: {error}")


def rotate(x, cos, sin):
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


class RmsNorm(nn.Module):
    def __init__(self, deck):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(deck["hidden_size"]))
        self.eps = deck["rms_norm_eps"]

    def forward(self, x):
        return F.rms_norm(x, self.weight.shape, self.weight.to(x.dtype), self.eps)


class Layer(nn.Module):
    def __init__(self, deck):
        super().__init__()
        h, f, d = deck["hidden_size"], deck["intermediate_size"], deck["head_dim"]
        self.heads, self.kv_heads, self.head_dim = deck["num_attention_heads"], deck["num_key_value_heads"], d
        self.norm1 = RmsNorm(deck)
        self.norm2 = RmsNorm(deck)
        self.qkv = nn.Linear(h, (self.heads + 2 * self.kv_heads) * d, bias=deck["qkv_bias"])
        self.out = nn.Linear(self.heads * d, h, bias=False)
        self.gate_up = nn.Linear(h, 2 * f, bias=False)
        self.down = nn.Linear(f, h, bias=False)

    def forward(self, x, cos, sin):
        b, s, _ = x.shape
        heads = self.qkv(self.norm1(x)).view(b, s, -1, self.head_dim).transpose(1, 2)
        q, k, v = heads.split([self.heads, self.kv_heads, self.kv_heads], dim=1)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.heads != self.kv_heads)
        x = x + self.out(a.transpose(1, 2).reshape(b, s, -1))
        gate, up = self.gate_up(self.norm2(x)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)


class Model(nn.Module):
    def __init__(self, deck):
        super().__init__()
        self.embed = nn.Embedding(deck["vocab_size"], deck["hidden_size"])
        self.layers = nn.ModuleList(Layer(deck) for _ in range(deck["num_hidden_layers"]))
        self.norm = RmsNorm(deck)
        self.head = nn.Linear(deck["hidden_size"], deck["vocab_size"], bias=False)
        if deck["tie_word_embeddings"]:
            self.head.weight = self.embed.weight
        d, s = deck["head_dim"], deck["sequence_length"]
        angle = torch.outer(torch.arange(s), deck["rope_theta"] ** (-torch.arange(0, d, 2) / d)).repeat(1, 2)
        self.register_buffer("cos", angle.cos().bfloat16(), persistent=False)
        self.register_buffer("sin", angle.sin().bfloat16(), persistent=False)
        for p in self.parameters():
            if p.dim() == 2:
                nn.init.normal_(p, std=deck["initializer_range"])

    def forward(self, tokens, targets):
        x = self.embed(tokens).to(torch.bfloat16)
        for layer in self.layers:
            x = layer(x, self.cos, self.sin)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1).float(), targets.flatten())


def measure(deck, steps, micro_batch, device, compiled):
    """Seconds of each step, after two that are not measured; the last loss."""
    torch.manual_seed(deck["seed"])
    with torch.device(device):
        model = Model(deck)
    groups = [{"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": deck["weight_decay"]},
              {"params": [p for p in model.parameters() if p.dim() <= 1], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=deck["learning_rate"], betas=(deck["beta1"], deck["beta2"]),
                                  eps=deck["eps"], fused=True)
    run = torch.compile(model) if compiled else model
    batch, length = deck["global_batch_size"], deck["sequence_length"]
    tokens = torch.randint(deck["vocab_size"], (batch, length + 1), device=device)
    micro_batches = tokens.split(micro_batch)

    def step():
        total = torch.zeros((), device=device)
        for part in micro_batches:
            with torch.autocast(device, dtype=torch.bfloat16):
                loss = run(part[:, :-1], part[:, 1:]) * (len(part) / batch)
            loss.backward()
            total += loss.detach()
        if deck["clip_grad_norm"] > 0:
            nn.utils.clip_grad_norm_(model.parameters(), deck["clip_grad_norm"])
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return total

    seconds = []
    for _ in range(steps + 2):
        if device == "cuda":
            torch.cuda.synchronize()
        begin = time.perf_counter()
        loss = step().item()
        seconds.append(time.perf_counter() - begin)
    return seconds[2:], loss, sum(p.numel() for p in model.parameters())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bench")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--eager", action="store_true", help="without torch.compile")
    parser.add_argument("--json")
    options = parser.parse_args()
    deck = deck_of(options.bench)
    check_model(deck)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    micro_batch = deck["micro_batch_size"]
    while True:
        try:
            seconds, loss, parameters = measure(deck, options.steps, micro_batch, device, not options.eager)
            break
        except torch.OutOfMemoryError:
            if micro_batch == 1:
                sys.exit("out of memory with one sequence at a time")
            micro_batch //= 2
            torch.cuda.empty_cache()
    median = statistics.median(seconds)
    program = f"PyTorch {torch.__version__}, {'eager' if options.eager else 'torch.compile'}, {device}"
    if micro_batch != deck["micro_batch_size"]:
        program += f", micro_batch_size {micro_batch} for lack of memory"
    result = {
        "program": program,
        "parameters": parameters,
        "loss": loss,
        "seconds": seconds,
        "ms_text": f"{1e3 * median:.1f} ({1e3 * min(seconds):.1f} - {1e3 * max(seconds):.1f})",
        "tokens_per_second": deck["global_batch_size"] * deck["sequence_length"] / median,
        "peak_gib": torch.cuda.max_memory_allocated() / 2**30 if device == "cuda" else None,
    }
    text = json.dumps(result, indent=2)
    print(text)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            file.write(text + "\n")


if __name__ == "__main__":
    main()
