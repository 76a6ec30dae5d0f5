#!/usr/bin/env python3
"""Makes the golden values of fine-tuning with adapters: PEFT on transformers' Llama, in float64 on a CPU.

    python3 tests/golden/make_lora_golden.py

Needs torch, transformers, peft, numpy, h5py (only to make the values). It trains the case `llama` of make_golden.py, whose
weights, tokens and hyperparameters are these, and writes
    lora/adapter/           the initial adapters, as PEFT saves them
    lora/step_00000000/     the same as a checkpoint, by nanotron-convert from-peft
    lora/golden.json        losses and gradient norms of 10 steps, the adapters after them
As in make_family_golden.py, float32 means float64 while the model runs.
"""

import os
import sys
from pathlib import Path

import h5py
import numpy as np
import peft
import torch
import transformers

import compact_json
import make_golden as golden
from make_family_golden import everything_in

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT / "tools"))
from nanotron_tools import adapters  # noqa: E402

STEPS, RANK, ALPHA = 10, 3, 5
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
FOLDER, BASE = Path("tests/golden/lora"), Path("tests/golden/llama/step_00000000")


def base_case():
    """Sizes, weights and tokens, as they are stored."""
    with golden.checkpoint_file.open_checkpoint(BASE) as file:
        sizes = golden.checkpoint_file.ModelSizes.from_attributes(file["parameters"])
        weights = {name: file["parameters/" + name][()] for name in sizes.parameter_shapes()}
    with h5py.File(BASE.parent / "tokens.h5") as file:
        return sizes, weights, file["tokens"][()].astype(np.int64)


def base_model(sizes, weights):
    config = transformers.LlamaConfig(
        hidden_size=sizes.hidden_size, num_hidden_layers=sizes.num_hidden_layers, vocab_size=sizes.vocab_size,
        num_attention_heads=sizes.num_attention_heads, num_key_value_heads=sizes.num_key_value_heads,
        head_dim=sizes.head_dim, intermediate_size=sizes.intermediate_size, rms_norm_eps=sizes.rms_norm_eps,
        rope_parameters={"rope_type": "default", "rope_theta": sizes.rope_theta}, tie_word_embeddings=False,
        attn_implementation="eager", pad_token_id=None, bos_token_id=None, eos_token_id=None)
    model = transformers.LlamaForCausalLM(config).to(torch.float64).eval()
    state = {full: torch.from_numpy(value[index].copy()).double() for name, value in weights.items()
             for full, index in golden.checkpoint_file.hugging_face_tensors(name, value.shape)}
    model.load_state_dict(state)
    return model


def with_adapters(model, seed):
    torch.manual_seed(seed)
    return peft.get_peft_model(model, peft.LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=TARGETS, lora_dropout=0.0,
                                                      task_type="CAUSAL_LM"))


def stacked(model):
    """Dataset name -> (layers, rows, columns), of the adapters."""
    found = {}
    for name, parameter in model.named_parameters():
        if match := adapters.PEFT_NAME.fullmatch(name.replace(".default.", ".")):
            key = f"model/layers/{match[3].replace('.', '/')}/{match[4]}/weight"
            found.setdefault(key, []).append(parameter.detach().double().numpy())
    return {name: np.stack(layers) for name, layers in found.items()}


def train(model, tokens):
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = golden.adamw(trained)
    losses, norms = [], []
    for step in range(STEPS):
        inputs, targets = golden.batch(tokens, step)
        optimizer.zero_grad()
        loss = golden.loss_of(model(input_ids=inputs).logits, targets)
        loss.backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(trained, golden.CLIP, foreach=False)))
        for group in optimizer.param_groups:
            group["lr"] = golden.learning_rate(step)
        optimizer.step()
        losses.append(float(loss.detach()))
    return {"losses": losses, "grad_norms": norms, "parameters": golden.summary(stacked(model))}


def main():
    os.chdir(ROOT)
    sizes, weights, tokens = base_case()
    with everything_in(torch.float64):
        model = with_adapters(base_model(sizes, weights), 3)
        model.save_pretrained(FOLDER / "adapter")
        (FOLDER / "adapter/README.md").unlink(missing_ok=True)
        values = train(model, tokens)
    group = adapters.from_peft(FOLDER / "adapter", BASE, FOLDER, 1234)
    (FOLDER / "lora.nml").unlink()
    compact_json.write(FOLDER / "golden.json", {
        "case": BASE.parent.name,
        "made_with": f"torch {torch.__version__}, transformers {transformers.__version__}, peft {peft.__version__}",
        "rank": RANK, "alpha": ALPHA, "fp64": values})
    print(group, values["losses"])


if __name__ == "__main__":
    main()
