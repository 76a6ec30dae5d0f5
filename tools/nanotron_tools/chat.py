"""Conversations as documents with a loss mask: the forms of records, and which tokens count.

A record is {"messages": [{"role": ..., "content": ...}, ...]}, {"conversations": [{"from": ..., "value": ...}, ...]}
(ShareGPT's, from human, gpt or system; either name may have either form),
{"prompt": ..., "completion": ...}, where both are texts or both lists of
messages, or Alpaca's {"instruction": ..., "input": ..., "output": ...}. What counts in the loss are the answers: of
`messages` those of the role assistant (unless they have "weight": 0), of a pair the completion. An answer's tokens are
those of its content and the special token of the template right after it; where there is none, the rest of the turn,
and the token that ends the document. A token with characters of an answer and of the template counts.

The text of a conversation is encoded whole, as Hugging Face's apply_chat_template has it. Names of special tokens in a
content stay text: the template's own are encoded under names that no text has (`hidden` of the tokenizer).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from . import common
from .tokenizers import ByteTokenizer, HuggingFaceTokenizer, Tokenizer

SPECIAL = re.compile(r"<\|[^|<>]+\|>")
ANSWERS = "assistant"
ROLES = ("user", ANSWERS, "system")
OTHER_ROLES = ("tool", "developer", "function", "ipython", "observation", "environment")  # of templates of models
SHAREGPT = {"human": "user", "user": "user", "gpt": ANSWERS, "assistant": ANSWERS, "system": "system"}
FIELDS = ("messages", "conversations", "prompt", "instruction")  # one of them each record has
CALLS = ("tool_calls", "function_call")
THOUGHTS = ("reasoning_content", "reasoning", "thinking")
THOUGHT_END = "</think>"  # of a content that begins with thoughts
FORMS = "messages, conversations, prompt and completion, or instruction and output"


@dataclass(frozen=True)
class Message:
    """`rest`: the other fields of the message, for templates that know them; `is_null`: a call has no content."""

    role: str
    content: str
    counts: bool
    rest: dict[str, Any] = field(default_factory=dict)
    is_null: bool = False

    @property
    def calls(self) -> bool:
        return any(self.rest.get(name) for name in CALLS)

    @property
    def thoughts(self) -> str:
        """Of a field, or of the content."""
        found = next((self.rest[name] for name in THOUGHTS if isinstance(self.rest.get(name), str)), "") or \
            (self.content.rpartition(THOUGHT_END)[0].rpartition("<think>")[2] if self.role == ANSWERS else "")
        return str(found).strip()


@dataclass(frozen=True)
class Part:
    """`counts`: in the loss; `content`: of a message, where names of special tokens are text."""

    text: str
    counts: bool
    content: bool


class WrongChat(Exception):
    """(expected, found)"""


class Template(Protocol):
    """`end`: the special token right after an answer, `required`: special tokens that it cannot do without; `knows`: it
    has a place for this field of messages or records."""

    @property
    def name(self) -> str: ...
    @property
    def turn(self) -> str: ...
    @property
    def bos(self) -> str | None: ...
    @property
    def end(self) -> str | None: ...
    @property
    def required(self) -> Sequence[str]: ...
    def resolved(self, special: Collection[str]) -> Template: ...
    def knows(self, name: str) -> bool: ...
    def parts(self, messages: list[Message], record: dict[str, Any]) -> list[Part]: ...


def end_of(text: str, names: Collection[str]) -> tuple[str | None, int]:
    """The longest of the names that the text begins with, white space before it or not; and where it ends."""
    begin = len(text) - len(text.lstrip())
    found = [(name, at + len(name)) for at in (0, begin) for name in names if text.startswith(name, at)]
    return max(found, key=lambda each: len(each[0]), default=(None, 0))


@dataclass(frozen=True)
class Turns:
    """`turn`: of each message, with {role} and {content}."""

    name: str
    turn: str
    bos: str | None = None
    strip: bool = False  # white space around contents
    end: str | None = None

    def resolved(self, special: Collection[str]) -> Turns:
        """With the end, a special token of the tokenizer, or one that it has to have."""
        return replace(self, end=end_of(self.turn.split("{content}")[1], {*special, *self.required})[0])

    def knows(self, name: str) -> bool:
        return False

    @property
    def required(self) -> list[str]:
        """A name with the role in it may be a special token, as Phi-3's, or text, as Zephyr's."""
        found = [name for name in SPECIAL.findall(self.turn) if "{role}" not in name]
        return list(dict.fromkeys([*([self.bos] if self.bos else []), *found]))

    @property
    def trained(self) -> list[str]:
        """Special tokens of a tokenizer that is made for it."""
        names = [name.replace("{role}", role) for name in SPECIAL.findall(self.turn) for role in ROLES]
        return list(dict.fromkeys([*self.required, *names]))

    def parts(self, messages: list[Message], record: dict[str, Any]) -> list[Part]:
        before, after = self.turn.split("{content}")
        result = []
        for message in messages:
            content = message.content.strip() if self.strip else message.content
            result += [Part(before.replace("{role}", message.role), False, False), Part(content, message.counts, True)]
            size = end_of(after, (self.end,))[1] if self.end else len(after)
            result += [Part(after[:size], message.counts, False), Part(after[size:], False, False)]
        return result


CONCATENATE = "concatenate"
TEMPLATES = {made.name: made for made in (
    Turns("chatml", "<|im_start|>{role}\n{content}<|im_end|>\n"),
    Turns("llama3", "<|start_header_id|>{role}<|end_header_id|>\n\n{content}<|eot_id|>", "<|begin_of_text|>", True),
    Turns(CONCATENATE, "{content}"))}


def turns_of(text: str) -> Turns:
    if text in TEMPLATES:
        return TEMPLATES[text]
    turn = text.replace("\\n", "\n")
    if turn.count("{content}") != 1 or turn.count("{role}") > 1 or turn.find("{role}") > turn.find("{content}"):
        raise common.wrong("--chat", f"{', '.join(TEMPLATES)}, model, or a turn of your own", repr(text),
                           "give one of these, or {role} and then one {content}, as '### {role}:\\n{content}\\n'",
                           common.EXIT_USAGE)
    return Turns("turns", turn)


def content_of(value: Any, what: str) -> str:
    if isinstance(value, list) and all(isinstance(part, dict) and part.get("type") == "text" and
                                       isinstance(part.get("text"), str) for part in value):
        value = "".join(part["text"] for part in value)
    if not isinstance(value, str):
        raise WrongChat(f"{what} that is a text, or a list of parts of the type text", repr(value)[:80])
    if lone := common.lone_surrogate(value):
        raise WrongChat(f"{what} that is a text", lone)
    return value


def messages_in(items: Any, what: str, answers: bool, template: Template) -> list[Message]:
    if not isinstance(items, list) or not items:
        raise WrongChat(f"{what}, a list of objects with role and content", repr(items)[:80])
    found = []
    for number, item in enumerate(items):
        if not isinstance(item, dict) or not isinstance(item.get("role"), str):
            raise WrongChat(f"{what}[{number}] with a role", repr(item)[:80])
        is_null = item.get("content") is None and any(item.get(name) for name in CALLS)
        content = "" if is_null else content_of(item.get("content"), f"{what}[{number}] with a content")
        rest = {key: value for key, value in item.items() if key not in ("role", "content") and value is not None}
        counts = answers and item["role"] == ANSWERS and item.get("weight") != 0
        found.append(Message(item["role"], content, counts, rest, is_null))
        if not content and found[-1].calls and not any(map(template.knows, CALLS)):
            raise WrongChat(f"{what}[{number}] with a content, or a template that has tool calls (--chat model)",
                            "a tool call alone")
    return found


def messages_of_sharegpt(items: list[Any], what: str) -> list[dict[str, Any]]:
    """{"from", "value"} as {"role", "content"}."""
    for number, item in enumerate(items):
        if not isinstance(item, dict) or not isinstance(item.get("from"), str) or item["from"] not in SHAREGPT:
            raise WrongChat(f"{what}[{number}] from one of {', '.join(SHAREGPT)}", repr(item)[:80])
        content_of(item.get("value"), f"{what}[{number}] with a value")
    return [{"role": SHAREGPT[item["from"]], "content": item["value"], "weight": item.get("weight")} for item in items]


def by_role(items: Any, what: str) -> Any:
    """Of one of the two forms, told by the first message."""
    is_sharegpt = isinstance(items, list) and items and isinstance(items[0], dict) and "from" in items[0]
    return messages_of_sharegpt(items, what) if is_sharegpt else items


def with_system(record: dict[str, Any], messages: list[Message]) -> list[Message]:
    """With the record's own system message first, unless the messages begin with it."""
    if not record.get("system"):
        return messages
    system = Message("system", content_of(record["system"], "a system"), False)
    if messages[0].role != "system":
        return [system, *messages]
    if messages[0].content != system.content:
        raise WrongChat("one system message, in the field system or as the first message", "two that differ")
    return messages


def pair_of_alpaca(record: dict[str, Any]) -> tuple[Any, Any]:
    """(prompt, completion); the input, if there is one, on the lines after the instruction."""
    if record.get("history"):
        raise WrongChat("a record of Alpaca without a history", repr(record["history"])[:80])
    prompt = content_of(record["instruction"], "an instruction")
    if record.get("input"):
        prompt = f"{prompt}\n{content_of(record['input'], 'an input')}"
    return prompt, record["output"]


def messages_of(record: Any, template: Template) -> list[Message]:
    if not isinstance(record, dict):
        raise WrongChat(f"an object with {FORMS}", repr(record)[:80])
    for name in ("messages", "conversations"):
        if record.get(name) is None:
            continue
        if template.name == CONCATENATE:
            raise WrongChat("prompt and completion (--chat concatenate has no roles)", name)
        return with_system(record, messages_in(by_role(record[name], name), name, True,
                                               template))
    if "prompt" in record and "completion" in record:
        prompt, completion = record["prompt"], record["completion"]
    elif "instruction" in record and "output" in record:
        prompt, completion = pair_of_alpaca(record)
    else:
        raise WrongChat(FORMS, "the fields " + ", ".join(map(str, record))[:200])
    if isinstance(prompt, list) and isinstance(completion, list) and template.name != CONCATENATE:
        return with_system(record, messages_in(prompt, "prompt", False, template) +
                           messages_in(completion, "completion", True, template))
    pair = [Message("user", content_of(prompt, "a prompt"), False),
            Message(ANSWERS, content_of(completion, "a completion"), True)]
    return with_system(record, pair)


def texts_of(record: Any, template: Template) -> list[str]:
    return [message.content for message in messages_of(record, template)]


class ChatEncoder:
    """Tokens and mask of conversations, without the tokens that begin and end a document."""

    def __init__(self, template: Template, tokenizer: Tokenizer):
        self.template, self.tokenizer = template, tokenizer
        self.silent, self.roles, self.left = 0, Counter[str](), Counter[str]()
        special = tokenizer.special
        self.names = re.compile("|".join(map(re.escape, sorted(special, key=len, reverse=True))) or r"(?!)")
        if missing := [name for name in template.required if name not in special]:
            raise common.wrong(f"--chat {template.name}", f"a tokenizer with the special tokens {', '.join(missing)}",
                               f"{tokenizer.name}, which lacks them", "give another --tokenizer or --chat; --train-bpe "
                               "trains one with them", common.EXIT_USAGE)

    def encode(self, record: Any) -> tuple[np.ndarray, np.ndarray, bool]:
        """(tokens, mask, the token that ends the document counts)."""
        messages = messages_of(record, self.template)
        if not any(message.counts for message in messages):
            self.silent += 1
            self.roles.update(message.role for message in messages if message.role not in (*ROLES, *OTHER_ROLES))
        parts = [part for part in self.template.parts(messages, record) if part.text]
        self._count_left(messages, record, "".join(part.text for part in parts))
        ends = messages[-1].counts and self.template.end is None
        if isinstance(self.tokenizer, ByteTokenizer):
            data = [self.tokenizer.encode(part.text.encode("utf-8")) for part in parts]
            masks = [np.full(tokens.size, part.counts, np.uint8) for tokens, part in zip(data, parts)]
            return (np.concatenate([self.tokenizer.encode(b""), *data]),
                    np.concatenate([np.zeros(0, np.uint8), *masks]), ends)
        return (*self._whole(self.tokenizer, parts), ends)

    def before_answer(self, record: Any) -> np.ndarray:
        """Tokens of what comes before the first answer that counts, with what begins the turn."""
        parts = [part for part in self.template.parts(messages_of(record, self.template), record) if part.text]
        before = parts[:next((i for i, part in enumerate(parts) if part.counts), len(parts))]
        if isinstance(self.tokenizer, ByteTokenizer):
            return self.tokenizer.encode("".join(part.text for part in before).encode("utf-8"))
        return self._whole(self.tokenizer, before)[0]

    def _count_left(self, messages: list[Message], record: dict[str, Any], text: str) -> None:
        """What the template leaves out."""
        self.left.update(f"{name} of messages" for message in messages for name in CALLS
                         if message.rest.get(name) and not self.template.knows(name))
        self.left.update("thoughts of messages" for message in messages if message.thoughts not in text)
        if record.get("tools") and not self.template.knows("tools"):
            self.left["tools of conversations"] += 1

    def take_silent(self) -> tuple[int, Counter[str], Counter[str]]:
        """Since the last call: conversations without an answer, and their roles that are unknown; what is left out."""
        taken = self.silent, self.roles, self.left
        self.silent, self.roles, self.left = 0, Counter(), Counter()
        return taken

    def _whole(self, tokenizer: HuggingFaceTokenizer, parts: Sequence[Part]) -> tuple[np.ndarray, np.ndarray]:
        texts = [part.text if part.content else self.names.sub(lambda name: tokenizer.hidden[name[0]], part.text)
                 for part in parts]
        encoding = tokenizer.plain.encode("".join(texts), add_special_tokens=False)
        sizes = [len(text) for text in texts]
        # How many characters that count lie before each character: a token counts that has one.
        before = np.concatenate(([0], np.cumsum(np.repeat([part.counts for part in parts], sizes))))
        offsets = np.array(encoding.offsets, dtype=np.int64).reshape(-1, 2)
        mask = before[offsets[:, 1]] > before[offsets[:, 0]]
        return tokenizer.ids_of(encoding.ids), mask.astype(np.uint8)
