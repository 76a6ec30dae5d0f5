#!/usr/bin/env python3
# timeout: 200
"""The table of doc/trainings.md: --check and --plan of each deck of input/trainings say what its row says.

    test_trainings.py <folder of the programs> [--print]

--print: the rows as they should be. The answer of a row begins with one of
    accepted         --check finds no mistake
    nearly           the same; what the deck leaves out of the training is named
    hardware         the same; the training ran on devices that the program has no kernels for, or untried ones
    refused: `word`  every mistake that --check finds has the word
"""
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = str(Path(sys.argv[1]).resolve() / "nanotron_hpc")
PAGE = ROOT / "doc/trainings.md"
ROW = re.compile(r"^\| `(\w+)` \| (.*) \| (\S+) \| (\S+) \| (\S+) \| (accepted|nearly|hardware|refused)(.*) \|$")
SOURCE = re.compile(r"^! .*(https://|arXiv)", re.MULTILINE)
NONE = "-"


def answer(*words):
    done = subprocess.run([PROGRAM, *map(str, words)], capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
    return done.returncode, done.stdout + done.stderr


def plan_of(deck):
    """Billions of parameters, ranks, GiB of the largest rank on H100 (a plan for a host depends on its processor)."""
    code, text = answer("--plan", deck, "--machine", ROOT / "input/machines/h100.nml")
    if code:
        raise SystemExit(f"--plan {deck}: exit code {code}\n{text}")
    number, unit = re.search(r": ([\d.]+) (\w+) parameters\b", text, re.MULTILINE).groups()
    parameters = f"{float(number) * {'million': 1e-3, 'billion': 1, 'trillion': 1e3}[unit]:.2f}"
    ranks = re.search(r"^grid: .* = (\d+) ranks$", text, re.MULTILINE)[1]
    memory = float(re.search(r"^  total +([\d.]+) MiB$", text, re.MULTILINE)[1])
    return [parameters, ranks, f"{memory / 1024:.1f}"]


def compare(deck, said, kind, rest):
    """What is wrong with a row, and its three figures."""
    code, text = answer("--check", deck)
    mistakes = [line for line in text.splitlines() if ": error: " in line]
    if kind == "refused":
        words = re.findall(r"`([^`]+)`", rest)
        told = [line for line in mistakes if not any(word in line for word in words)]
        wrong = [f"--check also says: {line}" for line in told] + ["--check accepts it"] * (code != 78)
        return wrong, [NONE, NONE, NONE]
    if code:
        return [f"--check: exit code {code}", *mistakes], said
    figures = plan_of(deck)
    return [f"{', '.join(figures)} are true"] * (figures != said), figures


def main():
    decks = {path.stem: path for path in (ROOT / "input/trainings").glob("*.deck")}
    wrong, shown, found = [], [], []
    for line in PAGE.read_text().splitlines():
        row = ROW.match(line)
        if row:
            name, needs, *said, kind, rest = row.groups()
            found.append(name)
            if name not in decks:
                wrong.append(f"{name}: no such deck")
                continue
            mistakes, figures = compare(decks[name], said, kind, rest)
            wrong += [f"{name}: {mistake}" for mistake in mistakes]
            line = f"| `{name}` | {needs} | {' | '.join(figures)} | {kind}{rest} |"
        shown.append(line)
    if "--print" in sys.argv:
        print("\n".join(shown))
        return 0
    wrong += [f"{name}: no row in {PAGE.name}, or two" for name in decks if found.count(name) != 1]
    wrong += [f"{name}: its comment cites no source" for name, path in decks.items() if not SOURCE.search(path.read_text())]
    print("\n".join(wrong) or f"{len(found)} trainings")
    return 1 if wrong or not found else 0


if __name__ == "__main__":
    sys.exit(main())
