# timeout: 120
"""The models that nanotron-convert does not export are those of which --check says so."""

import random
import subprocess
from dataclasses import asdict, fields, replace

from nanotron_tools import common
from nanotron_tools import hf_config as hf
from nanotron_tools.model_sizes import ModelSizes

DECK = """&run steps = 1 output_dir = 'run' /
&model hidden_size = 96 num_attention_heads = 4 vocab_size = 64 intermediate_size = 48 num_hidden_layers = 2 /
&data path = 'tokens.h5' sequence_length = 8 global_batch_size = 1 micro_batch_size = 1 /
"""
SMALL = ModelSizes(hidden_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=4, head_dim=24,
                   intermediate_size=48, vocab_size=64)
SCALED = {"rope_factor": (2.0, 8.0), "original_max_position_embeddings": (16, 64)}
LLAMA3 = SCALED | {"rope_low_freq_factor": (1.0, 2.0), "rope_high_freq_factor": (4.0, 8.0)}
YARN = SCALED | {"rope_beta_fast": (32.0, 16.0), "rope_beta_slow": (1.0, 2.0), "rope_attention_factor": (0.0, 1.25)}
EXPERTS = {"num_experts": (2, 4), "num_experts_per_tok": (1, 2), "moe_intermediate_size": (48, 24),
           "shared_expert_intermediate_size": (0, 16), "norm_topk_prob": (True, False)}
DRAWN = {
    "hidden_size": (96, 96, 102), "num_key_value_heads": (4, 2, 1), "head_dim": (24, 24, 32),
    "tie_word_embeddings": (False, True), "qkv_bias": (False, True), "o_proj_bias": (False, True),
    "mlp_bias": (False, True), "qk_norm": (False, False, True), "hidden_act": ("silu", "gelu", "gelu_new", "relu", "xielu", "geglu"),
    "sliding_window": (0, 0, 6), "window_layers": ("all",) * 9 + ("1:1",),
    "rope_layers": ("all",) * 9 + ("1",), "rope_local_theta": (0.0,) * 9 + (100.0,),
    "norm_placement": ("pre",) * 9 + ("post", "sandwich"), "norm_weight": ("plain",) * 9 + ("one_plus",),
    "norm_bias": (True,) * 9 + (False,), "parallel_residual": ("none",) * 9 + ("one_norm", "two_norms"),
    "qk_norm_over": ("head",) * 3 + ("projection",), "partial_rotary_factor": (1.0, 1.0, 1.0, 0.5),
    "rope_interleaved": (False,) * 9 + (True,), "attn_logit_softcapping": (0.0,) * 19 + (30.0,),
    "attention_multiplier": (0.0,) * 19 + (0.25,), "attention_sinks": (False,) * 19 + (True,),
    "final_logit_softcapping": (0.0,) * 19 + (30.0,), "embedding_multiplier": (1.0,) * 19 + (3.0,),
    "lm_head_bias": (False,) * 19 + (True,), "residual_multiplier": (1.0,) * 9 + (0.5,), "logits_scaling": (1.0,) * 9 + (8.0,)}


def drawn(rng):
    """A model of which some, not all, has an architecture."""
    sizes = replace(SMALL, **{key: rng.choice(values) for key, values in DRAWN.items()})

    def with_keys(table):
        return {key: rng.choice(values) for key, values in table.items()}

    norm = rng.choice(("rms_norm", "layer_norm"))
    keys = {"normalization": norm, "rms_norm_eps" if norm == "rms_norm" else "layer_norm_epsilon": 1e-6}
    rope = rng.choice(("default", "default", "llama3", "yarn", "learned"))
    if rope == "learned":
        keys |= {"position_embedding_type": "learned_absolute", "max_position_embeddings": 32}
    else:
        keys |= {"rope_type": rope, "rope_theta": rng.choice((1e4, 5e5))} | with_keys(
            {"llama3": LLAMA3, "yarn": YARN}.get(rope, {}))
    if rng.random() < 0.3:
        keys |= with_keys(EXPERTS) | {"mlp_bias": False, "hidden_act": "silu"}
    return replace(sizes, **keys)


def near_a_family(rng):
    """The model of an architecture except for a key or two."""
    kind = rng.choice(hf.WRITTEN)
    sizes, other = drawn(rng), drawn(rng)
    experts = {key: rng.choice(values) for key, values in EXPERTS.items()} if kind in hf.EXPERTS else SMALL.moe_values()
    positions = {item.name: item.default for item in fields(ModelSizes)
                 if ("rope_" in item.name or "max_po" in item.name) and item.name not in DRAWN}
    learned = {"max_position_embeddings": 32} if kind in hf.OTHERS or kind == "opt" else {}
    sizes = replace(sizes, **positions | experts | learned)
    for _ in range(3):  # a value may need another
        sizes = replace(sizes, **{key: 16 if value == "more than 0" else value
                                  for key, value in hf.differences(kind, sizes).items()})
    return replace(sizes, **{key: getattr(other, key) for key in rng.sample(list(DRAWN), rng.randrange(3))})


def overrides(sizes):
    """Assignments of the values that are not the deck's own defaults."""
    told = replace(SMALL, num_key_value_heads=0, head_dim=0)
    experts = {item.name for item in fields(ModelSizes) if item.metadata.get("of_experts")}
    return " ".join(f"{'moe' if key in experts else 'model'}.{key}={value}" for key, value in asdict(sizes).items()
                    if key != "unknown" and value != getattr(told, key))


def in_one_spelling(assignment):
    """Of reals, which the two spell otherwise."""
    key, _, value = assignment.partition(" = ")
    try:
        return f"{key} = {float(value)!r}"
    except ValueError:
        return assignment


def nearest_of(text):
    """Architecture -> assignments of a message, in Python's words; nothing without one."""
    found: dict[str, set[str]] = {}
    for part in text.partition("nearest: ")[2].split("; ") if text else ():
        name, _, keys = part.partition(" with ")
        for ours, theirs in ((".true.", "True"), (".false.", "False"), ("= 'more than 0'", "more than 0")):
            keys = keys.replace(ours, theirs)
        found[name] = set(map(in_one_spelling, keys.split(", ")))
    return found


def of_converter(sizes):
    try:
        hf.kind_of(sizes, "")
    except common.ToolError as error:
        return str(error)
    return ""


def test_check_and_converter_agree(programs, tmp_path):
    rng = random.Random(1)
    models = [draw(rng) for draw in (drawn, near_a_family) for _ in range(800)]
    (tmp_path / "input.deck").write_text(DECK)
    program = programs.parent / "tests/integration/unexported_models"
    answers = subprocess.run([program, tmp_path / "input.deck"], input="\n".join(map(overrides, models)), text=True,
                             capture_output=True, check=True).stdout.splitlines()
    legal = [(sizes, answer) for sizes, answer in zip(models, answers, strict=True) if answer != "refused"]
    for sizes, answer in legal:
        assert nearest_of(answer) == nearest_of(of_converter(sizes)), (overrides(sizes), answer, of_converter(sizes))
    exported = {hf.kind_of(sizes, "") for sizes, answer in legal if not answer}
    assert len(legal) > 300 and sum(bool(answer) for _, answer in legal) > 100
    assert exported == set(hf.WRITTEN), "draw models of each architecture"


def test_check_says_it_in_a_line(programs, tmp_path):
    deck = tmp_path / "input.deck"
    deck.write_text(DECK)

    def check(*keys):
        assignments = [word for key in keys for word in ("--set", key)]
        return subprocess.run([programs / "nanotron_hpc", "--check", *assignments, deck], text=True,
                              capture_output=True, check=True).stdout.splitlines()

    plain, odd = check(), check("model.qkv_bias=true", "model.sliding_window=6")
    assert set(odd) - set(plain) == {
        "warning: no Hugging Face architecture has these keys of &model and &moe in this combination, so "
        "nanotron-convert will not export the model; nearest: MistralForCausalLM with qkv_bias = .false.; "
        "Qwen2ForCausalLM with sliding_window = 0; SeedOssForCausalLM with sliding_window = 0; Phi3ForCausalLM with "
        "qkv_bias = .false."}
    assert not any("Hugging Face" in line for line in plain)
