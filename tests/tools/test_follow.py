# timeout: 120
"""nanotron_export --follow: at every look what is drawn is what metrics.h5 holds, while a run writes it, is killed and
resumed, goes back, or begins again. The run is imitated: each wait of the tool is the next thing that happens to it."""

import math

import h5py
import numpy as np
import pytest
from conftest import needs, write_run

from nanotron_tools import curves, follow, xxh3
from nanotron_tools.metrics import load_run

LOG = "program: nanotron_hpc\nstart_time: 2026-11-23T09:37:10Z\n"
END = "finished: 60 steps, 10.0 s; loss 2.1\n"


class Imitation:
    """A run in `folder`."""

    def __init__(self, folder):
        self.folder = folder

    def rows(self, last, offset=0.0, of=None):
        """Rows up to `last`; those after the first `of` differ from what was there before by `offset`."""
        self.folder.mkdir(parents=True, exist_ok=True)
        partial = self.folder / "new"
        write_run(partial, range(1, last + 1))
        with h5py.File(partial / "metrics.h5", "r+") as file:
            file["loss"][of:] = file["loss"][of:] + offset
            file["validation_loss"][((of or 0) + 9) // 10:] += offset
            for name, columns in (("row_hash", ["step", "loss", "seconds"]),
                                  ("validation_hash", ["validation_step", "validation_loss"])):
                bits = np.stack([file[column][:].view("<u8") for column in columns], axis=1)
                hashes = np.array([xxh3.xxh3_64(row.tobytes()) for row in bits], np.uint64)
                file.create_dataset(name, data=hashes, maxshape=(None,), chunks=(64,)).attrs["of"] = " ".join(columns)
            file.create_group("provenance").attrs["start_time"] = "2026-11-23T09:37:10Z"
            file["deck"] = f"&run\n  steps = {60}\n/\n"
        (partial / "metrics.h5").replace(self.folder / "metrics.h5")
        self.log("")

    def log(self, text):
        (self.folder / "run.log").write_text(LOG + text)

    def half_written(self):
        with h5py.File(self.folder / "metrics.h5", "r+") as file:
            file["loss"][-1] = 0.0

    def unreadable(self):
        self.whole = (self.folder / "metrics.h5").read_bytes()
        (self.folder / "metrics.h5").write_bytes(self.whole[:700])

    def readable(self):
        (self.folder / "metrics.h5").write_bytes(self.whole)

    def drawn(self):
        """What a program that draws the file would show."""
        return {step: values for step, _, values in curves.scalars(load_run(str(self.folder)))}


class Shown:
    """A program that draws."""

    def __init__(self, takes_back):
        self.takes_back, self.steps, self.restarts = takes_back, {}, []

    def write(self, step, when, values):
        assert math.isfinite(when)
        self.steps[step] = self.steps.get(step, {}) | values

    def restart(self, step, run):
        self.restarts.append(step)
        self.steps = {at: values for at, values in self.steps.items() if self.takes_back and at < step}
        return self.takes_back

    def flush(self):
        pass

    def close(self):
        pass


def follow_through(monkeypatch, imitation, sink, events, patience=0.0):
    """Follows through these events, one at each wait. After each look what is shown is compared with the file."""
    looks, events = [], iter(events)

    def wait(_):
        looks.append(None)
        event = next(events, None)
        if event is None:
            raise KeyboardInterrupt
        event()

    monkeypatch.setattr(follow.time, "sleep", lambda s: wait(s) if s == 7.0 else None)
    return follow.follow(imitation.folder / "metrics.h5", "run", lambda run: sink, 7.0, patience)


@pytest.mark.parametrize("takes_back", [True, False], ids=["TensorBoard", "W&B"])
def test_what_is_drawn_is_the_file(tmp_path, monkeypatch, takes_back):
    run, shown = Imitation(tmp_path / "run"), Shown(takes_back)

    def same():
        assert shown.steps == run.drawn()

    def without_last():
        expected = run.drawn()
        last = max(expected)
        assert shown.steps.keys() == expected.keys() - {last} and shown.steps.items() <= expected.items()

    events = [
        lambda: run.rows(20), same,
        lambda: run.rows(30), same,
        lambda: (run.rows(35), run.half_written()), without_last,
        lambda: run.rows(35), same,
        run.unreadable, lambda: None,
        run.readable, same,
        lambda: run.rows(22), same,  # a start that resumes
        lambda: run.rows(40, offset=1.0, of=22), same,
        lambda: run.rows(50, offset=2.0, of=30), same,  # went back and on between two looks
        lambda: run.rows(12, offset=3.0), same,  # a new run
        lambda: (run.rows(60, offset=3.0), run.log(END)), same,
        lambda: pytest.fail("it ends with the run"),
    ]
    assert follow_through(monkeypatch, run, shown, events) == (60, "finished")
    same()
    assert shown.restarts == [23, 23, 1]


def test_a_file_that_cannot_be_read_between_two_looks(tmp_path, monkeypatch):
    """As on a network file system: rows that were read are drawn, at the present time."""
    run, shown = Imitation(tmp_path / "run"), Shown(True)
    look = follow.Follower.look

    def then_unreadable(self):
        news = look(self)
        run.unreadable()
        return news

    monkeypatch.setattr(follow.Follower, "look", then_unreadable)
    run.rows(20)
    drawn = []

    def compare():
        run.readable()
        drawn.append(run.drawn())
        assert shown.steps == drawn[-1]

    follow_through(monkeypatch, run, shown, [compare, lambda: (run.readable(), run.rows(30)), compare])
    assert [len(steps) for steps in drawn] == [20, 30]


def test_a_row_that_stays_damaged_is_drawn_in_the_end(tmp_path, monkeypatch):
    run, shown = Imitation(tmp_path / "run"), Shown(True)
    run.rows(20)
    run.half_written()
    assert follow_through(monkeypatch, run, shown, [lambda: None] * 5) == (20, "interrupted")
    assert shown.steps == run.drawn()


def test_a_stopped_run_may_start_again(tmp_path, monkeypatch):
    run, shown = Imitation(tmp_path / "run"), Shown(True)
    run.rows(20)
    stop = "stopped after step 20 of 60: a signal asked for it; x\n"
    run.log(stop)
    steps, why = follow_through(monkeypatch, run, shown, [lambda: None, lambda: pytest.fail("it ends")])
    assert steps == 20 and why == "stopped: a signal asked for it"
    clock = iter(range(100))
    monkeypatch.setattr(follow.time, "monotonic", lambda: float(next(clock)))
    events = [lambda: None, lambda: None, lambda: run.rows(40), lambda: run.log(stop.replace("20", "40"))]
    steps, why = follow_through(monkeypatch, run, Shown(True), [*events, *[lambda: None] * 90], patience=20.0)
    assert steps == 40 and why.startswith("stopped") and 24 <= next(clock) <= 32


def read_back(folder):
    accumulator = needs("tensorboard.backend.event_processing.event_accumulator")
    found = accumulator.EventAccumulator(str(folder), size_guidance={"scalars": 0})
    found.Reload()
    return {tag: [(event.step, event.value) for event in found.Scalars(tag)] for tag in found.Tags()["scalars"]}


def expected_of(run):
    tags = {}
    for step, values in sorted(run.drawn().items()):
        for name, value in values.items():
            tags.setdefault(name, []).append((step, float(np.float32(value))))
    return tags


def test_tensorboard_reads_it(tmp_path, monkeypatch, tool):
    """Also after Ctrl-C and the same command again."""
    needs("tensorboard")
    run, out = Imitation(tmp_path / "run"), tmp_path / "out"
    arguments = ("export", run.folder, "--follow", "--every", "7", "--format", "tensorboard", "-o", out)
    events = []

    def wait(seconds):
        if seconds == 7.0:
            event = events.pop(0) if events else None
            if event is None:
                raise KeyboardInterrupt
            event()

    monkeypatch.setattr(follow.time, "sleep", wait)
    events[:] = [lambda: run.rows(25), lambda: run.rows(40), lambda: run.rows(33, offset=1.0, of=28)]
    text = tool(*arguments).stdout
    assert "until it ends or Ctrl-C; there is no" in text and "run, step 33; interrupted" in text
    assert read_back(out) == expected_of(run)
    run.rows(30, offset=2.0)
    events[:] = [lambda: (run.rows(60, offset=2.0), run.log(END)), lambda: None]
    assert "run, step 60; finished" in tool(*arguments).stdout
    assert read_back(out) == expected_of(run)
    other = Imitation(tmp_path / "other")
    other.rows(20)
    found = tool("export", other.folder, "--follow", "--format", "tensorboard", "-o", out, rc=64)
    assert "so that no two runs are mixed" in found.stderr


def test_wandb_gets_the_whole_curve_again(tmp_path, monkeypatch):
    pytest.importorskip("wandb", reason="this Python has no wandb")
    from test_export import wandb_records
    from wandb.proto import wandb_internal_pb2 as proto

    run = Imitation(tmp_path / "run")
    run.rows(10)
    (tmp_path / "out").mkdir()
    sink = curves.Wandb(tmp_path / "out", load_run(str(run.folder)), offline=True)
    events = [lambda: run.rows(25), lambda: run.rows(24, offset=1.0, of=12), lambda: run.log(END), lambda: None]
    assert follow_through(monkeypatch, run, sink, events) == (24, "finished")
    paths = sorted((tmp_path / "out").glob("wandb/offline-run-*/run-*.wandb"), key=lambda path: path.stat().st_mtime)
    assert len(paths) == 2
    records = [proto.Record.FromString(record) for record in wandb_records(paths[1].read_bytes())]
    rows = [{item.key or item.nested_key[0]: float(item.value_json) for item in record.history.item}
            for record in records if record.HasField("history")]
    with h5py.File(run.folder / "metrics.h5") as file:
        assert [row["training/loss"] for row in rows] == file["loss"][:].tolist()


def test_mistakes_are_told(tmp_path, tool):
    out = ("-o", tmp_path / "out")
    assert "--follow: expected one run" in tool("export", tmp_path, "--follow", "--format", "csv", *out, rc=2).stderr
    found = tool("export", f"{tmp_path}+{tmp_path}", "--follow", "--format", "tensorboard", *out, rc=2)
    assert "--follow: expected one run" in found.stderr
    found = tool("export", tmp_path, "--follow", "--format", "tensorboard", "--every", "0", *out, rc=2)
    assert "--every: expected a positive number" in found.stderr
