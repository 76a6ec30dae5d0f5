# timeout: 300
"""nanotron_convert from-nanotron: folders that Nanotron's own code wrote (tests/data/nanotron), to the bit; the deck; and
what is refused."""

import hashlib
import json
import math
import shutil

import conftest
import h5py
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from nanotron_tools import checkpoint as checkpoint_file
from nanotron_tools import common, from_nanotron, taken_over, torch_file, torch_save
from nanotron_tools import safetensors as st

DATA = conftest.ROOT / "tests/data/nanotron"
LLAMA, QWEN = "llama_tp2_pp2", "qwen2_zero1_dp2"
STEP = {LLAMA: 6, QWEN: 4}
QKV = "model/model/decoder/0/pp_block/attn/qkv_proj"


@pytest.fixture(autouse=True)
def has_yaml():
    conftest.needs("yaml")


@pytest.fixture(params=[LLAMA, QWEN])
def case(request):
    return request.param


@pytest.fixture
def copy(tmp_path):
    """A folder that a test may change."""

    def make(name):
        return shutil.copytree(DATA / name, tmp_path / name)

    return make


def edit(path, change):
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def rewrite(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def deck_of(target):
    return checkpoint_file.deck_values((target / "input.deck").read_text())


def test_every_bit(case, tmp_path, tool):
    printed = tool("convert", "from-nanotron", DATA / case, tmp_path / "checkpoints").stdout
    folder = tmp_path / "checkpoints" / f"step_{STEP[case]:08d}"
    wanted = json.loads((DATA / f"{case}.json").read_text())["sha256"]
    with checkpoint_file.open_checkpoint(folder) as file:
        sizes = checkpoint_file.ModelSizes.from_attributes(file["parameters"])
        checkpoint_file.check_parameters(file, sizes)
        for name, digest in wanted.items():
            kind, dataset = name.split(":")
            values = file[f"parameters/{dataset}" if kind == "weights" else f"optimizer/{kind}/{dataset}"][()]
            assert hashlib.sha256(values.tobytes()).hexdigest() == digest, name
        assert len(wanted) == 3 * len(sizes.parameter_shapes())
        assert file["optimizer"].attrs["name"] == b"adamw"
        step, samples = STEP[case], 4 * STEP[case]
        assert dict(file["state"].attrs) == {"step": step, "adam_step": step, "sample_cursor": samples,
                                             "tokens_seen": 16 * samples, "seed": 7}
    assert ("fp32 copies of the optimizer" in printed) == (case == QWEN)
    assert "not taken over:\n  random states" in printed and "--data FILE" in printed


def test_the_deck(tmp_path, tool):
    tool("convert", "from-nanotron", DATA / QWEN, tmp_path / "checkpoints", "--data", "my's.h5")
    deck = deck_of(tmp_path / "checkpoints")
    assert {key: deck[key] for key in ("run.steps", "run.output_dir", "run.seed", "data.path", "data.global_batch_size",
                                       "data.micro_batch_size", "data.sequence_length", "precision.compute")} == {
        "run.steps": "14", "run.output_dir": str(tmp_path), "run.seed": "7", "data.path": "my's.h5",
        "data.global_batch_size": "4", "data.micro_batch_size": "2", "data.sequence_length": "16",
        "precision.compute": "bf16"}
    assert deck["schedule.kind"] == "1-sqrt" and deck["schedule.decay_steps"] == "12"
    assert deck["model.rope_layers"] == deck["model.window_layers"] == "1:1" and deck["model.sliding_window"] == "8"
    assert deck["model.qkv_bias"] == ".true." and deck["model.initializer_range"] == "0.25"
    without = deck["optimizer.no_weight_decay"].split()
    assert without[0] == "!*" and "model.embed_tokens.weight" in without and len(without) == 5
    tool("convert", "from-nanotron", DATA / LLAMA, tmp_path / "other")
    deck = deck_of(tmp_path / "other")
    assert deck["optimizer.no_weight_decay"] == "!*" and deck["checkpoint.directory"] == str(tmp_path / "other")


def test_the_program_accepts_the_deck(case, tmp_path, tool, programs):
    import subprocess

    tool("convert", "from-nanotron", DATA / case, tmp_path / "checkpoints", "--data", conftest.GOLDEN / "llama/tokens.h5")
    done = subprocess.run([programs / "nanotron_hpc", "--check", tmp_path / "checkpoints/input.deck"], text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert "vocabulary" in done.stdout or done.returncode == 0, done.stdout  # the token file is of another model


def rate_of_nanotron(i, peak, warmup, begin, length, lowest, style):
    """lr_lambda of lr_scheduler_builder, nanotron/helpers.py, written down once more."""
    if warmup == 0 and length == 0:
        return peak
    if i <= warmup:
        return peak * i / max(warmup, 1)
    if i < begin:
        return peak
    if i < begin + length:
        part = (i - begin) / length
        share = {"linear": 1 - part, "cosine": (1 + math.cos(math.pi * part)) / 2, "1-sqrt": 1 - math.sqrt(part)}[style]
        return lowest + (peak - lowest) * share
    return lowest


def rate_of_deck(s, peak, schedule, run):
    """As doc/numerics.md has it."""
    warmup, ratio = schedule["warmup_steps"], schedule.get("min_lr_ratio", 0.1)
    if s < warmup:
        return peak * (s + 1) / warmup
    if schedule["kind"] == "constant":
        return peak
    wsd = schedule["kind"] == "wsd"
    begin = run["steps"] - schedule["decay_steps"] if wsd else warmup
    part = min(max((s - begin) / schedule["decay_steps"], 0), 1)
    share = {"linear": 1 - part, "cosine": (1 + math.cos(math.pi * part)) / 2, "1-sqrt": 1 - math.sqrt(part)}[
        schedule["decay_shape"] if wsd else schedule["kind"]]
    return peak * (ratio + (1 - ratio) * share)


@pytest.mark.parametrize("style", ["linear", "cosine", "1-sqrt"])
@pytest.mark.parametrize("warmup, begin, length, step, lowest", [
    (2, None, 14, 6, 0.001), (2, None, 5, 6, 0.001), (2, 8, 4, 10, 0.001), (2, 8, 8, 3, 0.001), (2, 8, 14, 3, 0.001),
    (0, None, 16, 5, 0.0), (3, None, None, 5, 0.01), (3, None, 0, 5, 0.01), (3, 8, 4, 5, 0.001), (3, 3, 5, 3, None)])
def test_every_learning_rate(style, warmup, begin, length, step, lowest, copy):
    folder, left = copy(LLAMA), taken_over.Left()
    config = from_nanotron.Config(folder / "config.yaml")
    config.values["optimizer"]["learning_rate_scheduler"] |= {
        "lr_warmup_steps": warmup, "lr_decay_starting_step": begin, "lr_decay_steps": length, "min_decay_lr": lowest,
        "lr_decay_style": style}
    schedule, run = from_nanotron.schedule_of(config, step, left)
    last = min(16, step + run.get("stop_after_steps", 16), run["steps"])
    for i in range(step, last):
        theirs = rate_of_nanotron(i, 0.01, warmup, warmup if begin is None else begin, 16 - warmup if length is None else
                                  length, 0.01 if lowest is None else lowest, style)
        assert abs(rate_of_deck(i, 0.01, schedule, run) - theirs) < 1e-15, i
    assert (last < 16) == any("this run ends with its decay" in line for line in left.lines)


def test_a_rate_in_the_warm_up_is_told(copy):
    left = taken_over.Left()
    from_nanotron.schedule_of(from_nanotron.Config(copy(LLAMA) / "config.yaml"), 1, left)
    assert "(i + 1) / 2" in left.lines[0]


def test_without_optimizer(copy, tmp_path, tool):
    folder = copy(LLAMA)
    shutil.rmtree(folder / "optimizer")
    assert "moments start at zero" in tool("convert", "from-nanotron", folder, tmp_path / "out").stdout
    with checkpoint_file.open_checkpoint(tmp_path / "out/step_00000006") as file:
        assert "optimizer" not in file and file["state"].attrs["adam_step"] == 0


def test_the_newest_step_of_a_folder(copy, tmp_path, tool):
    (tmp_path / "run").mkdir()
    copy(LLAMA).rename(tmp_path / "run/6")
    (tmp_path / "run/latest.txt").write_text("6")
    tool("convert", "from-nanotron", tmp_path / "run", tmp_path / "out")
    assert (tmp_path / "out/step_00000006/manifest.json").is_file()


def test_what_is_told(copy, tmp_path, tool):
    folder = copy(LLAMA)
    rewrite(folder / "config.yaml", "z_loss_enabled: false", "z_loss_enabled: true")
    edit(folder / "model_config.json", lambda c: c.update(rope_scaling={"factor": 2}, new_key=3))
    edit(folder / "checkpoint_metadata.json", lambda m: m["metas"].update(consumed_tokens_total=999))
    told = tool("convert", "from-nanotron", folder, tmp_path / "out").stdout
    for words in ("z loss", "rope_scaling", "new_key = 3", "999, not 24 samples of 16"):
        assert words in told
    assert "new_key = 3" in (tmp_path / "out/input.deck").read_text()


def cut(path, count=200):
    path.write_bytes(path.read_bytes()[:-count])


def change_tensor(path, change):
    tensors = load_file(path)
    tensors["data"] = change(tensors["data"])
    save_file(tensors, path, metadata=st.read_metadata(path))


def change_state(folder, change, name="optimizer_pp-0-of-2_tp-1-of-2_exp-0-of-1.pt"):
    read = torch_file.load(folder / "optimizer" / name)

    def new(value):
        if isinstance(value, dict):
            return {key: new(each) for key, each in value.items()}
        if hasattr(value, "storage"):
            stored = read.stored(value, "")
            return torch_save.New.of(np.array(taken_over.elements(stored)).reshape(stored.shape))
        return [new(each) for each in value] if isinstance(value, list) else value

    content = new(read.object)
    change(content)
    torch_save.save(content, folder / "optimizer" / name)


SHARD = QKV + "/model_weight_pp-rank-0-of-2_tp-rank-1-of-2.safetensors"
STATES = "optimizer/optimizer_pp-0-of-2_tp-1-of-2_exp-0-of-1.pt"


@pytest.mark.parametrize("damage, words", [
    (lambda f: (f / SHARD).unlink(), "model_weight_pp-rank-*_tp-rank-1-of-2.safetensors"),
    (lambda f: (f / STATES).unlink(), "optimizer_pp-0-of-2_tp-1-of-2*.pt"),
    (lambda f: (f / "model/model/final_layer_norm/pp_block/model_weight.safetensors").unlink(), "no such file"),
    (lambda f: cut(f / SHARD), "not a safetensors file"), (lambda f: cut(f / STATES), "zip archive"),
    (lambda f: cut(f / "config.yaml", 40), "tokens"), (lambda f: (f / "config.yaml").write_text("a: [1"), "YAML"),
    (lambda f: (f / "config.yaml").write_text("a: !!python/object/apply:os.system ['true']"), "YAML"),
    (lambda f: (f / "checkpoint_metadata.json").unlink(), "checkpoint_metadata.json"),
    (lambda f: (f / "model_config.json").write_text("{"), "not JSON"),
    (lambda f: change_tensor(f / SHARD, lambda t: t.astype(np.int32)), "found:  I32"),
    (lambda f: change_tensor(f / SHARD, lambda t: t[:8]), "shape (16, 16) of a rank"),
    (lambda f: change_tensor(f / SHARD, lambda t: t * np.inf), "finite numbers"),
    (lambda f: shutil.copy(f / SHARD, f / "model/model" / "model_weight.safetensors"), "tensors of Llama's"),
    (lambda f: edit(f / "model_config.json", lambda c: c.update(hidden_size=32)), "unsharded_shape"),
    (lambda f: edit(f / "model_config.json", lambda c: c.update(num_hidden_layers=4)), "no such file"),
    (lambda f: edit(f / "model_config.json", lambda c: c.update(num_hidden_layers=2)), "model.decoder.2"),
    (lambda f: edit(f / "model_config.json", lambda c: c.update(is_llama_config=False, is_starcoder2_config=True)),
     "is_starcoder2_config"),
    (lambda f: edit(f / "model_config.json", lambda c: c.update(hidden_act="gelu")), "hidden_act"),
    (lambda f: edit(f / "model_config.json", lambda c: c.update(moe_config={"num_experts": 8})), "moe_config"),
    (lambda f: edit(f / "model_config.json", lambda c: c.pop("vocab_size")), "vocab_size"),
    (lambda f: edit(f / "checkpoint_metadata.json", lambda m: m.update(tp=1)), "each of 1 ranks"),
    (lambda f: edit(f / "checkpoint_metadata.json", lambda m: m.update(version="2.0")), "at most 1.5"),
    (lambda f: edit(f / "checkpoint_metadata.json", lambda m: m["metas"].update(last_train_step=3)), "at most the 3 steps"),
    (lambda f: edit(f / "optimizer/optimizer_config.json", lambda c: c["parallelism"].update(tp_size="4")), "tp_size 2"),
    (lambda f: edit(f / "optimizer/optimizer_config.json", lambda c: c["parallelism"].update(pp_size="3")), "pp-2-of-3"),
    (lambda f: rewrite(f / "config.yaml", "name: adamW", "name: sgd"), "optimizer_factory.name"),
    (lambda f: rewrite(f / "config.yaml", "lr_decay_style: cosine", "lr_decay_style: step"), "lr_decay_style"),
    (lambda f: rewrite(f / "config.yaml", "train_steps: 16", "train_steps: x"), "tokens.train_steps"),
    (lambda f: rewrite(f / "config.yaml", "std: 0.25", "use_mup: true"), "use_mup"),
    (lambda f: rewrite(f / "config.yaml", "dtype: float32", "dtype: float8"), "model.dtype"),
    (lambda f: change_state(f, lambda s: s["state"].pop(2) and s["names"].pop(2)), "state of model.decoder.0"),
    (lambda f: change_state(f, lambda s: s["state"][2].update(step=4.0)), "one number of updates"),
    (lambda f: change_state(f, lambda s: s["state"][2].update(exp_avg=s["state"][0]["exp_avg"])), "shape (16, 16)"),
    (lambda f: change_state(f, lambda s: s["state"][2].pop("exp_avg")), "exp_avg of model.decoder.0"),
    (lambda f: change_state(f, lambda s: s.update(state=[])), "state, names and param_groups"),
    (lambda f: change_state(f, lambda s: s["param_groups"][0].update(initial_lr=0.5), STATES[10:].replace("tp-1", "tp-0")),
     "learning rate of"),
])
def test_refused(damage, words, copy, tmp_path, tool):
    folder = copy(LLAMA)
    damage(folder)
    assert words in tool("convert", "from-nanotron", folder, tmp_path / "out", rc=65).stderr
    assert not (tmp_path / "out").exists() or not list((tmp_path / "out").glob("**/manifest.json"))


def test_refused_of_zero(copy, tmp_path, tool):
    folder = copy(QWEN)
    name = "optimizer_pp-0-of-1_dp-1-of-2_tp-0-of-1_exp-0-of-1.pt"
    (folder / "optimizer" / name).rename(tmp_path / "kept")
    assert "optimizer_pp-0-of-1_dp-1-of-2_tp-0-of-1*.pt" in tool(
        "convert", "from-nanotron", folder, tmp_path / "out", rc=65).stderr
    shutil.copy(tmp_path / "kept", folder / "optimizer" / name)
    change_state(folder, lambda s: s["state"].pop(15) and s["names"].pop(15), name)
    assert "found:  8\n" in tool("convert", "from-nanotron", folder, tmp_path / "out", rc=65).stderr
    shutil.copy(tmp_path / "kept", folder / "optimizer" / name)
    edit(folder / "optimizer/optimizer_config.json", lambda c: c["configs"]["param_name_to_dp_rank_offsets"][
        "model.final_layer_norm.pp_block.weight"].update({"1": ["4", "16"]}))
    assert "param_name_to_dp_rank_offsets" in tool("convert", "from-nanotron", folder, tmp_path / "out", rc=65).stderr


def test_weights_of_another_step(copy, tmp_path, tool):
    """They have the shapes of the right ones; the fp32 copies of the optimizer tell them."""
    folder = copy(QWEN)
    names = [f"model/model/decoder/{layer}/pp_block/input_layernorm/model_weight.safetensors" for layer in (0, 1)]
    assert (folder / names[0]).read_bytes() != (folder / names[1]).read_bytes()
    shutil.copy(folder / names[0], folder / names[1])
    said = tool("convert", "from-nanotron", folder, tmp_path / "out", rc=65).stderr
    assert names[1] in said and "fp32 copies of the optimizer, rounded" in said
    assert not [*(tmp_path / "out").iterdir()]


def test_bytes_that_belong_to_no_tensor(copy, tmp_path, tool):
    folder = copy(LLAMA)
    path = folder / "model/model/decoder/0/pp_block/input_layernorm/model_weight.safetensors"
    path.write_bytes(path.read_bytes() + bytes(4))
    assert "bytes of data" in tool("convert", "from-nanotron", folder, tmp_path / "out", rc=65).stderr


def test_a_later_checkpoint_is_kept(tmp_path, tool):
    tool("convert", "from-nanotron", DATA / LLAMA, tmp_path / "out")
    assert "holds a checkpoint" in tool("convert", "from-nanotron", DATA / LLAMA, tmp_path / "out", rc=65).stderr
    assert "expected no later" in tool("convert", "from-nanotron", DATA / QWEN, tmp_path / "out", rc=65).stderr
    tool("convert", "from-nanotron", DATA / LLAMA, tmp_path / "out", "--overwrite")


@pytest.mark.parametrize("columns", [1, 3, 7])
def test_stretches_of_a_shard(columns, tmp_path):
    """Rectangles of every stretch, put together again, are the stretch."""
    values = np.arange(7 * columns, dtype=np.float32)
    path = tmp_path / "a"
    path.write_bytes(values.tobytes())
    for begin in range(values.size):
        for end in range(begin + 1, values.size + 1):
            stored = st.StoredTensor(path, "F32", (end - begin,), 4 * begin)
            whole = np.full((7, columns), -1.0)
            for row, column, matrix in taken_over.rectangles(stored, begin, columns):
                rows, width = matrix.shape
                whole[row:row + rows, column:column + width] = taken_over.elements(matrix)
            wanted = np.where((values >= begin) & (values < end), values, -1)
            assert np.array_equal(whole.reshape(-1), wanted)


def test_a_part_written_twice_is_found():
    filled = taken_over.Filled()
    filled.add("a", 8)
    filled.check({"a": (2, 4)}, "weights", "here")
    filled.add("a", 1)
    with pytest.raises(common.ToolError, match="found:  9"):
        filled.check({"a": (2, 4)}, "weights", "here")


def test_names_are_those_of_the_checkpoint(tmp_path, tool):
    tool("convert", "from-nanotron", DATA / LLAMA, tmp_path / "out")
    with h5py.File(tmp_path / "out/step_00000006/checkpoint.h5") as file:
        assert file["parameters/model/layers/mlp/gate_proj/weight"].shape == (3, 24, 16)
        assert file["optimizer/exp_avg_sq/lm_head/weight"].shape == (64, 16)
