#!/usr/bin/env python3
# ranks: 2
# timeout: 300
"""Data that would be silently wrong: other files on other hosts, other tokenizers; and several validation sets.

    test_data.py <folder of the programs>
"""
import sys
import time

import h5py
import numpy as np

from runs import Case, call, check, commands_of_ranks, expect, program, root

GRIDS = {"dp": ("parallel.dp=2", "parallel.tp=1"), "tp": ("parallel.tp=2",), "pp": ("parallel.pp=2", "parallel.tp=1"),
         "cp": ("parallel.cp=2", "parallel.tp=1"), "ZeRO-3": ("parallel.dp=2", "parallel.tp=1", "parallel.zero_stage=3")}


def write_tokens(path, change=None, sha256=None, words=None, count=3000):
    tokens = np.random.default_rng(1).integers(0, 131, count).astype(np.uint16)
    if change is not None:
        tokens[change] ^= 1
    with h5py.File(path, "w") as file:
        file["tokens"] = tokens
        file.attrs["vocab_size"] = 131
        if sha256:
            file.attrs["tokenizer"] = f"tokenizer {sha256[0]}"
            file.attrs["tokenizer_sha256"] = sha256
        if words:
            file["vocabulary/bytes"] = np.frombuffer(b"".join(words), dtype=np.uint8)
            file["vocabulary/offsets"] = np.cumsum([0] + [len(w) for w in words]).astype(np.uint64)


def run_on_two_hosts(case, *arguments):
    """Two ranks with folders of their own, as on hosts where one path leads to local disks."""
    return call(*commands_of_ranks(*((1, ["env", "-C", case.folder / host, program, *arguments, case.deck]) for host in ("a", "b"))))


def settings(keys):
    return [word for key in keys for word in ("--set", key)]


def hosts_that_see_other_files():
    with Case("hosts", tokens="tokens.h5", data="validation_path = 'valid.h5'", steps=2) as case:
        for host in ("a", "b"):
            (case.folder / host).mkdir()
        for wrong, place in (("tokens.h5", 0), ("tokens.h5", 2999), ("valid.h5", 1234)):
            for host in ("a", "b"):
                for name in ("tokens.h5", "valid.h5"):
                    write_tokens(case.folder / host / name, place if (host, name) == ("b", wrong) else None)
            for grid, keys in GRIDS.items():
                code, text = run_on_two_hosts(case, *settings(keys))
                what = f"{wrong} that differs at {place} on {grid} ranks"
                check(code == 65, f"{what} gives 65, not {code}", text)
                begin = text.find("different token files")
                found = text[begin:text.find("change:", begin)]  # lines of the log may come after it
                check(found.count("hash ") == 2 and found.count(" on host ") == 2, f"{what}: hashes and hosts are named", text)
                check(f"a/{wrong}" in text and f"b/{wrong}" in text, f"{what}: both files are named", text)
                check("data%validation_path" in text or wrong == "tokens.h5", f"{what}: the key is named", text)
                check(not (case.out / "metrics.h5").exists(), f"{what}: nothing is trained", text)
        for host in ("a", "b"):
            for name in ("tokens.h5", "valid.h5"):
                write_tokens(case.folder / host / name)
        code, text = run_on_two_hosts(case)
        check(code == 0 and text.count("the same on all hosts, hash") == 2, "equal copies are accepted", text)
        write_tokens(case.folder / "b/tokens.h5", count=2900)
        code, text = run_on_two_hosts(case)
        check(code == 65 and "3000 tokens" in text and "2900 tokens" in text, "another size is named", text)
        (case.folder / "b/tokens.h5").unlink()
        code, text = run_on_two_hosts(case)
        check(code == 65 and "cannot be read" in text and "rank 1 on host" in text, "a missing file names its host", text)
        write_tokens(case.folder / "b/tokens.h5", 5)
        code, text = run_on_two_hosts(case, "--set", "data.verify=none")
        check(code == 0, "who asks for no comparison gets none", text)
        code, text = case.run("--set", f"data.path={case.folder}/a/tokens.h5", "--set",
                              f"data.validation_path={case.folder}/a/valid.h5")
        check(code == 0 and "one file, seen by all ranks" in text, "one file needs no reading", text)


def tokenizers():
    a, b = "a" * 64, "b" * 64
    with Case("tokenizers", steps=5) as case:
        def run(*keys):
            return case.run(*settings((f"data.path={case.folder}/train.h5", *keys)))

        valid = f"data.validation_path={case.folder}/valid.h5"
        write_tokens(case.folder / "train.h5", sha256=a)
        write_tokens(case.folder / "valid.h5", sha256=b)
        code, text = run(valid)
        check(code == 65 and a in text and b in text and "valid.h5" in text, "another tokenizer of the validation", text)
        code, text = run("data.validation_path=code=" + str(case.folder / "valid.h5"), "data.other_tokenizer=accept")
        check(code == 0 and "warning" in text and "accepted by data%other_tokenizer" in text, "can be accepted", text)
        code, text = run()
        check(code == 0 and "not compared" not in text, "the same tokenizer is nothing to talk about", text)

        write_tokens(case.folder / "train.h5", sha256=b)
        code, text = run("run.steps=7")
        check(code == 65 and a in text and b in text and "checkpoint" in text, "a resumed run with another tokenizer", text)
        code, text = run("run.steps=7", "data.other_tokenizer=accept")
        check(code == 0 and "resumed from" in text and a in text and b in text, "can be accepted too", text)
        newest = case.out / "checkpoints/step_00000007"
        with h5py.File(newest / "checkpoint.h5") as file:
            check(file["tokenizer"].attrs["sha256"].decode() == b, "and the checkpoint has the new one")
        code, text = run("run.steps=9")
        check(code == 0, "which the next run need not accept again", text)
        expect(sys.executable, root / "tools/nanotron_ls.py", newest, says=["\ntokenizer\n", b])

        write_tokens(case.folder / "train.h5")
        code, text = run("run.steps=11")
        check(code == 0 and "tokenizers not compared: the checkpoint" in text, "nothing to compare is said", text)
        words = [bytes([i]) for i in range(131)]
        write_tokens(case.folder / "train.h5", words=words)
        write_tokens(case.folder / "valid.h5", words=words[:-1] + [b"the"])
        code, text = run(valid, "checkpoint.resume=none")
        check(code == 65 and text.count("vocabulary hash") == 2, "vocabularies are compared where there is no sha256", text)
        write_tokens(case.folder / "valid.h5", words=words, count=400)
        code, text = run(valid, "checkpoint.resume=none")
        check(code == 0 and "not compared" not in text, "equal ones are accepted", text)


def named_validation_sets():
    with Case("sets", data="validation_every = 2") as case:
        for name, count in (("code", 500), ("wiki", 900), ("news", 300)):
            write_tokens(case.folder / f"{name}.h5", count=count)

        def sets(*names):
            return "data.validation_path=" + " ".join(f"{name}={case.folder}/{name}.h5" for name in names)

        code, text = case.run("--set", sets("code", "wiki"), "--set", "run.steps=4")
        check(code == 0 and text.count("/4  validation loss  code ") == 2 and "  wiki " in text, "each set has a number", text)
        code, text = case.run("--set", sets("news", "wiki"), "--set", "run.steps=8")
        check(code == 0 and "/8  validation loss  news " in text and "cannot be read" not in text, "sets may change", text)
        with h5py.File(case.out / "metrics.h5") as file:
            steps, mean_loss = file["validation_step"][:], file["validation_loss"][:]
            loss = {name: file[f"validation_loss_{name}"][:] for name in ("code", "wiki", "news")}
        check(steps.tolist() == [2, 4, 6, 8] and all(len(rows) == 4 for rows in loss.values()), f"rows {steps} {loss}")
        check((np.isnan(loss["code"]) == [0, 0, 1, 1]).all() and (np.isnan(loss["news"]) == [1, 1, 0, 0]).all()
              and not np.isnan(loss["wiki"]).any(), f"NaN where a set was not there {loss}")
        mean = (np.concatenate((loss["code"][:2], loss["news"][2:])) + loss["wiki"]) / 2
        check(np.array_equal(mean_loss, mean), f"validation_loss is the mean of the sets {mean_loss} {mean}")

        code, text = case.run("--set", sets("code", "nothing"))
        check(code == 65 and "data%validation_path, 'nothing'" in text, "a missing file names its set", text)
        write_tokens(case.folder / "short.h5", count=16)
        code, text = case.run("--set", sets("code", "short"))
        check(code == 65 and "data%validation_path, 'short'" in text and "at least 1 sequences" in text, "so does one without a sequence", text)
        code, text = case.run("--set", "data.validation_path=code=a.h5 b.h5")
        check(code == 78 and "not name=path" in text, f"a malformed list gives 78, not {code}", text)
        code, text = case.run("--check", "--set", sets("code", "wiki"), ranks=1)
        check(code == 0 and "31 (code), 56 (wiki) for validation" in text, "--check counts them", text)


for part in (hosts_that_see_other_files, tokenizers, named_validation_sets):
    begin = time.time()
    part()
    print(f"{part.__name__}: passed, {time.time() - begin:.1f} s", flush=True)
