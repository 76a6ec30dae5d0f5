"""What MkDocs has to know of these documents: links are those of the repository, headings and lists those of GitHub.

A link to a file outside doc/ leads to a copy of it in the site, below repository/. Markdown files among them become pages.
"""
import posixpath
import re
import unicodedata
from pathlib import Path

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[2]
LINK = re.compile(r"(?<!\\)(\[[^\]]*\]\()([^)\s]+)(\))")
ITEM = re.compile(r"^( *)(?:[-*]|\d+\.) ")
PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")


def slug(text, separator):
    """The anchor that GitHub gives a heading."""
    kept = re.sub(r"[^\w\- ]", "", unicodedata.normalize("NFC", text).strip().lower())
    return kept.replace(" ", separator)


def place_in_site(path):
    """Where the site has this file of the repository; a folder stands for its README.md."""
    if (ROOT / path).is_dir():
        path = posixpath.join(path, "README.md")
    return posixpath.relpath(path, "doc") if path.startswith("doc/") else f"repository/{path}"


def outside_code(lines):
    """(index, line) of the lines that are in no fenced block."""
    fenced = False
    for number, line in enumerate(lines):
        if line.startswith("```"):
            fenced = not fenced
        elif not fenced:
            yield number, line


def indented(lines):
    """What belongs to an item of a list in four columns, where GitHub takes two or three."""
    changed, in_list, in_block = list(lines), False, False
    for number, line in outside_code(lines):
        item, columns = ITEM.match(line), len(line) - len(line.lstrip(" "))
        after_blank = number == 0 or not lines[number - 1].strip()
        if line.strip() and columns == 0:
            if item and in_block and not after_blank:
                changed[number] = "\n" + line  # else a line of the paragraph above it
            in_list, in_block = item is not None or (in_list and not after_blank), False
        elif in_list and 0 < columns < 4 and line.strip():
            in_block = in_block or after_blank
            if item or in_block:
                changed[number] = " " * (4 - columns) + line
    return changed


def linked_files(path):
    """Files of the repository that a document links to, as paths from the top folder."""
    found, lines = set(), (ROOT / path).read_text(encoding="utf-8").splitlines()
    for _, line in outside_code(lines):
        for _, target, _ in LINK.findall(line):
            if "://" not in target and not target.startswith("#"):
                found.add(posixpath.normpath(posixpath.join(posixpath.dirname(path), target.split("#")[0])))
    return found


def on_config(config):
    config.mdx_configs.setdefault("toc", {})["slugify"] = slug
    return config


def on_files(files, config):
    documents = [f"doc/{file.src_uri}" for file in files if file.is_documentation_page()]
    wanted = set(PAGES).union(*(linked_files(name) for name in [*documents, *PAGES]))
    for path in sorted(wanted):
        if not path.startswith("doc") and (ROOT / path).is_file():
            files.append(File.generated(config, place_in_site(path), abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown, page, config, files):
    uri = page.file.src_uri
    path = uri.removeprefix("repository/") if uri.startswith("repository/") else f"doc/{uri}"

    def in_site(match):
        target, _, anchor = match[2].partition("#")
        if "://" in target or not target:
            return match[0]
        place = place_in_site(posixpath.normpath(posixpath.join(posixpath.dirname(path), target)))
        return match[1] + posixpath.relpath(place, posixpath.dirname(uri) or ".") + (f"#{anchor}" if anchor else "") + match[3]

    lines = indented(markdown.splitlines())
    for number, line in outside_code(lines):
        lines[number] = LINK.sub(in_site, line)
    return "\n".join(lines) + "\n"


def with_columns(table):
    """A table whose cells name their columns, for windows that are too narrow for rows."""
    names = [re.sub(r"<[^>]+>|\"", "", name) for name in re.findall(r"<th\b[^>]*>(.*?)</th>", table[0], re.S)]

    def named(row):
        columns = iter(names)
        return re.sub(r"<td\b", lambda cell: f'{cell[0]} data-column="{name}"' if (name := next(columns)) else cell[0], row[0])

    return re.sub(r"<tr>.*?</tr>", named, table[0], flags=re.S)


def on_page_content(html, page, config, files):
    return re.sub(r"<table>.*?</table>", with_columns, html, flags=re.S)
