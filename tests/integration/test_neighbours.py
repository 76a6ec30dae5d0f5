#!/usr/bin/env python3
# ranks: 4
# timeout: 1200
"""Copies of the state on other hosts (checkpoint%neighbour_every_steps): all ranks are killed, a host is lost, and the
run ends with the bits of one that nobody disturbed. Hosts are imitated: names are given, their memory is a folder.

    test_neighbours.py <folder of the programs>        NANOTRON_SEED (the time) chooses; NANOTRON_FULL: all grids and all parts
"""
import os
import random
import re
import shutil
import subprocess
import time

from faults import SLOW_DISK, build, write_spikes
from runs import Case, check, commands_of_ranks, expect, kill_all, program, ranks_of, state_at

STEPS, EVERY = 90, 4

GRIDS = {
    "tp": ["parallel.tp=2", "parallel.dp=2"],
    "ZeRO": ["parallel.tp=1", "parallel.dp=4", "parallel.zero_stage=3"],
    "pp": ["parallel.tp=2", "parallel.pp=2", "model.num_hidden_layers=3"],
    "MoE": ["parallel.tp=1", "parallel.dp=4", "parallel.ep=2", "parallel.zero_stage=1", "moe.num_experts=4",
            "moe.num_experts_per_tok=2", "moe.moe_intermediate_size=48"],
    "bf16": ["parallel.tp=2", "parallel.dp=2", "precision.compute=bf16", "precision.moments=bf16"],
}


class Job:
    """Runs on four ranks of the imitated hosts a and b."""

    def __init__(self, case, grid, *keys):
        self.case, self.memory = case, case.folder / "hosts"
        self.variables = []  # of all ranks
        # hidden_size makes some blocks of the image: each rank has one.
        keys = [*grid, "model.hidden_size=128", f"checkpoint.neighbour_every_steps={EVERY}",
                f"checkpoint.neighbour_directory={self.memory}/%h", "checkpoint.every_steps=1000", *keys]
        self.arguments = [word for key in keys for word in ("--set", key)]

    def command(self, hosts, arguments):
        command = [*self.variables, program, *self.arguments, *arguments, self.case.deck]
        return commands_of_ranks(*((ranks, ["env", f"NANOTRON_HOST_NAME={host}", *command]) for host, ranks in hosts))

    def run(self, *arguments, hosts=(("a", 2), ("b", 2))):
        return expect(*self.command(hosts, arguments))

    def copied(self):
        """The steps that the log says are copied."""
        log = self.case.out / "run.log"
        return [int(step) for step in re.findall(r"step +(\d+)/\d+  copied", log.read_text())] if log.exists() else []

    def kill_after(self, copies, *arguments):
        """Kills all ranks at once after so many copies of this start. Returns the last step that was copied."""
        before = len(self.copied())
        self.kill_when(lambda: len(self.copied()) >= before + copies, *arguments)
        return self.copied()[-1]

    def kill_when(self, is_time, *arguments):
        running = subprocess.Popen(self.command((("a", 2), ("b", 2)), arguments), text=True, stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
        end = time.time() + 60
        while not is_time():
            check(time.time() < end and running.poll() is None, "copies are written", running.poll())
            time.sleep(0.005)
        kill_all(ranks_of(self.case))
        end = time.time() + 30
        while ranks_of(self.case):
            check(time.time() < end, "all ranks end")
            time.sleep(0.01)
        running.kill()
        running.communicate()

    def lose(self, *hosts):
        for host in hosts:
            shutil.rmtree(self.memory / host)

    def pieces(self, host, pattern):
        found = sorted(self.memory.glob(f"{host}/*/*/{pattern}"))
        check(found, f"there is {pattern} on host {host}")
        return found


def flip(file):
    """The first byte of a file with holes that is not 0."""
    content = bytearray(file.read_bytes())
    at = next(i for i, byte in enumerate(content) if byte)
    with open(file, "r+b") as stream:
        stream.seek(at)
        stream.write(bytes([content[at] ^ 1]))


def resumed(text):
    """Whence and at which step the run went on."""
    found = re.search(r"resumed from (copies on the hosts, )?\S+ \(step (\d+)", text)
    check(found, "the run goes on", text)
    return ("copies" if found[1] else "file"), int(found[2])


def from_copies(job, text, at_least):
    where, step = resumed(text)
    # The step after the last one of the log may have been copied before the kill; where that tore it, the one before.
    check(where == "copies" and step >= at_least - EVERY, f"from copies of step {at_least}, not {where} of {step}", text)


def is_empty(job):
    left = [path for path in job.memory.rglob("*") if path.is_file()]
    check(not left, f"nothing is left on the hosts: {left}")


def lost_hosts(job, case, expected, chance):
    """One host, then the other; a rank's killing tears whatever is written at that moment."""
    for host in ("a", "b"):
        shutil.rmtree(case.out, ignore_errors=True)
        last = job.kill_after(chance.randint(1, 4))
        job.lose(host)
        last_again = job.kill_after(1)
        check(last_again > last - EVERY, f"step {last_again} after {last}")
        job.lose("b" if host == "a" else "a")
        text = job.run()
        from_copies(job, text, last_again)
        check(state_at(case, STEPS) == expected, f"the same bits after host {host} was lost", text)
        is_empty(job)


def both_hosts(job, case, expected, _):
    shutil.rmtree(case.out, ignore_errors=True)
    job.kill_after(4, "--set", "checkpoint.every_steps=7", "--set", "checkpoint.asynchronous=true")
    job.lose("a", "b")
    text = job.run()
    where, step = resumed(text)
    check(where == "file" and step % 7 == 0, f"from the file, not from {where} of {step}", text)
    check(state_at(case, STEPS) == expected, "the same bits from the file", text)


def damaged(job, case, expected, _):
    shutil.rmtree(case.out, ignore_errors=True)
    job.kill_after(3)
    for rank in range(4):  # at most one of the two copies of each rank
        tables = job.pieces("ab"[rank % 2], f"*rank_{rank}_of_4.table")
        if rank < 2:
            for table in tables:
                with open(table, "r+b") as stream:
                    stream.truncate(50)
        else:
            for table in tables:
                flip(table)
    text = job.run()
    from_copies(job, text, 2 * EVERY)
    check("is damaged: using the one on" in text, "the log names damaged copies", text)
    check(state_at(case, STEPS) == expected, "the same bits from the other copies", text)

    shutil.rmtree(case.out, ignore_errors=True)
    last = job.kill_after(4, "--set", "checkpoint.every_steps=7")
    newest = sorted((case.out / "checkpoints").glob("step_*"))[-1]
    shutil.copytree(newest, newest.parent / f"step_{STEPS - 1:08d}")  # a damaged one: its manifest is of another step
    text = job.run()
    from_copies(job, text, last)
    check(state_at(case, STEPS) == expected, "the same bits beside a damaged checkpoint", text)

    shutil.rmtree(case.out, ignore_errors=True)
    job.kill_after(3, "--set", "checkpoint.every_steps=7")
    for host in "ab":
        for file in job.pieces(host, "*.blocks"):
            if any(file.read_bytes()):
                flip(file)
    text = job.run()
    check("there is no second copy" in text, "the log says that no copy is whole", text)
    check(state_at(case, STEPS) == expected, "the same bits after all copies were damaged", text)


def stale(job, case, expected, _):
    """Copies of a run that was started from scratch are of no use to the next."""
    shutil.rmtree(case.out, ignore_errors=True)
    job.kill_after(3)
    kept = case.folder / "kept"
    shutil.copytree(job.memory, kept)
    last = job.kill_after(1, "--set", "checkpoint.resume=none")
    for file in kept.rglob("step_*"):  # what an epilogue would not have removed
        target = job.memory / file.relative_to(kept)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, target)
    text = job.run()
    from_copies(job, text, last)
    check(resumed(text)[1] <= last + 2 * EVERY, "not from the copies of the run before", text)
    check(state_at(case, STEPS) == expected, "the same bits beside copies of another run", text)
    shutil.rmtree(job.memory)


def named_start(job, case, *_):
    """A run that began from a named checkpoint and lost its copies before its first own one: it begins there again."""
    start = case.folder / "start"
    shutil.rmtree(case.out, ignore_errors=True)
    job.run("--set", "checkpoint.every_steps=30")
    shutil.copytree(case.out / "checkpoints" / "step_00000030", start / "step_00000030")
    shutil.rmtree(case.out)
    again = ["--set", f"checkpoint.resume={start / 'step_00000030'}", "--status", str(case.folder / "status")]
    job.kill_after(2, *again)
    job.lose("a", "b")
    text = job.run(*again)
    check(resumed(text) == ("file", 30) and "no checkpoint or copy of earlier" in text, "from the named one", text)


def other_grid(job, case, *_):
    """Any number of ranks reads the copies: losses within rounding."""
    shutil.rmtree(case.out, ignore_errors=True)
    last = job.kill_after(2)
    job.lose("a")
    text = job.run("--set", "parallel.tp=1", "--set", "parallel.dp=3", "--set", "data.global_batch_size=9",
                   "--set", "data.on_change=warn", hosts=(("c", 2), ("b", 1)))
    from_copies(job, text, last)


def one_host(job, case, *_):
    shutil.rmtree(case.out, ignore_errors=True)
    text = job.run(hosts=(("a", 4),))
    check("all ranks are on one host" in text and "copied to other" not in text, "one host is no neighbour", text)


def bad_step(*_):
    """Killed while a checkpoint is being written: a bad step then goes back to it all the same."""
    if os.environ.get("NANOTRON_SANITIZE") == "ON":  # which wants to be loaded first
        return
    rule = "spike_factor = 5 max_nonfinite_steps = 1 on_bad_step = 'roll_back' check_replicas_every = 0"
    with Case("neighbours_bad_step", steps=30, run=rule) as case:
        write_spikes(case.folder / "tokens.h5", [22], 30, 8 * 16)
        job = Job(case, GRIDS["tp"], "checkpoint.neighbour_every_steps=1", "checkpoint.every_steps=5", "data.shuffle=none",
                  f"data.path={case.folder}/tokens.h5", "optimizer.learning_rate=0.02", "precision.compute=fp64")
        text = job.run()
        check("back to step 20" in text, "the bad step", text)
        expected = state_at(case, 30)
        shutil.rmtree(case.out)
        log = case.out / "run.log"
        job.arguments += ["--set", "checkpoint.asynchronous=true"]
        job.variables = [f"LD_PRELOAD={build(case.folder, SLOW_DISK)}", "SLOW_SECONDS=20",
                         "SLOW_FILE=step_00000020.partial/checkpoint.h5"]
        job.kill_when(lambda: log.exists() and "step      21/30  loss" in log.read_text())
        job.variables = []
        text = job.run()
        check("back to step 20" in text and state_at(case, 30) == expected, "the same bits after a bad step", text)


PARTS = [lost_hosts, both_hosts, damaged, stale, named_start, other_grid, one_host, bad_step]


def main(seed, full):
    print(f"NANOTRON_SEED={seed}", flush=True)
    chance = random.Random(seed)
    one = chance.choice(list(GRIDS))
    for name in GRIDS if full else {one, "tp"}:
        parts = PARTS[:1] if full or name == one else []
        if name == "tp":
            parts = parts + (PARTS[1:] if full else chance.sample(PARTS[1:], 3))
        with Case("neighbours", steps=STEPS) as case:
            job = Job(case, GRIDS[name], f"checkpoint.asynchronous={chance.choice(['true', 'false'])}")
            job.run()
            expected = state_at(case, STEPS)
            is_empty(job)
            for part in parts:
                shutil.rmtree(case.out, ignore_errors=True)
                part(job, case, expected, chance)
            print(f"{name}: {', '.join(part.__name__ for part in parts)}: the same bits", flush=True)


main(int(os.environ.get("NANOTRON_SEED", str(int(time.time())))), bool(os.environ.get("NANOTRON_FULL")))
