# timeout: 120
"""The golden folders hold together: valid checkpoints, enough tokens, consistent numbers."""

import json
import math

import conftest
import h5py
import numpy as np
import plain_model
import pytest

from nanotron_tools import checkpoint as checkpoint_file

MIN_MARGIN = 1e-4
CASES = ("llama", "qwen2", "qwen3", "mixtral", "qwen2_moe", "qwen3_moe", *conftest.FAMILIES)


@pytest.mark.parametrize("case", CASES)
def test_folder(case, golden):
    folder = golden / case
    data = json.loads((folder / "golden.json").read_text())
    sizes = checkpoint_file.ModelSizes(**data["model"])
    assert sum(p.stat().st_size for p in folder.rglob("*") if p.is_file()) < 480_000
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
    assert wide["parameters"].keys() == names
    names = {name for name in names if not name.endswith("e_score_correction_bias")}  # which no gradient moves
    for kind in ("parameters", "first_gradients", "exp_avg", "exp_avg_sq"):
        assert wide[kind].keys() >= names
        assert all(value["l2"] > 0 for value in wide[kind].values())
    first = math.sqrt(sum(value["l2"] ** 2 for value in wide["first_gradients"].values()))
    assert first == pytest.approx(wide["grad_norms"][0], rel=1e-12)
    assert max(wide["grad_norms"]) > data["optimizer"]["clip_grad_norm"]


@pytest.mark.parametrize("case", CASES)
def test_first_loss_with_numpy_alone(case, golden):
    """An independent forward pass, without PyTorch: the same first loss, the same logits after the prompt."""
    data = json.loads((golden / case / "golden.json").read_text())
    sizes = checkpoint_file.ModelSizes(**data["model"])
    with checkpoint_file.open_checkpoint(golden / case / "step_00000000") as file:
        weights = {name: file["parameters/" + name][()].astype(np.float64) for name in sizes.parameter_shapes()}
    with h5py.File(golden / case / "tokens.h5", "r") as file:
        tokens = file["tokens"][:129].astype(np.int64)
    model, losses = plain_model.Model(sizes, weights), []
    for inputs, targets in zip(tokens[:-1].reshape(8, 16), tokens[1:].reshape(8, 16), strict=True):
        logits = model.logits(inputs)
        top = logits.max(-1)
        log_sum = top + np.log(np.exp(logits - top[:, None]).sum(-1))
        losses.append(log_sum - logits[np.arange(16), targets])
    assert np.mean(losses) == pytest.approx(data["fp64"]["losses"][0], rel=1e-13)
    if not (golden / case / "generate.json").exists():
        return
    generated = json.loads((golden / case / "generate.json").read_text())
    logits = model.logits(np.array(generated["prompt"]))[-1]
    assert np.allclose(logits, generated["first_logits"], rtol=0, atol=1e-12)
    assert logits.argmax() == generated["tokens"][0] and min(generated["top2_margins"]) > MIN_MARGIN
