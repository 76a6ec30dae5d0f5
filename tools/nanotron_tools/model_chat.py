"""The chat template of a model (Jinja, beside its tokenizer.json), rendered as transformers' apply_chat_template does.

Where the contents of the messages are in the rendered text is found by a second rendering with marks in their place.
A date comes from the option alone, so that the same command makes the same tokens on every day.
"""

from __future__ import annotations

import datetime
import functools
import importlib
import json
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

from . import chat, common
from .chat import Message, Part, WrongChat

DATE = "2024-07-26"  # that of Llama 3.1's template where there is no clock
MARKS = "\ue000", "\ue001"  # around the number of a message; private characters
NAMES = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")
KEPT_BY = (str, str.strip, str.lstrip, str.rstrip)  # what templates do to white space around a content


@dataclass(frozen=True)
class ModelTemplate:
    """`turn`: the template; `variables`: names of special tokens."""

    turn: str
    variables: tuple[tuple[str, str], ...]
    date: str
    end: str | None = None
    name: str = "model"
    bos: str | None = None
    required: tuple[str, ...] = ()

    def resolved(self, special: Collection[str]) -> ModelTemplate:
        """With the end that an answer to a question has."""
        question = [Message("user", "a", False), Message(chat.ANSWERS, "b", True)]
        try:
            after = self._literals(question, {})[-1]
        except WrongChat as error:
            raise common.wrong("--chat model", f"a template that renders a question and an answer: {error.args[0]}",
                               str(error.args[1]), "give another --chat") from None
        return replace(self, end=chat.end_of(after, special)[0])

    def begins_with(self, token: str) -> bool:
        return self._literals([Message("user", "a", False), Message(chat.ANSWERS, "b", True)], {})[0].startswith(token)

    def uses_date(self) -> bool:
        return "strftime_now" in self.turn

    def render(self, messages: list[Message], contents: list[str], record: dict[str, Any]) -> str:
        made = [{**each.rest, "role": each.role, "content": content} for each, content in zip(messages, contents)]
        return rendered(self.turn, self.date, {**dict(self.variables), "messages": made, "tools": tools_of(record),
                                               "documents": None, "add_generation_prompt": False})

    def _literals(self, messages: list[Message], record: dict[str, Any]) -> list[str]:
        """The text before, between and after the contents."""
        marks = [f"{MARKS[0]}{number}{MARKS[1]}" for number in range(len(messages))]
        rest = self.render(messages, marks, record)
        found = []
        for number, mark in enumerate(marks):
            if rest.count(mark) != 1:
                raise WrongChat("a template that has the content of each message once, in their order",
                                f"message {number}, of the role {messages[number].role}: {rest.count(mark)} times")
            before, _, rest = rest.partition(mark)
            found.append(before)
        return [*found, rest]

    def parts(self, messages: list[Message], record: dict[str, Any]) -> list[Part]:
        literals = self._literals(messages, record)
        text = self.render(messages, [message.content for message in messages], record)
        result, at = [Part(literals[0], False, False)], len(literals[0])
        if not text.startswith(literals[0]):
            raise self._rewritten(0, messages[0])
        for number, (message, after) in enumerate(zip(messages, literals[1:])):
            kept = [keep(message.content) for keep in KEPT_BY]
            content = next((each for each in kept if text.startswith(each + after, at)), None)
            if content is None:
                raise self._rewritten(number, message)
            result.append(Part(content, message.counts, True))
            at += len(content) + len(after)
            size = chat.end_of(after, (self.end,))[1] if self.end else len(after)
            result += [Part(after[:size], message.counts, False), Part(after[size:], False, False)]
        if at != len(text):
            raise self._rewritten(len(messages) - 1, messages[-1])
        return result

    @staticmethod
    def _rewritten(number: int, message: Message) -> WrongChat:
        return WrongChat("messages whose contents the model's template leaves as they are, but for white space around",
                         f"message {number}, of the role {message.role}, rewritten: {message.content[:60]!r}")


def tools_of(record: dict[str, Any]) -> list[Any] | None:
    """A list, or JSON of one, as some datasets have it."""
    tools = record.get("tools")
    if isinstance(tools, str) and tools:
        try:
            tools = common.from_json(tools)
        except ValueError:
            raise WrongChat("tools, a list or JSON of one", repr(tools)[:80]) from None
    if tools and not isinstance(tools, list):
        raise WrongChat("tools, a list or JSON of one", repr(tools)[:80])
    return tools or None


def refuse(message: str) -> NoReturn:
    raise WrongChat("a conversation that the model's template accepts", message)


@functools.cache
def compiled(source: str, date: str) -> Any:
    """As transformers compiles it, in a sandbox."""
    common.require("jinja2")
    extensions, sandbox = importlib.import_module("jinja2.ext"), importlib.import_module("jinja2.sandbox")

    class Generation(extensions.Extension):  # type: ignore[misc, name-defined]
        """{% generation %} marks answers; here they are known."""

        tags = {"generation"}  # noqa: RUF012, as Jinja has it

        def parse(self, parser: Any) -> Any:
            next(parser.stream)
            return parser.parse_statements(["name:endgeneration"], drop_needle=True)

    environment = sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                                        extensions=[Generation, extensions.LoopControlExtension])
    environment.filters["tojson"] = to_json
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = datetime.datetime.fromisoformat(date).strftime
    return environment.from_string(source)


def to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: Any = None,
            sort_keys: bool = False) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def rendered(source: str, date: str, variables: dict[str, Any]) -> str:
    jinja2 = common.require("jinja2")
    try:
        template = compiled(source, date)
    except jinja2.TemplateSyntaxError as error:
        raise common.wrong("--chat model", "a template of Jinja", f"{error}, in its line {error.lineno}",
                           "mend it, or give another --chat") from None
    try:
        text: str = template.render(**variables)
    except (jinja2.TemplateError, TypeError, ValueError) as error:
        raise WrongChat("a conversation that the model's template renders", str(error)[:200]) from None
    return text


def read(tokenizer: Path, date: str) -> ModelTemplate | None:
    """The template beside a tokenizer.json, or in its folder; None where there is none."""
    folder = tokenizer if tokenizer.is_dir() else tokenizer.parent
    config = json_in(folder / "tokenizer_config.json")
    source: Any = config.get("chat_template")
    if (folder / "chat_template.jinja").is_file():
        source = (folder / "chat_template.jinja").read_text(encoding="utf-8")
    elif (folder / "chat_template.json").is_file():
        source = json_in(folder / "chat_template.json").get("chat_template")
    if isinstance(source, list):  # several, with names
        source = next((each.get("template") for each in source if each.get("name") == "default"), None)
    if not isinstance(source, str):
        return None
    names = json_in(folder / "special_tokens_map.json") | config
    found = {name: names[name] for name in NAMES if names.get(name)}
    variables = {name: value["content"] if isinstance(value, dict) else str(value) for name, value in found.items()}
    return ModelTemplate(source, tuple(variables.items()), date)


def json_in(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        found = common.from_json(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise common.wrong(path, "JSON", str(error), "fetch it again, or give another --chat") from None
    return found if isinstance(found, dict) else {}
