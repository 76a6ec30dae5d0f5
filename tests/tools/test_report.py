# timeout: 120
"""nanotron_report and nanotron_top: what they say of runs that finished, resumed, failed, and go on."""

import json
import os
import shutil
import subprocess
import sys
import time

import conftest
import h5py
import numpy as np
import pytest
from conftest import write_run

from nanotron_tools import metrics, run_log, top

PROGRAM = "program: nanotron_hpc\nversion: 0.1.0\n"
PROGRESS = ("step {:>7}/50  loss {:.4f}  grad norm 1.069  lr 6.90e-04   10.8k tokens/s  mfu  2.9 %  72.9 % of GEMM "
            "peak  ETA 00:00:23\n")
FIRST = PROGRAM + PROGRESS.format(30, 2.5) + "step      30/50  checkpoint written in 0.6 s\n"
RESUMED = PROGRAM + "resumed from run/checkpoints/step_00000030 (step 30, 3000 tokens seen)\n"
FINISHED = PROGRESS.format(50, 2.4) + "step      50/50  validation loss 2.5000\nfinished: 50 steps, 7.5 s; loss 2.4\n"


@pytest.fixture
def run(tmp_path, golden):
    """Stopped after step 30, resumed, finished; the first step of each start took ten times as long."""
    folder = write_run(tmp_path / "run", range(1, 51))
    with h5py.File(folder / "metrics.h5", "r+") as file:
        for row in (0, 30):
            file["seconds"][row], file["tokens_per_second"][row], file["mfu"][row] = 1.0, 100.0, 0.05
        for name in ("", "_step_00000030"):
            file.create_group("provenance" + name)
            file["deck" + name] = "&run\n  title = 'two starts'\n  steps = 50\n/\n"
    (folder / "run.log").write_text(FIRST + "stopped after step 30 of 50: run%wall_time_limit is near; go on\n"
                                    + RESUMED + FINISHED)
    for step in (30, 50):
        shutil.copytree(golden / "llama" / "step_00000000", folder / "checkpoints" / f"step_{step:08d}")
    return folder


def report(tool, *arguments):
    return json.loads(tool("report", *arguments, "--json").stdout)


def test_report(run, tool):
    facts, = report(tool, run)
    assert facts["state"] == "finished" and facts["title"] == "two starts"
    assert (facts["steps"], facts["steps_planned"], facts["tokens"]) == (50, 50, 5000)
    assert facts["restarts"] == 1 and facts["restarted_after"] == [30]
    assert facts["tokens_per_second_mean"] == pytest.approx(1000) and facts["mfu"] == pytest.approx(0.5)
    assert facts["wall_seconds"] == pytest.approx(1 + 29 * 0.1 + 7.5) and facts["wall_seconds_at_least"]
    assert facts["validation"] == {"all": {"step": 41, "loss": 2.5, "lowest": 2.5, "lowest_step": 1}}
    assert [item["state"] for item in facts["checkpoints"]] == ["complete"] * 2
    text = tool("report", f"one={run}", f"other={run}").stdout
    assert text.splitlines()[0].split() == ["one", "other"] and "of GEMM peak" not in text
    assert "at least 0:00:11" in text and "50 of 50" in text and "mean 1,000, median 1,000" in text


def test_states_and_damage(run, tool):
    log = run / "run.log"
    log.write_text(FIRST + RESUMED + PROGRESS.format(40, 2.4).replace("/50", "/90"))
    assert "50 of 90 (55.6 %), ETA 0:00:04" in tool("top", run, "--once").stdout
    (run / "checkpoints" / "step_00000050" / "manifest.json").unlink()
    partial = run / "checkpoints" / "step_00000060.partial"
    partial.mkdir()
    (partial / "manifest.json.tmp").symlink_to("renamed")  # a file that is listed, and is not there when it is looked at
    facts, = report(tool, run)
    assert facts["state"] == "running" and facts["why"].startswith("written ") and facts["wall_seconds_at_least"]
    for path in (log, run / "metrics.h5"):
        os.utime(path, (time.time() - 7200,) * 2)
    facts, = report(tool, run)
    assert facts["state"] == "no recent output"
    assert facts["why"].startswith("nothing was written for 2:00:00, and a step takes 0.1 s")
    shown = tool("top", run, "--once").stdout
    assert "run: no recent output: nothing was written for 2:00:00" in shown and "50 of 90 (55.6 %), ETA -" in shown
    assert [item["state"] for item in facts["checkpoints"]] == ["complete", "damaged: no good manifest", "unfinished"]
    log.write_text(FIRST + "error: step 31: the numbers are not finite\n")
    facts, = report(tool, run)
    assert (facts["state"], facts["why"]) == ("failed", "step 31: the numbers are not finite")
    log.write_text(FIRST + "[rank 1] error: a call to MPI failed\nended with exit code 71\n")
    facts, = report(tool, run)
    assert (facts["state"], facts["why"]) == ("failed", "a call to MPI failed")
    log.write_text(FIRST + RESUMED + FINISHED + RESUMED + "nothing to do: run is at step 50 of run%steps = 50\n")
    facts, = report(tool, run)
    assert facts["state"] == "finished" and facts["restarts"] == 1
    log.unlink()
    with h5py.File(run / "metrics.h5", "r+") as file:
        file["loss"][-1] = np.nan
    facts, = report(tool, run)
    assert facts["state"] == "running" and facts["loss"] is None and facts["restarts"] == 1
    assert "not finite" in tool("report", run).stdout


@pytest.mark.parametrize(("end", "state"), [(0, "no recent output"), (1, "finished"), (2, "stopped"), (3, "failed")])
def test_the_end_that_only_metrics_have(run, tool, end, state):
    """Of the same start as the last one of the log."""
    row = {"start": 1, "begin": 10.0, "last": 20.0, "submitted": np.nan, "job_began": np.nan, "resumed_step": 0,
           "last_step": 40, "lowest_step": 0, "training_seconds": 5.0, "checkpoint_seconds": 0.0, "left_out_seconds": 0.0,
           "end": end}
    with h5py.File(run / "metrics.h5", "r+") as file:
        for name, value in row.items():
            file[f"starts/{name}"] = [value]
        for name in ("start", "step", "training_seconds"):
            file[f"start_checkpoints/{name}"] = np.zeros(0)
        file.create_group("lineage/start_0001").attrs["start_time"] = "2026-11-24T09:31:07Z"
    log, begin = run / "run.log", "start_time: 2026-11-24T09:31:07Z\n"

    def now(text):
        log.write_text(text)
        for path in (log, run / "metrics.h5"):
            os.utime(path, (1e9,) * 2)
        found = report(tool, run)[0]["state"]
        assert f": {found}" in tool("top", run, "--once").stdout
        return found

    assert now(PROGRAM + begin + PROGRESS.format(40, 2.4)) == state
    if end == 0:
        assert now(PROGRAM + begin + PROGRESS.format(40, 2.4) + "error: a rank is lost\n") == "failed"
        assert report(tool, run)[0]["ledger"]["starts"][-1]["end"] == "failed"
    assert now(PROGRAM + begin + PROGRESS.format(40, 2.4) + PROGRAM + begin.replace("07Z", "08Z")) == "no recent output"


def test_checkpoints_elsewhere(run, tool, tmp_path):
    (run / "checkpoints").rename(tmp_path / "kept")
    with h5py.File(run / "metrics.h5", "r+") as file:
        file["provenance_step_00000030"].attrs["directory"] = str(tmp_path)
        del file["deck_step_00000030"]
        file["deck_step_00000030"] = "&checkpoint\n  directory = 'kept'\n/\n"
    assert len(report(tool, run)[0]["checkpoints"]) == 2


def test_an_earlier_run_of_the_folder_does_not_count():
    starts = [run_log.LoggedStart() for _ in range(3)]
    lines = (FIRST.splitlines(), FIRST.splitlines(), RESUMED.splitlines())
    for start, texts in zip(starts, lines, strict=True):
        for line in texts:
            run_log.read_line(line, start)
    assert run_log.of_this_run(starts) == starts[1:]


def test_top(run, tool):
    text = tool("top", run, "--once").stdout
    assert "run: finished" in text and "50 of 50 (100.0 %), ETA 0:00:00" in text and "step_00000050" in text
    assert "2.5000 at step 50" in text and "from           metrics.h5" in text and "█" in text
    assert tool("top", run).stdout.count("finished") == 1  # ends with the run
    (run / "run.log").write_text(FIRST)
    text = tool("top", run, "--once").stdout
    assert "run: stopped" not in text and "run: running, written 0 s ago" in text and "50 of 50" in text
    (run / "metrics.h5").write_bytes(b"\x89HDF, half written")
    text = tool("top", run, "--once").stdout
    assert "30 of 50 (60.0 %), ETA 00:00:23" in text and "10,800" in text and "from           run.log" in text
    (run / "run.log").write_text(PROGRAM)
    (run / "metrics.h5").unlink()
    assert "no step done yet" in tool("top", run, "--once").stdout


WRITER = """
import sys, time, h5py
with h5py.File(sys.argv[1], "r+") as file:
    for step in range(51, 1500):
        for name in sys.argv[2:]:
            file[name].resize((step,))
            file[name][step - 1] = step if name == "step" else 1
        file.flush()
        print(step, flush=True)
        time.sleep(0.005)
"""


def test_while_it_is_written(run, tool):
    """Looks and reports in the midst of the writes of another process."""
    (run / "run.log").write_text(FIRST)
    columns = metrics.load_run(str(run)).series
    writer = subprocess.Popen([sys.executable, "-c", WRITER, run / "metrics.h5", *columns], stdout=subprocess.PIPE,
                              text=True)
    try:
        writer.stdout.readline()
        seen = []
        for _ in range(30):
            lines, ended = top.look(run)
            assert not ended
            seen += [int(line.split()[1].replace(",", "")) for line in lines if line.startswith("  step")]
            assert report(tool, run)[0]["steps"] >= seen[-1]
        assert seen == sorted(seen) and seen[-1] > seen[0] >= 50
    finally:
        writer.kill()
        writer.communicate()


def test_a_terminal_without_unicode(run):
    shown = subprocess.run([sys.executable, conftest.ROOT / "tools" / "nanotron_top.py", run], capture_output=True,
                           env=os.environ | {"PYTHONIOENCODING": "ascii"}, text=True, timeout=60)
    assert shown.returncode == 0 and "50 of 50" in shown.stdout and "?" in shown.stdout and not shown.stderr


def test_mistakes_are_told(run, tool, tmp_path):
    assert "no such file" in tool("report", tmp_path / "none", rc=65).stderr
    assert "no step recorded yet" in tool("report", write_run(tmp_path / "empty", []), rc=65).stderr
    assert "expected the directory of a run" in tool("top", tmp_path / "none", rc=65).stderr
    assert "--every: expected a positive number" in tool("top", run, "--every", "0", rc=2).stderr


def break_nothing(file):
    pass


def rename_column(file):
    file.move("bad_steps/loss", "bad_steps/lost")


def set_time(value):
    def change(file):
        file["starts/last"][0] = value

    return change


def text_for_numbers(file):
    file["grad_norm_of_all"] = np.array([b"a"] * 50)


@pytest.mark.parametrize("change, words", [
    (break_nothing, ""), (text_for_numbers, ""), (rename_column, "'loss'"), (set_time(np.nan), "last nan"),
    (set_time(1e300), "last 1e+300"), (set_time(-1.0), "last -1")])
def test_damaged_metrics_are_told(change, words, run, tool, tmp_path):
    """Not by a traceback; --html reads all of the file."""
    starts = {"start": [1], "begin": [1000.0], "last": [1050.0], "submitted": [np.nan], "job_began": [np.nan],
              "resumed_step": [0], "last_step": [50], "lowest_step": [0], "training_seconds": [40.0],
              "checkpoint_seconds": [4.0], "left_out_seconds": [0.0], "end": [1]}
    bad = {"step": [5], "first_sample": [40], "samples": [8], "left_out_from": [40], "next_step": [6], "loss": [np.nan],
           "grad_norm": [1.0]}
    saved = {"start": [1], "step": [30], "training_seconds": [30.0]}
    with h5py.File(run / "metrics.h5", "r+") as file:
        file.create_group("lineage")
        for group, columns in (("starts", starts), ("bad_steps", bad), ("start_checkpoints", saved)):
            for name, values in columns.items():
                file.create_dataset(f"{group}/{name}", data=np.array(values))
        change(file)
    result = tool("report", run, "--html", tmp_path / "x.html", rc=65 if words else 0)
    assert words in result.stderr and (not words or str(run / "metrics.h5") in result.stderr)


def test_losses_that_no_figure_can_show(run, tool, tmp_path):
    with h5py.File(run / "metrics.h5", "r+") as file:
        file["loss"][::2], file["loss"][1::2], file["seconds"][:] = 1e308, -1e308, 0.0
    tool("report", run, "--html", tmp_path / "x.html")
