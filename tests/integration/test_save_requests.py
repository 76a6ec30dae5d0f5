#!/usr/bin/env python3
# ranks: 4
# timeout: 600
"""A checkpoint on demand: the file SAVE or SIGURG, and the run goes on. It has the bits of a run that was stopped at its
step, also while checkpoints are asynchronous or states are copied to other hosts, and after a kill.

    test_save_requests.py <folder of the programs>
"""
import os
import re
import signal
import subprocess
import sys
import time

from runs import Case, check, commands_of_ranks, kill_all, killed_end, program, ranks_of, state_at, wait_for

LONG = 100000
RARELY = ["--set", "checkpoint.every_steps=0"]


def log_of(case):
    path = case.out / "run.log"
    return path.read_text() if path.exists() else ""


def saved(case):
    return sorted(int(path.name.split("_")[1]) for path in case.out.glob("checkpoints/step_????????"))


def until(case, what, is_so, seconds=60):
    end = time.time() + seconds
    while not is_so():
        check(time.time() < end, f"{what}, in {seconds} s", log_of(case)[-3000:])
        time.sleep(0.01)


def trains(case, further=3):
    """The run goes on: it logs so many steps more."""
    steps = lambda: len(re.findall(r"  loss ", log_of(case)))
    before = steps()
    until(case, "the run goes on", lambda: steps() >= before + further)


def ask(case, how):
    """Asks, and returns the step of the checkpoint that answers."""
    before = saved(case)
    if how == "file":
        (case.out / "SAVE").touch()
    else:
        os.kill(ranks_of(case)[how], signal.SIGURG)
    until(case, f"a checkpoint is asked for by {how}", lambda: len(saved(case)) > len(before))
    until(case, "SAVE is removed", lambda: not (case.out / "SAVE").exists())
    new = sorted(set(saved(case)) - set(before))
    check(len(new) == 1, f"one checkpoint, not those of {new}", log_of(case)[-3000:])
    return new[0]


def stop(case, running):
    (case.out / "STOP").touch()
    text, _ = running.communicate(timeout=60)
    check(running.returncode == 75, f"STOP still stops it, with 75, not {running.returncode}", text)


def on_demand(is_asynchronous):
    with Case("save", steps=LONG) as case, Case("stopped", steps=LONG) as other:
        keys = [*RARELY, "--set", f"checkpoint.asynchronous={is_asynchronous}", "--set", "checkpoint.keep_last=9"]
        running = case.start(*keys)
        until(case, "the run trains", lambda: "  loss " in log_of(case))
        steps = []
        for how in ("file", 0, 1, "file"):
            steps.append(ask(case, how))
            trains(case)
        check(saved(case) == steps, f"a checkpoint for each request: {saved(case)}", log_of(case)[-3000:])
        check(log_of(case).count("a checkpoint is asked for: file SAVE or SIGURG") == 4, "the log says why", log_of(case)[-3000:])
        stop(case, running)
        for step in (steps[0], steps[2]):
            code, text = other.run(*keys, "--set", f"run.stop_after_steps={step - max([0, *saved(other)])}")
            check(code == 75 and state_at(case, step) == state_at(other, step),
                  f"asynchronous {is_asynchronous}: step {step} has the bits of a run that stopped there", text[-3000:])
        print(f"asynchronous {is_asynchronous}: checkpoints of steps {steps}")


def kept_as_others():
    """keep_last counts it."""
    with Case("kept", steps=LONG) as case:
        running = case.start(*RARELY, "--set", "checkpoint.keep_last=1")
        until(case, "the run trains", lambda: "  loss " in log_of(case))
        for count in range(1, 5):
            (case.out / "SAVE").touch()
            until(case, "a checkpoint", lambda count=count: log_of(case).count("checkpoint written") == count)
            trains(case)
        check(len(saved(case)) <= 2, f"keep_last = 1 keeps one that is known good, and the newest: {saved(case)}")
        stop(case, running)


def after_a_kill(is_asynchronous):
    """Ranks killed while a request is open or answered: the next start resumes and answers what is still open."""
    with Case("save_kill", steps=LONG) as case:
        keys = [*RARELY, "--set", f"checkpoint.asynchronous={is_asynchronous}"]
        last = 0
        for delay in (0.0, 0.01, 0.03, 0.3):
            running = case.start(*keys)
            trains(case)
            (case.out / "SAVE").touch()
            time.sleep(delay)
            kill_all(ranks_of(case))
            killed_end(case, running)
            known = max([0, *saved(case)])
            is_open, size = (case.out / "SAVE").exists(), len(log_of(case))
            check(is_open or known > last, "a request that is gone is answered", log_of(case)[-3000:])
            running = case.start(*keys)
            until(case, "the next start trains", lambda size=size: "  loss " in log_of(case)[size:])
            until(case, "the request is answered", lambda: not (case.out / "SAVE").exists())
            check(known == 0 or f"(step {known}," in log_of(case)[size:], f"it resumes from step {known}", log_of(case)[size:])
            stop(case, running)
            check(not is_open or max(saved(case)) > known, "by a checkpoint", log_of(case)[-3000:])
            last = max(saved(case))


def beside_copies():
    """Two imitated hosts copy their state; what is asked for is a checkpoint all the same, and the newer state is resumed."""
    with Case("save_copies", steps=LONG) as case:
        keys = [f"checkpoint.neighbour_directory={case.folder}/hosts/%h", "checkpoint.neighbour_every_steps=4",
                "checkpoint.every_steps=0", "parallel.tp=2", "parallel.dp=2"]
        words = [program, *(word for key in keys for word in ("--set", key)), case.deck]
        command = commands_of_ranks(*((2, ["env", f"NANOTRON_HOST_NAME={host}", *words]) for host in ("a", "b")))
        start = lambda: subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        running = start()
        until(case, "a copy", lambda: "copied to other hosts" in log_of(case))
        step = ask(case, 3)
        until(case, "a later copy", lambda: max(map(int, re.findall(r"step +(\d+)/\d+  copied", log_of(case)))) > step)
        kill_all(ranks_of(case))
        killed_end(case, running)
        size = len(log_of(case))
        running = start()
        until(case, "the next start", lambda: "resumed from copies on the hosts" in log_of(case)[size:])
        again = ask(case, "file")
        check(again > step, f"{again} comes after {step}", log_of(case)[size:])
        stop(case, running)


def what_cannot_be_removed():
    """A folder with content instead of the file: one checkpoint, a warning, and no further ones."""
    with Case("save_folder", steps=LONG) as case:
        (case.out / "SAVE/inner").mkdir(parents=True)
        running = case.start(*RARELY)
        wait_for(case.out / "checkpoints")
        until(case, "a warning", lambda: "cannot be removed and asks the next start for a checkpoint too" in log_of(case))
        trains(case, 10)
        check(len(saved(case)) == 1, f"one checkpoint: {saved(case)}", log_of(case)[-3000:])
        stop(case, running)


def main():
    for is_asynchronous in ("false", "true"):
        on_demand(is_asynchronous)
        after_a_kill(is_asynchronous)
    kept_as_others()
    beside_copies()
    what_cannot_be_removed()


sys.exit(main())
