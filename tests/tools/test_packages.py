# timeout: 120
"""A Python without the packages: every tool says what is missing and what to run, and ends with 71."""

import subprocess
import sys

import conftest
import pytest

from nanotron_tools import common

TOOLS = ("choices", "convert", "export", "import", "ls", "pairs", "plot", "report", "tokenize", "top", "verify")


@pytest.mark.parametrize("name", TOOLS)
def test_bare_python(name, tmp_path):
    command = [sys.executable, "-S", "-E", conftest.ROOT / "tools" / f"nanotron_{name}.py", "--help"]
    found = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert found.returncode == 71 and "Traceback" not in found.stderr and not found.stdout
    assert f"nanotron_{name}.py: error: expected the Python packages numpy, h5py" in found.stderr
    assert "this Python has no numpy, h5py" in found.stderr and sys.executable in found.stderr
    assert "-m pip install numpy h5py" in found.stderr


def test_all_tools_are_tested():
    files = [path.stem for path in (conftest.ROOT / "tools").glob("nanotron_*.py") if path.read_text().startswith("#!")]
    assert sorted(files) == [f"nanotron_{name}" for name in TOOLS]


def test_the_projects_python_is_named_where_it_exists(tmp_path, monkeypatch):
    python = tmp_path / "build" / "venv" / "bin" / "python"
    monkeypatch.setattr(common, "PROJECT_PYTHON", python)
    with pytest.raises(common.ToolError) as caught:
        common.require("numpy", "no_such_package")
    text = str(caught.value)
    assert caught.value.exit_code == 71 and "has no no_such_package" in text and str(python) not in text
    assert "install_dependencies.sh" in text and "-m pip install no_such_package" in text
    python.parent.mkdir(parents=True)
    python.write_text("")
    with pytest.raises(common.ToolError, match=f"run the tool with {python}"):
        common.require("no_such_package")


@pytest.mark.parametrize("tool_name, package, arguments", [
    ("tokenize", "tokenizers", ["--train-bpe", "300"]), ("plot", "matplotlib", []),
    ("export", "pyarrow", ["--format", "parquet"]), ("export", "tensorboard", ["--format", "tensorboard"]),
    ("export", "wandb", ["--format", "wandb-offline"])])
def test_other_packages(tool_name, package, arguments, golden, tmp_path):
    """Named before any work is done."""
    (tmp_path / "x.txt").write_text("text")
    script = (f"import sys; sys.path.insert(0, {str(conftest.ROOT / 'tools')!r}); sys.modules[{package!r}] = None\n"
              f"from nanotron_tools import commands; sys.exit(commands.{tool_name}())")
    found = subprocess.run([sys.executable, "-c", script, tmp_path / "x.txt", "-o", tmp_path / "out", *arguments],
                           capture_output=True, text=True, timeout=60)
    assert found.returncode == 71 and "Traceback" not in found.stderr
    assert f"expected the Python package {package}" in found.stderr and not (tmp_path / "out").exists()
