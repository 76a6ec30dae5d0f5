#!/usr/bin/env python3
# ranks: 2
# timeout: 240
"""Stages of training with other sequence lengths, batch sizes and rope_theta: the order of the samples as doc/numerics.md
has it, "Stages of training", against the token hashes of runs, and the same parameters whatever the grid and the restarts.

    test_training_stages.py <folder of the programs>
"""
import re
import sys

import h5py
import numpy as np

from runs import Case, check, expect, root, state_at
from test_sample_order import held_out, permuted, place, xxh3_64

MASK = 2**64 - 1
STEPS = 18
NAMES = ("web", "code", "long")
# From a token on: weights of the files, or None for those of before, and what a stage sets.
PLAN = [(0, (0.6, 0.4, 0), dict(length=32, batch=8)),
        (1100, None, dict(length=64, batch=4)),
        (2000, (0.25, 0.75, 0), {}),
        (3000, (1, 0, 2), dict(length=128, batch=6))]
STAGES = ("1100: sequence_length=64 global_batch_size=4; 2000: web=0.25 code=.75;"
          "3e3: web=1 long=2 sequence_length=128 global_batch_size=6 rope_theta=5e5 recompute=full")


def training_stages(plan):
    """First step, sample and token of each stage that sets something, its length and batch, its cut."""
    stages = []
    for token, _, keys in plan:
        if not keys:
            continue
        if not stages:
            stages.append(dict(step=0, sample=0, token=0, cut=(0, 0, 0), **keys))
            continue
        last = stages[-1]
        steps = -(-(token - last["token"]) // (last["batch"] * last["length"]))
        new = {**last, "step": last["step"] + steps, "sample": last["sample"] + steps * last["batch"], **keys}
        new["token"] = last["token"] + steps * last["batch"] * last["length"]
        if new["length"] != last["length"]:
            new["cut"] = (last["cut"][0] + 1, new["sample"], new["token"])
        stages.append(new)
    return stages


def blend_of(plan, stage):
    """Pairs of the first sample in the cut and the weights."""
    number, _, first_token = stage["cut"]
    parts, weights = [], None
    for token, named, _ in plan:
        weights = named or weights
        after = token - first_token
        if after <= 0:
            parts = []
        parts.append((0 if after <= 0 else -(-after // stage["length"]), list(weights)))
    return parts


def hashes(files, plan, steps, seed):
    result, sample = [], 0
    stages = training_stages(plan)
    for step in range(steps):
        stage = [s for s in stages if s["step"] <= step][-1]
        number, first_sample, _ = stage["cut"]
        parts, length, total = blend_of(plan, stage), stage["length"], 0
        for g in range(sample, sample + stage["batch"]):
            file, index = place(parts, g - first_sample)
            name, tokens = files[file]
            count = len(held_out((len(tokens) - 1) // length, 0)[0])
            own = seed ^ (xxh3_64(f"cut {number}".encode(), 0) if number else 0) ^ xxh3_64(name.encode(), 0)
            epoch, position = divmod(index, count)
            sequence = permuted(position, epoch, count, own)
            total += xxh3_64(tokens[sequence * length:(sequence + 1) * length + 1].astype("<i4").tobytes(), g)
        result.append(total & MASK)
        sample += stage["batch"]
    return result


def staged_case(name, **keys):
    case = Case(name, steps=STEPS, tp=1, data="validation_every = 6 validation_batches = 2", **keys)
    files = []
    for i, file_name in enumerate(NAMES):
        tokens = np.random.default_rng(i).integers(0, 131, 1500 + 700 * i).astype(np.uint16)
        files.append((file_name, tokens))
        with h5py.File(case.folder / f"{file_name}.h5", "w") as file:
            file["tokens"] = tokens
            file.attrs["vocab_size"] = 131
    settings = [f"data.path={' '.join(f'{n}={case.folder}/{n}.h5' for n in NAMES)}", "data.sequence_length=32",
                "data.weights=web=.6 code=0.4 long=0", f"data.stages={STAGES}", "precision.reproducible=layout",
                f"data.validation_path={case.folder}/long.h5"]
    return case, files, [word for key in settings for word in ("--set", key)]


def metrics(case):
    with h5py.File(case.out / "metrics.h5") as file:
        return {name: file[name][:] for name in ("step", "token_hash", "loss", "tokens", "learning_rate", "validation_step")}


def run(case, keys, *more, ranks=1):
    return case.run(*keys, *(word for key in more for word in ("--set", key)), ranks=ranks)


def the_same_on_every_grid_and_after_restarts():
    whole, files, keys = staged_case("stages_whole")
    with whole:
        code, text = run(whole, (*keys, "--status", str(whole.folder / "status")))
        check(code == 0, "a run over three stages ends well", text)
        status = (whole.folder / "status").read_text()
        check("state = finished" in status and f"step = {STEPS}" in status, "the status is that of one run", status)
        for words in ("3 stages of training", "the stage from token 1100 on begins: 4 sequences of 64 tokens",
                      "the stage from token 3000 on: memory of rank 0", "where the time went: 18 steps"):
            check(words in text, f"the run says '{words}'", text)
        reference = metrics(whole)
        expected = hashes(files, PLAN, STEPS, 1234)
        check(reference["token_hash"].tolist() == expected, "the hashes of the reference", f"{reference['token_hash']}\n{expected}")
        check(reference["step"].tolist() == list(range(1, STEPS + 1)), "a row for each step", text)
        check(reference["tokens"][[4, 11, 17]].tolist() == [1280, 3072, 3072 + 6 * 6 * 128], "tokens seen", text)
        check(reference["validation_step"].tolist() == [6, 12, 18], "validation continues over the boundaries", text)
        final = state_at(whole, STEPS)
        folders = sorted(path.name for path in (whole.out / "checkpoints").glob("step_*"))
        check("step_00000012" in folders, "the last boundary has a checkpoint", str(folders))
        with h5py.File(whole.out / f"checkpoints/step_{STEPS:08d}/checkpoint.h5") as file:
            deck = file["deck"][()].decode()
        check("sequence_length" in deck and re.search(r"sequence_length\s*=\s*32\b", deck), "the deck is that of the run", deck)
        code, evaluated = whole.run("--evaluate", *keys, ranks=1)
        check(code == 0, "--evaluate takes the stage of the checkpoint", evaluated)
        last, again = (float(re.findall(r"loss +([0-9.]+)", words)[-1]) for words in (text, evaluated))
        check(abs(last - again) <= 0.5001e-4, f"with the loss {last} of the run", evaluated)

        expect(sys.executable, root / "tools/nanotron_convert.py", "to-hf", whole.out, whole.folder / "hf")
        config = (whole.folder / "hf/config.json").read_text()
        check('"max_position_embeddings": 128' in config and "500000" in config, "the export has the last stage's sizes", config)

    # Restarts: exactly at the beginning of the last stage, and within it; then on one within the second stage.
    for stops in ((12, 3, 0), (7, 8, 0)):
        split, _, keys = staged_case("stages_split")
        with split:
            for grid, ranks, stop in ((("parallel.dp=2",), 2, stops[0]), (("parallel.tp=2",), 2, stops[1]), ((), 1, stops[2])):
                code, text = run(split, keys, *grid, f"run.stop_after_steps={stop}", ranks=ranks)
                check(code == (75 if stop else 0), f"{grid} stops after {stop} steps", text)
                check("order of the samples changes" not in text, "nothing has changed", text)
            found = metrics(split)
            for name in ("token_hash", "loss", "tokens", "learning_rate"):
                check((found[name] == reference[name]).all(), f"{name} of each step, stops {stops}", f"{found[name]}\n{reference[name]}")
            other = state_at(split, STEPS)
            check(other == final, f"the same parameters, moments and counters, stops {stops}",
                  str([key for key in final if other.get(key) != final[key]]))


def asynchronous_checkpoints_and_pipelines():
    case, files, keys = staged_case("stages_pp", checkpoint="asynchronous = .true.")
    with case:
        code, text = run(case, keys, "parallel.pp=2", "checkpoint.at_end=.false.", "precision.reproducible=run", ranks=2)
        check(code == 0, "pp = 2", text)
        check(metrics(case)["token_hash"].tolist() == hashes(files, PLAN, STEPS, 1234), "hashes with pp = 2", text)


def documents_masks_and_context_parallel():
    """Whole documents with a loss mask and a held-out part: the same on three grids, one of them with two restarts."""
    found = []
    for grids in ([((), 1, 0)], [(("parallel.cp=2",), 2, 4), ((), 1, 3), (("parallel.dp=2",), 2, 0)]):
        case = Case("stages_documents", steps=12, tp=1)
        with case:
            rng = np.random.default_rng(5)
            starts = np.unique(np.concatenate(([0], rng.integers(1, 6000, 150)))).astype(np.uint64)
            with h5py.File(case.folder / "talks.h5", "w") as file:
                file["tokens"] = rng.integers(0, 131, 6000).astype(np.uint16)
                file["documents"] = starts
                file["loss_mask"] = rng.integers(0, 2, 6000).astype(np.uint8)
                file.attrs["vocab_size"] = 131
            settings = (f"data.path={case.folder}/talks.h5", "data.sequences=documents", "data.document_mask=block_diagonal",
                        "data.validation_fraction=0.1", "data.validation_every=4", "data.sequence_length=32",
                        "data.stages=1e3: sequence_length=96 global_batch_size=4; 2400: sequence_length=64 micro_batch_size=2",
                        "precision.compute=fp64")
            for grid, ranks, stop in grids:
                code, text = run(case, (), *settings, *grid, f"run.stop_after_steps={stop}", ranks=ranks)
                check(code == (75 if stop else 0), f"documents on {grid}", text)
                check("3 stages of training" in text, "three stages", text)
            found.append(metrics(case))
    for name in ("token_hash", "tokens", "validation_step"):
        check((found[0][name] == found[1][name]).all(), f"{name} with documents, masks and cp", str(found))
    check(np.allclose(found[0]["loss"], found[1]["loss"], rtol=1e-11, atol=0), "losses with documents, masks and cp", str(found))


def mistakes_are_found_before_the_first_step():
    case, _, keys = staged_case("stages_mistakes")
    with case:
        code, text = case.run("--check", *keys)
        check(code == 0 and "3 stages of training" in text and "epochs" in text, "--check shows the stages", text)
        code, text = case.run("--plan", *keys, ranks=1)
        check(code == 0 and text.count("memory of the largest rank") == 3, "--plan plans each stage", text)
        check("the stage from token 3000 on" in text, "and names them", text)
        for changes, words in (
                (("data.stages=9e2: sequence_length=0",), "'0' is not a legal value of sequence_length"),
                (("data.stages=9e2: sequence_length=64 sequence_length=32",), "'sequence_length' is given twice"),
                (("data.stages=9e2: recompute=some",), "'some' is not a legal value of recompute"),
                (("data.stages=9e2: global_batch_size=5", "parallel.dp=2", "precision.reproducible=run"),
                 "in the stage from token 900 on: global_batch_size = 5 is not a multiple of"),
                (("data.stages=9e2: sequence_lenght=64",), "there is no file 'sequence_lenght' in data%path"),
                (("data.stages=9e2: sequence_length=64", "data.rampup_batch_size=2", "data.rampup_increment=2",
                  "data.rampup_samples=100"), "within the batch-size ramp"),
                (("data.stages=9e2: sequence_length=64", "data.validation_path=''", "data.validation_fraction=0.1"),
                 "validation_fraction holds out sequences"),
                (("data.stages=9e2: sequence_length=2048",), "in the stage from token 900 on")):
            changes = ("data.weights=web=1 code=1 long=1", *changes)
            code, text = case.run("--check", *keys, *(word for key in changes for word in ("--set", key)), ranks=2)
            check(code in (65, 78) and words in text, f"{changes} is refused with '{words}'", text)
        check(not (case.out / "metrics.h5").exists(), "nothing was run")


def main():
    the_same_on_every_grid_and_after_restarts()
    asynchronous_checkpoints_and_pipelines()
    documents_masks_and_context_parallel()
    mistakes_are_found_before_the_first_step()
    print("stages of training are those of doc/numerics.md, on every grid")


if __name__ == "__main__":
    main()
