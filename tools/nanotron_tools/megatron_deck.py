"""The deck with which a run of Megatron-LM continues here, of its arguments, and what of them has no counterpart.

Schedules are those of megatron/core/optimizer_param_scheduler.py (core 0.20).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .taken_over import Left, deck_text

KINDS = {"constant": "constant", "linear": "linear", "cosine": "cosine", "inverse-square-root": "inverse-sqrt",
         "WSD": "wsd"}
SHAPES = {"linear": "linear", "cosine": "cosine", "minus_sqrt": "1-sqrt"}


def _steps(args: Mapping[str, Any], name: str, batch: int) -> int | None:
    """--<name>-iters, or --<name>-samples in steps."""
    if args.get(f"{name}_iters"):
        return int(args[f"{name}_iters"])
    samples = args.get(f"{name}_samples")
    return round(samples / batch) if samples else None


def schedule_of(args: Mapping[str, Any], step: int, left: Left) -> tuple[int, dict[str, Any]]:
    """run%steps and &schedule."""
    batch = int(args.get("global_batch_size") or 1)
    steps = _steps(args, "train", batch) or step
    decay = _steps(args, "lr_decay", batch) or steps
    warmup = _steps(args, "lr_warmup", batch) or 0
    if args.get("lr_warmup_fraction") is not None:
        warmup = round(float(args["lr_warmup_fraction"]) * decay)
    style = str(args.get("lr_decay_style", "linear"))
    kind = KINDS.get(style)
    if kind is None:
        left.say(f"--lr-decay-style {style}", "no schedule here has this form; the deck says 'constant'")
        kind = "constant"
    lowest = float(args.get("min_lr") or 0.0) / float(args.get("lr") or 1.0)
    found: dict[str, Any] = {"kind": kind, "warmup_steps": warmup, "min_lr_ratio": lowest}
    if kind in ("linear", "cosine"):
        found["decay_steps"] = max(1, decay - warmup)
    if kind == "wsd":
        form = str(args.get("lr_wsd_decay_style", "exponential"))
        if form not in SHAPES:
            left.say(f"--lr-wsd-decay-style {form}", "no decay here has this form; the deck says 'linear'")
        found |= {"decay_steps": _steps(args, "lr_wsd_decay", batch) or 1, "decay_shape": SHAPES.get(form, "linear")}
        if decay != steps:
            left.say("--train-iters", f"the decay of 'wsd' ends with the run here, so run%steps is {decay}, of "
                     "--lr-decay-iters")
            steps = decay
    if kind == "inverse-sqrt":
        left.say("inverse-square-root", "its rate at a step is that of the next step here, and --min-lr has no effect")
    if warmup > step:
        left.say("the rest of the warm-up", "it begins at 0 in Megatron-LM and at the peak / warmup_steps here: each "
                 "step has the rate of the next one")
    if args.get("lr_decay_samples") or args.get("train_samples"):
        left.say("counts in samples", "the deck has them in steps of --global-batch-size")
    return max(steps, step), found


def note_differences(args: Mapping[str, Any], left: Left) -> None:
    """What trains otherwise here."""
    if args.get("start_weight_decay") != args.get("end_weight_decay"):
        left.say("--weight-decay-incr-style", "weight decay is constant here, at --end-weight-decay")
    if args.get("decoupled_lr"):
        left.say(f"--decoupled-lr {args['decoupled_lr']}", "embedding and output have the common rate here")
    if args.get("fp16"):
        left.say("--fp16 and its loss scale", "the deck says bf16")
    for name in ("eod_mask_loss", "reset_position_ids", "reset_attention_mask", "fp8", "fp4"):
        if args.get(name):
            left.say(f"--{name.replace('_', '-')}", "see data%document_mask and precision%compute for what is here")
    if args.get("apply_wd_to_qk_layernorm"):
        left.say("--apply-wd-to-qk-layernorm", "add optimizer%no_weight_decay = '!*q_norm* !*k_norm*'")
    if args.get("rampup_batch_size"):
        left.say(f"--rampup-batch-size {args['rampup_batch_size']}",
                 "the deck has the full batch; data%rampup_* set a ramp")
    left.say("the order of the data", "nanotron-import reads its files, and data%shuffle draws another order: samples "
             "that the run has seen may be repeated in the epoch")
    left.say("random states of the ranks", "dropout masks and shuffles are drawn from run%seed here")


def deck_of(args: Mapping[str, Any], model: Mapping[str, Any], step: int, folder: str, tokens: str, left: Left) -> str:
    steps, schedule = schedule_of(args, step, left)
    note_differences(args, left)
    if args.get("optimizer", "adam") != "adam":
        left.say(f"--optimizer {args['optimizer']}", "the deck says 'adamw'")
    groups: dict[str, dict[str, Any]] = {
        "run": {"title": "continued from Megatron-LM", "steps": steps, "seed": args.get("seed", 1234),
                "output_dir": f"{folder}/run"},
        "model": dict(model) | {name: float(args[name]) for name in ("hidden_dropout", "attention_dropout")
                                if args.get(name)},
        "optimizer": {"name": "adamw", "learning_rate": float(args.get("lr") or 3e-4),
                      "beta1": float(args.get("adam_beta1", 0.9)), "beta2": float(args.get("adam_beta2", 0.999)),
                      "eps": float(args.get("adam_eps", 1e-8)),
                      "weight_decay": float(args.get("end_weight_decay") or args.get("weight_decay") or 0.0),
                      "clip_grad_norm": float(args.get("clip_grad") or 0.0)},
        "schedule": schedule,
        "data": {"path": tokens, "sequence_length": int(args.get("seq_length") or 1),
                 "global_batch_size": int(args.get("global_batch_size") or 1),
                 "micro_batch_size": int(args.get("micro_batch_size") or 1)},
        "precision": {"compute": "bf16" if args.get("bf16") or args.get("fp16") else "fp32"},
        "checkpoint": {"directory": folder}}
    return deck_text(groups, ["Continues a run of Megatron-LM: nanotron_hpc <this file>"])
