"""The commands that pip installs; a Python without numpy and h5py is told here, before a tool is loaded."""

from __future__ import annotations

import functools
import importlib

from . import common


def run(tool: str) -> int:
    """Runs nanotron_tools.<tool> on sys.argv; its exit code."""

    def main(argv: list[str] | None) -> int:
        common.require("numpy", "h5py")
        code: int = importlib.import_module(f"{__package__}.{tool}").main(argv)
        return code

    return common.run_main(main)


choices = functools.partial(run, "choices")
convert = functools.partial(run, "convert")
export = functools.partial(run, "export")
import_tokens = functools.partial(run, "import_tokens")
ls = functools.partial(run, "ls")
pairs = functools.partial(run, "pairs")
plot = functools.partial(run, "plot")
report = functools.partial(run, "report")
tokenize = functools.partial(run, "tokenize")
top = functools.partial(run, "top")
verify = functools.partial(run, "verify")
