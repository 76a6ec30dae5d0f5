#!/usr/bin/env python3
# ranks: 4
# timeout: 400
"""nanotron_hpc --evaluate --choices: the log-likelihoods of a numpy reference in fp64, the same on every grid, packed or one
choice per sequence; bit by bit with reproducible = 'layout'."""
import json
import os
import re
import sys

import h5py
import numpy as np

from runs import Case, call, check, root

LENGTH, HEADS, KV_HEADS, EPS, THETA = 32, 4, 2, 1e-6, 1e4
SETS = ("model.vocab_size=257", "precision.compute=fp64", f"data.sequence_length={LENGTH}", f"model.rms_norm_eps={EPS}",
        f"model.rope_theta={THETA}")
EXPERTS = "/ &moe num_experts = 4 num_experts_per_tok = 2 moe_intermediate_size = 48"
TOKENS = root / "tests/golden/llama/tokens.h5"
python = os.environ.get("NANOTRON_PYTHON", sys.executable)
LINE = re.compile(r"choices: acc (\S+) \+- (\S+), acc_norm (\S+) \+- (\S+), acc_bytes (\S+) \+- (\S+), "
                  r"(\d+) questions, (\d+) choices")
QUESTIONS = [
    ("one and one", ["two", "three or four", "x"], 0),
    ("The wind blew so hard that nobody could hear what", ["anyone said.", "the"], 1),  # cut
    ("", ["begins with nothing", "an end"], 1),
    ("blanks at the end  ", ["a", "bb", "ccc", "dddd", "eeeee"], 3),
    ("Grüße", ["aus Zürich", "ÄÖÜ", "plain"], 2),
    ("short", ["exactly thirty-one tokens long", "y"], 0),
] + [(f"number {i} is", [str(i), str(i * i), "none of these"], i % 3) for i in range(9)]


# The model in plain numpy. Weights by their names in the checkpoint, stacked over layers.


def norm(x, weight):
    return weight * x / np.sqrt((x * x).mean(-1, keepdims=True) + EPS)


def rotated(x):
    """(length, heads, width)"""
    width = x.shape[-1]
    angle = np.arange(len(x))[:, None] * THETA ** -(np.arange(0, width, 2) / width)
    cos, sin = (np.concatenate((f(angle), f(angle)), -1)[:, None] for f in (np.cos, np.sin))
    return x * cos + np.concatenate((-x[..., width // 2:], x[..., :width // 2]), -1) * sin


def attention(w, x, layer):
    def heads(name):
        y = x @ w[f"self_attn/{name}_proj/weight"][layer].T
        return y.reshape(len(x), -1, w["self_attn/q_proj/weight"].shape[1] // HEADS)

    q, k, v = rotated(heads("q")), rotated(heads("k")), heads("v")
    k, v = (np.repeat(t, HEADS // KV_HEADS, axis=1) for t in (k, v))
    score = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(q.shape[-1])
    score[:, np.triu(np.ones(score.shape[1:], bool), 1)] = -np.inf
    weight = np.exp(score - score.max(-1, keepdims=True))
    weight /= weight.sum(-1, keepdims=True)
    return np.einsum("hqk,khd->qhd", weight, v).reshape(len(x), -1) @ w["self_attn/o_proj/weight"][layer].T


def mlp(w, x, layer):
    gate, up = (x @ w[f"mlp/{name}_proj/weight"][layer].T for name in ("gate", "up"))
    return (gate / (1 + np.exp(-gate)) * up) @ w["mlp/down_proj/weight"][layer].T


def log_likelihood(w, tokens, scored):
    """Of the last `scored` tokens; tokens: at most LENGTH + 1."""
    x = w["embed_tokens/weight"][tokens[:-1]]
    for layer in range(len(w["input_layernorm/weight"])):
        x = x + attention(w, norm(x, w["input_layernorm/weight"][layer]), layer)
        x = x + mlp(w, norm(x, w["post_attention_layernorm/weight"][layer]), layer)
    logits = norm(x, w["norm/weight"]) @ w["lm_head"].T
    top = logits.max(-1, keepdims=True)
    logs = logits - top - np.log(np.exp(logits - top).sum(-1, keepdims=True))
    return logs[np.arange(len(x)), tokens[1:]][-scored:].sum()


def weights_of(case):
    with h5py.File(case.out / "checkpoints/step_00000010/checkpoint.h5") as file:
        found = {}
        file["parameters"].visititems(lambda name, item: found.__setitem__(name, item[()])
                                      if isinstance(item, h5py.Dataset) else None)
    weights = {name.removeprefix("model/").removeprefix("layers/"): value for name, value in found.items()}
    weights["lm_head"] = found.get("lm_head/weight", found["model/embed_tokens/weight"])
    return weights


def reference(case):
    """Of each question, the log-likelihoods of its choices: bytes and their end of text (256) are the tokens."""
    w, all_scores = weights_of(case), []
    for context, choices, _ in QUESTIONS:
        scores = []
        for choice in choices:
            head = context.rstrip().encode()
            text = (context + " " + choice).encode()
            tokens = np.array(list(text) if head else [256, *text])
            scores.append(log_likelihood(w, tokens[-LENGTH - 1:], len(text) - len(head)))
        all_scores.append(scores)
    return all_scores


# ---------------------------------------------------------------------------------------------------------------------


def sets(*values):
    return [word for value in (*SETS, *values) for word in ("--set", value)]


def make_questions(case, name, questions):
    path = case.folder / f"{name}.jsonl"
    path.write_text("".join(json.dumps(dict(question=c, choices=list(x), answer=a)) + "\n" for c, x, a in questions))
    code, said = call(python, root / "tools/nanotron_choices.py", path, "-o", case.folder / f"{name}.h5")
    check(code == 0, "the questions are written", said)
    return case.folder / f"{name}.h5"


def evaluate(case, questions, *values, ranks):
    out = case.folder / "scores.jsonl"
    rc, output = case.run("--evaluate", "--choices", str(questions), "--results", str(out), *sets(*values), ranks=ranks)
    found = LINE.search(output)
    check(rc == 0 and found, f"{values} on {ranks} ranks", output)
    check(not out.with_name("scores.jsonl.tmp").exists(), "nothing is left over", output)
    text = out.read_text()
    return text, [json.loads(line) for line in text.splitlines()], [float(x) for x in found.groups()], output


def expect(found, wanted, tolerance, what):
    differences = [abs(a - b) for row, scores in zip(found, wanted, strict=True)
                   for a, b in zip(row["log_likelihoods"], scores, strict=True)]
    worst = np.max(differences)  # NaN where there is one, which max() passes over
    check(worst < tolerance, f"{what}: differs by {worst:.1e}, at most {tolerance:.0e}")
    return worst


def expect_accuracy(rows, figures):
    """The figures are what lm-evaluation-harness would compute from these log-likelihoods."""
    lengths = {"best": lambda c: 1, "best_norm": len, "best_bytes": lambda c: len(c.encode())}
    for i, (name, length) in enumerate(lengths.items()):
        right = []
        for row, (_, choices, answer) in zip(rows, QUESTIONS, strict=True):
            best = int(np.argmax([score / length(choice) for score, choice in zip(row["log_likelihoods"], choices, strict=True)]))
            check(row[name] == best and row["answer"] == answer, f"{name} of {row}")
            right.append(float(best == answer))
        check(abs(figures[2 * i] - np.mean(right)) < 6e-5, f"{name}: {figures} and {np.mean(right)}")
        error = np.std(right, ddof=1) / np.sqrt(len(right))
        check(abs(figures[2 * i + 1] - error) < 6e-5, f"error of {name}: {figures} and {error}")
    check(figures[6:] == [len(QUESTIONS), sum(len(c) for _, c, _ in QUESTIONS)], f"numbers of questions {figures}")


GRIDS = ((("parallel.tp=1", "parallel.dp=2"), 2), (("parallel.tp=2", "parallel.dp=2", "parallel.zero_stage=3"), 4),
         (("parallel.tp=1", "parallel.pp=2", "parallel.dp=2"), 4), (("parallel.tp=1", "parallel.cp=2", "parallel.dp=2"), 4),
         (("parallel.tp=2", "parallel.cp=2", "parallel.cp_mode=all_to_all", "parallel.tp_mode=reduce_scatter"), 4))
PACKED = "data.document_mask=block_diagonal"


def dense(case):
    rc, output = case.run(*sets())
    check(rc == 0, "the training finishes", output)
    file = make_questions(case, "questions", QUESTIONS)
    wanted = reference(case)
    text, rows, figures, output = evaluate(case, file, "parallel.tp=1", ranks=1)
    worst = expect(rows, wanted, 1e-11, "numpy")
    expect_accuracy(rows, figures)
    choices = sum(len(c) for _, c, _ in QUESTIONS)
    check(f"{choices} choices in {choices} sequences of {LENGTH} tokens" in output and "3 contexts truncated" in output,
          "one choice in a sequence; what was cut is told", output)
    for values, ranks in GRIDS:
        for packing in ((), (PACKED,)):
            _, found, _, output = evaluate(case, file, *values, *packing, ranks=ranks)
            worst = max(worst, expect(found, wanted, 1e-11, f"{values} {packing}"))
            check(not packing or int(re.search(r"choices in (\d+) sequences", output)[1]) < choices, "packed", output)
    layout = "precision.reproducible=layout"
    text = evaluate(case, file, "parallel.tp=1", layout, ranks=1)[0]
    for values, ranks in ((("parallel.tp=2", "parallel.dp=2"), 4), (("parallel.tp=1", "parallel.pp=2", "parallel.dp=2"), 4)):
        check(evaluate(case, file, *values, layout, ranks=ranks)[0] == text, f"the same bits on {values}")
    print(f"worst difference of a log-likelihood from numpy {worst:.1e}")
    begins(case, file)
    errors(case, file)


def begins(case, file):
    """Contexts have to begin as the texts of the training do: what its token files say is in the checkpoint."""
    words = "begin without a bos token, the training texts with token 7"
    check(words not in evaluate(case, file, "parallel.tp=1", ranks=1)[3], "no word where both begin alike")
    with_bos, checkpoint = case.folder / "with_bos.h5", case.out / "checkpoints/step_00000010/checkpoint.h5"
    with_bos.write_bytes(TOKENS.read_bytes())
    with h5py.File(with_bos, "r+") as opened:
        if "hashes" in opened:
            del opened["hashes"]
        opened.attrs["bos_token_id"] = np.int64(7)
    out = f"run.output_dir={case.folder / 'begins'}"
    rc, output = case.run(*sets(f"data.path={with_bos}", out, f"data.validation_path={with_bos}", "parallel.tp=1"), ranks=1)
    check(rc == 0 and words not in output, "trained with a token that begins texts", output)
    with h5py.File(case.folder / "begins" / checkpoint.relative_to(case.out)) as opened:
        check([int(of.attrs["bos_token_id"]) for of in opened["data"].values()] == [7, 7], "it is in the checkpoint")
    with h5py.File(checkpoint) as opened:
        check([int(of.attrs["bos_token_id"]) for of in opened["data"].values()] == [-1], "and so is that there is none")
    output = evaluate(case, file, "parallel.tp=1", out, ranks=1)[3]
    check(words in output, "questions that begin otherwise are told", output)
    rc, output = case.run("--evaluate", *sets(f"data.path={with_bos}", out, f"data.validation_path={TOKENS}",
                                                 "parallel.tp=1"), ranks=1)
    check(rc == 0 and words in output, "as is a validation file", output)


def errors(case, file):
    def expect_error(rc, words, *arguments):
        found, output = case.run("--evaluate", *sets("parallel.tp=1"), *arguments, ranks=1)
        check(found == rc and words in output, f"{arguments}: {rc}, {words}", output)

    long = make_questions(case, "long", [("short", ["x", "far too long for a sequence of this length"], 0)])
    expect_error(65, "choice 2 of the question in line 1 is longer than a sequence", "--choices", str(long))
    expect_error(65, "this is not a file of multiple-choice questions", "--choices", str(TOKENS))
    expect_error(65, "larger than that of the model", "--choices", str(file), "--set", "model.vocab_size=131")
    expect_error(71, "--results", "--choices", str(file), "--results", str(case.folder / "nowhere/x"))
    precious, linked = case.folder / "precious", case.folder / "linked"
    precious.write_text("kept")
    linked.with_name("linked.tmp").symlink_to(precious)
    expect_error(71, "a symbolic link", "--choices", str(file), "--results", str(linked))
    check(precious.read_text() == "kept" and not linked.exists(), "nothing is written through a link")
    expect_error(78, "--choices", "--results", "x")
    damaged = case.folder / "damaged.h5"
    for dataset, value, words in (("questions/answer", 9, "the answer in line 1 is not one of its choices"),
                                  ("choices/tokens", 99, "do not fit at choice 1 of the question in line 1"),
                                  ("choices/characters", 0, "choice 1 of the question in line 1 has no length"),
                                  ("questions/choices", 99, "/questions/choices does not match")):
        damaged.write_bytes(file.read_bytes())
        with h5py.File(damaged, "r+") as opened:
            opened[dataset][0] = value
        expect_error(65, f"damaged in block 0 of /{dataset}", "--choices", str(damaged))
        with h5py.File(damaged, "r+") as opened:
            del opened["hashes"]
        expect_error(65, words, "--choices", str(damaged))


def mixture(case):
    """Expert-parallel ranks too; compared with one rank instead of the reference."""
    rc, output = case.run(*sets())
    check(rc == 0, "the training of experts finishes", output)
    file = make_questions(case, "questions", QUESTIONS)
    wanted = [row["log_likelihoods"] for row in evaluate(case, file, "parallel.tp=1", ranks=1)[1]]
    for values, ranks in ((("parallel.tp=1", "parallel.dp=4", "parallel.ep=2"), 4),
                          (("parallel.tp=2", "parallel.dp=2", "parallel.ep=2", PACKED), 4)):
        expect(evaluate(case, file, *values, ranks=ranks)[1], wanted, 1e-11, f"experts {values}")
    # With a capacity, what experts drop would depend on the neighbours: no packing.
    output = evaluate(case, file, "parallel.tp=1", PACKED, "moe.capacity_factor=2", ranks=1)[3]
    choices = sum(len(c) for _, c, _ in QUESTIONS)
    check(f"{choices} choices in {choices} sequences" in output, "not packed", output)


def main():
    with Case("choices") as case:
        dense(case)
    with Case("choices_experts", checkpoint=EXPERTS) as case:
        mixture(case)
    print("nanotron_hpc --evaluate --choices: the log-likelihoods of numpy, on all grids")


if __name__ == "__main__":
    sys.exit(main())
