# timeout: 120
"""The golden folders hold together: valid checkpoints, enough tokens, consistent numbers."""

import json
import math

import conftest
import h5py
import numpy as np
import pytest

from nanotron_tools import checkpoint as checkpoint_file

CASES = ("llama", "qwen2", "qwen3", "mixtral", "qwen2_moe", "qwen3_moe", *conftest.FAMILIES)


@pytest.mark.parametrize("case", CASES)
def test_folder(case, golden):
    folder = golden / case
    data = json.loads((folder / "golden.json").read_text())
    sizes = checkpoint_file.ModelSizes(**data["model"])
    assert sum(p.stat().st_size for p in folder.rglob("*") if p.is_file()) < 400_000
    with checkpoint_file.open_checkpoint(folder / "step_00000000") as file:
        checkpoint_file.check_parameters(file, sizes)
        assert checkpoint_file.ModelSizes.from_attributes(file["parameters"]) == sizes
    assert sizes.deck_group().removesuffix("/\n") in (folder / "input.deck").read_text()
    with h5py.File(folder / "tokens.h5", "r") as file:
        needed = data["steps"] * data["global_batch_size"] * data["sequence_length"] + 1
        assert file["tokens"].shape[0] >= needed and file["tokens"][:].max() < sizes.vocab_size


@pytest.mark.parametrize("case", CASES)
def test_numbers(case, golden):
    data = json.loads((golden / case / "golden.json").read_text())
    wide, narrow = data["fp64"], data["fp32"]
    assert len(wide["losses"]) == len(wide["grad_norms"]) == data["steps"] == 20
    assert wide["losses"][-1] < wide["losses"][0] - 0.4
    assert np.allclose(wide["losses"], narrow["losses"], rtol=1e-6)
    names = set()  # of experts one by one
    for name, shape in checkpoint_file.ModelSizes(**data["model"]).parameter_shapes().items():
        names |= {name.replace("/experts/", f"/experts/{e}/") for e in range(shape[0])} if "/experts/" in name else {name}
    for kind in ("parameters", "first_gradients", "exp_avg", "exp_avg_sq"):
        assert wide[kind].keys() == names
        assert all(value["l2"] > 0 for value in wide[kind].values())
    first = math.sqrt(sum(value["l2"] ** 2 for value in wide["first_gradients"].values()))
    assert first == pytest.approx(wide["grad_norms"][0], rel=1e-12)
    assert max(wide["grad_norms"]) > data["optimizer"]["clip_grad_norm"]


def test_first_loss_of_llama_with_numpy_alone(golden):
    """An independent forward pass, without PyTorch: the same first loss and greedy token."""
    data = json.loads((golden / "llama" / "golden.json").read_text())
    sizes = checkpoint_file.ModelSizes(**data["model"])
    with checkpoint_file.open_checkpoint(golden / "llama" / "step_00000000") as file:
        weights = {name: file["parameters/" + name][()].astype(np.float64)
                   for name in sizes.parameter_shapes()}
    with h5py.File(golden / "llama" / "tokens.h5", "r") as file:
        tokens = file["tokens"][:129].astype(np.int64)
    losses = []
    for inputs, targets in zip(tokens[:-1].reshape(8, 16), tokens[1:].reshape(8, 16), strict=True):
        logits = forward(sizes, weights, inputs)
        top = logits.max(-1)
        log_sum = top + np.log(np.exp(logits - top[:, None]).sum(-1))
        losses.append(log_sum - logits[np.arange(16), targets])
    assert np.mean(losses) == pytest.approx(data["fp64"]["losses"][0], rel=1e-13)
    generated = json.loads((golden / "llama" / "generate.json").read_text())
    logits = forward(sizes, weights, np.array(generated["prompt"]))[-1]
    assert np.allclose(logits, generated["first_logits"], rtol=0, atol=1e-12)
    assert logits.argmax() == generated["tokens"][0] and min(generated["top2_margins"]) > 1e-3


def forward(m, weights, ids):
    """Logits (length, vocabulary) of one sequence."""
    def norm(x, weight):
        return weight * x / np.sqrt((x * x).mean(-1, keepdims=True) + m.rms_norm_eps)

    def rotated(x):
        half = m.head_dim // 2
        frequency = m.rope_theta ** (-np.arange(half) * 2.0 / m.head_dim)
        angle = np.arange(len(ids))[:, None, None] * frequency
        a, b = x[..., :half], x[..., half:]
        return np.concatenate([a * np.cos(angle) - b * np.sin(angle),
                               b * np.cos(angle) + a * np.sin(angle)], axis=-1)

    x = weights["model/embed_tokens/weight"][ids]
    for layer in range(m.num_hidden_layers):
        w = {name[len("model/layers/"):]: value[layer] for name, value in weights.items()
             if name.startswith("model/layers/")}
        h = norm(x, w["input_layernorm/weight"])
        q, k, v = ((h @ w[f"self_attn/{n}_proj/weight"].T).reshape(len(ids), -1, m.head_dim)
                   for n in "qkv")
        q, k = rotated(q), rotated(k)
        out = np.zeros_like(q)
        for head in range(m.num_attention_heads):
            source = head * m.num_key_value_heads // m.num_attention_heads
            score = q[:, head] @ k[:, source].T / math.sqrt(m.head_dim)
            score = np.where(np.tri(len(ids), dtype=bool), score, -np.inf)
            share = np.exp(score - score.max(-1, keepdims=True))
            out[:, head] = share / share.sum(-1, keepdims=True) @ v[:, source]
        x = x + out.reshape(len(ids), -1) @ w["self_attn/o_proj/weight"].T
        h = norm(x, w["post_attention_layernorm/weight"])
        gate, up = h @ w["mlp/gate_proj/weight"].T, h @ w["mlp/up_proj/weight"].T
        x = x + (gate / (1.0 + np.exp(-gate)) * up) @ w["mlp/down_proj/weight"].T
    return norm(x, weights["model/norm/weight"]) @ weights["lm_head/weight"].T
