# timeout: 300
"""config.json as transformers 4.57 and 5 write it (tests/golden/configs, made by make_configs.py): every key is read,
harmless or refused by name, both ways."""

import json
from dataclasses import replace

import conftest
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from nanotron_tools import checkpoint as checkpoint_file
from nanotron_tools import common
from nanotron_tools import convert as nc
from nanotron_tools import hf_config as hf

KINDS = ("llama", "qwen2", "qwen3", "mixtral", "qwen2_moe", "qwen3_moe")
VERSIONS = ("4", "5")
EXPORT = {"dtype": "float32", "max_positions": 128, "aux_loss_coef": 0.02, "initializer_range": 0.02, "imported": {},
          "special": {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": None}}


def fixtures(version):
    return json.loads((conftest.GOLDEN / "configs" / f"transformers_{version}.json").read_text())


def config_of(kind, version="5", **changes):
    return fixtures(version)[kind] | changes


def sizes_of(config):
    return hf.sizes_from_config(config, "config.json")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("version", VERSIONS)
def test_sizes(kind, version):
    """What make_configs.py asked for, from either version."""
    config = config_of(kind, version)
    assert config["transformers_version"].startswith(version + ".") and hf.unknown_keys(config) == []
    sizes, moe = sizes_of(config), kind in hf.EXPERTS
    assert sizes == checkpoint_file.ModelSizes(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        head_dim=12 if kind.startswith("qwen3") else 8, intermediate_size=88, vocab_size=64,
        tie_word_embeddings=kind == "qwen2", qkv_bias=kind.startswith("qwen2"), qk_norm=kind.startswith("qwen3"),
        rms_norm_eps=1e-5, rope_theta=5e4, num_experts=4 if moe else 0,
        moe_intermediate_size={"mixtral": 88, "qwen2_moe": 24, "qwen3_moe": 24}.get(kind, 0),
        shared_expert_intermediate_size=40 if kind == "qwen2_moe" else 0, norm_topk_prob=kind != "qwen2_moe")
    assert hf.kind_of(sizes, "") == kind


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("version", VERSIONS)
def test_every_key_is_exported_with_the_same_value(kind, version):
    config = config_of(kind, version)
    ours = hf.config_from_sizes(sizes_of(config), "", **EXPORT)
    assert sizes_of(ours) == sizes_of(config)
    left_out = {"transformers_version", "pretraining_tp", "max_window_layers", "layer_types", "dtype"}
    for key, value in config.items():
        if key in left_out:
            continue
        if key == "num_local_experts" and kind == "qwen3_moe":
            key = "num_experts"  # transformers 4 knows this one alone, transformers 5 both
        found = ours.get(key, None)
        assert found == value or (key in ("sliding_window", "head_dim") and not value), key


@pytest.mark.parametrize("version", VERSIONS)
def test_unsaved_keys_are_classified(version):
    unsaved = fixtures(version)["unsaved"]
    for kind in KINDS:
        config = config_of(kind, version) | unsaved
        assert sizes_of(config) == sizes_of(config_of(kind, version))
        assert hf.unknown_keys(config | {key: "something" for key in unsaved}) == []


@pytest.mark.parametrize("key, value", [
    ("attention_dropout", 0.1), ("router_jitter_noise", 0.01),
    ("use_sliding_window", True), ("quantization_config", {"bits": 4}), ("mlp_only_layers", [1]),
    ("decoder_sparse_step", 2), ("is_causal", False), ("pruned_heads", {"0": [1]}), ("attention_chunk_size", 64),
    ("per_layer_config", {"0": {"hidden_size": 8}}), ("auto_map", {"AutoModel": "x.Y"}), ("is_encoder_decoder", True),
    ("add_cross_attention", True), ("partial_rotary_factor", 0.5),
    ("layer_types", ["full_attention", "linear_attention"]),
    ("hidden_act", "gelu"), ("logits_scaling", 8.0), ("final_logit_softcapping", 30.0), ("hidden_dropout", 0.1),
    ("qk_layernorm", True), ("routed_scaling_factor", 2.5), ("model_type", "mistral")])
def test_refused_by_name(key, value):
    for kind in KINDS:
        for version in VERSIONS:
            with pytest.raises(common.ToolError, match=key):
                sizes_of(config_of(kind, version, **{key: value}))


def test_code_of_the_same_name_is_read_as_transformers_class():
    """As in Microsoft's Phi-3."""
    code = {"auto_map": {"AutoConfig": "configuration_phi3.Phi3Config", "AutoModelForCausalLM": "modeling_phi3.Phi3ForCausalLM"}}
    config = config_of("phi3") | code
    assert sizes_of(config) == sizes_of(config_of("phi3")) and hf.unknown_keys(config) == []
    assert "auto_map" in hf.notes(config)[0] and hf.notes(config_of("phi3")) == []
    with pytest.raises(common.ToolError, match="Phi3Config.*auto_map"):
        sizes_of(config_of("llama") | code)


def test_code_of_a_tokenizer_is_no_code_of_a_model():
    code = {"auto_map": {"AutoTokenizer": ["tokenization_x.XTokenizer", None], "AutoProcessor": "x.XProcessor"}}
    config = config_of("llama") | code
    assert sizes_of(config) == sizes_of(config_of("llama")) and hf.notes(config) == [] and hf.unknown_keys(config) == []
    with pytest.raises(common.ToolError, match="Y \\(auto_map\\)"):
        sizes_of(config_of("llama", auto_map=code["auto_map"] | {"AutoModelForSequenceClassification": "x.Y"}))


@pytest.mark.parametrize("kind", KINDS)
def test_qk_norm_of_those_that_have_it(kind):
    """Qwen3-Coder's config.json says it; the others would be another model."""
    config = config_of(kind, use_qk_norm=True)
    if kind.startswith("qwen3"):
        assert sizes_of(config) == sizes_of(config_of(kind)) and hf.unknown_keys(config) == []
        return
    with pytest.raises(common.ToolError, match="use_qk_norm"):
        sizes_of(config)


@pytest.mark.parametrize("kind, keys, biases", [
    ("llama", {"attention_bias": True}, ("qkv_bias", "o_proj_bias")), ("llama", {"mlp_bias": True}, ("mlp_bias",)),
    ("llama", {"attention_bias": True, "mlp_bias": True}, ("qkv_bias", "o_proj_bias", "mlp_bias")),
    ("qwen3", {"attention_bias": True}, ("qkv_bias", "o_proj_bias")),
    ("qwen3_moe", {"attention_bias": True}, ("qkv_bias", "o_proj_bias"))])
def test_biases(kind, keys, biases):
    sizes = sizes_of(config_of(kind, **keys))
    assert sizes == replace(sizes_of(config_of(kind)), **dict.fromkeys(biases, True))
    ours = hf.config_from_sizes(sizes, "", **EXPORT)
    assert ours["model_type"] == kind and keys.items() <= ours.items() and sizes_of(ours) == sizes


@pytest.mark.parametrize("kind, key", [("qwen2", "attention_bias"), ("mistral", "attention_bias"), ("qwen3", "mlp_bias"),
                                       ("mixtral", "mlp_bias")])
def test_biases_that_a_class_does_not_have(kind, key):
    with pytest.raises(common.ToolError, match=key):
        sizes_of(config_of(kind, **{key: True}))


@pytest.mark.parametrize("changed, words", [
    ({"num_attention_heads": 8}, "n_head and num_attention_heads differ"), ({"model_type": "llama"}, "model_type 'llama'"),
    ({"auto_map": {"AutoModelForCausalLM": "x.Other"}}, "auto_map")])
def test_refused_of_gpt2(changed, words):
    with pytest.raises(common.ToolError, match=words):
        sizes_of(config_of("gpt2") | changed)


def test_names_that_transformers_maps_to_those_of_gpt2():
    config = config_of("gpt2")
    heads = {"num_attention_heads": config.pop("n_head"), "hidden_size": config.pop("n_embd")}
    assert sizes_of(config | heads) == sizes_of(config_of("gpt2"))
    left = {"rope_scaling": {"type": "linear"}, "hidden_act": "relu"}
    assert hf.unknown_keys(config_of("gpt2") | left) == sorted(left)


@pytest.mark.parametrize("rope, outside, words", [
    ({"rope_type": "yarn", "factor": 4.0}, {"original_max_position_embeddings": 64}, "two lengths"),
    ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32},
     {"original_max_position_embeddings": 64}, "two lengths")])
def test_scalings_that_two_versions_read_differently(rope, outside, words):
    with pytest.raises(common.ToolError, match=words):
        sizes_of(config_of("llama", "4", rope_scaling=rope) | outside)


@pytest.mark.parametrize("kind, key", [("llama", "sliding_window"), ("mixtral", "sliding_window"),
                                       ("qwen2", "qkv_bias")])
def test_refused_of_one_architecture(kind, key):
    with pytest.raises(common.ToolError, match=key):
        sizes_of(config_of(kind, **{key: 64 if key == "sliding_window" else False}))


@pytest.mark.parametrize("config, theta", [
    ({"rope_theta": 3e5}, 3e5), ({"rope_parameters": {"rope_theta": 3e5}}, 3e5), ({}, 1e4),
    ({"rope_scaling": {"rope_type": "default", "rope_theta": 3e5}}, 3e5),
    ({"rope_scaling": {"type": "default"}, "rope_theta": 3e5}, 3e5),
    ({"rope_scaling": {"rope_type": "default", "rope_theta": 3e5}, "rope_parameters": {"rope_theta": 7e5}}, 3e5),
    ({"rope_scaling": {}, "rope_parameters": {"rope_theta": 7e5}}, 7e5),
    ({"rope_scaling": None, "rope_parameters": {"rope_theta": 7e5}, "rope_theta": 7e5}, 7e5),
])
def test_rope_theta(config, theta):
    plain = {key: value for key, value in config_of("llama").items() if not key.startswith("rope_")}
    assert sizes_of(plain | config).rope_theta == theta


@pytest.mark.parametrize("config, word", [
    ({"rope_scaling": {"rope_type": "linear"}, "rope_parameters": {"rope_type": "default"}}, "'linear' without factor"),
    ({"rope_scaling": {"rope_type": "proportional", "factor": 2.0}}, "'proportional'"),
    ({"rope_parameters": {"rope_type": "yarn"}}, "'yarn' without factor"),
    ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "without low_freq_factor"),
    ({"rope_scaling": {"rope_type": "longrope", "factor": 8.0}}, "'longrope'"),
    ({"rope_scaling": {"type": "dynamic"}}, "'dynamic'"),
    ({"rope_scaling": "linear"}, "linear"),
    ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "differ by layer"),
    ({"rope_parameters": {"rope_theta": 1e4, "mrope_section": [2, 1, 1]}}, "differ by layer or axis"),
    ({"rope_scaling": {"rope_type": "default", "rope_theta": 3e5}, "rope_theta": 1e4}, "two values of rope_theta"),
    ({"rope_parameters": {"partial_rotary_factor": 0.25}}, "partial_rotary_factor"),
])
def test_refused_ropes(config, word):
    with pytest.raises(common.ToolError, match=word):
        sizes_of(config_of("llama", "4") | {"rope_theta": None} | config)


LLAMA3 = {"rope_type": "llama3", "rope_factor": 8.0, "original_max_position_embeddings": 32}
YARN = {"rope_type": "yarn", "rope_factor": 4.0, "original_max_position_embeddings": 32}


@pytest.mark.parametrize("kind, keys", [("llama3_rope", LLAMA3), ("llama_yarn", YARN)])
@pytest.mark.parametrize("version", VERSIONS)
def test_scaled_ropes(kind, keys, version):
    config = config_of(kind, version)
    sizes = sizes_of(config)
    assert sizes == replace(sizes_of(config_of("llama", version)), **keys) and hf.unknown_keys(config) == []
    ours = hf.config_from_sizes(sizes, "", **EXPORT)
    assert sizes_of(ours) == sizes and ours["model_type"] == "llama"
    assert ours["rope_parameters"] == ours["rope_scaling"] | {"rope_theta": 5e4}
    theirs = config.get("rope_scaling") or config["rope_parameters"]
    assert theirs.items() <= ours["rope_parameters"].items()


@pytest.mark.parametrize("rope, magnitude", [({}, 0.0), ({"attention_factor": 1.25}, 1.25),
                                             ({"mscale": 1.0, "mscale_all_dim": 1.0}, 1.0)])
def test_magnitude_of_yarn(rope, magnitude):
    scaling = {"rope_type": "yarn", "factor": 4.0, **rope}
    sizes = sizes_of(config_of("llama", "4", rope_scaling=scaling))
    assert (sizes.rope_attention_factor, sizes.original_max_position_embeddings) == (magnitude, 128)


@pytest.mark.parametrize("version", VERSIONS)
def test_gpt2(version):
    config = config_of("gpt2", version)
    sizes = sizes_of(config)
    assert sizes == checkpoint_file.ModelSizes(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=4, head_dim=8,
        intermediate_size=88, vocab_size=64, tie_word_embeddings=True, qkv_bias=True, normalization="layer_norm", layer_norm_epsilon=1e-6,
        position_embedding_type="learned_absolute", max_position_embeddings=128, o_proj_bias=True,
        hidden_act="gelu_new", mlp_bias=True)
    assert hf.unknown_keys(config) == [] and hf.kind_of(sizes, "") == "gpt2"
    ours = hf.config_from_sizes(sizes, "", **EXPORT)
    assert sizes_of(ours) == sizes
    left_out = {"transformers_version", "attn_pdrop", "embd_pdrop", "resid_pdrop"}  # dropout is 0 there
    for key, value in config.items():
        assert key in left_out or key.startswith("summary_") or ours[key] == value, key


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("window, read", [(16, 16), (None, 0), ("left out", 4096)])
def test_mistral(version, window, read):
    config = config_of("mistral", version, sliding_window=window)
    if window == "left out":
        del config["sliding_window"]
    sizes = sizes_of(config)
    assert sizes == replace(sizes_of(config_of("llama", version)), sliding_window=read)
    assert hf.unknown_keys(config) == []
    ours = hf.config_from_sizes(sizes, "", **EXPORT)
    assert (ours["model_type"], ours.get("sliding_window")) == (("mistral", read) if read else ("llama", None))
    assert sizes_of(ours) == sizes


@pytest.mark.parametrize("version", VERSIONS)
def test_phi3(version):
    """Mistral's sizes; its own name and layout are kept for the way back."""
    config = config_of("phi3", version)
    sizes = sizes_of(config)
    assert sizes == sizes_of(config_of("mistral", version)) and hf.unknown_keys(config) == []
    assert hf.config_from_sizes(sizes, "", **EXPORT)["model_type"] == "mistral"
    ours = hf.config_from_sizes(sizes, "", **EXPORT | {"imported": {"model_type": "phi3"}})
    assert ours["architectures"] == ["Phi3ForCausalLM"] and sizes_of(ours) == sizes
    with pytest.raises(common.ToolError, match="'longrope' without long_factor"):
        sizes_of(config | {"rope_scaling": {"type": "longrope", "short_factor": [1.0]}})
    with pytest.raises(common.ToolError, match="'yarn'"):
        sizes_of(config | {"rope_scaling": {"type": "yarn", "factor": 2.0}})
    assert hf.kind_of(replace(sizes, sliding_window=0), "", imported="phi3") == "phi3"
    assert hf.kind_of(replace(sizes, sliding_window=0, qk_norm=True), "", imported="phi3") == "qwen3"


PUBLISHED = {"hidden_size": 32, "intermediate_size": 88, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 64}
ALL_BIASES = dict.fromkeys(("qkv_bias", "o_proj_bias", "mlp_bias"), True)
LAYER_NORM = {"normalization": "layer_norm"}
# Family -> what its config.json says beside PUBLISHED, the keys of &model that follow where they are not Llama's, what
# another architecture is written in its place.
OTHER_FAMILIES = {
    "seed_oss": ("SeedOss", {"head_dim": 12, "attention_bias": True, "attention_out_bias": False, "mlp_bias": False},
                 {"qkv_bias": True, "head_dim": 12, "num_key_value_heads": 8 // 2}, "qwen2"),
    "starcoder2": ("Starcoder2", {"norm_epsilon": 1e-6, "sliding_window": 16, "num_key_value_heads": 2},
                   ALL_BIASES | LAYER_NORM | {"layer_norm_epsilon": 1e-6, "hidden_act": "gelu_new", "sliding_window": 16,
                                              "num_key_value_heads": 2, "tie_word_embeddings": True}, None),
    "gpt_neox": ("GPTNeoX", {"use_parallel_residual": False, "rotary_pct": 1.0, "rotary_emb_base": 5e4,
                             "layer_norm_eps": 1e-6},
                 ALL_BIASES | LAYER_NORM | {"layer_norm_epsilon": 1e-6, "hidden_act": "gelu", "rope_theta": 5e4}, "starcoder2"),
    "ernie4_5": ("Ernie4_5", {"use_bias": True, "head_dim": 12, "num_key_value_heads": 2},
                 ALL_BIASES | {"head_dim": 12, "num_key_value_heads": 2, "rms_norm_eps": 1e-5, "rope_theta": 5e5,
                               "tie_word_embeddings": True}, "llama"),
    "helium": ("Helium", {"head_dim": 8}, {"rms_norm_eps": 1e-8, "rope_theta": 1e5}, "llama"),
    "granite": ("Granite", {"embedding_multiplier": 12.0, "logits_scaling": 8.0, "residual_multiplier": 0.22,
                            "attention_multiplier": 0.25, "tie_word_embeddings": True},
                {"embedding_multiplier": 12.0, "logits_scaling": 8.0, "residual_multiplier": 0.22,
                 "attention_multiplier": 0.25, "tie_word_embeddings": True}, None),
    "internlm2": ("InternLM2", {"bias": False, "num_key_value_heads": 2}, {"num_key_value_heads": 2}, "llama"),
    "internlm3": ("InternLM3", {"bias": False, "qkv_bias": False, "head_dim": 12}, {"head_dim": 12}, "llama"),
    "exaone": ("Exaone", {"num_layers": 2, "layer_norm_epsilon": 1e-4, "activation_function": "silu",
                          "num_hidden_layers": None}, {"rms_norm_eps": 1e-4}, "llama"),
    "orion": ("Orion", {"rms_norm_eps": 1e-4}, LAYER_NORM | {"layer_norm_epsilon": 1e-4}, "stablelm"),
}


def published(kind, **changes):
    name, keys, _, _ = OTHER_FAMILIES[kind]
    heads = {"num_key_value_heads": 4} if kind == "seed_oss" else {}
    config = {"architectures": [name + "ForCausalLM"], "model_type": kind} | PUBLISHED | heads | keys | changes
    return {key: value for key, value in config.items() if value is not None}


@pytest.mark.parametrize("kind", OTHER_FAMILIES)
def test_other_families(kind):
    config, (_, _, keys, written) = published(kind), OTHER_FAMILIES[kind]
    sizes = sizes_of(config)
    ours = {"num_key_value_heads": 4, "head_dim": 8}
    sizes_of_llama = {key: PUBLISHED[key] for key in PUBLISHED}
    eps = {} if "normalization" in keys else {"rms_norm_eps": 1e-6}
    assert sizes == checkpoint_file.ModelSizes(**sizes_of_llama | ours | eps | keys) and hf.unknown_keys(config) == []
    exported = hf.config_from_sizes(sizes, "", **EXPORT)
    assert exported["model_type"] == (written or kind) and sizes_of(exported) == sizes
    again = hf.config_from_sizes(sizes, "", **EXPORT | {"imported": config})
    own = hf.FAMILIES[kind].is_of_transformers
    assert again["model_type"] == (kind if own or not written else written) and sizes_of(again) == sizes
    if own:
        assert {key: again[key] for key in config} == config


@pytest.mark.parametrize("kind, changes, words", [
    ("starcoder2", {"hidden_act": "relu"}, "hidden_act 'relu'"),
    ("orion", {"attention_bias": True}, "attention_bias"), ("exaone", {"num_hidden_layers": 3}, "num_layers and"),
    ("internlm2", {"rope_scaling": {"type": "dynamic"}}, "'dynamic' without factor"),
    ("granite", {"final_logit_softcapping": 30.0}, "final_logit_softcapping")])
def test_refused_of_other_families(kind, changes, words):
    with pytest.raises(common.ToolError, match=words):
        sizes_of(published(kind, **changes))


def test_rotated_part_as_transformers_5_writes_it():
    rope = {"rope_type": "default", "rope_theta": 5e4, "partial_rotary_factor": 1.0}
    config = published("gpt_neox", rotary_pct=None, rotary_emb_base=None, rope_parameters=rope)
    assert sizes_of(config) == sizes_of(published("gpt_neox"))
    exported = hf.config_from_sizes(sizes_of(config), "", **EXPORT | {"imported": config})
    assert exported["rope_parameters"] == rope and exported["rotary_pct"] == 1.0


def test_scaling_of_longer_sequences_is_told_and_kept():
    """InternLM's: without effect within max_position_embeddings."""
    scaling = {"type": "dynamic", "factor": 2.0}
    config = published("internlm2", rope_scaling=scaling, max_position_embeddings=4096)
    assert sizes_of(config) == sizes_of(published("internlm2"))
    assert "data%sequence_length at most" in hf.notes(config)[0] and "4096" in hf.notes(config)[0]
    exported = hf.config_from_sizes(sizes_of(config), "", **EXPORT | {"imported": config})
    assert scaling.items() <= exported["rope_scaling"].items() and hf.notes(exported) == hf.notes(
        exported | {"max_position_embeddings": 128}) != []


def test_dropout_of_a_published_config_is_told():
    config = published("seed_oss", attention_dropout=0.1, residual_dropout=0.1)
    assert sizes_of(config) == sizes_of(published("seed_oss"))
    assert hf.notes(config) == ["dropout in training (attention_dropout, residual_dropout) is left out"]


@pytest.mark.parametrize("version", VERSIONS)
def test_starcoder_1(version):
    config = {"architectures": ["GPTBigCodeForCausalLM"], "model_type": "gpt_bigcode", "n_embd": 32, "n_layer": 2,
              "n_head": 4, "n_inner": 88, "n_positions": 128, "vocab_size": 64, "multi_query": True, "attn_pdrop": 0.1,
              "activation_function": "gelu_pytorch_tanh", "attention_softmax_in_fp32": True}
    sizes = sizes_of(config)
    assert sizes == replace(sizes_of(config_of("gpt2", version)), num_key_value_heads=1, layer_norm_epsilon=1e-5)
    assert hf.unknown_keys(config) == [] and "attn_pdrop" in hf.notes(config)[0]
    exported = hf.config_from_sizes(sizes, "", **EXPORT)
    assert {key: exported[key] for key in config if key in exported and key != "attn_pdrop"}.items() <= config.items()
    assert exported["model_type"] == "gpt_bigcode" and exported["n_ctx"] == 128 and sizes_of(exported) == sizes
    assert sizes_of(config | {"multi_query": False}).num_key_value_heads == 4


def test_what_llama_cpp_reads():
    yarn = hf.config_from_sizes(sizes_of(config_of("llama_yarn")), "", **EXPORT)["rope_scaling"]
    assert yarn["type"] == yarn["rope_type"] == "yarn" and yarn["original_max_position_embeddings"] == 32
    assert hf.config_from_sizes(sizes_of(config_of("gpt2")), "", **EXPORT)["n_ctx"] == 128
    phi = config_of("phi3", original_max_position_embeddings=64)
    exported = hf.config_from_sizes(sizes_of(phi), "", **EXPORT | {"imported": phi})
    assert exported["original_max_position_embeddings"] == 64


def test_mistral_is_exported_as_such():
    config = config_of("mistral", sliding_window=None)
    exported = hf.config_from_sizes(sizes_of(config), "", **EXPORT | {"imported": config})
    assert exported["architectures"] == ["MistralForCausalLM"] and exported["sliding_window"] is None
    odd = replace(sizes_of(config), num_attention_heads=3, num_key_value_heads=3)  # no Llama of transformers 5
    assert hf.kind_of(odd, "") == "mistral"


def test_windows_of_no_architecture():
    for keys in ({"qkv_bias": True}, {"qk_norm": True}):
        with pytest.raises(common.ToolError, match="sliding_window"):
            hf.kind_of(replace(sizes_of(config_of("mistral")), **keys), "here")


@pytest.mark.parametrize("keys, nearest", [
    ({"normalization": "layer_norm", "qk_norm": True}, "StableLmForCausalLM with qk_norm = False"),
    ({"qk_norm": True, "mlp_bias": True}, "Qwen3ForCausalLM with mlp_bias = False"),
    ({"hidden_act": "gelu"}, "LlamaForCausalLM with hidden_act = 'silu'"),
    ({"qkv_bias": True, "sliding_window": 8}, "nearest: MistralForCausalLM with qkv_bias = False; Qwen2ForCausalLM with "
     "sliding_window = 0; SeedOssForCausalLM with sliding_window = 0; Phi3ForCausalLM with qkv_bias = False$"),
    ({"normalization": "layer_norm", "hidden_act": "gelu", "mlp_bias": True},
     "nearest: GPTNeoXForCausalLM with num_key_value_heads = 4$"),
    ({"normalization": "layer_norm", "head_dim": 16}, "nearest: .*StableLmForCausalLM with head_dim = 8"),
    ({"hidden_act": "gelu", "mlp_bias": True, "qkv_bias": True, "o_proj_bias": True, "normalization": "layer_norm",
      "hidden_size": 33, "head_dim": 9, "sliding_window": 8, "qk_norm": True},
     "nearest: Starcoder2ForCausalLM with qk_norm = False$")])
def test_mixtures_of_families_have_no_architecture(keys, nearest):
    with pytest.raises(common.ToolError, match=nearest):
        hf.kind_of(replace(sizes_of(config_of("llama")), **keys), "here")


def test_the_nearest_of_an_architecture_that_is_not_known():
    config = config_of("llama", architectures=["CohereForCausalLM"], model_type="cohere", logit_scale=0.0625)
    with pytest.raises(common.ToolError) as error:
        sizes_of(config)
    for words in ("['CohereForCausalLM'] is not supported", "Nearest by its keys is", "logit_scale"):
        assert words in str(error.value)
    with pytest.raises(common.ToolError, match="Nearest by its keys is GPT2LMHeadModel.*key relative_attention"):
        sizes_of(config_of("gpt2", architectures=["OtherLMHeadModel"], model_type="other", relative_attention=3))


def test_number_of_experts():
    with pytest.raises(common.ToolError, match="sliding_window"):
        sizes_of(config_of("mixtral", sliding_window=0))
    config = config_of("qwen3_moe")
    assert "num_experts" not in config and sizes_of(config).num_experts == 4
    assert sizes_of(config | {"num_experts": 4}).num_experts == 4
    with pytest.raises(common.ToolError, match="num_experts and num_local_experts differ"):
        sizes_of(config | {"num_experts": 8})
    with pytest.raises(common.ToolError, match="num_experts_per_tok"):
        sizes_of(config | {"num_experts_per_tok": 0})
    assert sizes_of(config_of("qwen2", num_key_value_heads=None)).num_key_value_heads == 4
    unbiased = sizes_of(config_of("qwen2_moe", qkv_bias=False))
    assert hf.kind_of(unbiased, "") == "qwen2_moe" and not hf.config_from_sizes(unbiased, "", **EXPORT)["qkv_bias"]


# ---------------------------------------------------------------------------------------------
# Whole folders


@pytest.fixture
def folder(golden, tmp_path, tool):
    """folder(kind, version): a golden model's weights under a config.json of transformers, fused as asked for."""

    def make(kind, version="5", fused=False, **changes):
        target = tmp_path / f"{kind}-{version}"
        tool("convert", "to-hf", golden / kind, target, "--max-positions", "128", "--eos-id", "2", "--overwrite")
        ours = json.loads((target / "config.json").read_text())
        config = fixtures(version)[kind]
        config |= {key: value for key, value in ours.items() if key in config and not key.startswith("rope_")}
        if "num_local_experts" in config:
            config["num_local_experts"] = ours.get("num_experts", ours.get("num_local_experts"))
        (target / "config.json").write_text(json.dumps(config | {"router_aux_loss_coef": 0.02} | changes))
        if fused:
            path = target / "model.safetensors"
            save_file(fuse(load_file(path), kind), path)
        return target

    return make


def fuse(data, kind):
    """The layout of transformers 5 in memory, which it writes with save_original_format=False."""
    names = ("w1", "w3", "w2") if kind == "mixtral" else ("gate_proj", "up_proj", "down_proj")
    block = "block_sparse_moe" if kind == "mixtral" else "mlp"
    for prefix in sorted({name.split(".experts.")[0] for name in data if ".experts." in name}):
        def take(part, prefix=prefix):
            count = sum(name.startswith(f"{prefix}.experts.") and name.endswith(f".{part}.weight") for name in data)
            return np.stack([data.pop(f"{prefix}.experts.{i}.{part}.weight") for i in range(count)])

        gate, up, down = (take(name) for name in names)
        plain = prefix.replace(block, "mlp")
        data[plain + ".experts.gate_up_proj"] = np.concatenate([gate, up], axis=1)
        data[plain + ".experts.down_proj"] = down
        data[plain + ".gate.weight"] = data.pop(prefix + ".gate.weight")
    return data


def same_parameters(a, b):
    with checkpoint_file.open_checkpoint(a) as first, checkpoint_file.open_checkpoint(b) as second:
        sizes = checkpoint_file.ModelSizes.from_attributes(first["parameters"])
        return all(np.array_equal(first["parameters/" + name][()], second["parameters/" + name][()])
                   for name in sizes.parameter_shapes())


@pytest.mark.parametrize("kind", ("mixtral", "qwen2_moe", "qwen3_moe"))
def test_fused_experts(kind, golden, folder, tmp_path, tool):
    source = folder(kind, fused=True)
    names = load_file(source / "model.safetensors").keys()
    assert "model.layers.1.mlp.experts.gate_up_proj" in names and not any(".experts.0." in name for name in names)
    printed = tool("convert", "from-hf", source, tmp_path / "out").stdout
    assert same_parameters(golden / kind / "step_00000000", tmp_path / "out" / "step_00000000")
    assert "router_aux_loss_coef = 0.02\n" in printed and "router_aux_loss_scale = 'hugging_face'\n" in printed
    data = load_file(source / "model.safetensors")
    data["model.layers.0.mlp.experts.down_proj"] = np.ones((2, 3, 4), np.float32)
    save_file(data, source / "model.safetensors")
    error = tool("convert", "from-hf", source, tmp_path / "x", rc=65).stderr
    assert "experts.down_proj: expected shape" in error and "found (2, 3, 4)" in error


def test_what_was_imported_is_exported(folder, tmp_path, tool):
    source = folder("qwen3_moe", max_position_embeddings=4096, bos_token_id=None, eos_token_id=[5, 6], pad_token_id=5,
                    initializer_range=0.006, output_router_logits=True)
    (source / "generation_config.json").write_text(json.dumps({"temperature": 0.6, "eos_token_id": [6], "top_k": 20}))
    tool("convert", "from-hf", source, tmp_path / "run" / "checkpoints")
    tool("convert", "to-hf", tmp_path / "run", tmp_path / "hf")
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    expected = {"max_position_embeddings": 4096, "eos_token_id": [5, 6], "pad_token_id": 5, "bos_token_id": None,
                "router_aux_loss_coef": 0.02, "initializer_range": 0.006,
                "output_router_logits": True}
    assert {key: config[key] for key in expected} == expected
    generation = json.loads((tmp_path / "hf" / "generation_config.json").read_text())
    assert generation == {"temperature": 0.6, "eos_token_id": [6], "top_k": 20, "bos_token_id": None, "pad_token_id": 5}
    tool("convert", "to-hf", tmp_path / "run", tmp_path / "hf", "--overwrite", "--eos-id", "7", "--bos-id", "8",
         "--max-positions", "99")
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert (config["eos_token_id"], config["bos_token_id"], config["max_position_embeddings"]) == (7, 8, 99)
    assert json.loads((tmp_path / "hf" / "generation_config.json").read_text())["eos_token_id"] == 7


def run_with_deck(golden, folder, kind, deck):
    """A checkpoint as a run writes it: with the resolved deck."""
    with checkpoint_file.open_checkpoint(golden / kind / "step_00000000") as file:
        sizes = checkpoint_file.ModelSizes.from_attributes(file["parameters"])
        target = folder / "checkpoints" / "step_00000005"
        with checkpoint_file.CheckpointWriter(target, sizes, step=5, deck=deck) as writer:
            for name in sizes.parameter_shapes():
                writer.dataset(name)[...] = file["parameters/" + name][()]
            writer.commit()
    return folder


DECK = """! The deck of this run, complete. Keys that are not at their default are marked.
&run
  title               = 'it''s = 3 ! not a comment'
/

&moe
  router_aux_loss_coef = 0.01             ! set: default 0.001
  router_aux_loss_scale = '{scale}'
/

&data
  path                = '{path}'          ! set: required
  sequence_length     = 48                ! set: required
/
"""


@pytest.mark.parametrize("scale, coefficient", [("hugging_face", 0.01), ("per_layer", 0.01 * 2 / 2)])
def test_what_the_run_knew_is_exported(scale, coefficient, golden, tmp_path, tool):
    (tmp_path / "x.txt").write_text("some text")
    tool("tokenize", tmp_path / "x.txt", "-o", tmp_path / "t.h5", "--train-bpe", "258", "--bos", "<s>")
    text = DECK.format(scale=scale, path=tmp_path / "t.h5")
    assert checkpoint_file.deck_values(text)["run.title"] == "it's = 3 ! not a comment"
    run = run_with_deck(golden, tmp_path / "run", "mixtral", text)
    larger = "vocabulary of 258 is larger than the model's"
    assert larger in tool("convert", "to-hf", run, tmp_path / "hf", "--token-file", tmp_path / "t.h5", rc=65).stderr
    assert larger in tool("convert", "to-hf", run, tmp_path / "hf").stderr
    (tmp_path / "t.h5").rename(tmp_path / "token.h5")
    (tmp_path / "t.h5").write_text("another file by now")
    warnings = tool("convert", "to-hf", run, tmp_path / "hf", "--overwrite", "--eos-id", "7", "--bos-id", "8").stderr
    assert warnings.count("warning: ") == 1 and "cannot be read as a token file" in warnings
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert (config["eos_token_id"], config["bos_token_id"]) == (7, 8)
    (tmp_path / "token.h5").replace(tmp_path / "t.h5")
    with checkpoint_file.h5py.File(tmp_path / "t.h5", "r+") as file:
        file.attrs["vocab_size"] = 11
        file.attrs["eos_token_id"], file.attrs["bos_token_id"] = 10, 9
    tool("convert", "to-hf", run, tmp_path / "hf", "--overwrite")
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    expected = {"max_position_embeddings": 48, "eos_token_id": 10, "bos_token_id": 9, "pad_token_id": None}
    assert {key: config[key] for key in expected} == expected
    assert config["router_aux_loss_coef"] == pytest.approx(coefficient, rel=1e-15)
    origin = run / "checkpoints" / "hugging_face.json"
    imported = {"config": config | {"eos_token_id": 3}, "generation_config": {"eos_token_id": [3, 4]}}
    origin.write_text(json.dumps(imported))
    result = tool("convert", "to-hf", run, tmp_path / "hf", "--overwrite")
    assert "end with token 10, the imported model stops at [3, 4]" in result.stderr
    origin.unlink()
    (tmp_path / "t.h5").rename(tmp_path / "moved.h5")
    assert "--eos-id" in tool("convert", "to-hf", run, tmp_path / "hf", "--overwrite").stderr
    result = tool("convert", "to-hf", run, tmp_path / "hf", "--overwrite", "--token-file", tmp_path / "moved.h5")
    assert result.stderr == ""
    generation = json.loads((tmp_path / "hf" / "generation_config.json").read_text())
    assert generation == {"bos_token_id": 9, "eos_token_id": 10, "pad_token_id": None}
    error = tool("convert", "to-hf", run, tmp_path / "hf", "--overwrite", "--eos-id", "1000000", rc=64).stderr
    assert "eos_token_id: expected an id below" in error


def test_scale_of_the_load_balancing_loss():
    """doc/numerics.md: transformers counts num_experts_per_tok times the mean over layers, per_layer their sum."""
    sizes = replace(sizes_of(config_of("qwen3_moe")), num_hidden_layers=6, num_experts_per_tok=3)
    origin = {"config": {"router_aux_loss_coef": 0.5}}
    assert nc.aux_loss_coef_of(origin, {}, sizes) == 0.5 and nc.aux_loss_coef_of({"config": {}}, {}, sizes) == 0.001
    for scale, expected in (("hugging_face", 0.25), ("per_layer", 0.25 * 6 / 3), (None, 0.25 * 6 / 3)):
        deck = {"moe.router_aux_loss_coef": "0.25"} | ({"moe.router_aux_loss_scale": scale} if scale else {})
        assert nc.aux_loss_coef_of(origin, deck, sizes) == expected


def test_positions_are_never_made_up(golden, tmp_path, tool):
    error = tool("convert", "to-hf", golden / "llama", tmp_path / "hf", rc=64).stderr
    assert "--max-positions" in error and not (tmp_path / "hf").exists()


def test_later_checkpoints_are_not_buried(golden, folder, tmp_path, tool):
    run = run_with_deck(golden, tmp_path / "run", "llama", "")
    source = folder("llama")
    error = tool("convert", "from-hf", source, run / "checkpoints", rc=65).stderr
    for word in ("step_00000005", "'auto'", "--beside-later", "checkpoint.resume="):
        assert word in error
    assert not (run / "checkpoints" / "step_00000000").exists() and not (run / "checkpoints" / "model.nml").exists()
    tool("convert", "from-hf", source, run / "checkpoints", "--beside-later")
    assert (run / "checkpoints" / "step_00000000" / "manifest.json").exists()


def test_unknown_keys_are_told(folder, tmp_path, tool):
    source = folder("llama", brand_new_key=3, another=False, third=None)
    error = tool("convert", "from-hf", source, tmp_path / "out").stderr
    assert "brand_new_key = 3 is unknown" in error and "another" not in error and "third" not in error


@pytest.mark.parametrize("case", conftest.FAMILIES)
def test_configs_of_golden_families(case):
    """As published: the sizes that the golden values were made with, and every key the same on the way back."""
    golden = json.loads((conftest.GOLDEN / case / "golden.json").read_text())
    config, sizes = golden["config"], checkpoint_file.ModelSizes(**golden["model"])
    assert sizes_of(config) == sizes and hf.unknown_keys(config) == []
    special = {"special": {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id") if key in config}}
    exported = hf.config_from_sizes(sizes, "", **EXPORT | special | {
        "imported": config, "max_positions": config.get("max_position_embeddings", 128)})
    assert sizes_of(exported) == sizes
    unread = hf.FAMILIES[config["model_type"]].without if config["model_type"] in hf.FAMILIES else ()
    same = {key: value for key, value in config.items() if key != "rope_scaling" and (key in exported or key not in unread)}
    assert {key: exported[key] for key in same} == same
    scaling = config.get("rope_scaling") or {}
    assert {key: (exported.get("rope_scaling") or {})[key] for key in scaling} == scaling
