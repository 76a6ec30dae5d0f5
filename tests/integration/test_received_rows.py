#!/usr/bin/env python3
# ranks: 2
# timeout: 200
"""The rows that experts receive: a column of metrics.h5, and at the end of a run what they were and which
moe%receive_factor would have been enough. That factor runs with the same numbers, a smaller one ends the run.

    test_received_rows.py <folder of the programs>
"""
import re

import h5py
import numpy as np

from runs import Case, check

# One expert a rank, one choice a token, one layer, one dispatch a step.
DATA = """/
&moe num_experts = 2 num_experts_per_tok = 1 moe_intermediate_size = 24 norm_topk_prob = .false."""
PATTERN = (r"an even load of (\d+), (\d+) dispatches to a rank: 99.9 % at most ([\d.]+), largest ([\d.]+); "
           r"overdispersion ([\d.]+), assumed by moe%receive_quantile: 0.1\s+moe%receive_factor = ([\d.]+) holds the quantile")
SET = ["--set", "parallel.ep=2", "--set", "parallel.dp=2", "--set", "model.num_hidden_layers=1"]


def columns(case):
    with h5py.File(case.out / "metrics.h5") as file:
        return {name: file[name][:] for name in ("loss", "received_load", "busiest_expert_share")}


def main():
    with Case("received", steps=12, tp=1, data=DATA) as case:
        arguments = [*SET, "--set", "data.micro_batch_size=4"]
        code, text = case.run(*arguments)
        check(code == 0, "the run ends well", text)
        free = columns(case)
        # The busiest expert receives its share of the rows of two ranks.
        check(np.allclose(free["received_load"], 2 * free["busiest_expert_share"], rtol=1e-12), "the column is the load",
              f"{free['received_load']}\n{free['busiest_expert_share']}")
        found = re.search(PATTERN, text)
        check(found is not None, "the end of the run has a report", text)
        even, dispatches, most, largest, overdispersion, factor = map(float, found.groups())
        check(even == 4 * 16 and dispatches == 2 * 12, "of all dispatches", found.group())
        check(abs(largest - free["received_load"].max()) < 0.006 and most <= largest, "the largest load", found.group())
        loads = np.concatenate([free["received_load"], 2 - free["received_load"]])  # of both ranks
        check(abs(overdispersion - np.sqrt(max(loads.var() - 0.5 / even, 0))) < 0.0006, "the overdispersion", found.group())
        check(largest <= factor <= 2, "the factor is enough", found.group())
    for value, ends_well in (factor, True), (0.5 * (1 + largest), False):
        with Case("received", steps=12, tp=1, data=DATA) as case:
            code, text = case.run(*arguments, "--set", f"moe.receive_factor={value}")
            if ends_well:
                check(code == 0 and np.array_equal(columns(case)["loss"], free["loss"]), "the same run with that factor", text)
            else:
                check(code != 0 and "receive more" in text, "a factor below the largest load ends the run", text)


main()
