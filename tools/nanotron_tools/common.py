"""What all tools share: errors and exit codes, packages, the command line. Python's own packages alone."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import io
import json
import os
import re
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

from . import __version__

EXIT_USAGE = 64
EXIT_DATA = 65
EXIT_SYSTEM = 71
EXIT_INTERRUPTED = 130  # as a shell says of SIGINT
ROOT = Path(__file__).resolve().parents[2]  # of a checkout
PROJECT_PYTHON = ROOT / "build" / "venv" / "bin" / "python"


class ToolError(Exception):
    """A mistake that the user can fix; the tools print it and end with `exit_code`."""

    def __init__(self, message: str, exit_code: int = EXIT_DATA):
        super().__init__(message)
        self.exit_code = exit_code


class BadRecord(ToolError):
    """A record of a corpus that cannot be used; --skip-bad leaves it out."""


def wrong(where: object, expected: str, found: str, change: str, exit_code: int = EXIT_DATA) -> ToolError:
    return ToolError(f"{where}: expected {expected}\n  found:  {found}\n  change: {change}", exit_code)


def beside(path: Path) -> Path:
    """<path>.tmp, for what becomes `path` when it is complete: whatever has that name, as a link, is gone."""
    if path.exists() and not path.is_file():
        raise wrong(path, "a file, or a name that is free", "a folder or a device", "give another name")
    temporary = path.with_name(path.name + ".tmp")
    temporary.unlink(missing_ok=True)
    return temporary


def from_json(text: str | bytes) -> Any:
    """json.loads; what is nested too deeply for Python is a ValueError too."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def lone_surrogate(text: str) -> str:
    """What is wrong with a text that no encoding has, '' with others."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        return f"a lone surrogate, \\u{ord(text[error.start]):04x}, at character {error.start} (counted from 0)"
    return ""


def how_to_get(missing: list[str]) -> str:
    """What to run where packages are missing: the project's Python if it is another, or pip."""
    install = f"{sys.executable or 'python3'} -m pip install {' '.join(missing)}"
    if PROJECT_PYTHON.is_file() and os.path.abspath(sys.executable) != str(PROJECT_PYTHON):
        return f"run the tool with {PROJECT_PYTHON}, or: {install}"
    script = "jobscripts/install_dependencies.sh"
    return install + (f"; or make build/venv with {script}" if (ROOT / script).is_file() else "")


def require(*names: str) -> Any:
    """The packages of these names, all that are missing named at once; ToolError with exit code 71."""
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    if not missing:
        try:
            modules = [importlib.import_module(name) for name in names]
            return modules[0] if len(modules) == 1 else modules
        except ImportError as error:  # built for another Python or another numpy
            found = f"it cannot be loaded: {error}"
    else:
        found = "this Python has no " + ", ".join(missing)
    version = ".".join(map(str, sys.version_info[:3]))
    raise ToolError(f"expected the Python package{'s' * (len(names) > 1)} {', '.join(names)}\n  found:  {found}\n"
                    f"  where:  {sys.executable or 'python3'}, version {version}\n"
                    f"  change: {how_to_get(missing or list(names))}", EXIT_SYSTEM)


def check_picture(option: str, path: Path) -> None:
    """Refuses a name whose ending is that of no format of matplotlib, before any work."""
    require("matplotlib")
    from matplotlib.backend_bases import FigureCanvasBase

    endings = sorted("." + name for name in FigureCanvasBase.get_supported_filetypes())
    if path.suffix.lower() not in endings:
        raise wrong(f"{option} {path}", "a picture", f"the ending '{path.suffix}'", "one of " + ", ".join(endings),
                    EXIT_USAGE)


def for_each(paths: list[Path], one: Callable[[Path], int | None]) -> int:
    """The highest exit code of one(path); an error of one path is printed, and the others follow."""
    worst = 0
    for path in paths:
        try:
            worst = max(worst, one(path) or 0)
        except ToolError as error:
            print(f"{Path(sys.argv[0]).name}: error: {error}", file=sys.stderr)
            worst = max(worst, error.exit_code)
    return worst


def run_main(main: Callable[[list[str] | None], int], argv: list[str] | None = None) -> int:
    """Calls main(argv) and turns ToolError into one message on stderr and an exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal of another encoding shows '?'
    try:
        return main(argv)
    except ToolError as error:
        print(f"{Path(sys.argv[0]).name}: error: {error}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        print(f"{Path(sys.argv[0]).name}: error: {error}", file=sys.stderr)
        return EXIT_SYSTEM
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def fitted(doc: str, width: int = 80) -> str:
    """The text with lines of at most `width` characters: prose is filled; what a longer indented line, a command or a
    row of a table, has beyond its last column begins below that."""
    lines: list[str] = []
    prose: list[str] = []
    for line in [*doc.splitlines(), ""]:
        begins = not line or line[0] == " " or line.startswith(("--", "Exit codes"))
        if begins and prose:
            lines += textwrap.wrap(" ".join(prose), width, break_long_words=False, break_on_hyphens=False)
            prose = []
        if line and line[0] != " ":
            prose.append(line)
        elif len(line) <= width:
            lines.append(line)
        else:
            column = re.match(r" *(?:\S+(?: \S+)* {2,}(?=\S))?", line)
            indent = len(line) - len(line.lstrip())
            at = column.end() if column and indent < column.end() < 50 else indent
            lines += textwrap.wrap(line[at:], width, initial_indent=line[:at], break_long_words=False,
                                   subsequent_indent=" " * (at + 2 * (at == indent)), break_on_hyphens=False)
    return "\n".join(lines).rstrip() + "\n"


def parser(doc: str | None) -> argparse.ArgumentParser:
    """A command line that prints the documentation of its module, with the name it was called by."""
    name = Path(sys.argv[0]).name
    description = re.sub(r"^    nanotron-\w+", "    " + name, doc or "", flags=re.MULTILINE)
    made = argparse.ArgumentParser(description=fitted(description),
                                   formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--version", action="version", version=f"{name} {__version__} of nanotron_hpc")
    return made
