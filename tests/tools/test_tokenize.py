# timeout: 300
"""nanotron_tokenize: content, order, parallel runs, tokenizers, limits."""

import json
import sys

import conftest  # noqa: F401, puts tools/ on the path
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
        words = [vocabulary[a:b] for a, b in zip(offsets[:-1], offsets[1:])]
        return file["tokens"][:], file["documents"][:], words, dict(file.attrs)


def documents(tokens, starts, words):
    ends = [*starts[1:], len(tokens)]
    return [b"".join(words[i] for i in tokens[int(a):int(b)]) for a, b in zip(starts, ends)]


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
    import nanotron_tokenize as nt

    monkeypatch.setattr(nt, "BOUNDARY_SCAN", 16)
    text = ("äöü€" * 50).encode("utf-8")
    (tmp_path / "line.txt").write_bytes(text)
    chunks = nt.make_chunks([("line.txt", tmp_path / "line.txt")], 21, None, "")
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
    import nanotron_tokenizers as nt

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
    (tmp_path / "bad.json").write_text("{}")
    assert "not a tokenizer.json" in tool("tokenize", corpus, "-o", out, "--tokenizer",
                                          tmp_path / "bad.json", rc=65).stderr
    assert not out.exists() and not (tmp_path / "t.h5.raw").exists()


if __name__ == "__main__":
    sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", __file__]))
