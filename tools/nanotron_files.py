"""File formats shared by the tools: checkpoint names and shapes, its manifest, the token file.

The layout is the one of doc/checkpoint_format.md; the C++ counterpart is src/io and src/data.
Needs numpy and h5py. The manifest hash needs the package `xxhash` or the library libxxhash.so.0.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import json
import os
import re
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

# Files of a running job may be read, and parallel file systems often have no locks.
os.environ.setdefault("HDF5_USE_FILE_LOCKING", "FALSE")

import h5py  # noqa: E402
import numpy as np  # noqa: E402

CHECKPOINT_FORMAT = "nanotron_hpc checkpoint"
CHECKPOINT_VERSION = 1
CHECKPOINT_FILE = "checkpoint.h5"
MANIFEST_FILE = "manifest.json"
MANIFEST_BLOCK = 4 * 1024 * 1024
STEP_FOLDER = re.compile(r"^step_(\d{8,})$")

EXIT_DATA = 65
EXIT_USAGE = 64


class ToolError(Exception):
    """A mistake the user can mend; the tools print it and end with `exit_code`."""

    def __init__(self, message: str, exit_code: int = EXIT_DATA):
        super().__init__(message)
        self.exit_code = exit_code


def run_main(main, argv: list[str] | None = None) -> int:
    """Calls main(argv) and turns ToolError into one message on stderr and an exit code."""
    try:
        return main(argv) or 0
    except ToolError as error:
        print(f"{Path(sys.argv[0]).name}: error: {error}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        print(f"{Path(sys.argv[0]).name}: error: {error}", file=sys.stderr)
        return 71


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
        raise ToolError("no XXH3 at hand: install the Python package `xxhash` or libxxhash0", 71)
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
    """The manifest of a checkpoint folder; ToolError when it is missing or malformed."""
    path = folder / MANIFEST_FILE
    if not path.is_file():
        raise ToolError(f"{folder}: no {MANIFEST_FILE}, so the checkpoint was never completed")
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
        raise ToolError(
            f"{path}: not a manifest of format '{CHECKPOINT_FORMAT}' version {CHECKPOINT_VERSION}"
        )
    return manifest


def verify_checkpoint(folder: Path) -> dict:
    """Returns the manifest of a valid checkpoint folder; ToolError names the first damage."""
    manifest = read_manifest(folder)
    path = folder / manifest["file"]
    if not path.is_file():
        raise ToolError(f"{path}: missing, though the manifest names it")
    found = path.stat().st_size
    if found != manifest["bytes"]:
        raise ToolError(f"{path}: expected {manifest['bytes']} bytes (manifest), found {found}")
    hashes = list(_block_hashes(path, manifest["block_bytes"]))
    if len(hashes) != len(manifest["blocks"]):
        raise ToolError(f"{path}: expected {len(hashes)} block hashes, the manifest has "
                        f"{len(manifest['blocks'])}")
    for index, (have, want) in enumerate(zip(hashes, manifest["blocks"])):
        if have != want:
            start = index * manifest["block_bytes"]
            raise ToolError(f"{path}: bytes {start}.. differ from what was written "
                            f"(block {index}: XXH3 {have}, manifest {want})")
    return manifest


# ---------------------------------------------------------------------------------------------
# Checkpoint


@dataclass(frozen=True)
class ModelSizes:
    """Sizes of a dense Llama-family model, under Hugging Face's names."""

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
        shapes[block + "mlp/gate_proj/weight"] = (layers, ffn, hidden)
        shapes[block + "mlp/up_proj/weight"] = (layers, ffn, hidden)
        shapes[block + "mlp/down_proj/weight"] = (layers, hidden, ffn)
        shapes[block + "input_layernorm/weight"] = (layers, hidden)
        shapes[block + "post_attention_layernorm/weight"] = (layers, hidden)
        shapes["model/norm/weight"] = (hidden,)
        if not self.tie_word_embeddings:
            shapes["lm_head/weight"] = (self.vocab_size, hidden)
        return shapes

    def deck_group(self) -> str:
        """The &model group of a deck for this model."""
        lines = []
        for key, value in asdict(self).items():
            if isinstance(value, bool):
                text = ".true." if value else ".false."
            elif isinstance(value, float):
                text = repr(float(value))
            else:
                text = str(value)
            lines.append(f"  {key:<20} = {text}")
        return "&model\n" + "\n".join(lines) + "\n/\n"

    def to_attributes(self, group: h5py.Group) -> None:
        for key, value in asdict(self).items():
            kind = np.float64 if isinstance(value, float) else np.int64
            group.attrs.create(key, value, dtype=kind)

    @classmethod
    def from_attributes(cls, group: h5py.Group) -> "ModelSizes":
        values = {}
        for key, field in cls.__dataclass_fields__.items():
            if key not in group.attrs:
                raise ToolError(f"{group.file.filename}: {group.name} has no attribute '{key}'")
            kind = {"int": int, "bool": bool, "float": float}[field.type]
            values[key] = kind(group.attrs[key])
        return cls(**values)


def hugging_face_names(name: str, layers: int) -> list[str]:
    """Hugging Face tensor names of a dataset: one per layer for stacked ones, else one."""
    dotted = name.replace("/", ".")
    prefix = "model.layers."
    if not dotted.startswith(prefix):
        return [dotted]
    return [f"{prefix}{layer}.{dotted[len(prefix):]}" for layer in range(layers)]


def set_text(parent: h5py.Group, name: str, text: str, *, attribute: bool) -> None:
    """A fixed-length, null-padded UTF-8 string (readable with any HDF5, parallel or not)."""
    data = text.encode("utf-8")
    dtype = h5py.string_dtype("utf-8", max(1, len(data)))
    if attribute:
        parent.attrs.create(name, np.array(data, dtype=dtype), dtype=dtype)
    else:
        parent.create_dataset(name, data=np.array(data, dtype=dtype), dtype=dtype)


def as_text(value) -> str:
    """Text of an HDF5 string attribute or scalar dataset, fixed or variable length."""
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value[()]
    if isinstance(value, bytes):
        return value.rstrip(b"\0").decode("utf-8", "replace")
    return str(value)


def git_hash() -> str:
    """Hash of this repository, '+dirty' when the tree has changes; '' outside of one."""
    here = Path(__file__).resolve().parent
    try:
        head = subprocess.run(["git", "-C", here, "rev-parse", "HEAD"], capture_output=True,
                              text=True, check=True).stdout.strip()
        dirty = subprocess.run(["git", "-C", here, "diff", "--quiet", "HEAD"],
                               capture_output=True).returncode
        return head + ("+dirty" if dirty else "")
    except (OSError, subprocess.CalledProcessError):
        return ""


def tool_provenance(program: str) -> dict[str, str]:
    return {
        "program": program,
        "command": " ".join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "git_hash": git_hash(),
        "written": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "h5py": h5py.version.version,
        "hdf5": h5py.version.hdf5_version,
        "numpy": np.__version__,
    }


class CheckpointWriter:
    """Writes one checkpoint folder; `commit` writes the manifest that makes it valid.

    Parameters are written piecewise through `dataset(name)`, so that no more than a piece is ever
    in memory. No optimizer state is written: a run from such a checkpoint starts with zero moments.
    """

    def __init__(self, folder: Path, sizes: ModelSizes, *, dtype="<f4", step=0, seed=0, deck="",
                 provenance: dict[str, str] | None = None):
        self.folder, self.step = Path(folder), step
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / MANIFEST_FILE).unlink(missing_ok=True)
        self.file = h5py.File(self.folder / CHECKPOINT_FILE, "w", libver=("earliest", "v110"))
        set_text(self.file, "format", CHECKPOINT_FORMAT, attribute=True)
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
        set_text(self.file, "deck", deck, attribute=False)
        group = self.file.create_group("provenance")
        for key, value in (provenance or {}).items():
            set_text(group, key, value, attribute=True)

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
        raise ToolError(f"{path}: cannot be opened as HDF5 ({error})") from None


def check_parameters(file: h5py.File, sizes: ModelSizes) -> None:
    """ToolError unless /parameters holds exactly the tensors of `sizes`, plain and in full."""
    expected = sizes.parameter_shapes()
    found = {}

    def visit(name, item):
        if isinstance(item, h5py.Dataset):
            found[name] = item

    file["parameters"].visititems(visit)
    where = file.filename
    for name in sorted(expected.keys() | found.keys()):
        if name not in found:
            raise ToolError(f"{where}: /parameters/{name} is missing")
        if name not in expected:
            raise ToolError(f"{where}: /parameters/{name} does not belong to this model")
        item = found[name]
        if tuple(item.shape) != expected[name]:
            raise ToolError(f"{where}: /parameters/{name}: expected shape {expected[name]}, "
                            f"found {tuple(item.shape)}")
        if item.dtype.kind != "f" or item.external or item.is_virtual:
            raise ToolError(f"{where}: /parameters/{name}: expected floats stored in the file")


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
        except ToolError:
            continue
    raise ToolError(f"{path}: no valid checkpoint here (looked for step_*/{MANIFEST_FILE})")


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


# ---------------------------------------------------------------------------------------------
# Token file

VOCABULARY_LAYOUT = (
    "/vocabulary/bytes (uint8) holds the bytes of all tokens one after another; token i is "
    "bytes[offsets[i] .. offsets[i+1]-1] with /vocabulary/offsets (uint64, vocab_size+1 values)"
)


def token_dtype(vocab_size: int) -> np.dtype:
    return np.dtype("<u2" if vocab_size <= 1 << 16 else "<u4")


def unigram_entropy(counts: np.ndarray) -> float:
    """Entropy in nats of the token frequencies: the loss of the best context-free model."""
    counts = counts[counts > 0].astype(np.float64)
    if counts.size == 0:
        return 0.0
    share = counts / counts.sum()
    return max(0.0, float(-(share * np.log(share)).sum()))


def write_vocabulary(file: h5py.File, tokens: list[bytes]) -> None:
    group = file.create_group("vocabulary")
    offsets = np.zeros(len(tokens) + 1, dtype=np.uint64)
    offsets[1:] = np.cumsum([len(token) for token in tokens], dtype=np.uint64)
    group.create_dataset("bytes", data=np.frombuffer(b"".join(tokens), dtype=np.uint8))
    group.create_dataset("offsets", data=offsets, dtype="<u8")
    set_text(file, "vocabulary_layout", VOCABULARY_LAYOUT, attribute=True)


def read_vocabulary(file: h5py.File) -> list[bytes] | None:
    if "vocabulary/offsets" not in file or "vocabulary/bytes" not in file:
        return None
    offsets = file["vocabulary/offsets"][:].astype(np.int64)
    data = file["vocabulary/bytes"][:].tobytes()
    if offsets[0] != 0 or offsets[-1] != len(data) or (np.diff(offsets) < 0).any():
        raise ToolError(f"{file.filename}: /vocabulary/offsets do not fit /vocabulary/bytes")
    return [data[start:end] for start, end in zip(offsets[:-1], offsets[1:])]


def write_token_attributes(file: h5py.File, *, vocab_size: int, eos_token_id: int | None,
                           tokenizer: str, entropy: float, provenance: dict[str, str]) -> None:
    set_text(file, "format", "nanotron_hpc tokens", attribute=True)
    file.attrs.create("vocab_size", vocab_size, dtype=np.int64)
    if eos_token_id is not None:
        file.attrs.create("eos_token_id", eos_token_id, dtype=np.int64)
    set_text(file, "tokenizer", tokenizer, attribute=True)
    file.attrs.create("unigram_entropy", entropy, dtype=np.float64)
    group = file.create_group("provenance")
    for key, value in provenance.items():
        set_text(group, key, value, attribute=True)
