# timeout: 300
"""nanotron_tokenize --chat model: chat templates of models, rendered as transformers does, and what counts in the loss."""

import json

import numpy as np
import pytest
import tokenizers
from conftest import read_chats, write_records

from nanotron_tools import chat, model_chat

# Of the models of these names, without what they do for tools.
TEMPLATES = {
    "zephyr": "{% for message in messages %}\n{% if message['role'] == 'user' %}\n{{ '<|user|>\n' + message['content'] + eos_token }}"
              "\n{% elif message['role'] == 'system' %}\n{{ '<|system|>\n' + message['content'] + eos_token }}\n"
              "{% elif message['role'] == 'assistant' %}\n{{ '<|assistant|>\n'  + message['content'] + eos_token }}\n{% endif %}\n"
              "{% if loop.last and add_generation_prompt %}\n{{ '<|assistant|>' }}\n{% endif %}\n{% endfor %}",
    "phi3": "{% for message in messages %}{% if message['role'] == 'system' %}{{'<|system|>\n' + message['content'] + '<|end|>\n'}}"
            "{% elif message['role'] == 'user' %}{{'<|user|>\n' + message['content'] + '<|end|>\n'}}"
            "{% elif message['role'] == 'assistant' %}{{'<|assistant|>\n' + message['content'] + '<|end|>\n'}}{% endif %}{% endfor %}"
            "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% else %}{{ eos_token }}{% endif %}",
    "llama3": "{{- bos_token }}\n{%- if not date_string is defined %}\n    {%- if strftime_now is defined %}\n"
              "        {%- set date_string = strftime_now(\"%d %b %Y\") %}\n    {%- else %}\n"
              "        {%- set date_string = \"26 Jul 2024\" %}\n    {%- endif %}\n{%- endif %}\n"
              "{%- if messages[0]['role'] == 'system' %}\n    {%- set system_message = messages[0]['content']|trim %}\n"
              "    {%- set messages = messages[1:] %}\n{%- else %}\n    {%- set system_message = \"\" %}\n{%- endif %}\n"
              "{{- \"<|start_header_id|>system<|end_header_id|>\\n\\n\" }}\n{{- \"Cutting Knowledge Date: December 2023\\n\" }}\n"
              "{{- \"Today Date: \" + date_string + \"\\n\\n\" }}\n{{- system_message }}\n{{- \"<|eot_id|>\" }}\n"
              "{%- for message in messages %}\n    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ "
              "message['content'] | trim + '<|eot_id|>' }}\n{%- endfor %}",
    "mistral": "{{ bos_token }}{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
               "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
               "{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}"
               "{% elif message['role'] == 'assistant' %}{% generation %}{{ message['content'] + eos_token}}{% endgeneration %}"
               "{% else %}{{ raise_exception('Only user and assistant roles are supported!') }}{% endif %}{% endfor %}",
    "llama2": "{% for message in messages %}{% if message['role'] == 'user' %}"
              "{{ bos_token + '[INST] ' + message['content'].strip() + ' [/INST]' }}"
              "{% else %}{{ ' '  + message['content'].strip() + ' ' + eos_token }}{% endif %}{% endfor %}",
    "qwen3": "{%- for message in messages %}{%- if loop.last and message.role == 'assistant' %}"
             "{{- '<|im_start|>assistant\n<think>\n\n</think>\n\n' + message.content.lstrip('\n') + '<|im_end|>\n' }}"
             "{%- else %}{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}{%- endif %}{%- endfor %}",
}
ENDS = {"zephyr": "</s>", "phi3": "<|end|>", "llama3": "<|eot_id|>", "mistral": "</s>", "llama2": "</s>", "qwen3": "<|im_end|>"}
BEGINS = {"llama3": "<|begin_of_text|>", "mistral": "<s>", "llama2": "<s>"}
SPECIAL = {"zephyr": ["<s>", "</s>"], "phi3": ["<|user|>", "<|assistant|>", "<|end|>", "<|endoftext|>"],
           "llama3": ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"],
           "mistral": ["<s>", "</s>"], "llama2": ["<s>", "</s>"], "qwen3": ["<|im_start|>", "<|im_end|>", "<|endoftext|>"]}
TALK = [{"role": "user", "content": " What is 2 + 2? "}, {"role": "assistant", "content": "4, user."},
        {"role": "user", "content": "user"}, {"role": "assistant", "content": " \nHello </s> 🙂"}]
COUNTED = {"llama2": "|4, user. {0}|Hello </s> 🙂 {0}", "llama3": "|4, user.{0}|Hello </s> 🙂{0}", "qwen3": "|4, user.{0}| \nHello </s> 🙂{0}"}


def save(name, folder, source="tokenizer_config.json"):
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    made.train_from_iterator([], tokenizers.trainers.BpeTrainer(
        special_tokens=SPECIAL[name], show_progress=False,
        initial_alphabet=sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())))
    folder.mkdir(exist_ok=True)
    made.save(str(folder / "tokenizer.json"))
    config = {"eos_token": ENDS[name] if name != "phi3" else {"content": "<|endoftext|>"},
              "bos_token": BEGINS.get(name, "<s>"), "unk_token": None}
    if source == "tokenizer_config.json":
        config["chat_template"] = TEMPLATES[name]
    elif source == "several":
        config["chat_template"] = [{"name": "tool_use", "template": "x"}, {"name": "default", "template": TEMPLATES[name]}]
    elif source.endswith(".jinja"):
        (folder / source).write_text(TEMPLATES[name])
    else:
        (folder / source).write_text(json.dumps({"chat_template": TEMPLATES[name]}))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return made


def counted(made, tokens, mask):
    bounds = np.flatnonzero(np.diff(np.concatenate(([0], mask, [0]))))
    return "".join("|" + made.decode(tokens[a:b].tolist(), skip_special_tokens=False) for a, b in bounds.reshape(-1, 2))


def expected_text(name):
    def turn(role, content):
        end, begin = ENDS[name], BEGINS.get(name, "")
        return {"zephyr": f"<|{role}|>\n{content}</s>\n", "phi3": f"<|{role}|>\n{content}<|end|>\n",
                "llama3": f"<|start_header_id|>{role}<|end_header_id|>\n\n{content.strip()}{end}",
                "mistral": f"[INST] {content} [/INST]" if role == "user" else content + end,
                "llama2": f"{begin}[INST] {content.strip()} [/INST]" if role == "user" else f" {content.strip()} {end}",
                "qwen3": f"<|im_start|>{role}\n{content}<|im_end|>\n"}[name]

    talk = "".join(turn(each["role"], each["content"]) for each in TALK)
    if name == "qwen3":
        place = talk.rindex("assistant\n") + len("assistant\n")
        talk = talk[:place] + "<think>\n\n</think>\n\n" + talk[place:]
    day = "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n"
    system = f"<|start_header_id|>system<|end_header_id|>\n\n{day}<|eot_id|>" if name == "llama3" else ""
    return (BEGINS.get(name, "") if name != "llama2" else "") + system + talk + ("<|endoftext|>" if name == "phi3" else "")


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_models_template_is_that_of_its_folder(name, tmp_path, tool):
    made = save(name, tmp_path / "model")
    path = write_records(tmp_path / "t.jsonl", [{"messages": TALK}, {"messages": TALK[:2]}])
    said = tool("tokenize", path, "--chat", "--tokenizer", tmp_path / "model", "-o", tmp_path / "t.h5").stderr
    tokens, mask, starts, attributes = read_chats(tmp_path / "t.h5")
    first = tokens[:starts[1]]
    assert made.decode(first.tolist(), skip_special_tokens=False) == expected_text(name)
    end = made.token_to_id(ENDS[name])
    assert (first == end).sum() == {"llama3": 5, "mistral": 2, "llama2": 2}.get(name, 4)
    assert counted(made, first, mask[:starts[1]]) == COUNTED.get(name, "|4, user.{0}| \nHello </s> 🙂{0}").format(ENDS[name])
    assert attributes["eos_token_id"] == end and attributes["chat_template"].decode() == TEMPLATES[name]
    assert ("has a date: it is 2024-07-26" in said) == (name == "llama3")


@pytest.mark.parametrize("source", ["several", "chat_template.jinja", "chat_template.json"])
def test_places_of_the_template(source, tmp_path, tool):
    made = save("phi3", tmp_path / "model", source)
    path = write_records(tmp_path / "t.jsonl", [{"messages": TALK[:2]}])
    tool("tokenize", path, "--chat", "model", "--tokenizer", tmp_path / "model" / "tokenizer.json", "-o", tmp_path / "t.h5")
    tokens, mask, _, _ = read_chats(tmp_path / "t.h5")
    assert counted(made, tokens, mask) == "|4, user.<|end|>"


@pytest.mark.parametrize("name, turn", [("phi3", "<|{role}|>\\n{content}<|end|>\\n"), ("zephyr", "<|{role}|>\\n{content}</s>\\n")])
def test_turns_with_the_role_in_a_token(name, turn, tmp_path, tool):
    """Special tokens where the tokenizer has them, else text; the end is a special token of the tokenizer."""
    made = save(name, tmp_path / "model")
    path = write_records(tmp_path / "t.jsonl", [{"messages": TALK}])
    tool("tokenize", path, "--chat", turn, "--tokenizer", tmp_path / "model", "-o", tmp_path / "t.h5")
    tokens, mask, _, attributes = read_chats(tmp_path / "t.h5")
    assert made.decode(tokens.tolist(), skip_special_tokens=False) == expected_text(name).removesuffix("<|endoftext|>")
    assert counted(made, tokens, mask) == f"|4, user.{ENDS[name]}| \nHello </s> 🙂{ENDS[name]}"
    assert attributes["eos_token_id"] == made.token_to_id(ENDS[name])
    if name == "phi3":
        assert (tokens == made.token_to_id("<|user|>")).sum() == (tokens == made.token_to_id("<|assistant|>")).sum() == 2


def test_the_date_is_an_option(tmp_path, tool):
    made = save("llama3", tmp_path / "model")
    path = write_records(tmp_path / "t.jsonl", [{"messages": TALK[:2]}])
    tool("tokenize", path, "--chat", "--chat-date", "2026-01-31", "--tokenizer", tmp_path / "model", "-o", tmp_path / "t.h5")
    assert "Today Date: 31 Jan 2026" in made.decode(read_chats(tmp_path / "t.h5")[0].tolist())
    assert "--chat-date" in tool("tokenize", path, "--chat", "--chat-date", "x", "-o", tmp_path / "t.h5", rc=2).stderr


@pytest.mark.parametrize("template, talk, told", [
    (TEMPLATES["mistral"], TALK[1:], "roles must alternate"),
    ("{% for m in messages %}{{ m.content | upper }}{% endfor %}", TALK, "rewritten"),
    ("{% for m in messages %}{{ m.content }}{{ m.content }}{% endfor %}", None, "2 times"),
    ("{{ messages[9].content.x.y }}", None, "renders"), ("{% for %}", None, "a template of Jinja"),
    ("{% for m in messages %}{{ m.content }}{{ ''.__class__.__mro__ }}{% endfor %}", None, "renders"),
])
def test_what_a_template_cannot_render(template, talk, told, tmp_path, tool):
    save("mistral", tmp_path / "model")
    (tmp_path / "model" / "tokenizer_config.json").write_text(json.dumps(
        {"chat_template": template, "eos_token": "</s>", "bos_token": "<s>"}))
    path = write_records(tmp_path / "t.jsonl", [{"messages": TALK[:2]}, {"messages": talk or TALK}])
    found = tool("tokenize", path, "--chat", "--tokenizer", tmp_path / "model", "-o", tmp_path / "t.h5", rc=65).stderr
    assert told in found and "change: " in found, found


def test_a_tokenizer_without_a_template(tmp_path, tool):
    save("phi3", tmp_path / "model")
    (tmp_path / "model" / "tokenizer_config.json").unlink()
    path = write_records(tmp_path / "t.jsonl", [{"messages": TALK}])
    for tokenizer in (tmp_path / "model", "bytes"):
        told = tool("tokenize", path, "--chat", "--tokenizer", tokenizer, "-o", tmp_path / "t.h5", rc=64).stderr
        assert "expected a --tokenizer with a chat template beside it" in told and "--chat chatml" in told


def test_two_beginnings_are_refused(tmp_path, tool):
    save("mistral", tmp_path / "model")
    path = write_records(tmp_path / "t.jsonl", [{"messages": TALK}])
    call = ["tokenize", path, "--chat", "--tokenizer", tmp_path / "model", "-o", tmp_path / "t.h5", "--bos"]
    assert "itself begins with <s>" in tool(*call, "<s>", rc=64).stderr
    tool(*call, "none")


def test_fields_of_messages_reach_the_template():
    made = model_chat.ModelTemplate("{% for m in messages %}{{ m.name }}: {{ m.content }}{% endfor %}{{ tools | tojson }}", (),
                                    model_chat.DATE)
    messages = chat.messages_of({"messages": [{"role": "user", "name": "Zoë", "content": "x"}]}, made)
    for tools in ([{"a": "ü"}], '[{"a": "ü"}]'):
        assert "".join(part.text for part in made.parts(messages, {"tools": tools})) == 'Zoë: x[{"a": "ü"}]'


# Of Qwen3: thoughts since the last question, calls between two marks.
QWEN3 = """{%- if tools %}{{- '<|im_start|>system\n' }}{%- for tool in tools %}{{- tool | tojson }}{%- endfor %}{{- '<|im_end|>\n' }}{%- endif %}
{%- set ns = namespace(last=0) %}
{%- for message in messages %}{%- if message.role == 'user' %}{%- set ns.last = loop.index0 %}{%- endif %}{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}{%- set content = message.content %}{%- else %}{%- set content = '' %}{%- endif %}
    {%- if message.role == 'assistant' %}
        {%- set reasoning_content = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning_content = message.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set reasoning_content = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last and (loop.last or reasoning_content) %}
            {{- '<|im_start|>assistant\n<think>\n' + reasoning_content.strip('\n') + '\n</think>\n\n' + content.lstrip('\n') }}
        {%- else %}
            {{- '<|im_start|>assistant\n' + content }}
        {%- endif %}
        {%- for call in message.tool_calls or [] %}
            {{- '<tool_call>\n' + call.function | tojson + '\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\n' + content + '<|im_end|>\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"""
CALL = {"tool_calls": [{"type": "function", "function": {"name": "f", "arguments": {"x": 1}}}]}
CALLED = '<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>'


def qwen3(folder, template=QWEN3):
    made = save("qwen3", folder)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": template}))
    return made


def counted_of(talk, made, tmp_path, tool, rc=0, **record):
    path = write_records(tmp_path / "t.jsonl", [{"messages": talk, **record}, {"messages": TALK[:2]}])
    told = tool("tokenize", path, "--chat", "--tokenizer", tmp_path / "model", "-o", tmp_path / "t.h5", rc=rc).stderr
    tokens, mask, starts, _ = read_chats(tmp_path / "t.h5") if rc == 0 else (None,) * 4
    return told if rc else (counted(made, tokens[:starts[1]], mask[:starts[1]]), told,
                            made.decode(tokens[:starts[1]].tolist(), skip_special_tokens=False))


@pytest.mark.parametrize("content", [None, "", "I ask. ", "absent"])
def test_calls_of_tools_count(content, tmp_path, tool):
    made = qwen3(tmp_path / "model")
    call = {"role": "assistant", "content": content, **CALL}
    if content == "absent":
        del call["content"]
        content = None
    talk = [{"role": "user", "content": "go"}, call, {"role": "tool", "content": "<|im_end|> 2"}, {"role": "assistant", "content": "two"}]
    found, told, text = counted_of(talk, made, tmp_path, tool, tools=[{"name": "f"}])
    assert found == f"|{content or ''}{CALLED}<|im_end|>|two<|im_end|>" and not told
    assert text == ('<|im_start|>system\n{"name": "f"}<|im_end|>\n<|im_start|>user\ngo<|im_end|>\n<|im_start|>assistant\n'
                    f"{content or ''}{CALLED}<|im_end|>\n<|im_start|>tool\n<|im_end|> 2<|im_end|>\n<|im_start|>assistant\n"
                    "<think>\n\n</think>\n\ntwo<|im_end|>\n")


@pytest.mark.parametrize("answer", [{"content": "<think>\nhard\n</think>\n\nfour"}, {"content": "four", "reasoning_content": "hard"}])
def test_thoughts_count_where_the_template_has_them(answer, tmp_path, tool):
    made = qwen3(tmp_path / "model")
    talk = [{"role": "user", "content": "a"}, {"role": "assistant", **answer}]
    found, told, _ = counted_of(talk, made, tmp_path, tool)
    assert found == "|<think>\nhard\n</think>\n\nfour<|im_end|>" and not told
    found, told, text = counted_of([*talk, {"role": "user", "content": "b"}, {"role": "assistant", "content": "c"}], made, tmp_path, tool)
    assert found == "|four<|im_end|>|c<|im_end|>" and "hard" not in text
    assert "t.jsonl: left out by the chat template: thoughts of messages, 1 times" in told
    qwen3(tmp_path / "model", QWEN3.replace("{%- if add_generation_prompt %}", "{%- if add_generation_prompt %}x"))
    assert "begin where its prompt for one ends" in counted_of(talk, made, tmp_path, tool, rc=65)


def test_the_template_for_tools(tmp_path, tool):
    """That of the name tool_use, for records with tools, as transformers takes it; in a list or a file of its own."""
    made, simple = qwen3(tmp_path / "model"), "{% for m in messages %}{{ '<|im_start|>' + m.role + m.content + '<|im_end|>' }}{% endfor %}"
    talk = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    for several in (True, False):
        if several:
            qwen3(tmp_path / "model", [{"name": "default", "template": simple}, {"name": "tool_use", "template": QWEN3}])
        else:
            qwen3(tmp_path / "model", simple)
            (tmp_path / "model/additional_chat_templates").mkdir()
            (tmp_path / "model/additional_chat_templates/tool_use.jinja").write_text(QWEN3)
        assert counted_of(talk, made, tmp_path, tool)[2] == "<|im_start|>usera<|im_end|><|im_start|>assistantb<|im_end|>"
        assert counted_of(talk, made, tmp_path, tool, tools=[{"name": "f"}])[2].startswith('<|im_start|>system\n{"name": "f"}')
    (tmp_path / "model/additional_chat_templates/tool_use.jinja").unlink()
    assert "tools of conversations, 1 times" in counted_of(talk, made, tmp_path, tool, tools=[{"name": "f"}])[1]
