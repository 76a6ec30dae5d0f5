"""Conversations as documents with a loss mask: templates, and which tokens count.

A record is {"messages": [{"role": ..., "content": ...}, ...]}, {"conversations": [{"from": ..., "value": ...}, ...]}
(ShareGPT's, from human, gpt or system) or {"prompt": ..., "completion": ...}, where both are texts or both lists of
messages. What counts in the loss are the answers: of `messages` those of the role
assistant (unless they have "weight": 0), of a pair the completion. An answer's tokens are those of its content and
the special token of the template right after it; where there is none, the rest of the turn, and the token that
ends the document. A token with characters of an answer and of the template counts.

The text of a conversation is encoded whole, as Hugging Face's apply_chat_template has it. Names of special tokens in a
content stay text: such a conversation is encoded between the special tokens of the template, each part for itself.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import common
from .tokenizers import ByteTokenizer, HuggingFaceTokenizer, Tokenizer

SPECIAL = re.compile(r"<\|[^|<>]+\|>")
ANSWERS = "assistant"
SHAREGPT = {"human": "user", "user": "user", "gpt": ANSWERS, "assistant": ANSWERS, "system": "system"}


@dataclass(frozen=True)
class Template:
    """`turn`: of each message, with {role} and {content}."""

    name: str
    turn: str
    bos: str | None = None
    strip: bool = False  # white space around contents

    @property
    def end(self) -> str | None:
        """The special token right after a content."""
        found = SPECIAL.match(self.turn.split("{content}")[1])
        return found[0] if found else None

    @property
    def special(self) -> list[str]:
        return list(dict.fromkeys([*([self.bos] if self.bos else []), *SPECIAL.findall(self.turn)]))


CONCATENATE = Template("concatenate", "{content}")
TEMPLATES = {made.name: made for made in (
    Template("chatml", "<|im_start|>{role}\n{content}<|im_end|>\n"),
    Template("llama3", "<|start_header_id|>{role}<|end_header_id|>\n\n{content}<|eot_id|>", "<|begin_of_text|>", True),
    CONCATENATE)}


def template_of(text: str) -> Template:
    if text in TEMPLATES:
        return TEMPLATES[text]
    turn = text.replace("\\n", "\n")
    if turn.count("{content}") != 1 or turn.count("{role}") > 1 or turn.find("{role}") > turn.find("{content}"):
        raise common.wrong("--chat", f"{', '.join(TEMPLATES)}, or a turn of your own", repr(text),
                           "give one of these, or {role} and then one {content}, as '### {role}:\\n{content}\\n'",
                           common.EXIT_USAGE)
    return Template("turns", turn)


@dataclass(frozen=True)
class Message:
    role: str
    content: str
    counts: bool


class WrongChat(Exception):
    """(expected, found)"""


def content_of(value: Any, what: str) -> str:
    if isinstance(value, list) and all(isinstance(part, dict) and part.get("type") == "text" and
                                       isinstance(part.get("text"), str) for part in value):
        return "".join(part["text"] for part in value)
    if not isinstance(value, str):
        raise WrongChat(f"{what} that is a text, or a list of parts of the type text", repr(value)[:80])
    return value


def messages_in(items: Any, what: str, answers: bool) -> list[Message]:
    if not isinstance(items, list) or not items:
        raise WrongChat(f"{what}, a list of objects with role and content", repr(items)[:80])
    found = []
    for number, item in enumerate(items):
        if not isinstance(item, dict) or not isinstance(item.get("role"), str):
            raise WrongChat(f"{what}[{number}] with a role", repr(item)[:80])
        content = content_of(item.get("content"), f"{what}[{number}] with a content")
        found.append(Message(item["role"], content, answers and item["role"] == ANSWERS and item.get("weight") != 0))
    return found


def messages_of_sharegpt(items: Any) -> list[dict[str, Any]]:
    """{"from", "value"} as {"role", "content"}."""
    if not isinstance(items, list) or not items:
        raise WrongChat("conversations, a list of objects with from and value", repr(items)[:80])
    for number, item in enumerate(items):
        if not isinstance(item, dict) or not isinstance(item.get("from"), str) or item["from"] not in SHAREGPT:
            raise WrongChat(f"conversations[{number}] from one of {', '.join(SHAREGPT)}", repr(item)[:80])
        content_of(item.get("value"), f"conversations[{number}] with a value")
    return [{"role": SHAREGPT[item["from"]], "content": item["value"], "weight": item.get("weight")} for item in items]


def messages_of(record: Any, template: Template) -> list[Message]:
    if not isinstance(record, dict):
        raise WrongChat("an object with messages, with conversations, or with prompt and completion", repr(record)[:80])
    for field in ("messages", "conversations"):
        if record.get(field) is None:
            continue
        if template is CONCATENATE:
            raise WrongChat("prompt and completion (--chat concatenate has no roles)", field)
        items = record[field] if field == "messages" else messages_of_sharegpt(record[field])
        return messages_in(items, field, True)
    if "prompt" not in record or "completion" not in record:
        raise WrongChat("messages, conversations, or prompt and completion",
                        "the fields " + ", ".join(map(str, record))[:200])
    prompt, completion = record["prompt"], record["completion"]
    if isinstance(prompt, list) and isinstance(completion, list) and template is not CONCATENATE:
        return messages_in(prompt, "prompt", False) + messages_in(completion, "completion", True)
    return [Message("user", content_of(prompt, "a prompt"), False),
            Message(ANSWERS, content_of(completion, "a completion"), True)]


def texts_of(record: Any, template: Template) -> list[bytes]:
    return [message.content.encode("utf-8", "replace") for message in messages_of(record, template)]


class ChatEncoder:
    """Tokens and mask of conversations, without the tokens that begin and end a document."""

    def __init__(self, template: Template, tokenizer: Tokenizer):
        self.template, self.tokenizer = template, tokenizer
        self.turn = template.turn.split("{content}")
        self.names = re.compile(r"(?!)")
        if isinstance(tokenizer, HuggingFaceTokenizer):
            added = tokenizer.tokenizer.get_added_tokens_decoder().values()
            special = [token.content for token in added if token.special]
            if special:
                self.names = re.compile("|".join(map(re.escape, sorted(special, key=len, reverse=True))))
            missing = [name for name in template.special if name not in special]
        else:
            missing = template.special
        if missing:
            raise common.wrong(f"--chat {template.name}", f"a tokenizer with the special tokens {', '.join(missing)}",
                               f"{tokenizer.name}, which has not", "give another --tokenizer or --chat; --train-bpe "
                               "trains one with them", common.EXIT_USAGE)

    def parts(self, messages: list[Message]) -> list[tuple[str, bool, bool]]:
        """(text, counts, is the content of a message) one after another."""
        end = self.template.end or ""
        result = []
        for message in messages:
            before = self.turn[0].replace("{role}", message.role)
            after = self.turn[1]
            content = (message.content.strip() if self.template.strip else message.content)
            content = content.encode("utf-8", "replace").decode("utf-8")  # no lone surrogates
            result += [(before, False, False), (content, message.counts, True)]
            result += [(end, message.counts, False), (after[len(end):], False, False)] if end else \
                [(after, message.counts, False)]
        return [part for part in result if part[0]]

    def encode(self, record: Any) -> tuple[np.ndarray, np.ndarray, bool]:
        """(tokens, mask, the token that ends the document counts)."""
        messages = messages_of(record, self.template)
        parts = self.parts(messages)
        ends = messages[-1].counts and self.template.end is None
        if isinstance(self.tokenizer, ByteTokenizer):
            data = [self.tokenizer.encode(text.encode("utf-8")) for text, _, _ in parts]
            masks = [np.full(tokens.size, counts, np.uint8) for tokens, (_, counts, _) in zip(data, parts)]
            return (np.concatenate([self.tokenizer.encode(b""), *data]),
                    np.concatenate([np.zeros(0, np.uint8), *masks]), ends)
        if any(content and self.names.search(text) for text, _, content in parts):
            tokens, mask = self._between_special(self.tokenizer, parts)
        else:
            tokens, mask = self._whole(self.tokenizer, self.tokenizer.tokenizer, parts)
        return tokens, mask, ends

    @staticmethod
    def _whole(tokenizer: HuggingFaceTokenizer, package: Any,
               parts: list[tuple[str, bool, bool]]) -> tuple[np.ndarray, np.ndarray]:
        encoding = package.encode("".join(text for text, _, _ in parts), add_special_tokens=False)
        ends = np.cumsum([0] + [len(text) for text, _, _ in parts])
        # How many characters that count lie before each character: a token counts that has one.
        before = np.concatenate(([0], np.cumsum(np.repeat([counts for _, counts, _ in parts], np.diff(ends)))))
        offsets = np.array(encoding.offsets, dtype=np.int64).reshape(-1, 2)
        mask = before[offsets[:, 1]] > before[offsets[:, 0]]
        return tokenizer.ids_of(encoding.ids), mask.astype(np.uint8)

    def _between_special(self, tokenizer: HuggingFaceTokenizer,
                         parts: list[tuple[str, bool, bool]]) -> tuple[np.ndarray, np.ndarray]:
        """Special tokens of the template as such, everything between two of them as text."""
        runs: list[list[tuple[str, bool, bool]]] = [[]]
        pieces: list[tuple[np.ndarray, np.ndarray]] = []
        for text, counts, content in parts:
            found = [] if content else self.names.findall(text)
            for plain, name in zip(self.names.split(text) if found else [text], [*found, ""]):
                runs[-1].append((plain, counts, content))
                if name:
                    runs += [[(name, counts, False)], []]
        for number, run in enumerate(runs):
            package = tokenizer.plain if number % 2 == 0 else tokenizer.tokenizer
            pieces.append(self._whole(tokenizer, package, [part for part in run if part[0]]))
        return np.concatenate([tokens for tokens, _ in pieces]), np.concatenate([mask for _, mask in pieces])
