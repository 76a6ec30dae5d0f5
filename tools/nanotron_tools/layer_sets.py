"""Sets of layers as the deck writes them: 'all', 'none', 'a:b' (of each a + b layers the first a), or a list such as
'0-2 5'. '!' in front means all other layers.
"""

from __future__ import annotations

import re
from collections.abc import Sequence


def flags_of(text: str, layers: int) -> list[bool]:
    """Which of the layers the text names; ValueError for anything else."""
    text = text.strip()
    if text.startswith("!"):
        return [not flag for flag in flags_of(text[1:], layers)]
    if text in ("all", "none"):
        return [text == "all"] * layers
    if found := re.fullmatch(r"(\d+)\s*:\s*(\d+)", text):
        first, others = int(found[1]), int(found[2])
        return [layer % (first + others) < first for layer in range(layers)]
    flags = [False] * layers
    for word in re.split(r"[\s,]+", text):
        begin, _, end = word.partition("-")
        for layer in range(int(begin), int(end or begin) + 1):
            flags[layer] = True
    return flags


def text_of(flags: Sequence[bool]) -> str:
    """The shortest of 'all', 'none', a period, a list, the complement of a list."""
    if all(flags) or not any(flags):
        return "all" if all(flags) else "none"
    layers = len(flags)
    for period in range(2, layers + 1):
        first = sum(flags[:period])
        if 0 < first < period and list(flags) == [layer % period < first for layer in range(layers)]:
            return f"{first}:{period - first}"
    lists = _list_of(flags), "!" + _list_of([not flag for flag in flags])
    return min(lists, key=len)


def _list_of(flags: Sequence[bool]) -> str:
    words, begin = [], None
    for layer, flag in enumerate((*flags, False)):
        if flag and begin is None:
            begin = layer
        elif not flag and begin is not None:
            words.append(f"{begin}-{layer - 1}" if layer - 1 > begin else f"{begin}")
            begin = None
    return " ".join(words)
