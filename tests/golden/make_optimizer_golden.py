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
    soap                  nikhilvyas/SOAP, soap.py (a1e5535), for the 2-D parameters of layers; AdamW for the others.
                          What rounding errors decide there is chosen as in kernels/optim/eigenbasis.hpp

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
ROUNDING = 16 * torch.finfo(torch.float64).eps


class Rule:
    """States of one parameter, and its update t = 1, 2, ..."""

    @classmethod
    def of(cls, name, p):
        return cls(p)

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


class AdamW(Rule):
    def __init__(self, p):
        super().__init__(p, exp_avg=torch.zeros_like(p), exp_avg_sq=torch.zeros_like(p))

    def step(self, t, lr):
        p, g, (mean, square) = self.p, self.p.grad, self.states.values()
        p.mul_(1 - lr * self.decay)
        mean.lerp_(g, 1 - golden.BETA1)
        square.mul_(golden.BETA2).addcmul_(g, g, value=1 - golden.BETA2)
        denominator = (square.sqrt() / math.sqrt(1 - golden.BETA2**t)).add_(golden.EPS)
        p.addcdiv_(mean, denominator, value=-lr / (1 - golden.BETA1**t))


def completed(columns, null, size):
    """Orthonormal columns. Those that are null, or no more than rounding errors of matrices of this size beside the
    columns before them, are zeros, which Householder's QR completes to a basis. Diagonal of R: positive."""
    while True:
        q, r = torch.linalg.qr(torch.where(null, torch.zeros(()), columns))
        more = ~null & (r.diagonal().abs() <= ROUNDING * size)
        if not more.any():
            return q * torch.where(r.diagonal() < 0, -1.0, 1.0)
        null = null | more


class Soap(Rule):
    keys = {"learning_rate": 3e-3, "precondition_every": 4, "max_precondition_size": 64}

    @classmethod
    def of(cls, name, p):
        return cls(p) if p.ndim > 1 and ".layers." in name else AdamW(p)

    def __init__(self, p):
        super().__init__(p, exp_avg=torch.zeros_like(p), exp_avg_sq=torch.zeros_like(p))
        for axis, side in enumerate(("left", "right")):
            if p.shape[axis] <= self.keys["max_precondition_size"]:
                self.states[f"GG_{side}"] = p.new_zeros(p.shape[axis], p.shape[axis])
                self.states[f"Q_{side}"] = p.new_zeros(p.shape[axis], p.shape[axis])

    def rotated(self, x, back=False):
        for side, turn in (("left", False), ("right", True)):
            q = self.states.get(f"Q_{side}")
            if q is not None:
                x = x @ (q.T if back else q) if turn else (q if back else q.T) @ x
        return x

    def step(self, t, lr):
        p, g, beta1, beta2 = self.p, self.p.grad, golden.BETA1, golden.BETA2
        if t > 1:
            mean, square = self.states["exp_avg"], self.states["exp_avg_sq"]
            mean.mul_(beta1).add_(g, alpha=1 - beta1)
            turned = self.rotated(g)
            square.mul_(beta2).addcmul_(turned, turned, value=1 - beta2)
            rate = lr * math.sqrt(1 - beta2 ** (t - 1)) / (1 - beta1 ** (t - 1))
            p.sub_(self.rotated(self.rotated(mean) / (square.sqrt() + golden.EPS), back=True), alpha=rate)
            p.mul_(1 - lr * self.decay)
        for axis, (side, product) in enumerate((("left", g @ g.T), ("right", g.T @ g))):
            if f"GG_{side}" not in self.states:
                continue
            gg = self.states[f"GG_{side}"].lerp_(product, 1 - beta2)
            if t == 1:
                values, columns = torch.linalg.eigh(gg)
                columns = columns.flip(1)
                largest = columns.gather(0, columns.abs().argmax(0, keepdim=True))
                self.states[f"Q_{side}"] = completed(columns * largest.sign(), values.flip(0) <= ROUNDING * values[-1], 0.0)
            elif (t - 1) % self.keys["precondition_every"] == 0:
                self.turn(side, axis, gg)

    def turn(self, side, axis, gg):
        """One step of the power iteration."""
        q = self.states[f"Q_{side}"]
        values = (q * (gg @ q)).sum(0)
        largest = values.max()
        values = torch.where(values <= ROUNDING * largest, 0.0, values)
        values, order = values.sort(descending=True, stable=True)
        self.states["exp_avg_sq"] = self.states["exp_avg_sq"].index_select(axis, order)
        self.states[f"Q_{side}"] = completed((gg @ q)[:, order], values == 0, largest)


def drawn_labels(logits, first_sample):
    samples, length, vocabulary = logits.shape
    fours = -(-vocabulary // 4)
    counter = [np.arange(length)[None, :, None], np.arange(fours)[None, None, :], np.zeros(1, np.uint64),
               (first_sample + np.arange(samples))[:, None, None]]
    key = [np.uint64(word) for word in (SEED ^ fnv1a("drawn labels"), 0)]
    bits = philox([np.broadcast_to(c.astype(np.uint64), (samples, length, fours)) for c in counter], key)
    u = (np.stack(bits, axis=-1).reshape(samples, length, 4 * fours)[..., :vocabulary] + 0.5) * 2.0**-32
    return (logits.detach() - torch.log(-torch.log(torch.from_numpy(u)))).argmax(-1)


OPTIMIZERS = {"ademamix": AdEMAMix, "lion": Lion, "schedule_free_adamw": ScheduleFreeAdamW, "sophia": Sophia,
              "soap": Soap}


def train(case, kind):
    sizes = golden.CASES[case]
    tokens = golden.make_tokens(sizes.vocab_size, golden.SEEDS[case])
    model = golden.build(sizes, golden.initial_weights(sizes, golden.SEEDS[case]), torch.float64)
    rules = {name: kind.of(name, p) for name, p in model.named_parameters()}
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
    names = sorted({state for rule in rules.values() for state in rule.states} - {"Q_left", "Q_right"})
    states = {state: stacked(sizes, {name: rule.states[state] for name, rule in rules.items() if state in rule.states})
              for state in names}
    return {"losses": losses, "grad_norms": norms, "parameters": stacked(sizes, dict(model.named_parameters())),
            "states": states}


def stacked(sizes, values):
    """Summary of the stacks that the values, by Hugging Face's names, are layers of."""
    stacks = {}
    for name, shape in sizes.parameter_shapes().items():
        layers = [values.get(full) for full, _ in
                  golden.checkpoint_file.hugging_face_tensors(name, shape, sizes.layers_of(name))]
        if layers[0] is not None:
            stacks[name] = np.stack([x.detach().double().numpy() for x in layers])
    return golden.summary(stacks)


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
