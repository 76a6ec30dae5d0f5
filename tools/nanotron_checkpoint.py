"""Checkpoints: names and shapes, the manifest, writing and finding them.

The layout is the one of doc/checkpoint_format.md; the C++ counterpart is src/io. Needs numpy and h5py. The
manifest hash needs the package `xxhash` or the library libxxhash.so.0.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import json
import os
import re
from dataclasses import dataclass, field, fields
from pathlib import Path

import nanotron_common as common
from nanotron_common import h5py, np

CHECKPOINT_FORMAT = "nanotron_hpc checkpoint"
CHECKPOINT_VERSION = 1
CHECKPOINT_FILE = "checkpoint.h5"
MANIFEST_FILE = "manifest.json"
MANIFEST_BLOCK = 4 * 1024 * 1024
STEP_FOLDER = re.compile(r"^step_(\d{8,})$")


# ---------------------------------------------------------------------------------------------
# Hash and manifest


def _load_xxh3():
    try:
        import xxhash

        return lambda data: xxhash.xxh3_64_intdigest(data)
    except ImportError:
        pass
    for name in ("libxxhash.so.0", ctypes.util.find_library("xxhash")):
        try:
            library = ctypes.CDLL(name) if name else None
            function = library.XXH3_64bits if library else None
        except (OSError, AttributeError):
            continue
        if function:
            function.restype = ctypes.c_uint64
            function.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
            return lambda data: function(bytes(data), len(data))
    return None


_XXH3 = None


def xxh3_64(data: bytes) -> int:
    """XXH3-64 with seed 0."""
    global _XXH3
    if _XXH3 is None:
        _XXH3 = _load_xxh3()
    if _XXH3 is None:
        raise common.ToolError("expected XXH3 for the hashes of the manifest, found neither the Python package xxhash "
                               "nor libxxhash.so.0; " + common.how_to_get(["xxhash"]) + "; or install libxxhash0",
                               common.EXIT_SYSTEM)
    return _XXH3(data)


def _block_hashes(path: Path, block_bytes: int):
    with open(path, "rb") as file:
        while block := file.read(block_bytes):
            yield f"{xxh3_64(block):016x}"


def write_atomically(path: Path, text: str) -> None:
    """Writes `text` so that `path` holds either the old content or all of the new one."""
    temporary = path.with_name(path.name + ".tmp")
    with open(temporary, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def write_manifest(folder: Path, step: int) -> None:
    """Commits a finished checkpoint folder. Call last: the manifest makes it valid."""
    path = folder / CHECKPOINT_FILE
    with open(path, "rb+") as file:
        os.fsync(file.fileno())
    manifest = {
        "format": CHECKPOINT_FORMAT,
        "version": CHECKPOINT_VERSION,
        "step": step,
        "file": CHECKPOINT_FILE,
        "bytes": path.stat().st_size,
        "block_bytes": MANIFEST_BLOCK,
        "hash": "xxh3_64",
        "blocks": list(_block_hashes(path, MANIFEST_BLOCK)),
    }
    write_atomically(folder / MANIFEST_FILE, json.dumps(manifest, indent=1) + "\n")


def read_manifest(folder: Path) -> dict:
    """The manifest of a checkpoint folder; common.ToolError when it is missing or malformed."""
    path = folder / MANIFEST_FILE
    if not path.is_file():
        raise common.ToolError(f"{folder}: no {MANIFEST_FILE}, so the checkpoint was never completed")
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        good = (
            manifest["format"] == CHECKPOINT_FORMAT
            and manifest["version"] == CHECKPOINT_VERSION
            and manifest["hash"] == "xxh3_64"
            and manifest["file"] == CHECKPOINT_FILE
            and isinstance(manifest["step"], int)
            and isinstance(manifest["bytes"], int)
            and isinstance(manifest["block_bytes"], int)
            and 4096 <= manifest["block_bytes"] <= 1 << 30
            and isinstance(manifest["blocks"], list)
        )
    except (ValueError, KeyError, TypeError, UnicodeDecodeError):
        good = False
    if not good:
        raise common.ToolError(
            f"{path}: not a manifest of format '{CHECKPOINT_FORMAT}' version {CHECKPOINT_VERSION}"
        )
    return manifest


def verify_checkpoint(folder: Path) -> dict:
    """Returns the manifest of a valid checkpoint folder; common.ToolError names the first damage."""
    manifest = read_manifest(folder)
    path = folder / manifest["file"]
    if not path.is_file():
        raise common.ToolError(f"{path}: missing, though the manifest names it")
    found = path.stat().st_size
    if found != manifest["bytes"]:
        raise common.ToolError(f"{path}: expected {manifest['bytes']} bytes (manifest), found {found}")
    hashes = list(_block_hashes(path, manifest["block_bytes"]))
    if len(hashes) != len(manifest["blocks"]):
        raise common.ToolError(f"{path}: expected {len(hashes)} block hashes, the manifest has "
                        f"{len(manifest['blocks'])}")
    for index, (have, want) in enumerate(zip(hashes, manifest["blocks"])):
        if have != want:
            start = index * manifest["block_bytes"]
            raise common.ToolError(f"{path}: bytes {start}.. differ from what was written "
                            f"(block {index}: XXH3 {have}, manifest {want})")
    return manifest


# ---------------------------------------------------------------------------------------------
# Checkpoint


def of_experts(default):
    """A key that only models with experts have."""
    return field(default=default, metadata={"of_experts": True})


@dataclass(frozen=True)
class ModelSizes:
    """Sizes of a Llama-family model, dense or a mixture of experts, under Hugging Face's names: the deck's keys of &model
    and &moe that a checkpoint holds, of which the table is src/deck/parameters.cpp."""

    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    tie_word_embeddings: bool = False
    qkv_bias: bool = False
    qk_norm: bool = False
    rms_norm_eps: float = 1e-5
    rope_theta: float = 10000.0
    num_experts: int = of_experts(0)
    num_experts_per_tok: int = of_experts(2)
    moe_intermediate_size: int = of_experts(0)
    shared_expert_intermediate_size: int = of_experts(0)
    norm_topk_prob: bool = of_experts(True)
    unknown: dict = field(default_factory=dict)  # a checkpoint's keys of which these tools know nothing

    def _values(self, experts: bool) -> dict:
        return {item.name: getattr(self, item.name) for item in fields(self)
                if item.name != "unknown" and item.metadata.get("of_experts", False) == experts}

    def dense_values(self) -> dict:
        return self._values(False)

    def moe_values(self) -> dict:
        return self._values(True)

    def parameter_shapes(self) -> dict[str, tuple[int, ...]]:
        """Dataset name below /parameters -> global shape, the layers stacked in front."""
        layers, hidden, ffn = self.num_hidden_layers, self.hidden_size, self.intermediate_size
        rows = {
            "q": self.num_attention_heads * self.head_dim,
            "k": self.num_key_value_heads * self.head_dim,
            "v": self.num_key_value_heads * self.head_dim,
        }
        block = "model/layers/"
        shapes = {"model/embed_tokens/weight": (self.vocab_size, hidden)}
        for key, count in rows.items():
            shapes[f"{block}self_attn/{key}_proj/weight"] = (layers, count, hidden)
            if self.qkv_bias:
                shapes[f"{block}self_attn/{key}_proj/bias"] = (layers, count)
        shapes[block + "self_attn/o_proj/weight"] = (layers, hidden, rows["q"])
        if self.qk_norm:
            shapes[block + "self_attn/q_norm/weight"] = (layers, self.head_dim)
            shapes[block + "self_attn/k_norm/weight"] = (layers, self.head_dim)


        def gated(prefix, width):
            shapes[prefix + "gate_proj/weight"] = (layers, width, hidden)
            shapes[prefix + "up_proj/weight"] = (layers, width, hidden)
            shapes[prefix + "down_proj/weight"] = (layers, hidden, width)

        if self.num_experts == 0:
            gated(block + "mlp/", ffn)
        else:
            shapes[block + "mlp/gate/weight"] = (layers, self.num_experts, hidden)
            for expert in range(self.num_experts):
                gated(f"{block}mlp/experts/{expert}/", self.moe_intermediate_size)
        if self.shared_expert_intermediate_size > 0:
            shapes[block + "mlp/shared_expert_gate/weight"] = (layers, 1, hidden)
            gated(block + "mlp/shared_expert/", self.shared_expert_intermediate_size)
        shapes[block + "input_layernorm/weight"] = (layers, hidden)
        shapes[block + "post_attention_layernorm/weight"] = (layers, hidden)
        shapes["model/norm/weight"] = (hidden,)
        if not self.tie_word_embeddings:
            shapes["lm_head/weight"] = (self.vocab_size, hidden)
        return shapes

    def deck_group(self, moe: dict | None = None) -> str:
        """The &model group of a deck for this model, and &moe, with the keys of `moe` too, where it has experts."""

        def text(value):
            if isinstance(value, bool):
                return ".true." if value else ".false."
            return f"'{value}'" if isinstance(value, str) else repr(value)

        def group(name, values):
            return f"&{name}\n" + "".join(f"  {key:<20} = {text(value)}\n" for key, value in values.items()) + "/\n"

        experts = group("moe", self.moe_values() | (moe or {})) if self.num_experts else ""
        return group("model", self.dense_values()) + experts

    def to_attributes(self, group: h5py.Group) -> None:
        values = self.dense_values() | (self.moe_values() if self.num_experts else {}) | self.unknown
        for key, value in values.items():
            if isinstance(value, str):
                common.set_text(group, key, value, attribute=True)
            else:
                group.attrs.create(key, value, dtype=np.float64 if isinstance(value, float) else np.int64)

    @classmethod
    def from_attributes(cls, group: h5py.Group) -> "ModelSizes":
        """All attributes of /parameters; common.ToolError where one is missing."""
        found = dict(group.attrs.items())
        values = {}
        for item in fields(cls):
            if item.name in found:
                values[item.name] = {"int": int, "bool": bool, "float": float}[item.type](found.pop(item.name))
            elif item.name != "unknown" and ("num_experts" in values or not item.metadata.get("of_experts")):
                raise common.ToolError(f"{group.file.filename}: {group.name} has no attribute '{item.name}'")
        return cls(**values, unknown={key: common.as_text(value) if isinstance(value, bytes) else value
                                      for key, value in found.items()})


def hugging_face_names(name: str, layers: int) -> list[str]:
    """Hugging Face tensor names of a dataset: one per layer for stacked ones, else one."""
    dotted = name.replace("/", ".")
    prefix = "model.layers."
    if not dotted.startswith(prefix):
        return [dotted]
    return [f"{prefix}{layer}.{dotted[len(prefix):]}" for layer in range(layers)]


class CheckpointWriter:
    """Writes one checkpoint folder; `commit` writes the manifest that makes it valid.

    Parameters are written piecewise through `dataset(name)`, so that no more than a piece is ever
    in memory. No optimizer state is written: a run from such a checkpoint starts with zero moments.
    """

    def __init__(self, folder: Path, sizes: ModelSizes, *, dtype="<f4", step=0, seed=0, deck="",
                 provenance: dict[str, str] | None = None, tokenizer: dict[str, str] | None = None):
        self.folder, self.step = Path(folder), step
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / MANIFEST_FILE).unlink(missing_ok=True)
        self.file = h5py.File(self.folder / CHECKPOINT_FILE, "w", libver=("earliest", "v110"))
        common.set_text(self.file, "format", CHECKPOINT_FORMAT, attribute=True)
        self.file.attrs.create("version", CHECKPOINT_VERSION, dtype=np.int64)
        parameters = self.file.create_group("parameters")
        sizes.to_attributes(parameters)
        for name, shape in sizes.parameter_shapes().items():
            parameters.create_dataset(name, shape=shape, dtype=dtype, track_times=False)
        state = self.file.create_group("state")
        counters = {"step": step, "tokens_seen": 0, "sample_cursor": 0, "seed": seed,
                    "adam_step": step}
        for key, value in counters.items():
            state.attrs.create(key, value, dtype=np.int64)
        if tokenizer:
            group = self.file.create_group("tokenizer")
            for key, value in tokenizer.items():
                common.set_text(group, key, value, attribute=True)
        common.set_text(self.file, "deck", deck, attribute=False)
        group = self.file.create_group("provenance")
        for key, value in (provenance or {}).items():
            common.set_text(group, key, value, attribute=True)

    def dataset(self, name: str) -> h5py.Dataset:
        return self.file["parameters/" + name]

    def commit(self) -> None:
        self.file.close()
        write_manifest(self.folder, self.step)

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        if self.file:
            self.file.close()


def open_checkpoint(folder: Path, *, verify: bool = True) -> h5py.File:
    """Opens the checkpoint of a step folder for reading, after its hashes were checked."""
    folder = Path(folder)
    if verify:
        verify_checkpoint(folder)
    path = folder / CHECKPOINT_FILE
    try:
        return h5py.File(path, "r")
    except OSError as error:
        raise common.ToolError(f"{path}: cannot be opened as HDF5 ({error})") from None


def check_parameters(file: h5py.File, sizes: ModelSizes) -> None:
    """common.ToolError unless /parameters is of `sizes` alone and holds exactly their tensors, plain and in full."""
    for key, value in sizes.unknown.items():
        raise common.ToolError(f"{file.filename}: /parameters has the attribute {key} = {value!r}, of a newer nanotron_hpc "
                               "than this tool: what such a model computes is not known here")
    expected = sizes.parameter_shapes()
    found = {}

    def visit(name, item):
        if isinstance(item, h5py.Dataset):
            found[name] = item

    file["parameters"].visititems(visit)
    where = file.filename
    for name in sorted(expected.keys() | found.keys()):
        if name not in found:
            raise common.ToolError(f"{where}: /parameters/{name} is missing")
        if name not in expected:
            raise common.ToolError(f"{where}: /parameters/{name} does not belong to this model")
        item = found[name]
        if tuple(item.shape) != expected[name]:
            raise common.ToolError(f"{where}: /parameters/{name}: expected shape {expected[name]}, "
                            f"found {tuple(item.shape)}")
        if item.dtype.kind != "f" or item.external or item.is_virtual:
            raise common.ToolError(f"{where}: /parameters/{name}: expected floats stored in the file")


def deck_values(text: str) -> dict[str, str]:
    """'group.key' -> first value of a canonical deck (a key on each line), quotes taken off."""
    values, group = {}, ""
    for line in text.splitlines():
        if match := re.match(r"&(\w+)", line):
            group = match[1]
        elif match := re.match(r"\s+(\w+)\s*=\s*(?:'((?:[^']|'')*)'|([^\s,!]+))", line):
            values[f"{group}.{match[1]}"] = (match[2] or "").replace("''", "'") if match[3] is None else match[3]
    return values


def resolve_checkpoint(path: Path) -> Path:
    """A step folder as given, or the newest valid one in a run or checkpoints folder."""
    path = Path(path)
    if path.name == CHECKPOINT_FILE and path.is_file():
        return path.parent
    if (path / CHECKPOINT_FILE).is_file() or (path / MANIFEST_FILE).is_file():
        return path
    for folder in reversed(list_checkpoints(path)):
        try:
            verify_checkpoint(folder)
            return folder
        except common.ToolError:
            continue
    raise common.ToolError(f"{path}: no valid checkpoint here (looked for step_*/{MANIFEST_FILE})")


def unfinished_checkpoints(path: Path) -> list[Path]:
    """Folders step_XXXXXXXX.partial: being written now, or left by a job that was killed."""
    return sorted({*Path(path).glob("checkpoints/step_*.partial"),
                   *Path(path).glob("step_*.partial")})


def list_checkpoints(path: Path) -> list[Path]:
    """Step folders of a run folder or a checkpoints folder, oldest first, valid or not."""
    for folder in (Path(path) / "checkpoints", Path(path)):
        if folder.is_dir():
            found = [(int(match[1]), item) for item in folder.iterdir()
                     if item.is_dir() and (match := STEP_FOLDER.match(item.name))]
            if found:
                return [item for _, item in sorted(found)]
    return []
