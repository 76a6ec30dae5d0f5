"""How many documents, bytes and tokens a corpus has, exactly or by a sample of its chunks, writing nothing.

Sample: n of the N chunks, without replacement; chunk i has w_i bytes on the disk (of all chunks: W), and y_i tokens
or documents. The estimate is the ratio estimator, its standard error that of a sample from a finite population:

    Y = W sum(y) / sum(w),   error = N sqrt((1 - n/N) / n * sum((y_i - r w_i)^2) / (n - 1)),   r = sum(y) / sum(w)
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Optional, Union

import numpy as np

from . import columnar, corpus, streams
from .corpus import Block, Chunk, Span
from .encode import Encoded, Pool

MIN_CHUNKS = 30  # from that number on means are normal enough for 1.96 standard errors
Unit = Union[Chunk, tuple[Span, Optional[int]]]  # what is drawn: a chunk, a row group, or a whole file


@dataclass(frozen=True)
class Estimate:
    value: float
    error: float  # standard error


@dataclass(frozen=True)
class Count:
    documents: Estimate
    tokens: Estimate
    counted: Estimate | None  # of a loss mask
    bytes: int  # of the input, as they are in the files
    sampled: int
    chunks: int


def units_of(spans: list[Span], step: int, field: str) -> Iterator[tuple[Unit, int]]:
    """(what can be drawn, its bytes on the disk)."""
    for span in spans:
        if span.kind.name == "Parquet":
            yield from (((span, i), size) for i, size in enumerate(columnar.Parquet(span.path).sizes))
        elif not span.kind.has_places:
            yield (span, None), span.end
        else:
            yield from ((chunk, chunk.end - chunk.start)
                        for chunk in corpus.make_chunks([span], step, None, field) if isinstance(chunk, Chunk))


def parts_of(unit: Unit, step: int, field: str) -> Iterator[Chunk | Block]:
    if isinstance(unit, Chunk):
        yield unit
    elif unit[1] is not None:
        yield from streams.row_blocks(unit[0].path, unit[0].kind.name, field, step, unit[1])
    else:
        yield from corpus.make_chunks([unit[0]], step, None, field)


def ratio_estimate(values: np.ndarray, weights: np.ndarray, total: int, chunks: int) -> Estimate:
    ratio, n = values.sum() / max(1, weights.sum()), values.size
    rest = ((values - ratio * weights) ** 2).sum() / max(1, n - 1)
    return Estimate(float(ratio * total), chunks * math.sqrt((1 - n / chunks) / n * rest))


def count(pool: Pool, spans: list[Span], step: int, field: str, share: float, seed: int) -> Count:
    """Of all chunks (share 1), or of that share of them."""
    units = list(units_of(spans, step, field))
    drawn = sorted(random.Random(seed).sample(range(len(units)),
                                              min(len(units), max(MIN_CHUNKS, math.ceil(share * len(units))))))
    owners: list[int] = []

    def parts() -> Iterator[Chunk | Block]:
        for index in drawn:
            for part in parts_of(units[index][0], step, field):
                owners.append(index)
                yield part

    sums: dict[int, list[int]] = {index: [0, 0, 0] for index in drawn}
    for number, encoded in enumerate(pool.encode_all(parts())):
        add(sums[owners[number]], encoded)
    total = sum(size for _, size in units)
    weights = np.array([units[index][1] for index in drawn], dtype=np.float64)
    table = np.array([sums[index] for index in drawn], dtype=np.float64).reshape(-1, 3)
    made = [ratio_estimate(table[:, i], weights, total, len(units)) if len(drawn) < len(units)
            else Estimate(float(table[:, i].sum()), 0.0) for i in range(3)]
    return Count(made[0], made[1], made[2] if pool.encoder.chat else None, total, len(drawn), len(units))


def add(sums: list[int], encoded: Encoded) -> None:
    sums[0] += encoded.starts.size
    sums[1] += encoded.tokens.size
    sums[2] += 0 if encoded.mask is None else int(np.count_nonzero(encoded.mask))


def lines(found: Count, seed: int) -> Iterator[str]:
    exact = found.sampled == found.chunks
    yield f"{found.bytes:,} bytes of input; " + (
        "exact" if exact else f"estimated from {found.sampled:,} of {found.chunks:,} chunks (seed {seed}), "
        "with the error that 95 % of such samples keep")
    rows = [("documents", found.documents), ("tokens", found.tokens)]
    rows += [("in the loss", found.counted)] if found.counted else []
    for name, estimate in rows:
        within = 1.96 * estimate.error
        percent = 100 * within / max(1.0, estimate.value)
        yield f"{name:<12} {estimate.value:,.0f}" + ("" if exact else f" ± {within:,.0f} ({percent:.2f} %)")
