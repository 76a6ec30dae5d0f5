# timeout: 120
"""nanotron-choices: the tokens of lm-evaluation-harness, lengths, and mistakes by their lines."""

import json
import re

import h5py
import numpy as np
import pytest
import tokenizers

ROWS = [{"question": "One and", "choices": ["two", "Grüße aus"], "answer": 1, "source": "ignored"},
        {"context": "blanks at the end  ", "choices": ["a", "b c", "d"], "answer": 0},
        {"context": " ", "choices": ["begins", "with nothing"], "answer": 0}]


@pytest.fixture
def questions(tmp_path):
    path = tmp_path / "questions.jsonl"
    path.write_text("\n\n".join(map(json.dumps, ROWS)) + "\n")
    return path


def read(path):
    with h5py.File(path) as file:
        columns = {name: file[name][:].astype(np.int64) for name in (
            "tokens", "documents", "choices/tokens", "choices/characters", "choices/bytes", "questions/choices",
            "questions/answer", "questions/line")}
        return columns, dict(file.attrs)


def requests(columns):
    """(context, choice) of every choice, as lists of ids."""
    ends = [*columns["documents"][1:], columns["tokens"].size]
    for begin, end, scored in zip(columns["documents"], ends, columns["choices/tokens"], strict=True):
        yield columns["tokens"][begin:end - scored].tolist(), columns["tokens"][end - scored:end].tolist()


def harness(encode, prefix, context, choice):
    """_encode_pair and the empty context of lm-evaluation-harness 0.4."""
    spaces = len(context) - len(context.rstrip())
    if spaces > 0:
        choice, context = context[-spaces:] + choice, context[:-spaces]
    if not context:
        return [prefix], encode(choice)
    return encode(context), encode(context + choice)[len(encode(context)):]


def pairs(delimiter=" "):
    return [(row.get("question", row.get("context")), delimiter + choice) for row in ROWS for choice in row["choices"]]


def test_no_link_is_followed(questions, tmp_path, tool):
    precious = tmp_path / "precious"
    precious.write_text("kept")
    (tmp_path / "q.h5.tmp").symlink_to(precious)
    tool("choices", questions, "-o", tmp_path / "q.h5")
    assert precious.read_text() == "kept" and not (tmp_path / "q.h5").is_symlink()


def test_bytes(questions, tmp_path, tool):
    said = tool("choices", questions, "-o", tmp_path / "q.h5").stdout
    columns, attributes = read(tmp_path / "q.h5")
    assert list(requests(columns)) == [harness(lambda text: list(text.encode()), 256, *pair) for pair in pairs()]
    texts = [choice for row in ROWS for choice in row["choices"]]
    assert columns["choices/characters"].tolist() == [len(text) for text in texts]
    assert columns["choices/bytes"].tolist() == [len(text.encode()) for text in texts]
    assert columns["questions/choices"].tolist() == [2, 3, 2] and columns["questions/answer"].tolist() == [1, 0, 0]
    assert columns["questions/line"].tolist() == [1, 3, 5]
    assert attributes["vocab_size"] == 257 and attributes["eos_token_id"] == 256
    assert "3 questions, 7 choices" in said and "at most 23 with the context" in said
    assert re.search(r"documents +7\n", tool("ls", tmp_path / "q.h5").stdout), "a token file like others"


def test_bpe_with_and_without_bos(questions, tmp_path, tool):
    text = tmp_path / "x.txt"
    text.write_text("One and two and three begins with nothing at the end of blanks. " * 40)
    tool("tokenize", text, "-o", tmp_path / "t.h5", "--train-bpe", "300", "--bos", "<s>")
    path = tmp_path / "t.tokenizer.json"
    package = tokenizers.Tokenizer.from_file(str(path))

    def encode(text):
        return package.encode(text, add_special_tokens=False).ids

    tool("choices", questions, "-o", tmp_path / "q.h5", "--tokenizer", path)
    columns, attributes = read(tmp_path / "q.h5")
    eos = package.token_to_id("<|endoftext|>")
    assert list(requests(columns)) == [harness(encode, eos, *pair) for pair in pairs()]
    with h5py.File(tmp_path / "t.h5") as file:
        assert file.attrs["tokenizer_sha256"] == attributes["tokenizer_sha256"]
    tool("choices", questions, "-o", tmp_path / "q.h5", "--tokenizer", path, "--bos", "<s>", "--delimiter", "\n")
    bos = package.token_to_id("<s>")
    for (context, choice), pair in zip(requests(read(tmp_path / "q.h5")[0]), pairs("\n"), strict=True):
        before, wanted = harness(encode, bos, *pair)
        assert (context, choice) == (before if before == [bos] else [bos, *before], wanted)


def test_beginnings_and_ends_are_those_of_the_token_file(questions, tmp_path, tool):
    text = tmp_path / "x.txt"
    text.write_text("One and two and three begins with nothing at the end of blanks. " * 40)
    tool("tokenize", text, "-o", tmp_path / "t.h5", "--train-bpe", "300", "--bos", "<s>", "--eos", "<e>")
    path = tmp_path / "t.tokenizer.json"
    for extra in (["--bos", "<s>", "--eos", "<e>"], ["--bos", "<s>", "--eos", "none"], ["--bos", "none", "--eos", "<e>"]):
        tool("tokenize", text, "-o", tmp_path / "t.h5", "--tokenizer", path, *extra)
        tool("choices", questions, "-o", tmp_path / "a.h5", "--tokenizer", path, *extra)
        tool("choices", questions, "-o", tmp_path / "b.h5", "--tokenizer", path, "--token-file", tmp_path / "t.h5")
        a, b = read(tmp_path / "a.h5"), read(tmp_path / "b.h5")
        assert all(np.array_equal(a[0][name], b[0][name]) for name in a[0])
        assert [a[1].get(key) for key in ("bos_token_id", "eos_token_id")] == \
            [b[1].get(key) for key in ("bos_token_id", "eos_token_id")]
    told = tool("choices", questions, "-o", tmp_path / "x.h5", "--token-file", tmp_path / "t.h5", rc=65).stderr
    assert "give the --tokenizer that made the file" in told
    told = tool("choices", questions, "-o", tmp_path / "x.h5", "--token-file", tmp_path / "t.h5", "--bos", "none", rc=2).stderr
    assert "leave them out" in told and not (tmp_path / "x.h5").exists()
    tool("tokenize", text, "-o", tmp_path / "t.h5")
    tool("choices", questions, "-o", tmp_path / "a.h5")
    tool("choices", questions, "-o", tmp_path / "b.h5", "--token-file", tmp_path / "t.h5")
    assert (tmp_path / "b.h5").exists() and np.array_equal(read(tmp_path / "a.h5")[0]["tokens"],
                                                           read(tmp_path / "b.h5")[0]["tokens"])


def test_a_tokenizer_that_adds_a_beginning_is_warned_of(questions, tmp_path, tool):
    (tmp_path / "x.txt").write_text("some words " * 40)
    tool("tokenize", tmp_path / "x.txt", "-o", tmp_path / "t.h5", "--train-bpe", "300", "--bos", "<s>")
    package = tokenizers.Tokenizer.from_file(str(tmp_path / "t.tokenizer.json"))
    quiet = tool("tokenize", tmp_path / "x.txt", "-o", tmp_path / "t.h5", "--tokenizer", tmp_path / "t.tokenizer.json")
    assert "warning" not in quiet.stderr
    package.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", package.token_to_id("<s>"))])
    package.save(str(tmp_path / "tokenizer.json"))
    for call in (["tokenize", tmp_path / "x.txt"], ["choices", questions]):
        for extra, warned in (([], True), (["--bos", "none"], False), (["--bos", "<s>"], False)):
            said = tool(*call, "-o", tmp_path / "y.h5", "--tokenizer", tmp_path / "tokenizer.json", *extra).stderr
            assert ("itself begins each text with <s>" in said and "--bos '<s>'" in said) == warned, said
    tool("tokenize", tmp_path / "x.txt", "-o", tmp_path / "t.h5", "--tokenizer", tmp_path, "--bos", "<s>")
    said = tool("choices", questions, "-o", tmp_path / "y.h5", "--tokenizer", tmp_path, "--token-file", tmp_path / "t.h5")
    assert "warning" not in said.stderr


def test_every_table_has_hashes(questions, tmp_path, tool):
    path = tmp_path / "q.h5"
    tool("choices", questions, "-o", path)
    assert "verified" in tool("verify", path).stdout
    with h5py.File(path) as file:
        places = {name: file[name].id.get_offset() for name in ("documents", "choices/bytes", "questions/answer")}
    good = path.read_bytes()
    for name, place in places.items():
        path.write_bytes(good[:place] + bytes([good[place] ^ 1]) + good[place + 1:])
        assert f"block 0 of /{name}" in tool("verify", path, rc=65).stderr
        tool("verify", path, "--replace")
        assert "verified" in tool("verify", path).stdout
    with h5py.File(path, "r+") as file:
        del file["hashes/choices"], file["hashes/questions"]
    assert "verified" in tool("verify", path).stdout, "a file of an older release"


@pytest.mark.parametrize("line, words", [
    ("{bad", "a line of JSON"), ("[1]", "an object"), ('{"choices": ["a", "b"], "answer": 0}', "neither"),
    ('{"context": "a", "question": "b", "choices": ["a", "b"], "answer": 0}', "context and question"),
    ('{"context": 1, "choices": ["a", "b"], "answer": 0}', "another type"),
    ('{"context": "a", "choices": ["a"], "answer": 0}', "two or more texts"),
    ('{"context": "a", "choices": ["a", ""], "answer": 0}', "two or more texts"),
    ('{"context": "a", "choices": ["a", "b"], "answer": 2}', "from 0 to 1"),
    ('{"context": "a", "choices": ["a", "b"], "answer": true}', "from 0 to 1"),
    ('{"context": "a", "choices": ["a", "b"]}', "from 0 to 1"),
    ('{"context": "a", "choices": ["a", "\\ud800"], "answer": 0}', "a lone surrogate")])
def test_mistakes_name_the_line(line, words, questions, tmp_path, tool):
    questions.write_text(json.dumps(ROWS[0]) + "\n" + line + "\n")
    error = tool("choices", questions, "-o", tmp_path / "q.h5", rc=65).stderr
    assert "questions.jsonl, line 2: expected" in error and words in error and "found:" in error
    assert not (tmp_path / "q.h5").exists() and not (tmp_path / "q.h5.tmp").exists()


def test_other_mistakes(questions, tmp_path, tool):
    out = tmp_path / "q.h5"
    assert "no such file" in tool("choices", tmp_path / "nowhere", "-o", out, rc=65).stderr
    assert "--eos: bytes have no named tokens" in tool("choices", questions, "-o", out, "--eos", "</s>", rc=64).stderr
    error = tool("choices", questions, "-o", out, "--eos", "none", rc=65).stderr
    assert "line 5, choice 1" in error and "--bos or --eos names the token of an empty context" in error
    assert "tokenizer.json" in tool("choices", questions, "-o", out, "--tokenizer", tmp_path / "x", rc=64).stderr
    questions.write_text("\n")
    assert "expected questions, found none" in tool("choices", questions, "-o", out, rc=65).stderr
    questions.write_bytes(b'{"context": "\xff"}\n')
    assert "text in UTF-8" in tool("choices", questions, "-o", out, rc=65).stderr
    assert not out.exists()
