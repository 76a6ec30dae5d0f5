#!/usr/bin/env python3
# timeout: 400
"""The tables and plans of doc/choosing_a_grid.md, the rooflines of doc/benchmarks.md, and what the decks say of
themselves, are what --plan says.

    test_deck_tables.py <folder of the programs> [--print]

--print: the tables as they should be.
"""
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = str(Path(sys.argv[1]).resolve() / "nanotron_hpc")
PAGE = ROOT / "doc/choosing_a_grid.md"
NODE = 8  # GPUs
MACHINE = "input/machines/h100.nml"
ROOFLINES, H200 = ROOT / "doc/benchmarks.md", "input/machines/h200.nml"
EXAMPLE = re.compile(rf"^    nanotron_hpc --plan --machine {MACHINE} --set (\S+) (input/\S+\.deck)$")
COMMAND = re.compile(rf"^    nanotron_hpc --plan --machine {MACHINE} (input/\S+\.deck) --set (\S+)$")


def plan(deck, keys, machine):
    """Text of --plan; a key is group.name=value."""
    command = [PROGRAM, "--plan", "--machine", machine, *(word for key in keys for word in ("--set", key)), str(ROOT / deck)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    return done.stdout


def free_memory():
    """GiB of a GPU that the machine's file leaves to a plan."""
    memory, reserved = (float(re.search(rf"^ +{key} += ([\d.]+)", (ROOT / MACHINE).read_text(), re.MULTILINE)[1])
                        for key in ("memory_gb", "reserved_gb"))
    return (memory - reserved) * 1e9 / 2**30


def compare_examples(machine):
    """Lines of a plan in the examples that --plan does not print; with --print the whole page as it should be."""
    mistakes, shown, printed, plans = [], [], None, 0
    for line in PAGE.read_text().splitlines():
        command = EXAMPLE.match(line)
        if command:
            plans += 1
            text = plan(command[2], [command[1]], machine)
            text = text[text.index("memory of the largest"):text.index("  span: ")]
            printed = ["    " + words for words in text.splitlines()]
            shown += [line, *printed]
            said = []
        elif printed is not None and line.startswith("    "):
            said.append(line)
        else:
            if printed is not None and said != printed:
                mistakes += [f"{PAGE.name}: the plan of {plans} differs, --print shows it"]
            printed = None
            shown.append(line)
    if "--print" in sys.argv:
        print("\n".join(shown))
    return mistakes + [f"{PAGE.name}: {plans} plans found"] * (plans != 3)


def figures(text):
    """GiB: memory, sent inside of a node and between nodes; the bubble in per cent."""
    memory = float(re.search(r"^  total +([\d.]+) MiB$", text, re.MULTILINE)[1])
    sent = [0.0, 0.0]
    for span, bytes_sent in re.findall(r" (\d+) ranks +[\d.]+ MiB +([\d.]+) MiB$", text, re.MULTILINE):
        sent[int(span) > NODE] += float(bytes_sent)
    bubble = re.search(r"bubble ([\d.]+) %", text)
    return [memory / 1024, sent[0] / 1024, sent[1] / 1024, float(bubble[1]) if bubble else 0.0]


def fits(deck, keys, memory):
    """With NCCL's buffers, which only the whole file of the machine tells."""
    largest_of_nccl = 10.0
    if not 0 < free_memory() - memory < largest_of_nccl:
        return memory <= free_memory()
    return "\n  fits: " in plan(deck, keys, str(ROOT / MACHINE))


def compare_searches(machine):
    """Rows of the table of searches that --plan does not confirm: seconds of a step of the deck and of the grid beside it."""
    page = PAGE.read_text()
    of_deck = dict(COMMAND.match(line).groups() for line in page.splitlines() if COMMAND.match(line))
    rows = re.findall(r"^\| `(\w+\.deck)` \| ([\d.]+) \| (.*) \| ([\d.]+) \| ([\d.]+) \|$", page, re.MULTILINE)
    mistakes = [f"{PAGE.name}: {len(rows)} searches for {len(of_deck)} decks"] * (len(rows) != len(of_deck))
    for name, step, words, memory, other_step in rows:
        deck = f"input/{name}"
        texts = [plan(deck, keys, machine) for keys in
                 ([of_deck[deck]], [of_deck[deck]] if words == "the deck's" else words.strip("`").split())]
        seconds = [float(re.search(r"^  step +([\d.]+) ms$", text, re.MULTILINE)[1]) / 1000 for text in texts]
        true = f"{seconds[0]:.2f} s, {figures(texts[1])[0]:.1f} GiB and {seconds[1]:.2f} s"
        if true != f"{step} s, {memory} GiB and {other_step} s":
            mistakes.append(f"{PAGE.name}: the search of {name}: {true} are true")
    return mistakes


def compare_rooflines():
    """Rows of the table of rooflines that the timeline of --plan does not confirm."""
    rows = re.findall(r"^\| `(input/\w+\.deck)` \|.*% \|$", ROOFLINES.read_text(), re.MULTILINE)
    mistakes = [f"{ROOFLINES.name}: {len(rows)} rooflines found"] * (len(rows) != 3)
    for deck in rows:
        text = plan(deck, [], str(ROOT / H200))
        times = [float(re.search(rf"^  {name} +([\d.]+) ms", text, re.MULTILINE)[1])
                 for name in ("GEMMs", "attention", "other kernels", "step")]
        speed, share = re.search(r"^  (\d+) tokens/s, MFU ([\d.]+) %", text, re.MULTILINE).groups()
        true = " | ".join([f"| `{deck}`", *(f"{time:.0f} ms" for time in times), f"{int(speed):,}", f"{share} % |"])
        mistakes += [f"{ROOFLINES.name}: true is {true}"] * (true not in ROOFLINES.read_text())
    return mistakes


def main():
    with tempfile.TemporaryDirectory(prefix="nanotron_decks_") as folder:
        machine = Path(folder) / "machine.nml"  # without its nodes: memory and bytes, no timeline, which takes seconds
        machine.write_text((ROOT / MACHINE).read_text().split("\n&node\n")[0] + "\n")
        return compare(str(machine))


def compare(machine):
    mistakes, shown, rows = compare_examples(str(ROOT / MACHINE)) + compare_searches(str(ROOT / MACHINE)), [], 0
    mistakes += compare_rooflines()
    deck, base = "", ""
    for line in PAGE.read_text().splitlines():
        command = COMMAND.match(line)
        if command:
            deck, base = command.groups()
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("| ") else []
        if not deck or len(cells) != 6 or not (cells[0] == "as it is" or re.match(r"`\w+\.", cells[0])):
            shown.append(line)
            continue
        rows += 1
        keys = [base] + cells[0].strip("`").split() * (cells[0] != "as it is")
        found = figures(plan(deck, keys, machine))
        words = [f"{found[0]:.1f}", f"{found[1]:.1f}", f"{found[2]:.1f}", f"{found[3]:.1f} %" if found[3] else ""]
        shown.append("| " + " | ".join([cells[0], *words, cells[5]]) + " |")
        for said, true, room in zip(cells[1:5], found, (0.1, 0.1, 0.1, 0.1), strict=True):
            if abs(float(said.strip(" %") or 0) - true) > room:
                mistakes.append(f"{PAGE.name}: {deck}, {cells[0]}: {said} is said, {true:.1f} is true")
        comment = re.search(rf"(\d+) GiB of {free_memory():.1f} available", (ROOT / deck).read_text())
        if ("does not fit" in cells[5]) == fits(deck, keys, found[0]):
            mistakes.append(f"{PAGE.name}: {deck}, {cells[0]}: '{cells[5]}', but it takes {found[0]:.1f} and NCCL's of {free_memory():.1f} GiB")
        if cells[0] == "as it is" and (not comment or abs(float(comment[1]) - found[0]) > 1.0):
            mistakes.append(f"{deck}: its comment says {comment[1] if comment else 'nothing'} GiB, --plan {found[0]:.1f}")
    if "--print" in sys.argv:
        print("\n".join(shown))
        return 0
    if rows < 20:
        mistakes.append(f"{PAGE.name}: {rows} rows of tables found")
    print("\n".join(mistakes) or f"{rows} rows")
    return 1 if mistakes else 0


if __name__ == "__main__":
    sys.exit(main())
