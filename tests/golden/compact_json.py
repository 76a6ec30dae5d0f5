"""The files of golden values: few lines, and a change of one result is a change of one line."""

import json
from pathlib import Path


def depth(value) -> int:
    """Of objects within objects."""
    return 1 + max(map(depth, value.values()), default=0) if isinstance(value, dict) else 0


def text_of(value, indent="") -> str:
    """On one line, unless an object holds tables (objects of objects)."""
    return spread(value, indent) if depth(value) > 2 else json.dumps(value)


def spread(value, indent="") -> str:
    """A line for each entry."""
    inner = indent + " "
    entries = (f"{inner}{json.dumps(key)}: {text_of(entry, inner)}" for key, entry in value.items())
    return "{\n" + ",\n".join(entries) + f"\n{indent}}}"


def write(path: Path, value: dict):
    path.write_text(spread(value) + "\n", encoding="utf-8")
