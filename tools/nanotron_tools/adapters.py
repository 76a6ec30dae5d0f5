"""Adapters of low rank (LoRA): checkpoints that have them, PEFT's folders, and the weights that they become.

A checkpoint of a run with &lora has the adapters alone; its dataset /adapters says of which frozen weights (a hash of
their manifest). PEFT 0.21 (src/peft/utils/save_and_load.py) saves adapter_config.json and adapter_model.safetensors.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from . import checkpoint as checkpoint_file
from . import common, hdf5, layouts
from . import hf_config as hf
from . import safetensors as st
from .model_sizes import ModelSizes
from .xxh3 import xxh3_64

PEFT_CONFIG, PEFT_WEIGHTS, PEFT_PREFIX = "adapter_config.json", "adapter_model.safetensors", "base_model.model."
PEFT_NAME = re.compile(rf"{re.escape(PEFT_PREFIX)}(model\.layers\.)(\d+)\.(.+)\.(lora_[AB])\.weight")
# Entries of adapter_config.json that change what an adapter computes, and the values that do not.
PLAIN: dict[str, tuple[Any, ...]] = {
    "peft_type": ("LORA",), "bias": ("none",), "fan_in_fan_out": (False,), "use_dora": (False,), "lora_bias": (False,),
    "modules_to_save": (None, []), "rank_pattern": ({}, None), "alpha_pattern": ({}, None),
    "target_parameters": (None, []),
    "trainable_token_indices": (None, []), "layer_replication": (None, []), "alora_invocation_tokens": (None, []),
    "use_bdlora": (None, False), "use_qalora": (False,), "exclude_modules": (None, [])}


@dataclass(frozen=True)
class Adapters:
    rank: int
    alpha: float
    targets: str  # lora%targets
    base: Path
    base_hash: str

    @property
    def scale(self) -> float:
        return self.alpha / self.rank

    def text(self) -> str:
        """/adapters, as src/trainer/checkpoint/base_weights.cpp writes it."""
        return json.dumps({"rank": self.rank, "alpha": self.alpha, "targets": self.targets, "base_hash": self.base_hash,
                           "base": str(self.base)}, ensure_ascii=False)

    def deck_group(self) -> str:
        quoted = str(self.base).replace("'", "''")
        alpha = f"{self.alpha:g}" if float(f"{self.alpha:g}") == self.alpha else repr(self.alpha)
        return f"&lora\n  rank    = {self.rank}\n  alpha   = {alpha}\n  targets = '{self.targets}'\n" \
               f"  base    = '{quoted}'\n/\n"


def hash_of(folder: Path) -> str:
    """Of a checkpoint: of its manifest, which has a hash of each block."""
    return f"{xxh3_64((folder / checkpoint_file.MANIFEST_FILE).read_bytes()):016x}"


def adapters_of(file: h5py.File) -> Adapters | None:
    if "adapters" not in file:
        return None
    where = f"{file.filename}: /adapters"
    found = st.json_object(hdf5.as_text(file["adapters"][()]), where)
    try:
        return Adapters(int(found["rank"]), float(found["alpha"]), str(found["targets"]), Path(found["base"]),
                        str(found["base_hash"]))
    except (KeyError, TypeError, ValueError) as error:
        raise common.ToolError(f"{where}: expected rank, alpha, targets, base and base_hash, found {found} ({error})") \
            from None


def modules_of(file: h5py.File) -> list[str]:
    """model/layers/self_attn/q_proj, ... in the order of the file's names."""
    found: list[str] = []

    def visit(name: str, item: object) -> None:
        if isinstance(item, h5py.Dataset) and name.endswith("/lora_A/weight"):
            found.append(name.removesuffix("/lora_A/weight"))

    file["parameters"].visititems(visit)
    return found


def open_base(adapters: Adapters, given: Path | None) -> Path:
    folder = checkpoint_file.resolve_checkpoint(given or adapters.base)
    if (found := hash_of(folder)) != adapters.base_hash:
        raise common.ToolError(f"{folder}: these are not the weights that the adapters were trained on: expected a "
                               f"manifest with the hash {adapters.base_hash}, found {found}; --base names others")
    return folder


# ---------------------------------------------------------------------------------------------
# Merging


def _merge_tensor(adapters: Adapters, file: h5py.File, module: str, base: h5py.Dataset, target: h5py.Dataset) -> None:
    """W + alpha / rank B A, in fp64, a layer at a time."""
    a, b = (file[f"parameters/{module}/{name}/weight"] for name in ("lora_A", "lora_B"))
    for layer in range(base.shape[0]):
        delta = adapters.scale * (b[layer].astype(np.float64) @ a[layer].astype(np.float64))
        target[layer] = (base[layer].astype(np.float64) + delta).astype(target.dtype)


def _copy(source: h5py.Dataset, target: h5py.Dataset) -> None:
    step = max(1, st.PIECE_BYTES // max(1, 8 * math.prod(source.shape[1:])))
    for start in range(0, source.shape[0], step):
        target[start:start + step] = source[start:start + step]


def write_merged(folder: Path, given_base: Path | None, target: Path) -> None:
    """The step folder `target` with whole weights, of the adapters in `folder`. It has no optimizer state."""
    with checkpoint_file.open_checkpoint(folder) as file:
        adapters = adapters_of(file)
        if adapters is None:
            raise common.ToolError(f"{folder}: has all weights of a model, no adapters to merge", common.EXIT_USAGE)
        base_folder = open_base(adapters, given_base)
        with checkpoint_file.open_checkpoint(base_folder) as base:
            sizes = ModelSizes.from_attributes(base["parameters"])
            checkpoint_file.check_parameters(base, sizes)
            modules, state = set(modules_of(file)), file["state"].attrs
            kept = {key: hdf5.as_text(source[key][()]) for key, source in (("deck", file), ("hugging_face", base))
                    if key in source}
            tokenizer = {key: hdf5.as_text(value) for key, value in file["tokenizer"].attrs.items()} \
                if "tokenizer" in file else None
            dtype = base["parameters/model/embed_tokens/weight"].dtype.str
            with checkpoint_file.CheckpointWriter(
                    target, sizes, dtype=dtype, step=int(state["step"]), seed=int(state["seed"]), tokenizer=tokenizer,
                    deck=kept.get("deck", ""), hugging_face=kept.get("hugging_face", ""),
                    provenance=hdf5.tool_provenance("nanotron_convert") | {"source": str(folder)}) as writer:
                for name in sizes.parameter_shapes():
                    module = name.removesuffix("/weight")
                    if module in modules:
                        _merge_tensor(adapters, file, module, base["parameters/" + name], writer.dataset(name))
                    else:
                        _copy(base["parameters/" + name], writer.dataset(name))
                writer.commit()


@contextlib.contextmanager
def whole_weights(folder: Path, given_base: Path | None, beside: Path) -> Iterator[Path]:
    """The folder itself, or a temporary one next to `beside` with merged weights if it has adapters."""
    with checkpoint_file.open_checkpoint(folder, verify=False) as file:
        has_adapters = adapters_of(file) is not None
    if not has_adapters:
        yield folder
        return
    beside.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=beside.parent, prefix=f".{beside.name}.") as temporary:
        write_merged(folder, given_base, Path(temporary) / folder.name)
        yield Path(temporary) / folder.name


# ---------------------------------------------------------------------------------------------
# PEFT's folders


def _require_plain_names(sizes: ModelSizes, imported: dict[str, Any], where: object) -> None:
    """PEFT names the linear layers of transformers' classes: of families that fuse, rename or reorder them there is no
    adapter of the same name."""
    kind = hf.kind_of(sizes, where, imported.get("model_type", ""))
    stored = layouts.stored_tensors(sizes, kind)
    for name in sizes.parameter_shapes():
        if not name.endswith("_proj/weight"):
            continue
        plain = name.replace("model/layers/", "model.layers.0.").replace("/", ".")
        if plain not in stored or stored[plain].transposed or len(stored[plain].parts) != 1:
            raise common.ToolError(f"{where}: transformers fuses, renames or reorders {name} of '{kind}', so PEFT's "
                                   "adapters of this family are other factors: merge and export with to-hf instead")


def _imported(base: h5py.File) -> dict[str, Any]:
    if "hugging_face" not in base:
        return {}
    return st.json_object(hdf5.as_text(base["hugging_face"][()]), f"{base.filename}: /hugging_face").get("config") or {}


def _peft_config(source: Path) -> dict[str, Any]:
    config = st.read_json(source / PEFT_CONFIG)
    for key, values in PLAIN.items():
        if key in config and config[key] not in values:
            raise common.ToolError(f"{source / PEFT_CONFIG}: {key} = {config[key]!r}: expected {values[0]!r}; such "
                                   "adapters have no counterpart here")
    if config.get("lora_dropout"):
        print(f"warning: {source}: lora_dropout = {config['lora_dropout']}: there is no dropout of adapters here",
              file=sys.stderr)
    return config


def _tensors_of(source: Path, sizes: ModelSizes) -> dict[str, dict[int, st.StoredTensor]]:
    """Dataset name -> layer -> tensor; every layer must have each module."""
    found: dict[str, dict[int, st.StoredTensor]] = {}
    for name, tensor in st.read_header(source / PEFT_WEIGHTS).items():
        if not (match := PEFT_NAME.fullmatch(name)):
            raise common.ToolError(f"{source / PEFT_WEIGHTS}: {name}: not an adapter of a linear layer of a layer, "
                                   f"{PEFT_PREFIX}model.layers.<n>.<name>.lora_A.weight or lora_B")
        module = f"model/layers/{match[3].replace('.', '/')}"
        if f"{module}/weight" not in sizes.parameter_shapes():
            raise common.ToolError(f"{source / PEFT_WEIGHTS}: {name}: the base has no {module}/weight")
        found.setdefault(f"{module}/{match[4]}/weight", {})[int(match[2])] = tensor
    for name, layers in found.items():
        if sorted(layers) != list(range(sizes.num_hidden_layers)):
            raise common.ToolError(f"{source / PEFT_WEIGHTS}: {name}: expected adapters in all "
                                   f"{sizes.num_hidden_layers} layers, found them in {sorted(layers)}")
    return found


def from_peft(source: Path, base: Path, target: Path, seed: int) -> str:
    """Writes target/step_00000000 with the adapters of PEFT's folder; returns the &lora group of the deck."""
    config = _peft_config(source)
    base_folder = checkpoint_file.resolve_checkpoint(base)
    with checkpoint_file.open_checkpoint(base_folder) as file:
        sizes = ModelSizes.from_attributes(file["parameters"])
        checkpoint_file.check_parameters(file, sizes)
        _require_plain_names(sizes, _imported(file), base_folder)
    tensors = _tensors_of(source, sizes)
    rank, alpha = int(config["r"]), float(config["lora_alpha"])
    if config.get("use_rslora"):
        alpha *= math.sqrt(rank)  # alpha / sqrt(r) there
    modules = sorted({name.split("/lora_")[0].removeprefix("model/layers/") for name in tensors})
    adapters = Adapters(rank, alpha, " ".join(module.split("/")[-1] for module in modules), base_folder,
                        hash_of(base_folder))
    wide = any(tensor.dtype == "F64" for layers in tensors.values() for tensor in layers.values())
    shapes = {name: (sizes.num_hidden_layers, *layers[0].shape) for name, layers in tensors.items()}
    folder = target / "step_00000000"
    with checkpoint_file.CheckpointWriter(folder, sizes, dtype="<f8" if wide else "<f4", seed=seed, shapes=shapes,
                                          adapters=adapters.text(),
                                          provenance=hdf5.tool_provenance("nanotron_convert")
                                          | {"source": str(source)}) as writer:
        for name, layers in tensors.items():
            for layer, tensor in layers.items():
                for start, block in tensor.pieces():
                    writer.dataset(name)[layer, start:start + block.shape[0]] = block
        writer.commit()
    checkpoint_file.write_atomically(target / "lora.nml", adapters.deck_group())
    return adapters.deck_group()


def to_peft(folder: Path, given_base: Path | None, target: Path, dtype: str) -> None:
    """Writes PEFT's folder of a checkpoint with adapters."""
    with checkpoint_file.open_checkpoint(folder) as file:
        adapters = adapters_of(file)
        if adapters is None:
            raise common.ToolError(f"{folder}: has all weights of a model, no adapters", common.EXIT_USAGE)
        with checkpoint_file.open_checkpoint(open_base(adapters, given_base), verify=False) as base:
            imported = _imported(base)
            sizes = ModelSizes.from_attributes(base["parameters"])
            _require_plain_names(sizes, imported, folder)
        modules = modules_of(file)
        entries, sources = [], []
        for layer in range(sizes.num_hidden_layers):
            for module in modules:
                for part in ("lora_A", "lora_B"):
                    dataset = file[f"parameters/{module}/{part}/weight"]
                    name = module.replace("model/layers/", f"model.layers.{layer}.").replace("/", ".")
                    entries.append((f"{PEFT_PREFIX}{name}.{part}.weight", dtype, tuple(dataset.shape[1:])))
                    sources.append((dataset, layer))
        target.mkdir(parents=True, exist_ok=True)
        writer = st.SafetensorsWriter(target / PEFT_WEIGHTS, entries)
        for dataset, layer in sources:
            writer.write(dataset[layer], dtype)
        writer.commit()
    config = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": imported.get("_name_or_path"),
              "r": adapters.rank, "lora_alpha": int(adapters.alpha) if adapters.alpha.is_integer() else adapters.alpha,
              "target_modules": sorted({module.split("/")[-1] for module in modules}), "lora_dropout": 0.0,
              "bias": "none", "fan_in_fan_out": False, "inference_mode": True, "modules_to_save": None,
              "use_rslora": False, "use_dora": False}
    checkpoint_file.write_atomically(target / PEFT_CONFIG, json.dumps(config, indent=1) + "\n")
