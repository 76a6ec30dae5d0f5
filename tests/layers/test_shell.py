#!/usr/bin/env python3
# timeout: 60
"""ShellCheck finds nothing in any shell script of the repository, with the .shellcheckrc at its top. The test first plants
a mistake and insists on finding it.

    test_shell.py
"""
import subprocess
import sys
import tempfile
from pathlib import Path

root = Path(__file__).resolve().parents[2]
sys.path.append(str(root / "tests/support"))
from skips import need_tools  # noqa: E402

FOLDERS = (".ci", "jobscripts", "tests", "tools", "doc")
FIRST_LINES = (b"#!/usr/bin/env bash", b"#!/bin/bash", b"#!/bin/sh", b"# shellcheck shell=bash")


def is_script(path):
    return path.suffix == ".sh" or path.open("rb").readline().startswith(FIRST_LINES)


def checked(files):
    done = subprocess.run(["shellcheck", *files], cwd=root, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    return done.returncode, done.stdout


need_tools("shellcheck")
with tempfile.NamedTemporaryFile("w", suffix=".sh") as planted:
    planted.write("#!/usr/bin/env bash\nrm -r $1\n")
    planted.flush()
    code, text = checked([planted.name])
    if code == 0 or "SC2086" not in text:
        sys.exit(f"FAILED: a planted mistake is found\n{text}")
scripts = sorted(path for folder in FOLDERS for path in (root / folder).rglob("*") if path.is_file() and is_script(path))
names = {str(path.relative_to(root)) for path in scripts}
missing = {"jobscripts/slurm.sh", "jobscripts/machines/generic/cpu.sh", "tests/run.sh", ".ci/run"} - names
if missing:
    sys.exit(f"FAILED: not among the scripts: {missing}")
code, text = checked(scripts)
if code != 0:
    sys.exit(f"FAILED: shellcheck\n{text}")
print(f"shellcheck: {len(scripts)} scripts, passed")
