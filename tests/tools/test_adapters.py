"""Adapters: PEFT's folders in both directions, merging, and what is refused."""

import json
import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest
from nanotron_tools import adapters, common, convert
from nanotron_tools import safetensors as st

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
BASE, PEFT = GOLDEN / "llama/step_00000000", GOLDEN / "lora/adapter"


def arrays(folder):
    found = {}
    for name, tensor in st.read_header(folder / adapters.PEFT_WEIGHTS).items():
        found[name] = np.concatenate([block for _, block in tensor.pieces()])
    return found


@pytest.fixture()
def run(tmp_path):
    """A run's folder with the golden adapters; B is not zero."""
    convert.main(["from-peft", str(PEFT), str(BASE), str(tmp_path / "run")])
    path = tmp_path / "run/step_00000000/checkpoint.h5"
    random = np.random.default_rng(1)
    with h5py.File(path, "r+") as file:
        for module in adapters.modules_of(file):
            b = file[f"parameters/{module}/lora_B/weight"]
            b[...] = random.standard_normal(b.shape)
    adapters.checkpoint_file.write_manifest(path.parent, 0)
    return tmp_path / "run"


def test_peft_and_back_has_the_same_bits(tmp_path):
    assert convert.main(["from-peft", str(PEFT), str(BASE), str(tmp_path / "run")]) == 0
    assert convert.main(["to-peft", str(tmp_path / "run"), str(tmp_path / "again"), "--dtype", "fp64"]) == 0
    ours, theirs = arrays(tmp_path / "again"), arrays(PEFT)
    assert ours.keys() == theirs.keys()
    assert all(np.array_equal(ours[name], theirs[name]) for name in theirs)
    config = json.loads((tmp_path / "again/adapter_config.json").read_text())
    expected = json.loads((PEFT / "adapter_config.json").read_text())
    assert config["r"] == expected["r"] and config["lora_alpha"] == expected["lora_alpha"]
    assert sorted(config["target_modules"]) == sorted(expected["target_modules"])
    assert "rank    = 3" in (tmp_path / "run/lora.nml").read_text()


def test_golden_checkpoint_is_what_from_peft_writes(tmp_path):
    convert.main(["from-peft", str(PEFT), str(BASE), str(tmp_path)])
    with h5py.File(tmp_path / "step_00000000/checkpoint.h5") as ours, \
            h5py.File(GOLDEN / "lora/step_00000000/checkpoint.h5") as golden:
        a, b = adapters.adapters_of(ours), adapters.adapters_of(golden)
        assert (a.rank, a.alpha, a.targets, a.base_hash) == (b.rank, b.alpha, b.targets, b.base_hash)
        for module in adapters.modules_of(golden):
            for part in ("lora_A", "lora_B"):
                name = f"parameters/{module}/{part}/weight"
                assert np.array_equal(ours[name][()], golden[name][()])


def test_merged_weights(run, tmp_path):
    assert convert.main(["merge", str(run), str(tmp_path / "merged")]) == 0
    with h5py.File(run / "step_00000000/checkpoint.h5") as of, h5py.File(BASE / "checkpoint.h5") as base, \
            h5py.File(tmp_path / "merged/step_00000000/checkpoint.h5") as merged:
        assert "adapters" not in merged
        for name in ("self_attn/q_proj", "mlp/down_proj"):
            a, b = (of[f"parameters/model/layers/{name}/{part}/weight"][()] for part in ("lora_A", "lora_B"))
            w = base[f"parameters/model/layers/{name}/weight"][()].astype(float)
            expected = w + 5 / 3 * np.einsum("lor,lri->loi", b, a)
            assert np.allclose(merged[f"parameters/model/layers/{name}/weight"][()], expected, rtol=1e-6, atol=1e-7)
        norm = "parameters/model/norm/weight"
        assert np.array_equal(merged[norm][()], base[norm][()])


def test_export_merges(run, tmp_path):
    options = ["--max-positions", "16", "--eos-id", "none"]
    assert convert.main(["to-hf", str(run), str(tmp_path / "direct"), *options]) == 0
    convert.main(["merge", str(run), str(tmp_path / "merged")])
    convert.main(["to-hf", str(tmp_path / "merged"), str(tmp_path / "twice"), *options])
    assert (tmp_path / "direct/model.safetensors").read_bytes() == (tmp_path / "twice/model.safetensors").read_bytes()
    assert [item.name for item in tmp_path.iterdir() if item.name.startswith(".")] == []


@pytest.mark.parametrize(("key", "value"), [("use_dora", True), ("bias", "all"), ("rank_pattern", {"q_proj": 2}),
                                            ("modules_to_save", ["lm_head"])])
def test_other_adapters_are_refused(tmp_path, key, value):
    shutil.copytree(PEFT, tmp_path / "adapter")
    config = json.loads((PEFT / "adapter_config.json").read_text()) | {key: value}
    (tmp_path / "adapter/adapter_config.json").write_text(json.dumps(config))
    with pytest.raises(common.ToolError, match=key):
        convert.main(["from-peft", str(tmp_path / "adapter"), str(BASE), str(tmp_path / "run")])


def test_other_frozen_weights_are_refused(run, tmp_path):
    with pytest.raises(common.ToolError, match="not the weights that the adapters were trained on"):
        convert.main(["merge", str(run), str(tmp_path / "merged"), "--base", str(GOLDEN / "qwen2/step_00000000")])


def test_families_that_fuse_are_refused(tmp_path):
    with pytest.raises(common.ToolError, match="to-hf"):
        convert.main(["from-peft", str(PEFT), str(GOLDEN / "gpt2/step_00000000"), str(tmp_path / "run")])


def test_whole_weights_have_no_adapters(tmp_path):
    with pytest.raises(common.ToolError, match="no adapters"):
        convert.main(["to-peft", str(BASE), str(tmp_path / "adapter")])
