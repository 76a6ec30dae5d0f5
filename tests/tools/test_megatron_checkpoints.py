# timeout: 300
"""from-megatron, to-megatron: folders that Megatron-LM's own code wrote (tests/tools/megatron), and what is refused."""

import hashlib
import json
import os
import pickle
import subprocess
import tarfile

import h5py
import numpy as np
import pytest
from conftest import ROOT

from nanotron_tools import (
    common,
    convert,
    from_megatron,
    megatron_buckets,
    megatron_deck,
    megatron_model,
    megatron_ranks,
    taken_over,
    to_megatron,
    torch_dist,
    torch_pickle,
    torch_save,
)
from nanotron_tools.model_sizes import ModelSizes

DATA = ROOT / "tests/tools/megatron"
FOLDERS = ("ranks", "ranks_distributed", "torch_dist", "torch_dist_buckets")
KINDS = {"weights": "parameters", "exp_avg": "optimizer/exp_avg", "exp_avg_sq": "optimizer/exp_avg_sq"}


@pytest.fixture
def unpack(tmp_path):
    def unpacked(name):
        with tarfile.open(DATA / f"{name}.tar.xz") as file:
            file.extractall(tmp_path / "theirs")
        return tmp_path / "theirs" / name

    return unpacked


def hash_of(values):
    return hashlib.sha256(np.ascontiguousarray(values, np.float32).tobytes()).hexdigest()[:16]


def whole(file, group, name, sizes):
    """A tensor as torch_dist holds it, with all layers in front."""
    def dataset(each):
        return file[f"{group}/{each}"]

    plain = megatron_model.canonical(name)
    if not name.startswith(megatron_model.LAYERS):
        return megatron_model.from_ours(plain, dataset, sizes)
    rest = megatron_model.canonical(name.removeprefix(megatron_model.LAYERS))
    return np.stack([megatron_model.from_ours(megatron_model.in_layer(layer, rest), dataset, sizes)
                     for layer in range(sizes.num_hidden_layers)])


def same_state(one, other):
    found = []

    def compare(name, item):
        if isinstance(item, h5py.Dataset):
            assert np.array_equal(item[()], other[name][()]), name
            found.append(name)

    for group in ("parameters", "optimizer"):
        one[group].visititems(lambda name, item: compare(f"{item.parent.name}/{name.rpartition('/')[2]}", item))
    assert len(found) == 36


@pytest.mark.parametrize("name", FOLDERS)
def test_every_bit_arrives(name, unpack, tool, tmp_path):
    """PyTorch's own reader gave the hashes of the whole tensors."""
    said = tool("convert", "from-megatron", unpack(name), tmp_path / "ours").stdout
    assert "tp 2 x pp 2: 5,456 parameters, moments of 5 steps of Adam" in said
    assert "the vocabulary of 37: it stays padded to 48" in said
    expected = json.loads((DATA / f"{name}.json").read_text())
    with h5py.File(tmp_path / "ours/step_00000005/checkpoint.h5") as file:
        sizes = ModelSizes.from_attributes(file["parameters"])
        assert {key: int(file["state"].attrs[key]) for key in ("step", "adam_step", "sample_cursor", "tokens_seen")} == \
            {"step": 5, "adam_step": 5, "sample_cursor": 20, "tokens_seen": 320}
        for kind, group in KINDS.items():
            assert len(expected[kind]) == 9
            for tensor, value in expected[kind].items():
                assert hash_of(whole(file, group, tensor, sizes)) == value, (kind, tensor)
    deck = (tmp_path / "ours/continue.deck").read_text()
    for line in ("steps                = 100", "kind                 = 'cosine'", "decay_steps          = 97",
                 "learning_rate        = 0.01", "beta2                = 0.95", "sequence_length      = 16",
                 f"compute              = '{'bf16' if name == 'ranks_distributed' else 'fp32'}'"):
        assert line in deck


@pytest.mark.parametrize("name", ["ranks", "torch_dist", "torch_dist_buckets"])
def test_the_next_losses_are_those_of_pytorch(name, unpack, tool, tmp_path, programs, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tool("import", DATA / "tokens.bin", "--format", "bare", "--token-type", "uint16", "--vocab-size", 37, "--output",
         tmp_path / "tokens.h5")
    tool("convert", "from-megatron", unpack(name), tmp_path / "ours", "--token-file", tmp_path / "tokens.h5")
    start = [os.environ["NANOTRON_MPIEXEC"], "-n", "2"] if os.environ.get("NANOTRON_MPIEXEC") else []
    done = subprocess.run([*start, programs / "nanotron_hpc", tmp_path / "ours/continue.deck", "--set",
                           "run.stop_after_steps=15", "--set", "data.shuffle=none"], text=True, capture_output=True,
                          timeout=200)
    assert done.returncode == 75, done.stdout + done.stderr
    expected = json.loads((DATA / f"{name}.json").read_text())["losses"]
    with h5py.File(tmp_path / "ours/run/metrics.h5") as file:
        losses = dict(zip(file["step"][()].tolist(), file["loss"][()].tolist(), strict=True))
    worst = np.max([abs(losses[step] - expected[str(step)]) for step in range(6, 16)])
    assert worst <= 1e-5


def test_formats_agree(unpack, tool, tmp_path):
    """The same run was saved in both."""
    for name in ("ranks", "torch_dist"):
        tool("convert", "from-megatron", unpack(name), tmp_path / name)
    with h5py.File(tmp_path / "ranks/step_00000005/checkpoint.h5") as one, \
            h5py.File(tmp_path / "torch_dist/step_00000005/checkpoint.h5") as other:
        same_state(one, other)


@pytest.mark.parametrize("options", [
    ("--tp", 2, "--pp", 2, "--dtype", "fp32", "--transformer-impl", "local"), ("--tp", 1, "--pp", 2),
    ("--tp", 2, "--pp", 1, "--distributed-optimizer"),
    ("--tp", 1, "--pp", 2, "--dtype", "fp32", "--distributed-optimizer", "--transformer-impl", "local")])
def test_there_and_back(options, unpack, tool, tmp_path):
    theirs = unpack("ranks")
    tool("convert", "from-megatron", theirs, tmp_path / "ours")
    said = tool("convert", "to-megatron", tmp_path / "ours", tmp_path / "back", *options, "--deck",
                tmp_path / "ours/continue.deck").stdout
    assert "--lr-warmup-iters 3" in said and "--num-query-groups 2" in said
    tool("convert", "from-megatron", tmp_path / "back", tmp_path / "again")
    with h5py.File(tmp_path / "ours/step_00000005/checkpoint.h5") as one, \
            h5py.File(tmp_path / "again/step_00000005/checkpoint.h5") as other:
        same_state(one, other)
        assert dict(one["state"].attrs) == dict(other["state"].attrs)
    if options[:4] != ("--tp", 2, "--pp", 2):
        return
    for path in sorted(theirs.glob("iter_*/mp_rank_*")):  # tensors, names and order as Megatron's own file has them
        have, want = (megatron_ranks.Rank(megatron_ranks.torch_file.load(root / path.name / megatron_ranks.MODEL,
                                                                         megatron_ranks.CLASSES))
                      for root in (tmp_path / "back/iter_0000005", path.parent))
        names = [[key for key, value in rank.content["model"].items() if value is not None] for rank in (have, want)]
        assert names[0] == names[1]
        states = [rank.inner["state"] for rank in (have, want)]
        assert states[0].keys() == states[1].keys()
        for index, state in states[0].items():
            for kind, tensor in state.items():
                values = [taken_over.elements(rank.archive.stored(found[index][kind], kind))
                          for rank, found in zip((have, want), states, strict=True)]
                assert tensor.shape == states[1][index][kind].shape
                assert np.array_equal(*values)


def refusal(tool, *arguments):
    return tool("convert", "from-megatron", *arguments, rc=65).stderr


def test_what_is_missing_or_damaged(unpack, tool, tmp_path):
    folder = unpack("ranks")
    target = tmp_path / "ours"
    rank = folder / "iter_0000005/mp_rank_01_001"
    rank.rename(tmp_path / "away")
    assert "no mp_rank_01_001" in refusal(tool, folder, target)
    (tmp_path / "away").rename(rank)
    file = rank / "model_optim_rng.pt"
    file.write_bytes(file.read_bytes()[:-1000])
    assert "zip archive" in refusal(tool, folder, target)
    assert "no such folder" in refusal(tool, tmp_path / "none", target)
    (tmp_path / "empty").mkdir()
    assert "neither" in refusal(tool, tmp_path / "empty", target)
    folder = unpack("torch_dist") / "iter_0000005"
    file = folder / "__2_0.distcp"
    whole_file = file.read_bytes()
    file.write_bytes(whole_file[:-5000])
    assert "truncated" in refusal(tool, folder, target)
    file.unlink()
    assert "__2_0.distcp" in refusal(tool, folder, target)
    file.write_bytes(whole_file)
    (folder / "metadata.json").write_text('{"sharded_backend": "zarr"}')
    assert "zarr" in refusal(tool, folder, target)
    assert not (target / "step_00000005/manifest.json").exists()


def edit(path, change):
    """Writes the file of a rank again, with another content."""
    archive = megatron_ranks.torch_file.load(path, megatron_ranks.CLASSES)

    def plain(value):
        if isinstance(value, megatron_ranks.Tensor):
            return torch_save.New.of(taken_over.elements(archive.stored(value, "a tensor")).reshape(value.shape).copy())
        if isinstance(value, megatron_ranks.Foreign):
            state = value.state if isinstance(value.state, dict) else {}
            return torch_save.Record("argparse.Namespace", {key: plain(each) for key, each in state.items()})
        if isinstance(value, torch_pickle.Name):
            return torch_save.Global(value.path)
        if isinstance(value, dict):
            return {key: plain(each) for key, each in value.items()}
        return type(value)(plain(each) for each in value) if isinstance(value, (list, tuple)) else value

    kept = {key: plain(archive.object[key]) for key in ("args", "iteration", "checkpoint_version", "model", "optimizer")}
    change(kept)
    torch_save.save(kept, path)


def test_files_of_two_saves(unpack, tool, tmp_path):
    folder, target = unpack("ranks"), tmp_path / "ours"
    first, second = (folder / f"iter_0000005/mp_rank_0{tensor}_000/model_optim_rng.pt" for tensor in (0, 1))
    good = second.read_bytes()
    second.write_bytes(first.read_bytes())
    said = refusal(tool, folder, target)
    assert f"{second}, args, rank" in said and f"as in {first}" in said
    second.write_bytes(good)
    edit(second, lambda content: content.update(iteration=7))
    said = refusal(tool, folder, target)
    assert f"{second}, iteration: expected 5" in said and "found:  7" in said
    edit(second, lambda content: content.update(iteration=5))
    tool("convert", "from-megatron", folder, target)


@pytest.mark.parametrize("key, value", [
    ("num_layers", 10**9), ("num_layers", True), ("norm_epsilon", "x"), ("rotary_base", float("nan")), ("seed", "x"),
    ("lr_warmup_iters", float("inf")), ("consumed_train_samples", "x"), ("window_size", 3), ("iteration", -1)])
def test_arguments_that_are_no_numbers(key, value, unpack, tool, tmp_path):
    folder = unpack("ranks")
    for path in sorted(folder.glob("iter_*/mp_rank_*/model_optim_rng.pt")):
        edit(path, lambda content: (content if key == "iteration" else content["args"].state).update({key: value}))
    said = refusal(tool, folder, tmp_path / "ours")
    assert key.replace("_", "-") in said.replace("_", "-") and repr(value) in said
    assert not (tmp_path / "ours").exists()


def test_a_shape_that_needs_more_memory_than_there_are_bytes(unpack):
    folder = torch_dist.Folder(unpack("torch_dist") / "iter_0000005")
    stored = folder.items["embedding.word_embeddings.weight"]
    stored.shape = (1 << 40, 16)
    with pytest.raises(common.ToolError, match="bytes for"):
        folder.read(stored.name)


def test_a_failed_conversion_leaves_what_was_there(unpack, tool, tmp_path):
    folder, target = unpack("ranks"), tmp_path / "ours"
    tool("convert", "from-megatron", folder, target)
    before = (target / "step_00000005/checkpoint.h5").read_bytes()
    edit(folder / "iter_0000005/mp_rank_01_001/model_optim_rng.pt", lambda content: content["model"].update(
        {name: torch_save.New.of(np.full(old.shape, np.nan, np.float32)) for name, old in content["model"].items()
         if "linear_fc2.weight" in name}))
    refusal(tool, folder, target, "--overwrite")
    assert (target / "step_00000005/checkpoint.h5").read_bytes() == before
    tool("ls", target)
    assert not [*target.rglob("*.tmp")]
    refusal(tool, folder, tmp_path / "other")
    assert not [*(tmp_path / "other").iterdir()]


def test_an_interrupted_export_is_no_checkpoint(unpack, tool, tmp_path, monkeypatch):
    tool("convert", "from-megatron", unpack("ranks"), tmp_path / "ours")
    arguments = ["to-megatron", str(tmp_path / "ours"), str(tmp_path / "back"), "--tp", "2", "--deck",
                 str(tmp_path / "ours/continue.deck")]
    assert convert.main(arguments) == 0
    before = {path: path.read_bytes() for path in (tmp_path / "back").rglob("*") if path.is_file()}

    def interrupted(self, folder, tensor, pipeline):
        if tensor == 1:
            raise KeyboardInterrupt
        (folder / "mp_rank_00").mkdir()

    monkeypatch.setattr(to_megatron.Writer, "write", interrupted)
    with pytest.raises(KeyboardInterrupt):
        convert.main([*arguments, "--overwrite"])
    assert {path: path.read_bytes() for path in (tmp_path / "back").rglob("*") if path.is_file()} == before


class Runs:
    def __reduce__(self):
        return os.system, ("touch HERE",)


def test_nothing_is_run(unpack, tool, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = unpack("torch_dist") / "iter_0000005"
    (folder / ".metadata").write_bytes(pickle.dumps(Runs(), protocol=4))
    assert "nothing of the file was run" in refusal(tool, folder, tmp_path / "ours")
    (tmp_path / "ranks/mp_rank_00").mkdir(parents=True)
    torch_save.save({"args": torch_save.Record("os.Namespace", {})}, tmp_path / "ranks/mp_rank_00/model_optim_rng.pt")
    assert "os.Namespace" in refusal(tool, tmp_path / "ranks", tmp_path / "ours")
    assert not (tmp_path / "HERE").exists()


ARGS = {"num_layers": 2, "hidden_size": 16, "num_attention_heads": 4, "position_embedding_type": "rope"}


@pytest.mark.parametrize("more, words", [
    ({"multi_latent_attention": True}, "--multi-latent-attention"), ({"num_experts": 8}, "--num-experts"),
    ({"position_embedding_type": "yarn"}, "--position-embedding-type"), ({"mtp_num_layers": 1}, "--mtp-num-layers"),
    ({"hybrid_layer_pattern": "M*-"}, "--hybrid-layer-pattern"), ({"softmax_type": "learnable"}, "--softmax-type"),
    ({"normalization": "LayerNorm", "qk_layernorm": True}, "--qk-layernorm"), ({"hidden_size": "x"}, "hidden_size"),
    ({"quick_geglu": True}, "--quick-geglu"), ({"window_size": (4, 4)}, "--window-size")])
def test_other_models_are_named(more, words):
    with pytest.raises(common.ToolError, match=words) as caught:
        megatron_model.sizes_of(ARGS | more, 48, "here")
    assert caught.value.exit_code == 65


def test_arguments_of_a_model():
    sizes = megatron_model.sizes_of(ARGS | {
        "add_bias_linear": False, "swiglu": True, "normalization": "RMSNorm", "norm_epsilon": 1e-6, "rotary_base": 500000,
        "use_rope_scaling": True, "rope_scaling_factor": 32.0, "window_size": (127, 0)}, 48, "here")
    assert (sizes.hidden_act, sizes.rms_norm_eps, sizes.rope_theta) == ("silu", 1e-6, 500000.0)
    assert (sizes.rope_type, sizes.rope_factor, sizes.sliding_window, sizes.qkv_bias) == ("llama3", 32.0, 128, False)
    old = megatron_model.sizes_of(ARGS | {"position_embedding_type": "learned_absolute", "max_position_embeddings": 64,
                                          "bias_gelu_fusion": True}, 48, "here")
    assert (old.normalization, old.hidden_act, old.qkv_bias, old.tie_word_embeddings) == \
        ("layer_norm", "gelu_new", True, True)


def test_schedules():
    left = taken_over.Left()
    steps, found = megatron_deck.schedule_of({
        "train_iters": 1000, "global_batch_size": 8, "lr": 1e-3, "min_lr": 1e-4, "lr_decay_style": "WSD",
        "lr_wsd_decay_iters": 100, "lr_wsd_decay_style": "minus_sqrt", "lr_warmup_iters": 10}, 500, left)
    assert steps == 1000 and found["decay_steps"] == 100 and found["decay_shape"] == "1-sqrt"
    assert not left.lines
    steps, found = megatron_deck.schedule_of({
        "train_samples": 8000, "global_batch_size": 8, "lr": 1e-3, "lr_decay_style": "cosine",
        "lr_warmup_fraction": 0.01}, 5, left)
    assert (steps, found["warmup_steps"], found["decay_steps"]) == (1000, 10, 990)
    assert len(left.lines) == 2


def test_dropout_is_in_the_deck():
    deck = megatron_deck.deck_of({"hidden_dropout": 0.1, "attention_dropout": 0.0}, {"hidden_size": 16}, 5, "here",
                                 "tokens.h5", taken_over.Left())
    assert "hidden_dropout       = 0.1" in deck and "attention_dropout" not in deck


def test_buckets():
    shapes = {"a": (10,), "b": (100,), "c": (3, 2)}
    places, sizes = megatron_buckets.by_limit(["a", "b", "c"], shapes, None)
    assert places == {"c": (0, 0), "b": (0, 64), "a": (0, 192)} and sizes == [202]
    places, sizes = megatron_buckets.by_limit(["a", "b", "c"], shapes, 100)
    assert places == {"c": (0, 0), "b": (0, 64), "a": (1, 0)} and sizes == [164, 10]
    assert megatron_buckets.by_sizes(["a", "b", "c"], shapes, sizes) == places
    assert megatron_buckets.by_sizes(["a", "b", "c"], shapes, [164]) is None


def test_a_step_of_several(unpack, tmp_path):
    folder = unpack("torch_dist")
    assert from_megatron.folder_of(folder, None).name == "iter_0000005"
    with pytest.raises(common.ToolError, match="iter_0000007"):
        from_megatron.folder_of(folder, 7)
