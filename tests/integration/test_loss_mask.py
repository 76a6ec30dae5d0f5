#!/usr/bin/env python3
# ranks: 2
# timeout: 200
"""Losses of token files with /loss_mask against a Llama in numpy, in double precision: of training steps on several grids, of
validation and of --evaluate.

    test_loss_mask.py <folder of the programs>
"""
import re

import h5py
import numpy as np
import xxhash

from runs import Case, check, root

LENGTH, BATCH, HEADS, KV, EPS, THETA = 16, 8, 4, 2, 1e-5, 10000.0
WEIGHTS = root / "tests/golden/llama/step_00000000"
GRIDS = {"one rank": (1, "parallel.tp=1"), "dp": (2, "parallel.dp=2", "parallel.tp=1"), "tp": (2, "parallel.tp=2"),
         "pp": (2, "parallel.pp=2", "parallel.tp=1"), "cp": (2, "parallel.cp=2", "parallel.tp=1"),
         "ZeRO-3": (2, "parallel.dp=2", "parallel.tp=1", "parallel.zero_stage=3")}
STAGES = {stage: (2, "parallel.dp=2", "parallel.tp=1", f"parallel.zero_stage={stage}") for stage in (0, 1, 2, 3)}


def rms_norm(x, weight):
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + EPS) * weight


def rotate(x):
    """x (heads, positions, head_dim): the rotate-half convention."""
    half = x.shape[-1] // 2
    angle = np.outer(np.arange(x.shape[1]), THETA ** (-np.arange(half) / half))
    cos, sin = np.cos(angle), np.sin(angle)
    a, b = x[..., :half], x[..., half:]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


def attention(x, q, k, v, o):
    split = lambda w, heads: (x @ w.T).reshape(len(x), heads, -1).transpose(1, 0, 2)  # noqa: E731
    query, key, value = rotate(split(q, HEADS)), rotate(split(k, KV)), split(v, KV)
    key, value = (np.repeat(t, HEADS // KV, axis=0) for t in (key, value))
    scores = query @ key.transpose(0, 2, 1) / np.sqrt(query.shape[-1])
    scores[:, np.triu(np.ones(scores.shape[1:], bool), 1)] = -np.inf
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    return (weights @ value).transpose(1, 0, 2).reshape(len(x), -1) @ o.T


def losses(weights, inputs, targets):
    """Of each position, in nats."""
    x = weights["model/embed_tokens/weight"][inputs]
    for i in range(2):
        w = lambda name: weights[f"model/layers/{name}/weight"][i]  # noqa: B023, E731
        normed = rms_norm(x, w("input_layernorm"))
        x = x + attention(normed, *(w(f"self_attn/{p}_proj") for p in "qkvo"))
        normed = rms_norm(x, w("post_attention_layernorm"))
        gate = normed @ w("mlp/gate_proj").T
        x = x + (gate / (1 + np.exp(-gate)) * (normed @ w("mlp/up_proj").T)) @ w("mlp/down_proj").T
    logits = rms_norm(x, weights["model/norm/weight"]) @ weights["lm_head/weight"].T
    top = logits.max(axis=-1, keepdims=True)
    return (top + np.log(np.exp(logits - top).sum(axis=-1, keepdims=True)))[:, 0] - logits[np.arange(len(x)), targets]


def mean_loss(weights, tokens, mask, sequences):
    """Over the targets of these sequences that count; and how many there are."""
    total, count = 0.0, 0
    for k in sequences:
        at = slice(k * LENGTH + 1, (k + 1) * LENGTH + 1)
        total += losses(weights, tokens[k * LENGTH:(k + 1) * LENGTH], tokens[at])[mask[at] == 1].sum()
        count += int(mask[at].sum())
    return total / count, count


def without_goldfish(tokens, mask, k, h):
    """The mask of data%goldfish_k and data%goldfish_h: only training, in sequences of LENGTH tokens."""
    counts = mask.copy()
    for target in range(1, tokens.size):
        position = (target - 1) % LENGTH
        if position < h - 1:
            continue
        before = tokens[target - h:target].astype("<i4").tobytes()
        if xxhash.xxh3_64_intdigest(before) % k == 0:
            counts[target] = 0
    return counts


def write(path, seed, count):
    random = np.random.default_rng(seed)
    tokens, mask = random.integers(0, 131, count), (random.random(count) < 0.3).astype(np.uint8)
    mask[LENGTH:3 * LENGTH] = 0  # a sequence and more of which nothing counts
    with h5py.File(path, "w") as file:
        file["tokens"] = tokens.astype(np.uint16)
        file["loss_mask"] = mask
        file.attrs["vocab_size"] = 131
    return tokens, mask


def nothing_counts():
    """In the second batch of three, and in the validation: the same run at every stage of ZeRO, and no update by it."""
    with Case("nothing_counts", steps=3, data="validation_every = 1 validation_batches = 1") as case:
        for name in ("tokens", "valid"):
            tokens = np.random.default_rng(3).integers(0, 131, 4 * BATCH * LENGTH + 6)  # the last five are of no sequence
            mask = np.ones(tokens.size, np.uint8)
            mask[slice(0, -1) if name == "valid" else slice(BATCH * LENGTH + 1, 2 * BATCH * LENGTH + 1)] = 0
            with h5py.File(case.folder / f"{name}.h5", "w") as file:
                file["tokens"], file["loss_mask"] = tokens.astype(np.uint16), mask
                file.attrs["vocab_size"] = 131
        keys = [f"data.path={case.folder}/tokens.h5", f"data.validation_path={case.folder}/valid.h5", "data.shuffle=none",
                "precision.compute=fp64", "checkpoint.resume=none"]
        seen = {}
        for stage, (ranks, *parallel) in STAGES.items():
            code, text = case.run(*(word for key in (*keys, *parallel) for word in ("--set", key)), ranks=ranks)
            check(code == 0, f"ZeRO {stage}: the run ends well", text)
            check(text.count(f"step 2: no target of global samples {BATCH} to {2 * BATCH - 1} counts in the loss") == 1,
                  f"ZeRO {stage}: the skipped update is said", text)
            check(text.count("validation set 1: no target of its samples counts in the loss") == 3,
                  f"ZeRO {stage}: each validation without a target is said", text)
            with h5py.File(case.out / "metrics.h5") as file:
                bad = {name: file[f"bad_steps/{name}"][()].tolist() for name in ("step", "first_sample", "samples", "next_step")}
                check(bad == {"step": [2], "first_sample": [BATCH], "samples": [BATCH], "next_step": [3]},
                      f"ZeRO {stage}: the bad step is on record", str(bad))
                check(np.isnan(file["validation_loss"][()]).tolist() == [True] * 3, f"ZeRO {stage}: validation losses", text)
                check(np.isnan(file["loss"][()]).tolist() == [False, True, False], f"ZeRO {stage}: losses", text)
                seen[stage] = np.array([file["loss"][2], file["grad_norm"][0], file["grad_norm"][2]])
            check(np.allclose(seen[stage], seen[0], rtol=1e-12, atol=0), f"ZeRO {stage}: {seen[stage]}, not {seen[0]}")
        with h5py.File(case.folder / "valid.h5", "r+") as file:
            del file["loss_mask"]
        keys += ["optimizer.learning_rate=1e120", "schedule.warmup_steps=0"]
        code, text = case.run(*(word for key in (*keys, *parallel) for word in ("--set", key)), ranks=ranks)
        check(text.count("step 1: the loss of validation set 1 is not finite") == 1, "a validation that is not finite is said", text)
        check(code == 70, f"a training step that is not finite ends the run, not the validation: {code}", text)


def main():
    nothing_counts()
    weights = {}
    with h5py.File(WEIGHTS / "checkpoint.h5") as file:
        file["parameters"].visititems(
            lambda name, item: weights.__setitem__(name, item[()].astype(float)) if isinstance(item, h5py.Dataset) else None)
    with Case("loss_mask", steps=1) as case:
        tokens, mask = write(case.folder / "tokens.h5", 1, 40 * LENGTH + 1)
        held_out, held_out_mask = write(case.folder / "valid.h5", 2, 11 * LENGTH + 1)
        expected, count = mean_loss(weights, tokens, mask, range(BATCH))
        valid, valid_count = mean_loss(weights, held_out, held_out_mask, range(11))
        goldfish, goldfish_count = mean_loss(weights, tokens, without_goldfish(tokens, mask, 3, 4), range(BATCH))
        check(0.5 * count < goldfish_count < 0.85 * count, f"one target in three does not count: {goldfish_count} of {count}")
        plain, _ = mean_loss(weights, tokens, np.ones_like(mask), range(BATCH))
        check(abs(plain - expected) > 1e-3, "the mask matters")
        keys = [f"data.path={case.folder}/tokens.h5", f"data.validation_path={case.folder}/valid.h5", "data.shuffle=none",
                "data.validation_batches=0", "precision.compute=fp64", "model.head_dim=8", f"model.rms_norm_eps={EPS}",
                f"model.rope_theta={THETA}", f"checkpoint.resume={WEIGHTS}", "checkpoint.at_end=f", "optimizer.learning_rate=1e-30",
                "optimizer.weight_decay=0"]
        for grid, (ranks, *parallel) in GRIDS.items():
            settings = [word for key in (*keys, *parallel) for word in ("--set", key)]
            code, text = case.run(*settings, ranks=ranks)
            check(code == 0, f"a step on {grid}", text)
            with h5py.File(case.out / "metrics.h5") as file:
                loss, seen = float(file["loss"][0]), int(file["tokens"][0])
                validation = float(file["validation_loss"][0])
            check(abs(loss - expected) < 1e-12 * expected, f"{grid}: loss {loss!r}, numpy has {expected!r}", text)
            check(seen == count, f"{grid}: {seen} targets counted, numpy counts {count}", text)
            check(abs(validation - valid) < 1e-12 * valid, f"{grid}: validation loss {validation!r}, numpy has {valid!r}", text)
            code, text = case.run("--evaluate", *settings, ranks=ranks)
            found = re.search(r"loss ([\d.]+) nats per token.* (\d+) targets", text)
            check(code == 0 and found is not None, f"--evaluate on {grid}", text)
            check(abs(float(found[1]) - valid) < 1e-6 and int(found[2]) == valid_count,
                  f"{grid}: --evaluate {found[0]}, numpy has {valid} of {valid_count}", text)
            code, text = case.run(*settings, "--set", "data.goldfish_k=3", "--set", "data.goldfish_h=4", ranks=ranks)
            check(code == 0, f"a step of the goldfish loss on {grid}", text)
            with h5py.File(case.out / "metrics.h5") as file:
                loss, seen, validation = (float(file[name][0]) for name in ("loss", "tokens", "validation_loss"))
            check(abs(loss - goldfish) < 1e-12 * goldfish and seen == goldfish_count,
                  f"{grid}: goldfish loss {loss!r} of {seen}, numpy has {goldfish!r} of {goldfish_count}", text)
            check(abs(validation - valid) < 1e-12 * valid, f"{grid}: the goldfish loss changes the validation", text)
        with h5py.File(case.folder / "tokens.h5", "r+") as file:
            del file["loss_mask"]
            file["loss_mask"] = mask[:-1]
        code, text = case.run(*settings)
        check(code == 65 and "/loss_mask does not match" in text, "a mask of another length is refused", text)
    print("losses with a mask are those of numpy")


if __name__ == "__main__":
    main()
