"""Shared by the tests of tools/: the tools on the path, and a way to call them like a user."""

import contextlib
import importlib
import io
import json
import runpy
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "golden"
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "tests/support")]
import skips  # noqa: E402

# Golden cases whose numbers are those of transformers' own classes (make_family_golden.py).
FAMILIES = tuple(sorted(path.parent.name for path in GOLDEN.glob("*/golden.json")
                        if "transformers" in json.loads(path.read_text())))


def needs(module):
    """The module, of a package that install_dependencies.sh --tests brings; without it the test is skipped, and fails in CI."""
    try:
        return importlib.import_module(module)
    except ImportError:
        (pytest.fail if skips.tools_are_required() else pytest.skip)(f"no {module} in {sys.executable}: {skips.BROUGHT}")


def write_run(folder, steps, offset=0.0, validation=True, only=None):
    steps = np.asarray(steps, dtype=np.int64)
    folder.mkdir(parents=True, exist_ok=True)
    values = {"step": steps, "loss": 2.0 + np.exp(-steps / 30.0) + offset,
              "grad_norm": 1.0 + 0 * steps, "learning_rate": 1e-3 + 0.0 * steps,
              "tokens": steps * 100, "seconds": 0.1 + 0 * steps,
              "tokens_per_second": 1000.0 + 0 * steps, "mfu": 0.5 + 0 * steps,
              "token_hash": steps.astype(np.uint64)}
    if validation:
        values |= {"validation_step": steps[::10], "validation_loss": 2.5 + 0.0 * steps[::10]}
    with h5py.File(folder / "metrics.h5", "w") as file:
        for name, data in values.items():
            if only is None or name in only:
                file.create_dataset(name, data=data, maxshape=(None,), chunks=(256,))
    return folder


@pytest.fixture
def tool():
    """tool(name, *arguments, rc=0) runs tools/nanotron_<name>.py and checks its exit code. The tokenizer, which starts
    workers, in a process of its own; the others here, since starting Python and numpy would take most of the time."""

    def run_here(script, arguments):
        out, err, code = io.StringIO(), io.StringIO(), 0
        given, sys.argv = sys.argv, [str(script), *arguments]
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                runpy.run_path(str(script), run_name="__main__")
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
            if isinstance(end.code, str):
                err.write(end.code + "\n")
        finally:
            sys.argv = given
        return subprocess.CompletedProcess(script, code, out.getvalue(), err.getvalue())

    def call(name, *arguments, rc=0):
        script, arguments = ROOT / "tools" / f"nanotron_{name}.py", [*map(str, arguments)]
        if name == "tokenize":
            result = subprocess.run([sys.executable, script, *arguments], capture_output=True, text=True, timeout=120)
        else:
            result = run_here(script, arguments)
        assert result.returncode == rc, result.stdout + result.stderr
        assert "Traceback" not in result.stderr
        return result

    return call


def spans_of(*paths):
    """The spans of these files, as nanotron_tokenize has them."""
    from nanotron_tools import corpus, inputs

    return corpus.spans_of(inputs.find_files([str(path) for path in paths]).files)


def write_records(path, records):
    """As JSON lines."""
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def read_chats(path):
    """Tokens, loss mask, documents and attributes of a token file."""
    with h5py.File(path, "r") as file:
        return file["tokens"][:], file["loss_mask"][:], file["documents"][:].astype(int), dict(file.attrs)


@pytest.fixture
def golden():
    return GOLDEN


def pytest_addoption(parser):
    parser.addoption("--programs", type=Path, default=ROOT / "build/release/bin", help="folder of the programs")


@pytest.fixture(scope="session")
def programs(request):
    folder = request.config.getoption("--programs").resolve()
    assert (folder / "nanotron_hpc").exists(), f"{folder} has no nanotron_hpc: build it, or say --programs"
    return folder


def pytest_sessionfinish(session, exitstatus):
    """77, which CTest calls skipped, where no test ran to its end."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if exitstatus == pytest.ExitCode.OK and reporter.stats.get("skipped") and not reporter.stats.get("passed"):
        session.exitstatus = 77
