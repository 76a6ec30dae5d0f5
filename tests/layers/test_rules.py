#!/usr/bin/env python3
# timeout: 120
"""The rules of CONTRIBUTING.md that a program can check.

    test_rules.py [<folder of the programs>] [--root <source tree>]

Sizes: a public header has at most 150 lines, a source 400, a function 60 (not in tests, which list cases, nor in tables
that clang-format leaves alone); a line 120 columns. Headers: a public one is read outside of its layer, by tests too,
itself or through another; a private one has a source of its own, or two readers, or no room in its only one. At most
SHORT_SHARE of the files of include and src have SHORT lines or fewer. Layout: clang-format 14 changes nothing (other
versions differ in details, and are left out). Names that later versions of a library moved: as these have them.
Tests: no error that is not a number is lost. Documents: what they set in code font and looks like a name of C++ occurs
in the code; pages that sources, scripts and decks name exist. The test first plants each violation in a scratch tree.
"""
import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "support"))
from skips import has_tool, left_out  # noqa: E402

SHORT, SHORT_SHARE = 40, 0.18  # measured; files of declarations alone, one idea each
FORMATTER = 14
HEADER, SOURCE, FUNCTION, LINE = 150, 400, 60, 120
DOCUMENTS = ("doc/architecture.md", "doc/choosing_a_grid.md", "doc/parallelism_formulas.md", "doc/numerics.md",
             "doc/reproducibility.md", "doc/checkpoint_format.md", "doc/glossary.md", "CONTRIBUTING.md")
NO_FUNCTION = re.compile(r"^\s*(namespace|struct|class|enum|union|extern|template|#)|=\s*\{$|^[^()]*\{$")
CODE = re.compile(r"`([^`\n]+)`")
# nn::Attention, TensorParallelRegion, all_gather_gemm(), NANOTRON_SEED; not words, deck keys, paths or options.
NAME = re.compile(r"\b(?:(?:\w+::)+\w+|[A-Z]+[a-z0-9]+(?:[A-Z]+[a-z0-9]*)+|[a-z]\w*_\w+(?=\(\))|NANOTRON_\w+)\b(?!\.txt)")
LAUNCHER = {"OMPI_MCA_rmaps_base_oversubscribe": "PRTE_MCA_rmaps_default_mapping_policy",
            "OMPI_MCA_hwloc_base_binding_policy": "PRTE_MCA_hwloc_default_binding_policy"}
PAGE = re.compile(r"(?<![\w/])doc/[\w/]+\.md\b")
SOURCES = (".hpp", ".cpp", ".cuh", ".cu", ".py", ".sh", ".cmake", ".txt", ".deck", ".nml", ".def", ".eb")
BY_HAND = re.compile(r"^template (class|struct) [\w:]+<(double|float|bf16)>;")
LOST = re.compile(r"(\w+) = std::f?max\(\1, (std::abs|test::|error|worst)")
INCLUDE = re.compile(r'^#include "([^"]+)"', re.M)
ELSEWHERE = {"FSDP", "HSDP"}  # names of other programs


def files(root, *folders):
    for folder in folders:
        for suffix in ("hpp", "cpp", "cuh", "cu"):
            yield from sorted((root / folder).rglob(f"*.{suffix}"))


def long_functions(path, where):
    """Functions by the layout that clang-format gives them: a body ends where a brace returns to its first line's column."""
    problems, begin, column, is_table = [], None, 0, False
    lines = path.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines):
        is_table = (is_table or "clang-format off" in line) and "clang-format on" not in line
        if is_table:
            continue
        if begin is None and line.endswith("{"):
            first = number
            while first > 0 and re.match(r" {3}", lines[first]):  # of a signature over several lines
                first -= 1
            if not NO_FUNCTION.search(" ".join(lines[first:number + 1])):
                begin, column = first, len(lines[first]) - len(lines[first].lstrip())
        elif begin is not None and line.startswith(" " * column + "}"):
            if number - begin + 1 > FUNCTION:
                problems.append(f"{where}:{begin + 1}: a function of {number - begin + 1} lines, at most {FUNCTION}")
            begin = None
    return problems


def sizes(root):
    problems = []
    for path in files(root, "include", "src", "tests"):
        where, lines = path.relative_to(root), path.read_text(encoding="utf-8").splitlines()
        limit = HEADER if where.parts[0] == "include" else SOURCE
        if len(lines) > limit:
            problems.append(f"{where}: {len(lines)} lines, at most {limit}")
        for number, line in enumerate(lines, start=1):
            if len(line) > LINE:
                problems.append(f"{where}:{number}: {len(line)} columns, at most {LINE}")
        if where.parts[0] != "tests":
            problems += long_functions(path, where)
    return problems


def layer_of(where):
    """Of include/nanotron/<layer>/..., src/<layer>/... or tests/..."""
    parts = Path(where).parts
    return parts[0] if parts[0] == "tests" else parts[2] if parts[0] == "include" and len(parts) > 3 else parts[1]


def readers_of_headers(root):
    """Header -> the files that include it; and the text of all files."""
    texts = {str(path.relative_to(root)): path.read_text(encoding="utf-8")
             for path in files(root, "include", "src", "tests")}
    readers = defaultdict(set)
    for reader, text in texts.items():
        for name in INCLUDE.findall(text):
            beside = os.path.normpath(os.path.join(os.path.dirname(reader), name))
            found = [h for h in (beside, f"include/{name}", f"src/{name}", f"src/apps/{name}") if h in texts]
            if found:
                readers[found[0]].add(reader)
    return readers, texts


def own_sources(header, texts):
    stem = re.escape(Path(header).stem)
    return [source for source in texts if layer_of(source) == layer_of(header)
            and re.fullmatch(rf"{stem}(_gpu|_cuda|_hip|_host)?\.cpp", Path(source).name)]


def lonely_headers(root):
    readers, texts = readers_of_headers(root)
    includes = defaultdict(set)
    for header, of_header in readers.items():
        for reader in of_header:
            includes[reader].add(header)
    public = [header for header in texts if header.startswith("include/") and header.endswith(".hpp")]
    reached, todo = set(), [h for h in public if any(layer_of(r) != layer_of(h) for r in readers[h])]
    while todo:
        header = todo.pop()
        if header not in reached:
            reached.add(header)
            todo += [h for h in includes[header] if h.startswith("include/")]
    problems = [f"{header}: no other layer and no test reads this public header"
                for header in public if header not in reached]
    for header in (h for h in texts if h.startswith("src/") and h.endswith(".hpp")):
        only = sorted(readers[header])
        together = sum(len(texts[f].splitlines()) for f in (header, *only[:1]))
        if len(only) == 1 and not own_sources(header, texts) and together <= SOURCE:
            problems.append(f"{header}: its only reader, {only[0]}, has room for it: {together} lines, at most {SOURCE}")
    return problems


def short_files(root):
    lines = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in files(root, "include", "src")}
    short = sum(count <= SHORT for count in lines.values())
    if not lines or short <= SHORT_SHARE * len(lines):
        return []
    return [f"include, src: {short} of {len(lines)} files have {SHORT} lines or fewer, at most {SHORT_SHARE:.1%}"]


def can_check_layout():
    if not has_tool("clang-format", "the layout of C++"):
        return False
    told = subprocess.run(["clang-format", "--version"], capture_output=True, text=True, check=True).stdout
    version = re.search(r"version (\d+)", told)
    if version is None or int(version.group(1)) != FORMATTER:
        left_out(f"the layout of C++, which is that of clang-format {FORMATTER}; here is: {told.strip()}")
        return False
    return True


def unformatted(root):
    """The files that clang-format would change, by the .clang-format of the tree."""
    paths = [str(path) for path in files(root, "include", "src", "tests")]
    told = subprocess.run(["clang-format", "--dry-run", "--style=file", *paths],
                          capture_output=True, text=True, check=True).stderr
    found = sorted(set(re.findall(r"^(\S+?):\d+:\d+: warning: code should be clang-formatted", told, re.M)))
    return [f"{Path(path).relative_to(root)}: its layout is not that of clang-format {FORMATTER} -i" for path in found]


def words_of(root):
    """All identifiers of the code, its build and its tools."""
    words = set(ELSEWHERE)
    texts = [*files(root, "include", "src", "tests"), *sorted(root.glob("cmake/*")), root / "CMakeLists.txt",
             *sorted(root.glob("tools/**/*.py")), *sorted(root.glob("tests/**/*.py"))]
    for path in texts:
        if path.is_file() and path.name != Path(__file__).name:
            words.update(re.findall(r"\w+", path.read_text(encoding="utf-8", errors="replace")))
    return words


def unknown_names(root):
    words, problems = words_of(root), []
    for name in DOCUMENTS:
        path = root / name
        if not path.exists():
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            for code in CODE.findall(line):
                for found in NAME.findall(code):
                    for part in found.split("::"):
                        if part not in words and part not in ("std", "Kokkos"):
                            problems.append(f"{name}:{number}: '{part}' of `{code}` is nowhere in the code")
    return problems


def stale_listings(root):
    """Blocks of C++ in a document are listings of a source, to the letter."""
    sources = "\n".join(path.read_text() for path in sorted((root / "src").rglob("*.cpp")))
    problems = []
    for document in DOCUMENTS:
        text = (root / document).read_text() if (root / document).exists() else ""
        for block in re.findall(r"^```cpp\n(.*?)^```", text, re.S | re.M):
            if block not in sources:
                problems.append(f"{document}: the listing that begins with {block.splitlines()[0]!r} is in no source")
    return problems


def moved_names(root):
    """Names of libraries and of Open MPI's launcher that later versions have in other places."""
    problems = []
    for path in files(root, "include", "src", "tests"):
        text, where = path.read_text(encoding="utf-8"), path.relative_to(root)
        if "fmt::join(" in text and "<fmt/ranges.h>" not in text:
            problems.append(f"{where}: fmt::join is in <fmt/ranges.h>, and from fmt 11 on nowhere else")
        if "::HostMirror" in text:
            problems.append(f"{where}: Kokkos 5 has no View::HostMirror: HostMirror<View> of tensor/tensor.hpp")
    for path in sorted(path for folder in (".ci", "jobscripts", "tests") for path in (root / folder).rglob("*")):
        if path.suffix in (".sh", ".py", ".txt", ".cpp") and path.is_file() and path.name != Path(__file__).name:
            text = path.read_text(encoding="utf-8", errors="replace")
            problems += [f"{path.relative_to(root)}: {old}, and not {new}, its name from Open MPI 5 on"
                         for old, new in LAUNCHER.items() if old in text and new not in text]
    return problems


def missing_pages(root):
    """Pages of doc/ that sources, scripts and decks name."""
    problems = []
    for folder in ("include", "src", "tools", "jobscripts", "cmake", "input", "packaging", ".ci"):
        for path in sorted(path for path in (root / folder).rglob("*") if path.suffix in SOURCES and path != Path(__file__)):
            for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), start=1):
                problems += [f"{path.relative_to(root)}:{number}: there is no {page}" for page in PAGE.findall(line)
                             if not (root / page).exists()]
    return problems


def missing_files(root):
    """Files of the tree that CONTRIBUTING.md sets in code font; not patterns."""
    path = root / "CONTRIBUTING.md"
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    return [f"CONTRIBUTING.md: there is no {name}" for name in re.findall(r"`((?:src|include|tests|tools|doc)/[\w./-]+)`", text)
            if not (root / name).exists()]


def missing_tests(root):
    """Tests that .ci/run selects by name: a pattern that matches none runs none, without a word."""
    path = root / ".ci/run"
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    targets = [f"fuzz/fuzz_{name}" for names in re.findall(r"\bfuzz\\\.\(([\w|]+)\)", text) for name in names.split("|")]
    scripts = [f"{folder}/{name}" for folder, name in re.findall(r"\b(integration|tools)\.(test_\w+)", text)]
    return [f".ci/run: there is no tests/{name}" for name in targets + scripts if not list((root / "tests").glob(f"{name}.*"))]


def lost_errors(root):
    """An error that is not a number has to be the largest: std::max(worst, it) is worst, and the test passes."""
    return [f"{path.relative_to(root)}:{number}: an error that is not a number is lost: test::larger of support/differences.hpp"
            for path in files(root, "tests") for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
            if LOST.search(line)]


def instantiations(root):
    return [f"{path.relative_to(root)}:{number}: classes are instantiated by a line of base/types.hpp"
            for path in files(root, "src")
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1) if BY_HAND.match(line)]


def check_tree(root):
    rules = (sizes, lonely_headers, short_files, instantiations, moved_names, missing_pages, missing_files, missing_tests, lost_errors,
             unknown_names, stale_listings)
    return [problem for rule in rules for problem in rule(root)]


def self_test():
    """Each planted violation must be the one problem found."""
    body = "int f() {\n" + "  g();\n" * 10 + "}\n"
    clean = {"include/a.hpp": "#pragma once\n" * HEADER, "src/a.cpp": body * 10, "doc/numerics.md": "`nn::Norm` and `f_g()`\n",
             "src/b.cpp": "#include \"l.hpp\"\nnamespace nn {\nstruct Norm {};\nvoid f_g();\n" + "\n" * 90 + "}\n", "CMakeLists.txt": "",
             "tests/r.cpp": '#include "a.hpp"\n#include "e.hpp"\n#include "h.hpp"\n'}
    clean |= {f"src/long/{i}.cpp": body * 10 for i in range(5)}
    planted = {"include/a.hpp": "#pragma once\n" * (HEADER + 1), "src/a.cpp": "\n" * (SOURCE + 1),
               "src/c.cpp": "// " + "x" * LINE + "\n", "src/d.cpp": "int f(int a,\n      int b) {\n" + "  g();\n" * FUNCTION + "}\n",
               "include/e.hpp": "struct E {\n  int f() {\n" + "    g();\n" * FUNCTION + "  }\n};\n",
               "src/g.cpp": "#include <fmt/format.h>\nauto t = fmt::join(a, b);\n", "include/h.hpp": "Vector<T>::HostMirror h;\n",
               "tests/j.cpp": "worst = std::max(worst, std::abs(a - b));\n",
               "jobscripts/k.sh": "# doc/no_page.md\n", "CONTRIBUTING.md": "`src/no_file.cpp` and `src/a.cpp`\n",
               "include/k.hpp": "struct K;\n",
               ".ci/run": "-R '^fuzz\\.(no_target)\\.'\n", "src/i.cpp": "template class I<double>;\n", "src/l.hpp": "struct L;\n",
               "include, src": {f"src/short/{i}.cpp": "int i;\n" for i in range(8)},
               "jobscripts/i.sh": "export OMPI_MCA_rmaps_base_oversubscribe=1\n",
               "doc/numerics.md": "`nn::LayerNorm`\n", "CONTRIBUTING.md:1:": {"CONTRIBUTING.md": "`no_function()`\n"},
               "'NANOTRON_NOTHING'": {"doc/glossary.md": "`NANOTRON_NOTHING`\n"}, "doc/architecture.md": "```cpp\nint z();\n```\n"}
    problems = []
    for changed in [None, *planted]:
        with tempfile.TemporaryDirectory() as scratch:
            root = Path(scratch)
            violation = planted.get(changed, {})
            for name, text in (clean | (violation if isinstance(violation, dict) else {changed: violation})).items():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_text(text)
            found = check_tree(root)
        if len(found) != (changed is not None) or (changed and changed not in found[0]):
            problems.append(f"self-test: {changed or 'a clean tree'}: found {found}")
    return problems


def layout_self_test(root):
    with tempfile.TemporaryDirectory() as scratch:
        style = (root / ".clang-format").read_text()
        for name, text in {".clang-format": style, "src/a.cpp": "int a;\n", "src/b.cpp": "int  b;\n"}.items():
            (Path(scratch) / name).parent.mkdir(exist_ok=True)
            (Path(scratch) / name).write_text(text)
        found = unformatted(Path(scratch))
    return [] if len(found) == 1 and "src/b.cpp" in found[0] else [f"self-test: two blanks in src/b.cpp: found {found}"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("programs", nargs="?")
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parents[2])
    root = parser.parse_args().root
    problems = self_test() or check_tree(root)
    if can_check_layout():
        problems += layout_self_test(root) or unformatted(root)
    for problem in problems:
        print(problem)
    print("rules: kept" if not problems else f"rules: {len(problems)} broken")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
