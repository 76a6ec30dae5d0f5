"""Where the parameters lie in the flat buffers of Megatron-LM's distributed optimizer.

From megatron/core/optimizer/distrib_optimizer.py, _compute_per_buffer_param_layout, and param_layout.py (core 0.20; the
same in param_and_grad_buffer.py from core 0.8 on): the parameters of a model chunk and of one type follow one another
in reverse order, each from a multiple of 64 elements on. A bucket ends when it has bucket_size elements, and before and
after an embedding that pipeline stages share. A stored bucket has no padding at its end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

ALIGNED = 64
Place = tuple[int, int]  # bucket, first element in it


def _aligned(at: int) -> int:
    return -(-at // ALIGNED) * ALIGNED


def by_limit(names: Sequence[str], shapes: Mapping[str, tuple[int, ...]], limit: int | None,
             shared: frozenset[str] = frozenset()) -> tuple[dict[str, Place], list[int]]:
    """Places of the parameters, and elements of each bucket; limit: bucket_size, None for one bucket."""
    places: dict[str, Place] = {}
    sizes: list[int] = []
    at = 0
    filled = False
    for name in reversed(names):
        start = _aligned(at)
        if name in shared and filled:
            sizes.append(start)
            start = 0
        places[name] = (len(sizes), start)
        at, filled = start + math.prod(shapes[name]), True
        if name in shared or (limit is not None and at >= limit):
            sizes.append(at)
            at, filled = 0, False
    return places, sizes + ([at] if filled else [])


def by_sizes(names: Sequence[str], shapes: Mapping[str, tuple[int, ...]], sizes: Sequence[int]) -> dict[str,
                                                                                                        Place] | None:
    """Places of the parameters in buckets of known sizes; None if they do not fit."""
    places: dict[str, Place] = {}
    bucket, at = 0, 0
    for name in reversed(names):
        start, count = _aligned(at), math.prod(shapes[name])
        while bucket < len(sizes) and (start + count > sizes[bucket] or (at and at == sizes[bucket])):
            bucket, start, at = bucket + 1, 0, 0
        if bucket == len(sizes):
            return None
        places[name] = (bucket, start)
        at = start + count
    return places if bucket == len(sizes) - 1 and _aligned(at) >= sizes[bucket] else None


def limits(args: Mapping[str, Any], parameters: int) -> Iterator[int | None]:
    """What bucket_size may have been, training.py, resolve_ddp_bucket_size: the likeliest first."""
    size, number = args.get("ddp_bucket_size"), args.get("ddp_num_buckets")
    dp = max(1, int(args.get("data_parallel_size") or 1)) * max(1, int(args.get("context_parallel_size") or 1))
    said = parameters // number if number else size or max(40000000, 1000000 * dp)
    return iter([said, None] if args.get("overlap_grad_reduce") else [None, said])


Fits = Callable[[str, np.ndarray], bool]  # name of a parameter, its master weights


def find(candidates: Iterator[dict[str, Place]], shapes: Mapping[str, tuple[int, ...]],
         bucket: Callable[[int], np.ndarray], fits: Fits) -> dict[str, Place] | None:
    """The first places at which all master weights, rounded, are the model's weights."""
    for places in candidates:
        if all(fits(name, bucket(number)[start:start + math.prod(shapes[name])])
               for name, (number, start) in places.items()):
            return places
    return None
