#!/usr/bin/env python3
# timeout: 200
"""nanotron_bench --only kernels has rows for what a model has: each beside the rate of a copy or of a GEMM.

    test_bench_kernels.py <folder of the programs>
"""
import json
import tempfile
from pathlib import Path

from runs import check, expect, program, root

bench = Path(program).parent / "nanotron_bench"
SMALL = {"model.hidden_size": 64, "model.num_hidden_layers": 2, "model.intermediate_size": 96, "model.vocab_size": 131,
         "model.num_attention_heads": 4, "model.num_key_value_heads": 4, "model.head_dim": 16, "data.sequence_length": 64,
         "data.micro_batch_size": 1, "data.global_batch_size": 1, "data.path": "none"}
ROTARY = "rotary_forward, q and k"


def rows_of(folder, **keys):
    """Name of a kernel -> its row."""
    file = folder / "bench.json"
    assignments = SMALL | {key.replace("__", "."): value for key, value in keys.items()}
    words = [word for key, value in assignments.items() for word in ("--set", f"{key}={value}")]
    expect(bench, "--only", "kernels", "--types", "fp32", "--seconds", 0.002, "--json", file, "--deck",
           root / "input/llama_30m.deck", *words, says=["Kernels of rank 0 in fp32"])
    rows = {row["kernel"]: row for row in json.loads(file.read_text())["kernels_fp32"]}
    for name, row in rows.items():
        check((row.get("gbs") or 0) > 0 and row["copy_gbs"] > 0 or (row.get("gflops") or 0) > 0 and row["gemm_gflops"] > 0,
              f"{name} has a rate and a ceiling", str(row))
    return rows


with tempfile.TemporaryDirectory(prefix="nanotron_bench_") as name:
    folder = Path(name)
    plain = rows_of(folder)
    check({ROTARY, "swiglu_forward", "swiglu_backward", "attention_forward"} <= plain.keys(), "a Llama", str(list(plain)))
    part = rows_of(folder, model__partial_rotary_factor=0.25, model__hidden_act="xielu", model__final_logit_softcapping=30)
    check({"xielu_forward", "xielu_backward", "cap_logits"} <= part.keys() and "swiglu_forward" not in part,
          "xIELU and capped logits", str(list(part)))
    check(abs(part[ROTARY]["megabytes"] * 4 - plain[ROTARY]["megabytes"]) < 1e-9, "a quarter of each head is rotated",
          f"{part[ROTARY]} {plain[ROTARY]}")
    sinks = rows_of(folder, model__attention_sinks="true", model__hidden_act="geglu")
    check({"attention_sinks", "attention_sinks_backward", "geglu_forward", "geglu_backward"} <= sinks.keys(), "sinks and GEGLU",
          str(list(sinks)))
    check(ROTARY not in rows_of(folder, model__position_embedding_type="alibi", model__attn_logit_softcapping=20),
          "ALiBi rotates nothing")
    deepseek = rows_of(folder, model__kv_lora_rank=16, model__qk_nope_head_dim=8, model__qk_rope_head_dim=8,
                       model__v_head_dim=8, model__head_dim=0, moe__num_experts=8, moe__router_score="sigmoid",
                       moe__n_group=4, moe__topk_group=2, moe__router_aux_loss_coef=0)
    check({"latent_forward", "latent_backward", "latent_rope_backward", "route_forward", "route_backward"} <= deepseek.keys()
          and ROTARY not in deepseek, "latent attention and routing", str(list(deepseek)))
print("bench_kernels: passed")
