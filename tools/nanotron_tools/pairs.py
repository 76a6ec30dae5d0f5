"""Turns pairs of a chosen and a rejected answer into a file for preference%beta (DPO) of nanotron_hpc.

    nanotron-pairs pairs.jsonl --output pairs.h5
    nanotron-pairs pairs.jsonl --tokenizer tokenizer.json --max-length 1025 --output pairs.h5
    nanotron-pairs talks.jsonl --chat chatml --tokenizer tokenizer.json --output pairs.h5

Input: lines of JSON, each an object with these fields; others are ignored.
    prompt      a text, or a list of messages {"role", "content"}; without it, what chosen and rejected begin with alike
    chosen      the better answer, of the same form
    rejected    the other one

Tokens are those of TRL's DPOTrainer, except that names of special tokens in a text stay text: prompt and answer are
encoded in one piece, and the answer begins where the tokens of prompt and answer differ from those of the prompt alone.
A text ends with the token --eos. Messages need --chat, the template that the model was trained with (as for
nanotron-tokenize); everything after the prompt counts, as in TRL. --max-length is TRL's max_length: longer texts lose
their end, and pairs whose prompt fills it are left out.

Output, an HDF5 file that appears under its name only when it is complete:
    /tokens       uint16, or uint32 from a vocabulary of 65537: of each pair prompt and chosen, prompt and rejected
    /documents    uint64, where each of them starts: two for each pair
    /loss_mask    uint8, 1 for tokens of an answer
    /pairs        uint64, line of each pair in the input, from 1
    attributes    vocab_size, eos_token_id, bos_token_id, tokenizer, tokenizer_sha256; group /provenance

Exit codes: 0 done; 2 or 64 wrong command line; 65 unusable pairs or tokenizer; 71 system failure.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from . import chat, common, document_file, model_chat, tokenize, tokenize_options
from .chat import ChatEncoder, WrongChat
from .json_lines import read_objects, refuse
from .tokenizers import HuggingFaceTokenizer, Tokenizer


@dataclass(frozen=True)
class Pair:
    """Texts, or lists of messages."""

    line: int
    prompt: Any
    chosen: Any
    rejected: Any


@dataclass
class Columns:
    """What is written, in lists that grow."""

    tokens: list[np.ndarray] = field(default_factory=list)
    masks: list[np.ndarray] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)
    shortened: int = 0  # pairs
    left_out: int = 0

    def longest(self) -> int:
        """Positions of a sequence that holds any pair."""
        sizes = [len(tokens) - 1 for tokens in self.tokens]
        return max(map(sum, zip(sizes[::2], sizes[1::2])))


def shared_beginning(chosen: Any, rejected: Any) -> int:
    """Length of the prompt that both begin with, as TRL's extract_prompt finds it."""
    size = next((i for i, (a, b) in enumerate(zip(chosen, rejected)) if a != b), min(len(chosen), len(rejected)))
    is_blank = isinstance(chosen, str) and 0 < size < min(len(chosen), len(rejected)) and chosen[:size].endswith(" ")
    return size - 1 if is_blank else size


def pair_of(row: dict[str, Any], where: str, line: int) -> Pair:
    chosen: Any = row.get("chosen")
    rejected: Any = row.get("rejected")
    kind = type(chosen)
    if kind not in (str, list) or not isinstance(rejected, kind):
        raise refuse(where, "two texts, or two lists of messages, in the fields chosen and rejected",
                     f"{chosen!r:.40} and {rejected!r:.40}")
    prompt = row.get("prompt")
    if prompt is None:
        size = shared_beginning(chosen, rejected)
        prompt, chosen, rejected = chosen[:size], chosen[size:], rejected[size:]
    if not isinstance(prompt, kind):
        raise refuse(where, f"a {'text' if kind is str else 'list of messages'} in the field prompt, as in the others",
                     f"{prompt!r:.60}")
    return Pair(line, prompt, chosen, rejected)


class PairEncoder:
    """Tokens of the prompt alone, and with each answer."""

    def __init__(self, tokenizer: Tokenizer, template: chat.Template | None):
        self.tokenizer = tokenizer
        self.chat = ChatEncoder(template, tokenizer) if template else None
        names = {index: name for name, index in tokenizer.ids.items()} \
            if isinstance(tokenizer, HuggingFaceTokenizer) else {}
        self.eos_name = names.get(tokenizer.eos) if tokenizer.eos is not None else None

    def encode(self, pair: Pair) -> list[np.ndarray]:
        if isinstance(pair.prompt, list):
            if self.chat is None:
                raise WrongChat("texts; or --chat, the template of messages", "messages")
            chosen, rejected = ({"prompt": pair.prompt, "completion": answer}
                                for answer in (pair.chosen, pair.rejected))
            return [self.chat.before_answer(chosen), self.chat.encode(chosen)[0], self.chat.encode(rejected)[0]]
        prompt = self.tokenizer.encode(pair.prompt.encode())
        return [prompt, self._ended(pair.prompt, pair.chosen), self._ended(pair.prompt, pair.rejected)]

    def _ended(self, prompt: str, answer: str) -> np.ndarray:
        if self.eos_name:
            answer = answer.removesuffix(self.eos_name)
        tokens = self.tokenizer.encode((prompt + answer).encode())
        return tokens if self.tokenizer.eos is None else np.append(tokens, tokens.dtype.type(self.tokenizer.eos))


def common_prefix(a: np.ndarray, b: np.ndarray) -> int:
    size = min(len(a), len(b))
    differ = np.flatnonzero(a[:size] != b[:size])
    return int(differ[0]) if differ.size else size


def add_pair(columns: Columns, encoder: PairEncoder, pair: Pair, max_length: int | None, where: str) -> None:
    try:
        prompt, *answers = encoder.encode(pair)
    except WrongChat as error:
        raise refuse(where, *error.args) from None
    size = min(common_prefix(prompt, answer) for answer in answers)
    bos = encoder.tokenizer.bos
    if bos is not None:
        answers = [np.append(answer[:0], [bos, *answer]).astype(answer.dtype) for answer in answers]
        size += 1
    if max_length is not None and size >= max_length:
        columns.left_out += 1
        return
    columns.shortened += any(max_length is not None and len(answer) > max_length for answer in answers)
    for name, answer in zip(("chosen", "rejected"), (answer[:max_length] for answer in answers)):
        if len(answer) < 2 or len(answer) == size:
            what = "an answer of at least one token, after at least one token" if len(answer) < 2 else \
                "an answer of at least one token"
            raise refuse(f"{where}, {name}", what + " (--bos or --eos adds one)",
                         f"{len(answer)} tokens, {size} of them of the prompt")
        columns.tokens.append(answer)
        columns.masks.append((np.arange(len(answer)) >= size).astype(np.uint8))
    columns.lines.append(pair.line)


def write_file(path: Path, columns: Columns, tokenizer: Tokenizer) -> None:
    with document_file.written(path, columns.tokens, tokenizer, "nanotron_pairs") as file:
        file.create_dataset("loss_mask", data=np.concatenate(columns.masks))
        file.create_dataset("pairs", data=np.asarray(columns.lines, dtype="<u8"))


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = common.parser(__doc__)
    parser.add_argument("pairs", type=Path, help="a .jsonl file")
    parser.add_argument("--output", "-o", required=True, type=Path, help="HDF5 file to write")
    parser.add_argument("--tokenizer", default="bytes", metavar="bytes|tokenizer.json")
    parser.add_argument("--max-length", type=int, metavar="N", help="tokens of prompt and answer (default: all)")
    parser.add_argument("--eos", metavar="TOKEN|none", help="as for nanotron-tokenize")
    parser.add_argument("--bos", metavar="TOKEN|none", help="as for nanotron-tokenize")
    parser.add_argument("--chat", metavar="TEMPLATE", nargs="?", const=tokenize_options.MODEL,
                        help="of messages, as for nanotron-tokenize")
    parser.add_argument("--chat-date", metavar="YYYY-MM-DD", default=model_chat.DATE,
                        help=f"where the model's template asks for the date (default {model_chat.DATE})")
    options = parser.parse_args(argv)
    if options.max_length is not None and options.max_length < 2:
        parser.error("--max-length: expected 2 or more")
    options.quiet, options.train_bpe, options.parse_special = False, None, False
    return options


def main(argv: list[str] | None = None) -> int:
    options = parse(argv)
    tokenizer, template = tokenize.choose_tokenizer(options, tokenize.template_of(options), lambda: ())
    columns, encoder = Columns(), PairEncoder(tokenizer, template)
    for line, where, row in read_objects(options.pairs, "prompt, chosen and rejected"):
        add_pair(columns, encoder, pair_of(row, where, line), options.max_length, where)
    if not columns.lines:
        short = f" whose prompt is shorter than {options.max_length} tokens" if columns.left_out else ""
        raise common.ToolError(f"{options.pairs}: expected pairs, found none{short}")
    write_file(options.output, columns, tokenizer)
    print(f"{options.output}: {len(columns.lines):,} pairs, {sum(map(len, columns.tokens)):,} tokens, "
          f"{sum(int(mask.sum()) for mask in columns.masks):,} of answers, vocabulary {tokenizer.vocab_size} "
          f"({tokenizer.name})\nthe longest pair takes {columns.longest():,} positions: data%sequence_length"
          + (f"\n{columns.shortened:,} pairs lost tokens at their end, {columns.left_out:,} were left out for their "
             f"prompt (--max-length {options.max_length})" if columns.shortened or columns.left_out else ""))
    return 0
