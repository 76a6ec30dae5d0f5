#!/usr/bin/env python3
# ranks: 2
# timeout: 900
"""Data that lie: flipped bytes of a token file, files cut short, never written, rewritten during a run, a disk that
fails, and a resume with other data. Each is found, with its exit code and the name of the file, or harmless: the bits
of a good run.

    test_data_faults.py <folder of the programs> [<part> ...]
                                                      NANOTRON_FAULTS (6) and NANOTRON_SEED (the time) choose the bytes;
                                                      NANOTRON_FULL=1: every 8th byte of the file
"""
import errno
import os
import random
import re
import shutil
import signal
import sys
import time

import h5py
import numpy as np

from faults import build, run_with_faults, skip_under_sanitizers
import runs
from runs import Case, Tally, check, chosen, expect, outcome_of, root, wait_for

sys.path.insert(0, str(root / "tools"))
from nanotron_tools import token_file, token_hashes  # noqa: E402

FULL = os.environ.get("NANOTRON_FULL") == "1"
ONE = ("--set", "parallel.tp=1", "--set", "checkpoint.at_end=false", "--set", "run.steps=3", "--set",
       "output.console=quiet")
TOKENS = 3000

# FAULT_KIND: flips a bit of what this process reads of the token file, or makes its reads or its stats fail with
# FAULT_ERRNO, FAULT_COUNT times from FAULT_FIRST on.
PRELOAD = r"""
#include <sys/stat.h>
static long reads, stats;
static void tell(void) __attribute__((destructor));
static void tell(void) { fprintf(stderr, "token file reads: %ld, stats: %ld\n", reads, stats); }
static int is_tokens(const char *path) {
  const size_t length = strlen(path);
  return length >= 9 && strcmp(path + length - 9, "tokens.h5") == 0;
}
static int is_due(const char *kind, long number) {
  const long first = atol(getenv("FAULT_FIRST")), end = first + atol(getenv("FAULT_COUNT"));
  if (strcmp(getenv("FAULT_KIND"), kind) != 0 || number < first || number >= end) return 0;
  fprintf(stderr, "fault: %s %ld\n", kind, number);
  return 1;
}
static int failed(void) {
  errno = atoi(getenv("FAULT_ERRNO"));
  return -1;
}
ssize_t pread64(int descriptor, void *to, size_t bytes, off64_t at) {
  REAL(pread64);
  const ssize_t got = real(descriptor, to, bytes, at);
  if (got <= 0 || !is_tokens(path_of(descriptor))) return got;
  const long number = reads++;
  if (is_due("flip", number))
    ((unsigned char *)to)[(got * 7 / 11 + number * atol(getenv("FAULT_STRIDE"))) % got] ^= 4;
  return is_due("read", number) ? failed() : got;
}
ssize_t pread(int descriptor, void *to, size_t bytes, off_t at) { return pread64(descriptor, to, bytes, at); }
int stat(const char *path, struct stat *to) {
  REAL(stat);
  return is_tokens(path) && is_due("stat", stats++) ? failed() : real(path, to);
}
int fstat(int descriptor, struct stat *to) {
  REAL(fstat);
  return is_tokens(path_of(descriptor)) && is_due("stat", stats++) ? failed() : real(descriptor, to);
}
"""


def write_tokens(path, seed=1, count=TOKENS, hashes=True, block=64, sha256="a" * 64, chunks=None):
    random_ids = np.random.default_rng(seed).integers(0, 131, count).astype(np.uint16)
    with h5py.File(path, "w", libver=("earliest", "v110")) as file:
        file.create_dataset("tokens", data=random_ids, chunks=chunks)
        file["documents"] = np.arange(0, count, 150).astype("<u8")
        file["loss_mask"] = (np.arange(count) % 5 > 0).astype(np.uint8)
        token_file.write_vocabulary(file, [bytes([i]) for i in range(131)])
        token_file.write_token_attributes(file, vocab_size=131, special={"eos_token_id": 3}, tokenizer="bytes",
                                          tokenizer_sha256=sha256, entropy=4.0, provenance={})
    if hashes:
        token_hashes.add(path, block)


def alone(case, path, *keys):
    return runs.alone(case, *(keys or ("--set", f"data.path={path}", *ONE)))


def losses(case):
    with h5py.File(case.out / "metrics.h5") as file:
        return {name: file[name][:].tobytes() for name in ("loss", "token_hash", "grad_norm")}


def flipped_bytes(seed, faults):
    """Of the data, and of all that is not data."""
    chance = random.Random(seed)
    with Case("flips", run="check_replicas_every = 0", data="document_mask = 'block_diagonal'") as case:
        path = case.folder / "tokens.h5"
        write_tokens(path)
        good = path.read_bytes()
        with h5py.File(path) as file:
            data = set()
            for name in ("tokens", "documents", "loss_mask"):
                begin = file[name].id.get_offset()
                data |= set(range(begin, begin + file[name].id.get_storage_size()))
        rest = sorted(set(range(len(good))) - data)

        def run():
            shutil.rmtree(case.out, ignore_errors=True)
            return alone(case, path, "--set", f"data.path={path}", *ONE, "--set", "run.steps=24")  # every sequence

        code, text = run()
        check(code == 0, "a good file trains", text)
        check("without hashes" not in (case.out / "run.log").read_text(), "and has hashes", text)
        expected = losses(case)
        tally = Tally()
        values = sorted(data)
        places = range(0, len(good), 8) if FULL else \
            [chance.choice(values) for _ in range(faults)] + [chance.choice(rest) for _ in range(faults)]
        for place in places:
            bits = chance.randrange(1, 256)
            bad = bytearray(good)
            bad[place] ^= bits
            path.write_bytes(bad)
            code, text = run()
            what = f"byte {place} ^ {bits}"
            check(code in (0, 65), f"{what}: exit code {code}", text)
            if code == 65:
                check("tokens.h5" in text and "error:" in text, f"{what}: the file is named", text)
            else:
                check(place not in data, f"{what}: it was read", text)
                check(losses(case) == expected, f"{what} trains on other data", text)
            tally.add(f"token file: byte of {'data' if place in data else 'metadata'} flipped", outcome_of(code))
        tally.print()


def cut_short_and_never_written():
    with Case("cut") as case:
        path = case.folder / "tokens.h5"

        def refused(words, what):
            code, text = alone(case, path)
            check(code == 65 and words in text and "tokens.h5" in text, f"{what}: exit code {code}", text)

        write_tokens(path)
        path.write_bytes(path.read_bytes()[:-100])
        refused("truncated", "a file that is cut")
        with h5py.File(path, "w") as file:
            file.create_dataset("tokens", shape=(1 << 33,), dtype="<u2")
            file.attrs["vocab_size"] = 131
        refused("was not written completely", "2^33 tokens that were never written")
        with h5py.File(path, "w") as file:
            file.create_dataset("tokens", shape=(1 << 33,), dtype="<u2", chunks=(1 << 20,))[:4096] = 1
        refused("of 8192 chunks", "chunks that were never written")
        write_tokens(path, hashes=False)
        code, text = alone(case, path)
        log = (case.out / "run.log").read_text()
        check(code == 0 and log.count("without hashes of their blocks") == 1 and "nanotron_verify.py --add" in log,
              "a file without hashes trains, and the log says so once", log)


def a_read_that_fails_once():
    """Another try gives the block: nothing happens. Bytes that change with each read: exit code 71."""
    with Case("reads", run="check_replicas_every = 0") as case:
        path, library = case.folder / "tokens.h5", build(case.folder, PRELOAD)
        write_tokens(path)
        keys = ("--set", f"data.path={path}", *ONE[2:])

        def run(**settings):
            shutil.rmtree(case.out, ignore_errors=True)
            return run_with_faults(case, library, 0, {"FAULT_KIND": "flip", "FAULT_STRIDE": 0, **settings}, *keys)

        code, text = run(FAULT_FIRST=10**9, FAULT_COUNT=1)
        check(code == 0, "the run trains", text)
        expected = losses(case)
        reads = int(re.search(r"token file reads: (\d+)", text)[1])
        for first in (reads // 2, reads // 2 + 1, reads - 2, reads - 1):
            code, text = run(FAULT_FIRST=first, FAULT_COUNT=1)
            check(code == 0 and "fault: flip" in text and losses(case) == expected, f"a flip of read {first} is repaired", text)
        code, text = run(FAULT_FIRST=reads // 2, FAULT_COUNT=10**6, FAULT_STRIDE=1)
        check(code in (65, 71) and "tokens.h5" in text and "error:" in text, f"reads that never agree end with {code}", text)


def a_disk_that_fails(seed):
    """On one rank, from one call on until the end: exit code 71 at the start, in the run, and before a checkpoint."""
    chance = random.Random(seed)
    with Case("disk", run="check_replicas_every = 0") as case:
        path, library = case.folder / "tokens.h5", build(case.folder, PRELOAD)
        keys = ("--set", f"data.path={path}", "--set", "run.steps=6", "--set", "output.console=quiet")
        for layout in ({"hashes": True}, {"hashes": False, "chunks": (100,)}):
            write_tokens(path, **layout)

            def run(**settings):
                shutil.rmtree(case.out, ignore_errors=True)
                return run_with_faults(case, library, 0, {"FAULT_COUNT": 10**6, **settings}, *keys)

            code, text = run(FAULT_KIND="none", FAULT_FIRST=0)
            check(code == 0, f"{layout}: the run trains", text)
            counts = re.search(r"token file reads: (\d+), stats: (\d+)", text)
            for kind, count in zip(("read", "stat"), map(int, counts.groups()), strict=True):
                early = range(0, count - 1, 8) if FULL else [chance.choice((0, chance.randrange(count - 1)))]
                for first in (*early, count - 1):
                    number = chance.choice((errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EACCES))
                    code, text = run(FAULT_KIND=kind, FAULT_FIRST=first, FAULT_ERRNO=number)
                    what = f"{layout}: {errno.errorcode[number]} from {kind} {first} of {count} on"
                    check(code == 71, f"{what}: exit code {code}", text)
                    check("error:" in text and "tokens.h5" in text and os.strerror(number) in text, what, text)
                check("step       1/6" in (case.out / "run.log").read_text(), f"{what}: training had begun", text)


def rewritten_during_the_run():
    with Case("rewritten", steps=100000, run="check_replicas_every = 0") as case:
        path = case.folder / "tokens.h5"

        def start(*keys):
            shutil.rmtree(case.out, ignore_errors=True)
            running = case.start("--set", f"data.path={path}", *keys)
            wait_for(case.out / "checkpoints/step_00000005")
            return running

        def rewrite(new):
            with open(path, "r+b") as file:  # the same file: its inode stays
                file.write(new)
                file.flush()
                os.fsync(file.fileno())
            os.utime(path, ns=(time.time_ns(), time.time_ns() + 10**9))

        for hashes in (True, False):
            write_tokens(case.folder / "other.h5", seed=2, hashes=hashes)
            write_tokens(path, hashes=hashes)
            running = start()
            rewrite((case.folder / "other.h5").read_bytes())
            text, _ = running.communicate(timeout=60)
            check(running.returncode == 65 and "token file changed during the run" in text and "tokens.h5" in text,
                  f"a rewritten file (hashes: {hashes}) gives 65, not {running.returncode}", text)
        write_tokens(path, hashes=False)
        running = start()
        os.utime(path)
        wait_for_text(case, "has the same content, which was read again")
        running.send_signal(signal.SIGUSR1)
        text, _ = running.communicate(timeout=60)
        check(running.returncode == 75, f"a touch of a file without hashes is no reason to end, {running.returncode}", text)
        write_tokens(path)
        running = start()
        os.utime(path)
        write_tokens(case.folder / "new.h5", seed=2)
        wait_for_text(case, "has the same content, according to its hashes")
        os.replace(case.folder / "new.h5", path)
        wait_for_text(case, "now names another file")
        running.send_signal(signal.SIGUSR1)
        text, _ = running.communicate(timeout=60)
        check(running.returncode == 75 and text.count("now names another file") == 1, "a replaced file is told once", text)
        code, text = case.run("--set", f"data.path={path}")
        check(code == 65 and "the training file (data%path) has 3000 tokens" in text, "and is refused at the resume", text)


def touched_without_a_known_content():
    """More than is read at the start: the error says how the file becomes known, and the run continues then."""
    with Case("touched", steps=100000, run="check_replicas_every = 0") as case:
        path = case.folder / "large.h5"
        with h5py.File(path, "w", libver=("earliest", "v110")) as file:
            file["tokens"] = np.resize(np.arange(131, dtype=np.uint16), (256 << 20) // 2 + 16)
            file.attrs["vocab_size"] = 131
        running = case.start("--set", f"data.path={path}")
        wait_for(case.out / "checkpoints/step_00000005")
        os.utime(path)
        text, _ = running.communicate(timeout=60)
        command = f"if only its times changed, as by touch, run nanotron-verify --add {path} and start again"
        check(running.returncode == 65 and command in text, f"65 with the command, not {running.returncode}", text)
        expect(sys.executable, root / "tools/nanotron_verify.py", "--add", path)
        running = case.start("--set", f"data.path={path}")
        wait_for_text(case, "resumed from")
        os.utime(path)
        wait_for_text(case, "has the same content, according to its hashes")
        running.send_signal(signal.SIGUSR1)
        text, _ = running.communicate(timeout=60)
        check(running.returncode == 75, f"the run continues after the touch, {running.returncode}", text)


def wait_for_text(case, words, seconds=60):
    end = time.time() + seconds
    while words not in (case.out / "run.log").read_text():
        check(time.time() < end, f"'{words}' never came", (case.out / "run.log").read_text())
        time.sleep(0.05)


def resumed_with_other_data():
    with Case("resumed", steps=5, data="validation_path = 'VALID'") as case:
        path, valid = case.folder / "tokens.h5", case.folder / "valid.h5"
        case.deck.write_text(case.deck.read_text().replace("VALID", str(valid)))
        write_tokens(path)
        write_tokens(valid, seed=5, count=500)
        base = ("--set", f"data.path={path}")
        code, text = case.run(*base)
        check(code == 0, "the first part", text)
        begun = case.folder / "begun"
        shutil.copytree(case.out, begun)

        def resumed(*keys, steps=7, ranks=1, data=path):
            shutil.rmtree(case.out)
            shutil.copytree(begun, case.out)
            words = [word for key in keys for word in ("--set", key)]
            keys = ["--set", f"data.path={data}", "--set", f"run.steps={steps}", *words]
            return case.run(*keys, ranks=2) if ranks == 2 else alone(case, data, *keys, "--set", "parallel.tp=1")

        # What may change: the path, the grid, the micro-batch, the size of the batch, hashes of other blocks.
        shutil.copy(path, case.folder / "elsewhere.h5")
        for keys, ranks, data in (((), 1, case.folder / "elsewhere.h5"), (("parallel.tp=1", "parallel.dp=2"), 2, path),
                                  (("data.micro_batch_size=4",), 1, path), (("data.global_batch_size=4",), 1, path)):
            code, text = resumed(*keys, ranks=ranks, data=data)
            check(code == 0 and "samples" not in text[text.find("resumed from"):].split("step")[0],
                  f"{keys} {data} may change", text)
        # What may not, unless it is meant.
        for key, code_of in (("data.sequence_length=8", 78), ("data.shuffle=none", 78), ("run.seed=9", 78)):
            code, text = resumed(key)
            name = "%".join(key.split("=")[0].split("."))
            check(code == code_of and "differ from those of the checkpoint" in text and f"{name} is " in text
                  and "data.on_change=warn" in text, f"{key} is refused, not {code}", text)
            code, text = resumed(key, "data.on_change=warn")
            check(code == 0 and f"{name} is " in text and "the order of the samples changes" in text, f"{key} may be meant", text)
        for file, words in ((path, "the training file (data%path) has"), (valid, "the validation file (data%validation_path) has")):
            good = file.read_bytes()
            for hashes in (True, False):
                write_tokens(file, seed=7, count=TOKENS if file == path else 500, hashes=hashes)
                code, text = resumed()
                check(code == 65 and words in text and ", had" in text, f"{file} of other content is refused, not {code}", text)
            code, text = resumed("data.on_change=warn")
            check(code == 0 and words in text, f"{file} may be meant", text)
            file.write_bytes(good)
        code, text = resumed("run.steps=7")
        check(code == 0, "and the old files go on", text)


def blends_that_go_on():
    with Case("blend", steps=5, data="weights = 'a=0.5 b=0.5'") as case:
        for number, name in enumerate("abc"):
            write_tokens(case.folder / f"{name}.h5", seed=number)
        files = " ".join(f"{name}={case.folder}/{name}.h5" for name in "ab")
        code, text = case.run("--set", f"data.path={files}")
        check(code == 0, "the first part", text)
        begun = case.folder / "begun"
        shutil.copytree(case.out, begun)

        def resumed(*keys):
            shutil.rmtree(case.out)
            shutil.copytree(begun, case.out)
            words = [word for key in keys for word in ("--set", key)]
            return case.run("--set", f"data.path={files}", "--set", "run.steps=7", *words)

        three = f"data.path={files} c={case.folder}/c.h5"
        for keys in (("data.weights=a=3 b=3",), ("data.stages=640: b=1",),
                     (three, "data.weights=a=0.5 b=0.5 c=0", "data.stages=640: c=1")):
            code, text = resumed(*keys)
            check(code == 0 and "the order" not in text, f"{keys} continues where it was", text)
        code, text = resumed("data.weights=a=0.75 b=0.25")
        check(code == 78 and "of the 40 samples so far 30 are now from 'a', 20 were before" in text, "other weights are refused", text)
        write_tokens(case.folder / "b.h5", seed=9)
        code, text = resumed()
        check(code == 65 and "the training file 'b'" in text and "'a'" not in text, "the file that changed is named", text)


def verified_by_the_tool():
    with Case("tool") as case:
        path = case.folder / "tokens.h5"
        write_tokens(path, block=token_hashes.BLOCK)
        expect(sys.executable, root / "tools/nanotron_verify.py", path, says=["verified"])


skip_under_sanitizers()
seed, faults = int(os.environ.get("NANOTRON_SEED", str(int(time.time())))), int(os.environ.get("NANOTRON_FAULTS", "6"))
print(f"NANOTRON_FAULTS={faults} NANOTRON_SEED={seed}", flush=True)
PARTS = (flipped_bytes, cut_short_and_never_written, a_read_that_fails_once, a_disk_that_fails,
         rewritten_during_the_run, touched_without_a_known_content, resumed_with_other_data, blends_that_go_on,
         verified_by_the_tool)
for part in chosen(PARTS, sys.argv[2:], lambda part: part.__name__):
    begin = time.time()
    part(*{flipped_bytes: (seed, faults), a_disk_that_fails: (seed,)}.get(part, ()))
    print(f"{part.__name__}: passed, {time.time() - begin:.1f} s", flush=True)
