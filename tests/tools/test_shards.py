# timeout: 1500
"""nanotron_tokenize --shards and --merge: the bytes of one process, restarts, proofs; and --count."""

import gzip
import itertools
import json
import os
import signal
import subprocess
import sys

import conftest
import h5py
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from nanotron_tools import common, corpus, count, encode, inputs, shards, token_writer, tokenize
from nanotron_tools.tokenizers import ByteTokenizer

SCRIPT = conftest.ROOT / "tools" / "nanotron_tokenize.py"


@pytest.fixture
def texts(tmp_path):
    """JSON lines, plain and compressed, and text."""
    folder, random = tmp_path / "in", np.random.default_rng(3)
    folder.mkdir()
    for name in ("a.jsonl", "b.jsonl"):
        (folder / name).write_text("".join(
            json.dumps({"text": f"{name} {i} " + "word " * int(random.integers(0, 60))}) + "\n" for i in range(400)))
    (folder / "c.jsonl.gz").write_bytes(gzip.compress((folder / "b.jsonl").read_bytes().replace(b"b.", b"c.")))
    (folder / "d.txt").write_text("a text of many lines\n" * 4000)
    (folder / "e.txt").write_text("another text")
    return folder


def data_of(path):
    with h5py.File(path, "r") as file:
        return {name: file[name][()].tobytes() for name in ("tokens", "documents", "vocabulary/bytes", "loss_mask")
                if name in file} | {name: file.attrs[name] for name in file.attrs}


def inodes(folder):
    return {path.name: (path.stat().st_ino, path.stat().st_mtime_ns) for path in folder.glob("*.h5")}


@pytest.mark.parametrize("kind", ["bytes", "bpe"])
@pytest.mark.parametrize("ranks", [1, 2, 5])
def test_merged_shards_are_the_file_of_one_process(kind, ranks, texts, tmp_path, tool):
    extra = []
    if kind == "bpe":
        tool("tokenize", texts, "--train-bpe", 300, "-o", tmp_path / "one.h5")
        extra = ["--tokenizer", tmp_path / "one.tokenizer.json"]
    tool("tokenize", texts, "-o", tmp_path / "one.h5", *extra)
    for rank in reversed(range(ranks)):
        tool("tokenize", texts, "--shards", tmp_path / "parts", "--shard-mb", "0.02", "--rank", rank, "--ranks", ranks,
             "--workers", 1 + rank % 2, "--chunk-mb", "0.004", *extra)
    tool("tokenize", "--merge", tmp_path / "parts", "-o", tmp_path / "merged.h5")
    assert data_of(tmp_path / "one.h5") == data_of(tmp_path / "merged.h5")
    parts = sorted((tmp_path / "parts").glob("*.h5"))
    assert len(parts) > 5 and len(list((tmp_path / "parts").iterdir())) == len(parts) + 1
    with h5py.File(parts[1], "r") as file:  # a token file by itself
        assert file["documents"][0] == 0 and file["tokens"].chunks is None and "vocab_size" in file.attrs


def test_shards_follow_from_the_texts_alone(texts):
    spans = conftest.spans_of(texts)
    planned = shards.cut(spans, 20_000)
    assert [span for part in shards.cut(spans, 1 << 40) for span in part] == spans
    for before, after in itertools.pairwise(sum(planned, [])):
        assert (before.path == after.path and before.end == after.start) or (
            after.start == 0 and before.end == before.path.stat().st_size)
        if before.path == after.path:
            assert before.path.read_bytes()[before.end - 1:before.end] == b"\n" and before.path.suffix == ".jsonl"
    assert all(part for part in planned)


def test_shards_that_prove_to_be_the_same_are_passed_over(texts, tmp_path, tool):
    parts = tmp_path / "parts"
    call = ["--shards", parts, "--shard-mb", "0.02"]

    def remade(*arguments):
        """Numbers of the shards that the tool wrote."""
        before = inodes(parts)
        printed = tool("tokenize", texts, *call, *arguments).stdout
        changed = {int(name[6:12]) for name, now in inodes(parts).items() if before.get(name) != now}
        assert f"rank 0: {len(changed)} shards made" in printed
        return changed

    every = remade()
    assert remade() == set() and remade("--workers", 2) == set()
    (texts / "a.jsonl").touch()
    assert remade() == set()  # another time, the same texts
    content = (texts / "a.jsonl").read_bytes()
    (texts / "a.jsonl").write_bytes(content.replace(b"a.jsonl 3 ", b"a.jsonl 4 ", 1))
    assert remade() == {0}  # of the same size
    (texts / "a.jsonl").write_bytes(content)
    assert remade() == {0}
    (parts / "shard_000002.h5").unlink()
    assert remade() == {2}
    with h5py.File(parts / "shard_000001.h5", "r") as file:
        place = file["tokens"].id.get_offset()
    with open(parts / "shard_000001.h5", "r+b") as file:  # damage that HDF5 does not see
        file.seek(place + 10)
        file.write(b"\x55")
    told = tool("tokenize", "--merge", parts, "-o", tmp_path / "t.h5", rc=65).stderr
    assert "shard_000001.h5: expected the data that were written" in told and "another hash of /tokens" in told
    assert not list(tmp_path.glob("t.h5*"))
    assert remade() == {1}
    (parts / "shard_000003.h5").write_bytes(b"half")
    told = tool("tokenize", "--merge", parts, "-o", tmp_path / "t.h5", rc=65).stderr
    assert "0 missing, 1 of other" in told and "shard_000003.h5" in told
    assert remade() == {3}
    (texts / "zz.txt").write_text("one more, at the end")
    assert remade() <= {max(every), max(every) + 1}
    assert remade("--eos", "none") >= every  # other settings: all of them
    tool("tokenize", "--merge", parts, "-o", tmp_path / "t.h5")
    tool("tokenize", texts, "--eos", "none", "-o", tmp_path / "one.h5")
    assert data_of(tmp_path / "one.h5") == data_of(tmp_path / "t.h5")


def test_a_killed_shard_is_made_again(texts, tmp_path, tool):
    parts, held = tmp_path / "parts", tmp_path / "held.py"
    held.write_text(f"""
import sys, time
sys.path.insert(0, {str(conftest.ROOT / "tools")!r})
from nanotron_tools import common, token_writer, tokenize
append = token_writer.TokenWriter.append
def slow(self, *arguments):
    append(self, *arguments)
    if self.path.name == "shard_000002.h5":
        print("held", flush=True)
        time.sleep(600)
token_writer.TokenWriter.append = slow
sys.exit(common.run_main(tokenize.main))
""")
    call = [texts, "--shards", parts, "--shard-mb", "0.02"]
    process = subprocess.Popen([sys.executable, held, *map(str, call), "--quiet"], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "held\n"
    told = tool("tokenize", *call, rc=71).stderr  # two at a time: refused
    assert "shard_000002.h5.documents.tmp: expected to be the only process" in told
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert {path.name for path in parts.glob("*.tmp")} and not (parts / "shard_000002.h5").exists()
    assert "missing" in tool("tokenize", "--merge", parts, "-o", tmp_path / "t.h5", rc=65).stderr
    before = inodes(parts)
    tool("tokenize", *call)
    assert all(inodes(parts)[name] == state for name, state in before.items()) and len(before) == 2
    assert not list(parts.glob("*.tmp"))
    tool("tokenize", "--merge", parts, "-o", tmp_path / "t.h5")
    tool("tokenize", texts, "-o", tmp_path / "one.h5")
    assert data_of(tmp_path / "one.h5") == data_of(tmp_path / "t.h5")


def test_a_text_that_changes_meanwhile_is_told(tmp_path, monkeypatch):
    path = tmp_path / "a.txt"
    path.write_text("text")
    found = inputs.find_files([str(path)])
    spans = corpus.spans_of(found.files)
    encoder = encode.Encoder(ByteTokenizer(), encode.Settings("text", None, True, 1000))
    shard = shards.plan(tmp_path / "parts", spans, 100, encoder.tokenizer, encoder.settings)[0]

    def chunks():
        yield from corpus.make_chunks(spans, 1000, None, "text")
        path.write_text("Text")
        os.utime(path, ns=(1, 1))

    with encode.Pool(encoder, 1) as pool, pytest.raises(common.ToolError, match="was modified meanwhile"):
        tokenize.write_tokens(shard.path, pool, chunks(), lambda writer: None, inputs.Tally(found), shard)
    assert not list((tmp_path / "parts").iterdir())


@pytest.mark.parametrize("environment, rank, ranks", [
    ({}, 0, 1),
    ({"SLURM_PROCID": "3", "SLURM_NTASKS": "8", "SLURM_STEP_ID": "0"}, 3, 8),
    ({"SLURM_PROCID": "3", "SLURM_NTASKS": "8", "SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_ID": "0"}, 3, 4),
    ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_JOB_ID": "5"}, 0, 1),  # a batch script, no step
    ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "SLURM_PROCID": "0", "SLURM_NTASKS": "8",
      "SLURM_STEP_ID": "0"}, 1, 2),
    ({"PMI_RANK": "5", "PMI_SIZE": "6"}, 5, 6),
    ({"MV2_COMM_WORLD_RANK": "1", "MV2_COMM_WORLD_SIZE": "3"}, 1, 3),
    ({"PMIX_RANK": "2", "SLURM_STEP_NUM_TASKS": "3"}, 2, 3),
    ({"FLUX_TASK_RANK": "2", "FLUX_JOB_SIZE": "3"}, 2, 3),
])
def test_ranks_of_launchers(environment, rank, ranks):
    found = shards.place_of(None, None, environment)
    assert (found.rank, found.ranks) == (rank, ranks)
    assert shards.place_of(1, 7, environment) == shards.Place(1, 7, "--rank, --ranks")


def test_wrong_ranks():
    for environment, options in (({"PMI_RANK": "6", "PMI_SIZE": "6"}, (None, None)), ({}, (2, 2)), ({}, (-1, 2)),
                                 ({}, (1, None)), ({"PMI_RANK": "x", "PMI_SIZE": "6"}, (None, None))):
        with pytest.raises(common.ToolError) as caught:
            shards.place_of(*options, environment)
        assert caught.value.exit_code == 64


def test_ranks_at_once(texts, tmp_path, tool):
    """As a launcher starts them."""
    processes = [subprocess.Popen([sys.executable, SCRIPT, texts, "--shards", tmp_path / "parts", "--shard-mb", "0.02"],
                                  env={**os.environ, "SLURM_PROCID": str(rank), "SLURM_NTASKS": "3", "SLURM_STEP_ID": "0"},
                                  stdout=subprocess.PIPE, text=True) for rank in range(3)]
    for rank, process in enumerate(processes):
        printed, _ = process.communicate(timeout=120)
        assert process.returncode == 0 and f"rank {rank} of 3 (SLURM_PROCID, SLURM_NTASKS)" in printed
    tool("tokenize", "--merge", tmp_path / "parts", "-o", tmp_path / "t.h5")
    tool("tokenize", texts, "-o", tmp_path / "one.h5")
    assert data_of(tmp_path / "one.h5") == data_of(tmp_path / "t.h5")


def test_masks_are_merged(tmp_path, tool):
    path = tmp_path / "t.jsonl"
    path.write_text("".join(json.dumps({"prompt": "p" * (i % 7), "completion": "c" * (i % 5)}) + "\n" for i in range(500)))
    tool("tokenize", path, "--chat", "concatenate", "-o", tmp_path / "one.h5")
    tool("tokenize", path, "--chat", "concatenate", "--shards", tmp_path / "parts", "--shard-mb", "0.003")
    tool("tokenize", "--merge", tmp_path / "parts", "-o", tmp_path / "t.h5")
    assert data_of(tmp_path / "one.h5") == data_of(tmp_path / "t.h5")
    assert len(list((tmp_path / "parts").glob("*.h5"))) > 3


def test_command_lines(texts, tmp_path, tool):
    out = tmp_path / "t.h5"
    for arguments, told in (([texts], "--output"), ([texts, "--count", "-o", out], "writes no --output"),
                            ([texts, "--shards", tmp_path, "-o", out], "writes no --output"),
                            (["-o", out], "expected inputs"), ([texts, "--merge", tmp_path, "-o", out], "no inputs"),
                            ([texts, "--count", "--shards", tmp_path], "one of them"),
                            ([texts, "-o", out, "--rank", 0, "--ranks", 1], "belong to --shards"),
                            ([texts, "-o", out, "--sample", 0.5], "with --count"),
                            ([texts, "--count", "--sample", 2], "up to 1"),
                            ([texts, "--shards", tmp_path, "--train-bpe", 300], "train on a part"),
                            ([texts, "--shards", tmp_path, "--max-bytes", 30], "does not go with")):
        assert told in tool("tokenize", *arguments, rc=2).stderr
    told = tool("tokenize", texts, "--shards", texts / "parts", rc=64).stderr
    assert "a folder outside of the input" in told and not (texts / "parts").exists()
    assert "plan.json" in tool("tokenize", "--merge", tmp_path, "-o", out, rc=65).stderr
    (tmp_path / "plan.json").write_text("{}")
    assert "recreate the shards" in tool("tokenize", "--merge", tmp_path, "-o", out, rc=65).stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "plan.json"]


# ---------------------------------------------------------------------------------------------------------------------
# Counts


def test_the_exact_count_is_that_of_the_file(texts, tmp_path, tool):
    before = sorted(tmp_path.rglob("*"))
    printed = tool("tokenize", texts, "--count").stdout
    assert sorted(tmp_path.rglob("*")) == before
    tool("tokenize", texts, "-o", tmp_path / "t.h5")
    with h5py.File(tmp_path / "t.h5", "r") as file:
        assert f"documents    {file['documents'].shape[0]:,}\n" in printed
        assert f"tokens       {file['tokens'].shape[0]:,}\n" in printed
    size = sum(path.stat().st_size for path in texts.iterdir())
    assert f"{size:,} bytes of input; exact" in printed and "±" not in printed


def test_the_error_of_a_sample_holds(tmp_path, tool):
    """Documents of very different tokens a byte: the truth is within the stated error about 95 times in 100."""
    random = np.random.default_rng(5)
    path = tmp_path / "t.jsonl"
    path.write_text("".join(json.dumps({"text": "x" * int(random.integers(0, 80)), "other": "y" * int(
        random.integers(0, 200))}) + "\n" for _ in range(8000)))
    encoder = encode.Encoder(ByteTokenizer(), encode.Settings("text", None, True, 4000))
    spans = conftest.spans_of(path)
    with encode.Pool(encoder, 1) as pool:
        exact = count.count(pool, spans, 4000, "text", 1.0, 0)
        found = [count.count(pool, spans, 4000, "text", 0.15, seed) for seed in range(100)]
    assert exact.tokens.error == 0 and exact.documents.value == 8000 and exact.sampled == exact.chunks > 300
    assert all(each.sampled == -(-15 * each.chunks // 100) and each.bytes == path.stat().st_size for each in found)
    for name in ("tokens", "documents"):
        off = np.array([getattr(each, name).value - getattr(exact, name).value for each in found])
        stated = np.array([getattr(each, name).error for each in found])
        assert 88 <= (np.abs(off) < 1.96 * stated).sum() and stated.mean() < 0.02 * getattr(exact, name).value
        assert 0.7 < off.std() / stated.mean() < 1.4
    printed = tool("tokenize", path, "--count", "--sample", 0.15, "--sample-seed", 7, "--chunk-mb", 0.004).stdout
    assert f"estimated from {found[7].sampled} of {found[7].chunks} chunks (seed 7)" in printed
    assert f"tokens       {found[7].tokens.value:,.0f} ± {1.96 * found[7].tokens.error:,.0f} (" in printed


def test_samples_of_streams_and_chats(tmp_path, tool):
    pyarrow.parquet.write_table(pyarrow.table({"text": ["five!"] * 4000}), tmp_path / "t.parquet", row_group_size=50)
    printed = tool("tokenize", tmp_path / "t.parquet", "--count", "--sample", 0.4).stdout
    assert "from 32 of 80 chunks" in printed and "tokens       24,000 ± 0 (0.00 %)" in printed
    for i in range(40):
        (tmp_path / f"{i}.jsonl.gz").write_bytes(gzip.compress(b'{"prompt": "abc", "completion": "d"}\n' * 10))
    printed = tool("tokenize", tmp_path, "--glob", "*.gz", "--count", "--sample", 0.01, "--chat", "concatenate").stdout
    assert "from 30 of 40 chunks" in printed and "in the loss  800 ± 0" in printed and "documents    400 ± 0" in printed


# ---------------------------------------------------------------------------------------------------------------------
# The writer


@pytest.mark.parametrize("other_place", [False, True])
def test_pieces_are_moved_into_the_file_whatever_their_size(other_place, tmp_path, monkeypatch):
    monkeypatch.setattr(token_writer, "COPY_BYTES", 64)
    if other_place:  # as if HDF5 put the tokens elsewhere
        create = token_writer.create_file
        monkeypatch.setattr(token_writer, "create_file",
                            lambda path: (create(path), monkeypatch.setattr(token_writer, "TOKENS_AT", 512))[0])
    for size in (0, 1, 31, 32, 33, 1000, 2047, 2048, 2049, 30_000):
        tokens = np.arange(size) % 300
        with token_writer.TokenWriter(tmp_path / "t.h5", 300, masked=True) as writer:
            for part in np.array_split(tokens, 7):
                writer.append(part, np.zeros(min(1, part.size)), part % 2)
            writer.finish({"vocab_size": 300, "special": {}, "tokenizer": "", "tokenizer_sha256": None, "provenance": {}},
                          None)
        with h5py.File(tmp_path / "t.h5", "r") as file:
            assert np.array_equal(file["tokens"][:], tokens) and np.array_equal(file["loss_mask"][:], tokens % 2)
            assert file["documents"].shape[0] == min(size, 7)
            place = file["tokens"].id.get_offset()
            assert file["tokens"].chunks is None and (other_place or (place == 4096) == (size >= 1025))
        if size:  # as the program reads them, without HDF5
            data = np.fromfile(tmp_path / "t.h5", "<u2", offset=place, count=size)
            assert np.array_equal(data, tokens)
        assert [path.name for path in tmp_path.iterdir()] == ["t.h5"]


def test_an_error_leaves_the_file_that_was_there(tmp_path):
    (tmp_path / "t.h5").write_text("as it was")
    with pytest.raises(ZeroDivisionError), token_writer.TokenWriter(tmp_path / "t.h5", 300) as writer:
        writer.append(np.arange(10), np.zeros(1))
        raise ZeroDivisionError
    assert (tmp_path / "t.h5").read_text() == "as it was" and len(list(tmp_path.iterdir())) == 1


def test_memory_does_not_grow_with_the_input(tmp_path):
    """16 times the text, of many small documents, within a few MiB."""
    script = ("import resource, sys; sys.path.insert(0, sys.argv.pop(1))\n"
              "from nanotron_tools import tokenize; tokenize.main(sys.argv[1:])\n"
              "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)")
    used = []
    for times in (1, 16):
        with open(tmp_path / "t.jsonl", "w") as file:
            file.writelines([json.dumps({"text": "few words"}) + "\n"] * (40_000 * times))
        found = subprocess.run([sys.executable, "-c", script, conftest.ROOT / "tools", tmp_path / "t.jsonl", "-o",
                                tmp_path / "t.h5", "--quiet", "--chunk-mb", "0.5"], capture_output=True, text=True, check=True)
        used.append(int(found.stdout) / 1024)
    assert used[1] - used[0] < 12, used
