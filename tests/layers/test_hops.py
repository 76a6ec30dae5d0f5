#!/usr/bin/env python3
# timeout: 60
"""The tables of calls in doc/architecture.md: each named function is in its file and calls the next one.

    test_hops.py [<folder of the programs>] [--root <source tree>]

A row is | number | `function` and remarks | `file` |. The test first plants a call that is missing.
"""
import argparse
import re
import sys
from pathlib import Path

ROW = re.compile(r"^\| *(\d*) *\| `([^`]+)`[^|]*\| `([^`]+)` \|$", re.M)
MOST = (9, 11)  # calls from main to a kernel, and to a GEMM


def tables(text):
    """Lists of (number, function, file): the rows of each table."""
    found = []
    for block in re.split(r"\n\n+", text):
        rows = [(int(number or 0), name, file) for number, name, file in ROW.findall(block)]
        if rows:
            found.append(rows)
    return found


def base_name(name):
    return re.sub(r"<[^>]*>", "", name).split("::")[-1].removesuffix("()") or "operator()"


def bodies(text, name):
    """The bodies of the functions of that name, by the layout that clang-format gives them."""
    word = re.escape("operator()" if name.startswith("operator") else base_name(name))
    found = []
    for match in re.finditer(rf"^( *)(?!return|//)[^\n;=]*\b{word}\((?:[^;{{}}]|\{{\}})*?\{{\n(.*?)^\1\}}", text, re.S | re.M):
        found.append(match.group(2))
    return found


def called(body, name):
    word = "gemm" if name.startswith("operator") else base_name(name)
    return re.search(rf"\b{re.escape(word)}(<[^()]*>)?\(", body) is not None


def problems_of(rows, read):
    problems = []
    for (_, caller, file), (number, callee, _) in zip(rows, rows[1:], strict=False):
        found = bodies(read(file), caller)
        if not found:
            problems.append(f"row {number}: {file} has no function '{caller}'")
        elif not any(called(body, callee) for body in found):
            problems.append(f"row {number}: '{caller}' of {file} does not call '{callee}'")
    number, last, file = rows[-1]
    if not bodies(read(file), last):
        problems.append(f"row {number}: {file} has no function '{last}'")
    return problems


def self_test():
    files = {"a.cpp": "int a() {\n  return b<T>(1);\n}\n", "b.cpp": "template <class T>\nint b(int x) {\n  c(x);\n}\n"}
    rows = [(0, "a", "a.cpp"), (1, "n::b<T>", "b.cpp")]
    failures = ["self-test: a table that is right"] if problems_of(rows, files.get) else []
    for planted in ({"a.cpp": "int a() {\n  return 1;\n}\n"}, {"b.cpp": "int c() {\n  b();\n}\n"}):
        if len(problems_of(rows, (files | planted).get)) != 1:
            failures.append(f"self-test: {planted} is not found")
    return failures


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("programs", nargs="?")
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parents[2])
    root = parser.parse_args().root
    problems = self_test()
    found = tables((root / "doc/architecture.md").read_text(encoding="utf-8"))
    if len(found) != 2:
        problems.append(f"doc/architecture.md: expected two tables of calls, found {len(found)}")
        found = found[:0]
    else:
        found[1] = [row for row in found[0] if row[0] < found[1][0][0]] + found[1]
    for rows, most in zip(found, MOST, strict=False):
        if [row[0] for row in rows] != list(range(most + 1)):
            problems.append(f"the rows to '{rows[-1][1]}' are {[row[0] for row in rows]}, expected 0 to {most}")
        problems += problems_of(rows, lambda name: (root / name).read_text(encoding="utf-8"))
    print("\n".join(problems) if problems else f"hops: {MOST[0]} calls to a kernel, {MOST[1]} to a GEMM")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
