#!/usr/bin/env python3
# timeout: 60
"""Holds includes to the graph of the layers, and MPI_COMM_WORLD to where it is allowed.

    test_layers.py [<folder of the programs>] [--root <source tree>]

The graph is that of DEPENDS in the nanotron_add_layer calls of CMakeLists.txt: a layer includes those it depends on, and
theirs; what it names it uses. The programs come last and may include all. The test first plants each violation in a
scratch tree and insists on finding it.
"""
import argparse
import re
import sys
import tempfile
from pathlib import Path

ADD_LAYER = re.compile(r"^nanotron_add_layer\((\w+)([^)]*)\)", re.MULTILINE)
INCLUDE = re.compile(r'^\s*#\s*include\s*(["<])([^">]+)[">]')
COMMENT = re.compile(r"//.*|/\*.*?\*/")
MAY_NAME_THE_WORLD = {"base", "comm", "apps"}
# The folders of a layer, each of which includes those before it.
FOLDERS = {
    "io": ("files", "blocks", "checkpoint", "copies", "metrics"),
    "trainer": ("state", "faults", "hang", "report", "data", "checkpoint", "preference", "loop", "plan", "start", "evaluation"),
}


def graph_of(root):
    """Layer -> what it names in DEPENDS, in the order of the calls; each names earlier ones only."""
    graph = {}
    for layer, arguments in ADD_LAYER.findall((root / "CMakeLists.txt").read_text()):
        words = arguments.split()
        depends = words[words.index("DEPENDS") + 1:] if "DEPENDS" in words else []
        graph[layer] = [word for word in depends if word in graph]
    graph["apps"] = list(graph)
    return graph


def reachable(graph, layer):
    found = {layer}
    for used in graph[layer]:
        found |= reachable(graph, used)
    return found


def layer_files(root, layer):
    for folder in (root / "include/nanotron" / layer, root / "src" / layer):
        for suffix in ("hpp", "cpp", "cuh", "cu"):
            yield from sorted(folder.rglob(f"*.{suffix}"))


def check_include(path, number, kind, target, layer, graph, root):
    where = f"{path.relative_to(root)}:{number}"
    if target.startswith("nanotron/"):
        used = target.split("/")[1]
        if used not in graph:
            return f"{where}: includes {target}, and '{used}' is not a layer"
        if used not in reachable(graph, layer):
            return f"{where}: layer '{layer}' does not depend on '{used}' ({target})"
        if kind == "<":
            return f"{where}: write the project's own header in quotes: {target}"
    elif kind == '"' and "include" in path.relative_to(root).parts[:1]:
        return f'{where}: write the full path "nanotron/<layer>/<name>.hpp", not "{target}"'
    return None


def check_file(path, layer, graph, root):
    problems = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        match = INCLUDE.match(line)
        if match:
            problems.append(check_include(path, number, *match.groups(), layer, graph, root))
        elif "MPI_COMM_WORLD" in COMMENT.sub("", line) and layer not in MAY_NAME_THE_WORLD:
            problems.append(f"{path.relative_to(root)}:{number}: names MPI_COMM_WORLD; take a "
                            "communicator as an argument")
    return [problem for problem in problems if problem]


def upward_folders(root, layer):
    """Includes from a folder of the layer to one after it, and files that are in none."""
    order, problems = FOLDERS[layer], []
    for path in layer_files(root, layer):
        where = path.relative_to(root)
        inside = where.parts[where.parts.index(layer) + 1:]
        if len(inside) == 1 or inside[0] not in order:
            problems.append(f"{where}: layer '{layer}' has the folders {', '.join(order)}")
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            match = re.match(rf'#include "(?:nanotron/)?{layer}/(\w+)/', line)
            if match and order.index(match.group(1)) > order.index(inside[0]):
                problems.append(f"{where}:{number}: folder '{inside[0]}' comes before '{match.group(1)}'")
    return problems


def unused_dependencies(root, graph):
    """What DEPENDS names without an include of it."""
    problems = []
    for layer, depends in graph.items():
        text = "".join(path.read_text(encoding="utf-8") for path in layer_files(root, layer))
        problems += [f"CMakeLists.txt: layer '{layer}' includes nothing of '{used}'" for used in depends
                     if layer != "apps" and f'#include "nanotron/{used}/' not in text]
    return problems


def check_tree(root):
    graph = graph_of(root)
    problems = unused_dependencies(root, graph)
    for folder in sorted(p for p in (root / "include/nanotron").iterdir() if p.is_dir()):
        if folder.name not in graph:
            problems.append(f"include/nanotron/{folder.name}: not a layer of CMakeLists.txt")
    for layer in graph:
        for path in layer_files(root, layer):
            problems += check_file(path, layer, graph, root)
        if layer in FOLDERS:
            problems += upward_folders(root, layer)
    return problems


def write(root, name, text):
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def self_test():
    """Each planted violation must be the one problem found."""
    clean = {
        "CMakeLists.txt": "nanotron_add_layer(base)\nnanotron_add_layer(nn DEPENDS base)\nnanotron_add_layer(io COLD)\n",
        "include/nanotron/base/types.hpp": "#pragma once\n// not MPI_COMM_WORLD\n",
        "include/nanotron/nn/linear.hpp": '#include "nanotron/base/types.hpp"\n',
        "src/io/blocks/a.cpp": '#include "nanotron/io/files/b.hpp"\n',
        "src/apps/main.cpp": '#include "nanotron/nn/linear/linear.hpp"\nint c = MPI_COMM_WORLD;\n',
    }
    planted = {
        "upward include": ("src/base/types.cpp", '#include "nanotron/nn/linear/linear.hpp"\n'),
        "upward folder": ("src/io/blocks/b.cpp", '#include "io/copies/b.hpp"\n'),
        "file in no folder": ("src/io/c.cpp", "int c;\n"),
        "sideways include": ("src/io/files/a.cpp", '#include "nanotron/nn/linear/linear.hpp"\n'),
        "dependency without a use": ("CMakeLists.txt", "nanotron_add_layer(base)\nnanotron_add_layer(nn DEPENDS base)\n"
                                     "nanotron_add_layer(io COLD DEPENDS base LIBRARIES z)\n"),
        "upward include with blanks": ("src/base/a.cpp", ' # include "nanotron/nn/linear/linear.hpp"\n'),
        "unknown layer": ("src/nn/linear.cpp", '#include "nanotron/magic/wand.hpp"\n'),
        "short path": ("include/nanotron/nn/mlp.hpp", '#include "linear.hpp"\n'),
        "folder that is no layer": ("include/nanotron/magic/wand.hpp", "#pragma once\n"),
        "world communicator": ("src/nn/linear.cpp", "auto c = MPI_COMM_WORLD;\n"),
    }
    failures = []
    for title, violation in [("nothing planted", None), *planted.items()]:
        with tempfile.TemporaryDirectory() as scratch:
            root = Path(scratch)
            for name, text in clean.items():
                write(root, name, text)
            if violation:
                write(root, *violation)
            found = check_tree(root)
            if len(found) != (1 if violation else 0):
                failures.append(f"self-test '{title}': found {found}")
    return failures


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("programs", nargs="?")
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parents[2])
    arguments = parser.parse_args()
    problems = self_test() + check_tree(arguments.root)
    print("\n".join(problems) if problems else "layers: the includes follow the graph")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
