#!/usr/bin/env python3
"""Losses of FP8 against bf16 on real text: the same 500 steps of a small Llama and of a small Mixtral, with one scale
for an operand and with scales of blocks, on several grids of two ranks.

    fp8_loss.py <folder of the programs> <token file> [--steps 500] [--out <folder>] [--only <part of a name>]

The token file is that of jobscripts/quickstart.sh, or any other of bytes. Prints a table: the greatest difference of a
step's loss, that of the means over the last tenth, and the loss itself, each against bf16 on one rank and on the same
grid. Exit code 1 where a mean differs by more than 0.5 % from bf16 on the same grid.
"""
import argparse
import os
import shutil
import subprocess
import sys

import h5py
import numpy as np

DECK = """
&run   title = 'fp8 and bf16', steps = {steps}, output_dir = '{folder}', log_every = 100 /
&model hidden_size = 128, num_hidden_layers = 4, num_attention_heads = 4, num_key_value_heads = 2, intermediate_size = 352 /
&optimizer learning_rate = 8e-4, weight_decay = 0.1 /
&schedule  kind = 'cosine', warmup_steps = {warmup}, decay_steps = {steps} /
&data  path = '{tokens}', sequence_length = 128, global_batch_size = 8, micro_batch_size = 2 /
&checkpoint at_end = .false. /
"""
# The last layers of experts have the width of a block of scales, and the router the loss that balances it.
EXPERTS = ["moe.num_experts=8", "moe.num_experts_per_tok=2", "moe.moe_intermediate_size=128", "moe.router_aux_loss_coef=0.01"]
BLOCKS = ["precision.fp8_scales=blocks"]
FP8_EXPERTS = ["precision.fp8_experts=true"]
# Name, ranks, keys, keys of FP8, and whether the run is stopped half-way and resumed. The first of each kind is on one rank.
LLAMA = [
    ("1 rank", 1, [], [], False),
    ("dp = 2", 2, ["parallel.dp=2"], [], False),
    ("tp = 2, reduce_scatter", 2, ["parallel.tp=2", "parallel.tp_mode=reduce_scatter", "parallel.tp_overlap_chunks=2"], [], False),
    ("pp = 2", 2, ["parallel.pp=2"], [], False),
    ("dp = 2, ZeRO-1, resumed", 2, ["parallel.dp=2", "parallel.zero_stage=1"], [], True),
    ("1 rank, blocks", 1, [], BLOCKS, False),
    ("tp = 2, blocks", 2, ["parallel.tp=2"], BLOCKS, False),
]
MIXTRAL = [
    ("experts, 1 rank", 1, EXPERTS, FP8_EXPERTS, False),
    ("experts, 1 rank, blocks", 1, EXPERTS, FP8_EXPERTS + BLOCKS, False),
    ("experts, ep = 2", 2, [*EXPERTS, "parallel.dp=2", "parallel.ep=2"], FP8_EXPERTS, False),
    ("experts, ep = 2, blocks, rows in FP8", 2, [*EXPERTS, "parallel.dp=2", "parallel.ep=2"],
     [*FP8_EXPERTS, *BLOCKS, "parallel.ep_row_type=fp8"], False),
]


def losses(options, name, ranks, keys, resumed, precision):
    folder = os.path.join(options.out, f"{name}_{precision}".replace(" ", "").replace("=", "").replace(",", "_"))
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    deck = os.path.join(folder, "input.deck")
    with open(deck, "w") as file:
        file.write(DECK.format(steps=options.steps, warmup=options.steps // 10, folder=folder, tokens=os.path.abspath(options.tokens)))
    command = [os.environ.get("MPIEXEC", "mpirun"), "-np", str(ranks), os.path.join(options.programs, "nanotron_hpc"),
               deck, f"--set=precision.compute={precision}", *[f"--set={key}" for key in keys]]
    parts = [[f"--set=run.stop_after_steps={options.steps // 2}"], []] if resumed else [[]]
    for part in parts:
        result = subprocess.run(command + part, capture_output=True, text=True, check=False)
        if result.returncode not in ((0,) if not part else (0, 75)):
            sys.exit(f"{' '.join(command + part)}\n{result.stdout[-2000:]}{result.stderr[-2000:]}")
    with h5py.File(os.path.join(folder, "metrics.h5")) as file:
        values = np.array(file["loss"])
    assert len(values) == options.steps, f"{len(values)} losses"
    return values


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("programs")
    parser.add_argument("tokens")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--out", default="runs/fp8_loss")
    parser.add_argument("--only", default="", help="part of the names of the runs")
    options = parser.parse_args()
    options.out = os.path.abspath(options.out)
    last = options.steps // 10
    worst = 0.0
    print("| grid | bf16 | fp8 | greatest of a step | last steps, same grid | last steps, bf16 on 1 rank |")
    print("|---|---:|---:|---:|---:|---:|")
    for kind in (LLAMA, MIXTRAL):
        wide = {}  # losses of bf16, by the keys of the grid
        for name, ranks, keys, narrow_keys, resumed in kind:
            if options.only not in name:
                continue
            grid = (ranks, *keys)
            if grid not in wide:
                wide[grid] = losses(options, name, ranks, keys, resumed, "bf16")
            narrow = losses(options, name, ranks, keys + narrow_keys, resumed, "fp8")
            same, serial = wide[grid], next(iter(wide.values()))
            mean = lambda x: float(np.mean(x[-last:]))
            step = 100 * float(np.max(np.abs(narrow / same - 1)))
            to_same, to_serial = (100 * (mean(narrow) / mean(x) - 1) for x in (same, serial))
            worst = max(worst, abs(to_same))
            print(f"| {name} | {mean(same):.4f} | {mean(narrow):.4f} | {step:.2f} % | {to_same:+.2f} % | {to_serial:+.2f} % |", flush=True)
    sys.exit(1 if worst > 0.5 else 0)


if __name__ == "__main__":
    main()
