# timeout: 240
"""The notebooks of doc/notebooks: what is kept in them, and executed again on runs made here.

They are not executed without nbclient, ipykernel, xarray and h5netcdf in this Python (install_dependencies.sh --tests).
"""
import json
import re
import subprocess
import sys

import pytest
from conftest import ROOT, needs

NOTEBOOKS = sorted((ROOT / "doc/notebooks").glob("*.ipynb"))
NEEDED = ("nbformat", "nbclient", "ipykernel", "xarray", "h5netcdf", "matplotlib", "h5py")
DECK = """
&run steps = 24 output_dir = '{out}' log_every = 10 /
&model hidden_size = 32 num_hidden_layers = {layers} num_attention_heads = 4 intermediate_size = 64 /
&data path = '{tokens}' sequence_length = 16 global_batch_size = 4 validation_fraction = 0.1 validation_every = 12 /
"""


def stem(path):
    return path.stem


def without_pictures(outputs):
    return [output for output in outputs
            if output["output_type"] == "display_data" and "image/png" not in output["data"]]


def warnings(outputs):
    return [output for output in outputs if output["output_type"] == "error" or output.get("name") == "stderr"]


def check_kept(text):
    """Outputs are there, of one execution from top to bottom, small, without errors and without paths of a machine."""
    cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert not warnings(outputs) and not without_pictures(outputs)
    assert len(text) <= 300_000
    words = "".join("".join(output.get("text", output.get("data", {}).get("text/plain", []))) for output in outputs)
    assert not re.findall(r"/(?:home|root|work|tmp|usr|var|mnt)/\S+", words)


def execute(notebook, folder):
    import nbclient

    nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3",
                            resources={"metadata": {"path": str(folder)}}).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert not warnings(outputs) and not without_pictures(outputs)


@pytest.fixture(scope="module")
def runs(tmp_path_factory, programs):
    """Two runs of real steps on one rank, named as in the documents, on the tokens of the first."""
    for package in NEEDED:
        needs(package)
    folder = tmp_path_factory.mktemp("notebooks")
    (folder / "text.txt").write_text("".join(f"line {i} of {i * i % 97} words\n" for i in range(400)))
    tokens = folder / "runs/bpe/tokens.h5"
    run(sys.executable, ROOT / "tools/nanotron_tokenize.py", folder / "text.txt", "-o", tokens)
    for name, layers in (("bpe", 2), ("small", 1)):
        deck = folder / f"{name}.deck"
        deck.write_text(DECK.format(out=folder / "runs" / name, tokens=tokens, layers=layers))
        run(programs / "nanotron_hpc", deck)
    return folder


def run(*command):
    done = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=100)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("path", NOTEBOOKS, ids=stem)
def test_what_is_kept(path):
    check_kept(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=stem)
def test_executed_again(path, runs):
    import nbformat

    execute(nbformat.read(path, as_version=4), runs)


@pytest.mark.parametrize("line, words", [("raise ValueError('planted')", "planted"),
                                         ("import sys; print('planted', file=sys.stderr)", "planted")])
def test_what_is_planted_is_found(line, words, runs):
    import nbclient
    import nbformat

    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(line)])
    with pytest.raises((AssertionError, nbclient.exceptions.CellExecutionError), match=words):
        execute(notebook, runs)


def test_there_are_notebooks():
    assert NOTEBOOKS
