# ranks: 2
# What needs no GPU in a build for GPUs, and what the programs say where they need one. The emulation ends a program that
# calls CUDA without a GPU, by the function's name.
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "integration"))
from runs import Case, check, program, root  # noqa: E402
import subprocess  # noqa: E402

os.environ["NANOTRON_EMULATED_GPUS"] = "0"


def run(*command):
    done = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=root)
    return done.returncode, done.stdout


for option in ("--version", "--help", "--build-info", "--print-defaults", "--parameters-markdown", "--parameters-man", "--man"):
    status, text = run(program, option)
    check(status == 0, option, text)

decks = sorted((root / "input").glob("*.deck"))
check(len(decks) > 5, "no decks")
for deck in decks:
    for option in ("--check", "--plan"):
        status, text = run(program, option, "--set", "model.vocab_size=1024", str(deck))
        check(status == 0, f"{option} {deck.name}", text)

with Case("without_gpu") as case:
    status, text = case.run()
    check(status == 71 and text.count("no GPU for this rank") == 1 and "where:    rank 0" in text,
          "a run without a GPU", text)
    check(not case.out.exists(), "a run without a GPU made its folder", text)
