"""Tokenizers behind one small interface: name, vocab_size, eos, sha256, encode, vocabulary, recipe.

`recipe` is what another process needs to make the same tokenizer (tokenizer_from_recipe).
"""

from __future__ import annotations

import hashlib
import json
import os

import numpy as np

import nanotron_common as common
import nanotron_token_file as token_file

EOS_NAMES = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|eos|>", "<|im_end|>",
             "<｜end▁of▁sentence｜>", "[SEP]")


class ByteTokenizer:
    """Token i is byte i; token 256 ends a document."""

    name, vocab_size, eos, sha256 = "bytes", 257, 256, ""

    def encode(self, data: bytes) -> np.ndarray:
        return np.frombuffer(data, dtype=np.uint8).astype(np.uint16)

    def vocabulary(self) -> list[bytes]:
        return [bytes([i]) for i in range(256)] + [b""]

    def recipe(self):
        return ("bytes",)


class HuggingFaceTokenizer:
    """A tokenizer.json through the package `tokenizers`; special tokens are not added to text."""

    def __init__(self, name: str, text: str, eos: str | None):
        self.name, self.text, self.eos_option = name, text, eos
        try:
            self.tokenizer = import_tokenizers().Tokenizer.from_str(text)
        except common.ToolError:
            raise
        except Exception as error:  # the package raises plain Exception
            raise common.ToolError(f"{name}: not a tokenizer.json ({error})") from None
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()
        self.ids = self.tokenizer.get_vocab(with_added_tokens=True)
        self.vocab_size = max(self.ids.values()) + 1
        self.eos = self._find_eos(eos)
        self.sha256 = hashlib.sha256(text.encode("utf-8")).hexdigest()

    def _find_eos(self, eos: str | None) -> int | None:
        if eos == "none":
            return None
        for candidate in (eos,) if eos else EOS_NAMES:
            if candidate in self.ids:
                return self.ids[candidate]
        raise common.ToolError(f"{self.name}: no token {eos!r}" if eos else
                           f"{self.name}: no end-of-text token found; name it with --eos TOKEN, "
                           "or --eos none", common.EXIT_USAGE)

    def encode(self, data: bytes) -> np.ndarray:
        text = data.decode("utf-8", "replace")
        ids = self.tokenizer.encode(text, add_special_tokens=False).ids
        return np.array(ids, dtype=token_file.token_dtype(self.vocab_size))

    def vocabulary(self) -> list[bytes]:
        return vocabulary_bytes(json.loads(self.tokenizer.to_str()), self.ids, self.vocab_size)

    def recipe(self):
        return ("json", self.name, self.text, self.eos_option)


def import_tokenizers():
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        import tokenizers

        return tokenizers
    except ImportError:
        raise common.ToolError("this needs the Python package `tokenizers` "
                           "(python3 -m pip install tokenizers)", 71) from None


def tokenizer_from_recipe(recipe):
    return ByteTokenizer() if recipe[0] == "bytes" else HuggingFaceTokenizer(*recipe[1:])


def byte_level_table() -> dict[str, int]:
    """Character -> byte of byte-level BPE: printable Latin-1 is itself, the rest is 256 onwards."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    table = {chr(byte): byte for byte in plain}
    others = [byte for byte in range(256) if byte not in set(plain)]
    return table | {chr(256 + i): byte for i, byte in enumerate(others)}


def component_types(node) -> set[str]:
    """All "type" values below a component of a tokenizer.json."""
    if isinstance(node, dict):
        inner = set().union(*(component_types(value) for value in node.values()), set())
        return inner | ({node["type"]} if isinstance(node.get("type"), str) else set())
    if isinstance(node, list):
        return set().union(*(component_types(value) for value in node), set())
    return set()


def vocabulary_bytes(description: dict, ids: dict[str, int], vocab_size: int) -> list[bytes]:
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
