# timeout: 120
"""nanotron_convert average and to-hf --ema: the mean of checkpoints piece by piece, and the average that training kept."""

import shutil

import h5py
import numpy as np
import pytest
from safetensors.numpy import load_file

from nanotron_tools import average
from nanotron_tools import checkpoint as checkpoint_file

TO_HF = ("to-hf", "--max-positions", "128", "--eos-id", "none")


def parameters(folder, group="parameters"):
    found = {}
    with checkpoint_file.open_checkpoint(folder) as file:
        file[group].visititems(lambda name, item: found.update({name: item[()]}) if hasattr(item, "shape") else None)
    return found


def made(golden, folder, step, change, ema=None, case="llama", attributes=()):
    """A copy of a golden checkpoint with weights change(name, values), and with an average of ema(values)."""
    target = folder / f"step_{step:08d}"
    shutil.copytree(golden / case / "step_00000000", target)
    with h5py.File(target / "checkpoint.h5", "r+") as file:
        file["state"].attrs["step"] = step
        file["state"].attrs["sample_cursor"] = 8 * step
        file["state"].attrs["adam_step"] = step
        for name, value in attributes:
            file["parameters"].attrs[name] = value

        def visit(name, item):
            if isinstance(item, h5py.Dataset):
                item[...] = change(name, item[()])
                if ema is not None and not name.endswith("e_score_correction_bias"):
                    file.create_dataset(f"optimizer/ema/{name}", data=ema(item[()]))

        file["parameters"].visititems(visit)
        if ema is not None:
            file["optimizer"].attrs["name"] = "adamw"
    checkpoint_file.write_manifest(target, step)
    return target


@pytest.mark.parametrize("case", ["llama", "qwen3_moe"])
def test_mean(golden, tmp_path, tool, case, monkeypatch):
    monkeypatch.setattr(average, "PIECE_BYTES", 8 * 700)  # many pieces of a tensor
    start = parameters(golden / case / "step_00000000")
    random = np.random.default_rng(5)
    first = made(golden, tmp_path / "a", 30, lambda _, x: x + random.normal(size=x.shape), case=case)
    second = made(golden, tmp_path / "b", 20, lambda _, x: 3 * x + random.normal(size=x.shape), case=case)
    values = [parameters(first), parameters(second)]
    text = tool("convert", "average", first, second, "-o", tmp_path / "out").stdout
    assert "the mean of 2 checkpoints; no moments" in text
    found = parameters(tmp_path / "out" / "step_00000030")
    assert found.keys() == start.keys()
    for name, x in found.items():
        expected = (0.5 * values[0][name].astype("f8") + 0.5 * values[1][name].astype("f8")).astype(x.dtype)
        assert np.array_equal(x, expected) and not np.array_equal(x, start[name]), name
    with checkpoint_file.open_checkpoint(tmp_path / "out" / "step_00000030") as file:
        state = dict(file["state"].attrs)
        assert (state["step"], state["sample_cursor"], state["adam_step"]) == (30, 240, 0)
        assert "optimizer" not in file and f"0.5 of {first}" in file["provenance"].attrs["averaged"].decode()
        with h5py.File(first / "checkpoint.h5") as newest:
            assert file["deck"][()] == newest["deck"][()]
            assert dict(file["parameters"].attrs) == dict(newest["parameters"].attrs)


def test_given_weights(golden, tmp_path, tool):
    folders = [made(golden, tmp_path / str(i), 10 + i, lambda _, x, i=i: np.full_like(x, i)) for i in range(3)]
    tool("convert", "average", *folders, "--weights", "1,2,5", "-o", tmp_path / "out")
    assert all((x == np.float32(1.5)).all() for x in parameters(tmp_path / "out" / "step_00000012").values())
    for wrong in ("1,2", "1,2,x", "1,-1,0", "1,2,nan"):
        found = tool("convert", "average", *folders, "--weights", wrong, "-o", tmp_path / "no", rc=64)
        assert "expected 3 numbers" in found.stderr and not (tmp_path / "no").exists()


def test_moving_average(golden, tmp_path, tool):
    """Of one checkpoint: as weights of another one, and as a Hugging Face folder."""
    folder = made(golden, tmp_path / "run", 7, lambda _, x: x, ema=lambda x: x + 1)
    tool("convert", "average", folder, "--ema", "-o", tmp_path / "out")
    start, found = parameters(golden / "llama" / "step_00000000"), parameters(tmp_path / "out" / "step_00000007")
    assert all(np.array_equal(found[name], start[name] + 1) for name in start)
    tool("convert", *TO_HF, "--ema", folder, tmp_path / "direct")
    tool("convert", *TO_HF, tmp_path / "out", tmp_path / "indirect")
    tool("convert", *TO_HF, folder, tmp_path / "plain")
    tensors = [load_file(tmp_path / name / "model.safetensors") for name in ("direct", "indirect", "plain")]
    for name, values in tensors[0].items():
        assert np.array_equal(values, tensors[1][name]) and np.array_equal(values, tensors[2][name] + 1)
    assert "optimizer/ema" in tool("ls", folder).stdout


def test_parameters_without_gradient_are_the_weights(golden, tmp_path, tool, monkeypatch):
    """They have no average."""
    folder = made(golden, tmp_path / "run", 7, lambda _, x: x, ema=lambda x: x + 1)
    trained = checkpoint_file.trained_by_gradient
    monkeypatch.setattr(checkpoint_file, "trained_by_gradient", lambda sizes: trained(sizes)[1:])
    without = sorted(parameters(folder))
    with h5py.File(folder / "checkpoint.h5", "r+") as file:
        left = next(name for name in checkpoint_file.ModelSizes.from_attributes(file["parameters"]).parameter_shapes())
        del file["optimizer/ema/" + left]
    checkpoint_file.write_manifest(folder, 7)
    tool("convert", "average", folder, "--ema", "-o", tmp_path / "out")
    start, found = parameters(golden / "llama" / "step_00000000"), parameters(tmp_path / "out" / "step_00000007")
    for name in without:
        assert np.array_equal(found[name], start[name] + (name != left)), name


def test_what_is_refused(golden, tmp_path, tool):
    folder = made(golden, tmp_path / "run", 7, lambda _, x: x)
    out = ("-o", tmp_path / "out")
    for weights in ("1,-1,0", "0.1,0.2,-0.3", "1e308,1e308,1e308", "1,nan,1", "1,1", "a,1,1", ""):
        assert "a sum that is not 0" in tool("convert", "average", *3 * [folder], f"--weights={weights}", *out, rc=64).stderr
    assert "expected an average of the weights" in tool("convert", "average", folder, "--ema", *out, rc=65).stderr
    assert "expected an average of the weights" in \
        tool("convert", *TO_HF, "--ema", folder, tmp_path / "hf", rc=65).stderr
    other = made(golden, tmp_path / "other", 9, lambda _, x: x, attributes=[("rope_theta", 500.0)])
    assert "another rope_theta" in tool("convert", "average", folder, other, *out, rc=65).stderr
    found = tool("convert", "average", folder, "-o", tmp_path / "run", "--overwrite", rc=64)
    assert "expected another folder than those that are averaged" in found.stderr
    assert np.array_equal(parameters(folder)["model/norm/weight"],
                          parameters(golden / "llama" / "step_00000000")["model/norm/weight"])
    with open(folder / "checkpoint.h5", "r+b") as file:
        file.seek(5000)
        file.write(b"damage")
    assert "differ from what was written" in tool("convert", "average", folder, *out, rc=65).stderr
    assert not (tmp_path / "out").exists()
    damaged = made(golden, tmp_path / "damaged", 8, lambda _, x: x, ema=lambda x: x[..., :1])
    assert "expected floats of the shape" in tool("convert", "average", damaged, "--ema", *out, rc=65).stderr


def test_pieces_cover_an_array_once(monkeypatch):
    monkeypatch.setattr(average, "PIECE_BYTES", 8 * 10)
    for shape in ((), (3,), (25,), (7, 3), (4, 3, 5), (2, 3, 4, 5), (2, 1, 30), (0, 4)):
        counts = np.zeros(shape, int)
        for piece in average.pieces(shape):
            counts[piece] += 1
            assert counts[piece].size <= max(10, shape[-1] if shape else 1)
        assert (counts == 1).all()
