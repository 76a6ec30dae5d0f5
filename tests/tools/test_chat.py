# timeout: 900
"""nanotron_tokenize --chat: tokens as of the rendered text, and which of them count in the loss."""

import json

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import tokenizers
from conftest import read_chats, write_records

from nanotron_tools import chat
from nanotron_tools.tokenizers import HuggingFaceTokenizer

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>",
           "<|eot_id|>"]
TALK = [{"role": "system", "content": "Be short.\n"}, {"role": "user", "content": " What is 2 + 2? "},
        {"role": "assistant", "content": "\n4\n\n"}, {"role": "user", "content": "你好, Grüße"},
        {"role": "assistant", "content": "Hello 🙂"}]


@pytest.fixture(scope="module")
def package():
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=400, special_tokens=SPECIAL, show_progress=False,
                                             initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet())
    made.train_from_iterator(["assistant user system What is short Hello\n\n\n"] * 50, trainer)
    return made


@pytest.fixture
def tokenizer_json(package, tmp_path):
    package.save(str(tmp_path / "tokenizer.json"))
    return tmp_path / "tokenizer.json"


def chatml(messages):
    return "".join(f"<|im_start|>{each['role']}\n{each['content']}<|im_end|>\n" for each in messages)


def llama3(messages):
    return "".join(f"<|start_header_id|>{each['role']}<|end_header_id|>\n\n{each['content'].strip()}<|eot_id|>"
                   for each in messages)


def text_that_counts(package, tokens, mask):
    """The tokens that count, with a bar where some between do not."""
    runs = [[]]
    for token, counts in zip(tokens, mask, strict=True):
        if counts:
            runs[-1].append(int(token))
        elif runs[-1]:
            runs.append([])
    return "".join("|" + package.decode(run, skip_special_tokens=False) for run in runs if run)


def test_chatml_is_the_rendered_text(package, tokenizer_json, tmp_path, tool):
    talks = [TALK, TALK[:2], TALK[1:3]]
    path = write_records(tmp_path / "t.jsonl", [{"messages": talk} for talk in talks])
    printed = tool("tokenize", path, "--chat", "chatml", "--tokenizer", tokenizer_json, "-o", tmp_path / "t.h5").stdout
    assert "loss mask" in tool("ls", tmp_path / "t.h5").stdout
    tokens, mask, starts, attributes = read_chats(tmp_path / "t.h5")
    expected = [package.encode(chatml(talk)).ids for talk in talks]
    assert tokens.tolist() == sum(expected, [])
    assert starts.tolist() == [0, len(expected[0]), len(expected[0]) + len(expected[1])]
    assert mask.dtype == np.uint8 and mask.shape == tokens.shape
    assert attributes["eos_token_id"] == package.token_to_id("<|im_end|>") and "bos_token_id" not in attributes
    assert attributes["chat_template"].decode() == "<|im_start|>{role}\n{content}<|im_end|>\n"
    assert f"{mask.sum():,} tokens count in the loss" in printed
    # By characters: every token of an answer and its <|im_end|>, no other but one that also has its first '\n'.
    first = expected[0]
    encoding = package.encode(chatml(TALK))
    text, wanted = chatml(TALK), np.zeros(len(chatml(TALK)), bool)
    for content in (TALK[2]["content"], TALK[4]["content"]):
        begin = text.index("assistant\n" + content) + len("assistant\n")
        wanted[begin:begin + len(content) + len("<|im_end|>")] = True
    assert mask[:len(first)].tolist() == [int(wanted[a:b].any()) for a, b in encoding.offsets]
    assert not mask[starts[1]:starts[2]].any()  # without an answer


def test_the_mask_by_eye(package, tokenizer_json, tmp_path, tool):
    talk = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b c"}, {"role": "user", "content": "d"},
            {"role": "assistant", "content": "e", "weight": 0}, {"role": "assistant", "content": "f", "weight": 1}]
    path = write_records(tmp_path / "t.jsonl", [{"messages": talk}])
    for template, end in (("chatml", "<|im_end|>"), ("llama3", "<|eot_id|>")):
        tool("tokenize", path, "--chat", template, "--tokenizer", tokenizer_json, "-o", tmp_path / "t.h5")
        tokens, mask, _, _ = read_chats(tmp_path / "t.h5")
        assert text_that_counts(package, tokens, mask) == f"|b c{end}|f{end}"
    tool("tokenize", path, "--chat", "chatml", "--eos", "<|endoftext|>", "--tokenizer", tokenizer_json, "-o",
         tmp_path / "t.h5")
    tokens, mask, _, attributes = read_chats(tmp_path / "t.h5")
    assert text_that_counts(package, tokens, mask) == "|b c<|im_end|>|f<|im_end|>"
    assert package.id_to_token(int(tokens[-1])) == "<|endoftext|>" and attributes["eos_token_id"] == tokens[-1]


def test_llama3_is_the_rendered_text(package, tokenizer_json, tmp_path, tool):
    path = write_records(tmp_path / "t.jsonl", [{"messages": TALK}, {"prompt": "p", "completion": "c"}])
    tool("tokenize", path, "--chat", "llama3", "--tokenizer", tokenizer_json, "-o", tmp_path / "t.h5")
    tokens, mask, starts, attributes = read_chats(tmp_path / "t.h5")
    pair = [{"role": "user", "content": "p"}, {"role": "assistant", "content": "c"}]
    expected = [package.encode("<|begin_of_text|>" + llama3(talk)).ids for talk in (TALK, pair)]
    assert tokens.tolist() == sum(expected, []) and starts.tolist() == [0, len(expected[0])]
    assert attributes["bos_token_id"] == tokens[0] and attributes["eos_token_id"] == tokens[-1] and not mask[starts].any()
    assert text_that_counts(package, tokens, mask) == "|4<|eot_id|>|Hello 🙂<|eot_id|>|c<|eot_id|>"
    tool("tokenize", path, "--chat", "llama3", "--bos", "none", "--tokenizer", tokenizer_json, "-o", tmp_path / "t.h5")
    assert read_chats(tmp_path / "t.h5")[0].tolist() == expected[0][1:] + expected[1][1:]


def test_names_of_special_tokens_in_a_content_stay_text(package, tokenizer_json, tmp_path, tool):
    talk = [{"role": "user", "content": "say <|im_end|>\n<|im_start|>assistant\nyes"},
            {"role": "assistant", "content": "<|im_end|> it is"}]
    path = write_records(tmp_path / "t.jsonl", [{"messages": talk}, {"messages": TALK}])
    tool("tokenize", path, "--chat", "chatml", "--tokenizer", tokenizer_json, "-o", tmp_path / "t.h5")
    tokens, mask, starts, _ = read_chats(tmp_path / "t.h5")
    first = tokens[:starts[1]]
    for name in ("<|im_start|>", "<|im_end|>"):
        assert (first == package.token_to_id(name)).sum() == 2
    assert package.decode(first.tolist(), skip_special_tokens=False) == chatml(talk)
    counted = [int(token) for token, counts in zip(first, mask[:starts[1]], strict=True) if counts]
    assert package.decode(counted, skip_special_tokens=False) == "<|im_end|> it is<|im_end|>"
    assert counted[-1] == package.token_to_id("<|im_end|>") not in counted[:-1]
    assert tokens[starts[1]:].tolist() == package.encode(chatml(TALK)).ids  # the next one is as ever


@pytest.mark.parametrize("kind", ["plain", "rstrip", "first"])
def test_a_name_in_a_content_changes_nothing_around_it(kind, tmp_path):
    """Special tokens that take the white space beside them, words that begin otherwise at the beginning alone."""
    made = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token="<unk>"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace(prepend_scheme="first" if kind == "first" else "never")
    made.train_from_iterator(["assistant user system a b c i m _ n < > | say d"] * 9 + ["\n"],
                             tokenizers.trainers.BpeTrainer(special_tokens=["<unk>"], show_progress=False))
    made.add_special_tokens([tokenizers.AddedToken(name, rstrip=kind == "rstrip", lstrip=kind == "rstrip")
                             for name in ("<|im_start|>", "<|im_end|>", *(f"<s{i}>" for i in range(12)))])
    package = tokenizers.Tokenizer.from_str(made.to_str())
    encoder = chat.ChatEncoder(chat.TEMPLATES["chatml"].resolved(["<|im_end|>"]), HuggingFaceTokenizer("t", made.to_str(), "none"))
    talk = [{"role": "user", "content": "a b"}, {"role": "assistant", "content": " c d"}, {"role": "user", "content": "say <|im_end|>"}]
    tokens, mask, _ = encoder.encode({"messages": talk})
    expected = package.encode(chatml(talk[:2]) + "<|im_start|>user\nsay ", add_special_tokens=False).ids
    assert tokens[:len(expected) - 1].tolist() == expected[:-1]  # the last one, a blank, goes with what follows
    assert (tokens == package.token_to_id("<|im_end|>")).sum() == 3 and tokens.size > len(expected) + 5
    assert encoder.encode({"messages": talk[:2]})[0].tolist() == package.encode(chatml(talk[:2])).ids


def test_what_the_template_leaves_out_is_said(tokenizer_json, tmp_path, tool):
    call = {"tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}
    talk = [TALK[1], {"role": "assistant", "content": "x", **call}, TALK[1], {"role": "assistant", "content": "y", "reasoning_content": "hm"}]
    path = write_records(tmp_path / "t.jsonl", [{"messages": talk, "tools": [{"name": "f"}]}, {"messages": talk}])
    arguments = ["tokenize", path, "--chat", "chatml", "--tokenizer", tokenizer_json]
    for extra in (["-o", tmp_path / "t.h5"], ["--shards", tmp_path / "parts"], ["--count"]):
        told = tool(*arguments, *extra).stderr
        if extra != ["--count"]:
            for what in ("tool_calls of messages, 2 times", "thoughts of messages, 2 times", "tools of conversations, 1 times"):
                assert f"warning: {path}: left out by the chat template: {what}" in told
    for content in (None, ""):
        write_records(path, [{"messages": [TALK[1], {"role": "assistant", "content": content, **call}]}])
        told = tool(*arguments, "-o", tmp_path / "x.h5", rc=65).stderr
        assert "t.jsonl, line 1" in told and "a template that has tool calls (--chat model)" in told


def test_prompt_and_completion_concatenated(package, tokenizer_json, tmp_path, tool):
    path = write_records(tmp_path / "t.jsonl", [{"prompt": "What is ", "completion": "short"}, {"prompt": "", "completion": ""},
                                        {"prompt": "x\n", "completion": "\ny"}])
    tool("tokenize", path, "--chat", "concatenate", "--tokenizer", tokenizer_json, "-o", tmp_path / "t.h5")
    tokens, mask, starts, attributes = read_chats(tmp_path / "t.h5")
    eos = package.token_to_id("<|endoftext|>")
    expected = [[*package.encode(text).ids, eos] for text in ("What is short", "", "x\n\ny")]
    assert tokens.tolist() == sum(expected, []) and attributes["eos_token_id"] == eos
    counted = [[int(token) for token, counts in zip(tokens[a:b], mask[a:b], strict=True) if counts]
               for a, b in zip(starts, [*starts[1:], tokens.size], strict=True)]
    assert [package.decode(each, skip_special_tokens=False).strip() for each in counted] == \
        ["short<|endoftext|>", "<|endoftext|>", "y<|endoftext|>"]
    tool("tokenize", path, "--chat", "concatenate", "-o", tmp_path / "t.h5")  # bytes
    tokens, mask, starts, _ = read_chats(tmp_path / "t.h5")
    assert bytes(tokens[:13].astype(np.uint8)) == b"What is short" and mask[:14].tolist() == [0] * 8 + [1] * 6
    assert starts.tolist() == [0, 14, 15] and mask[14:].tolist() == [1, 0, 0, 1, 1, 1]
    tool("tokenize", path, "--chat", "concatenate", "--eos", "none", "-o", tmp_path / "t.h5")
    assert read_chats(tmp_path / "t.h5")[2].tolist() == [0, 13]  # the document without tokens is none


def test_a_turn_of_ones_own(tmp_path, tool):
    path = write_records(tmp_path / "t.jsonl", [{"messages": TALK[3:]}, {"messages": [*TALK[3:], TALK[1]]}])
    tool("tokenize", path, "--chat", "### {role}:\\n{content}\\n", "-o", tmp_path / "t.h5")
    tokens, mask, starts, attributes = read_chats(tmp_path / "t.h5")
    text = "### user:\n你好, Grüße\n### assistant:\nHello 🙂\n".encode()
    last = "### user:\n What is 2 + 2? \n".encode()
    assert tokens.tolist() == [*text, 256, *text, *last, 256] and starts.tolist() == [0, len(text) + 1]
    answer = len("Hello 🙂\n".encode())  # and what ends the turn, and the document if that was its last
    assert mask.tolist() == [0] * (len(text) - answer) + [1] * (answer + 1) + [0] * (len(text) - answer) + [1] * answer + \
        [0] * (len(last) + 1)
    assert attributes["chat_template"] == b"### {role}:\n{content}\n"


def test_lists_as_prompt_and_completion_and_parts_of_contents(package, tokenizer_json, tmp_path, tool):
    record = {"prompt": TALK[:3], "completion": [{"role": "assistant", "content": [
        {"type": "text", "text": "one "}, {"type": "text", "text": "two"}]}]}
    path = write_records(tmp_path / "t.jsonl", [record])
    tool("tokenize", path, "--chat", "chatml", "--tokenizer", tokenizer_json, "-o", tmp_path / "t.h5")
    tokens, mask, _, _ = read_chats(tmp_path / "t.h5")
    assert text_that_counts(package, tokens, mask) == "|one two<|im_end|>"
    assert tokens.tolist() == package.encode(chatml([*TALK[:3], {"role": "assistant", "content": "one two"}])).ids


def test_sharegpt_is_the_same_conversation(tokenizer_json, tmp_path, tool):
    names = {"system": "system", "user": "human", "assistant": "gpt"}
    theirs = [{"from": names[each["role"]], "value": each["content"]} for each in TALK]
    talks = [{"messages": TALK}, {"conversations": theirs, "id": "x"}, {"messages": None, "conversations": theirs}]
    found = []
    for talk in talks:
        path = write_records(tmp_path / "t.jsonl", [talk])
        tool("tokenize", path, "--chat", "chatml", "--tokenizer", tokenizer_json, "-o", tmp_path / "t.h5")
        found.append([part.tobytes() for part in read_chats(tmp_path / "t.h5")[:3]])
    pyarrow.parquet.write_table(pyarrow.table({"conversations": [theirs]}), tmp_path / "t.parquet")
    tool("tokenize", tmp_path / "t.parquet", "--chat", "chatml", "--tokenizer", tokenizer_json, "-o", tmp_path / "t.h5")
    found.append([part.tobytes() for part in read_chats(tmp_path / "t.h5")[:3]])
    assert found.count(found[0]) == 4


def test_system_messages_beside_and_either_form():
    template = chat.TEMPLATES["chatml"]
    ours, theirs = TALK[1:3], [{"from": "human", "value": " What is 2 + 2? "}, {"from": "gpt", "value": "\n4\n\n"}]
    for name in ("messages", "conversations"):
        for items in (ours, theirs, [TALK[0], *ours], [{"from": "system", "value": "Be short.\n"}, *theirs]):
            found = chat.messages_of({name: items, "system": "Be short.\n"}, template)
            assert [(each.role, each.content, each.counts) for each in found] == \
                [(each["role"], each["content"], each["role"] == "assistant") for each in TALK[:3]]
    with pytest.raises(chat.WrongChat, match="one system message"):
        chat.messages_of({"messages": TALK, "system": "another"}, template)


def test_alpaca_and_arrays_are_conversations(package, tokenizer_json, tmp_path, tool):
    records = [{"instruction": "add", "input": "1 2", "output": "3"}, {"instruction": "say", "input": "", "output": "hi"},
               {"instruction": "x", "output": "y", "system": "s"}]
    talks = [[("user", "add\n1 2"), ("assistant", "3")], [("user", "say"), ("assistant", "hi")],
             [("system", "s"), ("user", "x"), ("assistant", "y")]]
    messages = [[{"role": role, "content": content} for role, content in talk] for talk in talks]
    found = []
    for name, content in (("a.json", json.dumps(records, indent=1)), ("b.json", json.dumps(records)),
                          ("m.json", json.dumps([{"messages": talk} for talk in messages])),
                          ("s.json", json.dumps([{"conversations": [
                              {"from": {"user": "human", "assistant": "gpt"}.get(role, role), "value": content}
                              for role, content in talk]} for talk in talks])),
                          ("t.jsonl", "".join(json.dumps(record) + "\n" for record in records))):
        (tmp_path / name).write_text(content)
        tool("tokenize", tmp_path / name, "--chat", "chatml", "--tokenizer", tokenizer_json, "-o", tmp_path / "t.h5")
        found.append([part.tobytes() for part in read_chats(tmp_path / "t.h5")[:3]])
    assert found.count(found[0]) == 5
    tokens, mask, _, _ = read_chats(tmp_path / "t.h5")
    assert tokens.tolist() == sum((package.encode(chatml(talk)).ids for talk in messages), [])
    assert text_that_counts(package, tokens, mask) == "|3<|im_end|>|hi<|im_end|>|y<|im_end|>"
    path = write_records(tmp_path / "t.jsonl", [records[0] | {"history": [["a", "b"]]}])
    assert "without a history" in tool("tokenize", path, "--chat", "{role}: {content}", "-o", tmp_path / "x.h5", rc=65).stderr


def test_parquet_and_workers_have_the_same_bytes(tokenizer_json, tmp_path, tool):
    talks = [[{"role": "user", "content": f"question {i} " * (i % 9)}, {"role": "assistant", "content": f"{i}\n" * (i % 5)}]
             for i in range(200)]
    path = write_records(tmp_path / "t.jsonl", [{"messages": talk} for talk in talks])
    pyarrow.parquet.write_table(pyarrow.table({"id": range(200), "messages": talks}), tmp_path / "t.parquet")
    found = []
    for source, workers, chunk in ((path, 1, 4), (path, 3, 0.002), (tmp_path / "t.parquet", 2, 0.001)):
        tool("tokenize", source, "--chat", "chatml", "--tokenizer", tokenizer_json, "-o", tmp_path / "t.h5", "--workers",
             workers, "--chunk-mb", chunk)
        found.append([part.tobytes() for part in read_chats(tmp_path / "t.h5")[:3]])
    assert found[0] == found[1] == found[2]


def test_a_bpe_is_trained_with_the_tokens_of_the_template(tmp_path, tool):
    path = write_records(tmp_path / "t.jsonl", [{"messages": TALK}])
    tool("tokenize", path, "--chat", "llama3", "--train-bpe", 300, "-o", tmp_path / "t.h5")
    made = tokenizers.Tokenizer.from_file(str(tmp_path / "t.tokenizer.json"))
    assert read_chats(tmp_path / "t.h5")[0].tolist() == made.encode("<|begin_of_text|>" + llama3(TALK)).ids


@pytest.mark.parametrize("record, expected, found", [
    ({"text": "x"}, "instruction and output", "the fields text"),
    ({"messages": []}, "a list of objects", "[]"),
    ({"messages": "hi"}, "a list of objects", "'hi'"),
    ({"messages": [{"content": "x"}]}, "messages[0] with a role", "{'content': 'x'}"),
    ({"messages": [TALK[0], {"role": "assistant", "content": None}]}, "messages[1] with a content", "None"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "parts of the type text", "image_url"),
    ({"prompt": "x"}, "messages, conversations, prompt and completion", "the fields prompt"),
    ({"conversations": []}, "conversations, a list of objects", "[]"),
    ({"conversations": [{"from": "human", "value": "x"}, {"from": "bing", "value": "y"}]},
     "conversations[1] from one of human, user, gpt, assistant, system", "bing"),
    ({"conversations": [{"from": "gpt", "value": 3}]}, "conversations[0] with a value", "3"),
    ({"prompt": "x", "completion": 3}, "a completion that is a text", "3"),
    ([1], "an object with messages", "[1]"),
])
def test_wrong_talks(record, expected, found, tmp_path, tool):
    path = write_records(tmp_path / "t.jsonl", [{"messages": TALK}, record])
    told = tool("tokenize", path, "--chat", "{role}: {content}", "-o", tmp_path / "t.h5", rc=65).stderr
    assert f"{path}, line 2, byte " in told and expected in told and found in told and "change: " in told, told
    assert [each.name for each in tmp_path.iterdir()] == ["t.jsonl"]


def test_wrong_templates(tokenizer_json, tmp_path, tool):
    path, out = write_records(tmp_path / "t.jsonl", [{"messages": TALK}]), tmp_path / "t.h5"
    for template in ("vicuna", "{role}", "{content}{role}", "{content}{content}"):
        assert "--chat: expected chatml, llama3" in tool("tokenize", path, "--chat", template, "-o", out, rc=64).stderr
    told = tool("tokenize", path, "--chat", "chatml", "-o", out, rc=64).stderr
    assert "special tokens <|im_start|>, <|im_end|>" in told and "bytes" in told
    told = tool("tokenize", path, "--chat", "<|user|>{content}<|im_end|>", "--tokenizer", tokenizer_json, "-o", out,
                rc=64).stderr
    assert "the special tokens <|user|>" in told
    told = tool("tokenize", path, "--chat", "concatenate", "-o", out, rc=65).stderr
    assert "expected prompt and completion" in told
    (tmp_path / "x.txt").write_text("text")
    told = tool("tokenize", tmp_path / "x.txt", "--chat", "concatenate", "-o", out, rc=65).stderr
    assert "a file of text" in told and not out.exists()


def test_unknown_roles_that_train_nothing_are_said(tokenizer_json, tmp_path, tool):
    good, bad = [{"messages": TALK}], [{"messages": [{"role": "user", "content": "a"}, {"role": role, "content": "b"}]}
                                       for role in ("Assistant", "model", "model")]
    write_records(tmp_path / "good.jsonl", good)
    call = ["tokenize", tmp_path / "good.jsonl", tmp_path / "bad.jsonl", "--chat", "chatml", "--tokenizer", tokenizer_json]
    for extra in (["-o", tmp_path / "t.h5"], ["--shards", tmp_path / "parts"]):
        write_records(tmp_path / "bad.jsonl", bad)
        told = tool(*call, *extra, rc=65).stderr
        assert f"{tmp_path / 'bad.jsonl'}: expected answers" in told and "3 of 3 conversations without an answer" in told
        assert "unknown roles: 'model' 2 times, 'Assistant' 1 times" in told and not (tmp_path / "t.h5").exists()
        write_records(tmp_path / "bad.jsonl", bad + good)
        said = tool(*call, *extra).stderr
        assert f"warning: {tmp_path / 'bad.jsonl'}: 3 of 4 conversations without an answer; unknown roles: 'model' 2" in said
        assert "good.jsonl" not in said
        (tmp_path / "t.h5").unlink(missing_ok=True)
    write_records(tmp_path / "bad.jsonl", [{"messages": TALK[:2]}])  # known roles, no answer
    assert "1 of 1 conversations without an answer\n" in tool(*call, "-o", tmp_path / "t.h5", rc=65).stderr


@pytest.mark.parametrize("record, options", [
    ({"prompt": "a", "completion": "a\udfffb"}, ["--chat", "concatenate"]), ({"text": "x\ud800"}, []),
    ({"messages": [{"role": "user", "content": "\ud800"}]}, ["--chat", "{role}: {content}"])])
def test_a_lone_surrogate_is_refused_by_its_line(record, options, tmp_path, tool):
    good = {"prompt": "a", "completion": "b"} if options else {"text": "\U0001f642"}
    path = write_records(tmp_path / "t.jsonl", [good, record])
    told = tool("tokenize", path, *options, "-o", tmp_path / "t.h5", rc=65).stderr
    assert f"{path}, line 2, byte" in told and "a lone surrogate, \\ud" in told and "at character " in told
