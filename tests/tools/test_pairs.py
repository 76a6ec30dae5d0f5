# timeout: 120
"""nanotron-pairs: the tokens of TRL's DPOTrainer, with texts and with messages, and mistakes by their lines."""

import json
import os
import re
import stat

import conftest
import h5py
import numpy as np
import pytest
import tokenizers

TEXTS = [{"prompt": "One and", "chosen": " two", "rejected": " Grüße aus", "source": "ignored"},
         {"chosen": "Say it: yes", "rejected": "Say it: no and no"},
         {"prompt": "", "chosen": "begins", "rejected": "with nothing"}]


def write(path, rows):
    path.write_text("\n\n".join(map(json.dumps, rows)) + "\n")
    return path


def read(path):
    with h5py.File(path) as file:
        tokens, mask, begins, lines = (file[name][:].astype(np.int64) for name in
                                       ("tokens", "loss_mask", "documents", "pairs"))
        assert "pairs" in file["hashes"] and "loss_mask" in file["hashes"]
    documents = list(zip(np.split(tokens, begins[1:]), np.split(mask, begins[1:]), strict=True))
    return [(tuple(map(list, chosen)), tuple(map(list, rejected)))
            for chosen, rejected in zip(documents[::2], documents[1::2], strict=True)], lines.tolist()


def as_trl(encode, prompt, answers, eos, bos=None):
    """tokenize_fn of DPOTrainer 1.16 without its tokenizer: (tokens, completion mask) of each answer."""
    begin = [] if bos is None else [bos]
    before, whole = begin + encode(prompt), [begin + encode(prompt + answer) + [eos] for answer in answers]
    size = min(next((i for i, (a, b) in enumerate(zip(before, each, strict=False)) if a != b),
                    min(len(before), len(each))) for each in whole)
    return tuple((each, [0] * size + [1] * (len(each) - size)) for each in whole)


def test_bytes(tmp_path, tool):
    said = tool("pairs", write(tmp_path / "p.jsonl", TEXTS), "-o", tmp_path / "p.h5").stdout
    found, lines = read(tmp_path / "p.h5")
    wanted = [("One and", (" two", " Grüße aus")), ("Say it:", (" yes", " no and no")), ("", ("begins", "with nothing"))]
    assert found == [as_trl(lambda text: list(text.encode()), prompt, answers, 256) for prompt, answers in wanted]
    assert lines == [1, 3, 5]
    longest = max(len(a[0]) + len(b[0]) - 2 for a, b in found)
    assert "3 pairs" in said and f"takes {longest} positions: data%sequence_length" in said
    assert re.search(r"documents +6\n", tool("ls", tmp_path / "p.h5").stdout), "a token file like others"
    tool("verify", tmp_path / "p.h5")


def bpe(tmp_path, tool):
    text = tmp_path / "x.txt"
    text.write_text("One and two and three begins with nothing and Say it: yes no <|im_start|>user assistant. " * 40)
    tool("tokenize", text, "-o", tmp_path / "t.h5", "--train-bpe", "320", "--bos", "<s>")
    return tmp_path / "t.tokenizer.json"


def test_texts_of_a_bpe(tmp_path, tool):
    path = bpe(tmp_path, tool)
    package = tokenizers.Tokenizer.from_file(str(path))

    def encode(text):
        return package.encode(text, add_special_tokens=False).ids

    # A prompt that ends within a token of the whole text; an answer that ends with the name of the eos already.
    rows = [{"prompt": "One an", "chosen": "d two", "rejected": "d three"},
            {"prompt": "Say it:", "chosen": " yes<|endoftext|>", "rejected": " no"}]
    write(tmp_path / "p.jsonl", rows)
    eos, bos = package.token_to_id("<|endoftext|>"), package.token_to_id("<s>")
    for extra, begin in (([], None), (["--bos", "<s>"], bos)):
        tool("pairs", tmp_path / "p.jsonl", "-o", tmp_path / "p.h5", "--tokenizer", path, *extra)
        assert read(tmp_path / "p.h5")[0] == [as_trl(encode, "One an", ("d two", "d three"), eos, begin),
                                              as_trl(encode, "Say it:", (" yes", " no"), eos, begin)]


def test_messages(tmp_path, tool):
    talk = {"chosen": [{"role": "user", "content": "One and"}, {"role": "assistant", "content": "two"}],
            "rejected": [{"role": "user", "content": "One and"}, {"role": "assistant", "content": "three"}]}
    write(tmp_path / "p.jsonl", [talk])
    said = tool("pairs", tmp_path / "p.jsonl", "-o", tmp_path / "p.h5", rc=65).stderr
    assert "line 1: expected texts; or --chat" in said
    text = tmp_path / "talks.jsonl"
    text.write_text(json.dumps({"messages": talk["chosen"]}) + "\n")
    tool("tokenize", text, "-o", tmp_path / "t.h5", "--chat", "chatml", "--train-bpe", "300")
    path = tmp_path / "t.tokenizer.json"
    package = tokenizers.Tokenizer.from_file(str(path))
    tool("pairs", tmp_path / "p.jsonl", "-o", tmp_path / "p.h5", "--tokenizer", path, "--chat", "chatml")
    for (tokens, mask), word in zip(read(tmp_path / "p.h5")[0][0], ("two", "three"), strict=True):
        whole = f"<|im_start|>user\nOne and<|im_end|>\n<|im_start|>assistant\n{word}<|im_end|>\n"
        assert tokens == package.encode(whole, add_special_tokens=False).ids
        counted = [token for token, counts in zip(tokens, mask, strict=True) if counts]
        assert package.decode(counted, skip_special_tokens=False) == f"{word}<|im_end|>\n", "as TRL, to the end"


def test_max_length(tmp_path, tool):
    write(tmp_path / "p.jsonl", TEXTS)
    said = tool("pairs", tmp_path / "p.jsonl", "-o", tmp_path / "p.h5", "--max-length", "8").stdout
    found, lines = read(tmp_path / "p.h5")
    assert lines == [1, 3, 5] and all(len(tokens) <= 8 for pair in found for tokens, _ in pair)
    assert found[0][0] == (list(b"One and "), [0] * 7 + [1]), "the beginning is kept"
    assert "3 pairs lost tokens at their end, 0 were left out" in said
    said = tool("pairs", tmp_path / "p.jsonl", "-o", tmp_path / "p.h5", "--max-length", "7").stdout
    assert read(tmp_path / "p.h5")[1] == [5] and "2 were left out" in said
    assert "2 or more" in tool("pairs", tmp_path / "p.jsonl", "-o", tmp_path / "p.h5", "--max-length", "1", rc=2).stderr


@pytest.mark.parametrize("line, words", [
    ("{bad", "a line of JSON"), ("[1]", "an object"), ('{"prompt": "a", "chosen": "b"}', "two texts"),
    ('{"prompt": "a", "chosen": "b", "rejected": ["c"]}', "two texts"),
    ('{"prompt": ["a"], "chosen": "b", "rejected": "c"}', "a text in the field prompt"),
    ('{"prompt": "a", "chosen": "b", "rejected": "\\ud800"}', "a lone surrogate")])
def test_wrong_lines(tmp_path, tool, line, words):
    (tmp_path / "p.jsonl").write_text(json.dumps(TEXTS[0]) + "\n" + line + "\n")
    error = tool("pairs", tmp_path / "p.jsonl", "-o", tmp_path / "p.h5", rc=65).stderr
    assert "line 2: expected" in error and words in error and not (tmp_path / "p.h5").exists()


def test_only_files_are_replaced(tmp_path, tool):
    os.mkfifo(tmp_path / "pipe")
    error = tool("pairs", write(tmp_path / "p.jsonl", TEXTS), "-o", tmp_path / "pipe", rc=65).stderr
    assert "a folder or a device" in error and stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)


def test_answers_without_tokens(tmp_path, tool):
    write(tmp_path / "p.jsonl", [{"prompt": "a", "chosen": "", "rejected": "b"}])
    error = tool("pairs", tmp_path / "p.jsonl", "-o", tmp_path / "p.h5", "--eos", "none", rc=65).stderr
    assert "line 1, chosen: expected an answer of at least one token" in error
    assert "no such file" in tool("pairs", tmp_path / "none", "-o", tmp_path / "p.h5", rc=65).stderr
    (tmp_path / "p.jsonl").write_text("\n")
    assert "expected pairs, found none" in tool("pairs", tmp_path / "p.jsonl", "-o", tmp_path / "p.h5", rc=65).stderr


def test_the_golden_file_is_what_the_tool_writes(tmp_path, tool):
    """make_preference_golden.py has compared it with TRL's tokens."""
    folder = conftest.ROOT / "tests/golden/preference"
    tool("pairs", folder / "pairs.jsonl", "--tokenizer", folder / "tokenizer.json", "--max-length", "13", "-o",
         tmp_path / "p.h5")
    assert read(tmp_path / "p.h5") == read(folder / "pairs.h5")
