#!/usr/bin/env python3
# ranks: 2
# timeout: 300
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


def added(values):
    total = 0.0
    for value in values:
        total += value
    return total


def blend_counts(weights, samples, first=0):
    """How many of the first samples are of each file, from a node of the tree on."""
    if len(weights) == 1:
        return [samples]
    middle = (first + first + len(weights)) // 2 - first
    left, right = added(weights[:middle]), added(weights[middle:])
    exact = 0.0 if left + right == 0 else left / (left + right) * 2.0**53
    share = int(exact) + (exact - int(exact) >= 0.5)
    count = (share * samples + 2**52) >> 53
    return blend_counts(weights[:middle], count, first) + blend_counts(weights[middle:], samples - count, first + middle)


def place(stages, sample):
    """File and index in the file of a sample; stages: pairs of the first sample and the weights."""
    counts = [0] * len(stages[0][1])
    for (first, weights), (end, _) in zip(stages, stages[1:] + [(sample + 1, None)], strict=True):
        if sample < end:
            before, after = (blend_counts(weights, n - first) for n in (sample, sample + 1))
            file = next(i for i in range(len(counts)) if after[i] > before[i])
            return file, counts[file] + before[file]
        counts = [a + b for a, b in zip(counts, blend_counts(weights, end - first), strict=True)]


def hashes(files, stages, length, batch, steps, seed, shuffle, fraction):
    """files: name and tokens of each; the name of a file alone is empty."""
    training = [held_out((len(tokens) - 1) // length, fraction)[0] for _, tokens in files]
    result = []
    for step in range(steps):
        total = 0
        for sample in range(step * batch, (step + 1) * batch):
            file, index = place(stages, sample)
            (name, tokens), count = files[file], len(training[file])
            epoch, position = divmod(index, count)
            own = seed ^ xxh3_64(name.encode(), 0) if name else seed
            sequence = training[file][permuted(position, epoch, count, own) if shuffle == "global" else position]
            ids = tokens[sequence * length:(sequence + 1) * length + 1].astype("<i4")
            total += xxh3_64(ids.tobytes(), sample)
        result.append(total & MASK)
    return result


def run(case, *settings, ranks=2):
    """Token hashes of a run, of all its parts when it was resumed."""
    code, text = case.run(*(word for key in settings for word in ("--set", key)), ranks=ranks)
    check(code in (0, 75), "the run", text)
    with h5py.File(case.folder / "run/metrics.h5") as file:
        return file["token_hash"][:].tolist(), text


def one_file():
    for shuffle, fraction, seed, length in (("global", 0, 1234, 16), ("none", 0, 1, 16), ("global", 0.1, 77, 16),
                                            ("global", 0.3, 2**62, 5), ("none", 0.004, 5, 7)):
        data = f"validation_fraction = {fraction} validation_batches = 1"
        with Case("order", steps=30, run=f"seed = {seed}", data=data, checkpoint="at_end = .false.") as case:
            found, _ = run(case, f"data.shuffle={shuffle}", f"data.sequence_length={length}", "checkpoint.every_steps=0")
        with h5py.File("tests/golden/llama/tokens.h5") as file:
            expected = hashes([("", file["tokens"][:])], [(0, [1.0])], length, 8, 30, seed, shuffle, fraction)
        check(found == expected, f"hashes of {shuffle}, fraction {fraction}, seed {seed}: {found[:3]}, expected {expected[:3]}")


def a_blend_of_five_files():
    """With stages that begin within a step, on three grids with two restarts."""
    length, names = 16, ("web", "code", "math", "wiki", "books")
    data = "validation_fraction = 0.05 validation_batches = 1"
    with Case("blend", steps=30, data=data) as case:
        files = []
        for i, name in enumerate(names):
            tokens = np.random.default_rng(i).integers(0, 131, 700 + 900 * i).astype(np.uint16)
            files.append((name, tokens))
            with h5py.File(case.folder / f"{name}.h5", "w") as file:
                file["tokens"] = tokens
                file.attrs["vocab_size"] = 131
        keys = [f"data.path={' '.join(f'{name}={case.folder}/{name}.h5' for name in names)}",
                "data.weights=web=.5 code=0.2 math=0.17 wiki=0.13 books=0",
                "data.stages=1500: books=3 code=1 math=1e-1 ; 3e3: web=0.3 wiki=0.7"]
        stages = [(0, [0.5, 0.2, 0.17, 0.13, 0.0]), (94, [0.0, 1.0, 0.1, 0.0, 3.0]), (188, [0.3, 0.0, 0.0, 0.7, 0.0])]
        for grid, ranks, stop in ((("parallel.dp=2", "parallel.tp=1"), 2, 9), (("parallel.tp=2",), 2, 10),
                                  (("parallel.dp=1", "parallel.tp=1", "data.micro_batch_size=4"), 1, 0)):
            found, text = run(case, *keys, *grid, f"run.stop_after_steps={stop}", ranks=ranks)
        expected = hashes(files, stages, length, 8, 30, 1234, "global", 0.05)
        check(found == expected, f"hashes of a blend on three grids: {found}, expected {expected}")
        check("blend of 5 files" in text and "epochs" in text, "the run says what it blends", text)
        check(all(f"{name} " in text[text.rfind("validation loss"):] for name in names), "each file has a validation", text)
        code, text = case.run("--check", *(word for key in keys for word in ("--set", key)))
        check(code == 0 and "blend of 5 files" in text and "from 1500" in text, "--check shows the blend", text)
        for change, words in (("data.weights=web=1 code=2", "no weight for 'math'"), ("data.weights=webb=1", "no file 'webb'"),
                              ("data.weights=web=-1", "not a number of 0 or more"), ("data.weights=", "there are no weights"),
                              ("data.stages=9: web=1; 3: code=1", "does not come after")):
            code, text = case.run("--check", *(word for key in (*keys, change) for word in ("--set", key)))
            check(code == 78 and words in text, f"{change} is refused", text)


def main():
    one_file()
    training, validation = held_out(1000, 0.25)
    check(sorted(training + validation) == list(range(1000)), "held_out is a partition")
    a_blend_of_five_files()
    print("the order of doc/numerics.md is that of the program")


if __name__ == "__main__":
    main()
