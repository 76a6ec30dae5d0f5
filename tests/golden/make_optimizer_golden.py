#!/usr/bin/env python3
"""Makes optimizers/<name>.json: the runs of make_golden.py with each optimizer, in float64.

    python3 tests/golden/make_optimizer_golden.py [optimizer ...]

Needs torch, numpy, h5py. The optimizers are written out plainly for one parameter at a time, after the code of their
authors:

    ademamix              apple/ml-ademamix, pytorch/ademamix.py
    lion                  google/automl, lion/lion_pytorch.py
    schedule_free_adamw   facebookresearch/schedule_free, adamw_schedulefree_reference.py
    sophia                Liuhong99/Sophia, sophia.py, and its README for the estimates; labels are drawn as in
                          kernels/vocab/drawn_labels.hpp

Weight decay applies to 2-D parameters. Keys of the files, besides those of golden.json:
    keys      of &optimizer, where they are not those of make_golden.py
    states    sum and L2 norm of every stacked tensor of each state after the last step
"""

import argparse
import math
from pathlib import Path

import numpy as np
import torch
from torch import nn

import compact_json
import make_golden as golden
from philox import fnv1a, philox

CASES = ("llama", "qwen3")
SEED = 1234  # run%seed of a deck
BETA3, ALPHA, BETA3_WARMUP, ALPHA_WARMUP = 0.99, 4.0, 12, 8


class Rule:
    """States of one parameter, and its update t = 1, 2, ..."""

    def __init__(self, p, **states):
        self.p, self.decay, self.states = p, golden.WEIGHT_DECAY if p.ndim > 1 else 0.0, states

    def step(self, t, lr):
        raise NotImplementedError


class AdEMAMix(Rule):
    keys = {"beta3": BETA3, "alpha": ALPHA, "beta3_warmup_steps": BETA3_WARMUP, "alpha_warmup_steps": ALPHA_WARMUP}

    def __init__(self, p):
        super().__init__(p, **{name: torch.zeros_like(p) for name in ("exp_avg_fast", "exp_avg_slow", "exp_avg_sq")})

    @staticmethod
    def alpha(t):
        return ALPHA * t / ALPHA_WARMUP if t < ALPHA_WARMUP else ALPHA

    @staticmethod
    def beta3(t):
        if t >= BETA3_WARMUP:
            return BETA3
        def half_life(beta):
            return math.log(0.5) / math.log(beta + 1e-8) - 1
        a = t / BETA3_WARMUP
        return 0.5 ** (1 / ((1 - a) * half_life(golden.BETA1) + a * half_life(BETA3) + 1))

    def step(self, t, lr):
        p, g, beta1, beta2, beta3 = self.p, self.p.grad, golden.BETA1, golden.BETA2, self.beta3(t)
        fast, slow, square = self.states.values()
        fast.mul_(beta1).add_(g, alpha=1 - beta1)
        slow.mul_(beta3).add_(g, alpha=1 - beta3)
        square.mul_(beta2).addcmul_(g, g, value=1 - beta2)
        denominator = (square.sqrt() / math.sqrt(1 - beta2**t)).add_(golden.EPS)
        update = (fast / (1 - beta1**t) + self.alpha(t) * slow) / denominator
        p.add_(update.add_(p, alpha=self.decay), alpha=-lr)


class Lion(Rule):
    keys = {"learning_rate": 1e-3}

    def __init__(self, p):
        super().__init__(p, exp_avg=torch.zeros_like(p))

    def step(self, t, lr):
        p, g, m = self.p, self.p.grad, self.states["exp_avg"]
        p.mul_(1 - lr * self.decay)
        p.add_(torch.sign(m * golden.BETA1 + g * (1 - golden.BETA1)), alpha=-lr)
        m.mul_(golden.BETA2).add_(g, alpha=1 - golden.BETA2)


class ScheduleFreeAdamW(Rule):
    keys = {"learning_rate": 3e-3}

    def __init__(self, p):
        super().__init__(p, x=p.detach().clone(), z=p.detach().clone(), exp_avg_sq=torch.zeros_like(p))
        self.lr_max, self.weight_sum = -1.0, 0.0

    def step(self, t, lr):
        y, g, beta1, beta2 = self.p, self.p.grad, golden.BETA1, golden.BETA2
        x, z, square = self.states.values()
        self.lr_max = max(lr, self.lr_max)
        self.weight_sum += self.lr_max**2
        share = self.lr_max**2 / self.weight_sum
        z.sub_(y, alpha=lr * self.decay)
        square.mul_(beta2).addcmul_(g, g, value=1 - beta2)
        z.addcdiv_(g, square.div(1 - beta2**t).sqrt_().add_(golden.EPS), value=-lr)
        x.mul_(1 - share).add_(z, alpha=share)
        y.copy_(x.mul(beta1).add_(z, alpha=1 - beta1))


class Sophia(Rule):
    keys = {"learning_rate": 3e-3, "rho": 0.02, "hessian_every": 3}

    def __init__(self, p):
        super().__init__(p, exp_avg=torch.zeros_like(p), hessian=torch.zeros_like(p))

    def step(self, t, lr):
        p, (m, h) = self.p, self.states.values()
        p.mul_(1 - lr * self.decay)
        m.mul_(golden.BETA1).add_(self.p.grad, alpha=1 - golden.BETA1)
        ratio = (m.abs() / (self.keys["rho"] * h + 1e-15)).clamp(None, 1)
        p.addcmul_(m.sign(), ratio, value=-lr)

    def curvature(self, targets):
        g = self.p.grad
        self.states["hessian"].mul_(golden.BETA2).addcmul_(g, g, value=(1 - golden.BETA2) * targets)


def drawn_labels(logits, first_sample):
    samples, length, vocabulary = logits.shape
    fours = -(-vocabulary // 4)
    counter = [np.arange(length)[None, :, None], np.arange(fours)[None, None, :], np.zeros(1, np.uint64),
               (first_sample + np.arange(samples))[:, None, None]]
    key = [np.uint64(word) for word in (SEED ^ fnv1a("drawn labels"), 0)]
    bits = philox([np.broadcast_to(c.astype(np.uint64), (samples, length, fours)) for c in counter], key)
    u = (np.stack(bits, axis=-1).reshape(samples, length, 4 * fours)[..., :vocabulary] + 0.5) * 2.0**-32
    return (logits.detach() - torch.log(-torch.log(torch.from_numpy(u)))).argmax(-1)


OPTIMIZERS = {"ademamix": AdEMAMix, "lion": Lion, "schedule_free_adamw": ScheduleFreeAdamW, "sophia": Sophia}


def train(case, kind):
    sizes = golden.CASES[case]
    tokens = golden.make_tokens(sizes.vocab_size, golden.SEEDS[case])
    model = golden.build(sizes, golden.initial_weights(sizes, golden.SEEDS[case]), torch.float64)
    rules = {name: kind(p) for name, p in model.named_parameters()}
    scale = kind.keys.get("learning_rate", golden.LEARNING_RATE) / golden.LEARNING_RATE
    losses, norms = [], []
    for step in range(golden.STEPS):
        inputs, targets = golden.batch(tokens, step)
        model.zero_grad()
        loss = golden.loss_of(model(inputs), targets)
        loss.backward()
        norms.append(float(nn.utils.clip_grad_norm_(list(model.parameters()), golden.CLIP, foreach=False)))
        losses.append(float(loss.detach()))
        with torch.no_grad():
            for rule in rules.values():
                rule.step(step + 1, scale * golden.learning_rate(step))
        if (step + 1) % kind.keys.get("hessian_every", golden.STEPS + 1) == 0:
            model.zero_grad()
            logits = model(inputs)
            golden.loss_of(logits, drawn_labels(logits, step * len(inputs))).backward()
            with torch.no_grad():
                for rule in rules.values():
                    rule.curvature(targets.numel())
    def of(values):
        return golden.summary(golden.stacked(sizes, values))
    states = {state: of({name: rule.states[state] for name, rule in rules.items()})
              for state in next(iter(rules.values())).states}
    return {"losses": losses, "grad_norms": norms, "parameters": of(dict(model.named_parameters())), "states": states}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("optimizers", nargs="*", default=list(OPTIMIZERS))
    torch.set_num_threads(1)
    for name in parser.parse_args().optimizers:
        kind = OPTIMIZERS[name]
        compact_json.write(Path(__file__).resolve().parent / "optimizers" / f"{name}.json", {
            "torch": torch.__version__, "keys": kind.keys, "fp64": {case: train(case, kind) for case in CASES}})


if __name__ == "__main__":
    main()
