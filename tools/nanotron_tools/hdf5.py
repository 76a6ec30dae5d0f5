"""Text in HDF5 files, and where a file came from."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from . import __version__, common


def set_text(parent: h5py.Group, name: str, text: str, *, attribute: bool) -> None:
    """A fixed-length, null-padded UTF-8 string (readable with any HDF5, parallel or not)."""
    data = text.encode("utf-8", "backslashreplace")  # names of files may be of another encoding
    dtype = h5py.string_dtype("utf-8", max(1, len(data)))
    if attribute:
        parent.attrs.create(name, np.array(data, dtype=dtype), dtype=dtype)
    else:
        parent.create_dataset(name, data=np.array(data, dtype=dtype), dtype=dtype)


def as_text(value: Any) -> str:
    """Text of an HDF5 string attribute or scalar dataset, fixed or variable length."""
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value[()]
    if isinstance(value, bytes):
        return value.rstrip(b"\0").decode("utf-8", "replace")
    return str(value)


def git_hash() -> str:
    """Hash of this repository, '+dirty' when the tree has changes; '' outside of one."""
    if not (common.ROOT / "CITATION.cff").is_file():  # installed, perhaps below another repository
        return ""
    try:
        head = subprocess.run(["git", "-C", common.ROOT, "rev-parse", "HEAD"], capture_output=True,
                              text=True, check=True).stdout.strip()
        dirty = subprocess.run(["git", "-C", common.ROOT, "diff", "--quiet", "HEAD"],
                               capture_output=True).returncode
        return head + ("+dirty" if dirty else "")
    except (OSError, subprocess.CalledProcessError):
        return ""


def tool_provenance(program: str) -> dict[str, str]:
    return {
        "program": program,
        "command": " ".join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "version": __version__,
        "git_hash": git_hash(),
        "written": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "h5py": h5py.version.version,
        "hdf5": h5py.version.hdf5_version,
        "numpy": np.__version__,
    }
