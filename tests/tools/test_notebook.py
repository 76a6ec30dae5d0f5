#!/usr/bin/env python3
# timeout: 240
"""The notebooks of doc/notebooks, executed again on runs made here; and what is kept in them.

    test_notebook.py <folder of the programs>

Without nbclient, ipykernel, xarray and h5netcdf in this Python they are not executed and the test is skipped, after the
rest of it has passed. jobscripts/install_dependencies.sh --tests installs them.
"""
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "doc/notebooks").glob("*.ipynb"))
NEEDED = ("nbclient", "ipykernel", "xarray", "h5netcdf", "matplotlib", "h5py")
DECK = """
&run steps = 24 output_dir = '{out}' log_every = 10 /
&model hidden_size = 32 num_hidden_layers = {layers} num_attention_heads = 4 intermediate_size = 64 /
&data path = '{tokens}' sequence_length = 16 global_batch_size = 4 validation_fraction = 0.1 validation_every = 12 /
"""


def fail(what, output=""):
    sys.exit(f"FAILED: {what}\n{output}")


def check_kept(path):
    """Outputs are there, of one execution from top to bottom, small, without errors and without paths of a machine."""
    text = path.read_text(encoding="utf-8")
    cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
    counts = [cell["execution_count"] for cell in cells]
    if counts != list(range(1, len(cells) + 1)):
        fail(f"{path.name} was not executed from top to bottom: {counts}")
    outputs = [output for cell in cells for output in cell["outputs"]]
    if any(output["output_type"] == "error" or output.get("name") == "stderr" for output in outputs):
        fail(f"{path.name} has an error or a warning in its outputs")
    for output in outputs:
        if output["output_type"] == "display_data" and "image/png" not in output["data"]:
            fail(f"{path.name} has all its pictures", str(output))
    if len(text) > 300_000:
        fail(f"{path.name} is below 300 kB: {len(text)} bytes")
    words = "".join("".join(output.get("text", output.get("data", {}).get("text/plain", []))) for output in outputs)
    if found := re.findall(r"/(?:home|root|work|tmp|usr|var|mnt)/\S+", words):
        fail(f"{path.name} shows paths of a machine: {found}")


def run(*command):
    done = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=100)
    if done.returncode != 0:
        fail(" ".join(map(str, command)), done.stdout)


def make_runs(folder, programs):
    """Two runs of real steps on one rank, named as in the documents, on the tokens of the first."""
    mpiexec = os.environ.get("NANOTRON_MPIEXEC", "mpiexec")
    (folder / "text.txt").write_text("".join(f"line {i} of {i * i % 97} words\n" for i in range(400)))
    tokens = folder / "runs/bpe/tokens.h5"
    run(sys.executable, ROOT / "tools/nanotron_tokenize.py", folder / "text.txt", "-o", tokens)
    for name, layers in (("bpe", 2), ("small", 1)):
        deck = folder / f"{name}.deck"
        deck.write_text(DECK.format(out=folder / "runs" / name, tokens=tokens, layers=layers))
        run(mpiexec, "-n", "1", programs / "nanotron_hpc", deck)


def execute(path, folder):
    import nbclient
    import nbformat

    notebook = nbformat.read(path, as_version=4)
    try:
        nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3",
                                resources={"metadata": {"path": str(folder)}}).execute()
    except nbclient.exceptions.CellExecutionError as error:
        fail(f"{path.name} runs", str(error))
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            if output["output_type"] == "display_data" and "image/png" not in output["data"]:
                fail(f"{path.name} draws all its pictures", str(output))
            if output.get("name") == "stderr":
                fail(f"{path.name} warns", output["text"])


def main():
    if not NOTEBOOKS:
        fail("doc/notebooks has notebooks")
    for path in NOTEBOOKS:
        check_kept(path)
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        print(f"skipped: this Python has no {', '.join(missing)}; what is kept is right")
        sys.exit(77)
    programs = Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory(prefix="nanotron_notebooks_") as name:
        folder = Path(name)
        make_runs(folder, programs)
        for path in NOTEBOOKS:
            execute(path, folder)
    print(f"notebooks: {len(NOTEBOOKS)} executed again")


main()
