# timeout: 240
"""nanotron_report --html: the page of a run, as text and in a browser: it loads nothing, its curves are those of
metrics.h5, what a deck or a log says is text, and all of it is in sight at the widths of a phone and of a screen.

The browser is left out without chromium (jobscripts/install_dependencies.sh --tests).
"""

import html
import json
import re
import shutil
import subprocess

import h5py
import numpy as np
import pytest
import skips
from conftest import write_run

from nanotron_tools import charts

BROWSER = shutil.which("chromium") or shutil.which("chromium-headless-shell")
HOSTILE = "</script><script>document.title='broken'</script><img src=x onerror=\"document.title='broken'\">"
DECK = """! The deck of this run, complete. Keys that are not at their default are marked.
&run
  title = 'x'    ! set: default ''
  seed  = 1234
/
&optimizer
  eps = 1e-09    ! set: default 1e-08
/
"""

SCRIPT = """
const widths = WIDTHS, found = {resources: [], wide: [], errors: []};
async function measure() {
  const frame = document.createElement("iframe");
  frame.height = 900;
  document.body.append(frame);
  for (const width of widths) {
    frame.width = width;
    await new Promise(loaded => { frame.onload = loaded; frame.src = "page.html"; });
    const inside = frame.contentWindow, page = frame.contentDocument;
    await new Promise(wrapped => setTimeout(wrapped, 50));
    found.title = page.title;
    found.resources.push(...inside.performance.getEntriesByType("resource").map(entry => entry.name));
    const over = page.documentElement.scrollWidth - page.documentElement.clientWidth;
    if (over > 0) found.wide.push([width, over]);
    const charts = [...page.querySelectorAll(".chart")];
    found.charts = charts.map(chart => chart.getAttribute("class") + " " + chart.querySelector("svg").getAttribute("aria-label"));
    found.heights = charts.map(chart => chart.querySelector("svg").getBoundingClientRect().height);
    const box = charts[0].querySelector("svg").getBoundingClientRect();
    for (const share of [0.5, 0.97]) {
      charts[0].querySelector("svg").dispatchEvent(new inside.PointerEvent("pointermove",
        {clientX: box.left + share * box.width, clientY: box.top + 20}));
      found["shown" + share] = charts.map(chart => chart.querySelector("output").innerText);
      const last = charts[0].querySelector("output").getBoundingClientRect();
      found.errors.push(...(last.left < 0 || last.right > inside.innerWidth ? [[width, share, last.left, last.right]] : []));
    }
    charts[0].querySelector("svg").dispatchEvent(new inside.PointerEvent("pointerleave"));
    found.hidden = charts.every(chart => chart.querySelector("output").getBoundingClientRect().height == 0);
    found.headings = [...page.querySelectorAll("h1, h2, h3")].map(heading => heading.innerText);
    found.elements = page.querySelectorAll("img, link, iframe").length;
    found.bar = [...page.querySelector(".bar").children].map(part => part.getBoundingClientRect().width);
  }
  const result = document.createElement("pre");
  result.id = "found";
  result.textContent = JSON.stringify(found);
  document.body.append(result);
}
measure();
"""


@pytest.fixture
def run(tmp_path, golden):
    """Killed after step 40, resumed from 30, finished; a bad step, a host that was excluded, and words of an attacker."""
    folder = write_run(tmp_path / "run", range(1, 101))
    with h5py.File(folder / "metrics.h5", "r+") as file:
        file["grad_norm"][:] = np.linspace(1, 100, 100)
        for name in ("", "_step_00000030"):
            file.create_group("provenance" + name).attrs["command"] = HOSTILE
            file["deck" + name] = f"&run\n  title = '{HOSTILE.replace(chr(39), chr(39) * 2)}'\n  steps = 100\n/\n"
        starts = {"start": [1, 2], "begin": [1000.0, 1100.0], "last": [1050.0, 1200.0], "submitted": [990.0, np.nan],
                  "job_began": [995.0, np.nan], "resumed_step": [0, 30], "last_step": [40, 100], "lowest_step": [0, 30],
                  "training_seconds": [40.0, 90.0], "checkpoint_seconds": [4.0, 5.0], "left_out_seconds": [0.0, 0.0],
                  "end": [0, 1]}
        bad = {"step": [55], "first_sample": [440], "samples": [8], "left_out_from": [432], "next_step": [56],
               "token_hash": [1], "loss": [np.nan], "grad_norm": [1e9]}
        saved = {"start": [1], "step": [30], "training_seconds": [30.0]}
        for group, columns in (("starts", starts), ("bad_steps", bad), ("start_checkpoints", saved)):
            for name, values in columns.items():
                file.create_dataset(f"{group}/{name}", data=np.array(values))
        for number in (1, 2):
            file.create_group(f"lineage/start_{number:04d}").attrs["grid"] = "dp 2 x tp 2"
    (folder / "deck.nml").write_text(DECK)
    (folder / "excluded_hosts").write_text(f"n0012 step 55: {HOSTILE}\n")
    (folder / "run.log").write_text("program: nanotron_hpc\nfinished: 100 steps, 100.0 s; loss 2.0\n")
    shutil.copytree(golden / "llama" / "step_00000000", folder / "checkpoints" / "step_00000030")
    return folder


def test_the_text(run, tmp_path, tool):
    page = tmp_path / "page.html"
    assert f"{page}: " in tool("report", run, "--html", page).stdout
    text = page.read_text()
    assert HOSTILE not in text and html.escape(HOSTILE) in text
    assert not re.search(r"(src|href)=|https?://|url\(|@import", re.sub(re.escape(html.escape(HOSTILE)), "", text))
    assert "default-src 'none'" in text
    for words in ("Goodput", "run%title = ", "optimizer%eps = 1e-09", "step_00000030", "432 to 447", "killed", "dp 2 x tp 2",
                  "1 restart, 10 steps computed again", "n0012 step 55"):
        assert words in html.unescape(text), words
    assert "seed = 1234" not in html.unescape(text).split("<details>")[0]
    assert not list(tmp_path.glob("*.tmp"))
    data = [json.loads(part) for part in re.findall(r'<script type="application/json">(.*?)</script>', text)]
    name, steps, values = data[0]["curves"][1]
    assert name == "validation" and steps == list(range(1, 100, 10)) and values == [2.5] * 10


def test_one_run_is_asked_for(run, tmp_path, tool):
    assert "--html: expected one run" in tool("report", run, run, "--html", tmp_path / "x", rc=2).stderr


def test_runs_that_lack_something(tmp_path, tool):
    """A single row; no validation, log, deck, ledger; losses that are not finite."""
    for name, steps, only in (("one", [1], None), ("bare", range(1, 30), ("step", "loss"))):
        folder = write_run(tmp_path / name, steps, only=only, validation=False)
        tool("report", folder, "--html", tmp_path / f"{name}.html")
        assert "<svg" in (tmp_path / f"{name}.html").read_text()
    with h5py.File(folder / "metrics.h5", "r+") as file:
        file["loss"][:] = np.nan
    tool("report", folder, "--html", tmp_path / "nan.html")
    assert "nan" not in re.findall(r'd="[^"]*"', (tmp_path / "nan.html").read_text())


def test_long_curves_are_thinned():
    steps = np.arange(1, 1_000_001)
    values = np.sin(steps / 1e5) + 5.0 * (steps == 777_777)
    found, means, least, most = charts.thinned(steps, values)
    assert found.size == charts.POINTS and found[-1] == steps[-1] and most.max() == values.max()
    assert np.average(means) == pytest.approx(values.mean(), rel=1e-9) and least.min() == values.min()
    assert len(charts.svg_of(charts.Chart("c", "", [charts.Curve("c", steps, values)]))) < 60_000


def test_ticks_are_round():
    assert charts.ticks(0.0, 10.0) == [0, 2, 4, 6, 8, 10] and charts.ticks(0.13, 0.19) == [0.14, 0.16, 0.18]
    assert charts.ticks(3.0, 3.0) == [3.0] and charts.log_ticks(0.9, 12.0) == [1, 2, 5, 10]
    assert [charts.short(value) for value in (0, 2.5, 12000, 3.4e6, 2e-5, 1234)] == ["0", "2.5", "12k", "3.4M", "2e-05", "1234"]


def test_in_a_browser(run, tmp_path, tool):
    if BROWSER is None:
        (pytest.fail if skips.tools_are_required() else pytest.skip)(f"no chromium: {skips.BROUGHT}")
    tool("report", run, "--html", tmp_path / "page.html")
    (tmp_path / "measure.html").write_text(f"<!DOCTYPE html><body><script>{SCRIPT.replace('WIDTHS', '[420, 1400]')}</script>")
    done = subprocess.run([BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files",
                           f"--user-data-dir={tmp_path / 'browser'}", "--virtual-time-budget=60000", "--dump-dom",
                           (tmp_path / "measure.html").as_uri()], capture_output=True, text=True, timeout=200)
    text = re.search(r'<pre id="found">(.*?)</pre>', done.stdout, re.S)
    assert text, done.stdout[-2000:] + done.stderr[-2000:]
    found = json.loads(html.unescape(text[1]))
    assert found["title"] == f"run: {HOSTILE}" and found["elements"] == 0  # words, not elements
    assert found["resources"] == [] and found["wide"] == [] and found["errors"] == []
    assert [name.split(" ", 1)[1] for name in found["charts"]] == [
        "loss", "loss, second half", "speed", "gradient norm", "learning rate", "mfu"]
    assert min(found["heights"]) > 100 and found["hidden"]
    assert re.search(r"^training: 2\.\d+ at step 4\d\nvalidation: 2\.5 at step 51$", found["shown0.5"][0])
    assert "at step 4" in found["shown0.5"][2] and found["shown0.97"][0].startswith("training: ")
    assert {"Where the time went", "Bad steps", "Excluded hosts", "Checkpoints", "Deck"} <= set(found["headings"])
    assert max(found["bar"]) > 5 * min(found["bar"]) > 0
