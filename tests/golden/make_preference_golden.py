#!/usr/bin/env python3
"""Makes the golden values of training on pairs (DPO): TRL's DPOTrainer on transformers' Llama, in float64 on a CPU.

    python3 tests/golden/make_preference_golden.py

Needs torch, transformers, trl, peft, datasets, numpy, h5py (only to make the values). All weights of the case `llama` of
make_golden.py are trained, then the adapters of make_lora_golden.py. Writes
    preference/pairs.jsonl, tokenizer.json    texts of words
    preference/pairs.h5                       the same, by nanotron-pairs; its tokens are compared with TRL's
    preference/golden.json                    of 10 steps losses, gradient norms and rewards as TRL logs them; the parameters
                                              after them
As in make_family_golden.py, float32 means float64 while the model runs.
"""

import copy
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import datasets
import h5py
import numpy as np
import peft
import tokenizers
import torch
import transformers
import trl

import compact_json
import make_golden as golden
import make_lora_golden as lora
from make_family_golden import everything_in

STEPS, PAIRS, BATCH, BETA, MAX_LENGTH = 10, 20, 4, 0.5, 13
FOLDER = Path("tests/golden/preference")
METRICS = {"rewards_chosen": "rewards/chosen", "rewards_rejected": "rewards/rejected",
           "rewards_accuracy": "rewards/accuracies", "rewards_margin": "rewards/margins"}


def write_texts():
    """Words of a vocabulary of 131, in pairs of which TRL shortens some and leaves none out."""
    rng = np.random.default_rng(5)
    words = [f"w{i}" for i in range(129)]

    def text(low, high):
        return " ".join(rng.choice(words, rng.integers(low, high)))

    rows = [{"prompt": text(2, 6), "chosen": " " + text(1, 10), "rejected": " " + text(1, 10)} for _ in range(PAIRS)]
    (FOLDER / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    vocabulary = {word: i for i, word in enumerate([*words, "<unk>", "</s>"])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(["<unk>", "</s>"])
    tokenizer.save(str(FOLDER / "tokenizer.json"))
    subprocess.run([sys.executable, "tools/nanotron_pairs.py", FOLDER / "pairs.jsonl", "--tokenizer",
                    FOLDER / "tokenizer.json", "--max-length", str(MAX_LENGTH), "-o", FOLDER / "pairs.h5"], check=True)
    return rows


class Trainer(trl.DPOTrainer):
    """In the order of the file, with the losses in all digits."""

    def _get_train_sampler(self, *args, **kwargs):
        return torch.utils.data.SequentialSampler(self.train_dataset)

    def _compute_loss(self, model, inputs, return_outputs):
        loss = super()._compute_loss(model, inputs, return_outputs)
        self.seen.append((float(loss.detach()), inputs))
        return loss


def compare_tokens(batches):
    """TRL's batches with the file, pair by pair."""
    with h5py.File(FOLDER / "pairs.h5") as file:
        tokens, mask, begins = (file[name][()] for name in ("tokens", "loss_mask", "documents"))
    ends = [*begins[1:], len(tokens)]
    for step, inputs in enumerate(batches):
        for i in range(BATCH):
            for answer in range(2):
                row, document = i + answer * BATCH, 2 * ((step * BATCH + i) % PAIRS) + answer
                here = slice(int(begins[document]), int(ends[document]))
                real = inputs["attention_mask"][row].bool()
                assert inputs["input_ids"][row][real].tolist() == tokens[here].tolist(), (step, i, answer)
                assert inputs["completion_mask"][row][real].tolist() == mask[here].tolist(), (step, i, answer)


def train(model, ref_model, rows, parameters):
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = golden.adamw(trained)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: golden.learning_rate(step) / golden.LEARNING_RATE)
    with tempfile.TemporaryDirectory() as folder:
        options = trl.DPOConfig(
            folder, beta=BETA, max_length=MAX_LENGTH, per_device_train_batch_size=BATCH, max_steps=STEPS, logging_steps=1,
            max_grad_norm=golden.CLIP, use_cpu=True, report_to=[], save_strategy="no", gradient_checkpointing=False,
            bf16=False, fp16=False, disable_tqdm=True, dataloader_pin_memory=False)
        tokenizer = transformers.PreTrainedTokenizerFast(
            tokenizer_file=str(FOLDER / "tokenizer.json"), eos_token="</s>", pad_token="</s>", unk_token="<unk>")
        trainer = Trainer(model, ref_model, options, train_dataset=datasets.Dataset.from_list(rows),
                          processing_class=tokenizer, optimizers=(optimizer, schedule))
        trainer.seen = []
        trainer.train()
    compare_tokens([inputs for _, inputs in trainer.seen])
    logs = [row for row in trainer.state.log_history if "grad_norm" in row]
    assert len(trainer.seen) == len(logs) == STEPS
    return {"losses": [loss for loss, _ in trainer.seen], "grad_norms": [float(row["grad_norm"]) for row in logs],
            **{name: [float(row[key]) for row in logs] for name, key in METRICS.items()},
            "parameters": golden.summary(parameters(model))}


def stacked(model):
    """Dataset name -> all layers, of all parameters."""
    found = {}
    for name, parameter in model.named_parameters():
        layer = name.split(".")[2] if name.startswith("model.layers.") else None
        key = (name.replace(f"layers.{layer}.", "layers.") if layer else name).replace(".", "/")
        found.setdefault(key, []).append(parameter.detach().double().numpy())
    return {name: np.stack(values) if name.startswith("model/layers/") else values[0] for name, values in found.items()}


def main():
    os.chdir(lora.ROOT)
    FOLDER.mkdir(exist_ok=True)
    rows = write_texts()
    sizes, weights, _ = lora.base_case()
    with everything_in(torch.float64):
        model = lora.base_model(sizes, weights)
        whole = train(model, copy.deepcopy(model), rows, stacked)
        adapted = peft.PeftModel.from_pretrained(lora.base_model(sizes, weights), lora.FOLDER / "adapter",
                                                 is_trainable=True)
        adapters = train(adapted, None, rows, lambda model: {
            name: value for name, value in lora.stacked(model).items()})
    compact_json.write(FOLDER / "golden.json", {
        "case": lora.BASE.parent.name,
        "made_with": f"torch {torch.__version__}, transformers {transformers.__version__}, trl {trl.__version__}, "
                     f"peft {peft.__version__}",
        "beta": BETA, "batch": BATCH, "pairs": PAIRS, "whole": whole, "adapters": adapters})
    print(whole["losses"], adapters["losses"])


if __name__ == "__main__":
    main()
