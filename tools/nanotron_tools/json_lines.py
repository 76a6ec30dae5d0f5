"""Inputs that are lines of JSON, an object each."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from . import common


def refuse(where: str, expected: str, found: str) -> common.ToolError:
    return common.ToolError(f"{where}: expected {expected}\n  found:  {found}")


def object_of(text: str, where: str, fields: str) -> dict[str, Any]:
    """fields: what an error says that it has."""
    try:
        row = common.from_json(text)
    except ValueError as error:
        raise refuse(where, "a line of JSON", f"{text[:60]!r} ({error})") from None
    if not isinstance(row, dict):
        raise refuse(where, f"an object with the fields {fields}", f"{text[:60]!r}")
    if lone := common.lone_surrogate(json.dumps(row, ensure_ascii=False)):
        raise refuse(where, "texts", lone)
    return row


def read_objects(path: Path, fields: str) -> Iterator[tuple[int, str, dict[str, Any]]]:
    """Number of a line from 1, the words for it in errors, and its object; blank lines are left out."""
    if not path.is_file():
        raise common.ToolError(f"{path}: no such file")
    with open(path, encoding="utf-8", errors="strict") as file:
        try:
            for number, text in enumerate(file, 1):
                if text.strip():
                    where = f"{path}, line {number}"
                    yield number, where, object_of(text, where, fields)
        except UnicodeDecodeError as error:
            raise refuse(str(path), "text in UTF-8", str(error)) from None
