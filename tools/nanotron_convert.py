#!/usr/bin/env python3
"""Converts between Hugging Face Llama/Qwen2/Qwen3/Mixtral/Qwen2-MoE/Qwen3-MoE folders and nanotron_hpc checkpoints.

    nanotron_convert.py from-hf  meta-llama/  run/checkpoints      -> run/checkpoints/step_00000000
    nanotron_convert.py to-hf    run/  exported/  --dtype bf16

from-hf reads config.json and model.safetensors (or the shards of model.safetensors.index.json),
writes step_00000000 with its manifest, prints the &model group of a deck for the model and leaves
it beside the step folder as model.nml. bf16 and fp16 weights are widened to fp32 without loss.
There is no optimizer state in the result: a run from it starts with zero moments.

to-hf takes a step folder, or the newest valid one of a run or checkpoints folder, and writes
config.json and safetensors. --dtype fp32 is exact for a run in fp32 or bf16 (master weights);
bf16 rounds to nearest even. The tokenizer's own files are not part of a checkpoint.

Everything moves in pieces of 64 MiB, so the size of the model does not matter.
Needs numpy and h5py; the safetensors format is read and written here.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import sys
from pathlib import Path

import nanotron_checkpoint as checkpoint_file
import nanotron_common as common
import nanotron_safetensors as st
from nanotron_common import np

DTYPES = {"fp64": "F64", "fp32": "F32", "bf16": "BF16"}
TORCH_NAMES = {"F64": "float64", "F32": "float32", "BF16": "bfloat16"}
ARCHITECTURES = {"LlamaForCausalLM": "llama", "Qwen2ForCausalLM": "qwen2",
                 "Qwen3ForCausalLM": "qwen3", "MixtralForCausalLM": "mixtral",
                 "Qwen2MoeForCausalLM": "qwen2_moe", "Qwen3MoeForCausalLM": "qwen3_moe"}
RMS_NORM_EPS = {"mixtral": 1e-5}  # others: 1e-6
ROPE_THETA = {"mixtral": 1e6}  # others: 1e4
KEY_VALUE_HEADS = {"qwen2": 32, "qwen3": 32, "mixtral": 8, "qwen2_moe": 16, "qwen3_moe": 4}
# What an architecture has where config.json is silent: experts, of a token, their width, the shared one's, normed.
EXPERTS = {"mixtral": (8, 2, 14336, 0, True), "qwen2_moe": (60, 4, 1408, 5632, False),
           "qwen3_moe": (128, 8, 768, 0, False)}
MIXTRAL_NAMES = {"gate_proj": "w1", "down_proj": "w2", "up_proj": "w3"}


# ---------------------------------------------------------------------------------------------
# config.json


def refusals(config: dict) -> list[str]:
    """What config.json asks for and nanotron_hpc does not have."""
    found = []

    def refuse(condition, text):
        if condition:
            found.append(text)

    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    kind = rope.get("rope_type", rope.get("type", "default")) if isinstance(rope, dict) else rope
    refuse(kind not in (None, "default"), f"rope scaling of type '{kind}'")
    partial = [part.get("partial_rotary_factor") for part in (config, rope)
               if isinstance(part, dict)]
    refuse(any(factor not in (None, 1.0) for factor in partial),
           "rotary embedding on a part of a head (partial_rotary_factor)")
    refuse(config.get("use_sliding_window"), "sliding-window attention (use_sliding_window)")
    refuse("sliding_attention" in (config.get("layer_types") or []),
           "sliding-window attention (layer_types)")
    refuse(config.get("attention_bias"), "attention_bias (a bias on o_proj)")
    refuse(config.get("mlp_bias"), "mlp_bias")
    act = config.get("hidden_act", "silu")
    refuse(act not in ("silu", "swish"), f"hidden_act '{act}' (only SwiGLU, 'silu')")
    refuse(config.get("quantization_config"), "quantized weights (quantization_config)")
    refuse(config.get("decoder_sparse_step", 1) != 1 or config.get("mlp_only_layers"),
           "dense layers among those with experts (decoder_sparse_step, mlp_only_layers)")
    refuse(config.get("router_jitter_noise"), "router_jitter_noise")
    return found


def expert_sizes(kind: str, config: dict) -> dict:
    """The sizes of a mixture of experts; nothing for a dense architecture."""
    if kind not in EXPERTS:
        return {}
    experts, of_token, width, shared, normed = EXPERTS[kind]
    mixtral = kind == "mixtral"
    return {
        "num_experts": int(config.get("num_local_experts" if mixtral else "num_experts") or experts),
        "num_experts_per_tok": int(config.get("num_experts_per_tok") or of_token),
        "moe_intermediate_size": int(config.get("intermediate_size" if mixtral else "moe_intermediate_size") or width),
        "shared_expert_intermediate_size":
            int(config.get("shared_expert_intermediate_size") or shared) if shared else 0,
        "norm_topk_prob": True if mixtral else bool(config.get("norm_topk_prob", normed)),
    }


def kind_of(sizes: checkpoint_file.ModelSizes, where) -> str:
    """The architecture of these sizes; ToolError when there is none."""
    if sizes.qkv_bias and sizes.qk_norm:
        raise common.ToolError(f"{where}: no Hugging Face architecture of this family has both "
                           "qkv_bias and qk_norm")
    kind = "qwen2" if sizes.qkv_bias else "qwen3" if sizes.qk_norm else "llama"
    if sizes.num_experts == 0:
        return kind
    kind = {"qwen2": "qwen2_moe", "qwen3": "qwen3_moe", "llama": "mixtral"}[kind]
    shared = sizes.shared_expert_intermediate_size > 0
    fits = shared == (kind == "qwen2_moe") and (kind != "mixtral" or (
        sizes.norm_topk_prob and sizes.moe_intermediate_size == sizes.intermediate_size))
    if not fits:
        raise common.ToolError(f"{where}: no Hugging Face architecture has these experts: Mixtral has neither qkv_bias "
                               "nor qk_norm nor a shared expert, normed weights, and experts of intermediate_size; "
                               "Qwen2-MoE has qkv_bias and a shared expert, Qwen3-MoE qk_norm and none")
    return kind


def published_name(name: str, kind: str) -> str:
    """The name in a model's files: Mixtral's differ."""
    if kind != "mixtral" or ".mlp." not in name:
        return name
    for ours, theirs in MIXTRAL_NAMES.items():
        name = name.replace(ours, theirs)
    return name.replace(".mlp.", ".block_sparse_moe.")


def sizes_from_config(config: dict, where: Path) -> checkpoint_file.ModelSizes:
    """Model sizes of a config.json; ToolError for whatever cannot be represented."""
    names = config.get("architectures") or []
    kind = next((ARCHITECTURES[name] for name in names if name in ARCHITECTURES), None)
    if kind is None or len(names) != 1:
        raise common.ToolError(f"{where}: architecture {names or config.get('model_type')} is not "
                           f"supported (supported: {', '.join(ARCHITECTURES)})")
    if problems := refusals(config):
        raise common.ToolError(f"{where}: this model needs what nanotron_hpc does not have: "
                           + "; ".join(problems))
    try:
        heads, hidden = int(config["num_attention_heads"]), int(config["hidden_size"])
        default_kv = KEY_VALUE_HEADS.get(kind, heads)
        default_dim = 128 if kind == "qwen3" else hidden // heads
        rope = config.get("rope_parameters") or {}
        sizes = checkpoint_file.ModelSizes(
            hidden_size=hidden,
            num_hidden_layers=int(config["num_hidden_layers"]),
            num_attention_heads=heads,
            num_key_value_heads=int(config.get("num_key_value_heads") or default_kv),
            head_dim=int(config.get("head_dim") or default_dim),
            intermediate_size=int(config["intermediate_size"]),
            vocab_size=int(config["vocab_size"]),
            tie_word_embeddings=bool(config.get("tie_word_embeddings", False)),
            qkv_bias=bool(config.get("qkv_bias", True)) if kind == "qwen2_moe" else kind == "qwen2",
            qk_norm=kind in ("qwen3", "qwen3_moe"),
            rms_norm_eps=float(config.get("rms_norm_eps", RMS_NORM_EPS.get(kind, 1e-6))),
            rope_theta=float(config.get("rope_theta") or rope.get("rope_theta") or ROPE_THETA.get(kind, 1e4)),
            **expert_sizes(kind, config),
        )
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        raise common.ToolError(f"{where}: missing or malformed entry ({error!r})") from None
    if kind == "mixtral" and config.get("sliding_window"):
        raise common.ToolError(f"{where}: sliding-window attention (sliding_window)")
    if sizes.num_attention_heads % sizes.num_key_value_heads:
        raise common.ToolError(f"{where}: {sizes.num_attention_heads} attention heads are no multiple "
                           f"of {sizes.num_key_value_heads} key/value heads")
    return sizes


def config_from_sizes(sizes: checkpoint_file.ModelSizes, dtype: str, max_positions: int, where) -> dict:
    kind = kind_of(sizes, where)
    architecture = next(name for name, value in ARCHITECTURES.items() if value == kind)
    config = {"architectures": [architecture], "model_type": kind, "hidden_act": "silu"}
    for key, value in sizes.dense_values().items():
        if key not in ("qkv_bias", "qk_norm"):
            config[key] = value
    if kind == "mixtral":
        config |= {"num_local_experts": sizes.num_experts, "num_experts_per_tok": sizes.num_experts_per_tok,
                   "sliding_window": None}
    elif kind in EXPERTS:
        config |= sizes.moe_values() | {"decoder_sparse_step": 1, "mlp_only_layers": []}
    if kind == "llama":
        config |= {"attention_bias": False, "mlp_bias": False}
    elif kind in ("qwen3", "qwen3_moe"):
        config["attention_bias"] = False
    return config | {"max_position_embeddings": max_positions, "rope_scaling": None,
                     "initializer_range": 0.02, "use_cache": True, "bos_token_id": None,
                     "eos_token_id": None, "torch_dtype": TORCH_NAMES[dtype]}


# ---------------------------------------------------------------------------------------------
# The two directions


def same_tensor(a: st.StoredTensor, b: st.StoredTensor) -> bool:
    return a.shape == b.shape and all(
        np.array_equal(x, y, equal_nan=True)
        for (_, x), (_, y) in zip(a.pieces(), b.pieces(), strict=True))


def expected_tensors(sizes: checkpoint_file.ModelSizes, where) -> dict[str, tuple[str, int | None, tuple[int, ...]]]:
    """Hugging Face name -> (dataset, layer or None, shape), in file order."""
    result, kind = {}, kind_of(sizes, where)
    for name, shape in sizes.parameter_shapes().items():
        names = checkpoint_file.hugging_face_names(name, sizes.num_hidden_layers)
        stacked = name.startswith("model/layers/")
        for layer, full in enumerate(names):
            full = published_name(full, kind)
            result[full] = (name, layer, shape[1:]) if stacked else (name, None, shape)
    return result


def match_tensors(tensors, sizes, where):
    """Checks names and shapes; returns name -> (dataset, layer, shape)."""
    expected = expected_tensors(sizes, where)
    head, embedding = "lm_head.weight", "model.embed_tokens.weight"
    if sizes.tie_word_embeddings and head in tensors and embedding in tensors and \
            not same_tensor(tensors[head], tensors[embedding]):
        raise common.ToolError(f"{where}: tie_word_embeddings is set, yet {head} differs from "
                           f"{embedding}")
    for name in sorted(expected.keys() | tensors.keys()):
        if name not in tensors:
            raise common.ToolError(f"{where}: {name} is missing")
        if name not in expected:
            if name.endswith("rotary_emb.inv_freq") or name == head:
                continue
            raise common.ToolError(f"{where}: {name} {tensors[name].shape} has no place in this model")
        if tensors[name].shape != expected[name][2]:
            raise common.ToolError(f"{where}: {name}: expected shape {expected[name][2]}, found "
                               f"{tensors[name].shape}")
    return expected


def tokenizer_of(folder: Path) -> dict[str, str]:
    """/tokenizer of a checkpoint, of the folder's tokenizer.json; empty without one."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        return {}
    text = path.read_text(encoding="utf-8")
    return {"name": str(path), "sha256": hashlib.sha256(text.encode("utf-8")).hexdigest()}


def say_tokenizer(file, target: Path) -> None:
    """Which tokenizer's files belong into the exported folder, and whether they are there."""
    if "tokenizer" not in file:
        return
    known = {key: common.as_text(value) for key, value in file["tokenizer"].attrs.items()}
    wanted, there = known.get("sha256"), tokenizer_of(target).get("sha256")
    print(f"{target}: trained with the tokenizer {known.get('name', '')!r}, sha256 {wanted or 'unknown'}")
    if wanted and there and wanted != there:
        print(f"warning: {target / 'tokenizer.json'} is another one, sha256 {there}", file=sys.stderr)


def from_hugging_face(options) -> int:
    source = Path(options.source)
    config_path = source / "config.json"
    sizes = sizes_from_config(st.read_json(config_path), config_path)
    tensors = st.read_tensors(source)
    expected = match_tensors(tensors, sizes, source)
    folder = Path(options.target) / "step_00000000"
    if (folder / checkpoint_file.MANIFEST_FILE).exists() and not options.overwrite:
        raise common.ToolError(f"{folder}: holds a checkpoint already; --overwrite replaces it")
    wide = any(tensors[name].dtype == "F64" for name in expected)
    with checkpoint_file.CheckpointWriter(folder, sizes, dtype="<f8" if wide else "<f4", seed=options.seed,
                             tokenizer=tokenizer_of(source),
                             provenance=common.tool_provenance("nanotron_convert")
                             | {"source": str(source)}) as writer:
        for name, (dataset, layer, _) in expected.items():
            target = writer.dataset(dataset)
            for start, block in tensors[name].pieces():
                rows = slice(start, start + block.shape[0])
                target[rows if layer is None else (layer, rows)] = block
        writer.commit()
    group = sizes.deck_group()
    checkpoint_file.write_atomically(folder.parent / "model.nml", group)
    parameters = sum(math.prod(shape) for shape in sizes.parameter_shapes().values())
    print(f"! {folder}: {parameters:,} parameters as fp{64 if wide else 32}")
    print(group, end="")
    return 0


def shards_of(entries, shard_bytes: int):
    """Splits the tensors, in order, into files of at most shard_bytes (or one tensor)."""
    shards, used = [[]], 0
    for entry in entries:
        size = math.prod(entry[2]) * st.BYTES_OF[entry[1]]
        if shards[-1] and used + size > shard_bytes:
            shards.append([])
            used = 0
        shards[-1].append(entry)
        used += size
    return shards


def write_tensor(writer, dataset, layer, shape, dtype) -> None:
    row = max(1, math.prod(shape[1:])) * dataset.dtype.itemsize
    step = max(1, st.PIECE_BYTES // row)
    for start in range(0, shape[0], step):
        rows = slice(start, min(start + step, shape[0]))
        writer.write(dataset[rows if layer is None else (layer, rows)], dtype)


def to_hugging_face(options) -> int:
    folder, target = checkpoint_file.resolve_checkpoint(options.source), Path(options.target)
    dtype = DTYPES[options.dtype]
    if (target / "config.json").exists() and not options.overwrite:
        raise common.ToolError(f"{target}: holds a model already; --overwrite replaces it")
    with checkpoint_file.open_checkpoint(folder) as file:
        say_tokenizer(file, target)
        if "parameters" not in file:
            raise common.ToolError(f"{folder}: no /parameters in the checkpoint")
        sizes = checkpoint_file.ModelSizes.from_attributes(file["parameters"])
        checkpoint_file.check_parameters(file, sizes)
        config = config_from_sizes(sizes, dtype, options.max_positions, folder)
        expected = expected_tensors(sizes, folder)
        shards = shards_of([(name, dtype, entry[2]) for name, entry in expected.items()],
                           int(options.shard_gb * 1e9))
        target.mkdir(parents=True, exist_ok=True)
        for stale in [*target.glob("model*.safetensors"), target / "model.safetensors.index.json"]:
            stale.unlink(missing_ok=True)
        weight_map, total = {}, 0
        for number, entries in enumerate(shards, 1):
            name = "model.safetensors" if len(shards) == 1 else \
                f"model-{number:05d}-of-{len(shards):05d}.safetensors"
            writer = st.SafetensorsWriter(target / name, entries)
            for tensor, _, shape in entries:
                dataset, layer, _ = expected[tensor]
                write_tensor(writer, file["parameters/" + dataset], layer, shape, dtype)
                weight_map[tensor] = name
                total += math.prod(shape) * st.BYTES_OF[dtype]
            writer.commit()
    if len(shards) > 1:
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        checkpoint_file.write_atomically(target / "model.safetensors.index.json", json.dumps(index, indent=1))
    checkpoint_file.write_atomically(target / "config.json", json.dumps(config, indent=1) + "\n")
    print(f"{target}: {config['architectures'][0]}, {len(weight_map)} tensors, "
          f"{total:,} bytes as {options.dtype}, from {folder}")
    return 0


def main(argv=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    read = commands.add_parser("from-hf", help="Hugging Face folder -> checkpoint")
    read.add_argument("source", help="folder with config.json and safetensors")
    read.add_argument("target", help="folder that gets step_00000000 and model.nml")
    read.add_argument("--seed", type=int, default=1234, help="seed noted in the checkpoint")
    read.set_defaults(run=from_hugging_face)
    write = commands.add_parser("to-hf", help="checkpoint -> Hugging Face folder")
    write.add_argument("source", help="step folder, checkpoints folder or run folder")
    write.add_argument("target", help="folder that gets config.json and safetensors")
    write.add_argument("--dtype", choices=list(DTYPES), default="fp32")
    write.add_argument("--shard-gb", type=float, default=5.0, metavar="GB")
    write.add_argument("--max-positions", type=int, default=4096, metavar="N",
                       help="max_position_embeddings in config.json")
    write.set_defaults(run=to_hugging_face)
    for command in (read, write):
        command.add_argument("--overwrite", action="store_true")
    options = parser.parse_args(argv)
    return options.run(options)


if __name__ == "__main__":
    sys.exit(common.run_main(main))
