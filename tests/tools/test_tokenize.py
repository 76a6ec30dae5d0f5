# timeout: 600
"""nanotron_tokenize: content, order, parallel runs, tokenizers, limits."""

import itertools
import json
import os
import subprocess
import sys

import conftest  # puts tools/ on the path
import h5py
import numpy as np
import pytest
import tokenizers

TEXTS = {
    "b/one.txt": "To be, or not to be:\nthat is the question.\n",
    "a/two.txt": "Grüße aus Köln, 你好, мир!\n" * 40,
    "a/code.h": "#pragma once\nint main();\n",
    "c/three.txt": "no newline at the end",
}


@pytest.fixture
def corpus(tmp_path):
    folder = tmp_path / "corpus"
    for name, text in TEXTS.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(text.encode("utf-8"))
    (folder / "binary.txt").write_bytes(b"\x7fELF\0\0")
    (folder / "empty.txt").write_bytes(b"")
    return folder


def read(path):
    with h5py.File(path, "r") as file:
        vocabulary = file["vocabulary/bytes"][:].tobytes()
        offsets = file["vocabulary/offsets"][:].astype(int)
        words = [vocabulary[a:b] for a, b in itertools.pairwise(offsets)]
        return file["tokens"][:], file["documents"][:], words, dict(file.attrs)


def documents(tokens, starts, words):
    ends = [*starts[1:], len(tokens)]
    return [b"".join(words[i] for i in tokens[int(a):int(b)]) for a, b in zip(starts, ends, strict=True)]


def test_bytes_follow_the_contract(corpus, tmp_path, tool):
    out = tmp_path / "t.h5"
    printed = tool("tokenize", corpus, "-o", out).stdout
    tokens, starts, words, attributes = read(out)
    assert tokens.dtype == np.uint16 and starts.dtype == np.uint64
    assert attributes["vocab_size"] == 257 == len(words)
    assert attributes["eos_token_id"] == 256
    assert attributes["tokenizer"] == b"bytes"
    expected = [TEXTS[name].encode() for name in sorted(TEXTS)]
    assert documents(tokens, starts, words) == expected
    assert (tokens == 256).sum() == len(TEXTS) and tokens[-1] == 256
    share = np.unique(tokens, return_counts=True)[1] / tokens.size
    entropy = -(share * np.log(share)).sum()
    assert attributes["unigram_entropy"] == pytest.approx(entropy, rel=1e-12)
    assert f"{entropy:.6f} nats" in printed and "tokens/s" in printed
    assert sorted(p.name for p in tmp_path.iterdir()) == ["corpus", "t.h5"]


@pytest.mark.parametrize(("name", "rc"), [("t.h5.tmp", 0), ("t.h5.documents.tmp", 71)])
def test_no_link_is_followed(name, rc, corpus, tmp_path, tool):
    precious = tmp_path / "precious"
    precious.write_text("kept")
    (tmp_path / name).symlink_to(precious)
    said = tool("tokenize", corpus, "-o", tmp_path / "t.h5", rc=rc).stderr
    assert precious.read_text() == "kept" and not (tmp_path / "t.h5").is_symlink()
    assert rc == 0 or name in said


def test_tokens_are_contiguous_for_parallel_reads(corpus, tmp_path, tool):
    tool("tokenize", corpus, "-o", tmp_path / "t.h5")
    with h5py.File(tmp_path / "t.h5", "r") as file:
        assert file["tokens"].chunks is None and file["tokens"].ndim == 1


@pytest.mark.parametrize("kind", ["bytes", "bpe"])
def test_result_does_not_depend_on_workers(kind, corpus, tmp_path, tool):
    extra = ["--train-bpe", "300"] if kind == "bpe" else []
    results = []
    for workers in (1, 2, 3):
        out = tmp_path / f"w{workers}.h5"
        tool("tokenize", corpus, "-o", out, "--workers", workers, "--chunk-mb", "0.0002", *extra)
        results.append(read(out))
    for tokens, starts, _, _ in results[1:]:
        assert np.array_equal(tokens, results[0][0])
        assert np.array_equal(starts, results[0][1])


@pytest.mark.parametrize("chunk_mb", ["0.000001", "0.00001", "0.0003", "1"])
def test_chunks_lose_nothing(chunk_mb, corpus, tmp_path, tool):
    tool("tokenize", corpus, "-o", tmp_path / "t.h5", "--chunk-mb", chunk_mb)
    tokens, starts, words, _ = read(tmp_path / "t.h5")
    assert documents(tokens, starts, words) == [TEXTS[n].encode() for n in sorted(TEXTS)]


def test_long_line_is_cut_between_characters(tmp_path, monkeypatch):
    from nanotron_tools import corpus as nt

    monkeypatch.setattr(nt, "BOUNDARY_SCAN", 16)
    text = ("äöü€" * 50).encode("utf-8")
    (tmp_path / "line.txt").write_bytes(text)
    chunks = nt.make_chunks(conftest.spans_of(tmp_path / "line.txt"), 21, None, "")
    pieces = [nt.read_chunk(chunk)[0] for chunk in chunks]
    assert b"".join(pieces) == text and len(pieces) > 5
    for piece in pieces:
        piece.decode("utf-8")


def test_glob_max_bytes_and_shuffle(corpus, tmp_path, tool):
    out = tmp_path / "t.h5"
    tool("tokenize", corpus, "-o", out, "--glob", "*.h", "--glob", "one.*")
    assert documents(*read(out)[:3]) == [TEXTS["a/code.h"].encode(), TEXTS["b/one.txt"].encode()]
    tool("tokenize", corpus, "-o", out, "--max-bytes", "30")
    tokens, starts, words, _ = read(out)
    assert documents(tokens, starts, words) == [TEXTS["a/code.h"].encode(),
                                                TEXTS["a/two.txt"].encode()[:5]]
    orders = set()
    for seed in range(6):
        tool("tokenize", corpus, "-o", out, "--shuffle-seed", seed)
        found = documents(*read(out)[:3])
        assert sorted(found) == sorted(text.encode() for text in TEXTS.values())
        orders.add(tuple(found))
    assert len(orders) > 1


def test_files_of_equal_names_are_all_used(tmp_path, tool):
    """Shards of one name in several folders: each once, by name, then by the order of the folders."""
    for folder in ("x", "y", "z"):
        (tmp_path / folder).mkdir()
        for name in ("part-0.txt", "part-1.txt"):
            (tmp_path / folder / name).write_text(f"{folder} {name}")
    (tmp_path / "link").symlink_to(tmp_path / "y")
    out, order = tmp_path / "t.h5", ("z", "x", "y")
    inputs = [tmp_path / folder for folder in order]
    expected = [f"{folder} part-{i}.txt".encode() for i in range(2) for folder in order]
    tool("tokenize", *inputs, tmp_path / "link", tmp_path / "z", "-o", out)
    assert documents(*read(out)[:3]) == expected
    seeded = set()
    for seed in range(4):
        for _ in range(2):
            tool("tokenize", *inputs, "-o", out, "--shuffle-seed", seed)
            found = documents(*read(out)[:3])
            assert sorted(found) == sorted(expected)
            seeded.add((seed, tuple(found)))
    assert len(seeded) == 4 and len({found for _, found in seeded}) > 1


def test_eos_and_bos(corpus, tmp_path, tool):
    """Each option does something or is refused."""
    out, names = tmp_path / "t.h5", ("<end>", "<begin>")
    tool("tokenize", corpus, "-o", out, "--train-bpe", "300", "--eos", names[0], "--bos", names[1])
    tokens, starts, words, attributes = read(out)
    package = tokenizers.Tokenizer.from_file(str(tmp_path / "t.tokenizer.json"))
    eos, bos = (package.token_to_id(name) for name in names)
    assert (attributes["eos_token_id"], attributes["bos_token_id"]) == (eos, bos)
    ends = [*starts[1:].astype(int), len(tokens)]
    assert all(tokens[int(a)] == bos and tokens[b - 1] == eos for a, b in zip(starts, ends, strict=True))
    assert (tokens == bos).sum() == (tokens == eos).sum() == len(TEXTS) == starts.size
    assert documents(tokens, starts, words) == [TEXTS[n].encode() for n in sorted(TEXTS)]
    again = tmp_path / "again.h5"
    tool("tokenize", corpus, "-o", again, "--tokenizer", tmp_path / "t.tokenizer.json", "--eos", names[1], "--bos",
         "none", "--chunk-mb", "0.0001")
    tokens, _, _, attributes = read(again)
    assert "bos_token_id" not in attributes and attributes["eos_token_id"] == bos and eos not in tokens
    tool("tokenize", corpus, "-o", out, "--train-bpe", "256", "--eos", "none")
    tokens, _, words, attributes = read(out)
    assert "eos_token_id" not in attributes and attributes["vocab_size"] == 256
    assert tokens.size == sum(len(text.encode()) for text in TEXTS.values())
    tool("tokenize", corpus, "-o", out, "--eos", "none", "--bos", "none")
    tokens, starts, words, attributes = read(out)
    assert "eos_token_id" not in attributes and attributes["vocab_size"] == 256 == len(words)
    assert documents(tokens, starts, words) == [TEXTS[n].encode() for n in sorted(TEXTS)] and tokens.max() < 256
    for option in ("--eos", "--bos"):
        error = tool("tokenize", corpus, "-o", out, option, "</s>", rc=64).stderr
        assert option in error and "'</s>'" in error and "none" in error
        error = tool("tokenize", corpus, "-o", out, "--tokenizer", tmp_path / "t.tokenizer.json", "--eos", "none",
                     option, "<nothing>", rc=64).stderr
        assert f"{option}: t.tokenizer.json has no token '<nothing>'" in error
    assert "258 or more" in tool("tokenize", corpus, "-o", out, "--train-bpe", "257", "--bos", "<s>", rc=64).stderr


def test_jsonl_has_bos_for_each_line(tmp_path, tool):
    (tmp_path / "d.jsonl").write_text("".join(json.dumps({"text": f"line {i}"}) + "\n" for i in range(20)))
    out = tmp_path / "t.h5"
    tool("tokenize", tmp_path / "d.jsonl", "-o", out, "--train-bpe", "260", "--bos", "<s>", "--chunk-mb", "0.0001")
    tokens, starts, _, attributes = read(out)
    assert starts.size == 20 and (tokens[starts.astype(int)] == attributes["bos_token_id"]).all()
    assert (tokens == attributes["bos_token_id"]).sum() == 20 == (tokens == attributes["eos_token_id"]).sum()


def test_special_names_of_a_text_are_no_tokens(tmp_path, tool):
    (tmp_path / "t.jsonl").write_text(json.dumps({"text": "hello <|endoftext|> world"}) + "\n")
    tool("tokenize", tmp_path / "t.jsonl", "--train-bpe", 300, "-o", tmp_path / "t.h5")
    for extra, count in (([], 1), (["--parse-special"], 2)):
        tool("tokenize", tmp_path / "t.jsonl", "--tokenizer", tmp_path / "t.tokenizer.json", "-o", tmp_path / "t.h5", *extra)
        tokens, starts, words, attributes = read(tmp_path / "t.h5")
        assert (tokens == attributes["eos_token_id"]).sum() == count and starts.size == 1
        assert documents(tokens, starts, words) == [b"hello <|endoftext|> world" if count == 1 else b"hello  world"]
    for extra in ([], ["--chat", "chatml", "--tokenizer", tmp_path / "t.tokenizer.json"]):
        told = tool("tokenize", tmp_path / "t.jsonl", "--parse-special", "-o", tmp_path / "x.h5", *extra, rc=2).stderr
        assert "--parse-special: " in told


def test_hash_of_the_tokenizer(corpus, tmp_path, tool):
    """Equal for equal tokenizers, whatever the file's name and formatting; always there."""
    def hash_of(*arguments):
        tool("tokenize", corpus, "-o", tmp_path / "h.h5", "--eos", "none", *arguments)
        found = read(tmp_path / "h.h5")[3]["tokenizer_sha256"].decode()
        assert len(found) == 64 and set(found) <= set("0123456789abcdef")
        return found

    tool("tokenize", corpus, "-o", tmp_path / "t.h5")
    plain = read(tmp_path / "t.h5")[3]["tokenizer_sha256"].decode()
    assert plain == hash_of()  # with and without an end of text the same bytes have the same ids
    tool("tokenize", corpus, "-o", tmp_path / "t.h5", "--train-bpe", "300")
    path, other = tmp_path / "t.tokenizer.json", tmp_path / "folder" / "tokenizer.json"
    other.parent.mkdir()
    first = hash_of("--tokenizer", path)
    assert first == read(tmp_path / "t.h5")[3]["tokenizer_sha256"].decode()
    content = json.loads(path.read_text())

    def changed(change):
        copy = json.loads(path.read_text())
        change(copy)
        other.write_text(json.dumps(copy, ensure_ascii=True, sort_keys=True))
        return hash_of("--tokenizer", other.parent)

    assert changed(lambda c: None) == first
    assert changed(lambda c: c["model"].update(merges=[" ".join(m) if isinstance(m, list) else m.split(" ")
                                                       for m in c["model"]["merges"]])) == first
    assert changed(lambda c: c.update(truncation={"direction": "Right", "max_length": 5, "strategy": "LongestFirst",
                                                  "stride": 0})) == first
    assert changed(lambda c: c["pre_tokenizer"].update(add_prefix_space=True)) != first
    assert changed(lambda c: c["model"]["merges"].pop()) != first
    assert changed(lambda c: c.update(normalizer={"type": "Lowercase"})) != first
    assert changed(lambda c: c["added_tokens"].append(
        {"id": 300, "content": "<new>", "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
         "special": True})) != first
    assert content["model"]["type"] == "BPE"


def test_jsonl_has_a_document_per_line(tmp_path, tool):
    lines = [{"text": f"document {i}\nsecond line"} for i in range(30)]
    path = tmp_path / "data.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    for chunk in ("0.00007", "1"):
        tool("tokenize", path, "-o", tmp_path / "t.h5", "--chunk-mb", chunk)
        found = documents(*read(tmp_path / "t.h5")[:3])
        assert found == [line["text"].encode() for line in lines]
    tool("tokenize", path, "-o", tmp_path / "t.h5", "--max-bytes", "100")
    assert documents(*read(tmp_path / "t.h5")[:3]) == [b"document 0\nsecond line",
                                                       b"document 1\nsecond line"]
    path.write_text('{"content": "x"}\n')
    message = tool("tokenize", path, "-o", tmp_path / "t.h5", rc=65).stderr
    assert "no text field 'text'" in message


def test_trained_bpe_round_trips(corpus, tmp_path, tool):
    out = tmp_path / "t.h5"
    tool("tokenize", corpus, "-o", out, "--train-bpe", "320")
    tokens, starts, words, attributes = read(out)
    assert attributes["vocab_size"] == len(words) <= 320
    assert documents(tokens, starts, words) == [TEXTS[n].encode() for n in sorted(TEXTS)]
    assert tokens.size < sum(len(text.encode()) for text in TEXTS.values())
    path = tmp_path / "t.tokenizer.json"
    package = tokenizers.Tokenizer.from_file(str(path))
    first = package.encode(TEXTS["a/code.h"]).ids
    assert tokens[:len(first)].tolist() == first
    again = tmp_path / "again.h5"
    tool("tokenize", corpus, "-o", again, "--tokenizer", path)
    assert np.array_equal(read(again)[0], tokens)
    assert attributes["tokenizer_sha256"] == read(again)[3]["tokenizer_sha256"]


def test_sentencepiece_like_vocabulary():
    from nanotron_tools import tokenizers as nt

    model = tokenizers.models.BPE(
        vocab={"<unk>": 0, "</s>": 1, "<0x0A>": 2, "▁": 3, "a": 4, "b": 5, "▁a": 6},
        merges=[("▁", "a")], unk_token="<unk>", byte_fallback=True)
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.normalizer = tokenizers.normalizers.Replace(" ", "▁")
    tokenizer.decoder = tokenizers.decoders.Sequence([
        tokenizers.decoders.Replace("▁", " "), tokenizers.decoders.ByteFallback(),
        tokenizers.decoders.Fuse()])
    tokenizer.add_special_tokens(["</s>", "<unk>"])
    made = nt.HuggingFaceTokenizer("sp", tokenizer.to_str(), None)
    assert made.eos == 1
    assert made.vocabulary() == [b"", b"", b"\n", b" ", b"a", b"b", b" a"]
    words = made.vocabulary()
    assert b"".join(words[i] for i in made.encode(b" ab a\nb")) == b" ab a\nb"


def test_large_vocabulary_is_uint32(tmp_path, tool):
    words = {f"w{i}": i for i in range(70000)} | {"<eos>": 70000, "[UNK]": 70001}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "x.txt").write_text("w1 w69999 w5")
    tool("tokenize", tmp_path / "x.txt", "-o", tmp_path / "t.h5", "--tokenizer", tmp_path)
    tokens, _, _, attributes = read(tmp_path / "t.h5")
    assert tokens.dtype == np.uint32 and tokens.tolist() == [1, 69999, 5, 70000]
    assert attributes["vocab_size"] == 70002
    tool("tokenize", tmp_path / "x.txt", "-o", tmp_path / "t.h5", "--tokenizer", tmp_path,
         "--eos", "none")
    tokens, _, _, attributes = read(tmp_path / "t.h5")
    assert tokens.tolist() == [1, 69999, 5] and "eos_token_id" not in attributes


def test_mistakes_are_told(corpus, tmp_path, tool):
    out = tmp_path / "t.h5"
    assert "no such file" in tool("tokenize", tmp_path / "nowhere", "-o", out, rc=65).stderr
    assert "no text files" in tool("tokenize", corpus, "-o", out, "--glob", "*.x", rc=65).stderr
    assert "tokenizer.json" in tool("tokenize", corpus, "-o", out, "--tokenizer",
                                    tmp_path / "no.json", rc=64).stderr
    (tmp_path / "sp.model").write_bytes(b"\n\x0e\n\x05<unk>\x15\0\0\0\0\x18\x02" + bytes(range(128, 200)))
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "tokenizer.model").write_bytes((tmp_path / "sp.model").read_bytes())
    for path in (tmp_path / "sp.model", tmp_path / "folder"):
        for call in (["tokenize", corpus], ["choices", tmp_path / "no.jsonl"]):
            told = tool(*call, "-o", out, "--tokenizer", path, rc=65).stderr
            assert "SentencePiece" in told and "import AutoTokenizer" in told and ".model: expected" in told
    (tmp_path / "folder" / "tokenizer.model").unlink()
    (tmp_path / "folder").rmdir()
    (tmp_path / "sp.model").unlink()
    (tmp_path / "bad.json").write_text("{}")
    assert "not a tokenizer.json" in tool("tokenize", corpus, "-o", out, "--tokenizer",
                                          tmp_path / "bad.json", rc=65).stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.json", "corpus"]


def test_a_bad_line_ends_all_workers(tmp_path, tool):
    (tmp_path / "t.jsonl").write_text('{"text": "word word"}\n' * 4000 + "{bad\n" + '{"text": "more"}\n' * 4000)
    result = tool("tokenize", tmp_path / "t.jsonl", "--workers", 2, "--chunk-mb", 0.004, "-o", tmp_path / "t.h5", rc=65)
    assert "t.jsonl, line 4001, byte 88000: expected a line of JSON" in result.stderr and "{bad" in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["t.jsonl"]


def test_a_worker_that_is_killed_ends_the_tool(tmp_path):
    """As by the kernel where memory runs out; here in its second chunk."""
    (tmp_path / "t.txt").write_text("some words\n" * 2000)
    script = tmp_path / "killed.py"
    script.write_text(f"""
import os, signal, sys
sys.path.insert(0, {str(conftest.ROOT / "tools")!r})
from nanotron_tools import common, encode, tokenize

def encode_or_die(chunk):
    if chunk.start > 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return encode._encoder.encode(chunk)

if __name__ == "__main__":
    encode.encode_in_worker = encode_or_die
    sys.exit(common.run_main(tokenize.main))
""")
    result = subprocess.run([sys.executable, script, tmp_path / "t.txt", "--workers", "2", "--chunk-mb", "0.004", "-o",
                             tmp_path / "t.h5"], capture_output=True, text=True, timeout=60)
    assert result.returncode == 71 and "one was killed" in result.stderr, result.stdout + result.stderr
    assert "Traceback" not in result.stderr and sorted(p.name for p in tmp_path.iterdir()) == ["killed.py", "t.txt"]


def test_a_line_that_max_bytes_cuts_is_left_out_wherever_it_begins(tmp_path, tool):
    line = json.dumps({"text": "x" * 987}) + "\n"
    (tmp_path / "t.jsonl").write_text(line * 30)
    for limit in (10 * len(line) + 40, 12_040, 12_900):  # chunks of 4000 bytes: 12,040 lies early in one
        tool("tokenize", tmp_path / "t.jsonl", "--max-bytes", limit, "--chunk-mb", 0.004, "-o", tmp_path / "t.h5")
        assert len(read(tmp_path / "t.h5")[1]) == limit // len(line)


def test_names_that_are_not_utf8(tmp_path, tool):
    folder = tmp_path / "old"
    folder.mkdir()
    name = os.fsencode(str(folder)) + b"/gr\xfc\xdfe.txt"
    with open(name, "wb") as file:
        file.write(b"text\n")
    tool("tokenize", folder, "--shuffle-seed", 1, "-o", tmp_path / "t.h5")
    tool("tokenize", os.fsdecode(name), "-o", tmp_path / "t.h5")
    assert len(read(tmp_path / "t.h5")[1]) == 1


LATIN1 = "caf\xe9 au lait, a good line\n".encode("latin-1")


@pytest.mark.parametrize("name, data, told, left", [
    ("x.txt", LATIN1, "x.txt, byte 3: expected text in UTF-8", 1),
    ("x.txt.csv", b"text\n" + LATIN1.replace(b",", b"") + b"b\n", "line 2: expected text in UTF-8\n  found:  the byte 0xe9", 2),
    ("x.jsonl", b'{"text": "a"}\n{"text": "' + LATIN1.strip() + b'"}\n', "x.jsonl, line 2, byte 27: expected text in UTF-8", 2),
    ("x.json", b'[{"text": "a"},\n{"text": "' + LATIN1.strip() + b'"}]\n', "x.json, byte 29: expected text in UTF-8", None),
], ids=["text", "csv", "lines", "array"])
@pytest.mark.parametrize("workers", [1, 2])
def test_latin1_is_refused_at_its_byte(name, data, told, left, workers, corpus, tmp_path, tool):
    """By each worker; --skip-bad leaves the record, or the small text, out."""
    tool("tokenize", corpus, "-o", tmp_path / "b.h5", "--train-bpe", 300)
    (tmp_path / "good.txt").write_text("a good text")
    (tmp_path / name).write_bytes(data)
    call = ["tokenize", tmp_path / name, tmp_path / "good.txt", "--workers", workers, "-o", tmp_path / "t.h5"]
    bpe = ["--tokenizer", tmp_path / "b.tokenizer.json"]
    for extra in (bpe, ["--train-bpe", 300]):
        found = tool(*call, *extra, rc=65).stderr
        assert told in found and "iconv" in found + "iconv" * name.endswith("csv") and "0xe9" in found, found
    if left is None:
        return
    found = tool(*call, *bpe, "--skip-bad", 1)
    assert "1 records left out" in found.stderr and len(read(tmp_path / "t.h5")[1]) == left
    tool(*call, "--train-bpe", 300, "--skip-bad", 1)
    if name == "x.txt":  # bytes are what they are
        tool(*call)
        assert documents(*read(tmp_path / "t.h5")[:3])[1] == LATIN1


def test_a_large_text_in_part_latin1_is_refused_whole(corpus, tmp_path, tool):
    """--skip-bad leaves no part of a document out."""
    tool("tokenize", corpus, "-o", tmp_path / "b.h5", "--train-bpe", 300)
    (tmp_path / "x.txt").write_bytes(b"some words\n" * 3000 + LATIN1 + b"some words\n" * 3000)
    for workers in (1, 2):
        found = tool("tokenize", tmp_path / "x.txt", "--workers", workers, "-o", tmp_path / "t.h5", "--chunk-mb", 0.01, "--skip-bad",
                     5, "--tokenizer", tmp_path / "b.tokenizer.json", rc=65).stderr
        assert "x.txt, byte 33003: expected text in UTF-8" in found and not (tmp_path / "t.h5").exists()


def test_a_line_longer_than_all_chunks(corpus, tmp_path, tool):
    tool("tokenize", corpus, "-o", tmp_path / "b.h5", "--train-bpe", 300)
    (tmp_path / "x.txt").write_text("".join(f"word{i} " for i in range(20_000)))
    (tmp_path / "y.jsonl").write_text(json.dumps({"text": (tmp_path / "x.txt").read_text()}) + '\n{"text": "b"}\n')
    found = []
    for workers, chunk in ((1, 4), (2, 0.01)):
        tool("tokenize", tmp_path / "x.txt", tmp_path / "y.jsonl", "--workers", workers, "--chunk-mb", chunk, "-o",
             tmp_path / "t.h5", "--tokenizer", tmp_path / "b.tokenizer.json")
        found.append([part.tolist() for part in read(tmp_path / "t.h5")[:2]])
    assert found[0] == found[1] and len(found[0][1]) == 3
