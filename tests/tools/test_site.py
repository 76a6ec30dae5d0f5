#!/usr/bin/env python3
# timeout: 120
"""The documents: as a site of MkDocs, strictly, and what they quote.

    test_site.py [<folder of the programs>]

Without mkdocs in this Python the site is not built and the test is skipped, after the rest of it has passed.
jobscripts/install_dependencies.sh --tests installs it.
"""
import importlib.util
import re
import subprocess
import sys
import tempfile
from html.parser import HTMLParser
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CONFIG = ROOT / "doc/site/mkdocs.yml"


def fail(what, output=""):
    sys.exit(f"FAILED: {what}\n{output}")


def check_messages():
    """Words of the programs in doc/troubleshooting.md are in the sources."""
    text = (ROOT / "doc/troubleshooting.md").read_text()
    table = text[text.index("| message |"):].split("\n\n")[0]
    messages = re.findall(r"^\| `([^`]+)`", table, re.M)
    sources = "".join(path.read_text() for path in sorted((ROOT / "src").rglob("*.cpp")))
    sources = re.sub(r'"\s*"', "", sources)
    known = {"Killed"}  # the shell's
    unknown = [message for message in messages if message not in known and message not in sources]
    if unknown or len(messages) < 10:
        fail(f"doc/troubleshooting.md quotes what no source says: {unknown}")


def check_keys():
    """Keys of doc/coming_from.md, right-hand columns, are parameters of the deck."""
    parameters = (ROOT / "doc/input_parameters.md").read_text()
    groups, name = {}, ""
    for line in parameters.splitlines():
        if line.startswith("## &"):
            name = line[4:]
        elif key := re.match(r"\| `(\w+)` \|", line):
            groups.setdefault(name, set()).add(key[1])
    every, unknown = set().union(*groups.values()), []
    for line in (ROOT / "doc/coming_from.md").read_text().splitlines():
        cells = line.strip("|").split(" | ")
        if not line.startswith("|") or len(cells) != 2:
            continue
        for code in re.findall(r"`([^`]+)`", cells[1]):
            key = re.match(r"(?:(\w+)%)?([a-z]\w*)(?:$| = )", code)
            if key and key[2] not in (groups[key[1]] if key[1] else every):
                unknown.append(code)
    if unknown:
        fail(f"doc/coming_from.md names keys that the deck does not have: {unknown}")


class Page(HTMLParser):
    """Items of lists, and addresses that a browser loads by itself."""

    def __init__(self, path):
        super().__init__()
        self.items, self.loaded = 0, []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        self.items += tag == "li"
        address = values.get("src") or (values.get("href") if tag == "link" else None) or ""
        if "//" in address:
            self.loaded.append(address)


def body(path):
    """The part of a page that its document makes."""
    text = path.read_text(encoding="utf-8")
    begin, end = text.index('itemprop="articleBody"'), text.index("<footer")
    return text[begin:end]


def build(site):
    done = subprocess.run([sys.executable, "-m", "mkdocs", "build", "--strict", "-q", "-f", str(CONFIG), "-d", str(site)],
                          text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    if done.returncode != 0:
        fail("mkdocs build --strict", done.stdout)


def check_site(site):
    pages = sorted(site.rglob("*.html"))
    loaded = {address for page in pages for address in Page(page).loaded}
    if loaded:
        fail(f"pages of the site load files from elsewhere: {sorted(loaded)}")
    for document in sorted((ROOT / "doc").rglob("*.md")):
        page = site / document.relative_to(ROOT / "doc").with_suffix(".html")
        if document.name == "README.md":
            page = page.with_name("index.html")
        if not page.is_file():
            fail(f"{document.relative_to(ROOT)} is no page of the site")
        fenced, items, tables = False, 0, 0
        for line in document.read_text(encoding="utf-8").splitlines():
            fenced ^= line.startswith("```")
            items += not fenced and re.match(r" {0,3}(?:[-*]|\d+\.) ", line) is not None
            tables += not fenced and re.match(r" *\|[-:|]*-[-:|]*\|$", line.replace(" ", "")) is not None
        found = body(page).count("<li"), body(page).count("<table")
        if found != (items, tables):
            fail(f"{document.relative_to(ROOT)} has {items} items of lists and {tables} tables, its page {found}")
    return len(pages)


def main():
    check_messages()
    check_keys()
    if importlib.util.find_spec("mkdocs") is None:
        print(f"site: SKIPPED: {sys.executable} has no mkdocs (jobscripts/install_dependencies.sh --tests)")
        return 77
    with tempfile.TemporaryDirectory(prefix="nanotron_site_") as folder:
        site = Path(folder) / "site"
        build(site)
        print(f"site: {check_site(site)} pages, built strictly")
    return 0


if __name__ == "__main__":
    sys.exit(main())
