#!/usr/bin/env python3
# ranks: 4
# timeout: 300
"""nanotron_hpc --evaluate: on any grid the losses that the training printed, and nothing written."""
import math
import re
import sys

import h5py

from runs import Case, check

VALIDATION = "validation_fraction = 0.1 validation_every = 5"
LINE = re.compile(r"validation: loss (\S+) nats per token, perplexity (\S+), (\S+) bits per token, (\d+) targets")


def losses(case):
    with h5py.File(case.out / "metrics.h5") as file:
        return dict(zip(file["validation_step"][:].tolist(), file["validation_loss"][:].tolist(), strict=True))


def contents(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*")}


def expect_loss(case, wanted, *arguments, ranks):
    rc, output = case.run("--evaluate", *arguments, ranks=ranks)
    found = LINE.search(output)
    check(rc == 0 and found, f"{arguments} on {ranks} ranks are evaluated", output)
    loss, perplexity, bits, targets = map(float, found.groups())
    check(abs(loss - wanted) < 2e-6, f"{wanted} is the loss of {arguments} on {ranks} ranks", output)
    check(abs(perplexity / math.exp(wanted) - 1) < 1e-5 and abs(bits * math.log(2) - wanted) < 2e-6 and targets > 0,
          "perplexity and bits are those of the loss", output)


def expect_error(case, rc, words, *arguments):
    found, output = case.run(*arguments, ranks=1)
    check(found == rc and words in output and "Traceback" not in output, f"{arguments}: {words}", output)


def main():
    with Case("evaluate", data=VALIDATION) as case:
        rc, output = case.run()
        check(rc == 0, "the training finishes", output)
        trained, before = losses(case), contents(case.out)
        check(sorted(trained) == [5, 10], f"validations at steps 5 and 10, not {trained}")
        expect_loss(case, trained[10], ranks=2)
        expect_loss(case, trained[10], "--set", "parallel.tp=1", "--set", "checkpoint.resume=auto", ranks=1)
        expect_loss(case, trained[10], "--set", "parallel.tp=1", "--set", "parallel.pp=2", ranks=2)
        expect_loss(case, trained[5], "--set", "parallel.tp=2", "--set", "parallel.dp=2", "--set", "parallel.zero_stage=3",
                    "--set", f"checkpoint.resume={case.out}/checkpoints/step_00000005", ranks=4)
        check(contents(case.out) == before, "nothing is written")
        expect_error(case, 78, "there is nothing to evaluate", "--evaluate", "--set", "parallel.tp=1",
                     "--set", "data.validation_fraction=0", "--set", "data.validation_every=0")
        expect_error(case, 65, "there is no checkpoint to evaluate", "--evaluate", "--set", "parallel.tp=1",
                     "--set", "checkpoint.directory=" + str(case.folder / "nowhere"))
        expect_error(case, 65, "there is no checkpoint to evaluate", "--evaluate", "--set", "parallel.tp=1",
                     "--set", "checkpoint.resume=none")
        expect_error(case, 78, "--evaluate", "--evaluate", "--plan", "--set", "parallel.tp=1")
    print("nanotron_hpc --evaluate: the losses of the training, on four grids")


if __name__ == "__main__":
    sys.exit(main())
