"""The documents of a checkout as a site of MkDocs, for the tests of the site."""
import subprocess
import sys

import conftest


def build(folder, checkout=conftest.ROOT):
    """Strictly, as doc/README.md says it: warnings end it with a code (not with --quiet, which keeps them from the counter)."""
    conftest.needs("mkdocs")
    return subprocess.run([sys.executable, "-m", "mkdocs", "build", "--strict", "-f", checkout / "doc/site/mkdocs.yml", "-d",
                           folder], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60, check=False)
