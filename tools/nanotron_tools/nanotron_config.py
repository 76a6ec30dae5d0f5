"""What Hugging Face's Nanotron asks for beside tensors: config.yaml and model_config.json, of a model and a deck.

After nanotron/config, helpers.py (lr_scheduler_builder) and models/base.py (build_model) of commit 2411b022.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from . import checkpoint, common, layer_sets
from . import nanotron_names as names
from .model_sizes import ModelSizes
from .nanotron_names import Whole
from .taken_over import Left

DECAYS = ("linear", "cosine", "1-sqrt")
DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp64": "float64", "fp8": "bfloat16"}  # by precision%compute
OTHERS = "use nanotron-convert to-hf, and a converter of Nanotron from there"
STAGE = {"data": {"dataset": None, "num_loading_workers": 1, "seed": 42}, "name": "Stable", "start_training_step": 1}
BASE: dict[str, Any] = {
    "checkpoints": {"checkpoint_interval": 1000, "checkpoints_path": "checkpoints",
                    "checkpoints_path_is_shared_file_system": False, "save_initial_state": False},
    "logging": {"iteration_step_info_interval": 1, "log_level": "info", "log_level_replica": "warning"},
    "tokenizer": {"tokenizer_max_length": None, "tokenizer_name_or_path": None, "tokenizer_revision": None}}


class Deck:
    """Keys of a canonical deck, with the defaults of the program for those that are not in it."""

    def __init__(self, text: str, where: object):
        self.values, self.where = checkpoint.deck_values(text), where

    def text(self, key: str, default: str = "") -> str:
        return self.values.get(key, default)

    def number(self, key: str, default: float | None = None) -> float:
        found = self.values.get(key)
        try:
            if found is None and default is not None:
                return default
            return float((found or "").lower().replace("d", "e"))
        except ValueError:
            raise common.wrong(f"{self.where}, {key.replace('.', '%')}", "a number", found or "none",
                               "give --deck FILE, for example the input.deck beside it", common.EXIT_USAGE) from None

    def count(self, key: str, default: int | None = None) -> int:
        return int(self.number(key, default))


# ---------------------------------------------------------------------------------------------
# The model


def model_config(sizes: ModelSizes, deck: Deck, base: Mapping[str, Any], where: object) -> dict[str, Any]:
    """Of Llama's class, or Qwen2's where Llama's has not what the model needs; refuses others by their keys."""
    masked = deck.text("data.document_mask", "none") == "block_diagonal"
    rope = layer_sets.flags_of(sizes.rope_layers, sizes.num_hidden_layers)
    qwen = sizes.qkv_bias or bool(sizes.sliding_window) or masked or not all(rope)
    coefficient = deck.number("optimizer.z_loss_coefficient", 0.0)
    found: dict[str, Any] = {key: value for key, value in base.items()
                             if key in names.PLAIN and key not in (names.LLAMA, names.QWEN)}
    found |= {"hidden_act": "silu", "hidden_size": sizes.hidden_size, "intermediate_size": sizes.intermediate_size,
              "num_attention_heads": sizes.num_attention_heads, "num_hidden_layers": sizes.num_hidden_layers,
              "num_key_value_heads": sizes.num_key_value_heads, "rms_norm_eps": sizes.rms_norm_eps,
              "rope_theta": sizes.rope_theta, "rope_scaling": None, "rope_interleaved": sizes.rope_interleaved,
              "tie_word_embeddings": sizes.tie_word_embeddings, "vocab_size": sizes.vocab_size,
              "attention_bias": sizes.qkv_bias, "z_loss_enabled": coefficient > 0,
              "z_loss_coefficient": coefficient or 0.0001}
    found.setdefault("max_position_embeddings", max(deck.count("data.sequence_length", 1),
                                                    sizes.max_position_embeddings))
    found[names.QWEN if qwen else names.LLAMA] = True
    if qwen:
        found.setdefault("log_attn_probs", False)
        found |= {"sliding_window_size": sizes.sliding_window or None, "_use_doc_masking": masked, "moe_config": None,
                  "no_rope_layer": None if all(rope) else rope.index(False) + 1}
    theirs = names.sizes_of(found, Path(str(where)), Left()).dense_values()
    _check_model(sizes, theirs, where)
    return found


def _check_model(sizes: ModelSizes, theirs: Mapping[str, Any], where: object) -> None:
    ours = sizes.dense_values()
    ours.pop("max_position_embeddings", None)  # only learned positions depend on it, and they are not there
    other = [f"model%{key} = {ours.get(key, 'default')!r}" for key in sorted(ours.keys() | theirs.keys())
             if not _same(key, ours.get(key), theirs.get(key), sizes)]
    if sizes.num_experts:
        other.insert(0, f"moe%num_experts = {sizes.num_experts}")
    without = layer_sets.flags_of(sizes.rope_layers, sizes.num_hidden_layers).count(False)
    if without and sizes.num_hidden_layers % (sizes.num_hidden_layers // without):
        other.append(f"model%rope_layers = {sizes.rope_layers!r}")
    if other:
        raise common.wrong(where, "a model of Nanotron's classes Llama or Qwen2", ", ".join(other[:3]), OTHERS)


def _same(key: str, ours: Any, theirs: Any, sizes: ModelSizes) -> bool:
    if key in ("rope_layers", "window_layers"):
        if key == "window_layers" and not sizes.sliding_window:
            return True
        flags = [layer_sets.flags_of(value or "all", sizes.num_hidden_layers) for value in (ours, theirs)]
        return flags[0] == flags[1]
    return bool(ours == theirs)


def stages(wholes: list[Whole], sizes: ModelSizes, pp: int, where: object) -> list[list[Whole]]:
    """Parameters of each pipeline stage, in Nanotron's order: it balances what its blocks cost."""
    layer = sizes.hidden_size * (4 * (sizes.hidden_size // sizes.num_attention_heads) * sizes.num_attention_heads
                                 + 3 * sizes.intermediate_size)
    total = layer * sizes.num_hidden_layers + sizes.vocab_size * sizes.hidden_size
    limits = [total * ((stage + 1) / pp) for stage in range(pp)]
    blocks = [names.EMBEDDING.rpartition(".pp_block.")[0],
              *(names.BLOCK.format(index).removesuffix(".pp_block.") for index in range(sizes.num_hidden_layers)),
              names.FINAL_NORM.removesuffix(".pp_block.weight"), names.HEAD.removesuffix(".pp_block.weight")]
    costs = [0, *[layer] * sizes.num_hidden_layers, 0, sizes.vocab_size * sizes.hidden_size]
    found: list[list[Whole]] = [[] for _ in range(pp)]
    stage = cost = 0
    for block, of_block in zip(blocks, costs):
        members = [whole for whole in wholes if whole.name.startswith(block + ".")]
        if not members and stage > 0:
            members = wholes[:1]  # the head's weight is the embedding's
        found[stage] += members
        cost += of_block
        stage += cost > limits[stage]
    if empty := [index for index, members in enumerate(found) if not members]:
        raise common.wrong(where, f"a parameter on each of {pp} stages, as Nanotron divides layers by their cost",
                           f"none on stage {empty[0]} ({sizes.num_hidden_layers} layers)", "give a smaller --pp",
                           common.EXIT_USAGE)
    return found


def weight_decays(whole: Whole, deck: Deck) -> float:
    """Of a tensor of theirs, all parts of which need the same one."""
    kinds = {_decays(part.dataset, part.index, len(whole.shape), deck) for part in whole.parts}
    if len(kinds) > 1:
        raise common.wrong(f"{deck.where}, optimizer%no_weight_decay", f"one weight decay in {whole.name}", "several",
                           "name all of " + ", ".join(part.dataset.replace("/", ".") for part in whole.parts))
    return deck.number("optimizer.weight_decay", 0.1) if kinds.pop() else 0.0


def _decays(dataset: str, index: tuple[int, ...], dimensions: int, deck: Deck) -> bool:
    """As src/optim/weight_decay.cpp: the last pattern that fits counts."""
    found = dimensions > 1
    single = dataset.replace("model/layers/", f"model/layers/{index[0]}/") if index else dataset
    for word in deck.text("optimizer.no_weight_decay").replace(",", " ").split():
        pattern = word.removeprefix("!").replace(".", "/")
        if any(fnmatch.fnmatchcase(name, pattern) for name in (dataset, single)):
            found = word.startswith("!")
    return found


# ---------------------------------------------------------------------------------------------
# config.yaml


def schedule(deck: Deck, step: int, left: Left) -> dict[str, Any]:
    """optimizer.learning_rate_scheduler. Update i of w of a warm-up has (i + 1) / w of the peak here, i / w there."""
    kind, rate = deck.text("schedule.kind", "constant"), deck.number("optimizer.learning_rate")
    warmup, steps, length = (deck.count(key, default) for key, default in (
        ("schedule.warmup_steps", 0), ("run.steps", None), ("schedule.decay_steps", 0)))
    shape, begin = kind, None
    if kind == "wsd":
        shape, length = deck.text("schedule.decay_shape", "linear"), length or steps // 10
        begin = steps - length
    if kind == "constant":
        shape, length = "linear", max(0, steps - warmup)
    if shape not in DECAYS:
        raise common.wrong(f"{deck.where}, schedule%kind", "constant, linear, cosine, 1-sqrt, wsd", kind,
                           "continue in Nanotron with a deck (--deck FILE) of another schedule")
    if step < warmup or (step == 0 and kind != "constant"):
        of = max(warmup, 1)
        left.say("learning rate of the warm-up", f"Nanotron's update i has i / {of} of the peak, ours (i + 1) / {of}; "
                 f"equal from update {of} on")
    lowest = rate if kind == "constant" else rate * deck.number("schedule.min_lr_ratio", 0.1)
    return {"learning_rate": rate, "lr_decay_starting_step": begin, "lr_decay_steps": length or max(0, steps - warmup),
            "lr_decay_style": shape, "lr_warmup_steps": warmup, "lr_warmup_style": "linear", "min_decay_lr": lowest}


def tokens(deck: Deck, dp: int) -> dict[str, Any]:
    micro, batch = deck.count("data.micro_batch_size", 1), deck.count("data.global_batch_size")
    if micro < 1 or batch < 1 or batch % (micro * dp):
        raise common.wrong(f"{deck.where}, data%global_batch_size", f"a multiple of {micro} (micro_batch_size) x {dp} "
                           "(--dp)", str(batch), "give another --dp", common.EXIT_USAGE)
    return {"batch_accumulation_per_replica": batch // (micro * dp), "micro_batch_size": micro,
            "sequence_length": deck.count("data.sequence_length"), "train_steps": deck.count("run.steps")}


def optimizer(deck: Deck, base: Mapping[str, Any], dtype: str) -> dict[str, Any]:
    """Without exceptions from weight decay: they are in the optimizer's files, and get_custom_weight_decay_for_named_
    parameters of helpers.py needs a tied parameter before the first one that no exception fits."""
    fused = bool((base.get("optimizer_factory") or {}).get("torch_adam_is_fused"))
    factory = {"name": "adamW", "adam_beta1": deck.number("optimizer.beta1", 0.9),
               "adam_beta2": deck.number("optimizer.beta2", 0.95), "adam_eps": deck.number("optimizer.eps", 1e-8),
               "torch_adam_is_fused": fused}
    return {"accumulate_grad_in_fp32": dtype == "bfloat16", "zero_stage": 0, "optimizer_factory": factory,
            "clip_grad": deck.number("optimizer.clip_grad_norm", 1.0) or None,
            "weight_decay": deck.number("optimizer.weight_decay", 0.1), "weight_decay_exclude_named_params": []}


def config(deck: Deck, model: Mapping[str, Any], grid: tuple[int, int, int], dtype: str, base: Mapping[str, Any],
           progress: tuple[int, int, int], left: Left) -> dict[str, Any]:
    """All of config.yaml. grid: dp, tp, pp; base: a config.yaml of theirs; progress: step, samples, seed."""
    step, samples, seed = progress
    found: dict[str, Any] = {group: dict(BASE.get(group, {})) | dict(base.get(group) or {})
                             for group in (*BASE, *base) if isinstance(base.get(group, {}), (dict, type(None)))}
    length = deck.count("data.sequence_length")
    stages = base.get("data_stages") or [STAGE | {"sequence_length": length}]

    def update(group: str, values: Mapping[str, Any]) -> None:
        found[group] = found.get(group, {}) | dict(values)

    update("general", {"project": (base.get("general") or {}).get("project") or "nanotron",
                       "run": deck.text("run.title") or "run", "seed": seed, "step": step,
                       "consumed_train_samples": samples})
    update("checkpoints", {"load_lr_scheduler": True, "load_optimizer": True})
    update("model", {"dtype": dtype, "model_config": dict(model), "make_vocab_size_divisible_by": 1,
                     "init_method": {"std": deck.number("model.initializer_range", 0.02)}})
    found["optimizer"] = optimizer(deck, base.get("optimizer") or {}, dtype) | {
        "learning_rate_scheduler": schedule(deck, step, left)}
    engine = "afab" if deck.text("parallel.pp_schedule", "1f1b") == "gpipe" else "1f1b"
    found["parallelism"] = {"expert_parallel_size": 1, "context_parallel_size": 1, "pp_engine": engine,
                            "tp_mode": "ALL_REDUCE", "tp_linear_async_communication": False} | \
        (base.get("parallelism") or {}) | dict(zip(("dp", "tp", "pp"), grid))
    update("tokens", tokens(deck, grid[0]))
    return found | {"data_stages": stages}
