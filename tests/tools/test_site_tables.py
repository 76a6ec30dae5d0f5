# timeout: 120
"""The tables of the site in a browser, at the widths of a phone, a laptop and a screen: all of every cell is in sight.

Skipped without chromium (jobscripts/install_dependencies.sh --tests).
"""
import html
import json
import re
import shutil
import subprocess

import pytest
import site_build

WIDTHS = (480, 1280, 1920)
BROWSER = shutil.which("chromium") or shutil.which("chromium-headless-shell")

# A frame shows one page after the other. [tables and cells, [page, width, first cell, pixels out of sight], ...]
SCRIPT = """
const pages = PAGES, widths = WIDTHS, found = [];
let tables = 0, shown = 0;
async function measure() {
  const frame = document.createElement("iframe");
  frame.height = 900;
  document.body.append(frame);
  for (const page of pages) {
    await new Promise(loaded => { frame.onload = loaded; frame.width = widths[0]; frame.src = page; });
    await new Promise(wrapped => setTimeout(wrapped, 50));  // by the theme's script
    const inside = frame.contentDocument;
    for (const width of widths) {
      frame.width = width;
      for (const table of inside.querySelectorAll("table")) {
        tables += 1;
        const room = table.parentElement, cells = [...table.querySelectorAll("td")];
        const wide = Math.max(room.scrollWidth - room.clientWidth, table.scrollWidth - table.clientWidth,
                              ...cells.map(cell => cell.scrollWidth - cell.clientWidth));
        if (wide > 0) found.push([page, width, table.rows[0].innerText, wide]);
        for (const cell of cells) {
          shown += 1;
          if (cell.textContent.length > 40 && cell.clientWidth < 90) found.push([page, width, cell.textContent, -cell.clientWidth]);
        }
      }
    }
  }
  const result = document.createElement("pre");
  result.id = "found";
  result.textContent = JSON.stringify([tables, shown, found]);
  document.body.append(result);
}
measure();
"""


def measured(site, pages):
    """Tables and cells that were measured, and what of them is out of sight or narrower than a word."""
    script = SCRIPT.replace("PAGES", json.dumps(pages)).replace("WIDTHS", json.dumps(WIDTHS))
    (site / "measure.html").write_text(f"<!DOCTYPE html><body><script>{script}</script>")
    done = subprocess.run([BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files",
                           f"--user-data-dir={site / 'browser'}", "--virtual-time-budget=600000", "--dump-dom",
                           (site / "measure.html").as_uri()], capture_output=True, text=True, timeout=100)
    text = re.search(r'<pre id="found">(.*?)</pre>', done.stdout, re.S)
    assert text, done.stdout[-2000:] + done.stderr[-2000:]
    return json.loads(html.unescape(text[1]))


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    if BROWSER is None:
        pytest.skip("no chromium: jobscripts/install_dependencies.sh --tests")
    folder = tmp_path_factory.mktemp("site")
    done = site_build.build(folder)
    assert done.returncode == 0, done.stdout
    return folder


def test_tables_are_in_sight(site):
    pages = [path.relative_to(site).as_posix() for path in sorted(site.rglob("*.html"))
             if path.name not in ("404.html", "search.html", "measure.html")]
    tables, cells, found = measured(site, pages)
    written = sum(path.read_text(encoding="utf-8").count("<table") for path in map(site.joinpath, pages))
    assert tables == written * len(WIDTHS) and cells > 10 * tables
    assert not found, "\n".join(map(str, found))


def test_text_on_one_line_is_found(site):
    """As the theme has it by itself."""
    page = (site / "input_parameters.html").read_text(encoding="utf-8")
    (site / "planted.html").write_text(re.sub(r"<link [^>]*tables\.css[^>]*>", "", page), encoding="utf-8")
    tables, _, found = measured(site, ["planted.html"])
    assert {width for _, width, _, _ in found} == set(WIDTHS) and len(found) > tables // 2
