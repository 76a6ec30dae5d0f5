# timeout: 900
"""nanotron_tokenize on .jsonl.gz, .jsonl.zst and .parquet: the tokens of plain text, bounded blocks, damage."""

import bz2
import gzip
import json
import lzma
import subprocess
import sys

import conftest
import h5py
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from nanotron_tools import streams

TEXTS = ["", "short", "Grüße, 你好\n" * 50, "x" * 5000, "two\nlines", *(f"document {i} " * (i % 40) for i in range(300))]


def lines_of(texts):
    return "".join(json.dumps({"text": text}) + "\n" for text in texts).encode()


def write(path, texts):
    """The texts in the format of the file's name."""
    data = lines_of(texts)
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(pyarrow.table({"id": range(len(texts)), "text": texts}), path, row_group_size=70)
    elif path.suffix == ".gz":  # of two members, as `cat a.gz b.gz` makes it
        half = len(data) // 2
        path.write_bytes(gzip.compress(data[:half]) + gzip.compress(data[half:]))
    elif path.suffix == ".zst":
        zstd, half = streams.zstd_module(), len(data) // 3
        path.write_bytes(zstd.compress(data[:half]) + zstd.compress(data[half:]))
    else:
        path.write_bytes(data)
    return path


def tokens_of(path):
    with h5py.File(path, "r") as file:
        return file["tokens"][:].tobytes(), file["documents"][:].tolist()


FORMATS = ("t.jsonl", "t.jsonl.gz", "t.json.gz", "t.jsonl.zst", "t.JSON.ZST", "t.parquet")


@pytest.mark.parametrize("chunk_mb", ["0.0005", "4"])
def test_all_formats_have_the_same_tokens(chunk_mb, tmp_path, tool):
    found = {}
    for name in FORMATS:
        path = tmp_path / name
        write(path.with_name(name.lower()), TEXTS).rename(path)
        tool("tokenize", path, "-o", tmp_path / "t.h5", "--chunk-mb", chunk_mb, "--workers", 1 if chunk_mb == "4" else 2)
        found[name] = tokens_of(tmp_path / "t.h5")
        path.unlink()
    expected = [np.concatenate([np.frombuffer(text.encode(), np.uint8).astype("<u2"), [256]]) for text in TEXTS]
    assert found["t.jsonl"][0] == np.concatenate(expected).astype("<u2").tobytes()
    assert found["t.jsonl"][1] == np.cumsum([0] + [part.size for part in expected])[:-1].tolist()
    assert all(each == found["t.jsonl"] for each in found.values())
    assert [path.name for path in tmp_path.iterdir()] == ["t.h5"]


def test_a_folder_of_all_formats(tmp_path, tool):
    for number, name in enumerate(FORMATS):
        write((tmp_path / "in" / f"{number}").with_name(name.lower()) if (tmp_path / "in").is_dir() else
              (tmp_path / "in").mkdir() or tmp_path / "in" / name.lower(), [f"from {name.lower()}"])
    (tmp_path / "in" / "x.tar.gz").write_bytes(gzip.compress(b"no lines"))
    told = tool("tokenize", tmp_path / "in", "-o", tmp_path / "t.h5").stderr
    assert "skipped" in told and "x.tar.gz" in told
    assert len(tokens_of(tmp_path / "t.h5")[1]) == len(FORMATS)
    told = tool("tokenize", tmp_path / "in" / "x.tar.gz", "-o", tmp_path / "t.h5", rc=65).stderr
    assert "found:  text, gzip" in told and "unpack it" in told


@pytest.mark.parametrize("name", ["t.jsonl.gz", "t.jsonl.zst"])
def test_blocks_are_bounded_and_know_their_lines(name, tmp_path):
    path = write(tmp_path / name, TEXTS)
    blocks = list(streams.line_blocks(path, streams.unpacked(path, "gzip" if path.suffix == ".gz" else "zst", 3000)))
    assert b"".join(block.lines for block in blocks) == lines_of(TEXTS) and len(blocks) > 10
    longest = max(map(len, lines_of(TEXTS).splitlines())) + 1
    assert max(block.bytes for block in blocks) <= 3000 + longest
    for block in blocks:
        before = lines_of(TEXTS)[:block.offset]
        assert block.lines.endswith(b"\n") and before.count(b"\n") + 1 == block.first


def test_rows_come_in_blocks_of_about_a_chunk(tmp_path):
    path = tmp_path / "t.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"text": ["a" * 1000] * 5000}), path)  # one row group
    blocks = list(streams.row_blocks(path, "Parquet", "text", 50_000))
    assert len(blocks) == 20 and max(block.bytes for block in blocks) < 300_000
    assert [block.first for block in blocks] == np.cumsum([0] + [len(block.rows) for block in blocks])[:-1].tolist()


def test_max_bytes_of_streams(tmp_path, tool):
    line = len(lines_of(["0123456789"]))
    for name in ("t.jsonl", "t.jsonl.gz", "t.jsonl.zst"):
        path = write(tmp_path / name, ["0123456789"] * 1000)
        tool("tokenize", path, "-o", tmp_path / "t.h5", "--max-bytes", 100 * line + 3, "--chunk-mb", "0.0007")
        assert len(tokens_of(tmp_path / "t.h5")[1]) == 100


@pytest.mark.parametrize("name", ["t.jsonl.gz", "t.jsonl.zst", "t.parquet"])
@pytest.mark.parametrize("damage", ["cut", "flip", "garbage", "tiny"])
def test_damage_is_told_and_leaves_nothing(name, damage, tmp_path, tool):
    path = write(tmp_path / name, [*TEXTS, *("".join(chr(97 + (i * j) % 26) for j in range(900)) for i in range(99))])
    data = bytearray(path.read_bytes())
    if damage == "cut":
        data = data[:-len(data) // 3]
    elif damage == "flip":
        for place in range(len(data) // 3, 2 * len(data) // 3):
            data[place] ^= 0x5A
    else:
        data = bytearray(b"no such thing" * 50 if damage == "garbage" else b"x")
    path.write_bytes(data)
    told = tool("tokenize", path, "-o", tmp_path / "t.h5", rc=65).stderr
    assert f"{path}: expected a " in told or f"{path}, " in told, told
    assert "found: " in told and "change: " in told
    assert [each.name for each in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("name, compress", [("t.jsonl.bz2", bz2.compress), ("t.jsonl.xz", lzma.compress)])
def test_streams_one_after_another(name, compress, tmp_path, tool):
    """With padding between and behind them; damage at the beginning of a later one is told, not taken for the end."""
    parts, path = [compress(lines_of([text])) for text in TEXTS[:5]], tmp_path / name
    path.write_bytes(bytes(8).join(parts) + bytes(200_000))
    tool("tokenize", path, "-o", tmp_path / "t.h5", "--chunk-mb", "0.001")
    assert len(tokens_of(tmp_path / "t.h5")[1]) == 5
    for damaged in (parts[:2] + [b"\1" + parts[2][1:]] + parts[3:], [*parts, b"rest"], [*parts[:4], parts[4][:-5]]):
        path.write_bytes(b"".join(damaged))
        assert f"{path}: expected a whole" in tool("tokenize", path, "-o", tmp_path / "x.h5", rc=65).stderr


def test_an_arrow_stream_that_is_cut_between_batches(tmp_path, tool):
    path, table = tmp_path / "t.arrow", pyarrow.table({"text": TEXTS})
    with pyarrow.ipc.new_stream(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=7)
    path.write_bytes(path.read_bytes()[:-8])
    told = tool("tokenize", path, "-o", tmp_path / "t.h5", rc=65).stderr
    assert "an end marker" in told and f"after {len(TEXTS)} rows" in told


def test_a_window_that_is_too_large_is_told(tmp_path, tool):
    zstd = streams.zstd_module()
    path = tmp_path / "t.jsonl.zst"
    with zstd.open(path, "wb", options={zstd.CompressionParameter.window_log: 28}) as file:
        file.write(lines_of(TEXTS))
    told = tool("tokenize", path, "-o", tmp_path / "t.h5", rc=65).stderr
    assert "without --long" in told and str(path) in told


def test_wrong_records_are_told_with_their_place(tmp_path, tool):
    good = [{"text": "good"}] * 500
    for bad, what in (('{"text": 5}', "but 5"), ('{"content": "x"}', "the fields content"), ("[1]", "no text in [1]"),
                      ('{"text": "x', "Unterminated"), ("\ufeff", "expected a line of JSON"), ('{"text": null}', "None")):
        data = "".join(json.dumps(each) + "\n" for each in good).encode() + bad.encode() + b"\n"
        for name in ("t.jsonl", "t.jsonl.gz"):
            path = tmp_path / name
            path.write_bytes(gzip.compress(data) if name.endswith("gz") else data)
            told = tool("tokenize", path, "-o", tmp_path / "t.h5", "--chunk-mb", "0.001", rc=65).stderr
            assert f"{path}, line 501, byte 8500: expected " in told and what in told and "change: " in told, told
            path.unlink()
    path = tmp_path / "t.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"text": ["a"] * 100 + [None]}), path)
    told = tool("tokenize", path, "-o", tmp_path / "t.h5", rc=65).stderr
    assert f"{path}, row 100 (counted from 0): expected " in told
    told = tool("tokenize", path, "-o", tmp_path / "t.h5", "--field", "content", rc=65).stderr
    assert "expected a column 'content'" in told and "found:  the columns text" in told and "--field" in told
    assert [each.name for each in tmp_path.iterdir()] == ["t.parquet"]


@pytest.mark.parametrize("name", ["t.jsonl", "t.jsonl.gz", "t.parquet", "t.json"])
def test_bad_records_are_counted_and_listed(name, tmp_path, tool):
    texts = [f"text {i}" for i in range(400)]
    records = [{"text": None if i in (7, 399) else text} for i, text in enumerate(texts)]
    path = tmp_path / name
    if name == "t.parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(records), path)
    else:
        data = (json.dumps(records) if name == "t.json" else "".join(json.dumps(each) + "\n" for each in records)).encode()
        path.write_bytes(gzip.compress(data) if name.endswith("gz") else data)
    places = ("row 7 (counted from 0)", "row 399 (counted from 0)") if name in ("t.parquet", "t.json") else \
        ("line 8, byte ", "line 400, byte ")
    call = ["tokenize", path, "-o", tmp_path / "t.h5", "--chunk-mb", "0.001", "--workers", 1 + (name == "t.jsonl")]
    told = tool(*call, rc=65).stderr
    assert places[0] in told and "--skip-bad N" in told and not (tmp_path / "t.h5").exists()
    told = tool(*call, "--skip-bad", 1, rc=65).stderr
    assert places[1] in told and "more than --skip-bad 1" in told and not (tmp_path / "t.h5").exists()
    told = tool(*call, "--skip-bad", 2).stderr
    assert f"left out: {path}, {places[0]}" in told and places[1] in told and "2 records left out" in told
    assert "change:" not in told
    good = [text for i, text in enumerate(texts) if i not in (7, 399)]
    expected = [np.concatenate([np.frombuffer(text.encode(), np.uint8).astype("<u2"), [256]]) for text in good]
    assert tokens_of(tmp_path / "t.h5")[0] == np.concatenate(expected).astype("<u2").tobytes()
    if name == "t.parquet":
        assert "documents    398\n" in tool("tokenize", path, "--count", "--skip-bad", 2).stdout
        assert places[1] in tool("tokenize", path, "--count", "--skip-bad", 1, rc=65).stderr
        assert "2 records left out" in tool("tokenize", path, "--skip-bad", 2, "--shards", tmp_path / "parts").stderr
        told = tool("tokenize", path, "--skip-bad", 2, "--shards", tmp_path / "parts").stderr  # they are there
        assert "shard_000000.h5: 2 records were left out when it was made" in told
        assert "--skip-bad" in tool("tokenize", path, "-o", tmp_path / "t.h5", "--skip-bad", -1, rc=2).stderr


@pytest.mark.parametrize("name, package", [("t.jsonl.zst", "backports.zstd"), ("t.parquet", "pyarrow")])
def test_a_missing_package_is_named(name, package, tmp_path):
    if package == "backports.zstd" and sys.version_info >= (3, 14):
        pytest.skip("Python has its own")
    write(tmp_path / name, ["a"])
    script = (f"import sys; sys.path.insert(0, {str(conftest.ROOT / 'tools')!r}); import importlib.util as u\n"
              f"find = u.find_spec; u.find_spec = lambda name: None if name == {package!r} else find(name)\n"
              f"from nanotron_tools import commands; sys.exit(commands.tokenize())")
    found = subprocess.run([sys.executable, "-c", script, tmp_path / name, "-o", tmp_path / "t.h5"], capture_output=True,
                           text=True, timeout=60)
    assert found.returncode == 71 and f"expected the Python package {package}" in found.stderr, found.stderr
    assert "pip install" in found.stderr and [each.name for each in tmp_path.iterdir()] == [name]
