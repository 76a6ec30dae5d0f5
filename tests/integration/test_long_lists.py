#!/usr/bin/env python3
# ranks: 2
# timeout: 300
"""A list file of 1,500 token files, with 128 descriptors: the tokens of doc/numerics.md on three grids and over restarts, a
stage with a list of its own, a validation set of several files, the tables, and what is wrong with a list.

    test_long_lists.py <folder of the programs> [--measure]    --measure: seconds and memory against one file
"""
import re
import resource
import subprocess
import sys
import time

import h5py
import numpy as np

from runs import Case, check, program, root
from test_sample_order import hashes

sys.path.insert(0, str(root / "tools"))
from nanotron_tools import token_hashes  # noqa: E402

FILES, LENGTH = 1500, 16
ONE = ("parallel.tp=1",)


def few_descriptors():
    resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))


def run(case, *settings, ranks=2):
    """With 128 descriptors for each rank; exit code and output."""
    arguments = [word for key in settings for word in (("--set", key) if "=" in key else (key,))]
    command = case.command(*arguments, ranks=ranks) if ranks > 0 else [program, *arguments, str(case.deck)]
    done = subprocess.run(command, text=True, capture_output=True, preexec_fn=few_descriptors)
    return done.returncode, done.stdout + done.stderr


def write(path, tokens, with_hashes):
    path.parent.mkdir(exist_ok=True, parents=True)
    with h5py.File(path, "w") as file:
        file["tokens"] = tokens
        file.attrs["vocab_size"] = 131
    if with_hashes:
        token_hashes.add(path)


def make_files(folder):
    """Name, weight and tokens of each file: in five folders, so that names are the ends of paths."""
    made = []
    for i in range(FILES + 1):
        tokens = np.random.default_rng(i).integers(0, 131, 40 + 7 * (i % 50)).astype(np.uint16)
        name = f"{'abcde'[i % 5]}/{i // 5}.h5"
        write(folder / "data" / name, tokens, i % 10 == 0)
        made.append((name, round(0.1 + (i * 37 % 101) / 50, 3), tokens))
    return made


def hashes_of(case):
    with h5py.File(case.folder / "run/metrics.h5") as file:
        return file["token_hash"][:].tolist()


def grids_and_restarts(case, files):
    last = len(files) - 1  # only in the second stage
    stages = [(0, [weight for _, weight, _ in files[:-1]] + [0.0]), (94, [0.0] * FILES + [3.0])]
    stages[1][1][5] = 1.0
    (case.folder / "data/late.txt").write_text(f"1 {files[5][0]}\n3 {files[last][0]}\n")
    keys = [f"data.path=@{case.folder}/data/blend.txt", f"data.stages=1500: @{case.folder}/data/late.txt"]
    for grid, ranks, stop in ((("parallel.dp=2", "parallel.tp=1"), 2, 9), (("parallel.tp=2",), 2, 10),
                              (("parallel.dp=1", "parallel.tp=1", "data.micro_batch_size=4"), 1, 0)):
        code, text = run(case, *keys, *grid, f"run.stop_after_steps={stop}", ranks=ranks)
        check(code == (75 if stop else 0), f"a run on {grid}", text)
    named = [(name, tokens) for name, _, tokens in files[:-1]] + [("300.h5", files[last][2])]  # the only 300.h5
    expected = hashes(named, stages, LENGTH, 8, 20, 1234, "global", 0)
    check(hashes_of(case) == expected, f"hashes of a list on three grids: {hashes_of(case)}, expected {expected}")
    check("blend of 1501 files" in text and "1481 other files" in text and "and 1500 more files" in text, "the log", text)
    # The deck of the run is complete: it needs no list.
    deck = (case.folder / "run/deck.nml").read_text()
    check(deck.count("data/a/") == 301 and "@" not in deck, "deck.nml has the files")
    again = case.deck
    case.deck = case.folder / "run/deck.nml"
    code, text = run(case, "run.steps=21", *("parallel.dp=2", "parallel.tp=1"))
    case.deck = again
    check(code == 0 and len(hashes_of(case)) == 21, "deck.nml resumes", text)


def refused(case, files):
    def lists(text):
        (case.folder / "data/wrong.txt").write_text(text)
        return f"data.path=@{case.folder}/data/wrong.txt"

    good = "".join(f"1 {name}\n" for name, _, _ in files[:40])
    for text, code, words in (("# nothing\n", 78, "wrong.txt: error: this list names no file"),
                              (good + "0 e/1.h5", 78, "wrong.txt:41:1: error: the weight '0' is not positive"),
                              (good + "1 a/1.h5", 78, "wrong.txt:41:3: error: 'a/1.h5' is given twice"),
                              (good + "1 nowhere.h5\n1 lost.h5", 65, "'nowhere.h5' (")):
        found, said = run(case, lists(text), *ONE, ranks=1)
        check(found == code and words in said, f"exit code {code}, {words}; found {found}", said)
    check("wrong.txt:41:3): the token file cannot be read" in said and "wrong.txt:42:3" in said, "lines of lost files", said)
    found, said = run(case, f"data.path=@{case.folder}/nowhere.txt", *ONE, ranks=1)
    check(found == 78 and "the list of token files cannot be read" in said, "a list that is not there", said)


def tables_and_validation(case, files):
    (case.folder / "data/valid.txt").write_text("".join(f"{1 + i % 3} {files[i][0]}\n" for i in range(70)))
    keys = (f"data.path=@{case.folder}/data/blend.txt", f"data.validation_path=@{case.folder}/data/valid.txt",
            "data.validation_batches=2")
    code, text = run(case, "--plan", *keys, *ONE, ranks=0)
    rows = re.findall(r"^  (\S+|\d+ other files|total) +(\d+) +(\d+) +(\d+) +([\d.]+) +([\d.]+)$", text, re.M)
    check(code == 0 and len(rows) == 22 and rows[-1][0] == "total", f"{len(rows)} rows of the table", text)
    check(rows[-1][2] == "160" and sum(int(row[2]) for row in rows[:-1]) == 160, "samples add up", text)
    code, text = run(case, "--check", *keys, *ONE, "output.blend_rows=0", ranks=0)
    check(code == 0 and text.count(".h5 ") >= FILES, "a row for each file", text[:2000])
    losses = []
    for grid in (("parallel.dp=2", "parallel.tp=1"), ("parallel.tp=2",)):
        code, text = run(case, *keys, *grid, "run.steps=2", "checkpoint.resume=none", "checkpoint.at_end=false",
                         f"run.output_dir={case.folder}/{len(losses)}")
        found = re.findall(r"validation loss +([\d.]+)", text)
        check(code == 0 and found, "a run with a validation list", text)
        losses.append(float(found[-1]))
    check(abs(losses[0] - losses[1]) < 2e-4, f"one validation set: {losses}")


def without_weights(case, files):
    """In proportion to the tokens."""
    (case.folder / "data/shards.txt").write_text("".join(f"{name}\n" for name, _, _ in files[:60]))
    code, text = run(case, f"data.path=@{case.folder}/data/shards.txt", "parallel.dp=2", "parallel.tp=1", "run.steps=10",
                     f"run.output_dir={case.folder}/shards")
    weights = [float(len(tokens)) for _, _, tokens in files[:60]]
    expected = hashes([(name, tokens) for name, _, tokens in files[:60]], [(0, weights)], LENGTH, 8, 10, 1234, "global", 0)
    with h5py.File(case.folder / "shards/metrics.h5") as file:
        check(code == 0 and file["token_hash"][:].tolist() == expected, "weights by tokens", text)


def measure(case, files):
    """Seconds of a start with the list and with one file of the same tokens, and the largest memory."""
    write(case.folder / "one.h5", np.concatenate([tokens for _, _, tokens in files[:-1]]), True)
    for name, path in (("list", f"@{case.folder}/data/blend.txt"), ("one file", f"{case.folder}/one.h5")) * 3:
        begin = time.monotonic()
        code, text = run(case, f"data.path={path}", "parallel.dp=2", "parallel.tp=1", "run.steps=1", "checkpoint.resume=none",
                         f"run.output_dir={case.folder}/measured", "checkpoint.at_end=false")
        check(code == 0, name, text)
        peak = re.search(r"peak resident memory: (\d+) MiB", text)[1]
        print(f"{name}: {time.monotonic() - begin:.2f} s in all, {peak} MiB")


def main():
    with Case("lists", steps=20, tp=1) as case:
        files = make_files(case.folder)
        lines = [f"{weight} {name}" for name, weight, _ in files[:-1]]
        (case.folder / "data/blend.txt").write_text("# weight and path\n" + "\n".join(lines) + "\n")
        if "--measure" in sys.argv:
            return measure(case, files)
        grids_and_restarts(case, files)
        tables_and_validation(case, files)
        without_weights(case, files)
        refused(case, files)
    print("1,500 files are a blend like any other")
    return 0


if __name__ == "__main__":
    sys.exit(main())
