#!/usr/bin/env python3
# ranks: 2
# timeout: 300
"""nanotron_plan, --plan --machine and nanotron_bench --machine: every deck that is written is a good one, a measured
machine can be planned for, and what is said of files that say too little.

    test_plan.py <folder of the programs>
"""
import csv
import re
import sys
import tempfile
from pathlib import Path

from runs import check, expect, mpiexec, program, root

programs = Path(program).parent
a100 = root / "input/machines/a100_80gb.nml"
SMALL = ["--set", "model.hidden_size=64", "--set", "model.num_hidden_layers=2", "--set", "model.intermediate_size=96",
         "--set", "data.sequence_length=64", "--set", "data.path=none"]


def written_decks_are_good(folder):
    deck = root / "input/llama_7b.deck"
    text = expect(programs / "nanotron_plan", "--ranks", 16, "--machine", a100, "--set", "model.vocab_size=32000", "--write",
               folder / "grids", "--csv", folder / "grids.csv", deck, says=["combinations", "written: "])
    decks = sorted((folder / "grids").glob("grid_*.deck"))
    table = re.findall(r"^ +\d+ +(\d+) +(\d+) +(\d+) +(\d+) +\d+ .*$", text, re.MULTILINE)
    check(len(decks) == 10 and len(table) == 10, "ten decks and ten rows", text)
    rows = list(csv.DictReader((folder / "grids.csv").read_text().splitlines()))
    check([(row["dp"], row["tp"], row["pp"], row["cp"]) for row in rows] == table, "the table as CSV", str(rows))
    names = list(rows[0])
    shares = names[names.index("mfu") + 1 : names.index("node_hours")]
    for row in rows:
        seconds, hours = float(row["seconds_per_step"]), float(row["node_hours"])
        check(abs(sum(float(row[share]) for share in shares) / seconds - 1) < 1e-6, "the shares are the step", str(row))
        check(hours > 0 and abs(float(row["kilowatt_hours"]) / hours - 6.5) < 1e-6, "kW of a node", str(row))
    expect(sys.executable, root / "tools/nanotron_plot.py", "--sizes", folder / "grids.csv", "-o", folder / "grids.png")
    check((folder / "grids.png").stat().st_size > 10000, "a picture of the grids", "")
    for path, (dp, tp, pp, cp) in zip(decks, table, strict=True):
        expect(program, "--check", path,
            says=[f"grid: dp {dp} x pp {pp} x cp {cp} x tp {tp} = 16 ranks", "deck OK"])


def decks_for_one_gpu_fit_it():
    """What a deck says of its machine is what the plan for that machine says."""
    machines = {"80": "h100.nml", "141": "h200.nml"}
    decks = {deck: words[1] for deck in sorted((root / "input").glob("*.deck"))
             if (words := re.search(r"^! Machine: 1 GPU of (\d+) GB", deck.read_text(), re.MULTILINE))}
    check({machines[memory] for memory in decks.values()} == set(machines.values()), "there are decks for GPUs of both sizes", str(decks))
    for deck, memory in decks.items():
        expect(program, "--plan", "--machine", root / "input/machines" / machines[memory], deck, says=["  fits: "])


def a_plan_has_a_timeline(folder):
    plan = [program, "--plan", "--machine", a100, "--set", "model.vocab_size=32000"]
    text = expect(*plan, "--set", "parallel.dp=8", "--set", "parallel.tp=2", root / "input/llama_7b.deck",
               says=["timeline of a step on 16 ranks, 2 nodes of DGX A100 80 GB", "node-hours", "kWh"])
    shares = [float(share) for share in re.findall(r" ms +([0-9.]+) %$", text.split("timeline")[1], re.MULTILINE)]
    check(abs(sum(shares) - 100) < 0.5, "the shares are the step", text)
    fits = r"^  fits: [\d.]+ GiB with NCCL's buffers and 3\.7 GiB reserved are \d+ % of the 80\.0 GiB of a rank of DGX"
    check(re.search(fits, text, re.MULTILINE), "the plan is compared with the memory of the machine", text)
    small = folder / "small.nml"
    small.write_text(a100.read_text().split("&gemm")[0] + re.sub("memory_gb = 85.9", "memory_gb = 8", re.search(
        "&node.*?^/\n", a100.read_text(), re.DOTALL | re.MULTILINE)[0]))
    expect(program, "--plan", "--machine", small, "--set", "model.vocab_size=32000", "--set", "parallel.dp=8",
        root / "input/llama_7b.deck", says=["  does not fit: "])
    expect(program, "--plan", "--set", "model.vocab_size=32000", root / "input/llama_7b.deck",
        says=["  planned for a host, as --machine names no other"])
    lone = folder / "lone.nml"
    lone.write_text(re.sub(r"&network.*?^/\n", "", a100.read_text(), flags=re.DOTALL | re.MULTILINE))
    expect(program, "--plan", "--machine", lone, "--set", "model.vocab_size=32000", "--set", "parallel.dp=16",
        root / "input/llama_7b.deck", code=78, says=["expected: a group &network"])


def a_measured_machine_is_planned_for(folder):
    deck = root / "input/llama_30m.deck"
    for ranks in (1, 2):
        machine = folder / f"here_{ranks}.nml"
        expect(mpiexec, "-n", ranks, programs / "nanotron_bench", "--machine", machine, "--seconds", 0.01, "--deck", deck,
            *SMALL, says=["Measured by nanotron_bench", "link_gb_per_s"])
        expect(program, "--plan", "--machine", machine, *SMALL, "--set", f"parallel.dp={ranks}", deck,
            says=[f"timeline of a step on {ranks} ranks, 1 nodes"])


def published_runs_are_judged(folder):
    table = folder / "runs.csv"
    table.write_text("source,parameters_B,layers,hidden,heads,tp,pp,gpus,batch,tflops_per_gpu,seconds_full,"
                     "seconds_selective\nK22,22,48,6144,64,8,1,8,4,,1.42,\n")
    validate = (programs / "nanotron_plan", "--machine", a100, "--validate", table)
    expect(*validate, says=["mean error of 1 runs", "within the bound"])
    expect(*validate, "--max-error", "0.001", code=65, says=["above the bound"])
    expect(*validate, "--machine", a100, "--validate", table, says=["mean error of 2 runs"])
    expect(*validate, "--validate", table, code=78, says=["one --machine, of --validate one each"])
    expect(programs / "nanotron_plan", "--machine", a100, code=78, says=["--ranks N and a deck"])


def a_run_is_sized(folder):
    """The fewest nodes for a run, what it costs, and the picture of the sizes."""
    sizes = folder / "sizes.csv"
    plan = [programs / "nanotron_plan", "--machine", a100, "--set", "model.vocab_size=32000"]
    deck = root / "input/llama_7b.deck"
    target = ["--tokens", "4e11", "--days"]
    text = expect(*plan, *target, 20, "--csv", sizes, "--write", folder / "sized", deck, says=["the smallest: "])
    rows = list(csv.DictReader(sizes.read_text().splitlines()))
    enough = [row for row in rows if float(row["days"]) <= 20]
    check(enough and len(enough) < len(rows), "there are sizes that are too small, and the rest", sizes.read_text())
    best = min(enough, key=lambda row: int(row["ranks"]))
    check(f"the smallest: {best['ranks']} ranks" in text, "the smallest that is fast enough", text)
    for row in rows:
        tokens = float(row["tokens_per_second"]) * float(row["days"]) * 86400
        check(abs(tokens / 4e11 - 1) < 1e-4, "days are the tokens over the speed", str(row))
        hours = float(row["days"]) * 24 * int(row["nodes"])
        check(abs(float(row["node_hours"]) / hours - 1) < 1e-4, "node-hours are days of the nodes", str(row))
    expect(program, "--check", folder / "sized/grid_01.deck")
    expect(sys.executable, root / "tools/nanotron_plot.py", "--sizes", sizes, "-o", folder / "sizes.png")
    check((folder / "sizes.png").stat().st_size > 10000, "a picture of the sizes", "")
    expect(*plan, "--tokens", "4e11", deck, code=78, says=["--tokens with --days"])
    expect(*plan, *target, 1e-6, deck, code=78, says=["or fewer train"])


with tempfile.TemporaryDirectory(prefix="nanotron_plan_") as name:
    written_decks_are_good(Path(name))
    decks_for_one_gpu_fit_it()
    a_plan_has_a_timeline(Path(name))
    a_measured_machine_is_planned_for(Path(name))
    published_runs_are_judged(Path(name))
    a_run_is_sized(Path(name))
print("plan: passed")
