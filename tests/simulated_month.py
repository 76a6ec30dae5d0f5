#!/usr/bin/env python3
"""A month of the machine of Llama 3's report in small, 259 interruptions, and a sample of it of which goodput is measured.

    tests/simulated_month.py <folder of the programs> [--steps 60000] [--interruptions 259] [--between 60] [--seed N]
                             [--hang-timeout 600] [--markdown FILE]

Three runs of one deck and as many steps: undisturbed; with a month's interruptions, one after so many steps (none with
--interruptions 0); and the sample, with one in each `between` seconds of wall-clock time. All have to have the same bits
(tests/integration/month.py says what is done to them).

The sample's goodput is measured, on this machine. That of the large one is the month's counts at its prices
(tests/integration/month_prices.py), with REQUEUE=no and run%hang_timeout = 120. 97 % is asked of both.
"""
import argparse
import random
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "integration"))
from month import BETWEEN_THERE, GRIDS, PER_MONTH, WHAT, Month, account, drawn, evenly, table_of_faults, undisturbed  # noqa: E402
from month_prices import tables  # noqa: E402
from runs import Case, check, state_at  # noqa: E402

BAR = 0.97
CALIBRATION = 1000  # steps


def keys_of(step_seconds, between, hang_timeout):
    """Copies a fortieth of `between` apart, checkpoints a sixth. hang_timeout: seconds there."""
    steps = lambda seconds: max(round(seconds / step_seconds / 10) * 10, 10)  # noqa: E731
    copies, checkpoints = steps(between / 40), steps(between / 6)
    return {"checkpoint.neighbour_every_steps": copies, "checkpoint.every_steps": checkpoints, "run.log_every": 10,
            "run.hang_timeout": round(hang_timeout * between / BETWEEN_THERE, 2)}


def text_of(keys):
    return " ".join(f"{key}={value}" for key, value in keys.items())


def month_of(case, grid, keys, events, clock, chance, rows, whole, steps):
    month = Month(case, grid, text_of(keys), events, clock, chance, steps)
    month.run(rows)
    check(state_at(case, steps) == whole, "parameters, moments and counters have the same bits")
    return month, account(month, steps)


def table_of_classes(ledgers):
    names = list(next(iter(ledgers.values()))["seconds"])
    lines = ["| | " + " | ".join(names) + " | all | goodput |", "|---" * (len(names) + 3) + "|"]
    for name, ledger in ledgers.items():
        values = [ledger["seconds"][key] for key in names]
        lines.append(f"| {name} | " + " | ".join(f"{value:.1f}" for value in values)
                     + f" | {sum(values):.1f} | {100 * ledger['goodput']:.2f} % |")
    return "\n".join(lines)


def scale_of(sample, ledger, keys, step_seconds, between):
    """What seconds of the sample stand for."""
    factor, number = BETWEEN_THERE / between, max(len(sample.done), 1)
    seconds = ledger["seconds"]
    starts = [s["seconds"]["restart"] for s in ledger["starts"]]
    rows = [("between two interruptions", between), ("a start up to its first step and after its last, median", sorted(starts)[len(starts) // 2]),
            ("between starts: detection, end, job script, launch, mean of an interruption", seconds["waiting"] / number),
            ("lost, mean of an interruption", seconds["lost"] / number),
            ("`hang_timeout`", keys["run.hang_timeout"]), ("between two copies", keys["checkpoint.neighbour_every_steps"] * step_seconds),
            ("between two checkpoints", keys["checkpoint.every_steps"] * step_seconds),
            ("a step", step_seconds)]
    lines = [f"| seconds of the sample | here | there ({factor:.0f} times) |", "|---|---|---|"]
    return "\n".join(lines + [f"| {name} | {value:.3g} | {value * factor:.3g} |" for name, value in rows])


def lost_share(month, ledger, every):
    """Of the steps between two copies, those lost on the mean of an interruption that was not a stop in time: half of those
    since the last copy, which the ledger, written with it, does not have; and those that it has, of copies torn or gone."""
    number = sum(event.fault != "job stopped" for event in month.done)
    return 0.5 + sum(s["steps_lost"] for s in ledger["starts"]) / max(number, 1) / every


def dense_month(case, arguments, keys, chance, rows, whole):
    """A month of interruptions, and the markdown of what they would cost on the large machine."""
    steps, count = arguments.steps, arguments.interruptions
    often = keys | {"checkpoint.neighbour_every_steps": max(steps // count // 80 * 10, 10),
                    "checkpoint.every_steps": max(steps // count // 20 * 10, 10), "run.hang_timeout": 2}
    events = drawn(count, 0.98 * steps / count, chance, 0.05)
    month, ledger = month_of(case, arguments.grid, often, events, "steps", chance, rows, whole, steps)
    print(f"{len(month.done)} interruptions: the same bits; {month.wall:.1f} s; {month.stuck} launchers were stuck", flush=True)
    counts = {fault: sum(event.fault == fault for event in month.done) for fault in WHAT}
    share = lost_share(month, ledger, often["checkpoint.neighbour_every_steps"])
    priced, goodput = tables({fault: number * PER_MONTH / max(len(month.done), 1) for fault, number in counts.items()}, share)
    text = f"Lost on the mean of an interruption: {share:.2f} of the steps between two copies.\n\n{priced}"
    return ledger, [table_of_faults(month, ledger), text], goodput[2]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("programs", type=Path)
    parser.add_argument("--steps", type=int, default=60000, help="of each run, 2 to 6 ms each on two cores")
    parser.add_argument("--interruptions", type=int, default=PER_MONTH, help="of the dense month")
    parser.add_argument("--between", type=float, default=60.0, help="seconds between two interruptions of the sample")
    parser.add_argument("--hang-timeout", type=float, default=600.0, help="run%%hang_timeout there, scaled for the sample")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--grid", choices=GRIDS, default="dp")
    parser.add_argument("--markdown", type=Path)
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}", flush=True)
    chance, grid, between, steps = random.Random(arguments.seed), arguments.grid, arguments.between, arguments.steps

    with Case("calibration", steps=CALIBRATION) as case:
        rows, _ = undisturbed(case, grid, text_of(keys_of(0.005, between, arguments.hang_timeout)), chance)
    step_seconds = float(rows["seconds"].mean())
    keys = keys_of(step_seconds, between, arguments.hang_timeout)
    print(f"{steps} steps of {1000 * step_seconds:.2f} ms; {text_of(keys)}", flush=True)

    texts, aims = [], {}
    with Case("whole", steps=steps) as whole, Case("dense", steps=steps) as dense, Case("sample", steps=steps) as sampled:
        rows, _ = undisturbed(whole, grid, text_of(keys), chance)
        state, ledgers = state_at(whole, steps), {"undisturbed": Month.ledger_of(whole)}
        print(table_of_classes(ledgers), flush=True)

        events = evenly(int(3 * steps * step_seconds / between) + 1, between, chance)  # more than fit
        sample, ledger = month_of(sampled, grid, keys, events, "seconds", chance, rows, state, steps)
        ledgers["sample"], aims["sample"] = ledger, ledger["goodput"]
        print(f"{len(sample.done)} interruptions: the same bits; {sample.wall:.1f} s; {sample.stuck} launchers were stuck")
        scale = scale_of(sample, ledger, keys, step_seconds, between)
        print("\n\n".join([table_of_faults(sample, ledger), table_of_classes(ledgers), scale]), flush=True)
        if arguments.interruptions:
            ledgers["a month, dense"], texts, aims["month"] = dense_month(dense, arguments, keys, chance, rows, state)
            print("\n\n".join([*texts, table_of_classes(ledgers)]))
    if arguments.markdown:
        texts = [table_of_faults(sample, ledger), table_of_classes(ledgers), scale, *texts]
        arguments.markdown.write_text("\n\n".join(texts) + "\n", encoding="utf-8")
    for name, goodput in aims.items():
        check(goodput >= BAR, f"goodput of the {name}: {100 * goodput:.2f} %, at least {100 * BAR:.0f} %")


if __name__ == "__main__":
    main()
