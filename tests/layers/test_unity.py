#!/usr/bin/env python3
# timeout: 300
"""The layers that NANOTRON_UNITY compiles a dozen sources at a time compile so: their sources have no names in common.

    test_unity.py <folder of the programs>

The options are those of the build (compile_commands.json). With NANOTRON_SEED and without NANOTRON_FULL one layer, another
one for the next seed.
"""
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests/support"))
from skips import skip  # noqa: E402

BATCH = int(re.search(r"UNITY_BUILD_BATCH_SIZE (\d+)", (ROOT / "cmake/NanotronTargets.cmake").read_text()).group(1))


def problems_of(commands, scratch):
    """commands: of sources that are compiled as one."""
    source = scratch / "unity.cpp"
    source.write_text("".join(f'#include "{entry["file"]}"\n' for entry in commands))
    words = shlex.split(commands[0]["command"])
    words[words.index("-o") + 1] = "/dev/null"
    words[words.index("-c") + 1] = str(source)
    done = subprocess.run([word for word in words if "ccache" not in word] + ["-fsyntax-only"], cwd=commands[0]["directory"],
                          text=True, capture_output=True, check=False)
    return done.stderr if done.returncode != 0 else ""


def self_test(commands, scratch):
    planted = []
    for number in range(2):
        planted.append(commands[0] | {"file": str(scratch / f"planted_{number}.cpp")})
        Path(planted[-1]["file"]).write_text("namespace { int planted = 0; }\n")
    if not problems_of(planted, scratch):
        sys.exit("FAILED: a name that two sources have is found")


def main():
    layers = re.findall(r"^nanotron_add_layer\((\w+) COLD", (ROOT / "CMakeLists.txt").read_text(), re.M)
    entries = json.loads((Path(sys.argv[1]).resolve().parent / "compile_commands.json").read_text())
    if os.environ.get("NANOTRON_SANITIZE") == "ON" or any("/unity_" in entry["file"] for entry in entries):
        skip("other builds check it")
    if not layers:
        return "FAILED: CMakeLists.txt has no layer that is COLD"
    seed = os.environ.get("NANOTRON_SEED")
    if seed and "NANOTRON_FULL" not in os.environ:
        layers = [layers[int(seed) % len(layers)]]
    with tempfile.TemporaryDirectory(prefix="nanotron_unity_") as folder:
        scratch = Path(folder)
        for layer in layers:
            commands = [entry for entry in entries if f"/src/{layer}/" in entry["file"]]
            self_test(commands, scratch)
            for first in range(0, len(commands), BATCH):
                text = problems_of(commands[first:first + BATCH], scratch)
                if text:
                    sys.exit(f"FAILED: {layer}\n{text[:4000]}")
    print(f"unity: {', '.join(layers)} compile {BATCH} sources at a time")
    return 0


if __name__ == "__main__":
    sys.exit(main())
