"""Arguments of Megatron-LM for a model and a deck of ours: as a namespace in a checkpoint, and as a command line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from . import common
from . import megatron_model as names
from .model_sizes import ModelSizes

STYLES = {"constant": "constant", "linear": "linear", "cosine": "cosine", "inverse-sqrt": "inverse-square-root",
          "wsd": "WSD"}
SHAPES = {"linear": "linear", "cosine": "cosine", "1-sqrt": "minus_sqrt"}
PADDING = 128  # largest --make-vocab-size-divisible-by


def divisor(vocab_size: int, tp: int) -> int:
    """The largest power of two with which Megatron pads the vocabulary by nothing; 0 if there is none."""
    value = PADDING
    while value and vocab_size % (value * tp):
        value //= 2
    return value


def model_args(sizes: ModelSizes, where: object) -> dict[str, Any]:
    """Refuses a model that these arguments do not describe."""
    rms, rope = sizes.normalization == "rms_norm", sizes.position_embedding_type == "rope"
    epsilon = sizes.rms_norm_eps if rms else sizes.layer_norm_epsilon
    args: dict[str, Any] = {
        "num_layers": sizes.num_hidden_layers, "hidden_size": sizes.hidden_size,
        "num_attention_heads": sizes.num_attention_heads, "kv_channels": sizes.head_dim,
        "ffn_hidden_size": sizes.intermediate_size, "add_bias_linear": sizes.mlp_bias, "normalization": "RMSNorm" if rms
        else "LayerNorm", "norm_epsilon": epsilon, "layernorm_epsilon": epsilon, "qk_layernorm": sizes.qk_norm,
        "group_query_attention": sizes.num_key_value_heads != sizes.num_attention_heads,
        "num_query_groups": sizes.num_key_value_heads, "swiglu": sizes.hidden_act == "silu",
        "squared_relu": sizes.hidden_act == "relu2", "openai_gelu": sizes.hidden_act == "gelu_new",
        "bias_gelu_fusion": False, "add_qkv_bias": sizes.qkv_bias and not sizes.mlp_bias,
        "untie_embeddings_and_output_weights": not sizes.tie_word_embeddings,
        "position_embedding_type": sizes.position_embedding_type, "add_position_embedding": True,
        "rotary_base": sizes.rope_theta, "rotary_percent": sizes.partial_rotary_factor,
        "rotary_interleaved": sizes.rope_interleaved, "layernorm_zero_centered_gamma": sizes.norm_weight == "one_plus",
        "apply_layernorm_1p": sizes.norm_weight == "one_plus", "padded_vocab_size": sizes.vocab_size}
    if sizes.max_position_embeddings:
        args["max_position_embeddings"] = sizes.max_position_embeddings
    if sizes.sliding_window:
        args["window_size"] = (sizes.sliding_window - 1, 0)
    if rope and sizes.rope_type == "llama3":
        args |= {"use_rope_scaling": True, "rope_scaling_factor": sizes.rope_factor}
    if rope and sizes.rope_type == "linear":
        args["rotary_seq_len_interpolation_factor"] = sizes.rope_factor
    ours, theirs = sizes.dense_values(), names.sizes_of(args, sizes.vocab_size, where).dense_values()
    other = [key for key in sorted(ours.keys() | theirs.keys())
             if ours.get(key) != theirs.get(key) and (rope or not key.startswith("rope_"))]
    if other or sizes.num_experts:
        found = "experts" if sizes.num_experts else f"model%{other[0]} = {ours.get(other[0])!r}"
        raise common.wrong(where, "a model of which Megatron-LM's files are written", found,
                           "nanotron-convert to-hf, and a converter of Megatron-LM from there")
    return args


def _number(deck: Mapping[str, str], key: str, default: float) -> float:
    return float(deck.get(key, str(default)).lower().replace("d", "e"))


def training_args(deck: Mapping[str, str], step: int, samples: int) -> dict[str, Any]:
    """Of &optimizer, &schedule and &data; schedules count steps in both."""
    rate, warmup = _number(deck, "optimizer.learning_rate", 3e-4), int(_number(deck, "schedule.warmup_steps", 0))
    steps = max(step, int(_number(deck, "run.steps", step)))
    kind = deck.get("schedule.kind", "constant")
    decay = int(_number(deck, "schedule.decay_steps", 0))
    found = {"optimizer": "adam", "lr": rate, "min_lr": rate * _number(deck, "schedule.min_lr_ratio", 0.1),
             "adam_beta1": _number(deck, "optimizer.beta1", 0.9), "adam_beta2": _number(deck, "optimizer.beta2", 0.95),
             "adam_eps": _number(deck, "optimizer.eps", 1e-8), "clip_grad": _number(deck, "optimizer.clip_grad_norm",
                                                                                    1.0),
             "weight_decay": _number(deck, "optimizer.weight_decay", 0.1), "train_iters": steps,
             "lr_warmup_iters": warmup, "lr_decay_style": STYLES.get(kind, "constant"),
             "lr_decay_iters": steps if kind == "wsd" or not decay else warmup + decay,
             "global_batch_size": int(_number(deck, "data.global_batch_size", 1)),
             "micro_batch_size": int(_number(deck, "data.micro_batch_size", 1)),
             "seq_length": int(_number(deck, "data.sequence_length", 1)), "seed": int(_number(deck, "run.seed", 1234)),
             "consumed_train_samples": samples, "consumed_valid_samples": 0, "skipped_train_samples": 0}
    if kind == "wsd":
        found |= {"lr_wsd_decay_iters": decay or max(1, steps // 10),
                  "lr_wsd_decay_style": SHAPES.get(deck.get("schedule.decay_shape", "linear"), "linear")}
    return found


def scheduler(args: Mapping[str, Any], step: int) -> dict[str, Any]:
    """opt_param_scheduler, which counts samples."""
    batch = args["global_batch_size"]
    return {"max_lr": args["lr"], "lr_warmup_steps": args["lr_warmup_iters"] * batch, "num_steps": step * batch,
            "lr_decay_style": args["lr_decay_style"], "lr_decay_steps": args["lr_decay_iters"] * batch,
            "min_lr": args["min_lr"], "start_wd": args["weight_decay"], "end_wd": args["weight_decay"],
            "wd_incr_style": "constant", "wd_incr_steps": args["train_iters"] * batch}


FLAGS = ("swiglu", "squared_relu", "openai_gelu", "qk_layernorm", "group_query_attention", "add_qkv_bias",
         "untie_embeddings_and_output_weights", "rotary_interleaved", "use_rope_scaling", "apply_layernorm_1p")
VALUES = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "num_layers", "hidden_size", "ffn_hidden_size",
          "num_attention_heads", "kv_channels", "seq_length", "max_position_embeddings", "normalization",
          "norm_epsilon",
          "position_embedding_type", "make_vocab_size_divisible_by", "micro_batch_size", "global_batch_size",
          "train_iters", "lr", "min_lr", "lr_decay_style", "lr_decay_iters", "lr_warmup_iters", "lr_wsd_decay_iters",
          "lr_wsd_decay_style", "adam_beta1", "adam_beta2", "adam_eps", "weight_decay", "clip_grad", "seed",
          "ckpt_format", "transformer_impl")


def command_line(args: Mapping[str, Any]) -> list[str]:
    words = [f"--{name.replace('_', '-')} {args[name]}" for name in VALUES if args.get(name) is not None]
    words += [f"--{name.replace('_', '-')}" for name in FLAGS if args.get(name)]
    if args["group_query_attention"]:
        words.append(f"--num-query-groups {args['num_query_groups']}")
    if args["position_embedding_type"] == "rope":
        words += [f"--rotary-base {args['rotary_base']:.0f}", f"--rotary-percent {args['rotary_percent']}"]
    if "rope_scaling_factor" in args:
        words.append(f"--rope-scaling-factor {args['rope_scaling_factor']}")
    if args.get("window_size"):
        words.append(f"--window-size {args['window_size'][0]},0")
    words += [] if args["add_bias_linear"] else ["--disable-bias-linear"]
    words += ["--no-bias-gelu-fusion"] if not args["swiglu"] else []
    words += ["--bf16"] if args.get("bf16") else []
    words += ["--use-distributed-optimizer"] if args.get("use_distributed_optimizer") else []
    return [*words, "--no-load-rng"]
