"""XXH3-64, of the package `xxhash` or of the library libxxhash.so.0."""

from __future__ import annotations

import ctypes
import ctypes.util
from collections.abc import Callable

from . import common


def load() -> Callable[[bytes | memoryview], int] | None:
    try:
        import xxhash

        return lambda data: xxhash.xxh3_64_intdigest(data)
    except ImportError:
        pass
    for name in ("libxxhash.so.0", ctypes.util.find_library("xxhash")):
        try:
            library = ctypes.CDLL(name) if name else None
            function = library.XXH3_64bits if library else None
        except (OSError, AttributeError):
            continue
        if function:
            function.restype = ctypes.c_uint64
            function.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
            return lambda data: function(bytes(data), len(data))
    return None


_XXH3: Callable[[bytes | memoryview], int] | None = None


def xxh3_64(data: bytes | memoryview) -> int:
    """XXH3-64 with seed 0."""
    global _XXH3
    if _XXH3 is None:
        _XXH3 = load()
    if _XXH3 is None:
        raise common.ToolError("expected XXH3 for the hashes of blocks, found neither the Python package xxhash "
                               "nor libxxhash.so.0; " + common.how_to_get(["xxhash"]) + "; or install libxxhash0",
                               common.EXIT_SYSTEM)
    return _XXH3(data)
