#!/usr/bin/env python3
# timeout: 60
"""How far an idea reaches: the files of src and include that name it in their code, outside of the files that are named after it.

    test_seams.py [<folder of the programs>] [--root <source tree>] [--list IDEA]

The bounds are measured. A new reader of an idea makes the test fail: think of an interface, a row of a table or a neutral value
instead. The test first plants a file.
"""
import argparse
import re
import sys
from pathlib import Path

# Idea: words in code, words in paths of its own files, most files of others.
IDEAS = {
    "experts": (r"expert|router|\bmoe|_moe|moe_", r"moe|expert|router|message_nodes", 43),
    "dense and routed layers": (r"routed_layer|two_networks", r"moe|expert|router|layer_kinds", 4),
    "balance by a bias": (r"choice_?bias|e_score_correction|balance_bias", r"moe|expert|router|routing", 0),
    "biases of experts": (r"expert_?bias", r"moe|expert", 0),
    # The key, the grid, what a model and its parameters are built from and where that is filled in; checks.
    "whole experts over tp": (r"ep_spans_tp|tp_in_ep|expert_tp", r"moe|expert", 16),
    "halves in turns": (r"ep_overlap|halves_?in_?turns", r"halves|micro_batch|moe", 4),
    "form of rows that travel": (r"row_?type|wire_|expert_rows_?type", r"wire_rows|moe|expert_exchange", 4),
    "messages by node": (r"ep_messages|ExpertMessages|node_rows|node_exchange", r"node_rows|message_nodes|node_exchange|moe", 5),
    "rows received again": (r"recompute_?dispatch", r"moe", 4),
    "FP8": (r"fp8|e4m3|e5m2|quantis", r"fp8|quantis|wire_rows", 15),
    # The deck's member and row, what a model is built from and where that is filled in.
    "scales of FP8 blocks": (r"fp8_?scales", r"fp8", 4),
    "Adasum": (r"adasum", r"adasum", 4),
    "PowerSGD": (r"power_?sgd|\blow_?rank", r"power_sgd|low_rank", 4),
    "zero bubble": (r"zero_?bubble|zero bubble", r"zero_bubble", 8),
    "muP": (r"\bmup|_mup|parametri[sz]ation", r"parametri|mup", 6),
    "Muon": (r"muon", r"muon", 6),
    # The key, its place in the arena, the bytes that kernels count, the measured model that has none of it, and the
    # optimizers that take their states there.
    "activations on the host": (r"offload|host_activations", r"offload", 15),
    # The deck's member and row, what a model is built from and where that is filled in; the check of two FP8 and expert
    # keys, and the form of backward that a layer asks for.
    "length buckets": (r"length_?buckets|ring_?reach|finds_reach", r"length_buckets|ring_|order/documents", 11),
    "quantile of received rows": (r"receive_?quantile|received_?load|ReceivedRows", r"received_rows|moe|expert|router", 4),
    "tiles of the network": (r"mlp_?tile|in_tiles|tiled_|backward_tiles", r"tiled_|mlp/feed_forward|layer_blocks|feed_forward_parts", 11),
    # The interface of optimizers and those that have parts; the state, its schedules and their plan.
    "update beside forward": (r"RestOfUpdate|continue_update|finish_update|beside_forward|begin_backward", r"host_states|unit_weights", 18),
    "states on the host": (r"state_?memory|host_optimizer|memory_of_states", r"host_states", 18),
    # The deck's enumerator and rows, and the table of optimizers.
    "AdEMAMix": (r"ademamix|\bbeta3|alpha_warmup", r"ademamix", 3),
    "Lion": (r"\blion\b|LionRule", r"lion", 3),
    "Sophia": (r"sophia|\brho\b|hessian", r"sophia", 4),
    # The deck's members and rows, the table of optimizers, the check of adapters.
    "SOAP": (r"\bsoap|precondition", r"soap", 4),
    "states with own tensors": (r"own_tensors|ranges_of\(check|\.part_of\(owned|moment\.tensors\(", r"moment\.hpp|matrix_state", 4),
    "drawn labels": (r"_curvature|draws_targets|LabelDraw|DrawnTargets", r"drawn_labels|sophia|vocab_loss", 4),
    "schedule-free": (r"schedule_?free", r"schedule_free", 2),
    "QK-clip": (r"qk_?clip", r"qk_clip|score_maxima", 3),
    # Pointers from the state to the kernels of attention; the report, the plan.
    "largest scores": (r"score_?maxima|scores\.maxima", r"score_maxima|score_map|qk_clip", 12),
    "weights to use": (r"are_weights|load_weights|take_weights|weights_to_use|WeightsFor", r"schedule_free", 6),
    "layer patterns": (r"window_layers|rope_layers|rope_local|local_theta", r"layer_kinds|layer_set", 4),
    "norm placement": (r"norm_?placement|sandwich|pre_feedforward", r"norm|layer_layout", 2),
    "parallel residual": (r"parallel_?residual|parallel_layer|shares_input|is_parallel\b", r"parallel_layer|layer_layout", 4),
    "norms of 1 + w": (r"one_?plus|adds_one", r"norm", 4),
    "xIELU": (r"xielu", r"xielu", 5),
    "clamped SwiGLU": (r"clamped", r"gated", 4),
    "attention sinks": (r"attention_sinks|make_sinks|\"[^\"]*sinks\"", r"sinks", 4),
    "soft cap of scores": (r"attn_logit_softcapping|(?<!final_logit_)soft_?cap", r"score_map|softcap", 2),
    "ALiBi": (r"alibi", r"score_map|head_scores", 3),
    "LongRoPE": (r"long_?rope", r"rotary|rotation|position_checks", 2),
    "partial rotary": (r"partial_rotary|rope_interleaved|rotated_width", r"rotary|rotation|position_checks", 4),
    "QK norm of the projection": (r"qk_norm_over|QkNormOver|projection_norm", r"query_key_norm|projection_norm", 3),
    "bf16 gradients": (r"compression::bf16|bf16_reducer|bf16_shard_sum|make_bf16|check_bf16|add_rounded", r"bf16_", 4),
    "list files": (r"list_?files|\blists?_in\b|expand_lists|ListTexts|read_lists", r"list_files", 4),
    "long lists": (r"is_long_list|stays_open|open_files|OpenFiles|TokenHead", r"open_files|token_head|token_file", 4),
    "latent attention": (r"latent|lora_rank|qk_nope|qk_rope|v_head_dim", r"latent", 4),
    "embedding norm": (r"embedding_norm|embed_norm", r"embedding", 3),
    "embedding multiplier": (r"embedding_multiplier", r"embedding", 2),
    "soft cap of logits": (r"final_logit|cap_logits", r"cross_entropy|vocab_loss", 3),
    "logits scaling": (r"logits_scaling", r"vocab_loss", 2),
    "bias of the head": (r"lm_head_bias|lm_head/bias", r"vocab_loss", 4),
    "z loss": (r"(?<!moe_)(?<!router_)z_loss|lse2|z_coefficient", r"cross_entropy|vocab_loss|z_loss", 4),
    "weight decay by name": (r"no_weight_decay|with_weight_decay", r"weight_decay", 4),
    "layers that recompute": (r"recompute_layers", r"recompute", 4),
    "residual multiplier": (r"residual_multiplier", r"residual", 4),
    "LoRA": (r"(?<!kv_)(?<!q_)lora(?!_rank)|\badapt(er|ed)", r"lora|adapter|base_weights", 19),
    "frozen parameters": (r"frozen(?!=)", r"frozen|base_weights|adapter|lora", 12),
    "dropout": (r"hidden_dropout|attention_dropout", r"dropout", 4),
    "average of the weights": (r"ema_decay|weight_?average|\baverage\.", r"weight_average", 4),
    "later tokens": (r"nextn|mtp|multi_?token", r"later_tokens", 5),
    # The deck's group in four files, a kind of sequences in three, what the state and the loop hold.
    "training on pairs": (r"\.preference\b|PreferenceConfig|preference_rows|check_preference|PairLoss|pair_traffic|"
                          r"SequenceKind::pairs|\.pairs\b|reward", r"preference|pair|reward", 15),
    "goldfish loss": (r"goldfish", r"goldfish", 4),
}
COMMENT = re.compile(r"//.*")
STRING = re.compile(r'"[^"\n]*"')
# A table of the keys that other programs' models have: it reads no idea, and names keys in strings.
KEYS_OF_OTHERS = "src/model/architectures.cpp"


def code_of(path, text):
    text = COMMENT.sub("", text)
    return STRING.sub("", text) if path == KEYS_OF_OTHERS else text


def readers(sources, words, own):
    """Paths of the sources {path: text} that are not the idea's own and name it."""
    return sorted(path for path, text in sources.items()
                  if not re.search(own, path) and re.search(words, code_of(path, text), re.I))


def self_test():
    words, own, _ = IDEAS["Muon"]
    sources = {"src/optim/muon.cpp": "Muon muon;", "src/a.cpp": "int a;  // as Muon has it", "src/b.cpp": "make_muon();",
               KEYS_OF_OTHERS: '"muon=*"'}
    found = readers(sources, words, own)
    return [] if found == ["src/b.cpp"] else [f"self-test: {found}"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("programs", nargs="?")
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parents[2])
    parser.add_argument("--list", choices=IDEAS, help="print the files of others that name this idea")
    options = parser.parse_args()
    sources = {str(path.relative_to(options.root)): path.read_text(encoding="utf-8") for folder in ("src", "include")
               for path in (options.root / folder).rglob("*.[ch]pp")}
    problems, counts = self_test(), []
    for idea, (words, own, most) in IDEAS.items():
        found = readers(sources, words, own)
        counts.append(f"{idea} {len(found)}")
        if options.list == idea:
            print("\n".join(found))
        if len(found) > most:
            problems.append(f"{idea}: {len(found)} files of others name it, at most {most}: {' '.join(found)}")
    print("\n".join(problems) if problems else "files of others: " + ", ".join(counts))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
