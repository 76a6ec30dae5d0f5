# timeout: 300
"""nanotron_verify, and the hashes that the tools write into token files."""

import json
import shutil

import conftest  # noqa: F401, puts tools/ on the path
import h5py
import numpy as np
import pytest
import xxhash

from nanotron_tools import common, token_hashes

RANDOM = np.random.default_rng(3)


def make(path, count=10000, mask=True, hashes=False):
    with h5py.File(path, "w") as file:
        file["tokens"] = RANDOM.integers(0, 300, count).astype("<u2")
        file["documents"] = np.arange(0, count, 70).astype("<u8")
        if mask:
            file["loss_mask"] = RANDOM.integers(0, 2, count).astype("u1")
        file.attrs["vocab_size"] = 300
    if hashes:
        token_hashes.add(path)
    return path


def flip(path, name, byte):
    with h5py.File(path, "r") as file:
        place = file[name].id.get_offset() + byte
    with open(path, "r+b") as file:
        file.seek(place)
        value = file.read(1)[0]
        file.seek(place)
        file.write(bytes([value ^ 16]))


def expected_hashes(data, block):
    data = data.tobytes()
    return [xxhash.xxh3_64_intdigest(data[at:at + block]) for at in range(0, len(data), block)]


@pytest.mark.parametrize("block", [64, 1000, 4096])
def test_pieces_of_any_size_have_the_hashes_of_the_whole(block):
    data = RANDOM.integers(0, 1 << 32, 12345, dtype="<u4")
    for sizes in ([12345], [1] * 50 + [12295], [0, 63, 64, 65, 4095, 4097, 1, 3960]):
        hashes, parts, at = token_hashes.Hashes(data.dtype, block), [], 0
        for size in sizes:
            parts.append(hashes.update(data[at:at + size]))
            at += size
        parts.append(hashes.finish())
        found = np.concatenate(parts)
        assert found.tolist() == expected_hashes(data, 4 * block) and hashes.count == len(found)
        above = np.array(expected_hashes(found, 8 * block), "<u8")
        assert hashes.digest() == xxhash.xxh3_64_intdigest(above.tobytes())


def test_the_tokenizer_writes_what_the_tool_verifies(tool, tmp_path):
    talks = tmp_path / "talks.jsonl"
    talks.write_text("".join(json.dumps({"prompt": f"question {i}" * 9, "completion": "answer" * i}) + "\n"
                             for i in range(300)))
    tool("tokenize", talks, "--chat", "concatenate", "--output", tmp_path / "t.h5")
    with h5py.File(tmp_path / "t.h5", "r") as file:
        hashes = file["hashes"]
        assert hashes.attrs["block"] == token_hashes.BLOCK and sorted(hashes) == ["documents", "loss_mask", "tokens"]
        for name in hashes:
            data = file[name][:]
            assert hashes[name][:].tolist() == expected_hashes(data, token_hashes.BLOCK * data.dtype.itemsize)
        content = hashes.attrs["content"].decode()
    assert f"verified, content {content}" in tool("verify", tmp_path / "t.h5").stdout
    assert content in tool("ls", tmp_path / "t.h5").stdout
    assert not list(tmp_path.glob("*.tmp"))
    shutil.copy(tmp_path / "t.h5", tmp_path / "again.h5")  # computed from the file they are the same
    tool("verify", "--replace", tmp_path / "again.h5")
    with h5py.File(tmp_path / "again.h5", "r") as a, h5py.File(tmp_path / "t.h5", "r") as b:
        for name in ("content", "metadata"):
            assert a["hashes"].attrs[name] == b["hashes"].attrs[name]


def test_add_and_verify(tool, tmp_path):
    path = make(tmp_path / "t.h5")
    told = tool("verify", path, rc=65).stderr
    assert "expected hashes of its blocks" in told and "--add" in told
    assert "hashed, content" in tool("verify", "--add", path).stdout
    assert "verified, content" in tool("verify", "--add", path).stdout
    for name, byte, where in (("tokens", 2 * 4096 + 7, "block 1 of /tokens (values 4096 to 8191)"),
                              ("tokens", 19999, "block 2 of /tokens (values 8192 to 9999)"),
                              ("documents", 5, "block 0 of /documents (values 0 to 142)"),
                              ("loss_mask", 9999, "block 2 of /loss_mask (values 8192 to 9999)")):
        flip(path, name, byte)
        told = tool("verify", path, rc=65).stderr
        assert where in told and told.count("block ") == 1 and str(path) in told
        assert where in tool("verify", "--add", path, rc=65).stderr  # damage is not made good by hashing it
        flip(path, name, byte)
    with h5py.File(path, "r+") as file:
        file.attrs["vocab_size"] = 301
    assert "sizes or attributes" in tool("verify", path, rc=65).stderr
    assert "hashed" in tool("verify", "--replace", path).stdout
    assert "verified" in tool("verify", path).stdout


def test_what_cannot_be_hashed(tool, tmp_path):
    assert "no such file" in tool("verify", tmp_path / "none.h5", rc=65).stderr


def test_rows_of_metrics(tool, tmp_path):
    path, count = tmp_path / "metrics.h5", 5
    columns = {"step": np.arange(1, count + 1), "loss": RANDOM.random(count), "mfu": np.full(count, np.nan)}
    validation = {"validation_step": np.array([2, 4]), "validation_loss": np.array([2.5, np.nan]),
                  "validation_loss_a": np.array([np.nan, 1.0]), "validation_loss_b": np.array([3.0, 1.5])}
    hashed = [xxhash.xxh3_64_intdigest(b"".join(c[i:i + 1].tobytes() for c in columns.values())) for i in range(count)]
    of_validation = [xxhash.xxh3_64_intdigest(np.array(bits).tobytes()) for bits in (
        [np.int64(2).view("f8"), 2.5, 3.0], [np.int64(4).view("f8"), np.nan, 1.0, 1.5])]  # none of what is NaN but the mean
    with h5py.File(path, "w") as file:
        file.attrs["format"] = "nanotron_hpc metrics"
        for name, values in (columns | validation).items():
            file[name] = values
    assert "hashes of its rows" in tool("verify", path, rc=65).stderr
    with h5py.File(path, "r+") as file:
        file["row_hash"] = np.array([0, *hashed[1:]], "<u8")
        file["row_hash"].attrs["of"] = "step loss mfu"
        file["validation_hash"] = np.array(of_validation, "<u8")
        file["validation_hash"].attrs["of"] = "validation_step validation_loss validation_loss_*"
    assert "verified, 7 rows, 1 of them without a hash" in tool("verify", path).stdout
    with h5py.File(path, "r+") as file:
        file["starts/start"], file["starts/begin"] = np.array([1, 2, 3]), np.array([1.5, 2.5, 3.5])
        file["start_checkpoints/step"] = np.array([4])
    assert "verified, 11 rows, 5 of them without a hash" in tool("verify", path).stdout
    with h5py.File(path, "r+") as file:
        table = file["starts"]
        bits = zip(table["start"][()], table["begin"][()], strict=True)
        table["row_hash"] = np.array([xxhash.xxh3_64_intdigest(a.tobytes() + b.tobytes()) for a, b in bits], "<u8")
        table["row_hash"].attrs["of"] = "start begin"
    assert "verified, 11 rows, 2 of them without a hash" in tool("verify", path).stdout
    flip(path, "starts/begin", 8 * 1)
    assert tool("verify", path, rc=65).stderr.count("row 2 of starts\n") == 1
    flip(path, "loss", 8 * 2)
    flip(path, "validation_loss_b", 0)
    text = tool("verify", path, rc=65).stderr
    assert "the row of training of step 3\n" in text and "the row of validation of step 2\n" in text and "step 4" not in text
    with h5py.File(path, "r+") as file:
        del file["mfu"]
    assert "columns of 8 bytes" in tool("verify", path, rc=65).stderr
    (tmp_path / "text.h5").write_text("no HDF5")
    assert "an HDF5 file" in tool("verify", tmp_path / "text.h5", rc=65).stderr
    path = make(tmp_path / "t.h5")
    with h5py.File(path, "r+") as file:
        file["tokens"][777] = 300
    assert "/tokens[777]: expected an id below 300" in tool("verify", "--add", path, rc=65).stderr


def test_joined_files_are_compared_as_they_are_read(tool, tmp_path):
    path = make(tmp_path / "a.h5", hashes=True)
    tool("import", path, path, "--output", tmp_path / "both.h5")
    assert "verified" in tool("verify", tmp_path / "both.h5").stdout
    flip(path, "tokens", 9000)
    told = tool("import", path, "--output", tmp_path / "copy.h5", rc=65).stderr
    assert "another hash of block 1 of /tokens" in told and not (tmp_path / "copy.h5").exists()


def test_content_is_of_the_data_alone(tmp_path):
    path = make(tmp_path / "t.h5", hashes=True)
    shutil.copy(path, tmp_path / "packed.h5")
    with h5py.File(tmp_path / "packed.h5", "r+") as file:
        data = file["tokens"][:]
        del file["tokens"]
        file.create_dataset("tokens", data=data.astype(">u2"), chunks=(1000,), compression="gzip")
        file.attrs["tokenizer"] = "renamed"
    token_hashes.add(tmp_path / "packed.h5")
    contents = []
    for name in ("t.h5", "packed.h5"):
        with h5py.File(tmp_path / name, "r") as file:
            contents.append(file["hashes"].attrs["content"])
    assert contents[0] == contents[1]


def test_hashes_of_another_kind(tmp_path):
    path = make(tmp_path / "t.h5", hashes=True)
    with h5py.File(path, "r+") as file:
        file["hashes"].attrs["algorithm"] = "md5"
        with pytest.raises(common.ToolError, match="xxh3_64"):
            token_hashes.Comparison(file)
