# timeout: 180
"""nanotron_plot: resumed runs, missing quantities, smoothing, and that a picture comes out."""

import argparse

import h5py
import matplotlib
import matplotlib.image
import matplotlib.pyplot
import numpy as np
import pytest
from conftest import write_run

from nanotron_tools import plot

matplotlib.use("Agg")


def picture(path):
    return matplotlib.image.imread(path)


def test_plots_several_runs(tmp_path, golden, tool):
    a = write_run(tmp_path / "a", range(100))
    b = write_run(tmp_path / "b", range(50), 0.5, validation=False)
    out = tmp_path / "plots" / "p.png"
    text = tool("plot", f"first={a}", b / "metrics.h5", "-o", out, "--token-file",
                golden / "llama" / "tokens.h5", "--title", "Two runs", "--log").stdout
    assert "first: 100 steps" in text and "b: 50 steps" in text
    image = picture(out)
    assert image.shape[0] > 600 and image.shape[1] > 1000 and image[..., :3].std() > 0.02


def test_later_record_of_a_step_counts(tmp_path):
    folder = write_run(tmp_path / "r", [*range(30), *range(20, 50)])
    with h5py.File(folder / "metrics.h5", "r+") as file:
        file["loss"][30:] = 7.0
    run = plot.load_run(str(folder))
    assert run.series["step"].tolist() == list(range(50))
    assert (run.series["loss"][20:] == 7.0).all() and (run.series["loss"][:20] < 4).all()
    assert run.resumed_at == [20]


def test_parts_are_joined(tmp_path):
    a = write_run(tmp_path / "a", range(30))
    b = write_run(tmp_path / "b", range(25, 60), 1.0)
    run = plot.load_run(f"both={a}+{b}")
    assert run.label == "both" and run.series["step"].tolist() == list(range(60))
    assert run.series["loss"][25] > 3 > run.series["loss"][24] and run.resumed_at == [25]
    assert run.validation[""][0].tolist() == sorted(set(run.validation[""][0].tolist()))


def test_missing_quantities_and_one_step(tmp_path, tool):
    a = write_run(tmp_path / "a", [0], only=("step", "loss"))
    tool("plot", a, "-o", tmp_path / "p.png")
    assert picture(tmp_path / "p.png").size


def test_record_being_written(tmp_path):
    """A running job may have extended one dataset and not yet the next."""
    folder = write_run(tmp_path / "r", range(30))
    with h5py.File(folder / "metrics.h5", "r+") as file:
        file["loss"].resize((28,))
    assert plot.load_run(str(folder)).series["step"].size == 28


def test_non_finite_values_do_not_stop_the_plot(tmp_path, tool):
    folder = write_run(tmp_path / "r", range(300))
    with h5py.File(folder / "metrics.h5", "r+") as file:
        file["loss"][150] = np.nan
        file["grad_norm"][150] = np.inf
    tool("plot", folder, "-o", tmp_path / "p.png")


def test_smoothing():
    values = np.array([1.0, 5.0, 3.0, np.nan, 2.0])
    assert np.array_equal(plot.smooth(values, 1), values, equal_nan=True)
    found = plot.smooth(values, 3)
    assert found[:4].tolist() == [1.0, 3.0, 4.0, 2.5] and found[4] == 2.5
    constant = plot.smooth(np.full(40, 2.0), 7)
    assert np.allclose(constant, 2.0, rtol=1e-12)


def test_the_line_ends_in_an_average(tmp_path):
    """The last step alone decides neither where the bold line ends nor what the legend says."""
    steps = np.arange(1000)
    noise = 0.1 * np.cos(np.pi * steps)
    folder = write_run(tmp_path / "r", steps)
    with h5py.File(folder / "metrics.h5", "r+") as file:
        file["loss"][:] = 2.0 + noise
        file["loss"][-1] = 1.0
    run = plot.load_run(str(folder))
    line = plot.smooth(run.series["loss"], 50)
    assert abs(line[-60:] - 2.0).max() < 0.03 and line[0] == run.series["loss"][0]
    assert plot.loss_label(run, 50) == f"r (mean of the last 51 steps {line[-1]:.3f})"
    assert line[-1] == pytest.approx(np.mean(run.series["loss"][-51:]))
    assert plot.loss_label(run, 1) == "r (last 1.000)"


def legend_of(runs, **options):
    figure = plot.make_figure(runs, argparse.Namespace(smooth=None, token_file=None, log=False, title="", **options))
    texts = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    matplotlib.pyplot.close(figure)
    return texts


def test_named_validation_sets(tmp_path):
    folder = write_run(tmp_path / "r", range(100))
    with h5py.File(folder / "metrics.h5", "r+") as file:
        for name, value in (("web", 3.0), ("code", 2.0)):
            file[f"validation_loss_{name}"] = np.full(10, value)
        file["validation_loss_late"] = np.array([np.nan] * 9 + [4.0])
    run = plot.load_run(str(folder))
    assert list(run.validation) == ["", "code", "late", "web"] and "validation_step" not in run.series
    assert run.validation["late"][0].tolist() == [90] and run.validation["web"][1].tolist() == [3.0] * 10
    assert legend_of([run])[1:] == ["r, validation (last 2.500)", "r, validation 'code' (last 2.000)",
                                    "r, validation 'late' (last 4.000)", "r, validation 'web' (last 3.000)"]
    joined = plot.load_run(f"both={folder}+{write_run(tmp_path / 's', range(100, 200))}")
    assert joined.validation[""][0].size == 20 and joined.validation["web"][0].size == 10


def test_the_only_validation_set_is_drawn_once(tmp_path):
    folder = write_run(tmp_path / "r", range(100))
    with h5py.File(folder / "metrics.h5", "r+") as file:
        file["validation_loss_web"] = file["validation_loss"][:]
    assert legend_of([plot.load_run(str(folder))])[1:] == ["r, validation 'web' (last 2.500)"]


def test_entropy_line(golden, tmp_path):
    path = golden / "llama" / "tokens.h5"
    with h5py.File(path, "r") as file, h5py.File(tmp_path / "plain.h5", "w") as plain:
        plain["tokens"] = file["tokens"][:]
    assert plot.entropy_of(tmp_path / "plain.h5") == pytest.approx(plot.entropy_of(path), rel=1e-12)


def test_mistakes_are_told(tmp_path, tool):
    out = ("-o", tmp_path / "p.png")
    assert "no such file" in tool("plot", tmp_path / "none", *out, rc=65).stderr
    (tmp_path / "metrics.h5").write_text("x")
    assert "cannot be read" in tool("plot", tmp_path, *out, rc=65).stderr
    assert "no step recorded" in tool("plot", write_run(tmp_path / "e", []), *out, rc=65).stderr
    bad = write_run(tmp_path / "b", range(3), only=("step",))
    assert "no dataset 'loss'" in tool("plot", bad, *out, rc=65).stderr
    assert not (tmp_path / "p.png").exists()
    unknown = tool("plot", write_run(tmp_path / "r", range(3)), "-o", tmp_path / "p.xyz", rc=64).stderr
    assert "the ending '.xyz'" in unknown and ".png" in unknown
