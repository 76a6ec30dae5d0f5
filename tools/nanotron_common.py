"""What all tools share: packages, how they fail, text in HDF5, and where a file came from.

numpy and h5py come from here (`from nanotron_common import h5py, np`), others by `require`.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import subprocess
import sys
import time
from pathlib import Path

# Files of a running job may be read, and parallel file systems often have no locks.
os.environ.setdefault("HDF5_USE_FILE_LOCKING", "FALSE")

EXIT_USAGE = 64
EXIT_DATA = 65
EXIT_SYSTEM = 71
PROJECT_PYTHON = Path(__file__).resolve().parents[1] / "build" / "venv" / "bin" / "python"


class ToolError(Exception):
    """A mistake the user can mend; the tools print it and end with `exit_code`."""

    def __init__(self, message: str, exit_code: int = EXIT_DATA):
        super().__init__(message)
        self.exit_code = exit_code


def how_to_get(missing: list[str]) -> str:
    """What to run where packages are missing: the project's Python if it is another, or pip."""
    install = f"{sys.executable or 'python3'} -m pip install {' '.join(missing)}"
    if PROJECT_PYTHON.is_file() and os.path.abspath(sys.executable) != str(PROJECT_PYTHON):
        return f"run the tool with {PROJECT_PYTHON}, or: {install}"
    return f"{install}; or make build/venv with jobscripts/install_dependencies.sh"


def require(*names: str):
    """The packages of these names, all that are missing named at once; ToolError with exit code 71."""
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    if not missing:
        try:
            modules = [importlib.import_module(name) for name in names]
            return modules[0] if len(modules) == 1 else modules
        except ImportError as error:  # built for another Python or another numpy
            found = f"it cannot be loaded: {error}"
    else:
        found = "this Python has no " + ", ".join(missing)
    version = ".".join(map(str, sys.version_info[:3]))
    raise ToolError(f"expected the Python package{'s' * (len(names) > 1)} {', '.join(names)}\n  found:  {found}\n"
                    f"  where:  {sys.executable or 'python3'}, version {version}\n"
                    f"  change: {how_to_get(missing or list(names))}", EXIT_SYSTEM)


def base_packages():
    """numpy and h5py; a tool without them ends here, before it has a main."""
    try:
        return require("numpy", "h5py")
    except ToolError as error:
        print(f"{Path(sys.argv[0]).name}: error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


np, h5py = base_packages()


def run_main(main, argv: list[str] | None = None) -> int:
    """Calls main(argv) and turns ToolError into one message on stderr and an exit code."""
    try:
        return main(argv) or 0
    except ToolError as error:
        print(f"{Path(sys.argv[0]).name}: error: {error}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        print(f"{Path(sys.argv[0]).name}: error: {error}", file=sys.stderr)
        return EXIT_SYSTEM


def set_text(parent: h5py.Group, name: str, text: str, *, attribute: bool) -> None:
    """A fixed-length, null-padded UTF-8 string (readable with any HDF5, parallel or not)."""
    data = text.encode("utf-8", "backslashreplace")  # names of files may be of another encoding
    dtype = h5py.string_dtype("utf-8", max(1, len(data)))
    if attribute:
        parent.attrs.create(name, np.array(data, dtype=dtype), dtype=dtype)
    else:
        parent.create_dataset(name, data=np.array(data, dtype=dtype), dtype=dtype)


def as_text(value) -> str:
    """Text of an HDF5 string attribute or scalar dataset, fixed or variable length."""
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value[()]
    if isinstance(value, bytes):
        return value.rstrip(b"\0").decode("utf-8", "replace")
    return str(value)


def git_hash() -> str:
    """Hash of this repository, '+dirty' when the tree has changes; '' outside of one."""
    here = Path(__file__).resolve().parent
    try:
        head = subprocess.run(["git", "-C", here, "rev-parse", "HEAD"], capture_output=True,
                              text=True, check=True).stdout.strip()
        dirty = subprocess.run(["git", "-C", here, "diff", "--quiet", "HEAD"],
                               capture_output=True).returncode
        return head + ("+dirty" if dirty else "")
    except (OSError, subprocess.CalledProcessError):
        return ""


def tool_provenance(program: str) -> dict[str, str]:
    return {
        "program": program,
        "command": " ".join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "git_hash": git_hash(),
        "written": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "h5py": h5py.version.version,
        "hdf5": h5py.version.hdf5_version,
        "numpy": np.__version__,
    }
