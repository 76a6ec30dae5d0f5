#!/usr/bin/env python3
"""Makes dropout.json: 20 AdamW steps of the gpt2 case (make_family_golden.py) with dropout.

    python3 tests/golden/make_dropout_golden.py        # with torch and transformers (4.57 or 5), numpy, h5py

The model is transformers' own class. Its modules of dropout, and torch.nn.functional.dropout of the probabilities, are
replaced by masks of the same probability, computed by the formula of doc/numerics.md from the seed, the number of the
sample, the position, the layer and the element. The places are the class's own: the embedding, attention's
probabilities, and the outputs of attention and of the MLP.
"""

import json
from functools import lru_cache
from unittest import mock

import compact_json
import make_family_golden as family
import make_golden as golden
import numpy as np
import torch
from philox import WORD, fnv1a, philox
from torch import nn

CASE, SEED = "gpt2", 1234  # run%seed of a deck
HIDDEN, ATTENTION = 0.1, 0.2
EMBEDDING_SITE, ATTENTION_SITE, MLP_SITE, PROBABILITIES = range(4)


def mixed(x):
    x = (x ^ x >> np.uint64(16)) * np.uint64(0x21F0AAAD) & np.uint64(WORD)
    x = (x ^ x >> np.uint64(15)) * np.uint64(0x735A2D97) & np.uint64(WORD)
    return x ^ x >> np.uint64(15)


@lru_cache(maxsize=None)
def row(rate, layer, site, sample, position, head, elements):
    """0 or 1 / (1 - p) of each element."""
    counter = [position, head, 4 * (layer + 1) + site, sample & WORD]
    a, b, *_ = philox(counter, [SEED & WORD ^ fnv1a("dropout"), SEED >> 32 ^ sample >> 32])
    threshold = int(rate * 2**32)
    bits = mixed((mixed(np.arange(elements, dtype=np.uint64) ^ np.uint64(a)) + np.uint64(b)) & np.uint64(WORD))
    return np.where(bits >= threshold, 1.0 / (1.0 - threshold * 2.0**-32), 0.0)


class Masked(nn.Module):
    """Instead of a module of dropout. samples: [number of the first one of the batch]."""

    def __init__(self, rate, layer, site, samples):
        super().__init__()
        self.place, self.samples = (rate, layer, site), samples

    def forward(self, x):
        count, elements = x.shape[0], x.shape[-1]
        heads = x.shape[1] if x.ndim == 4 else 1
        mask = np.stack([[[row(*self.place, self.samples[0] + s, i, head, elements) for i in range(x.shape[-2])]
                          for head in range(heads)] for s in range(count)])
        return x * torch.from_numpy(mask if x.ndim == 4 else mask[:, 0]).to(x.dtype)


def with_masks(model, samples):
    model.transformer.drop = Masked(HIDDEN, -1, EMBEDDING_SITE, samples)
    for layer, block in enumerate(model.transformer.h):
        block.attn.resid_dropout = Masked(HIDDEN, layer, ATTENTION_SITE, samples)
        block.mlp.dropout = Masked(HIDDEN, layer, MLP_SITE, samples)
    return model


def masks_of_probabilities(layers, samples):
    """Instead of torch.nn.functional.dropout, which each layer calls once."""
    masks = [Masked(ATTENTION, layer, PROBABILITIES, samples) for layer in range(layers)]
    calls = []

    def masked(x, **_):
        calls.append(x.shape)
        return masks[(len(calls) - 1) % layers](x)
    return masked


def train(sizes, weights, tokens):
    samples = [0]
    model = with_masks(family.build(CASE, sizes, weights, torch.float64), samples)
    parameters = dict(model.named_parameters())
    optimizer = golden.adamw(parameters.values(), [family.is_one_dimensional(*item) for item in parameters.items()])
    losses, norms = [], []
    for step in range(golden.STEPS):
        samples[0] = step * golden.GLOBAL_BATCH
        inputs, targets = golden.batch(tokens, step)
        optimizer.zero_grad()
        with mock.patch.object(nn.functional, "dropout", masks_of_probabilities(len(model.transformer.h), samples)):
            loss = golden.loss_of(model(inputs).logits, targets)
        loss.backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(parameters.values(), golden.CLIP, foreach=False)))
        for group in optimizer.param_groups:
            group["lr"] = golden.learning_rate(step)
        optimizer.step()
        losses.append(float(loss.detach()))
    return {"losses": losses, "grad_norms": norms,
            "parameters": golden.summary(family.stacked(CASE, sizes, parameters))}


def main():
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    _, _, seed = family.CASES[CASE]
    sizes = family.hf.sizes_from_config(family.config_json(CASE), CASE)
    weights, tokens = golden.initial_weights(sizes, seed), golden.make_tokens(sizes.vocab_size, seed)
    with family.everything_in(torch.float64):
        values = train(sizes, weights, tokens)
    without = json.loads((family.HERE / CASE / "golden.json").read_text())["fp64"]["losses"]
    compact_json.write(family.HERE / "dropout.json", {
        "case": CASE, "seed": SEED, "hidden_dropout": HIDDEN, "attention_dropout": ATTENTION, "fp64": values})
    print(f"loss {values['losses'][0]:.4f} -> {values['losses'][-1]:.4f}, "
          f"without dropout {without[0]:.4f} -> {without[-1]:.4f}")


if __name__ == "__main__":
    main()
