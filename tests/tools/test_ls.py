# timeout: 120
"""nanotron_ls and the manifest: what is valid, what is damaged, and how that is told."""

import json
import shutil
import sys

import conftest  # noqa: F401, puts tools/ on the path
import h5py
import numpy as np
import pytest
import xxhash

from nanotron_tools import checkpoint as checkpoint_file
from nanotron_tools import common, hdf5, xxh3

STEP = "step_00000000"


@pytest.fixture
def run(golden, tmp_path):
    """A run directory with three checkpoints."""
    folder = tmp_path / "run"
    for step in (10, 20, 30):
        target = folder / "checkpoints" / f"step_{step:08d}"
        shutil.copytree(golden / "llama" / STEP, target)
    return folder


def test_manifest_hash_is_xxh3(golden):
    folder = golden / "llama" / STEP
    manifest = json.loads((folder / checkpoint_file.MANIFEST_FILE).read_text())
    data = (folder / checkpoint_file.CHECKPOINT_FILE).read_bytes()
    size = manifest["block_bytes"]
    assert manifest["bytes"] == len(data) and size == 4194304
    assert manifest["blocks"] == [f"{xxhash.xxh3_64_intdigest(data[i:i + size]):016x}"
                                  for i in range(0, len(data), size)]
    assert xxhash.xxh3_64_intdigest(b"") == 0x2D06800538D394C2


def test_hash_without_the_package(monkeypatch):
    """The C library gives the same numbers."""
    monkeypatch.setitem(sys.modules, "xxhash", None)
    function = xxh3.load()
    assert function is not None, "neither the package xxhash nor libxxhash.so.0"
    for data in (b"", b"a", bytes(range(256)) * 1000):
        assert function(data) == xxhash.xxh3_64_intdigest(data)


def test_manifest_of_many_blocks(tmp_path):
    data = np.random.default_rng(1).integers(0, 256, 9 * 1024 * 1024 + 5, dtype=np.uint8)
    data.tofile(tmp_path / checkpoint_file.CHECKPOINT_FILE)
    checkpoint_file.write_manifest(tmp_path, 7)
    manifest = checkpoint_file.verify_checkpoint(tmp_path)
    assert manifest["step"] == 7 and len(manifest["blocks"]) == 3
    data[5 * 1024 * 1024] ^= 1
    data.tofile(tmp_path / checkpoint_file.CHECKPOINT_FILE)
    with pytest.raises(common.ToolError, match="block 1"):
        checkpoint_file.verify_checkpoint(tmp_path)


def test_lists_a_checkpoint(golden, tool):
    text = tool("ls", golden / "qwen2" / STEP, "--values", "--deck").stdout
    assert "verified, 1 XXH3 blocks" in text
    assert "model/layers/self_attn/q_proj/bias" in text and "2 x 32 x 88" in text
    assert "zero moments" in text and "hidden_size" in text and "tokens_seen" in text
    assert "14 tensors, 27,520 numbers" in text and "std" in text


def test_lists_a_run(run, tool):
    (run / "checkpoints" / "step_00000040.partial").mkdir()
    text = tool("ls", run).stdout
    assert text.count(" valid") == 3 and "resume='auto' takes step_00000030" in text
    assert "step_00000040.partial" in text and "unfinished" in text


@pytest.mark.parametrize("damage, word", [
    (lambda f: (f / checkpoint_file.MANIFEST_FILE).unlink(), "never completed"),
    (lambda f: (f / checkpoint_file.CHECKPOINT_FILE).unlink(), "missing"),
    (lambda f: (f / checkpoint_file.MANIFEST_FILE).write_text("{"), "not a manifest"),
    (lambda f: (f / checkpoint_file.MANIFEST_FILE).write_text("[]"), "not a manifest"),
    (lambda f: (f / checkpoint_file.CHECKPOINT_FILE).write_bytes(b"x"), "expected 15"),
])
def test_damage_is_named_and_the_older_one_taken(damage, word, run, tool):
    newest = run / "checkpoints" / "step_00000030"
    damage(newest)
    result = tool("ls", run, rc=65)
    assert "DAMAGED" in result.stdout and word in result.stdout
    assert "resume='auto' takes step_00000020" in result.stdout
    assert word in tool("ls", newest, rc=65).stderr
    assert checkpoint_file.resolve_checkpoint(run).name == "step_00000020"


def test_lists_a_token_file(golden, tmp_path, tool):
    text = tool("ls", golden / "llama" / "tokens.h5").stdout
    assert "2,561 as uint16" in text and "unigram_entropy" in text
    (tmp_path / "x.txt").write_text("hello, world")
    tool("tokenize", tmp_path / "x.txt", "-o", tmp_path / "t.h5")
    assert "hello, world" in tool("ls", tmp_path / "t.h5", "--text", "50").stdout


def test_variable_length_strings_are_read(tmp_path):
    """Other writers may use variable-length strings."""
    with h5py.File(tmp_path / "v.h5", "w") as file:
        file["deck"] = "&run /"
        file.attrs["name"] = "välue"
        assert hdf5.as_text(file["deck"][()]) == "&run /"
        assert hdf5.as_text(file.attrs["name"]) == "välue"
        hdf5.set_text(file, "fixed", "ä", attribute=True)
        hdf5.set_text(file, "empty", "", attribute=False)
        assert hdf5.as_text(file.attrs["fixed"]) == "ä" and hdf5.as_text(file["empty"][()]) == ""


def test_mistakes_are_told(tmp_path, tool):
    assert "no such file" in tool("ls", tmp_path / "none", rc=65).stderr
    assert "neither a checkpoint nor a run" in tool("ls", tmp_path, rc=65).stderr
    (tmp_path / "x.h5").write_text("no HDF5")
    assert "not a readable HDF5 file" in tool("ls", tmp_path / "x.h5", rc=65).stderr
