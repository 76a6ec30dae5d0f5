# timeout: 300
"""nanotron_convert to-nanotron: folders as Nanotron's own code writes and reads them (tests/data/nanotron), there and back
to the bit; and what is refused."""

import json

import conftest
import h5py
import numpy as np
import pytest

from nanotron_tools import checkpoint as checkpoint_file
from nanotron_tools import common, nanotron_config, nanotron_names, taken_over, torch_file
from nanotron_tools import safetensors as st

DATA = conftest.ROOT / "tests/data/nanotron"
LLAMA, QWEN = "llama_tp2_pp2", "qwen2_zero1_dp2"
STEP = {LLAMA: 6, QWEN: 4}
EMBEDDING, NORM = "model.token_position_embeddings.pp_block.token_embedding.weight", "model.final_layer_norm.pp_block.weight"


@pytest.fixture(autouse=True)
def has_yaml():
    conftest.needs("yaml")


@pytest.fixture
def ours(tmp_path, tool):
    """A checkpoint of ours, its deck beside it."""

    def make(name=LLAMA):
        tool("convert", "from-nanotron", DATA / name, tmp_path / name)
        return tmp_path / name

    return make


def content_of(path):
    """Every array and attribute but those that say how the file came to be."""
    found = {}

    def visit(name, item):
        if not name.startswith("provenance"):
            found.update({f"{name} {key}": value for key, value in item.attrs.items()})
            if isinstance(item, h5py.Dataset):
                found[name] = item[()]

    with h5py.File(path / "checkpoint.h5") as file:
        file.visititems(visit)
    return found


def deck_of(folder):
    lines = (folder / "input.deck").read_text().splitlines()
    return [line for line in lines if not line.startswith("!") and str(folder) not in line]


def write(tool, folder, target, *options, rc=0):
    return tool("convert", "to-nanotron", folder, target, "--deck", folder / "input.deck", *options, rc=rc)


@pytest.mark.parametrize("case", [LLAMA, QWEN])
@pytest.mark.parametrize("tp, pp", [(1, 1), (2, 1), (1, 2), (2, 2)])
def test_there_and_back(case, tp, pp, ours, tmp_path, tool):
    folder, step = ours(case), f"step_{STEP[case]:08d}"
    said = write(tool, folder, tmp_path / "theirs", "--tp", tp, "--pp", pp).stdout
    assert f"dp 1 x tp {tp} x pp {pp}" in said and "random states" in said and "dataset is null" in said
    tool("convert", "from-nanotron", tmp_path / "theirs", tmp_path / "back")
    one, other = content_of(folder / step), content_of(tmp_path / "back" / step)
    assert one.keys() == other.keys() and sum(value.ndim > 0 for value in map(np.asarray, one.values())) > 30
    for name, value in one.items():
        assert np.array_equal(value, other[name]), name
    assert deck_of(folder) == deck_of(tmp_path / "back")


def load(path):
    return torch_file.load(path)


def values_of(archive, tensor):
    return taken_over.elements(archive.stored(tensor, "a tensor"))


def test_files_are_those_of_nanotron(ours, tmp_path, tool):
    write(tool, ours(), tmp_path / "theirs", "--tp", 2, "--pp", 2)
    have, want = tmp_path / "theirs/6", DATA / LLAMA
    names = {path.relative_to(want) for path in want.rglob("*") if path.is_file()}
    written = {path.relative_to(have) for path in have.rglob("*") if path.is_file()}
    assert {name for name in written if name.parts[0] != "lr_scheduler"} == names
    for name in sorted(names):
        if name.suffix == ".safetensors":
            of = [st.read_metadata(root / name) for root in (have, want)]
            assert of[0].get("local_global_slices_pairs") == of[1].get("local_global_slices_pairs"), name
            assert of[0].get("version") == of[1].get("version")
            assert np.array_equal(*(taken_over.elements(st.read_header(root / name)["data"]) for root in (have, want)))
        if name.suffix == ".pt":
            one, other = load(have / name), load(want / name)
            assert one.object["names"] == other.object["names"] and one.object.keys() == other.object.keys()
            for index, state in other.object["state"].items():
                for kind, tensor in state.items():
                    assert one.object["state"][index][kind].shape == tensor.shape
                    assert np.array_equal(values_of(one, one.object["state"][index][kind]), values_of(other, tensor))
            for group, wanted in zip(one.object["param_groups"], other.object["param_groups"], strict=True):
                assert group == wanted | {"lr": 0.01}  # the peak, which Nanotron builds its schedule from
    for name in ("checkpoint_metadata.json", "optimizer/optimizer_config.json"):
        one, other = (json.loads((root / name).read_text()) for root in (have, want))
        for each in (one, other):
            for stage in each.get("metas", {}).get("data_stages", []):
                stage["consumed_tokens_per_dataset_folder"] = [*stage["consumed_tokens_per_dataset_folder"].values()]
        assert one == other
    assert (tmp_path / "theirs/latest.txt").read_text() == "6"


def test_the_scheduler(ours, tmp_path, tool):
    """load_lr_scheduler makes one step: the next update then has the rate of step 6."""
    write(tool, ours(), tmp_path / "theirs", "--pp", 2)
    for stage, count in enumerate((13, 8)):
        state = load(tmp_path / f"theirs/6/lr_scheduler/lr_scheduler_pp-{stage}-of-2_tp-0-of-1_exp-0-of-1.pt").object
        assert state["last_epoch"] == 5 and state["base_lrs"] == [0.01] * count
        assert state["lr_lambdas"] == [{}] * count


def test_tied_embeddings_on_two_stages(ours, tmp_path, tool):
    write(tool, ours(QWEN), tmp_path / "theirs", "--tp", 2, "--pp", 2)
    first, last = (load(tmp_path / f"theirs/4/optimizer/optimizer_pp-{stage}-of-2_tp-1-of-2_exp-0-of-1.pt")
                   for stage in (0, 1))
    assert first.object["names"][0] == EMBEDDING and last.object["names"] == {0: NORM, 1: EMBEDDING}
    shards = sorted(path.name for path in (tmp_path / "theirs/4/model").rglob("*token_embedding/*"))
    assert shards == [f"model_weight_pp-rank-0-of-2_tp-rank-{rank}-of-2.safetensors" for rank in (0, 1)]
    for archive, index in ((first, 0), (last, 1)):
        master = values_of(archive, archive.object["gradient_accumulator"][EMBEDDING])
        assert master.dtype == np.float32 and master.shape == (32, 16)
        assert archive.object["param_groups"][index]["weight_decay"] == 0.0
        stored = st.read_header(next((tmp_path / "theirs/4/model").rglob("*token_embedding/*tp-rank-1*")))["data"]
        assert stored.dtype == "BF16" and np.array_equal(taken_over.elements(stored), st.fp32_to_bf16(master))
    assert [group["weight_decay"] for group in first.object["param_groups"]][1:5] == [0.1, 0.1, 0.1, 0.0]  # 0.0: bias


@pytest.mark.parametrize("layers, vocabulary, pp, wanted", [
    (2, 64, 2, [2, 0]), (3, 64, 2, [2, 1]), (4, 64, 4, [2, 1, 1, 0]), (8, 64, 2, [5, 3])])
def test_stages_are_those_of_build_model(layers, vocabulary, pp, wanted):
    sizes = checkpoint_file.ModelSizes(16, layers, 4, 2, 4, 24, vocabulary)
    wholes = list(nanotron_names.wholes_of(sizes, False))
    found = nanotron_config.stages(wholes, sizes, pp, "here")
    assert [sum(whole.name.endswith("o_proj.weight") for whole in stage) for stage in found] == wanted
    assert [whole for stage in found for whole in stage] == wholes
    with pytest.raises(common.ToolError, match="none on stage 1"):  # the head costs more than half of the model
        nanotron_config.stages(wholes, checkpoint_file.ModelSizes(16, layers, 4, 2, 4, 24, 8192), 2, "here")


def test_what_another_config_has_is_kept(ours, tmp_path, tool):
    import yaml

    config = yaml.safe_load((DATA / LLAMA / "config.yaml").read_text())
    config["data_stages"][0]["data"]["dataset"] = {"dataset_folder": ["/a", "/b"]}
    config["model"]["model_config"]["eos_token_id"] = 7
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    said = write(tool, ours(), tmp_path / "theirs", "--config", tmp_path / "config.yaml", "--dp", 2).stdout
    assert "all is counted at /a" in said and "dataset is null" not in said
    found = yaml.safe_load((tmp_path / "theirs/6/config.yaml").read_text())
    assert found["data_stages"] == config["data_stages"] and found["model"]["model_config"]["eos_token_id"] == 7
    assert found["parallelism"] == config["parallelism"] | {"dp": 2, "tp": 1, "pp": 1}
    assert found["tokens"] == config["tokens"] | {"batch_accumulation_per_replica": 1}
    assert found["general"] == config["general"] and found["checkpoints"] == config["checkpoints"] | {
        "resume_checkpoint_path": str(tmp_path / "theirs")}
    for key in ("learning_rate_scheduler", "optimizer_factory", "weight_decay", "clip_grad"):
        assert found["optimizer"][key] == config["optimizer"][key], key


def test_moments_of_none(ours, tmp_path, tool):
    folder = ours()
    with h5py.File(folder / "step_00000006/checkpoint.h5", "r+") as file:
        file["optimizer"].attrs["name"] = "lion"
    checkpoint_file.write_manifest(folder / "step_00000006", 6)
    assert "those of optimizer lion" in write(tool, folder, tmp_path / "theirs").stdout
    archive = load(tmp_path / "theirs/6/optimizer/optimizer_pp-0-of-1_tp-0-of-1_exp-0-of-1.pt")
    for state in archive.object["state"].values():
        assert not any(values_of(archive, tensor).any() for tensor in state.values())


@pytest.mark.parametrize("options, words", [
    (("--tp", 4), "key and value heads that divide by --tp 4"), (("--tp", 3), "query heads"), (("--pp", 4), "3 layers"),
    (("--pp", 0), "--pp between 1"), (("--tp", 0), "--tp"), (("--dp", 3), "global_batch_size")])
def test_grids_that_do_not_fit(options, words, ours, tmp_path, tool):
    assert words in write(tool, ours(), tmp_path / "theirs", *options, rc=64).stderr
    assert not (tmp_path / "theirs").exists()


def change_deck(old, new):
    def change(folder):
        text = (folder / "input.deck").read_text()
        assert old in text
        (folder / "input.deck").write_text(text.replace(old, new))

    return change


def change_model(**values):
    def change(folder):
        with h5py.File(folder / "step_00000006/checkpoint.h5", "r+") as file:
            for key, value in values.items():
                file["parameters"].attrs[key] = value
        checkpoint_file.write_manifest(folder / "step_00000006", 6)

    return change


def add_adapters(folder):
    with h5py.File(folder / "step_00000006/checkpoint.h5", "r+") as file:
        file["adapters"] = "rank"
    checkpoint_file.write_manifest(folder / "step_00000006", 6)


@pytest.mark.parametrize("change, words", [
    (change_model(rope_type=np.bytes_("linear"), rope_factor=2.0), "model%rope_factor = 2.0"),
    (change_model(hidden_act=np.bytes_("geglu")), "model%hidden_act = 'geglu'"),
    (change_model(rope_layers=np.bytes_("0")), "model%rope_layers"),
    (change_model(attention_multiplier=0.5), "model%attention_multiplier"),
    (change_model(num_nextn_predict_layers=1), "num_nextn_predict_layers"), (add_adapters, "nanotron-convert merge"),
    (change_deck("'cosine'", "'inverse-sqrt'"), "schedule%kind"),
    (change_deck("no_weight_decay      = '!*'", "no_weight_decay = '*q_proj*'"), "optimizer%no_weight_decay"),
    (change_deck("steps                = 16", "steps = many"), "run%steps")])
def test_refused(change, words, ours, tmp_path, tool):
    folder = ours()
    change(folder)
    assert words in write(tool, folder, tmp_path / "theirs", rc=64 if words == "run%steps" else 65).stderr
    assert not (tmp_path / "theirs").exists()


def test_no_deck_and_a_folder_that_exists(ours, tmp_path, tool):
    folder = ours()
    assert "--deck FILE" in tool("convert", "to-nanotron", folder, tmp_path / "theirs", rc=64).stderr
    write(tool, folder, tmp_path / "theirs", "--tp", 2)
    assert "--overwrite" in write(tool, folder, tmp_path / "theirs", rc=65).stderr
    write(tool, folder, tmp_path / "theirs", "--overwrite")
    tool("convert", "from-nanotron", tmp_path / "theirs", tmp_path / "back")  # no shards of tp 2 are left


@pytest.mark.parametrize("patterns, decays", [
    ("", True), ("*q_proj*", False), ("* !model.layers.3.*", True), ("model.layers.self_attn.q_proj.weight", False),
    ("!*,*proj*", False)])
def test_patterns(patterns, decays):
    deck = nanotron_config.Deck(f"&optimizer\n  weight_decay = 0.5\n  no_weight_decay = '{patterns}'\n/\n", "here")
    whole = nanotron_names.Whole("a", (4, 4), (taken_over.Part(0, 4, "model/layers/self_attn/q_proj/weight", (3,)),))
    assert nanotron_config.weight_decays(whole, deck) == (0.5 if decays else 0.0)


def test_a_schedule_of_every_kind():
    def of(text, steps=100, step=50):
        deck = nanotron_config.Deck(f"&run\n  steps = {steps}\n/\n&optimizer\n  learning_rate = 1.0d-2\n/\n&schedule\n"
                                    f"{text}/\n", "here")
        found = nanotron_config.schedule(deck, step, left)
        return tuple(found[key] for key in ("lr_decay_style", "lr_decay_starting_step", "lr_decay_steps", "min_decay_lr"))

    left = taken_over.Left()
    assert of("  warmup_steps = 10\n") == ("linear", None, 90, 0.01)
    assert of("  kind = '1-sqrt'\n  decay_steps = 20\n  min_lr_ratio = 0.0\n") == ("1-sqrt", None, 20, 0.0)
    assert of("  kind = 'wsd'\n  decay_shape = 'cosine'\n") == ("cosine", 90, 10, 0.001)
    assert not left.lines
    of("  warmup_steps = 60\n")
    assert "(i + 1) / 60" in left.lines[0]
    with pytest.raises(common.ToolError, match="inverse-sqrt"):
        of("  kind = 'inverse-sqrt'\n")


