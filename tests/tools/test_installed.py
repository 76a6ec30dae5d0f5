# timeout: 600
"""pip install ./tools into an empty environment: its commands, run from another folder, need no checkout.

Skipped where pip cannot reach an index: hatchling, numpy and h5py come from there."""

import json
import re
import subprocess
import sys
import venv

import conftest  # noqa: F401, puts tools/ on the path
import pytest
from conftest import ROOT, write_run

import nanotron_tools

COMMANDS = sorted(path.stem.replace("_", "-") for path in (ROOT / "tools").glob("nanotron_*.py"))
NO_INDEX = re.compile(r"No matching distribution|Could not find a version|Connection|no such option: --python|"
                      r"No module named pip|Temporary failure|timed out", re.IGNORECASE)


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """Calls a command of the environment, from a folder outside of the checkout."""
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder / "environment", with_pip=False)
    python = folder / "environment" / "bin" / "python"
    pip = subprocess.run([sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--retries", "1",
                          "--disable-pip-version-check", "--timeout", "15", ROOT / "tools"],
                         capture_output=True, text=True, cwd=folder)
    if pip.returncode != 0:
        why = [line.strip() for line in pip.stderr.splitlines() if NO_INDEX.search(line)]
        assert why, pip.stderr
        pytest.skip("pip cannot install into an empty environment here: " + why[-1])

    def call(name, *arguments, rc=0):
        command = [python.with_name(name), *map(str, arguments)]
        found = subprocess.run(command, capture_output=True, text=True, cwd=folder)
        assert found.returncode == rc and "Traceback" not in found.stderr, found.stdout + found.stderr
        return found

    return call


def test_commands_without_a_checkout(installed, tmp_path):
    for name in COMMANDS:
        assert installed(name, "--version").stdout == f"{name} {nanotron_tools.__version__} of nanotron_hpc\n"
    assert "    nanotron-ls run/ " in installed("nanotron-ls", "--help").stdout
    (tmp_path / "x.txt").write_text("hello, world")
    installed("nanotron-tokenize", tmp_path / "x.txt", "-o", tmp_path / "tokens.h5")
    listed = installed("nanotron-ls", tmp_path / "tokens.h5", "--text", "50").stdout
    assert "hello, world" in listed and re.search(r"git_hash *\n", listed)
    (tmp_path / "train.bin").write_bytes(bytes(range(100)))
    installed("nanotron-import", tmp_path / "train.bin", "--format", "bare", "--token-type", "uint16", "-o",
              tmp_path / "train.h5")
    installed("nanotron-import", tmp_path / "train.h5", tmp_path / "train.h5", "-o", tmp_path / "both.h5")
    assert re.search(r"tokens +100 as uint16", installed("nanotron-ls", tmp_path / "both.h5").stdout)
    installed("nanotron-tokenize", tmp_path / "x.txt", "--shards", tmp_path / "parts")
    installed("nanotron-tokenize", "--merge", tmp_path / "parts", "-o", tmp_path / "merged.h5")
    told = installed("nanotron-tokenize", tmp_path / "x.txt", "--train-bpe", 300, "-o", tmp_path / "no.h5", rc=71).stderr
    assert "nanotron-tokenize: error: expected the Python package tokenizers" in told
    run = write_run(tmp_path / "run", range(1, 11))
    installed("nanotron-export", run, "--format", "csv", "-o", tmp_path / "csv")
    assert json.loads(installed("nanotron-report", run, "--json").stdout)[0]["steps"] == 10
    assert "step           10" in installed("nanotron-top", run, "--once").stdout
    installed("nanotron-convert", "to-hf", ROOT / "tests/golden/llama", tmp_path / "hf", "--max-positions", "128",
              "--eos-id", "none")
    assert (tmp_path / "hf" / "model.safetensors").is_file()
    told = installed("nanotron-plot", run, rc=71).stderr
    assert "nanotron-plot: error: expected the Python package matplotlib" in told and "install_dependencies" not in told


def test_version_is_that_of_the_program():
    stated = re.search(r"^project\(nanotron_hpc VERSION ([\d.]+)", (ROOT / "CMakeLists.txt").read_text(), re.M)[1]
    cited = re.search(r"^version: (.*)$", (ROOT / "CITATION.cff").read_text(), re.M)[1]
    assert nanotron_tools.__version__ == stated == cited


def test_scripts_and_commands_are_the_same():
    text = (ROOT / "tools" / "pyproject.toml").read_text()
    assert sorted(re.findall(r'^(nanotron-\w+) = "nanotron_tools\.commands:\w+"$', text, re.M)) == COMMANDS
    for name in COMMANDS:
        script = (ROOT / "tools" / (name.replace("-", "_") + ".py")).read_text()
        function = re.search(rf'^{name} = "nanotron_tools\.commands:(\w+)"$', text, re.M)[1]
        assert f"sys.exit(commands.{function}())" in script and function.startswith(name[len("nanotron-"):])
