"""Tokens in rows: the column input_ids of Parquet and Arrow files, a document each.

attention_mask, where there is one, says which ids are none (0: padding); labels, where there are, that the loss of
predicting an id does not count (-100).
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from . import columnar
from .common import wrong
from .foreign import Piece

IDS, ATTENTION, LABELS = "input_ids", "attention_mask", "labels"
IGNORED = -100
ROWS = 1 << 12  # read at a time


class IdRows:
    documents = True

    def __init__(self, path: Path, kind: str):
        self.path, self.kind = path, kind
        names = columnar.open_table(path, kind).names
        if IDS not in names:
            raise wrong(path, f"a column {IDS} of lists of token ids", f"the columns {', '.join(names)}",
                        "of texts nanotron-tokenize makes a token file")
        self.columns = [name for name in (IDS, ATTENTION, LABELS) if name in names]
        self.masked = LABELS in names
        self.tokens = sum(piece.tokens.size for piece in self.pieces())

    def place(self, token: int) -> str:
        return f"{self.path}, token {token}"

    def pieces(self) -> Iterator[Piece]:
        table, position = columnar.open_table(self.path, self.kind), 0
        for row, batch in columnar.batches_of(table, self.columns, ROWS):
            found = {name: self._flat(batch.column(name), name, row) for name in self.columns}
            tokens, lengths = found[IDS]
            for name, (values, others) in found.items():
                if not np.array_equal(others, lengths):
                    raise wrong(f"{self.path}, rows {row} to {row + batch.num_rows - 1}", f"{name} as long as {IDS}",
                                f"{values.size} and {tokens.size} values", "rewrite the file")
            kept = found[ATTENTION][0] != 0 if ATTENTION in found else np.ones(tokens.size, bool)
            before = np.concatenate(([0], np.cumsum(kept)))[np.cumsum(lengths) - lengths]
            mask = found[LABELS][0][kept] != IGNORED if self.masked else None
            yield Piece(tokens[kept], before + position, mask)
            position += int(kept.sum())

    def _flat(self, column: Any, name: str, row: int) -> tuple[np.ndarray, np.ndarray]:
        """(values, lengths of the lists)"""
        kind = str(column.type)
        if "list<" not in kind or "int" not in kind:
            raise wrong(self.path, f"lists of integers in the column {name}", kind,
                        "write the ids as a list of each row")
        values = column.flatten()
        if column.null_count or values.null_count:
            raise wrong(f"{self.path}, rows {row} to {row + len(column) - 1}", f"lists of {name} without nulls",
                        f"{column.null_count + values.null_count} nulls", "leave these rows out")
        lengths = importlib.import_module("pyarrow.compute").list_value_length(column)  # of every kind of list
        return values.to_numpy(zero_copy_only=False), lengths.to_numpy(zero_copy_only=False)
