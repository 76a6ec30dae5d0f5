"""nanotron-convert merge, from-peft and to-peft."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from . import adapters, common
from . import checkpoint as checkpoint_file
from . import safetensors as st

CheckTarget = Callable[[Path, argparse.Namespace], None]


def merge(options: argparse.Namespace) -> int:
    source = checkpoint_file.resolve_checkpoint(options.source)
    folder = Path(options.target) / source.name
    options.check_target(folder, options)
    adapters.write_merged(source, options.base, folder)
    print(f"{folder}: the weights of {source} merged into those of its base")
    return 0


def from_peft(options: argparse.Namespace) -> int:
    options.check_target(Path(options.target) / "step_00000000", options)
    print(adapters.from_peft(Path(options.source), Path(options.base), Path(options.target), options.seed), end="")
    return 0


def to_peft(options: argparse.Namespace) -> int:
    folder, target = checkpoint_file.resolve_checkpoint(options.source), Path(options.target)
    if (target / adapters.PEFT_CONFIG).exists() and not options.overwrite:
        raise common.ToolError(f"{target}: holds an adapter already; --overwrite replaces it")
    adapters.to_peft(folder, options.base, target, st.DTYPES[options.dtype])
    print(f"{target}: adapters as {options.dtype}, from {folder}")
    return 0


def with_base(command: argparse.ArgumentParser) -> argparse.ArgumentParser:
    command.add_argument("--base", type=Path, metavar="FOLDER",
                         help="checkpoint that adapters were trained on, if it has moved")
    return command


def add_commands(commands: Any, check_target: CheckTarget) -> list[argparse.ArgumentParser]:
    merged = with_base(commands.add_parser(
        "merge", help="adapters of a run with &lora -> checkpoint with whole weights"))
    merged.add_argument("source", help="step folder, checkpoints folder or run folder with adapters")
    merged.add_argument("target", help="folder that gets the step folder")
    merged.set_defaults(run=merge, check_target=check_target)
    read = commands.add_parser("from-peft", help="PEFT's folder -> checkpoint with adapters")
    read.add_argument("source", help=f"folder with {adapters.PEFT_CONFIG} and {adapters.PEFT_WEIGHTS}")
    read.add_argument("base", help="checkpoint with the weights that they belong to")
    read.add_argument("target", help="folder that gets step_00000000 and lora.nml")
    read.add_argument("--seed", type=int, default=1234, help="seed noted in the checkpoint")
    read.set_defaults(run=from_peft, check_target=check_target)
    for command in (merged, read):
        command.add_argument("--beside-later", action="store_true", help="even where the folder has later checkpoints")
    write = with_base(commands.add_parser("to-peft", help="adapters of a run with &lora -> PEFT's folder"))
    write.add_argument("source", help="step folder, checkpoints folder or run folder with adapters")
    write.add_argument("target", help=f"folder that gets {adapters.PEFT_CONFIG} and {adapters.PEFT_WEIGHTS}")
    write.add_argument("--dtype", choices=list(st.DTYPES), default="fp32")
    write.set_defaults(run=to_peft)
    return [merged, read, write]
