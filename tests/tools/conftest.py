"""Shared by the tests of tools/: the tools on the path, and a way to call them like a user."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "golden"
sys.path.insert(0, str(ROOT / "tools"))
# Golden cases whose numbers are those of transformers' own classes (make_family_golden.py).
FAMILIES = tuple(sorted(path.parent.name for path in GOLDEN.glob("*/golden.json")
                        if "transformers" in json.loads(path.read_text())))


@pytest.fixture
def tool():
    """tool(name, *arguments, rc=0) runs tools/nanotron_<name>.py and checks its exit code."""

    def call(name, *arguments, rc=0):
        command = [sys.executable, ROOT / "tools" / f"nanotron_{name}.py", *map(str, arguments)]
        result = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert result.returncode == rc, result.stdout + result.stderr
        assert "Traceback" not in result.stderr
        return result

    return call


@pytest.fixture
def golden():
    return GOLDEN
