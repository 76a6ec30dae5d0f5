"""Models of Megatron-LM: their arguments as sizes of ours, their tensors as parts of ours.

Names and layouts follow Megatron-LM of 2026-08-22 (core 0.20): megatron/core/models/gpt/gpt_layer_specs.py, and
attention.py and mlp.py in megatron/core/transformer. `linear_qkv` holds for each query group its queries, its key and
its value; `linear_fc1` of a gated network the gate above the up projection, in each tensor-parallel rank.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from . import common
from .model_sizes import MAX_LAYERS, ModelSizes

LAYERS = "decoder.layers."
FUSED_NORMS = {"self_attention.linear_qkv.layer_norm_": "input_layernorm.",
               "mlp.linear_fc1.layer_norm_": "pre_mlp_layernorm."}  # of Transformer Engine
OUTSIDE = {"embedding.word_embeddings.weight": "model/embed_tokens/weight",
           "embedding.position_embeddings.weight": "model/embed_positions/weight",
           "decoder.final_layernorm.weight": "model/norm/weight", "decoder.final_layernorm.bias": "model/norm/bias",
           "output_layer.weight": "lm_head/weight"}
IN_LAYER = {"input_layernorm": "input_layernorm", "pre_mlp_layernorm": "post_attention_layernorm",
            "self_attention.linear_proj": "self_attn/o_proj", "self_attention.q_layernorm": "self_attn/q_norm",
            "self_attention.k_layernorm": "self_attn/k_norm", "mlp.linear_fc2": "mlp/down_proj"}
QKV, FC1 = "self_attention.linear_qkv", "mlp.linear_fc1"
ROWS = (QKV, FC1, "embedding.word_embeddings", "output_layer")
COLUMNS = ("self_attention.linear_proj.weight", "mlp.linear_fc2.weight")

# Arguments that change the model, with the values that mean what a model here does. A missing one is that too.
PLAIN: dict[str, tuple[Any, ...]] = {
    "multi_latent_attention": (False,), "num_experts": (None, 0), "mtp_num_layers": (None, 0),
    "heterogeneous_layers_config_path": (None,), "experimental_attention_variant": (None,),
    "is_hybrid_model": (False,), "hybrid_override_pattern": (None,), "hybrid_layer_pattern": (None,),
    "qk_l2_norm": (False,), "use_mup": (False,), "attention_output_gate": (False,), "quick_geglu": (False,),
    "apply_residual_connection_post_layernorm": (False,), "softmax_type": ("vanilla",), "no_rope_freq": (None,),
    "window_attn_skip_freq": (None,), "enable_mhc_connections": (False,), "use_legacy_models": (False,),
    "mrope_section": (None,), "rope_type": (None, "rope"), "glu_linear_offset": (0.0,),
    "activation_func_clamp_value": (None,), "linear_attention_freq": (None,), "fp8_param_gather": (False,),
    "fp4_param_gather": (False,), "use_megatron_fsdp": (False,), "use_torch_fsdp2": (False,), "spec": (None,),
    "expert_model_parallel_size": (None, 1), "sft": (False,), "encoder_num_experts": (None,)}
NUMBERS = (  # arguments
    "num_layers", "hidden_size", "num_attention_heads", "num_query_groups", "kv_channels", "ffn_hidden_size",
    "max_position_embeddings", "rotary_base", "rotary_percent", "rope_scaling_factor",
    "rotary_seq_len_interpolation_factor", "norm_epsilon", "layernorm_epsilon", "tensor_model_parallel_size",
    "pipeline_model_parallel_size", "virtual_pipeline_model_parallel_size", "data_parallel_size",
    "context_parallel_size", "decoder_first_pipeline_num_layers", "decoder_last_pipeline_num_layers",
    "ddp_bucket_size", "ddp_num_buckets", "consumed_train_samples", "seq_length", "global_batch_size",
    "micro_batch_size", "seed", "vocab_size", "train_iters", "train_samples", "lr_decay_iters", "lr_decay_samples",
    "lr_warmup_iters", "lr_warmup_samples", "lr_warmup_fraction", "lr_wsd_decay_iters", "lr_wsd_decay_samples", "lr",
    "min_lr", "adam_beta1", "adam_beta2", "adam_eps", "weight_decay", "start_weight_decay", "end_weight_decay",
    "clip_grad", "hidden_dropout", "attention_dropout")



def refuse(where: object, name: str, value: Any, known: str) -> common.ToolError:
    return common.wrong(f"{where}, args", f"--{name.replace('_', '-')} {known}", f"{value!r:.100}",
                        "such a model cannot be trained here yet, or its tensors are not read: doc/coming_from.md")


def check_args(args: Mapping[str, Any], where: object) -> None:
    for name, known in PLAIN.items():
        value = args.get(name, known[0])
        if value not in known and not (name == "is_hybrid_model" and value is None):
            raise refuse(where, name, value, " or ".join("off" if each in (None, False) else str(each)
                                                          for each in known))


def activation_of(args: Mapping[str, Any], where: object) -> str:
    if args.get("swiglu"):
        return "silu"
    if args.get("squared_relu"):
        return "relu2"
    if args.get("openai_gelu"):
        return "gelu_new"
    return "gelu_new" if args.get("bias_gelu_fusion") and args.get("add_bias_linear", True) else "gelu"


def positions_of(args: Mapping[str, Any], where: object) -> dict[str, Any]:
    kind = args.get("position_embedding_type", "learned_absolute")
    if args.get("use_rotary_position_embeddings"):
        kind = "rope"
    if kind in ("learned_absolute", "none"):
        learned = kind == "learned_absolute"
        return {"position_embedding_type": kind,
                "max_position_embeddings": number(args, "max_position_embeddings", where) if learned else 0}
    if kind != "rope":
        raise refuse(where, "position_embedding_type", kind, "rope, learned_absolute or none")
    found: dict[str, Any] = {"rope_theta": float(args.get("rotary_base") or 10000),
                             "partial_rotary_factor": float(args.get("rotary_percent", 1.0)),
                             "rope_interleaved": bool(args.get("rotary_interleaved"))}
    if args.get("use_rope_scaling"):  # constants of rotary_pos_embedding.py, _apply_scaling
        found |= {"rope_type": "llama3", "rope_factor": float(args.get("rope_scaling_factor", 8.0)),
                  "rope_low_freq_factor": 1.0, "rope_high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
    elif factor := args.get("rotary_seq_len_interpolation_factor"):
        found |= {"rope_type": "linear", "rope_factor": float(factor)}
    return found


def number(args: Mapping[str, Any], name: str, where: object, otherwise: Any = None) -> int:
    value = args.get(name)
    value = otherwise if value is None else value
    if type(value) is not int or value < 1:
        raise _no_number(where, f"a positive number for {name}", value)
    return value


def _no_number(where: object, expected: str, value: Any) -> common.ToolError:
    return common.wrong(f"{where}, args", expected, f"{value!r:.100}",
                        "name a checkpoint that Megatron-LM wrote, with its args")


def step_of(content: Mapping[Any, Any], where: object) -> int:
    value = content.get("iteration", 0)
    if type(value) is not int or not 0 <= value < 1 << 53:
        raise common.wrong(f"{where}, iteration", "a number of steps", f"{value!r:.100}", "copy the file again")
    return value


def checked(args: dict[str, Any], where: object) -> dict[str, Any]:
    """args, if those that are read as numbers are numbers, or missing."""
    for name in NUMBERS:
        value = args.get(name)
        if value is not None and (type(value) not in (int, float) or not abs(value) < 1 << 53):
            raise _no_number(where, f"a number for {name}", value)
    if (args.get("num_layers") or 0) > MAX_LAYERS:
        raise _no_number(where, f"at most {MAX_LAYERS} for num_layers", args["num_layers"])
    return args


def sizes_of(args: Mapping[str, Any], vocab_size: int, where: object) -> ModelSizes:
    """The vocabulary is that of the tensors, padded: what pads it takes part in Megatron's softmax."""
    check_args(args, where)
    heads, hidden = number(args, "num_attention_heads", where), number(args, "hidden_size", where)
    normalization = args.get("normalization", "LayerNorm")
    if normalization not in ("RMSNorm", "LayerNorm"):
        raise refuse(where, "normalization", normalization, "RMSNorm or LayerNorm")
    qk_norm, rms = bool(args.get("qk_layernorm")), normalization == "RMSNorm"
    if qk_norm and not rms:
        raise refuse(where, "qk_layernorm", True, "with --normalization RMSNorm")
    epsilon = float(args.get("norm_epsilon") or args.get("layernorm_epsilon") or 1e-5)
    biases = bool(args.get("add_bias_linear", True))
    window = args.get("window_size")
    if window is not None and (not isinstance(window, (tuple, list)) or len(window) != 2 or window[1] not in (0, -1) or
                               type(window[0]) is not int):
        raise refuse(where, "window_size", window, "(tokens before, 0)")
    one_plus = args.get("layernorm_zero_centered_gamma") or args.get("apply_layernorm_1p")
    more: dict[str, Any] = {"rms_norm_eps" if rms else "layer_norm_epsilon": epsilon} | positions_of(args, where)
    return ModelSizes(
        hidden_size=hidden, num_hidden_layers=number(args, "num_layers", where), num_attention_heads=heads,
        num_key_value_heads=number(args, "num_query_groups", where,
                                   heads) if args.get("group_query_attention") else heads,
        head_dim=number(args, "kv_channels", where, hidden // heads),
        intermediate_size=number(args, "ffn_hidden_size", where, 4 * hidden), vocab_size=vocab_size,
        tie_word_embeddings=not args.get("untie_embeddings_and_output_weights"),
        qkv_bias=biases or bool(args.get("add_qkv_bias")), o_proj_bias=biases, mlp_bias=biases, qk_norm=qk_norm,
        normalization="rms_norm" if rms else "layer_norm", hidden_act=activation_of(args, where),
        norm_weight="one_plus" if one_plus else "plain",
        sliding_window=window[0] + 1 if window is not None and window[0] >= 0 else 0,
        **more)


# ---------------------------------------------------------------------------------------------
# Names


def canonical(name: str) -> str:
    """Norms that Transformer Engine joins with a linear layer under their names in other layers."""
    for theirs, plain in FUSED_NORMS.items():
        name = name.replace(theirs, plain)
    return name


def in_layer(layer: int, name: str) -> str:
    return f"{LAYERS}{layer}.{name}"


def split(name: str) -> tuple[int | None, str]:
    """The layer, None outside of them, and the name in it."""
    if not name.startswith(LAYERS):
        return None, name
    layer, _, rest = name[len(LAYERS):].partition(".")
    return int(layer), rest


def _biased(sizes: ModelSizes) -> dict[str, bool]:
    norm = sizes.normalization == "layer_norm"
    return {"input_layernorm": norm, "self_attention.linear_proj": sizes.o_proj_bias, QKV: sizes.qkv_bias,
            "self_attention.q_layernorm": False, "self_attention.k_layernorm": False, "pre_mlp_layernorm": norm,
            FC1: sizes.mlp_bias, "mlp.linear_fc2": sizes.mlp_bias}


def layer_names(sizes: ModelSizes, fused: bool = False) -> list[str]:
    """Those of a layer, in the order of the parameters of Megatron's modules: of its own layers, or of Transformer
    Engine's, which hold the norms."""
    order = [*_biased(sizes)]
    if fused:
        order = ["self_attention.linear_proj", "input_layernorm", QKV, "self_attention.q_layernorm",
                 "self_attention.k_layernorm", "pre_mlp_layernorm", FC1, "mlp.linear_fc2"]
    names = []
    for name in order:
        if "self_attention.q_" in name or "self_attention.k_" in name:
            names += [name + ".weight"] if sizes.qk_norm else []
        else:
            names += [name + ".weight"] + ([name + ".bias"] if _biased(sizes)[name] else [])
    return names


def stage_names(sizes: ModelSizes, layers: Sequence[int], first: bool, last: bool, fused: bool = False) -> list[str]:
    """Of a stage of the pipeline, in the order of its parameters."""
    positions = ["embedding.position_embeddings.weight"] if sizes.position_embedding_type == "learned_absolute" else []
    names = ["embedding.word_embeddings.weight", *positions] if first else []
    names += [in_layer(layer, name) for layer in layers for name in layer_names(sizes, fused)]
    if last:
        names += ["decoder.final_layernorm.weight"]
        names += ["decoder.final_layernorm.bias"] if sizes.normalization == "layer_norm" else []
        names += ["output_layer.weight"] if not sizes.tie_word_embeddings or not first else []
    return names


def all_names(sizes: ModelSizes) -> list[str]:
    return stage_names(sizes, range(sizes.num_hidden_layers), True, True)


# ---------------------------------------------------------------------------------------------
# Tensors


Whole = tuple[str, tuple[int, ...], np.ndarray]  # a dataset, an index into it, its values


def _groups(sizes: ModelSizes) -> tuple[int, int]:
    """Query groups, and rows of one in linear_qkv."""
    groups = sizes.num_key_value_heads
    return groups, (sizes.num_attention_heads // groups + 2) * sizes.head_dim


def shape_of(name: str, sizes: ModelSizes) -> tuple[int, ...]:
    """Of a whole tensor."""
    layer, rest = split(name)
    module, _, kind = rest.rpartition(".")
    shapes = sizes.parameter_shapes()
    if layer is None:
        return shapes[OUTSIDE["embedding.word_embeddings.weight" if sizes.tie_word_embeddings and
                              rest == "output_layer.weight" else rest]]
    inner = (sizes.hidden_size,) if kind == "weight" else ()
    if module == QKV:
        groups, rows = _groups(sizes)
        return (groups * rows, *inner)
    if module == FC1:
        return ((2 if sizes.is_gated else 1) * sizes.intermediate_size, *inner)
    return shapes[f"model/layers/{IN_LAYER[module]}/{kind}"][1:]


def to_ours(name: str, whole: np.ndarray, sizes: ModelSizes) -> list[Whole]:
    layer, rest = split(name)
    if layer is None:
        return [(OUTSIDE[rest], (), whole)]
    module, _, kind = rest.rpartition(".")
    if module == QKV:
        groups, rows = _groups(sizes)
        grouped = whole.reshape(groups, rows, *whole.shape[1:])
        width = sizes.head_dim
        cut = {"q": (0, rows - 2 * width), "k": (rows - 2 * width, rows - width), "v": (rows - width, rows)}
        return [(f"model/layers/self_attn/{key}_proj/{kind}", (layer,),
                 grouped[:, begin:end].reshape(-1, *whole.shape[1:])) for key, (begin, end) in cut.items()]
    if module == FC1:
        names = ("gate_proj", "up_proj") if sizes.is_gated else ("up_proj",)
        parts = np.split(whole, len(names))
        return [(f"model/layers/mlp/{part}/{kind}", (layer,), values) for part, values in zip(names, parts)]
    return [(f"model/layers/{IN_LAYER[module]}/{kind}", (layer,), whole)]


def from_ours(name: str, dataset: Callable[[str], Any], sizes: ModelSizes) -> np.ndarray:
    """The whole tensor, of datasets below `parameters` or of moments."""
    layer, rest = split(name)
    if layer is None:
        tied = rest == "output_layer.weight" and sizes.tie_word_embeddings
        return np.asarray(dataset(OUTSIDE["embedding.word_embeddings.weight" if tied else rest])[()])
    module, _, kind = rest.rpartition(".")
    if module == QKV:
        groups = sizes.num_key_value_heads
        parts = [dataset(f"model/layers/self_attn/{key}_proj/{kind}")[layer] for key in "qkv"]
        both: np.ndarray = np.concatenate([part.reshape(groups, -1, *part.shape[1:]) for part in parts], axis=1)
        return both.reshape(-1, *both.shape[2:])
    if module == FC1:
        names = ("gate_proj", "up_proj") if sizes.is_gated else ("up_proj",)
        rows: np.ndarray = np.concatenate([dataset(f"model/layers/mlp/{part}/{kind}")[layer] for part in names])
        return rows
    return np.asarray(dataset(f"model/layers/{IN_LAYER[module]}/{kind}")[layer])


def shard_axis(name: str) -> int | None:
    """Along which tensor parallelism divides it."""
    rest = split(name)[1]
    return 0 if rest.startswith(ROWS) else 1 if rest.endswith(COLUMNS) else None


def _gates(name: str, sizes: ModelSizes) -> int:
    return 2 if split(name)[1].startswith(FC1) and sizes.is_gated else 1


def joined(name: str, shards: Sequence[np.ndarray], sizes: ModelSizes) -> np.ndarray:
    """The whole tensor of the shards of all tensor-parallel ranks."""
    axis = shard_axis(name)
    if axis is None:
        return shards[0]
    if axis == 1:
        return np.concatenate(shards, axis=1)
    gates = _gates(name, sizes)
    parts = [shard.reshape(gates, -1, *shard.shape[1:]) for shard in shards]
    rows: np.ndarray = np.concatenate(parts, axis=1)
    return rows.reshape(-1, *shards[0].shape[1:])


def shard_of(name: str, whole: np.ndarray, rank: int, tp: int, sizes: ModelSizes) -> np.ndarray:
    axis = shard_axis(name)
    if axis is None:
        return whole
    if axis == 1:
        columns: np.ndarray = np.split(whole, tp, axis=1)[rank]
        return columns
    gates = _gates(name, sizes)
    part: np.ndarray = np.split(whole.reshape(gates, -1, *whole.shape[1:]), tp, axis=1)[rank]
    return part.reshape(-1, *whole.shape[1:])


def shard_shape(name: str, tp: int, sizes: ModelSizes) -> tuple[int, ...]:
    shape, axis = [*shape_of(name, sizes)], shard_axis(name)
    if axis is not None:
        shape[axis] //= tp
    return tuple(shape)


def numel(shape: Sequence[int]) -> int:
    return math.prod(shape)
