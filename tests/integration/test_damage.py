#!/usr/bin/env python3
# ranks: 1
# timeout: 600
"""Files of a run that something damaged between two starts: flipped bytes, ends cut off, blocks that were lost, moved or
are of an older file, files of another run. The next start continues and ends with the bits of an undisturbed run, from an
older checkpoint if need be, or refuses with exit code 65 or 71 and names the file. Never other bits, a crash, a hang.

    test_damage.py <folder of the programs>        NANOTRON_FAULTS (40) and NANOTRON_SEED (the time) choose
"""
import os
import random
import shutil
import time

from runs import Case, Tally, alone, check, outcome_of, state_at

STEPS = 15
ONE = ["--set", "parallel.tp=1", "--set", "model.hidden_size=64", "--set", "model.intermediate_size=176"]
FILES = ["checkpoint.h5", "checkpoint.h5", "manifest.json", "metrics.h5", "run.log", "deck.nml"]


def flipped(chance, good, _):
    bad = bytearray(good)
    for _ in range(chance.choice([1, 1, 1, 40])):
        bad[chance.randrange(len(bad))] ^= chance.randrange(1, 256)
    return bad


def cut(chance, good, _):
    return good[:chance.choice([0, 1, len(good) - 1, chance.randrange(len(good))])]


def block_of(chance, good, older):
    """That has changed since: most of a small checkpoint is room between tensors."""
    places = [at for at in range(0, len(good), 512) if good[at:at + 512] != older[at:at + 512]] or [0]
    begin = chance.choice(places)
    return begin, min(chance.choice([512, 4096, 65536]), len(good) - begin)


def lost(chance, good, older):
    begin, size = block_of(chance, good, older)
    return good[:begin] + bytes(size) + good[begin + size:]


def stale(chance, good, older):
    begin, size = block_of(chance, good, older)
    return (good[:begin] + older[begin:begin + size] + good[begin + size:])[:len(good)]


def moved(chance, good, older):
    (a, size), (b, _) = block_of(chance, good, older), block_of(chance, good, older)
    bad = bytearray(good)
    bad[b:b + size] = good[a:a + size]
    return bad[:len(good)]


def whole_file(_chance, _good, older):
    return older


KINDS = {"flipped": flipped, "cut": cut, "lost": lost, "stale": stale, "moved": moved, "older file": whole_file}


def main(faults, seed):
    print(f"NANOTRON_FAULTS={faults} NANOTRON_SEED={seed}", flush=True)
    chance, tally = random.Random(seed), Tally()
    with Case("damage", steps=10, run="check_replicas_every = 0", checkpoint="keep_last = 3") as case:
        code, text = alone(case, *ONE)
        check(code == 0, "the first part of the run finishes", text)
        begun, newest, older = case.folder / "begun", "checkpoints/step_00000010", "checkpoints/step_00000005"
        shutil.copytree(case.out, begun, symlinks=True)
        arguments = [*ONE, "--set", f"run.steps={STEPS}"]
        code, text = alone(case, *arguments)
        check(code == 0, "the run goes on", text)
        expected = state_at(case, STEPS)
        for _ in range(faults):
            name, (kind, damage) = chance.choice(FILES), chance.choice(list(KINDS.items()))
            shutil.rmtree(case.out)
            shutil.copytree(begun, case.out, symlinks=True)
            path = case.out / (f"{newest}/{name}" if name in ("checkpoint.h5", "manifest.json") else name)
            other = case.out / older / name if path.parent.name != "run" else begun / "deck.nml"
            good = path.read_bytes()
            bad = bytes(damage(chance, good, other.read_bytes()))
            path.write_bytes(bad)
            what = f"{name}, {kind}, {sum(a != b for a, b in zip(good, bad, strict=False))} of {len(good)} bytes differ"
            code, text = alone(case, *arguments)
            allowed = (0, 65, 71) if name in ("checkpoint.h5", "manifest.json") else (0,)  # nothing depends on the others
            check(code in allowed, f"{what}: exit code {code}", text)
            if code == 0:
                check(state_at(case, STEPS) == expected, f"{what}: other bits at exit code 0", text)
            else:
                check("error:" in text and name in text, f"{what}: the error names the file", text)
            if bad != good and name in ("checkpoint.h5", "manifest.json"):
                check(code != 0 or "step_00000010" in text, f"{what}: nothing is said", text)
            tally.add(f"{name}: {kind}", outcome_of(code) if bad != good else "not met")
    tally.print()


main(int(os.environ.get("NANOTRON_FAULTS", "40")), int(os.environ.get("NANOTRON_SEED", str(int(time.time())))))
