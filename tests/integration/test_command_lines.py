#!/usr/bin/env python3
# ranks: 1
# timeout: 120
"""What the programs and tools say to command lines without a run: help, and mistakes in them.

    test_command_lines.py <folder of the programs>
"""
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from runs import check, program, root

bin_folder = Path(program).parent
python = os.environ.get("NANOTRON_PYTHON", sys.executable)


def says(*command, of=None):
    done = subprocess.run([str(word) for word in command], text=True, capture_output=True, timeout=60, cwd=of,
                          stdin=subprocess.DEVNULL)
    return done.returncode, done.stdout + done.stderr


tools = sorted((root / "tools").glob("nanotron_*.py"))
check(len(tools) > 8, "there are tools")
for command in [*([bin_folder / name] for name in ("nanotron_hpc", "nanotron_bench", "nanotron_generate", "nanotron_plan")),
                *([python, tool] for tool in tools)]:
    code, text = says(*command, "--help")
    check(code == 0, f"{command[-1]} --help", text)
    wide = [line for line in text.splitlines() if len(line) > 80]
    check(not wide, f"the help of {command[-1]} has 80 columns", "\n".join(wide))
code, text = says(bin_folder / "nanotron_hpc", "--help", "parallel")
check(code == 0 and max(map(len, text.splitlines())) <= 80, "help of a group has 80 columns", text)

check(says(bin_folder / "nanotron_bench") == says(bin_folder / "nanotron_bench", "--help"),
      "nanotron_bench without arguments prints its help")
for name in ("nanotron_hpc", "nanotron_bench", "nanotron_plan"):
    code, text = says(bin_folder / name, "--set", "run.steps", "5", "x.deck")
    check(code == 78 and "'run.steps' lacks '=' and a value: --set run.steps=..." in text, f"{name}: an override without =", text)
code, text = says(bin_folder / "nanotron_hpc", "--set", "output.tensorboard=T", root / "input/quickstart.deck")
check(code == 78 and "nanotron-export" in text, "TensorBoard is the exporter's", text)
with tempfile.TemporaryDirectory(prefix="nanotron_lines_") as folder:
    for words in (("--check", root / "input/quickstart.deck"), ("--check", "here.deck")):
        code, text = says(bin_folder / "nanotron_hpc", *words, of=folder)
        name = "runs/quickstart/tokens.h5" if "here.deck" not in words else "here.deck"
        check(code in (65, 78) and f"{Path(folder).resolve()}/{name}\n" in text, f"the whole path of {name}", text)
for script in ("quickstart.sh", "install_dependencies.sh"):
    code, text = says(root / "jobscripts" / script, "--help")
    check(code == 0 and f"jobscripts/{script} [" in text, f"{script} --help", text)
print("command lines: help has 80 columns, mistakes are named")
