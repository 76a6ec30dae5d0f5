# ranks: 3
# timeout: 300
"""nanotron_generate as a user calls it: PyTorch's continuation on 1, 2 and 3 ranks, text, mistakes."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import h5py
import numpy as np

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "llama"
PROGRAM = str(Path(sys.argv[1]) / "nanotron_generate")
MPIEXEC = os.environ.get("NANOTRON_MPIEXEC", "mpiexec")
VOCABULARY = 131


def call(ranks, *arguments, rc=0):
    command = [MPIEXEC, "-n", str(ranks), PROGRAM, *map(str, arguments)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert result.returncode == rc, f"{command}: {result.returncode}\n{result.stdout}{result.stderr}"
    return result


def write_vocabulary(path):
    """Ids are bytes, but 128 (<eos>), 129 and 130, two longer words."""
    words = [bytes([i]) for i in range(128)] + [b"<eos>", b"the", b"then"]
    with h5py.File(path, "w") as file:
        file["tokens"] = np.arange(100, dtype=np.uint16)
        file.attrs["vocab_size"] = VOCABULARY
        file.attrs["eos_token_id"] = 128
        file["vocabulary/bytes"] = np.frombuffer(b"".join(words), dtype=np.uint8)
        file["vocabulary/offsets"] = np.cumsum([0] + [len(w) for w in words]).astype(np.uint64)
    return words


def test_golden():
    golden = json.loads((GOLDEN / "generate.json").read_text())
    prompt = ",".join(map(str, golden["prompt"]))
    tokens = ",".join(map(str, golden["tokens"])) + "\n"
    for ranks in (1, 2, 3):
        for compute in ("fp64", "fp32"):
            result = call(ranks, "--checkpoint", GOLDEN, "--prompt-ids", prompt, "--max-new-tokens",
                          len(golden["tokens"]), "--temperature", 0, "--compute", compute, "--ids")
            assert result.stdout == tokens, (ranks, compute, result.stdout)
            assert "tokens/s" in result.stderr
    call(2, "--checkpoint", GOLDEN, "--prompt-ids", prompt, "--compute", "bf16", "--max-new-tokens", 5)


def test_text(folder):
    words = write_vocabulary(folder / "tokens.h5")
    common = ["--checkpoint", GOLDEN / "step_00000000", "--tokens-file", folder / "tokens.h5",
              "--prompt", "then", "--seed", 3, "--samples", 2, "--max-new-tokens", 12, "--top-k", 40,
              "--top-p", 0.9, "--compute", "fp64"]
    ids = call(1, *common, "--ids").stdout
    lines = [[int(i) for i in line.split(",")] for line in ids.splitlines()]
    assert len(lines) == 2 and lines[0] != lines[1]
    assert all(0 < len(line) <= 12 and 128 not in line for line in lines)
    assert call(3, *common, "--ids").stdout == ids  # the number of ranks changes nothing
    expected = "".join(f"--- sample {s}\nthen{b''.join(words[i] for i in line).decode()}\n"
                       for s, line in enumerate(lines))
    assert call(2, *common).stdout == expected
    # Nothing to begin with: the end of a text is the beginning of the next one.
    call(1, "--checkpoint", GOLDEN, "--tokens-file", folder / "tokens.h5", "--max-new-tokens", 3)
    # What the token file says to begin documents begins a text, once.
    shutil.copy(folder / "tokens.h5", folder / "begins.h5")
    with h5py.File(folder / "begins.h5", "r+") as file:
        file.attrs["bos_token_id"] = 129
    common = ["--checkpoint", GOLDEN, "--tokens-file", folder / "begins.h5", "--max-new-tokens", 8, "--temperature", 0]
    for ids, prompt in (([129, *b"of a"], "of a"), ([129], "")):
        text = call(1, *common, "--prompt", prompt).stdout
        expected = call(1, *common, "--prompt-ids", ",".join(map(str, ids))).stdout
        assert text == expected.removeprefix(words[129].decode()), (text, expected)


def test_vocabularies(folder):
    """Warnings on stderr where text may become other tokens than those of the training."""
    words = write_vocabulary(folder / "tokens.h5")
    common = ["--checkpoint", GOLDEN, "--max-new-tokens", 2, "--temperature", 0]
    ambiguous = call(1, *common, "--tokens-file", folder / "tokens.h5", "--prompt", "then")
    assert "may split it elsewhere" in ambiguous.stderr and "--prompt-ids (here 130)" in ambiguous.stderr, ambiguous.stderr
    assert "warning" not in ambiguous.stdout
    assert "warning" not in call(1, *common, "--tokens-file", folder / "tokens.h5", "--prompt", "of a").stderr

    # A checkpoint that knows its tokenizer, by a run of one step.
    train = folder / "train.h5"
    shutil.copy(folder / "tokens.h5", train)
    with h5py.File(train, "r+") as file:
        file.attrs["tokenizer"], file.attrs["tokenizer_sha256"] = "llama", "a" * 64
    deck = folder / "input.deck"
    deck.write_text(f"""
&run steps = 1 output_dir = '{folder}/run' /
&model hidden_size = 32 num_hidden_layers = 1 num_attention_heads = 4 intermediate_size = 64 /
&data path = '{train}' sequence_length = 16 global_batch_size = 1 /
""")
    trained = subprocess.run([MPIEXEC, "-n", "1", str(Path(PROGRAM).with_name("nanotron_hpc")), str(deck)],
                             capture_output=True, text=True, timeout=120)
    assert trained.returncode == 0, trained.stdout + trained.stderr
    common[1] = folder / "run"
    same = call(1, *common, "--tokens-file", train, "--prompt", "of a")
    assert "warning" not in same.stderr and same.stdout.startswith("of a")
    assert "warning" not in call(1, *common, "--tokens-file", folder / "tokens.h5", "--prompt", "of a").stderr  # the same words
    with h5py.File(folder / "other.h5", "w") as file:
        file["tokens"] = np.arange(9, dtype=np.uint16)
        file.attrs["tokenizer"], file.attrs["tokenizer_sha256"], file.attrs["vocab_size"] = "qwen", "b" * 64, VOCABULARY
        file["vocabulary/bytes"] = np.frombuffer(b"".join(words[::-1]), dtype=np.uint8)
        file["vocabulary/offsets"] = np.cumsum([0] + [len(w) for w in words[::-1]]).astype(np.uint64)
    other = call(2, *common, "--tokens-file", folder / "other.h5", "--prompt", "of a")
    for part in ("warning: ", "'qwen'", "b" * 64, "'llama'", "a" * 64, "--prompt-ids"):
        assert part in other.stderr, other.stderr
    assert other.stderr.count("warning: ") == 1
    with h5py.File(folder / "other.h5", "r+") as file:
        file.attrs["vocab_size"] = VOCABULARY + 1
    large = call(1, *common, "--tokens-file", folder / "other.h5", "--prompt", "of a", rc=65)
    assert "at most 131 tokens" in large.stderr + large.stdout


def test_mistakes(folder):
    def refused(rc, words, *arguments, ranks=2):
        result = call(ranks, *arguments, rc=rc)
        assert words in result.stderr + result.stdout, (words, result.stdout, result.stderr)

    some = ["--checkpoint", GOLDEN, "--prompt-ids", "1,2,3"]
    refused(78, "--checkpoint", "--prompt-ids", "1")
    refused(78, "temperature", *some, "--temperature", "-1")
    refused(78, "compute", *some, "--compute", "fp16")
    refused(78, "ids from 0 to 130", "--checkpoint", GOLDEN, "--prompt-ids", "1,131")
    refused(78, "there is no prompt", "--checkpoint", GOLDEN)
    refused(78, "--tokens-file", "--checkpoint", GOLDEN, "--prompt", "text")
    refused(78, "at most 10 tokens", *some, "--context", 10, "--max-new-tokens", 8)
    refused(78, "at most 4 ranks", *some, ranks=5)
    refused(65, "nowhere", "--checkpoint", folder / "nowhere", "--prompt-ids", "1")

    damaged = folder / "step_00000000"
    shutil.copytree(GOLDEN / "step_00000000", damaged)
    with open(damaged / "checkpoint.h5", "r+b") as file:
        file.seek(100000)
        byte = file.read(1)
        file.seek(100000)
        file.write(bytes([byte[0] ^ 1]))
    refused(65, "step_00000000", "--checkpoint", damaged, "--prompt-ids", "1,2")


def main():
    test_golden()
    with tempfile.TemporaryDirectory() as folder:
        test_text(Path(folder))
    with tempfile.TemporaryDirectory() as folder:
        test_vocabularies(Path(folder))
    with tempfile.TemporaryDirectory() as folder:
        test_mistakes(Path(folder))
    result = call(1, "--help")
    assert "--temperature" in result.stdout
    print("nanotron_generate: golden, text and mistakes as expected")


if __name__ == "__main__":
    main()
