# timeout: 240
"""The Python of tools/: ruff and mypy (strict) must pass, Python 3.9 reads it, and older ones what tells them; that of
tests/: ruff finds no assertion that cannot fail."""
import ast
import builtins
import shutil
import subprocess
import sys

import numpy as np
import pytest
from conftest import ROOT, needs

TOOLS, TESTS = ROOT / "tools", ROOT / "tests"
CHECKERS = {"ruff": ("check", "--no-cache", "."), "mypy": ("--cache-dir=/dev/null",)}
OLDEST = (3, 9)
TOLD = [TOOLS / "nanotron_tools/__init__.py", *TOOLS.glob("nanotron_*.py")]


def checked(checker, folder):
    needs(checker)
    if checker == "mypy" and np.__version__ >= "2":
        pytest.skip("types of NumPy 2 differ from those of 1, with which tools/ is checked")
    return subprocess.run([sys.executable, "-m", checker, *CHECKERS[checker]], cwd=folder, text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, timeout=200)


@pytest.mark.parametrize("checker, folder", [("ruff", TOOLS), ("mypy", TOOLS), ("ruff", TESTS)])
def test_nothing_is_said(checker, folder):
    done = checked(checker, folder)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("checker, planted, words", [
    ("ruff", "import os\n", "F401"), ("ruff", "from __future__ import annotations\n\nmatch 1:\n    case _:\n        pass\n", "3.9"),
    ("mypy", "def f(x):\n    return x\n", "no-untyped-def")])
def test_what_is_planted_is_said(checker, planted, words, tmp_path):
    package = tmp_path / "nanotron_tools"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "planted.py").write_text(planted)
    shutil.copy(TOOLS / "pyproject.toml", tmp_path)
    done = checked(checker, tmp_path)
    assert done.returncode != 0 and words in done.stdout, done.stdout


@pytest.mark.parametrize("planted, words", [
    ("def test(a):\n    assert (a, 'words')\n", "F631"), ("def test(a):\n    assert a or True\n", "SIM222"),
    ("def test(a, b):\n    assert all(x == y for x, y in zip(a, b))\n", "B905"), ("def test(a):\n    a == 1\n", "B015"),
    ("def test(a):\n    assert f'{a} is wrong'\n", "PLW0129"), ("def test(a):\n    assert a == a\n", "PLR0124")])
def test_an_assertion_that_cannot_fail_is_said(planted, words, tmp_path):
    (tmp_path / "test_planted.py").write_text(planted)
    shutil.copy(TESTS / "ruff.toml", tmp_path)
    done = checked("ruff", tmp_path)
    assert done.returncode != 0 and words in done.stdout, done.stdout


def _is_type(node):
    """None, a builtin type or one with parameters; not a dict or set, whose unions Python 3.9 has."""
    return (isinstance(node, ast.Subscript) or isinstance(node, ast.Constant) and node.value is None
            or isinstance(node, ast.Name) and isinstance(getattr(builtins, node.id, None), type))


@pytest.mark.parametrize("path", sorted(TOOLS.rglob("*.py")), ids=lambda path: path.stem)
def test_the_oldest_python_reads_it(path):
    """Grammar; unions of types by `|` outside of annotations and zip(strict=) too are of 3.10."""
    tree = ast.parse(path.read_text(encoding="utf-8"), feature_version=OLDEST)
    for statement in tree.body:
        if isinstance(statement, ast.Assign):
            unions = [part for part in ast.walk(statement) if isinstance(part, ast.BinOp) and isinstance(part.op, ast.BitOr)]
            assert not any(_is_type(side) for union in unions for side in (union.left, union.right))
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        assert not (getattr(call.func, "id", "") == "zip" and any(word.arg == "strict" for word in call.keywords))


@pytest.mark.parametrize("path", TOLD, ids=lambda path: path.stem)
def test_an_old_python_is_told(path):
    tree = ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 6))
    assert not any(isinstance(node, ast.ImportFrom) and node.module == "__future__" for node in ast.walk(tree))


def test_what_an_old_python_is_told():
    script = ("import sys; sys.version_info = (3, 8, 1); sys.path.insert(0, sys.argv.pop(1))\n"
              "sys.argv[0] = 'nanotron_ls.py'; import nanotron_tools")
    done = subprocess.run([sys.executable, "-c", script, TOOLS], text=True, capture_output=True)
    assert done.returncode == 71 and done.stderr.count("\n") == 1 and not done.stdout
    assert "nanotron_ls.py: error: expected Python 3.9 or later" in done.stderr
