# timeout: 600
"""nanotron_convert: round trips bit for bit, bf16, shards, tied heads, and what is refused."""

import json
from dataclasses import replace

import conftest
import h5py
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from nanotron_tools import convert as nc
from nanotron_tools import checkpoint as checkpoint_file
from nanotron_tools import hf_config, layouts
from nanotron_tools import safetensors as st
from nanotron_tools import tokenizers

DENSE = ("llama", "qwen2", "qwen3")
CASES = DENSE + ("mixtral", "qwen2_moe", "qwen3_moe") + conftest.FAMILIES
STEP = "step_00000000"
TO_HF = ("to-hf", "--max-positions", "128", "--eos-id", "none")  # golden checkpoints have no deck that says them


def parameters(folder):
    found = {}
    with checkpoint_file.open_checkpoint(folder) as file:
        file["parameters"].visititems(
            lambda name, item: found.update({name: item[()]}) if hasattr(item, "shape") else None)
    return found


def assert_same(a, b):
    assert a.keys() == b.keys()
    for name in a:
        assert a[name].dtype == b[name].dtype and np.array_equal(a[name], b[name]), name


@pytest.mark.parametrize("case", CASES)
def test_round_trip_is_bitwise(case, golden, tmp_path, tool):
    start = parameters(golden / case / STEP)
    tool("convert", *TO_HF, golden / case, tmp_path / "hf")
    printed = tool("convert", "from-hf", tmp_path / "hf", tmp_path / "back").stdout
    assert_same(start, parameters(tmp_path / "back" / STEP))
    group = json.loads((golden / case / "golden.json").read_text())["model"]
    with h5py.File(tmp_path / "back" / STEP / checkpoint_file.CHECKPOINT_FILE, "r") as file:
        assert checkpoint_file.ModelSizes.from_attributes(file["parameters"]) == checkpoint_file.ModelSizes(**group)
        assert "optimizer" not in file
        assert file["state"].attrs["step"] == 0
    assert (tmp_path / "back" / "model.nml").read_text() in printed
    assert "hidden_size          = 32\n" in printed


def test_tokenizer_is_remembered(golden, tmp_path, tool):
    tool("convert", *TO_HF, golden / "llama", tmp_path / "hf")
    description = {"model": {"type": "BPE", "vocab": {"né": 1}, "merges": []}}
    (tmp_path / "hf" / "tokenizer.json").write_text(json.dumps(description, indent=2), encoding="utf-8")
    sha256 = tokenizers.hash_of(description)  # that of token files made with it
    tool("convert", "from-hf", tmp_path / "hf", tmp_path / "back")
    assert sha256 in tool("ls", tmp_path / "back" / STEP).stdout
    exported = tool("convert", *TO_HF, tmp_path / "back" / STEP, tmp_path / "again")
    assert sha256 in exported.stdout and "warning" not in exported.stderr
    (tmp_path / "again" / "tokenizer.json").write_text("{}")
    assert "is another one" in tool("convert", "to-hf", tmp_path / "back" / STEP, tmp_path / "again", "--overwrite").stderr


@pytest.mark.parametrize("case, gate, expert, shared", [
    ("mixtral", "block_sparse_moe.gate", "block_sparse_moe.experts.3.w2", None),
    ("qwen2_moe", "mlp.gate", "mlp.experts.3.down_proj", "mlp.shared_expert.up_proj"),
    ("qwen3_moe", "mlp.gate", "mlp.experts.3.down_proj", None)])
def test_names_of_experts(case, gate, expert, shared, golden, tmp_path, tool):
    """As in published models of each architecture."""
    tool("convert", *TO_HF, golden / case, tmp_path / "hf")
    tensors, stacks = load_file(tmp_path / "hf" / "model.safetensors"), parameters(golden / case / STEP)

    def same(theirs, ours, *expert):
        return np.array_equal(tensors[f"model.layers.1.{theirs}.weight"],
                              stacks[f"model/layers/mlp/{ours}/weight"][(*expert, 1)])

    assert same(gate, "gate") and same(expert, "experts/down_proj", 3)
    if shared:
        assert same(shared, "shared_expert/up_proj") and same("mlp.shared_expert_gate", "shared_expert_gate")
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    sizes = json.loads((golden / case / "golden.json").read_text())["model"]
    assert config["model_type"] == case
    assert config["num_local_experts" if case == "mixtral" else "num_experts"] == sizes["num_experts"]
    if case != "mixtral":
        assert config["norm_topk_prob"] == sizes["norm_topk_prob"]


@pytest.mark.parametrize("config, word", [
    ({"decoder_sparse_step": 2}, "decoder_sparse_step"),
    ({"mlp_only_layers": [0]}, "mlp_only_layers"),
    ({"router_jitter_noise": 0.1}, "router_jitter_noise"),
])
def test_refused_of_experts(config, word, hf, tmp_path, tool):
    assert word in tool("convert", "from-hf", hf("qwen3_moe", **config), tmp_path / "out", rc=65).stderr


def test_experts_of_no_architecture(golden, tmp_path, tool):
    tool("convert", *TO_HF, golden / "mixtral", tmp_path / "hf")
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    (tmp_path / "hf" / "config.json").write_text(json.dumps(config | {"sliding_window": 4096}))
    assert "sliding" in tool("convert", "from-hf", tmp_path / "hf", tmp_path / "out", rc=65).stderr
    sizes = checkpoint_file.ModelSizes(**json.loads((golden / "mixtral" / "golden.json").read_text())["model"])
    with pytest.raises(Exception, match="nearest: MixtralForCausalLM with norm_topk_prob = True"):
        hf_config.kind_of(replace(sizes, norm_topk_prob=False), "here")


@pytest.mark.parametrize("case", DENSE)
def test_hugging_face_names_and_layout(case, golden, tmp_path, tool):
    """The safetensors package reads our file: each layer's tensor is a slice of the stack."""
    tool("convert", *TO_HF, golden / case / STEP, tmp_path / "hf")
    tensors = load_file(tmp_path / "hf" / "model.safetensors")
    stacks = parameters(golden / case / STEP)
    assert np.array_equal(tensors["model.layers.1.self_attn.k_proj.weight"],
                          stacks["model/layers/self_attn/k_proj/weight"][1])
    assert np.array_equal(tensors["model.embed_tokens.weight"], stacks["model/embed_tokens/weight"])
    assert ("lm_head.weight" in tensors) == (case != "qwen2")
    assert ("model.layers.0.self_attn.q_proj.bias" in tensors) == (case == "qwen2")
    assert ("model.layers.0.self_attn.q_norm.weight" in tensors) == (case == "qwen3")
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert config["model_type"] == case
    assert config["head_dim"] == (12 if case == "qwen3" else 8)
    with safe_open(tmp_path / "hf" / "model.safetensors", "np") as file:
        assert file.metadata() == {"format": "pt"}


def test_layout_of_gpt2(golden, tmp_path, tool):
    """transformers' Conv1D holds (in, out), q, k and v beside each other."""
    warned = tool("convert", *TO_HF, golden / "gpt2" / STEP, tmp_path / "hf").stderr
    assert "--max-positions 128 has no effect: the model has learned 32 positions" in warned
    tensors, stacks = load_file(tmp_path / "hf" / "model.safetensors"), parameters(golden / "gpt2" / STEP)
    layers, first = "model/layers/", "transformer.h.1."
    fused = np.concatenate([stacks[f"{layers}self_attn/{name}_proj/weight"][1] for name in "qkv"])
    assert np.array_equal(tensors[first + "attn.c_attn.weight"], fused.T)
    assert np.array_equal(tensors[first + "attn.c_proj.weight"], stacks[layers + "self_attn/o_proj/weight"][1].T)
    assert np.array_equal(tensors[first + "mlp.c_fc.weight"], stacks[layers + "mlp/up_proj/weight"][1].T)
    assert np.array_equal(tensors[first + "mlp.c_proj.bias"], stacks[layers + "mlp/down_proj/bias"][1])
    assert np.array_equal(tensors[first + "ln_2.bias"], stacks[layers + "post_attention_layernorm/bias"][1])
    assert np.array_equal(tensors["transformer.wpe.weight"], stacks["model/embed_positions/weight"])
    assert "lm_head.weight" not in tensors
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert (config["n_positions"], config["activation_function"], config["n_inner"]) == (32, "gelu_new", 90)


def test_phi3_and_back(golden, hf, tmp_path, tool):
    """q | k | v and gate | up are one tensor each."""
    def fuse(data):
        for layer in range(2):
            prefix = f"model.layers.{layer}."
            for block, fused, parts in (("self_attn.", "qkv_proj", "qkv"), ("mlp.", "gate_up_proj", ("gate", "up"))):
                data[f"{prefix}{block}{fused}.weight"] = np.concatenate(
                    [data.pop(f"{prefix}{block}{part}_proj.weight") for part in parts])

    folder = hf("mistral", fuse, architectures=["Phi3ForCausalLM"], model_type="phi3",
                original_max_position_embeddings=128)
    tool("convert", "from-hf", folder, tmp_path / "back")
    assert_same(parameters(golden / "mistral" / STEP), parameters(tmp_path / "back" / STEP))
    tool("convert", *TO_HF, tmp_path / "back", tmp_path / "again")
    first, again = load_file(folder / "model.safetensors"), load_file(tmp_path / "again" / "model.safetensors")
    assert_same(first, again)
    assert json.loads((tmp_path / "again" / "config.json").read_text())["model_type"] == "phi3"


def rename(data, *pairs):
    for name in list(data):
        new = name
        for ours, theirs in pairs:
            new = new.replace(ours, theirs)
        data[new] = data.pop(name)


def per_key_value_head(data):
    """InternLM 2's wqkv: 'b q (h gs d) -> b q h gs d', of which the last two of gs are the key and the value."""
    for layer in range(2):
        prefix = f"model.layers.{layer}.self_attn."
        q, k, v = (data.pop(f"{prefix}{part}_proj.weight") for part in "qkv")
        parts = [q.reshape(2, 2, 8, 32), k.reshape(2, 1, 8, 32), v.reshape(2, 1, 8, 32)]
        data[f"{prefix}wqkv.weight"] = np.concatenate(parts, axis=1).reshape(-1, 32)
    rename(data, ("self_attn.o_proj", "self_attn.wo"), ("self_attn", "attention"), ("mlp.gate_proj", "feed_forward.w1"),
           ("mlp.up_proj", "feed_forward.w3"), ("mlp.down_proj", "feed_forward.w2"), ("input_layernorm", "attention_norm"),
           ("post_attention_layernorm", "ffn_norm"), ("embed_tokens", "tok_embeddings"), ("lm_head", "output"))


def of_exaone(data):
    rename(data, ("model.layers", "transformer.h"), ("model.embed_tokens", "transformer.wte"),
           ("model.norm", "transformer.ln_f"), ("self_attn.o_proj", "self_attn.out_proj"),
           ("self_attn", "attn.attention"), ("gate_proj", "c_fc_0"), ("up_proj", "c_fc_1"), ("down_proj", "c_proj"),
           ("input_layernorm", "ln_1"), ("post_attention_layernorm", "ln_2"))


def in_pairs(data):
    """ERNIE's and Helium's rotary embedding turns rows 2i and 2i + 1 of a head."""
    for name in data:
        if "q_proj" in name or "k_proj" in name:
            data[name] = data[name].reshape(-1, 2, 4, 32).transpose(0, 2, 1, 3).reshape(-1, 32).copy()


@pytest.mark.parametrize("kind, name, change, keys", [
    ("internlm2", "InternLM2", per_key_value_head, {"bias": False}), ("helium", "Helium", in_pairs, {}),
    ("internlm3", "InternLM3", None, {"bias": False, "qkv_bias": False}), ("ernie4_5", "Ernie4_5", in_pairs, {}),
    ("exaone", "Exaone", of_exaone, {"num_layers": 2, "layer_norm_epsilon": 1e-5, "activation_function": "silu"})])
def test_llamas_in_other_layouts(kind, name, change, keys, golden, hf, tmp_path, tool, monkeypatch):
    """Llama's golden weights, whose numbers are PyTorch's, as each architecture has them."""
    monkeypatch.setattr(st, "PIECE_BYTES", 1000)
    folder = hf("llama", change, architectures=[name + "ForCausalLM"], model_type=kind, **keys)
    code = {"AutoConfig": f"configuration_{kind}.{name}Config", "AutoTokenizer": "tokenization.Other"}
    config = json.loads((folder / "config.json").read_text()) | {"auto_map": code}
    (folder / "config.json").write_text(json.dumps(config))
    assert "(auto_map) is not read" in tool("convert", "from-hf", folder, tmp_path / "out").stderr
    assert_same(parameters(golden / "llama" / STEP), parameters(tmp_path / "out" / STEP))
    tool("convert", *TO_HF, tmp_path / "out", tmp_path / "again")
    exported = json.loads((tmp_path / "again" / "config.json").read_text())["model_type"]
    assert exported == (kind if kind in ("helium", "ernie4_5") else "llama")
    tool("convert", "from-hf", tmp_path / "again", tmp_path / "back")
    assert_same(parameters(golden / "llama" / STEP), parameters(tmp_path / "back" / STEP))


def test_head_of_gpt_neox_as_transformers_5_has_it(golden):
    """save_original_format=False names it as all heads."""
    sizes = checkpoint_file.ModelSizes(**json.loads((golden / "gpt_neox" / "golden.json").read_text())["model"])
    tensors = {name: st.StoredTensor("", "F32", stored.shape, 0)
               for name, stored in layouts.stored_tensors(sizes, "gpt_neox").items()}
    tensors["lm_head.weight"] = tensors.pop("embed_out.weight")
    assert "embed_out.weight" in layouts.match(layouts.with_full_names(tensors, "gpt_neox"), sizes, "gpt_neox", "")


def test_orion_has_layer_norms(hf, tmp_path, tool):
    def add_biases(data):
        for name in [name for name in data if "norm.weight" in name]:
            data[name.replace("weight", "bias")] = data[name] / 8

    folder = hf("llama", add_biases, architectures=["OrionForCausalLM"], model_type="orion")
    printed = tool("convert", "from-hf", folder, tmp_path / "out").stdout
    assert "normalization        = 'layer_norm'" in printed
    told = tool("convert", *TO_HF, tmp_path / "out", tmp_path / "again").stdout
    assert "StableLmForCausalLM" in told  # the same layers, in a class of transformers
    assert_same(load_file(folder / "model.safetensors"), load_file(tmp_path / "again" / "model.safetensors"))


@pytest.mark.parametrize("mask", [np.float32, np.uint8, np.bool_])
def test_gpt2_as_published(mask, golden, hf, tmp_path, tool):
    """The backbone alone, with the masks that old versions saved, and dropout that is told and left out."""
    def as_published(data):
        for name in list(data):
            data[name.removeprefix("transformer.")] = data.pop(name)
        data["h.0.attn.bias"] = np.ones((1, 1, 32, 32), mask)
        data["h.0.attn.masked_bias"] = np.array(-10000.0, np.float32)

    folder = hf("gpt2", as_published, resid_pdrop=0.1, n_ctx=32, task_specific_params={"text-generation": {}})
    told = tool("convert", "from-hf", folder, tmp_path / "out").stderr
    assert "dropout in training (resid_pdrop)" in told and "n_ctx" not in told
    assert_same(parameters(golden / "gpt2" / STEP), parameters(tmp_path / "out" / STEP))


@pytest.mark.parametrize("config, word", [
    ({"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx"),
    ({"scale_attn_weights": False}, "scale_attn_weights"),
    ({"activation_function": "relu"}, "activation_function 'relu'"),
    ({"add_cross_attention": True}, "cross attention"),
    ({"n_head": 3}, "not a multiple"),
])
def test_refused_of_gpt2(config, word, hf, tmp_path, tool):
    assert word in tool("convert", "from-hf", hf("gpt2", **config), tmp_path / "out", rc=65).stderr


def test_bf16_there_and_back(golden, tmp_path, tool):
    """bf16 -> checkpoint -> bf16 keeps the bits; fp32 -> bf16 is the nearest."""
    tool("convert", *TO_HF, golden / "llama", tmp_path / "hf", "--dtype", "bf16")
    tool("convert", "from-hf", tmp_path / "hf", tmp_path / "wide")
    tool("convert", *TO_HF, tmp_path / "wide", tmp_path / "again", "--dtype", "bf16")
    first = (tmp_path / "hf" / "model.safetensors").read_bytes()
    assert first == (tmp_path / "again" / "model.safetensors").read_bytes()
    assert json.loads((tmp_path / "hf" / "config.json").read_text())["torch_dtype"] == "bfloat16"
    start, wide = parameters(golden / "llama" / STEP), parameters(tmp_path / "wide" / STEP)
    for name in start:
        assert wide[name].dtype == np.float32
        assert np.abs(wide[name] - start[name]).max() <= np.abs(start[name]).max() / 256


def test_router_biases_stay_wide_and_later_layers_are_left_out(golden, hf, tmp_path, tool):
    """DeepSeek-V3 as published: e_score_correction_bias in fp32 beside bf16, layers that predict further tokens."""
    tool("convert", *TO_HF, golden / "deepseek_v3", tmp_path / "hf", "--dtype", "bf16")
    types = {name: tensor.dtype for name, tensor in st.read_tensors(tmp_path / "hf").items()}
    assert {name for name, dtype in types.items() if dtype == "F32"} == {
        f"model.layers.{layer}.mlp.gate.e_score_correction_bias" for layer in (1, 2)}
    tool("convert", "from-hf", tmp_path / "hf", tmp_path / "wide")
    bias = "model/layers/mlp/gate/e_score_correction_bias"
    start, wide = parameters(golden / "deepseek_v3" / STEP), parameters(tmp_path / "wide" / STEP)
    assert np.array_equal(start[bias], wide[bias])

    def further(data):
        data["model.layers.3.eh_proj.weight"] = np.ones((4, 8), np.float32)
        data["model.layers.3.mlp.experts.0.up_proj.weight"] = np.ones((4, 8), np.float32)

    folder = hf("deepseek_v3", further, num_nextn_predict_layers=1)
    printed = tool("convert", "from-hf", folder, tmp_path / "left")
    assert "num_nextn_predict_layers" in printed.stderr
    assert_same(start, parameters(tmp_path / "left" / STEP))
    group = (tmp_path / "left" / "model.nml").read_text()
    assert "router_aux_loss_coef = 0.0" in group and "router_bias_update_rate = 0.001" in group
    folder = hf("deepseek_v3", lambda data: data.update({"model.layers.2.eh_proj.weight": np.ones((4, 8), np.float32)}))
    assert "does not belong" in tool("convert", "from-hf", folder, tmp_path / "other", rc=65).stderr


def test_bf16_rounding():
    values = np.array([1.0, 1.00390625, 1.01171875, -1.00390625, 0.0, -0.0, np.inf, -np.inf,
                       3.4e38, 1e-40], dtype=np.float32)
    back = st.bf16_to_fp32(st.fp32_to_bf16(values))
    assert back[:4].tolist() == [1.0, 1.0, 1.015625, -1.0]  # ties to even
    assert np.signbit(back[5]) and back[6] == np.inf and back[7] == -np.inf and back[8] == np.inf
    assert np.isnan(st.bf16_to_fp32(st.fp32_to_bf16(np.array([np.nan], np.float32)))).all()
    bits = np.arange(1 << 16, dtype=np.uint16)
    bits = bits[~np.isnan(st.bf16_to_fp32(bits))]
    assert np.array_equal(st.fp32_to_bf16(st.bf16_to_fp32(bits)), bits)


def test_shards(golden, tmp_path, tool):
    tool("convert", *TO_HF, golden / "qwen3", tmp_path / "hf", "--shard-gb", "0.00005")
    shards = sorted(p.name for p in (tmp_path / "hf").glob("*.safetensors"))
    assert len(shards) > 2 and shards[0].startswith("model-00001-of-")
    tool("convert", "from-hf", tmp_path / "hf", tmp_path / "back")
    assert_same(parameters(golden / "qwen3" / STEP), parameters(tmp_path / "back" / STEP))
    (tmp_path / "hf" / shards[1]).unlink()
    assert shards[1] in tool("convert", "from-hf", tmp_path / "hf", tmp_path / "x", rc=65).stderr
    tool("convert", *TO_HF, golden / "qwen3", tmp_path / "hf", "--overwrite")
    assert [p.name for p in (tmp_path / "hf").glob("*.safetensors")] == ["model.safetensors"]


@pytest.mark.parametrize("case", ("llama", "gpt2"))
def test_small_pieces(case, golden, tmp_path, monkeypatch):
    """Tensors larger than a piece are moved in blocks of rows."""
    monkeypatch.setattr(st, "PIECE_BYTES", 1000)
    assert nc.main([*TO_HF, str(golden / case), str(tmp_path / "hf")]) == 0
    assert nc.main(["from-hf", str(tmp_path / "hf"), str(tmp_path / "back")]) == 0
    assert_same(parameters(golden / case / STEP), parameters(tmp_path / "back" / STEP))


@pytest.fixture
def hf(golden, tmp_path, tool):
    """Makes a folder of a case with changes to config.json and to its tensors."""

    def make(case="llama", tensors=None, **config):
        folder = tmp_path / "changed"
        tool("convert", *TO_HF, golden / case, folder, "--overwrite")
        content = json.loads((folder / "config.json").read_text())
        content.update(config)
        (folder / "config.json").write_text(json.dumps(content))
        if tensors:
            path = folder / "model.safetensors"
            data = load_file(path)
            tensors(data)
            save_file(data, path)
        return folder

    return make


@pytest.mark.parametrize("config, word", [
    ({"rms_norm_eps": 1e-5}, "(rms_norm_eps)"), ({"attention_bias": True}, "biases of compressed queries"),
    ({"scoring_func": "softmax"}, "(scoring_func = 'softmax')")])
def test_refused_of_deepseek(config, word, hf, tmp_path, tool):
    assert word in tool("convert", "from-hf", hf("deepseek_v3", **config), tmp_path / "out", rc=65).stderr


@pytest.mark.parametrize("config, word", [
    ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "rope scaling of type 'llama3'"),
    ({"rope_scaling": {"type": "linear"}}, "rope scaling of type 'linear'"),
    ({"rope_parameters": {"rope_type": "yarn"}}, "rope scaling of type 'yarn'"),
    ({"use_sliding_window": True}, "sliding-window"),
    ({"layer_types": ["full_attention", "sliding_attention"]}, "sliding-window"),
    ({"attention_bias": True}, "self_attn.k_proj.bias is missing"),
    ({"mlp_bias": True}, "mlp.down_proj.bias is missing"),
    ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
    ({"quantization_config": {"bits": 4}}, "quantized"),
    ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
    ({"architectures": ["GemmaForCausalLM"]}, "GemmaForCausalLM"),
    ({"num_attention_heads": 3}, "not a multiple"),
    ({"hidden_size": "many"}, "malformed"),
])
def test_refuses_what_the_program_has_not(config, word, hf, tmp_path, tool):
    error = tool("convert", "from-hf", hf(**config), tmp_path / "out", rc=65).stderr
    assert word in error
    assert not (tmp_path / "out").exists()


def test_several_problems_are_told_at_once(hf, tmp_path, tool):
    folder = hf(attention_dropout=0.1, qk_layernorm=True, hidden_act="relu")
    error = tool("convert", "from-hf", folder, tmp_path / "out", rc=65).stderr
    assert "attention_dropout" in error and "qk_layernorm" in error and "relu" in error


def test_accepts_default_rope(hf, tmp_path, tool):
    folder = hf(rope_scaling=None, rope_parameters={"rope_type": "default", "rope_theta": 5e5},
                rope_theta=None)
    assert "rope_theta           = 500000.0" in tool("convert", "from-hf", folder,
                                                     tmp_path / "out").stdout


def test_tensors_must_fit(hf, tmp_path, tool):
    def drop(data):
        del data["model.layers.1.mlp.up_proj.weight"]

    def extra(data):
        data["model.layers.0.self_attn.o_proj.bias"] = np.zeros(32, np.float32)

    def reshape(data):
        data["model.norm.weight"] = np.ones(33, np.float32)

    for change, word in ((drop, "up_proj.weight is missing"), (extra, "does not belong to"),
                         (reshape, "expected shape (32,), found (33,)")):
        error = tool("convert", "from-hf", hf(tensors=change), tmp_path / "out", rc=65).stderr
        assert word in error


def test_tied_head_may_be_stored_but_not_differ(hf, tmp_path, tool):
    def copy(data):
        data["lm_head.weight"] = data["model.embed_tokens.weight"].copy()

    def differ(data):
        data["lm_head.weight"] = data["model.embed_tokens.weight"] + 1

    out = tmp_path / "out"
    tool("convert", "from-hf", hf("qwen2", copy), out)
    assert "lm_head/weight" not in parameters(out / STEP)
    error = tool("convert", "from-hf", hf("qwen2", differ), out, "--overwrite", rc=65).stderr
    assert "tie_word_embeddings" in error


def test_fp16_is_widened(hf, tmp_path, tool):
    def halve(data):
        for name in data:
            data[name] = data[name].astype(np.float16)

    folder = hf(tensors=halve)
    tool("convert", "from-hf", folder, tmp_path / "out")
    stored = load_file(folder / "model.safetensors")["model.norm.weight"].astype(np.float32)
    assert np.array_equal(parameters(tmp_path / "out" / STEP)["model/norm/weight"], stored)


@pytest.mark.parametrize("case, name, index, value", [
    ("llama", "model.layers.1.mlp.up_proj.weight", (3, 5), np.nan), ("gpt2", "transformer.h.1.attn.c_attn.bias", (40,), np.inf),
    ("gpt2", "transformer.h.0.mlp.c_fc.weight", (31, 7), -np.inf)])
def test_what_is_not_finite_is_refused(case, name, index, value, hf, tmp_path, tool, monkeypatch):
    monkeypatch.setattr(st, "PIECE_BYTES", 1000)

    def break_it(data):
        data[name][index] = value

    error = tool("convert", "from-hf", hf(case, break_it), tmp_path / "out", rc=65).stderr
    assert f"{name}[{', '.join(map(str, index))}]: expected a finite number, found {value}" in error
    assert not (tmp_path / "out" / STEP).exists()


def test_integers_are_no_weights(hf, tmp_path, tool):
    def round_it(data):
        data["model.norm.weight"] = np.ones(32, np.int8)

    assert "model.norm.weight: type I8" in tool("convert", "from-hf", hf(tensors=round_it), tmp_path / "out", rc=65).stderr


def test_existing_results_are_kept(golden, hf, tmp_path, tool):
    folder = hf()
    tool("convert", "from-hf", folder, tmp_path / "out")
    assert "--overwrite" in tool("convert", "from-hf", folder, tmp_path / "out", rc=65).stderr
    assert "--overwrite" in tool("convert", *TO_HF, golden / "llama", folder, rc=65).stderr
    tool("convert", "from-hf", folder, tmp_path / "out", "--overwrite")


@pytest.mark.parametrize("content", [b"", b"\xff" * 8, b"\x10" + b"\0" * 7 + b"not json here!!!",
                                     b"\x02" + b"\0" * 7 + b"[]",
                                     (200_000).to_bytes(8, "little") + b"[" * 200_000,
                                     (200_000).to_bytes(8, "little") + b'{"a":' * 40_000])
def test_damaged_safetensors(content, hf, tmp_path, tool):
    folder = hf()
    (folder / "model.safetensors").write_bytes(content)
    error = tool("convert", "from-hf", folder, tmp_path / "out", rc=65).stderr
    assert "not a safetensors file" in error


def test_json_that_is_nested_too_deeply(hf, tmp_path, tool):
    folder = hf()
    (folder / "config.json").write_text('{"a":' * 100_000)
    assert "not JSON (nested too deeply)" in tool("convert", "from-hf", folder, tmp_path / "out", rc=65).stderr


def test_truncated_safetensors(hf, tmp_path, tool):
    path = hf() / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    assert "does not fit" in tool("convert", "from-hf", path.parent, tmp_path / "o", rc=65).stderr


def test_key_of_a_newer_program_is_kept_and_not_exported(golden, tmp_path, tool):
    """What these tools do not know of a model may not be lost on the way."""
    folder = tmp_path / STEP
    with checkpoint_file.open_checkpoint(golden / "llama" / STEP) as file:
        sizes = replace(checkpoint_file.ModelSizes.from_attributes(file["parameters"]),
                        unknown={"activation": "relu2", "depth_scale": 0.5, "num_sinks": 3})
    with checkpoint_file.CheckpointWriter(folder, sizes) as writer:
        writer.commit()
    with checkpoint_file.open_checkpoint(folder) as file:
        assert checkpoint_file.ModelSizes.from_attributes(file["parameters"]) == sizes
    error = tool("convert", *TO_HF, folder, tmp_path / "hf", rc=65).stderr
    assert "activation = 'relu2'" in error and "newer" in error and not (tmp_path / "hf").exists()
    assert "relu2" in tool("ls", folder).stdout


def test_damaged_checkpoint_is_not_exported(golden, tmp_path, tool):
    tool("convert", *TO_HF, golden / "llama", tmp_path / "hf")
    tool("convert", "from-hf", tmp_path / "hf", tmp_path / "back")
    path = tmp_path / "back" / STEP / checkpoint_file.CHECKPOINT_FILE
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    error = tool("convert", *TO_HF, path.parent, tmp_path / "again", rc=65).stderr
    assert "differ from what was written" in error
    assert "no valid checkpoint" in tool("convert", *TO_HF, tmp_path / "back",
                                         tmp_path / "again", rc=65).stderr


@pytest.mark.parametrize("paths, first", [("a.h5", "a.h5"), ("web=w.h5 code=c.h5", "w.h5"), ("0.5 a.h5", "a.h5"),
                                          ("0.5 a.h5 .7 b.h5", "a.h5"), ("1 web=my.h5 2 x=b.h5", "my.h5"),
                                          ("1e-3 my a.h5", "my a.h5"), ("2024.h5", "2024.h5")])
def test_first_file_of_the_deck(paths, first):
    assert nc.first_file(paths) == first


@pytest.mark.parametrize("key, value", [("num_hidden_layers", 10**9), ("architectures", 3.5), ("architectures", [{"a": 1}]),
                                        ("rope_scaling", 10**20), ("hidden_size", float("inf"))])
def test_entries_of_other_types(key, value, hf, tmp_path, tool):
    folder = hf()
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {key: value}))
    tool("convert", "from-hf", folder, tmp_path / "out", rc=65)
    assert not (tmp_path / "out").exists()
