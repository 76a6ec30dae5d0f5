# timeout: 600
"""pip install ./tools into an empty environment: its commands, run from another folder, need no checkout.

The first is skipped where pip cannot reach an index: numpy and h5py come from there."""

import email
import json
import os
import re
import runpy
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import conftest  # noqa: F401, puts tools/ on the path
import h5py
import numpy
import pytest
from conftest import ROOT, write_run
from packaging.markers import Marker
from packaging.requirements import Requirement

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


def test_installed_without_an_index(tmp_path):
    """By Python alone; the packages are those of this Python."""
    venv.create(tmp_path / "environment", with_pip=False)
    python = tmp_path / "environment/bin/python"
    pip = [sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check"]
    packages = os.pathsep.join(sorted({str(Path(each.__file__).parents[1]) for each in (numpy, h5py)}))
    for options in ([], ["--editable"]):
        done = subprocess.run([*pip, "install", "--no-index", "--no-deps", "--force-reinstall", *options, ROOT / "tools"],
                              capture_output=True, text=True, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        found = subprocess.run([python.with_name("nanotron-ls"), ROOT / "tests/golden/llama/step_00000000"], cwd=tmp_path,
                               capture_output=True, text=True, env=os.environ | {"PYTHONPATH": packages})
        assert found.returncode == 0 and "manifest verified" in found.stdout, found.stdout + found.stderr


def test_what_the_wheel_says_is_what_pyproject_says(tmp_path):
    tomllib = pytest.importorskip("tomllib", reason="of Python 3.11")
    said = tomllib.loads((ROOT / "tools/pyproject.toml").read_text())["project"]
    make_wheel = runpy.run_path(str(ROOT / "tools/make_wheel.py"))
    with zipfile.ZipFile(tmp_path / make_wheel["build_wheel"](tmp_path)) as wheel:
        names = wheel.namelist()
        folder = next(name for name in names if name.endswith("/METADATA")).rpartition("/")[0]
        about = email.message_from_bytes(wheel.read(f"{folder}/METADATA"))
        scripts = wheel.read(f"{folder}/entry_points.txt").decode()
        recorded = {line.split(",")[0] for line in wheel.read(f"{folder}/RECORD").decode().splitlines()}
    assert recorded == set(names)
    assert {name for name in names if name.startswith("nanotron_tools/")} == {
        f"nanotron_tools/{path.name}" for path in (ROOT / "tools/nanotron_tools").iterdir() if path.is_file()}
    assert (about["Name"], about["Version"], about["Requires-Python"]) == (
        said["name"], nanotron_tools.__version__, said["requires-python"])
    wanted = {Requirement(each) for each in said["dependencies"]}
    for extra, packages in said["optional-dependencies"].items():
        for each in map(Requirement, packages):
            condition = f"extra == '{extra}'"
            each.marker = Marker(f"({each.marker}) and {condition}" if each.marker else condition)
            wanted.add(each)
    assert {Requirement(each) for each in about.get_all("Requires-Dist")} == wanted
    assert about.get_all("Provides-Extra") == list(said["optional-dependencies"])
    assert scripts.splitlines()[1:] == [f"{name} = {place}" for name, place in said["scripts"].items()]


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
