#!/usr/bin/env python3
"""A month of the machine of Llama 3's report in small, 259 interruptions, and a sample of it of which goodput is measured.

    tests/simulated_month.py <folder of the programs> [--steps 60000] [--interruptions 259] [--between 60] [--seed N]
                             [--markdown FILE]

Three runs of one deck and as many steps: undisturbed; with a month's interruptions, one after so many steps; and with one in each `between` seconds of wall-clock time. All have to have the
same bits (tests/integration/month.py says what is done to them). The sample's goodput is that of this machine. That of the
large one is the month's counts at its prices (tests/integration/month_prices.py): 97 % is asked of it, with REQUEUE=no
and run%hang_timeout = 120.
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


def keys_of(step_seconds, between):
    """Copies a fortieth of `between` apart, checkpoints a sixth; a hang is one after the default of 600 s there."""
    steps = lambda seconds: max(round(seconds / step_seconds / 10) * 10, 10)  # noqa: E731
    copies, checkpoints = steps(between / 40), steps(between / 6)
    return {"checkpoint.neighbour_every_steps": copies, "checkpoint.every_steps": checkpoints, "run.log_every": 10,
            "run.hang_timeout": round(600 * between / BETWEEN_THERE, 2)}


def text_of(keys):
    return " ".join(f"{key}={value}" for key, value in keys.items())


def month_of(case, grid, keys, events, clock, chance, rows, whole, steps):
    month = Month(case, grid, text_of(keys), events, clock, chance)
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


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("programs", type=Path)
    parser.add_argument("--steps", type=int, default=60000, help="of each run, 3 to 6 ms each on two cores")
    parser.add_argument("--interruptions", type=int, default=PER_MONTH)
    parser.add_argument("--between", type=float, default=60.0, help="seconds between two interruptions of the sample")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--grid", choices=GRIDS, default="dp")
    parser.add_argument("--markdown", type=Path)
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}", flush=True)
    chance, grid, between, steps = random.Random(arguments.seed), arguments.grid, arguments.between, arguments.steps

    with Case("calibration", steps=CALIBRATION) as case:
        rows, _ = undisturbed(case, grid, text_of(keys_of(0.005, between)), chance)
    step_seconds = float(rows["seconds"].mean())
    keys = keys_of(step_seconds, between)
    print(f"{steps} steps of {1000 * step_seconds:.2f} ms; {text_of(keys)}", flush=True)

    with Case("whole", steps=steps) as whole, Case("dense", steps=steps) as dense, Case("sample", steps=steps) as sampled:
        rows, _ = undisturbed(whole, grid, text_of(keys), chance)
        state, ledgers = state_at(whole, steps), {"undisturbed": Month.ledger_of(whole)}
        print(table_of_classes(ledgers), flush=True)

        count = arguments.interruptions
        often = keys | {"checkpoint.neighbour_every_steps": max(steps // count // 80 * 10, 10),
                        "checkpoint.every_steps": max(steps // count // 20 * 10, 10), "run.hang_timeout": 2}
        month, ledgers["a month, dense"] = month_of(dense, grid, often, drawn(count, 0.98 * steps / count, chance, 0.05),
                                                    "steps", chance, rows, state, steps)
        faults = table_of_faults(month, ledgers["a month, dense"])
        print(f"{month.stuck} launchers were stuck\n{faults}\n{table_of_classes(ledgers)}", flush=True)

        events = evenly(int(3 * steps * step_seconds / between) + 1, between, chance)  # more than fit
        sample, ledgers["sample"] = month_of(sampled, grid, keys, events, "seconds", chance, rows, state, steps)
        text = "\n\n".join([faults, table_of_faults(sample, ledgers["sample"]), table_of_classes(ledgers),
                            scale_of(sample, ledgers["sample"], keys, step_seconds, between)])
    counts = {fault: sum(event.fault == fault for event in month.done) for fault in WHAT}
    share = lost_share(month, ledgers["a month, dense"], often["checkpoint.neighbour_every_steps"])
    priced, goodput = tables({fault: number * PER_MONTH / max(len(month.done), 1) for fault, number in counts.items()}, share)
    text += f"\n\nLost on the mean of an interruption: {share:.2f} of the steps between two copies.\n\n{priced}"
    print(f"{sample.stuck} launchers were stuck\n{text}")
    print(f"{steps} steps, {len(month.done)} and {len(sample.done)} interruptions: the same bits; {month.wall:.1f} s of the "
          f"month, {sample.wall:.1f} s of the sample")
    if arguments.markdown:
        arguments.markdown.write_text(text + "\n", encoding="utf-8")
    check(goodput[2] >= BAR, f"goodput of the month: {100 * goodput[2]:.2f} %, at least {100 * BAR:.0f} %")


if __name__ == "__main__":
    main()
