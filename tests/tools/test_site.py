# timeout: 120
"""The documents: as a site of MkDocs, strictly, and what they quote."""
import re
import shutil
from html.parser import HTMLParser

import pytest
import site_build
from conftest import ROOT

DOCUMENTS = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "doc").rglob("*.md"))


class Page(HTMLParser):
    """Items of lists and tables that the document makes, and addresses that a browser loads by itself."""

    def __init__(self, path):
        super().__init__()
        self.items, self.tables, self.loaded, self.inside = 0, 0, [], False
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        self.inside = (self.inside or values.get("itemprop") == "articleBody") and tag != "footer"
        self.items += self.inside and tag == "li"
        self.tables += self.inside and tag == "table"
        address = values.get("src") or (values.get("href") if tag == "link" else None) or ""
        if "//" in address:
            self.loaded.append(address)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    done = site_build.build(folder)
    assert done.returncode == 0, done.stdout
    return folder


@pytest.fixture
def checkout(tmp_path):
    """The documents as a copy, beside links to everything else."""
    copy = tmp_path / "checkout"
    copy.mkdir()
    for path in ROOT.iterdir():
        if path.name not in ("doc", "build", ".git"):
            (copy / path.name).symlink_to(path)
    shutil.copytree(ROOT / "doc", copy / "doc", ignore=shutil.ignore_patterns("__pycache__"))
    return copy


def page_of(document, site):
    page = site / document.removeprefix("doc/").replace(".md", ".html")
    return page.with_name("index.html") if page.name == "README.html" else page


@pytest.mark.parametrize("document", DOCUMENTS)
def test_a_document_is_a_page_with_its_lists_and_tables(document, site):
    page = page_of(document, site)
    assert page.is_file()
    fenced, items, tables = False, 0, 0
    for line in (ROOT / document).read_text(encoding="utf-8").splitlines():
        fenced ^= line.startswith("```")
        items += not fenced and re.match(r" {0,3}(?:[-*]|\d+\.) ", line) is not None
        tables += not fenced and re.match(r" *\|[-:|]*-[-:|]*\|$", line.replace(" ", "")) is not None
    found = Page(page)
    assert (found.items, found.tables) == (items, tables)


def test_pages_load_nothing_from_elsewhere(site):
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > len(DOCUMENTS)
    assert [address for page in pages for address in Page(page).loaded] == []


@pytest.mark.parametrize("document, text, words", [
    ("doc/first_job.md", "[there](no_such_page.md)", "no_such_page.md"),
    ("doc/first_job.md", "[there](install.md#no-such-heading)", "no-such-heading"),
    ("doc/first_job.md", "[there](../src/no_such_source.cpp)", "no_such_source.cpp"),
    ("doc/first_job.md", "![there](images/no_such_image.svg)", "no_such_image.svg"),
    ("doc/no_row.md", "# A page without a row in the navigation", "no_row.md")])
def test_what_is_planted_ends_the_build(document, text, words, checkout, tmp_path):
    with open(checkout / document, "a", encoding="utf-8") as file:
        file.write(f"\n{text}\n")
    done = site_build.build(tmp_path / "site", checkout)
    assert done.returncode != 0 and words in done.stdout and "1 warnings" in done.stdout, done.stdout


def test_messages_of_troubleshooting_are_in_the_sources():
    text = (ROOT / "doc/troubleshooting.md").read_text()
    table = text[text.index("| message |"):].split("\n\n")[0]
    messages = re.findall(r"^\| `([^`]+)`", table, re.M)
    sources = "".join(path.read_text() for path in sorted((ROOT / "src").rglob("*.cpp")))
    sources = re.sub(r'"\s*"', "", sources)
    known = {"Killed"}  # the shell's
    assert len(messages) >= 10
    assert [message for message in messages if message not in known and message not in sources] == []


def keys_by_group():
    groups, name = {}, ""
    for line in (ROOT / "doc/input_parameters.md").read_text().splitlines():
        if line.startswith("## &"):
            name = line[4:]
        elif key := re.match(r"\| `(\w+)` \|", line):
            groups.setdefault(name, set()).add(key[1])
    return groups


def test_keys_of_coming_from_are_parameters_of_the_deck():
    groups, unknown, seen = keys_by_group(), [], 0
    every = set().union(*groups.values())
    for line in (ROOT / "doc/coming_from.md").read_text().splitlines():
        cells = line.strip("|").split(" | ")
        if not line.startswith("|") or len(cells) not in (2, 3):
            continue
        for code in re.findall(r"`([^`]+)`", cells[-1]):
            key = re.match(r"(?:(\w+)%)?([a-z]\w*)(?:$| = )", code)
            seen += key is not None
            if key and key[2] not in (groups.get(key[1], ()) if key[1] else every):
                unknown.append(code)
    assert not unknown and seen > 30
