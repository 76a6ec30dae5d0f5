#!/usr/bin/env python3
"""Weak and strong scaling as nanotron_plan and nanotron_hpc --plan predict it, beside published runs: doc/choosing_a_grid.md.

    plot_scaling.py <folder of the programs> [--out doc/images]

Writes scaling_weak.png and scaling_strong.png, and prints the figures as tables.
"""
import argparse
import csv
import os
import re
import subprocess
import sys
from pathlib import Path

import matplotlib

matplotlib.use("agg")
import matplotlib.pyplot as plt  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
A100, H100 = (ROOT / f"input/machines/{name}.nml" for name in ("a100_80gb", "h100"))
LLAMA_8B = ["parallel.cp=1", "parallel.zero_stage=1", "parallel.recompute=selective"]
LLAMA_70B = ["model.hidden_size=8192", "model.num_hidden_layers=80", "model.num_attention_heads=64",
             "model.intermediate_size=28672", "parallel.cp=1", "parallel.tp=8", "parallel.tp_mode=reduce_scatter",
             "parallel.pp=4", "parallel.pp_schedule=interleaved_1f1b", "parallel.pp_chunks=5", "parallel.zero_stage=1"]
LLAMA_405B = ["model.hidden_size=16384", "model.num_hidden_layers=126", "model.num_attention_heads=128",
              "model.intermediate_size=53248", "parallel.cp=1", "parallel.tp=8", "parallel.tp_mode=reduce_scatter",
              "parallel.pp=16", "parallel.pp_schedule=interleaved_1f1b", "parallel.pp_chunks=4", "parallel.zero_stage=1"]
# Model, settings, GPUs of a replica, sequences of a replica where weak, of a step where strong.
MODELS = [("Llama 3 8B", LLAMA_8B, 1, 4, 2048), ("Llama 3 70B", LLAMA_70B, 32, 32, 2048),
          ("Llama 3 405B", LLAMA_405B, 128, 32, 2048)]
PUBLISHED_405B = {8192: 430.0, 16384: 400.0}  # TFLOP/s per GPU, "The Llama 3 Herd of Models", table 4
GPUS = [128, 256, 512, 1024, 2048, 4096, 8192, 16384]


def output_of(*command):
    done = subprocess.run([str(word) for word in command], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          check=False)
    if done.returncode not in (0, 65):
        sys.exit(f"{' '.join(map(str, command))}\n{done.stdout}")
    return done.stdout


def predicted(programs, settings, gpus, replica, batch):
    """Model TFLOP/s per GPU."""
    words = [*settings, f"parallel.dp={gpus // replica}", f"data.global_batch_size={batch}", "data.micro_batch_size=1"]
    sets = [word for value in words for word in ("--set", value)]
    text = output_of(programs / "nanotron_hpc", "--plan", "--machine", H100, *sets, ROOT / "input/llama3_8b.deck")
    return float(re.search(r"MFU [0-9.]+ %, ([0-9.]+) TFLOP/s per rank", text)[1])


def megatron(programs):
    """Rows of SC21: GPUs, parameters, published and predicted TFLOP/s per GPU."""
    rows = []
    for name in ("published_runs.csv", "other_runs.csv"):
        path = ROOT / "tests/data" / name
        text = output_of(programs / "nanotron_plan", "--machine", A100, "--validate", path)
        ratios = {match[1]: float(match[3]) / float(match[2]) for match in re.finditer(
            r"^SC21 +GPT ([0-9.]+)B.* ([0-9.e+]+) +([0-9.e+]+) +[+-][0-9.]+ %  ", text, re.MULTILINE)}
        lines = [line for line in path.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
        for row in csv.DictReader(lines):
            if row["source"] == "SC21":
                published = float(row["tflops_per_gpu"])
                rows.append((int(row["gpus"]), row["parameters_B"], published, published / ratios[row["parameters_B"]]))
    return sorted(rows)


def table(title, heads, rows):
    print(f"\n{title}\n| {' | '.join(heads)} |\n|{'---|' * len(heads)}")
    for row in rows:
        print("| " + " | ".join(f"{cell:.0f}" if isinstance(cell, float) else str(cell) for cell in row) + " |")


def save(figure, axes, path, title):
    axes.set_xscale("log", base=2)
    axes.set_xlabel("GPUs")
    axes.set_ylabel("TFLOP/s per GPU")
    axes.set_title(title)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    figure.tight_layout()
    figure.savefig(path, dpi=130, metadata={"Software": None})
    plt.close(figure)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("programs", type=Path)
    parser.add_argument("--out", type=Path, default=ROOT / "doc/images")
    arguments = parser.parse_args()
    os.chdir(ROOT)

    figure, axes = plt.subplots(figsize=(7, 4.2))
    rows = megatron(arguments.programs)
    table("Megatron-LM on A100 (SC21), the model grows with the machine", ["GPUs", "parameters", "published", "predicted"],
          [(gpus, f"{parameters} B", published, ours) for gpus, parameters, published, ours in rows])
    axes.plot([row[0] for row in rows], [row[2] for row in rows], "ko", label="Megatron-LM on A100, published (SC21)")
    axes.plot([row[0] for row in rows], [row[3] for row in rows], "k--", label="Megatron-LM on A100, predicted")
    weak = {}
    for name, settings, replica, sequences, _ in MODELS:
        points = [gpus for gpus in GPUS if gpus >= replica]
        weak[name] = {gpus: predicted(arguments.programs, settings, gpus, replica, sequences * gpus // replica)
                      for gpus in points}
        axes.plot(points, list(weak[name].values()), ".-", label=f"{name} on H100, predicted")
    save(figure, axes, arguments.out / "scaling_weak.png", "Weak scaling: the batch grows with the machine")

    figure, axes = plt.subplots(figsize=(7, 4.2))
    strong = {}
    for name, settings, replica, _, batch in MODELS:
        points = [gpus for gpus in GPUS if replica <= gpus <= batch * replica]
        strong[name] = {gpus: predicted(arguments.programs, settings, gpus, replica, batch) for gpus in points}
        axes.plot(points, list(strong[name].values()), ".-", label=f"{name} on H100, predicted")
    axes.plot(list(PUBLISHED_405B), list(PUBLISHED_405B.values()), "ks", label="Llama 3 405B on H100, published")
    save(figure, axes, arguments.out / "scaling_strong.png", "Strong scaling: 2048 sequences of 8192 tokens per step")

    for title, found in (("Weak scaling on H100, TFLOP/s per GPU", weak), ("Strong scaling on H100, TFLOP/s per GPU", strong)):
        table(title, ["GPUs", *found], [(gpus, *(found[name].get(gpus, "") for name in found)) for gpus in GPUS])


if __name__ == "__main__":
    main()
