"""Tokenizers behind one small interface: name, vocab_size, eos, bos, sha256, encode, vocabulary, recipe.

`recipe` is what another process needs to make the same tokenizer (tokenizer_from_recipe).
`sha256` is a hash of what decides about the ids of a text, and of nothing else.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any, Union

import numpy as np

from . import common, token_file

OTHERS = ("tokenizer.model", "spiece.model", "tiktoken.model")  # files that a folder may have in its place
CONVERT = """write a tokenizer.json with transformers, where FOLDER has this file and its tokenizer_config.json:
  python3 -c "from transformers import AutoTokenizer as T; T.from_pretrained('FOLDER').save_pretrained('OUT')\""""
NO_CHARACTER = "\U0010fffe"  # Unicode's, of no text
EOS_NAMES = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|eos|>", "<|im_end|>",
             "<｜end▁of▁sentence｜>", "[SEP]")


class ByteTokenizer:
    """Token i is byte i; token 256, if there is one, ends a document."""

    name, bos = "bytes", None
    special: tuple[str, ...] = ()

    def __init__(self, has_eos: bool = True):
        self.vocab_size = 257 if has_eos else 256
        self.eos = 256 if has_eos else None
        self.sha256 = hashlib.sha256(b"nanotron bytes: token i is byte i").hexdigest()

    def encode(self, data: bytes) -> np.ndarray:
        return np.frombuffer(data, dtype=np.uint8).astype(np.uint16)

    def vocabulary(self) -> list[bytes]:
        return [bytes([i]) for i in range(256)] + [b""] * (self.vocab_size - 256)

    def recipe(self) -> tuple[Any, ...]:
        return ("bytes", self.eos is not None)


class HuggingFaceTokenizer:
    """A tokenizer.json through the package `tokenizers`; special tokens are not added to text, which is UTF-8.

    `eos` and `bos` are names of tokens or 'none'; without an eos the usual names are tried. `tokenizer` takes names of
    special tokens in a text for these tokens; `plain` takes them for text, unless `parse_special`, and the names of
    `hidden` for the tokens. `encode` is that of `plain`.
    """

    def __init__(self, name: str, text: str, eos: str | None = None, bos: str | None = None,
                 parse_special: bool = False):
        self.name, self.text, self.options = name, text, (eos, bos, parse_special)
        self.tokenizer = loaded(name, text)
        self.own_bos = begin_of(self.tokenizer)
        silence(self.tokenizer)
        self.plain = self.tokenizer if parse_special else silence(loaded(name, without_special_names(text)))
        self.ids: dict[str, int] = self.tokenizer.get_vocab(with_added_tokens=True)
        self.vocab_size = max(self.ids.values()) + 1
        self.special = special_names(common.from_json(text))
        self.hidden = {} if parse_special else hidden_names(common.from_json(text))
        self.eos = self._find_eos(eos)
        self.bos = self._named("--bos", bos) if bos else None
        self.sha256 = hash_of(common.from_json(text))

    def _named(self, option: str, token: str) -> int | None:
        if token == "none":
            return None
        if token not in self.ids:
            raise common.ToolError(f"{option}: {self.name} has no token {token!r}; give one of its vocabulary, "
                                   "or none", common.EXIT_USAGE)
        return self.ids[token]

    def _find_eos(self, eos: str | None) -> int | None:
        if eos:
            return self._named("--eos", eos)
        for candidate in EOS_NAMES:
            if candidate in self.ids:
                return self.ids[candidate]
        raise common.ToolError(f"{self.name}: no end-of-text token found; name it with --eos TOKEN, "
                               "or --eos none", common.EXIT_USAGE)

    def ids_of(self, ids: list[int]) -> np.ndarray:
        return np.array(ids, dtype=token_file.token_dtype(self.vocab_size))

    def encode(self, data: bytes) -> np.ndarray:
        text = data.decode("utf-8")
        return self.ids_of(self.plain.encode(text, add_special_tokens=False).ids)

    def vocabulary(self) -> list[bytes]:
        return vocabulary_bytes(common.from_json(self.tokenizer.to_str()), self.ids, self.vocab_size)

    def recipe(self) -> tuple[Any, ...]:
        return ("json", self.name, self.text, *self.options)


def loaded(name: str, text: str) -> Any:
    package = import_tokenizers()
    try:
        tokenizer = package.Tokenizer.from_str(text)
    except Exception as error:  # the package raises plain Exception
        raise common.ToolError(f"{name}: not a tokenizer.json ({error})") from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def begin_of(tokenizer: Any) -> str | None:
    """The token that the post-processor puts before a text."""
    text = "a"
    ids, plain = tokenizer.encode(text).ids, tokenizer.encode(text, add_special_tokens=False).ids
    name: str | None = tokenizer.id_to_token(ids[0]) if len(ids) > len(plain) and ids[:1] != plain[:1] else None
    return name


def silence(tokenizer: Any) -> Any:
    """Without its post-processor, whose special tokens are not wanted; besides those it changes offsets alone. The one
    that it has then does nothing."""
    tokenizer.post_processor = import_tokenizers().processors.ByteLevel(trim_offsets=False)
    return tokenizer


def say_bos(tokenizer: Tokenizer, bos: str | None) -> None:
    """Warns where the tokenizer itself begins texts with a token, and nothing was said about it."""
    if isinstance(tokenizer, HuggingFaceTokenizer) and tokenizer.own_bos and bos is None:
        print(f"warning: {tokenizer.name} itself begins each text with {tokenizer.own_bos}, here texts begin without. "
              f"Give --bos '{tokenizer.own_bos}' where the model was trained with it, else --bos none", file=sys.stderr)


def load_tokenizer(path: Path) -> tuple[str, str]:
    """(name, content) of a tokenizer.json, or of that in a folder."""
    if path.is_dir():
        found = path / "tokenizer.json"
        path = found if found.is_file() else next((path / name for name in OTHERS if (path / name).is_file()), found)
    if not path.is_file():
        raise common.ToolError(f"--tokenizer: expected 'bytes' or a tokenizer.json, found {path}", common.EXIT_USAGE)
    try:
        text = path.read_text(encoding="utf-8")
        common.from_json(text)
    except ValueError as error:  # Unicode's errors are of this kind
        if path.suffix == ".json":
            raise common.ToolError(f"{path}: not a tokenizer.json ({error})") from None
        guess = "no JSON: a model of SentencePiece or tiktoken?"
        raise common.wrong(path, "a tokenizer.json", guess, CONVERT) from None
    return path.name, text


def special_names(description: dict[str, Any]) -> list[str]:
    return [token["content"] for token in description.get("added_tokens") or [] if token["special"]]


def hidden_names(description: dict[str, Any]) -> dict[str, str]:
    """Names of special tokens -> names that no text has, none the beginning of another."""
    return {token["content"]: f"{NO_CHARACTER}{token['id']}{NO_CHARACTER}" for token in
            description.get("added_tokens") or [] if token["special"]}


def without_special_names(text: str) -> str:
    """The tokenizer.json with special tokens of names that no text has, in its model too: that of Unigram or WordLevel
    would find them there. Every token keeps its id, every text without such a name its tokens."""
    description = common.from_json(text)
    names = hidden_names(description)
    for token in description.get("added_tokens") or []:
        token["content"] = names.get(token["content"], token["content"])
    model = description["model"]
    if isinstance(model["vocab"], list):  # Unigram: [piece, score]
        model["vocab"] = [[names.get(piece, piece), *rest] for piece, *rest in model["vocab"]]
    else:
        model["vocab"] = {names.get(piece, piece): index for piece, index in model["vocab"].items()}
    if model.get("unk_token"):
        model["unk_token"] = names.get(model["unk_token"], model["unk_token"])
    if model.get("merges"):
        model["merges"] = [merge for merge in model["merges"] if not names.keys() & parts_of(merge)]
    return json.dumps(description, ensure_ascii=False)


def parts_of(merge: str | list[str]) -> set[str]:
    """Both tokens, and the one that they make."""
    left, right = merge.split(" ") if isinstance(merge, str) else merge
    return {left, right, left + right}


def import_tokenizers() -> Any:
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    return common.require("tokenizers")


Tokenizer = Union[ByteTokenizer, HuggingFaceTokenizer]


def tokenizer_from_recipe(recipe: Any) -> Tokenizer:
    return ByteTokenizer(*recipe[1:]) if recipe[0] == "bytes" else HuggingFaceTokenizer(*recipe[1:])


def hash_of(description: dict[str, Any]) -> str:
    """Hash of what decides about ids in a tokenizer.json: not its formatting, order of keys, version,
    decoder, post-processor, padding and truncation, nor which of two spellings of merges it has."""
    parts = {key: description.get(key) for key in ("normalizer", "pre_tokenizer", "model")}
    model = dict(parts["model"] or {})
    if isinstance(model.get("merges"), list):
        model["merges"] = [merge.split(" ") if isinstance(merge, str) else merge for merge in model["merges"]]
    for key in ("fuse_unk", "byte_fallback", "ignore_merges"):  # false where they are not written
        if model.get(key) is False:
            del model[key]
    parts["model"] = {key: value for key, value in model.items() if value is not None}
    parts["added_tokens"] = sorted(description.get("added_tokens") or [], key=lambda token: token["id"])
    return hashlib.sha256(json.dumps(parts, sort_keys=True, separators=(",", ":")).encode("utf-8")).hexdigest()


def byte_level_table() -> dict[str, int]:
    """Character -> byte of byte-level BPE: printable Latin-1 is itself, the rest is 256 onwards."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    table = {chr(byte): byte for byte in plain}
    others = [byte for byte in range(256) if byte not in set(plain)]
    return table | {chr(256 + i): byte for i, byte in enumerate(others)}


def component_types(node: Any) -> set[str]:
    """All "type" values below a component of a tokenizer.json."""
    if isinstance(node, dict):
        inner = set().union(*(component_types(value) for value in node.values()), set())
        return inner | ({node["type"]} if isinstance(node.get("type"), str) else set())
    if isinstance(node, list):
        return set().union(*(component_types(value) for value in node), set())
    return set()


def vocabulary_bytes(description: dict[str, Any], ids: dict[str, int], vocab_size: int) -> list[bytes]:
    """id -> bytes, by the decoder the tokenizer declares; special tokens are empty."""
    special = {item["content"] for item in description.get("added_tokens", []) if item["special"]}
    added = {item["content"] for item in description.get("added_tokens", [])}
    parts = {key: description.get(key) for key in ("decoder", "pre_tokenizer", "normalizer")}
    byte_level = "ByteLevel" in component_types(parts["decoder"] or parts["pre_tokenizer"])
    word_piece = "WordPiece" in component_types(parts["decoder"])
    spaced = "▁" in json.dumps(parts, ensure_ascii=False)
    table = byte_level_table()
    result = [b""] * vocab_size
    for token, index in ids.items():
        if token in special:
            continue
        if token in added:
            data = token.encode("utf-8")
        elif byte_level and all(character in table for character in token):
            data = bytes(table[character] for character in token)
        elif len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
            data = bytes([int(token[3:5], 16)])
        elif word_piece:
            data = (token[2:] if token.startswith("##") else " " + token).encode("utf-8")
        elif spaced:
            data = token.replace("▁", " ").encode("utf-8")
        else:
            data = token.encode("utf-8")
        result[index] = data
    return result
