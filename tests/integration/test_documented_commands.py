#!/usr/bin/env python3
# ranks: 2
# timeout: 1500
# labels: once
"""Every command of the pages in DOCUMENTS, in their order and as written, in a scratch copy of the repository; whole
decks that they show are checked.

    test_documented_commands.py <folder of the programs>

What the documents presuppose (texts, a Hugging Face model, decks of the user's own) is made here, tiny. A block that is
neither commands nor known text fails, and so does an exception below that is no longer needed. It runs once, with the
default MPI and without sanitizers.
"""
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import schedulers
from runs import call, check, program, root
from skips import lacking, left_out, skip

if os.environ.get("NANOTRON_SANITIZE") == "ON" or os.environ.get("NANOTRON_MPI_FLAVOUR") == "mpich":
    skip("it runs once, with the default MPI and without sanitizers")

DOCUMENTS = (
    "README.md",
    "doc/first_job.md",
    "doc/decks.md",
    "doc/job_scripts.md",
    "doc/reliability.md",
    "doc/troubleshooting.md",
    "doc/monitoring.md",
    "doc/data.md",
    "doc/fine_tuning.md",
    "doc/benchmarks.md",
    "doc/checkpoint_format.md",
)
python = os.environ.get("NANOTRON_PYTHON", sys.executable)

# Commands that are not run here, and why.
ELSEWHERE = {
    "jobscripts/quickstart.sh": "continuous integration runs it",
    "tests/run.sh": "runs this test",
    "cmake --preset release && cmake --build --preset release": "made the programs that run here",
    "jobscripts/submit.sh jobscripts/machines/perlmutter/gpu.sh --account=m0000_g --nodes=4 -- input.deck --set run.steps=100":
        "test_machines.py does, with stand-ins for the site's modules",
    "SWEEP=lr.txt jobscripts/submit.sh jobscripts/machines/perlmutter/gpu.sh --account=m0000_g -- input.deck": "the same",
    "source jobscripts/machines/perlmutter/gpu.sh": "the same",
    "export SITE=jobscripts/machines/perlmutter/gpu.sh PROGRAM=build/cuda/bin/nanotron_hpc": "the same",
    'export SUBMIT_OPTIONS="${site_options[*]} --account=m0000_g --nodes=4"': "the same",
    "build/cuda/bin/nanotron_hpc --check input.deck && sbatch $SUBMIT_OPTIONS jobscripts/slurm.sh input.deck": "the same",
    "nanotron-export runs/quickstart --follow --wait 86400 --format wandb -o wandb_quickstart": "it needs an account of W&B",
    "pip install ./tools": "tests/tools/test_installed.py does",
    "pip install './tools[plot,tokenizers,chat,tensorboard,parquet,zstd,wandb]'": "the same, with packages that are large",
}
# How indented text that is no command begins: decks, output, trees.
TEXT = (r"&\w+$", r"model: ", r"my\.deck:\d+:\d+: ", r"--set:\d+:\d+: ", r"error: ", r"warning: ", r"step +\d+/",
        r"grid: ", r"grid +type ", r"stopped after ", r"where the time went: ", r"resumed from ",
        r" +quickstart$", r"runs/[\w/.]+: ", r"validation: ", r"choices: ", r"\d+ choices in ", r"memory of the largest rank", r"#include <",
        r"<output_dir>/$", r"<checkpoint%directory>/ ", r"include/nanotron/", r"\{$",
        r"kind +files +documents", r"left out: ", r"n0012 ", r"goodput ", r"JOBID PARTITION",
        r"runs/first/$", r"starts of first$", r"# weight and path",
        r"computing the log-probabilities ",
        r"(bundle/)?tests/(gpu\.sh|simulated_month\.py) ")
BUILTINS = ("cd", "export", "source", "kill")

# ---------------------------------------------------------------------------------------------------------------------
# What the documents say


def blocks_of(document):
    """(line number, language or '', lines) of every fenced block and every indented one behind an empty line."""
    lines = (root / document).read_text().splitlines()
    found, at = [], 0
    while at < len(lines):
        if lines[at].startswith("```"):
            end = next(i for i in range(at + 1, len(lines)) if lines[i].startswith("```"))
            found.append((at + 2, lines[at][3:].strip(), lines[at + 1:end]))
            at = end + 1
        elif lines[at].startswith("    ") and (at == 0 or not lines[at - 1].strip()):
            end = at
            while end < len(lines) and (lines[end].startswith("    ") or not lines[end].strip()):
                end += 1
            found.append((at + 1, "", [line[4:] for line in lines[at:end]]))
            at = end
        else:
            at += 1
    return found


def commands_of(lines):
    """Continued lines joined; comments stay."""
    return [line for line in "\n".join(lines).replace("\\\n", " ").splitlines() if line.strip()]


def plain(command):
    return " ".join(re.sub(r"\s#.*$", "", command).split())


# ---------------------------------------------------------------------------------------------------------------------
# What they presuppose

TINY = """&run steps = 4 output_dir = '{out}' /
&model hidden_size = {hidden} num_hidden_layers = 1 num_attention_heads = {heads} intermediate_size = {ffn} /
&data path = 'runs/quickstart/tokens.h5' sequence_length = 16 global_batch_size = 4 /
"""


def shrunk(path, **keys):
    """The deck with other values of these keys, every one of which it has."""
    text = path.read_text()
    for key, value in keys.items():
        text, count = re.subn(rf"(\b{key}\s*=\s*)[^\s,]+", rf"\g<1>{value}", text)
        check(count == 1, f"{path.name} sets {key} once", text)
    path.write_text(text)


def copy_repository(scratch):
    for name in ("input", "jobscripts", "tools", "doc", "tests/golden"):
        shutil.copytree(root / name, scratch / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(root / "README.md", scratch)
    (scratch / "build/release").mkdir(parents=True)
    (scratch / "build/release/bin").symlink_to(Path(program).parent)
    # The lengths are those of the documents; the model is small.
    shrunk(scratch / "input/quickstart.deck", hidden_size=24, num_hidden_layers=1, intermediate_size=16)


def prepare(scratch, have_tokenizers):
    for folder in ("my_texts", "corpus"):
        (scratch / folder).mkdir()
        for i in range(6):
            (scratch / folder / f"{i}.txt").write_text("".join(
                f"{i}.{line}: the quick brown fox number {line * 7919 % 1009} jumps over {line % 17} lazy dogs\n"
                for line in range(400)))
    token_ids_of_others(scratch)
    (scratch / "talks.jsonl").write_text("".join(json.dumps({"messages": [
        {"role": "user", "content": f"What is {i} + {i}?"}, {"role": "assistant", "content": f"It is {2 * i}."}]}) + "\n"
        for i in range(50)))
    (scratch / "pages.jsonl").write_text('{"text": "a page of words"}\n{"text": "a pa\n' + '{"text": "another page"}\n' * 9)
    (scratch / "input.deck").write_text(TINY.format(out="runs/input", hidden=32, heads=4, ffn=64))
    (scratch / "narrow.deck").write_text(TINY.format(out="runs/narrow", hidden=256, heads=4, ffn=64))
    for name in ("small", "large"):
        (scratch / f"{name}.deck").write_text(TINY.format(out="overridden", hidden=32, heads=4, ffn=64))
    (scratch / "wide.deck").write_text(TINY.format(out="runs/wide", hidden=512, heads=8, ffn=128))
    model = scratch / "Qwen3-0.6B"
    subprocess.run([python, "tools/nanotron_convert.py", "to-hf", "tests/golden/qwen3", model, "--max-positions", "128",
                    "--eos-id", "none"], cwd=scratch, check=True,
                   stdout=subprocess.DEVNULL)
    (model / "generation_config.json").write_text("{}")
    (model / "tokenizer_config.json").write_text("{}")
    if have_tokenizers:
        vocabulary = json.loads((model / "config.json").read_text())["vocab_size"]
        subprocess.run([python, "-c", MAKE_TOKENIZER, str(vocabulary)], cwd=scratch, check=True)
        shutil.copy(scratch / "tokenizer.json", model)


def token_ids_of_others(scratch):
    """Two documents of 60 and 40 ids, as nanoGPT, datatrove and Megatron-LM write them."""
    ids = struct.pack("<100H", *range(100))
    (scratch / "train.bin").write_bytes(ids)
    for folder in ("datatrove", "megatron"):
        (scratch / folder).mkdir()
    (scratch / "datatrove/00000_shuffled.ds").write_bytes(ids)
    (scratch / "datatrove/00000_shuffled.ds.index").write_bytes(struct.pack("<2Q", 60, 100))
    (scratch / "megatron/my_text_document.bin").write_bytes(ids)
    (scratch / "megatron/my_text_document.idx").write_bytes(
        struct.pack("<9sQBQQ2i2q3q", b"MMIDIDX\0\0", 1, 8, 2, 3, 60, 40, 0, 120, 0, 1, 2))


MAKE_TOKENIZER = """
import sys
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
special = ["<unk>", "<|endoftext|>", "<|im_start|>", "<|im_end|>"]
tokenizer.train(["corpus/0.txt"], trainers.BpeTrainer(vocab_size=int(sys.argv[1]), special_tokens=special))
tokenizer.save("tokenizer.json")
"""


def two_runs(scratch):
    for name in ("a", "b"):
        shutil.copytree(scratch / "runs/quickstart", scratch / "runs" / name)


def shown_rest_deck(output_dir, path, **keys):
    """The groups that doc/fine_tuning.md shows for the rest of the deck of this run, with other values of these keys."""
    shown = [lines for _, _, lines in blocks_of("doc/fine_tuning.md")
             if lines[0] == "&run" and output_dir in "".join(lines)]
    check(len(shown) == 1, f"doc/fine_tuning.md shows one rest.deck of {output_dir}")
    path.write_text("\n".join(shown[0]) + "\n")
    shrunk(path, **keys)


def qwen_deck(scratch):
    shown_rest_deck("runs/qwen", scratch / "rest.deck", steps=4, warmup_steps=2, sequence_length=32, global_batch_size=4)


def chats_deck(scratch):
    shown_rest_deck("runs/chats/tuned", scratch / "runs/chats/rest.deck", steps=12, validation_every=6)


def adapters_deck(scratch):
    shown_rest_deck("runs/chats/adapted", scratch / "runs/chats/adapters.deck", steps=12, validation_every=6)


def preferences_deck(scratch):
    shown_rest_deck("runs/chats/preferred", scratch / "runs/chats/preferences.deck", steps=12)


def first_deck(scratch):
    """The deck that doc/first_job.md shows, smaller."""
    shown = [lines for _, _, lines in blocks_of("doc/first_job.md") if lines[0] == "&run"]
    check(len(shown) == 1, "doc/first_job.md shows first.deck")
    (scratch / "first.deck").write_text("\n".join(shown[0]) + "\n")
    shrunk(scratch / "first.deck", hidden_size=24, num_hidden_layers=1, intermediate_size=16)


def small_defaults(scratch):
    """What a user changes in the deck of --print-defaults, and smaller."""
    shrunk(scratch / "input.deck", steps=4, hidden_size=32, num_hidden_layers=1, num_attention_heads=4,
           intermediate_size=64, sequence_length=32)


BEFORE = {
    "sbatch --nodes=2 --ntasks-per-node=2 --time=2 --signal=USR1@60 jobscripts/slurm.sh first.deck": first_deck,
    "python3 tools/nanotron_plot.py 'tp 2'=runs/a 'tp 1'=runs/b -o both.png": two_runs,
    "cat runs/qwen/checkpoints/model.nml rest.deck > qwen.deck": qwen_deck,
    "cat runs/chats/tuned/checkpoints/model.nml runs/chats/rest.deck > runs/chats/tune.deck": chats_deck,
    "cat runs/chats/frozen/model.nml runs/chats/adapters.deck > runs/chats/lora.deck": adapters_deck,
    "cat runs/chats/preferred/checkpoints/model.nml runs/chats/preferences.deck > runs/chats/dpo.deck": preferences_deck,
}
AFTER = {"build/release/bin/nanotron_hpc --print-defaults > input.deck": small_defaults}
NEEDS = {"tokenizers": r"--train-bpe|--tokenizer|talks\.h5|--merge|runs/chats/", "matplotlib": r"nanotron[_-]plot", "tensorboard": r"tensorboard",
         "pyarrow": r"parquet", "wandb": r"wandb", "xarray": r"xarray", "h5netcdf": r"h5netcdf", "f90nml": r"f90nml", "lm_eval": r"lm_eval"}
NOT_BROUGHT = ("wandb", "lm_eval")  # by install_dependencies.sh: large

# ---------------------------------------------------------------------------------------------------------------------


def environment_in(folder, scratch):
    environment = schedulers.install(folder, scratch / "scheduler.log")
    stand_ins = dict(python3=f'exec "{python}" "$@"',  # the one that has the packages
                     mpirun='exec "$NANOTRON_MPIEXEC" "$@"',  # of the MPI that the programs were built with
                     lfs='echo "lfs $*"')
    for script in (root / "tools").glob("nanotron_*.py"):  # the commands of an installation by pip
        stand_ins[script.stem.replace("_", "-")] = f'exec "{python}" "{scratch}/tools/{script.name}" "$@"'
    for name, line in stand_ins.items():
        (folder / name).write_text(f"#!/bin/bash\n{line}\n")
        (folder / name).chmod(0o755)
    return environment


def is_command(line, scratch, path):
    word = line.split()[0]
    if "/" in word:
        return (scratch / word).is_file() or word in ELSEWHERE
    return word in BUILTINS or shutil.which(word, path=path) is not None


def run(text, where, scratch, environment):
    begin = time.time()
    code, said = call("bash", "-e", "-o", "pipefail", "-c", text, cwd=scratch, environment=environment, seconds=400)
    check(code == 0, f"{where}: {text}\nends with 0, not {code}", said)
    print(f"{where}: {time.time() - begin:5.1f} s  {text.splitlines()[0]}", flush=True)


def leave_out(package, what):
    (left_out if package in NOT_BROUGHT else lacking)(f"Python has no {package}: {what}")


def run_document(document, scratch, environment, missing, used):
    for number, language, lines in blocks_of(document):
        where = f"{document}:{number}"
        absent = [name for name in missing if re.search(NEEDS[name], "\n".join(lines))]
        if language == "python" and absent:
            leave_out(absent[0], where)
            continue
        if language == "python":
            (scratch / "block.py").write_text("\n".join(lines))
            run(f"python3 block.py   # {lines[-1].strip()}", where, scratch, environment)
            continue
        if lines[0] == "&run" and "&model" in lines:
            (scratch / "shown.deck").write_text("\n".join(lines))
            run("build/release/bin/nanotron_hpc --check --set data.path=runs/quickstart/tokens.h5 shown.deck", where,
                scratch, environment)
            continue
        if lines[0] not in ELSEWHERE and not is_command(lines[0], scratch, environment["PATH"]):
            check(any(re.match(pattern, lines[0]) for pattern in TEXT),
                  f"{where}: '{lines[0]}' is neither a command that is there nor text that this test knows")
            continue
        for command in commands_of(lines):
            key = plain(command)
            if key in ELSEWHERE:
                used.add(key)
                continue
            absent = [name for name in missing if re.search(NEEDS[name], key)]
            if key in BEFORE:
                used.add(key)
                BEFORE[key](scratch)
            if absent:
                leave_out(absent[0], f"{where}: {key}")
                continue
            run(command, where, scratch, environment)
            if key in AFTER:
                used.add(key)
                AFTER[key](scratch)


def main():
    missing = [name for name in NEEDS
               if subprocess.run([python, "-c", f"import {name}"], stderr=subprocess.DEVNULL).returncode != 0]
    with tempfile.TemporaryDirectory(prefix="nanotron_documents_") as name:
        scratch, used = Path(name) / "repository", set()
        scratch.mkdir()
        copy_repository(scratch)
        prepare(scratch, "tokenizers" not in missing)
        environment = environment_in(Path(name) / "stand_ins", scratch)
        for document in DOCUMENTS:
            run_document(document, scratch, environment, missing, used)
        unused = (set(ELSEWHERE) | set(BEFORE) | set(AFTER)) - used
        check(not unused, f"no exception is out of date: {sorted(unused)}")
    print("documented commands: passed")


main()
