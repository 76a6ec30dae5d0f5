"""Which files a corpus has, of which kind, and in which order; and which were skipped, and why."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, NoReturn

from . import common, kinds
from .kinds import Kind

if TYPE_CHECKING:  # it reads the files
    from .encode import Encoded

EVERYTHING = "*"
EMPTY = "empty"
CARDS = ("readme", "license", "licence", "notice", "copying", "citation")  # without what follows a dot
SHOWN = 5  # names of files skipped for one reason


@dataclass(frozen=True)
class InputFile:
    """`name`: below its input folder, or as given."""

    name: str
    path: Path
    kind: Kind
    bytes: int


@dataclass(frozen=True)
class Passed:
    path: Path
    why: str
    bytes: int


@dataclass(frozen=True)
class Found:
    files: list[InputFile]
    passed: list[Passed]


def find_files(inputs: list[str], globs: list[str] | None = None, as_text: bool = False,
               fields: Collection[str] = ("text",)) -> Found:
    """Every file of documents, each once however often it is reached, sorted by name; those of equal names (in
    different folders) in the order of the inputs.

    A file that is named is read or refused. Of folders what is hidden is left out, and, unless `globs` ask for it, a
    dataset's cards; files of unreadable kinds are skipped. `fields`: an object with one is a record.
    """
    passed: list[Passed] = []
    listed: list[tuple[str, int, Path, bool]] = []
    for position, item in enumerate(inputs):
        root = Path(item)
        if root.is_dir():
            listed += [(str(path.relative_to(root)), position, path, False)
                       for path in files_below(root, globs or [EVERYTHING], passed)]
        elif root.is_file():
            listed.append((item, position, root, True))
        elif root.exists():
            raise common.wrong(item, "a file or a folder", "neither: a pipe or a device", "write it to a file first")
        else:
            raise common.ToolError(f"{item}: no such file or folder")
    states = {path: path.stat() for _, _, path, _ in listed}
    named = {(states[path].st_dev, states[path].st_ino) for _, _, path, is_named in listed if is_named}
    seen, files = set(), []
    for name, position, path, _ in sorted(listed):
        status = states[path]
        identity = (status.st_dev, status.st_ino)
        if identity in seen:
            continue
        seen.add(identity)
        is_named = identity in named
        if status.st_size == 0:
            passed.append(Passed(path, EMPTY, 0))
            continue
        kind = kinds.sniff(path, status.st_size, as_text, fields)
        if kind.is_read:
            files.append((position, is_named, InputFile(name, path, kind, status.st_size)))
        elif is_named or kind.fatal:
            raise common.wrong(path, kind.expected, kind.title + kind.detail, kind.change)
        else:
            passed.append(Passed(path, f"{kind.title}: {kind.change}", status.st_size))
    if globs is None:
        files = without_cards(files, passed)
    return Found([file for _, _, file in files], passed)


def files_below(root: Path, globs: list[str], passed: list[Passed]) -> Iterator[Path]:
    """Files whose path ends as one of `globs`; a folder that cannot be listed is an error."""
    def fail(error: OSError) -> NoReturn:
        raise error

    for folder, folders, names in os.walk(root, onerror=fail):
        below = Path(folder)
        for name in [each for each in (*folders, *names) if each.startswith(".")]:
            passed.append(Passed(below / name, "hidden", 0))
        folders[:] = [each for each in folders if not each.startswith(".")]
        for name in [each for each in folders if (below / each).is_symlink()]:
            passed.append(Passed(below / name, "a link to a folder: name the folder", 0))
        for name in names:
            path = below / name
            relative = PurePath(path.relative_to(root))
            if name.startswith(".") or not any(relative.match(pattern.removeprefix("**/")) for pattern in globs):
                continue
            if path.is_file():
                yield path
            else:
                passed.append(Passed(path, "not a file, or a broken link", 0))


def without_cards(files: list[tuple[int, bool, InputFile]], passed: list[Passed]) -> list[tuple[int, bool, InputFile]]:
    """A README or a licence in a folder of records says something about them; so does a README with YAML at its top."""
    with_records = {position for position, _, file in files if file.kind != kinds.TEXT}
    kept = []
    for position, is_named, file in files:
        stem = file.path.name.lower().partition(".")[0]
        if not is_named and file.kind == kinds.TEXT and stem in CARDS and \
                (position in with_records or has_front_matter(file.path)):
            passed.append(Passed(file.path, "a card of the dataset: --glob takes it", file.bytes))
        else:
            kept.append((position, is_named, file))
    return kept


def has_front_matter(path: Path) -> bool:
    with open(path, "rb") as file:
        return file.read(4) in (b"---\n", b"---\r")


def describe(passed: Iterable[Passed]) -> list[str]:
    """A line for each reason."""
    reasons: dict[str, list[Passed]] = {}
    for each in passed:
        reasons.setdefault(each.why, []).append(each)
    lines = []
    for why, found in reasons.items():
        names = ", ".join(str(each.path) for each in found[:SHOWN])
        more = f" and {len(found) - SHOWN:,} more" if len(found) > SHOWN else ""
        lines.append(f"skipped: {names}{more} ({why})")
    return lines


def order_files(files: list[InputFile], seed: int | None) -> list[InputFile]:
    """Sorted, or in an order drawn from the seed, the names and the rank among equal names alone."""
    if seed is None:
        return files
    used: Counter[str] = Counter()
    keyed = []
    for file in files:
        nth = used[file.name]
        used[file.name] += 1
        text = f"{seed}:{file.name}" + (f":{nth}" if nth else "")
        keyed.append((hashlib.blake2b(os.fsencode(text), digest_size=16).digest(), file.name, nth, file))
    return [file for _, _, _, file in sorted(keyed, key=lambda item: item[:3])]


@dataclass
class Answers:
    """Of a file of conversations."""

    conversations: int = 0
    counted: int = 0  # tokens in the loss
    silent: int = 0  # conversations without an answer
    roles: Counter[str] = field(default_factory=Counter)
    left: Counter[str] = field(default_factory=Counter)  # by the template

    def told(self) -> str:
        roles = ", ".join(f"{role!r} {count:,} times" for role, count in self.roles.most_common(SHOWN))
        return f"{self.silent:,} of {self.conversations:,} conversations without an answer" + \
            (f"; unknown roles: {roles}" if roles else "")


class Tally:
    """What was read of each kind, and what counts of each file of conversations."""

    def __init__(self, found: Found):
        self.kinds = {str(file.path): file.kind.title for file in found.files}
        self.passed = found.passed
        self.read: dict[str, list[int]] = {}  # files, documents, bytes
        self.last = ""
        self.answers: dict[str, Answers] = {}

    def add(self, part: Encoded) -> None:
        """Parts come file by file."""
        row = self.read.setdefault(self.kinds[part.path], [0, 0, 0])
        for i, value in enumerate((int(part.path != self.last), part.starts.size, part.bytes)):
            row[i] += value
        self.last = part.path
        if part.mask is not None:
            file = self.answers.setdefault(part.path, Answers())
            file.conversations += part.starts.size
            file.counted += int(part.mask.sum())
            file.silent += part.silent
            file.roles += part.roles
            file.left += part.left

    def check_answers(self) -> None:
        """A file of which nothing counts in the loss is an error."""
        for path, found in self.answers.items():
            if found.conversations and found.counted == 0:
                raise common.wrong(path, "answers, messages of the role assistant or completions", found.told(),
                                   "name the role of answers assistant, or leave the file out")

    def silent_lines(self) -> list[str]:
        lines = [f"warning: {path}: {found.told()}" for path, found in self.answers.items() if found.silent]
        return lines + [f"warning: {path}: left out by the chat template: {what}, {count:,} times"
                        for path, found in self.answers.items() for what, count in found.left.items()]

    def lines(self) -> list[str]:
        rows: list[tuple[str, ...]] = [("kind", "files", "documents", "bytes", "")]
        rows += [(kind, *(f"{value:,}" for value in values), "") for kind, values in sorted(self.read.items())]
        for why in dict.fromkeys(each.why for each in self.passed):
            sizes = [each.bytes for each in self.passed if each.why == why]
            rows.append(("skipped", f"{len(sizes):,}", "", f"{sum(sizes):,}", why))
        widths = [max(map(len, column)) for column in zip(*rows)]
        return ["  ".join(f"{cell:{align}{width}}" for cell, align, width in zip(row, "<>>><", widths)).rstrip()
                for row in rows]
