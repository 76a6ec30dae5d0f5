# timeout: 120
"""nanotron_export: what other programs read back is what metrics.h5 holds."""

import csv
import struct

import h5py
import numpy as np
import pytest
from conftest import needs, write_run

from nanotron_tools import metrics

START = 1795426630  # 2026-11-23T09:37:10Z


@pytest.fixture
def run(tmp_path):
    """Started at step 0 and, 100 s later, again after step 30; a third of the losses of a set is missing."""
    folder = write_run(tmp_path / "run", range(1, 51))
    with h5py.File(folder / "metrics.h5", "r+") as file:
        file["mfu"][:] = np.nan
        file["validation_loss_web"] = np.array([np.nan, *range(1, file["validation_step"].size)], dtype=float)
        file["loss"].attrs["units"] = "nats per token"
        for name, stamp in (("", "2026-11-23T09:37:10Z"), ("_step_00000030", "2026-11-23T09:38:50Z")):
            file.create_group("provenance" + name).attrs["start_time"] = stamp
            file["deck" + name] = f"&run\n  title = 'it''s a test'\n  steps = {50 if name else 30}\n/\n"
    return folder


def table(path):
    with open(path, newline="") as file:
        rows = list(csv.reader(file))
    return {name: [row[i] for row in rows[1:]] for i, name in enumerate(rows[0])}


def test_csv_is_exact(run, tmp_path, tool):
    text = tool("export", run, "--format", "csv", "-o", tmp_path / "out").stdout
    assert "run, 50 steps, 9 validation losses" in text and "training.csv" in text
    found = table(tmp_path / "out" / "training.csv")
    with h5py.File(run / "metrics.h5") as file:
        assert list(found)[0] == "step" and found["step"] == [str(step) for step in range(1, 51)]
        assert [float(value) for value in found["loss"]] == file["loss"][:].tolist()
        assert [int(value) for value in found["token_hash"]] == file["token_hash"][:].tolist()
        assert set(found) == {name for name, item in file.items() if isinstance(item, h5py.Dataset) and item.ndim == 1
                              and not name.startswith("validation")}
    found = table(tmp_path / "out" / "validation.csv")
    assert found["validation_step"] == ["1", "11", "21", "31", "41"]
    assert found["validation_loss_web"] == ["nan", "1.0", "2.0", "3.0", "4.0"]


def test_parts_are_joined(run, tmp_path, tool):
    more = write_run(tmp_path / "more", range(41, 61), 1.0, validation=False)
    tool("export", f"all={run}+{more}", "--format", "csv", "-o", tmp_path / "out")
    found = table(tmp_path / "out" / "training.csv")
    assert found["step"] == [str(step) for step in range(1, 61)]
    assert float(found["loss"][40]) > 3 > float(found["loss"][39])


def test_times_are_those_of_the_starts(run):
    times = metrics.load_run(str(run)).times()
    assert times[0] == pytest.approx(START + 0.1) and times[29] == pytest.approx(START + 3)
    assert times[30] == pytest.approx(START + 100.1) and times[49] == pytest.approx(START + 102)


def test_parquet(run, tmp_path, tool):
    parquet = needs("pyarrow.parquet")
    tool("export", run, "--format", "parquet", "-o", tmp_path / "out")
    found = parquet.read_table(tmp_path / "out" / "training.parquet")
    with h5py.File(run / "metrics.h5") as file:
        assert found["loss"].to_numpy().tolist() == file["loss"][:].tolist()
        assert found["token_hash"].to_numpy().dtype == np.uint64
    assert found.schema.field("loss").metadata[b"units"] == b"nats per token"
    assert found.schema.metadata[b"title"] == b"it's a test"
    assert parquet.read_table(tmp_path / "out" / "validation.parquet").num_rows == 5


def test_tensorboard(run, tmp_path, tool):
    accumulator = needs("tensorboard.backend.event_processing.event_accumulator")
    tool("export", run, "--format", "tensorboard", "-o", tmp_path / "out")
    found = accumulator.EventAccumulator(str(tmp_path / "out"), size_guidance={"scalars": 0})
    found.Reload()
    assert {"training/loss", "training/tokens_per_second", "validation/loss", "validation/web"} \
        <= set(found.Tags()["scalars"])
    assert "training/mfu" not in found.Tags()["scalars"]  # NaN everywhere: not known
    with h5py.File(run / "metrics.h5") as file:
        assert [event.value for event in found.Scalars("training/loss")] == file["loss"][:].astype("f4").tolist()
    assert [event.step for event in found.Scalars("validation/web")] == [11, 21, 31, 41]
    assert found.Scalars("training/loss")[30].wall_time == pytest.approx(START + 100.1)


def wandb_records(data):
    """W&B's file: 7 bytes, then a LevelDB log of records (blocks of 32 KiB; checksum, size, kind before each piece)."""
    at, whole = 7, b""
    while at + 7 <= len(data):
        left = 32768 - at % 32768
        if left < 7:
            at += left
            continue
        _, size, kind = struct.unpack_from("<IHB", data, at)
        whole += data[at + 7:at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # full, or the last piece
            yield whole
            whole = b""


def test_wandb_offline(run, tmp_path, tool, monkeypatch):
    proto = pytest.importorskip("wandb.proto.wandb_internal_pb2", reason="this Python has no wandb")
    monkeypatch.setenv("WANDB_MODE", "online")  # of a user who is logged in: nothing may be sent
    tool("export", run, "--format", "wandb-offline", "-o", tmp_path / "out")
    paths = list((tmp_path / "out").glob("wandb/offline-run-*/run-*.wandb"))
    assert len(paths) == 1
    records = [proto.Record.FromString(record) for record in wandb_records(paths[0].read_bytes())]
    rows = [{item.key or item.nested_key[0]: float(item.value_json) for item in record.history.item}
            for record in records if record.HasField("history")]
    with h5py.File(run / "metrics.h5") as file:
        assert [row["training/loss"] for row in rows] == file["loss"][:].tolist()
    assert [row["_step"] for row in rows if "validation/web" in row] == [11, 21, 31, 41]
    config = {item.key or item.nested_key[0]: item.value_json for record in records if record.HasField("run")
              for item in record.run.config.update}
    assert config["run.steps"] == '"50"'


def test_mistakes_are_told(run, tmp_path, tool):
    out = ("--format", "csv", "-o", tmp_path / "out")
    assert "no such file" in tool("export", tmp_path / "none", *out, rc=65).stderr
    assert "no step recorded yet" in tool("export", write_run(tmp_path / "empty", []), *out, rc=65).stderr
    assert not (tmp_path / "out").exists()
    assert "expected a new or empty folder" in tool("export", run, "--format", "csv", "-o", run, rc=64).stderr
    assert "invalid choice" in tool("export", run, "--format", "xml", "-o", tmp_path / "out", rc=2).stderr
