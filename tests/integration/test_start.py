#!/usr/bin/env python3
# ranks: 2
# timeout: 600
"""The start of a run costs what --plan --ranks says, on any number of ranks, and on paper no more than a few bytes for
each rank: a collective call, a list of all ranks or a file that is opened by all, new in the start, ends this test.

    test_start.py <folder of the programs> [ranks ...]
"""
import os
import re
import sys
import tempfile
from pathlib import Path

from runs import Case, check, expect, mpiexec, program, root

SIZES = [int(word) for word in sys.argv[2:]] or [2, 4, 8]
A100 = (root / "input/machines/a100_80gb.nml").read_text()
ROW = re.compile(r"^  (\S.*?) +(\d+) +(\d+) +([\d.]+) +(\d+) +(\d+) +([\d.]+) +(\d+)$", re.MULTILINE)
COLUMNS = ["calls", "messages", "bytes", "files", "messages of rank 0", "bytes of rank 0", "files of rank 0"]
EXPERTS = ["moe.num_experts=4", "moe.num_experts_per_tok=2", "moe.moe_intermediate_size=32"]
GRIDS = {"tensor and data parallel": ["parallel.tp=2"],
         "data parallel": [],
         "sharded": ["parallel.zero_stage=1"],
         "pipeline": ["parallel.pp=2", "parallel.pp_layers=1 1"],
         "context parallel": ["parallel.cp=2"],
         "experts": ["parallel.ep=2", *EXPERTS],
         "experts by node": ["parallel.ep=4", "parallel.ep_messages='by_node'", *EXPERTS]}
RESUME = re.compile(r"^  state of a resume: (\d+) calls, (\d+) messages, ([\d.]+) KiB, (\d+) files", re.MULTILINE)


def rows_of(text):
    """By phase: calls, messages, bytes and files of the rank with most, then messages, bytes and files of rank 0."""
    rows = {}
    for name, *numbers in ROW.findall(text):
        rows[name] = [round(1024 * float(n)) if "." in n else int(n) for n in numbers]
    check("total" in rows and len(rows) > 5, "a table of the start", text)
    return rows


def settings(keys):
    return [word for key in keys for word in ("--set", key)]


def planned(case, folder, keys, ranks, of_node):
    machine = folder / "machine.nml"
    machine.write_text(re.sub(r"\n  ranks = 8", f"\n  ranks = {of_node}", A100.replace("processor = 'gpu'", "processor = 'cpu'")))
    return expect(program, "--plan", "--ranks", ranks, "--machine", machine, *settings(keys), case.deck,
                  says=[f"start on {ranks} ranks, {min(of_node, ranks)} a node"])


def counts_are_those_of_the_plan(folder):
    for name, keys in GRIDS.items():
        for ranks in SIZES if name == next(iter(GRIDS)) else [4]:
            all_keys = [f"data.global_batch_size={max(SIZES)}", *keys]
            with Case("start", steps=1, tp=1) as case:
                text = expect(mpiexec, "-n", ranks, program, "--set", "output.timers=true", *settings(all_keys), case.deck,
                              seconds=200)
                run = rows_of(text[text.index("start: collective calls"):])
                plan = rows_of(planned(case, folder, all_keys, ranks, ranks))
            check(run.keys() == plan.keys(), f"{name}, {ranks} ranks: the same phases", f"{run}\n{plan}")
            for phase, found in run.items():
                for column, here, on_paper in zip(COLUMNS, found, plan[phase], strict=True):
                    # The texts of deck and overrides have other lengths.
                    allowed = 1024 if "bytes" in column else 0
                    check(abs(here - on_paper) <= allowed,
                          f"{name}, {ranks} ranks, {phase}: {column} {here}, planned {on_paper}", text)


def large_starts_are_cheap(folder):
    """16,384 ranks, 8 a node. What grows with the ranks: a word in each split of the world, in the two sums of
    doubles and in the table of hosts."""
    for name, keys in GRIDS.items():
        totals = {}
        for ranks in (1024, 2048, 16384):
            all_keys = [f"data.global_batch_size={ranks}", *keys]
            with Case("start", tp=1) as case:
                text = planned(case, folder, all_keys, ranks, 8)
            totals[ranks] = rows_of(text)["total"]
            tables = float(re.search(r"tables of ranks .*, ([\d.]+) bytes a rank", text)[1])
            check(tables <= 64, f"{name}: tables of at most 64 bytes a rank", text)
        of_a_rank = [(totals[2048][i] - totals[1024][i]) / 1024 for i in (2, 5)]
        check(of_a_rank[0] <= 72 and of_a_rank[1] <= 112,
              f"{name}: each more rank costs {of_a_rank[0]:.1f} bytes on the others, {of_a_rank[1]:.1f} on rank 0")
        calls, messages, files = totals[16384][0], totals[16384][1], totals[16384][3]
        check(messages <= 28 * calls, f"{name}: {messages} messages of {calls} calls")
        check(calls == totals[1024][0] and files == totals[1024][3], f"{name}: calls and files do not grow")


def a_resume_costs_what_is_planned(folder):
    """Besides a call for each array that is read, whose number is that of the model: no call more on more ranks."""
    calls = {}
    for ranks in (2, 4):
        keys = ["checkpoint.every_steps=1", "parallel.zero_stage=1"]
        with Case("start", steps=1, tp=1) as case:
            run = [mpiexec, "-n", ranks, program, *settings(keys)]
            expect(*run, case.deck, seconds=200)
            text = expect(*run, "--set", "run.steps=2", "--set", "output.timers=true", case.deck, seconds=200)
            state = rows_of(text[text.index("start: collective calls"):])["state"]
            plan = [float(word) for word in RESUME.search(planned(case, folder, keys, ranks, ranks)).groups()]
        calls[ranks] = state[0]
        check(state[3] == plan[3], f"a resume on {ranks} ranks opens {state[3]} files, planned {plan[3]}", text)
        check(abs(state[2] - 1024 * plan[2]) <= 1024, f"a resume on {ranks} ranks: {state[2]} bytes, planned {plan[2]} KiB", text)
        check(plan[0] <= state[0] <= plan[0] + 60, f"a resume on {ranks} ranks: {state[0]} calls, planned {plan[0]}", text)
    check(calls[2] == calls[4], f"calls of a resume on 2 and 4 ranks: {calls}")


def wrong_uses_are_refused():
    with Case("start", tp=3) as case:
        expect(program, "--ranks", 4, case.deck, code=78, says=["--ranks", "--plan"])
        expect(program, "--plan", "--ranks", 4, case.deck, code=78, says=["4 ranks"])


os.environ.setdefault("NANOTRON_WAIT", "sleep")
with tempfile.TemporaryDirectory() as scratch:
    wrong_uses_are_refused()
    large_starts_are_cheap(Path(scratch))
    counts_are_those_of_the_plan(Path(scratch))
    a_resume_costs_what_is_planned(Path(scratch))
print("the start costs what is planned")
