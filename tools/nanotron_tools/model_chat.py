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
OTHERS, WITH_TOOLS = "additional_chat_templates", "tool_use"  # transformers' folder of others, and that with tools
KEPT_BY = (str, str.strip, str.lstrip, str.rstrip)  # what templates do to white space around a content


@dataclass(frozen=True)
class ModelTemplate:
    """`turn`: the template, `tools_turn`: that of records with tools, if it is another; `variables`: names of special
    tokens."""

    turn: str
    variables: tuple[tuple[str, str], ...]
    date: str
    tools_turn: str = ""
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
        return self.knows("strftime_now")

    def knows(self, name: str) -> bool:
        return name in self.turn + self.tools_turn

    def render(self, messages: list[Message], contents: list[str], record: dict[str, Any], prompt: bool = False) -> str:
        """`prompt`: followed by what an answer begins with."""
        made = [{**each.rest, "role": each.role, "content": None if each.is_null else content}
                for each, content in zip(messages, contents)]
        tools = tools_of(record)
        return rendered(self.tools_turn if tools and self.tools_turn else self.turn, self.date,
                        {**dict(self.variables), "messages": made, "tools": tools, "documents": None,
                         "add_generation_prompt": prompt})

    def _literals(self, messages: list[Message], record: dict[str, Any]) -> list[str]:
        """The text before, between and after the contents, thoughts that they begin with not being part of them."""
        marks = {number: f"{MARKS[0]}{number}{MARKS[1]}" for number in with_content(messages)}
        rest = self.render(messages, [message.content[:thoughts_end(message)] + marks.get(number, "")
                                      for number, message in enumerate(messages)], record)
        found = []
        for number, mark in marks.items():
            if rest.count(mark) != 1:
                raise WrongChat("a template that has the content of each message once, in their order",
                                f"message {number}, of the role {messages[number].role}: {rest.count(mark)} times")
            before, _, rest = rest.partition(mark)
            found.append(before)
        return [*found, rest]

    def parts(self, messages: list[Message], record: dict[str, Any]) -> list[Part]:
        literals = self._literals(messages, record)
        text = self.render(messages, [message.content for message in messages], record)
        result, at, places = [Part(literals[0], False, False)], len(literals[0]), dict[int, tuple[int, int]]()
        if not text.startswith(literals[0]):
            raise self._rewritten(0, messages[0])
        for number, after in zip(with_content(messages), literals[1:]):
            message = messages[number]
            kept = [keep(message.content[thoughts_end(message):]) for keep in KEPT_BY]
            content = next((each for each in kept if text.startswith(each + after, at)), None)
            if content is None:
                raise self._rewritten(number, message)
            result.append(Part(content, message.counts, True))
            places[number] = at, at + len(content)
            at += len(content) + len(after)
            size = chat.end_of(after, (self.end,))[1] if self.end else len(after)
            result += [Part(after[:size], message.counts, False), Part(after[size:], False, False)]
        if at != len(text):
            raise self._rewritten(len(messages) - 1, messages[-1])
        more = [number for number, message in enumerate(messages) if message.counts and self._has_more(message, text)]
        return counted(result, [self._answer(number, messages, record, text, places) for number in more])

    def _has_more(self, message: Message, text: str) -> bool:
        """The rendered text has calls or thoughts of the message."""
        calls = message.calls and any(map(self.knows, chat.CALLS))
        return calls or (message.thoughts != "" and message.thoughts in text)

    def _answer(self, number: int, messages: list[Message], record: dict[str, Any], text: str,
                places: dict[int, tuple[int, int]]) -> tuple[int, int]:
        """Where the answer with its calls and thoughts is: from the end of what asks for it to its end token."""
        before = messages[:number]
        prompt = self.render(before, [message.content for message in before], record, True)
        limit = min((begin for other, (begin, _) in places.items() if other > number), default=len(text))
        end = text.find(self.end, max(len(prompt), places.get(number, (0, 0))[1]), limit) if self.end else -1
        if end < 0 or not text.startswith(prompt):
            raise WrongChat("a template whose answers with tool calls or thoughts begin where its prompt for one ends, "
                            f"and end with {self.end}", f"message {number} otherwise")
        return len(prompt), end + len(self.end or "")

    @staticmethod
    def _rewritten(number: int, message: Message) -> WrongChat:
        return WrongChat("messages whose contents the model's template leaves unchanged, except white space around",
                         f"message {number}, of the role {message.role}, rewritten: {message.content[:60]!r}")


def thoughts_end(message: Message) -> int:
    """Where in the content of an answer what follows its thoughts begins."""
    at = message.content.rfind(chat.THOUGHT_END) if message.role == chat.ANSWERS else -1
    return at + len(chat.THOUGHT_END) if at >= 0 else 0


def with_content(messages: list[Message]) -> list[int]:
    """Messages whose contents are in the text; a call needs none."""
    return [number for number, message in enumerate(messages) if message.content or not message.calls]


def counted(parts: list[Part], answers: list[tuple[int, int]]) -> list[Part]:
    """The parts, where these places of their text count too."""
    result, at = [], 0
    for part in parts:
        end = at + len(part.text)
        cuts = sorted({at, end, *(cut for answer in answers for cut in answer if at < cut < end)})
        result += [replace(part, text=part.text[a - at:b - at], counts=part.counts or
                           any(begin <= a and b <= stop for begin, stop in answers)) for a, b in zip(cuts, cuts[1:])]
        at = end
    return result


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
                           "fix it, or give another --chat") from None
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
    others = {path.stem: path.read_text(encoding="utf-8") for path in (folder / OTHERS).glob("*.jinja")}
    if isinstance(source, list):  # several, with names
        others |= {each.get("name"): each.get("template") for each in source}
        source = others.get("default")
    if not isinstance(source, str):
        return None
    names = json_in(folder / "special_tokens_map.json") | config
    found = {name: names[name] for name in NAMES if names.get(name)}
    variables = {name: value["content"] if isinstance(value, dict) else str(value) for name, value in found.items()}
    return ModelTemplate(source, tuple(variables.items()), date, others.get(WITH_TOOLS, ""))


def json_in(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        found = common.from_json(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise common.wrong(path, "JSON", str(error), "fetch it again, or give another --chat") from None
    return found if isinstance(found, dict) else {}
