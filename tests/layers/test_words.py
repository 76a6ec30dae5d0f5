#!/usr/bin/env python3
# timeout: 60
"""Words and names that the code, the programs' messages and the documents do not use, with what to write instead.

    test_words.py [<folder of the programs>] [--root <source tree>]

The words of the field (Megatron-LM, PyTorch, NCCL, MPI, BLAS) and of plain technical English stand on the right. A line that
needs a word of the list all the same is in EXACT, to the letter. The test first plants each word and insists on finding it.
"""
import argparse
import re
import sys
import tempfile
from pathlib import Path

FOLDERS = ("src", "include", "tools", "doc", "jobscripts", "input", "packaging", ".ci", "cmake", "tests", "README.md", "CONTRIBUTING.md")
SUFFIXES = {".cpp", ".hpp", ".cu", ".cuh", ".py", ".sh", ".md", ".toml", ".txt", ".deck", ".nml", ""}
# Regular expression, an example that it must find, what to write instead.
WORDS = (
    # English
    (r"\banew\b", "begin anew", "again, from scratch"),
    (r"\bfor ever\b", "waits for ever", "forever"),
    (r"\bmend(s|ed|ing)?\b", "mend the file", "fix"),
    (r"\bbut for\b", "all but for the last", "except"),
    (r"\b(go|goes|going|went) on (?!the\b)", "the run goes on from here", "continue, resume"),
    (r"\bcomes? again\b", "samples come again", "be repeated"),
    (r"\bin place of\b", "the file in place of the folder", "instead of"),
    (r"\bsigns? of life\b", "no sign of life", "recent output"),
    (r"\bpassed over\b", "passed over: 3 files", "skipped, ignored"),
    (r"(?<!there )\b(is|are|was|were) no (legal|list|multiple|number|file|deck|hash|token|regular|plain|order|sum)s?\b",
     "this is no file", "is not a ..."),
    (r"\bno (plain|regular) file\b", "no plain file", "not a regular file"),
    (r"\bha(s|ve) not (the|an?|its|their|this)\b", "the file has not the hash", "does not have"),
    (r"\bbehind (the|its|their) (end|last)\b", "bytes behind its end", "past the end, after"),
    (r"\bdear(er|est)\b", "the dearest stage", "most expensive"),
    (r"\bbefitting\b", "befitting sizes", "suitable"),
    (r"\bany more\b", "not there any more", "no longer"),
    (r"\btakes? (its|their) turn\b", "it takes its turn", "a table of what runs when"),
    (r"\bnothing to say\b", "mypy has nothing to say", "must pass"),
    (r"\bdeck is good\b", "the deck is good", "deck OK"),
    (r"\b(is|are|was) there twice\b", "the name is there twice", "is given twice"),
    (r"\bwas meant\b", "where the change was meant", "was intended"),
    (r"\bbring(s)? back the\b", "bring back the file", "restore"),
    (r"\bper rank and step\b", "tokens per rank and step", "per rank per step"),
    (r"\bthat speaks\b", "the rank that speaks", "that writes"),
    # the field's words
    (r"\bmatrix (rate|product)s?\b", "the matrix rate", "GEMM, measured GEMM peak"),
    (r"\b(split|whole) streams?\b", "the split stream", "sharded, replicated hidden states"),
    (r"\b(who_multiplies|GradientSum|make_gradient_sum|ShardedInPlace|ShardedByUnit|OrderedSum|WholeModel|PipelinePasses"
     r"|ParameterPlaces)\b", "GradientSum", "GEMM, GradientReducer, Zero1Reducer, LayoutInvariantReducer, BufferLayout"),
    (r"\b(to_experts|from_experts|outbox)\b", "from_experts", "dispatch, combine, send buffer"),
    (r"(?<!\.)\b(most|least)_[a-z]\w*", "most_bytes", "max_, min_"),
    (r"\b(set_out|hand_out|work_off|begin_anew|go_on_writing|bear_no_report|answer_bad_step|max_of_alike|whole_one_before"
     r"|complete_and_normalise_input|forward_inside)\b", "work_off", "start, gather, execute, resume_..., handle_..."),
    (r"\b(speaks|trusted)\(\)", "log.speaks()", "is_writer(), is_valid()"),
    (r"(?<!digital )\btwins?\b|[a-z]Twin\b", "GeluTwin", "reference implementation"),
)
EXACT: set[str] = set()  # lines without the blanks around them


def texts(root):
    for name in FOLDERS:
        path = root / name
        found = sorted(path.rglob("*")) if path.is_dir() else [path]
        yield from (p for p in found if p.is_file() and p.suffix in SUFFIXES and "__pycache__" not in p.parts
                    and p.resolve() != Path(__file__).resolve())


def check_tree(root):
    problems = []
    for path in texts(root):
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), start=1):
            if line.strip() in EXACT:
                continue
            for word, _, instead in WORDS:
                for found in re.finditer(word, line, re.IGNORECASE):
                    problems.append(f"{path.relative_to(root)}:{number}: '{found.group()}': write {instead}")
    return problems


def self_test():
    """Each word, in each kind of file, is the one problem found."""
    problems = []
    for _, example, instead in WORDS:
        for file in ("src/a.cpp", "doc/a.md", "README.md"):
            with tempfile.TemporaryDirectory() as scratch:
                root = Path(scratch)
                (root / file).parent.mkdir(parents=True, exist_ok=True)
                (root / file).write_text(f"a clean line\n{example}\n", encoding="utf-8")
                found = check_tree(root)
            if not any(f"{file}:2:" in line and instead in line for line in found):
                problems.append(f"self-test: {file}: '{example}': found {found}")
    return problems


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("programs", nargs="?")
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parents[2])
    root = parser.parse_args().root
    problems = self_test() or check_tree(root)
    for problem in problems:
        print(problem)
    print("words: kept" if not problems else f"words: {len(problems)} to change")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
