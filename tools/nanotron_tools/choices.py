"""Turns multiple-choice questions into a file for nanotron_hpc --evaluate --choices.

    nanotron-choices questions.jsonl --output questions.h5
    nanotron-choices questions.jsonl --tokenizer tokenizer.json --token-file tokens.h5 --output questions.h5

Input: lines of JSON, each an object with these fields; others are ignored.
    context     the text before the choices; or `question`, the same
    choices     a list of two or more texts
    answer      index of the right one, from 0

A choice is scored after its context and --delimiter, a blank by default. Give the training's token file
(--token-file), from which the tokens that begin and end texts are taken, or its --bos and --eos. Tokens are those of
lm-evaluation-harness, except that names of special tokens stay text: context and choice are encoded in one
piece, and the tokens of the context alone are counted off at the left; blanks at the end of a context belong to the
choice. A context without text is the token --bos, where there is none --eos.

Output, an HDF5 file that appears under its name only when it is complete:
    /tokens                uint16, or uint32 from a vocabulary of 65537: choice after choice, each after its context
    /documents             uint64, where the context of each choice starts
    /choices/tokens        uint64, number of tokens of the choice itself, at the end
    /choices/characters    uint64, length of the choice without the delimiter: acc_norm divides by it
    /choices/bytes         uint64, the same in bytes of UTF-8: acc_bytes divides by it
    /questions/choices     uint64, number of choices of the question
    /questions/answer      uint64, index of the right choice, from 0
    /questions/line        uint64, line in the input, from 1
    attributes             vocab_size, eos_token_id, bos_token_id, tokenizer, tokenizer_sha256; group /provenance

Exit codes: 0 done; 2 or 64 wrong command line; 65 unusable questions or tokenizer; 71 system failure.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from . import common, document_file
from .foreign import TokenFile
from .json_lines import read_objects, refuse
from .tokenizers import ByteTokenizer, HuggingFaceTokenizer, Tokenizer, load_tokenizer, say_bos


@dataclass(frozen=True)
class Question:
    line: int
    context: str
    choices: list[str]
    answer: int


@dataclass
class Columns:
    """What is written, in lists that grow."""

    tokens: list[np.ndarray] = field(default_factory=list)
    scored: list[int] = field(default_factory=list)
    characters: list[int] = field(default_factory=list)
    bytes: list[int] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    answers: list[int] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)


def question_of(row: dict[str, Any], where: str, line: int) -> Question:
    names = [name for name in ("context", "question") if name in row]
    if len(names) != 1 or not isinstance(row[names[0]], str):
        raise refuse(where, "one text, in the field context or question",
                     " and ".join(names) + (" of another type" if len(names) == 1 else "") if names else "neither")
    choices, answer = row.get("choices"), row.get("answer")
    if not isinstance(choices, list) or len(choices) < 2 or not all(isinstance(c, str) and c for c in choices):
        raise refuse(where, "two or more texts in the field choices", repr(choices)[:60])
    if isinstance(answer, bool) or not isinstance(answer, int) or not 0 <= answer < len(choices):
        raise refuse(where, f"a number from 0 to {len(choices) - 1} in the field answer", repr(answer)[:60])
    return Question(line, row[names[0]], choices, answer)


def encode_pair(tokenizer: Tokenizer, context: str, choice: str) -> tuple[np.ndarray, int]:
    """Tokens of context and choice, and how many at the end are the choice's."""
    rest = context.rstrip()
    context, choice = rest, context[len(rest):] + choice
    first = tokenizer.bos if tokenizer.bos is not None else None if context else tokenizer.eos
    before = tokenizer.encode(context.encode())
    whole = tokenizer.encode((context + choice).encode())
    scored = len(whole) - len(before)
    if first is not None:
        whole = np.concatenate((np.array([first], dtype=whole.dtype), whole))
    return whole, scored


def add_question(columns: Columns, tokenizer: Tokenizer, question: Question, delimiter: str, where: str) -> None:
    for number, choice in enumerate(question.choices, 1):
        tokens, scored = encode_pair(tokenizer, question.context, delimiter + choice)
        if not 1 <= scored < len(tokens):
            what = "at least one token of context" if scored >= 1 else "at least one token after the context"
            raise refuse(f"{where}, choice {number}", what + "; change: --bos or --eos names the token of an empty "
                         "context", f"{len(tokens)} tokens, {scored} of them after the context")
        columns.tokens.append(tokens)
        columns.scored.append(scored)
        columns.characters.append(len(choice))
        columns.bytes.append(len(choice.encode()))
    columns.counts.append(len(question.choices))
    columns.answers.append(question.answer)
    columns.lines.append(question.line)


def write_file(path: Path, columns: Columns, tokenizer: Tokenizer) -> None:
    with document_file.written(path, columns.tokens, tokenizer, "nanotron_choices") as file:
        for name, values in (("choices/tokens", columns.scored), ("choices/characters", columns.characters),
                             ("choices/bytes", columns.bytes), ("questions/choices", columns.counts),
                             ("questions/answer", columns.answers), ("questions/line", columns.lines)):
            file.create_dataset(name, data=np.asarray(values, dtype="<u8"))


def choose_tokenizer(options: argparse.Namespace) -> Tokenizer:
    """Of the options, or with the ends and beginnings of a token file, which has to be of the same tokenizer."""
    if options.token_file is None:
        tokenizer = tokenizer_of(options)
        say_bos(tokenizer, options.bos)
        return tokenizer
    attributes = TokenFile(options.token_file).attributes
    plain = tokenizer_of(argparse.Namespace(tokenizer=options.tokenizer, eos="none", bos="none"))
    if (theirs := attributes.get("tokenizer_sha256")) != plain.sha256:
        raise common.wrong(options.token_file, f"tokens of {plain.name}, tokenizer_sha256 {plain.sha256[:16]}...",
                           f"{attributes.get('tokenizer', 'no tokenizer')}, {str(theirs)[:16]}...",
                           "give the --tokenizer that made the file")
    if isinstance(plain, ByteTokenizer):
        return ByteTokenizer("eos_token_id" in attributes)
    names = {index: name for name, index in plain.ids.items()}
    eos, bos = (names[int(attributes[key])] if key in attributes else "none"
                for key in ("eos_token_id", "bos_token_id"))
    return HuggingFaceTokenizer(plain.name, plain.text, eos, bos)


def tokenizer_of(options: argparse.Namespace) -> Tokenizer:
    if options.tokenizer == "bytes":
        for option, value in (("--eos", options.eos), ("--bos", options.bos)):
            if value not in (None, "none"):
                raise common.ToolError(f"{option}: bytes have no named tokens: expected none, found {value!r}",
                                       common.EXIT_USAGE)
        return ByteTokenizer(options.eos != "none")
    return HuggingFaceTokenizer(*load_tokenizer(Path(options.tokenizer)), options.eos, options.bos)


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = common.parser(__doc__)
    parser.add_argument("questions", type=Path, help="a .jsonl file")
    parser.add_argument("--output", "-o", required=True, type=Path, help="HDF5 file to write")
    parser.add_argument("--tokenizer", default="bytes", metavar="bytes|tokenizer.json")
    parser.add_argument("--delimiter", default=" ", metavar="TEXT",
                        help="between context and choice (default: a blank)")
    parser.add_argument("--eos", metavar="TOKEN|none", help="as for nanotron-tokenize")
    parser.add_argument("--bos", metavar="TOKEN|none", help="token that begins each context (default: none)")
    parser.add_argument("--token-file", type=Path, metavar="tokens.h5",
                        help="of the training: --eos and --bos are as there, and the tokenizer is compared")
    options = parser.parse_args(argv)
    if options.token_file and (options.eos or options.bos):
        parser.error("--token-file says what --eos and --bos are; leave them out")
    return options


def main(argv: list[str] | None = None) -> int:
    options = parse(argv)
    tokenizer = choose_tokenizer(options)
    columns = Columns()
    for line, where, row in read_objects(options.questions, "context, choices and answer"):
        add_question(columns, tokenizer, question_of(row, where, line), options.delimiter, where)
    if not columns.counts:
        raise common.ToolError(f"{options.questions}: expected questions, found none")
    write_file(options.output, columns, tokenizer)
    longest = max(len(tokens) for tokens in columns.tokens)
    print(f"{options.output}: {len(columns.counts):,} questions, {len(columns.scored):,} choices, "
          f"{sum(map(len, columns.tokens)):,} tokens, at most {longest} with the context, vocabulary "
          f"{tokenizer.vocab_size} ({tokenizer.name})")
    return 0
