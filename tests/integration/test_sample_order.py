#!/usr/bin/env python3
# ranks: 2
# timeout: 120
"""The order of the samples as doc/numerics.md has it, "Order of the data", written down once more in Python from that
page alone; the token hashes of a run must come out.

    test_sample_order.py <folder of the programs>
"""
import ctypes

import h5py
import numpy as np

from runs import Case, check

MASK = 2**64 - 1
GOLDEN_RATIO = 0x9E3779B97F4A7C15


def xxh3_64(data: bytes, seed: int) -> int:
    try:
        import xxhash

        return xxhash.xxh3_64_intdigest(data, seed)
    except ImportError:
        function = ctypes.CDLL("libxxhash.so.0").XXH3_64bits_withSeed
        function.restype, function.argtypes = ctypes.c_uint64, (ctypes.c_char_p, ctypes.c_size_t, ctypes.c_uint64)
        return function(data, len(data), seed)


def mix(x):
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & MASK
    return x ^ (x >> 31)


def permuted(position, epoch, count, seed):
    half = 1
    while 4**half < count:
        half += 1
    key = mix(mix(seed + GOLDEN_RATIO & MASK) ^ epoch)
    while True:
        left, right = position >> half, position & (2**half - 1)
        for i in range(8):
            left, right = right, left ^ mix(mix(key + i * GOLDEN_RATIO & MASK) ^ right) & (2**half - 1)
        position = left << half | right
        if position < count:
            return position


def held_out(count, fraction):
    """Training and validation sequences, as numbers of sequences of the file."""
    if fraction == 0:
        return list(range(count)), []
    held = min(max(int(np.floor(fraction * count + 0.5)), 1), count)
    left, pieces = count - held, min(held, 256)
    training, validation = [], []
    for r in range(pieces):
        training += [k + r * held // pieces for k in range(r * left // pieces, (r + 1) * left // pieces)]
        validation += [v + (r + 1) * left // pieces for v in range(r * held // pieces, (r + 1) * held // pieces)]
    return training, validation


def hashes(tokens, length, batch, steps, seed, shuffle, fraction):
    training, _ = held_out((len(tokens) - 1) // length, fraction)
    count, result = len(training), []
    for step in range(steps):
        total = 0
        for sample in range(step * batch, (step + 1) * batch):
            epoch, position = divmod(sample, count)
            sequence = training[permuted(position, epoch, count, seed) if shuffle == "global" else position]
            ids = tokens[sequence * length:(sequence + 1) * length + 1].astype("<i4")
            total += xxh3_64(ids.tobytes(), sample)
        result.append(total & MASK)
    return result


def main():
    for shuffle, fraction, seed, length in (("global", 0, 1234, 16), ("none", 0, 1, 16), ("global", 0.1, 77, 16),
                                            ("global", 0.3, 2**62, 5), ("none", 0.004, 5, 7)):
        data = f"validation_fraction = {fraction} validation_batches = 1"
        with Case("order", steps=30, run=f"seed = {seed}", data=data, checkpoint="at_end = .false.") as case:
            code, text = case.run("--set", f"data.shuffle={shuffle}", "--set", f"data.sequence_length={length}",
                                  "--set", "checkpoint.every_steps=0")
            check(code == 0, "the run", text)
            with h5py.File(case.folder / "run/metrics.h5") as file:
                found = file["token_hash"][:].tolist()
        with h5py.File("tests/golden/llama/tokens.h5") as file:
            expected = hashes(file["tokens"][:], length, 8, 30, seed, shuffle, fraction)
        check(found == expected, f"hashes of {shuffle}, fraction {fraction}, seed {seed}: {found[:3]}, expected {expected[:3]}")
    training, validation = held_out(1000, 0.25)
    check(sorted(training + validation) == list(range(1000)), "held_out is a partition")
    print("the order of doc/numerics.md is that of the program")


if __name__ == "__main__":
    main()
