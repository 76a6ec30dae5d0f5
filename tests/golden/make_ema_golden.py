#!/usr/bin/env python3
"""Makes ema.json: the runs of make_golden.py in float64, with an exponential moving average of the weights beside them.

    python3 tests/golden/make_ema_golden.py

Needs torch, numpy, h5py. The average is torch.optim.swa_utils.AveragedModel with get_ema_multi_avg_fn(DECAY). It is
given the initial weights first, which it copies, then the weights after each update. Keys of the file, by case: sum and
L2 norm of every stacked tensor of the average after the last step.
"""

import copy

import torch
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import compact_json
import make_golden as golden

CASES = ("llama", "qwen2", "qwen3", "mixtral")
DECAY = 0.8


def average_of(case):
    sizes, made = golden.CASES[case], {}
    build, adamw = golden.build, golden.adamw

    def build_with_average(*arguments):
        made["model"] = build(*arguments)
        made["average"] = AveragedModel(made["model"], multi_avg_fn=get_ema_multi_avg_fn(DECAY))
        made["average"].update_parameters(made["model"])
        return made["model"]

    def adamw_with_average(*arguments):
        optimizer = adamw(*arguments)
        optimizer.register_step_post_hook(lambda *_: made["average"].update_parameters(made["model"]))
        return optimizer

    golden.build, golden.adamw = build_with_average, adamw_with_average
    try:
        weights = golden.initial_weights(sizes, golden.SEEDS[case])
        golden.train(sizes, copy.deepcopy(weights), golden.make_tokens(sizes.vocab_size, golden.SEEDS[case]), torch.float64)
    finally:
        golden.build, golden.adamw = build, adamw
    return golden.summary(golden.stacked(sizes, dict(made["average"].module.named_parameters())))


def main():
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    compact_json.write(golden.HERE / "ema.json", {
        "torch": torch.__version__, "ema_decay": DECAY, "fp64": {case: average_of(case) for case in CASES}})


if __name__ == "__main__":
    main()
