#!/usr/bin/env python3
# ranks: 2
# timeout: 120
"""What came with an imported model stays with its checkpoints, whatever folder a run writes them to.

    test_imported.py <folder of the programs>
"""
import json
import shutil
import sys

import h5py

from runs import Case, check, expect, root

GENERATION = {"temperature": 0.6, "eos_token_id": [6, 7], "top_k": 20}
CONFIG = {"max_position_embeddings": 4096, "bos_token_id": 5, "eos_token_id": [6, 7]}


def convert(*arguments):
    expect(sys.executable, root / "tools/nanotron_convert.py", *arguments)


def exported(checkpoints, target):
    convert("to-hf", checkpoints, target, "--overwrite")
    config, generation = (json.loads((target / name).read_text()) for name in ("config.json", "generation_config.json"))
    found = {key: config[key] for key in CONFIG}
    check(found == CONFIG, f"{checkpoints}: config.json keeps what the imported model said", found)
    check(GENERATION.items() <= generation.items(), f"{checkpoints}: and generation_config.json", generation)


def branches_off():
    with Case("imported", checkpoint="asynchronous = .true.") as case:
        source, target = case.folder / "hf", case.folder / "exported"
        convert("to-hf", root / "tests/golden/llama", source, "--max-positions", "128", "--eos-id", "none")
        config = json.loads((source / "config.json").read_text())
        (source / "config.json").write_text(json.dumps(config | CONFIG))
        (source / "generation_config.json").write_text(json.dumps(GENERATION))
        convert("from-hf", source, case.out / "checkpoints")
        theta = f"model.rope_theta={config['rope_theta']}", f"model.rms_norm_eps={config['rms_norm_eps']}"
        settings = [word for text in theta for word in ("--set", text)]
        code, text = case.run(*settings, "--set", "run.steps=5")
        check(code == 0 and "resumed from" in text, "a run continues from the import", text)
        exported(case.out, target)
        first = case.out / "checkpoints" / "step_00000005"
        branch = case.folder / "branch"
        code, text = case.run(*settings, "--set", f"run.output_dir={branch}", "--set", f"checkpoint.resume={first}",
                              "--set", "parallel.tp=1")
        check(code == 0 and "resumed from" in text, "a branch continues from it, on another grid", text)
        code, text = case.run(*settings, "--set", f"run.output_dir={branch}", "--set", "run.steps=12")
        check(code == 0 and "resumed from" in text, "and once more", text)
        shutil.rmtree(case.out)
        exported(branch, target)
        with h5py.File(branch / "checkpoints" / "step_00000012" / "checkpoint.h5") as file:
            check("hugging_face" in file, "it is in the checkpoint")


def others_have_nothing_of_it():
    with Case("begun") as case:
        code, text = case.run("--set", "run.steps=1")
        check(code == 0, "a run from random weights", text)
        with h5py.File(case.out / "checkpoints" / "step_00000001" / "checkpoint.h5") as file:
            check("hugging_face" not in file, "has no imported model")


for part in (branches_off, others_have_nothing_of_it):
    part()
    print(f"{part.__name__}: passed", flush=True)
