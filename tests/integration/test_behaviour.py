#!/usr/bin/env python3
# ranks: 2
# timeout: 1200
"""What a user meets: exit codes, messages, early stops, damaged files, a rank that dies.

    test_behaviour.py <folder of the programs>
"""
import contextlib
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import h5py
import numpy as np

from runs import Case, call, check, commands_of_ranks, expect, mpiexec, program, ranks_of, report_of, root, wait_for


def losses(output):
    return {int(s): l for s, l in re.findall(r"step +(\d+)/\d+  loss (\S+)", output)}


def finishes_and_resumes():
    with Case("plain") as whole, Case("parts") as parts:
        code, text = whole.run()
        check(code == 0 and "finished: 10 steps" in text, "a run finishes with 0", text)
        check("keys that are not at their defaults" in text and "&parallel dp = 1, tp = 2" in text,
              "the log names the keys that are set", text)
        check(re.search(r"memory of rank \d, the largest", text) and re.search(r"peak resident memory: \d+ MiB on rank", text),
              "and the memory of the largest rank", text)
        first_code, _ = parts.run("--set", "run.steps=5")
        code, again = parts.run()
        check((first_code, code) == (0, 0) and "resumed from" in again, "a run resumes", again)
        check(losses(again)[10] == losses(text)[10], "the resumed run has the same losses", again)
        code, other = parts.run("--set", "parallel.tp=1", "--set", "run.steps=12")
        check(code == 0 and "dp = 2" in other, "another grid goes on", other)
        rows = "verified, 18 rows\n"  # 12 steps, 3 starts, a checkpoint of each
        expect(sys.executable, root / "tools/nanotron_verify.py", parts.out / "metrics.h5", says=[rows])


def a_run_that_is_at_its_end():
    with Case("end") as case:
        case.run()
        before = {name: (case.out / name).read_bytes() for name in ("deck.nml", "metrics.h5")}
        code, text = case.run("--set", "run.title=again")
        check(code == 0 and f"nothing to do: {case.out} is at step 10 of run%steps = 10; raise run%steps" in text,
              "a run that is at its end says so", text)
        check("finished" not in text, "and does not claim to have done it", text)
        code, text = case.run("--set", "run.steps=7")
        check(code == 0 and "is at step 10, beyond run%steps = 7" in text, "so does one that is beyond it", text)
        for name, content in before.items():
            check((case.out / name).read_bytes() == content, f"{name} is of the run that was")


def quiet_console():
    with Case("quiet", data="validation_fraction = 0.2") as case:
        code, text = case.run("--set", "output.console=quiet")
        check(code == 0 and re.search(r"finished: 10 steps, .* s; loss \d\.\d+, validation loss \d\.\d+", text),
              "a quiet console shows the summary", text)
        check("step " not in text and "grid:" not in text and "where the time went" not in text, "and no progress", text)
        log = (case.out / "run.log").read_text()
        check("step      10/10" in log and "where the time went" in log, "the log has it all")
        code, text = case.run("--set", "output.console=quiet")
        check(code == 0 and re.search("^nothing to do", text, re.M), "and so it does when there is nothing to do", text)


def command_lines():
    def refused(*arguments, of="nanotron_hpc", says):
        expect(Path(program).with_name(of), *arguments, code=78, says=[says])

    def helps(*arguments, has, lacks):
        done = subprocess.run([program, *arguments], text=True, timeout=100, stdout=subprocess.PIPE)
        check(done.returncode == 0 and has in done.stdout and lacks not in done.stdout, f"{arguments}", done.stdout)

    refused("--chek", "a.deck", says="did you mean --check?")
    refused("--dry-run", "a.deck", says="did you mean --check?")
    refused("--learning-rate", "1e-3", says="--set optimizer.learning_rate=...")
    refused("--num-layers=4", "a.deck", says="--set model.num_hidden_layers=...")
    refused("a.deck", "b.deck", says="the argument 'b.deck' was not expected")
    refused("--set", "parallel.tp=2", "parallel.dp=4", "b.deck", says="--set parallel.dp=4")
    refused("no_such.deck", says="No such file or directory")
    refused(tempfile.gettempdir(), says="found:    a directory")
    refused("--promt", "x", "--checkpoint", "y", of="nanotron_generate", says="did you mean --prompt?")
    refused("--chekpoint", "y", of="nanotron_generate", says="did you mean --checkpoint?")
    refused("--round", "3", of="nanotron_bench", says="did you mean --rounds?")
    refused("--help", "optimiser", says="did you mean --help optimizer?")
    refused("--help", "warmup_steps", says="--help schedule has the key warmup_steps")
    helps("--help", has="--set", lacks="no such text")
    helps("-h", "moe", has="  num_experts_per_tok              ", lacks="hidden_size  ")
    helps("--help", "&MOE", has="&moe\n", lacks="--set")
    helps("--help", "input.deck", has="--set", lacks="no such text")
    helps("--help", "runs/model.nml", has="--set", lacks="no such text")
    with Case("foreign") as case:
        case.deck.write_text("model:\n  hidden_size: 512\ndata:\n  path: tokens.h5\n")
        code, text = case.run()
        check(code == 78 and text.count("error") == 1 and "looks like YAML" in text, "YAML is told once", text)


def deck_errors():
    with Case("deck", run="stepz = 3") as case:
        code, text = case.run()
        check(code == 78, f"a wrong key gives 78, not {code}", text)
        check("input.deck:2:" in text and "did you mean" in text, "it is named like a compiler does", text)
        check(text.count("did you mean") == 1, "and printed once, not by every rank", text)
        check(not case.out.exists(), "nothing is touched", text)
    with Case("grid", tp=3) as case:
        code, text = case.run()
        check(code == 78 and "3" in text and "2 ranks" in text, "a grid that does not fit names both numbers", text)
    with Case("later") as case:
        for key, value in (("ep", 2),):
            code, text = case.run("--check", "--set", f"parallel.{key}={value}", ranks=1)
            check(code == 78 and f"{key}" in text, f"parallel%{key} = {value} is refused", text)
        code, text = case.run("--check", ranks=1)
        check(code == 0 and "deck OK" in text, "--check needs no ranks", text)
        (case.folder / "loop").symlink_to("loop")
        for vocabulary, result in ((131, 0), (0, 65)):
            code, text = case.run("--check", "--set", f"data.path={case.folder}/loop", "--set",
                                  f"model.vocab_size={vocabulary}", ranks=1)
            check(code == result and "Too many levels of symbolic links" in text, "why a file is not seen is told", text)
        code, text = case.run("--plan", ranks=1)
        check(code == 0 and "MiB" in text, "--plan needs no ranks", text)
        check("while a checkpoint is written" in text, "and tells of checkpoints", text)
        code, text = case.run("--plan", "--set", "parallel.dp=2", "--set", "parallel.tp=2", ranks=1)
        for axis, span in (("tensor parallel", 2), ("data parallel", 3)):
            check(re.search(rf"^  {axis} +2 +{span} ranks +[0-9.]+ MiB +[0-9.]+ MiB$", text, re.MULTILINE),
                  f"{axis}: ranks of a group, how far apart, bytes", text)
        experts = ("--set", "moe.num_experts=4", "--set", "moe.router_aux_loss_coef=0.02")
        for scale, words in (("per_layer", "sum over the layers of a loss that is 1"), ("hugging_face", "mean over the layers of a loss that is 2")):
            code, text = case.run("--plan", *experts, "--set", f"moe.router_aux_loss_scale={scale}", ranks=1)
            check(code == 0 and f"load balance 0.02 ('{scale}': {words} for an even load)" in text,
                  f"the scale of the router's loss is told: {scale}", text)
        cut = ("--set", "parallel.dp=1", "--set", "parallel.pp=2", "--set", "parallel.pp_cut=time")
        for action in ("--check", "--plan"):
            code, text = case.run(action, *cut, ranks=1)
            check(code == 0 and "the run measures the blocks" in text, f"{action} knows that the cut is measured", text)
        layers = ("--set", "parallel.dp=1", "--set", "parallel.pp=0", "--set", "parallel.pp_layers=1 1")
        code, text = case.run("--check", *layers, ranks=1)
        check(code == 0 and "2 stages" in text, "an open pp follows from pp_layers", text)
        code, text = case.run("--set", "parallel.dp=3", "--set", "parallel.tp=0", ranks=2)
        check(code == 78 and "does not divide the 2 ranks" in text and "micro_batch_size * dp = 1 * 3" in text,
              "a wrong grid and the batch are told in one run", text)
        code, text = case.run("--nonsense", ranks=1)
        check(code == 78, f"a wrong option gives 78, not {code}", text)
        code, text = case.run("--set", "run.steps=many", ranks=1)
        check(code == 78 and "run.steps" in text, "a wrong --set names itself", text)


def data_errors():
    with Case("nodata", tokens="/nonexistent/tokens.h5") as case:
        code, text = case.run()
        check(code == 65 and "/nonexistent/tokens.h5" in text, f"a missing token file gives 65, not {code}", text)
        story = case.folder / "story.txt"
        story.write_text("Once upon a time")
        code, text = case.run("--set", f"data.path={story}")
        check(code == 65 and 'begins with "Once upon a time"' in text and f"nanotron_tokenize.py {story}" in text,
              "a text file is recognised", text)
    with Case("garbage") as case:
        bad = case.folder / "bad.h5"
        bad.write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(range(256)) * 16)
        code, text = case.run("--set", f"data.path='{bad}'")
        check(code == 65 and "bad.h5" in text, f"a broken token file gives 65, not {code}", text)


def damaged_checkpoints():
    with Case("damage") as case:
        case.run()
        newest = case.out / "checkpoints/step_00000010/checkpoint.h5"
        data = bytearray(newest.read_bytes())
        data[len(data) // 2] ^= 1
        newest.write_bytes(data)
        code, text = case.run("--set", "run.steps=12")
        check(code == 0 and "step_00000010" in text and "step 5," in text,
              "auto names the damaged one and takes the one before", text)
        data[len(data) // 2] ^= 1
        (case.out / "checkpoints/step_00000012/checkpoint.h5").write_bytes(data[:1000])
        named = case.out / "checkpoints/step_00000012"
        code, text = case.run("--set", "run.steps=20", "--set", f"checkpoint.resume='{named}'")
        check(code == 65 and "step_00000012" in text, f"a damaged one asked for by name gives 65, not {code}", text)


def stops_after_steps():
    with Case("whole") as whole, Case("pieces") as case:
        _, text = whole.run()
        parts = ""
        for last in (4, 8):
            code, part = case.run("--set", "run.stop_after_steps=4")
            check(code == 75 and f"stopped after step {last} of 10: run%stop_after_steps reached" in part,
                  f"a piece gives 75, not {code}", part)
            check((case.out / f"checkpoints/step_{last:08}").exists(), "and leaves a checkpoint", part)
            parts += part
        code, part = case.run("--set", "run.stop_after_steps=4")
        check(code == 0 and "finished: 10 steps" in part, "the piece that reaches the end gives 0", part)
        check(losses(parts + part) == losses(text), "pieces are the run that was not cut", parts + part)
        code, text = case.run("--set", "run.steps=2", "--set", "schedule.warmup_steps=5")
        check(code == 78 and "--set run.stop_after_steps=2" in text, "who lowers run%steps is told of it", text)


def early_stops():
    with Case("stop", steps=100000, run="wall_time_limit = 2.0 wall_time_margin = 0.5") as case:
        code, text = case.run()
        check(code == 75 and "wall_time_limit" in text, f"wall time gives 75, not {code}", text)
        check(list((case.out / "checkpoints").glob("step_*")), "and leaves a checkpoint", text)
    with Case("file", steps=100000) as case:
        case.out.mkdir()
        (case.out / "STOP").touch()
        code, text = case.run()
        check(code == 75 and "STOP" in text and not (case.out / "STOP").exists(), "a STOP file gives 75", text)
    with Case("signal", steps=100000) as case:
        running = case.start()
        wait_for(case.out / "checkpoints/step_00000005")
        running.send_signal(signal.SIGUSR1)
        text, _ = running.communicate(timeout=60)
        check("a signal asked for it" in text, "SIGUSR1 to mpiexec stops the run", text)
        # MPICH's mpiexec, signalled, gives 0 now and then although every rank gave 75
        check(running.returncode == 75 or "MPICH" in text, f"and gives 75, not {running.returncode}", text)
    with Case("rank", steps=100000) as case:
        running = case.start()
        wait_for(case.out / "checkpoints/step_00000005")
        os.kill(ranks_of(case)[1], signal.SIGTERM)
        text, _ = running.communicate(timeout=60)
        check(running.returncode == 75, f"SIGTERM to one rank gives 75, not {running.returncode}", text)
    for number in (signal.SIGHUP, signal.SIGQUIT, signal.SIGXCPU):
        with Case("rank", steps=100000) as case:
            running = case.start()
            wait_for(case.out / "checkpoints/step_00000005")
            os.kill(ranks_of(case)[1], number)
            text, _ = running.communicate(timeout=60)
            check(running.returncode == 75 and "checkpoint written" in text, f"{number.name} to one rank gives 75", text)
    with Case("signals", steps=100000) as case:  # many, in products of oneDNN, which borrow the heap as a stack
        wide = ["--set", "model.hidden_size=256", "--set", "model.vocab_size=32768"]
        running = case.start(*wide)
        wait_for(case.out / "run.log")
        while running.poll() is None:
            for rank in ranks_of(case):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(rank, signal.SIGUSR1)
            time.sleep(0.002)
        text, _ = running.communicate(timeout=60)
        check(running.returncode == 75, f"signals from the start to the end give 75, not {running.returncode}", text)


def validation_beside_an_early_end():
    with Case("last", steps=1, data="validation_fraction = 0.2") as case:
        running = case.start()
        wait_for(case.out / "run.log")
        running.send_signal(signal.SIGUSR1)
        text, _ = running.communicate(timeout=60)
        check("finished: 1 steps" in text, "a signal at the last step is no early end", text)
        check(0 <= text.find("checkpoint written") < text.find("validation loss"), "the weights are safe before", text)
    with Case("long", data="validation_fraction = 0.9 validation_batches = 0 validation_every = 1",
              run="wall_time_limit = 20 wall_time_margin = 0") as case:
        with h5py.File(case.folder / "tokens.h5", "w") as file:
            file["tokens"] = (np.arange(2_400_000) * 7 % 131).astype(np.uint16)
        code, text = case.run("--set", f"data.path={case.folder}/tokens.h5", "--set", "data.global_batch_size=1",
                              "--set", "data.sequence_length=8")
        check(code == 75 and "stopped after step 1 of 10" in text, "a validation that does not fit stops the run", text)
        check(re.search(r"1/10  validation skipped, it takes about \d+\.\d s: run%wall_time_limit is near", text),
              "and the log says that it was left out", text)


def killed_rank():
    with Case("kill", steps=100000) as case:
        running = case.start()
        wait_for(case.out / "checkpoints/step_00000010")
        victims = ranks_of(case)
        check(len(victims) == 2, f"two ranks run, found {victims}")
        os.kill(victims[1], signal.SIGKILL)
        text, _ = running.communicate(timeout=60)
        check(running.returncode != 0, "a killed rank never gives 0", text)
        end = time.time() + 20
        while ranks_of(case) and time.time() < end:
            time.sleep(0.1)
        check(not ranks_of(case), "no rank is left behind", text)
        saved = sorted(p.name for p in (case.out / "checkpoints").glob("step_????????"))
        code, text = case.run("--set", f"run.steps={int(saved[-1][5:]) + 3}")
        check(code == 0 and "resumed from" in text, "the run continues from its last checkpoint", text)


def bad_numbers():
    with Case("nan") as case:
        code, text = case.run("--set", "optimizer.learning_rate=1e30", "--set", "optimizer.clip_grad_norm=0",
                              "--set", "run.steps=50")
        check(code == 70 and "not finite" in text and "change:" in text, f"bad numbers give 70, not {code}", text)
        check("no known good checkpoint" in text, "and no checkpoint is called good", text)
    with Case("diverged") as case:
        case.run()
        code, text = case.run("--set", "optimizer.learning_rate=1e30", "--set", "optimizer.clip_grad_norm=0",
                              "--set", "run.steps=50", "--set", "checkpoint.every_steps=1")
        named = re.search(r"--set checkpoint.resume='(\S+)'", text)
        check(code == 70 and named and named[1].endswith("step_00000010"), "the newest known good one is named", text)
        check((case.out / "checkpoints/step_00000011").exists(), "not the one of weights that diverged", text)
        code, text = case.run("--set", "run.steps=12", "--set", f"checkpoint.resume={named[1]}")
        check(code == 0 and "step 10," in text, "the run continues from the one named", text)


def state_of(case):
    facts = report_of(case)
    return facts["state"], facts["why"]


def what_ended_a_run():
    """It is in the run's folder and in the status file, and the tools say it."""
    with Case("ended", steps=12) as case:
        status, log = case.folder / "status", case.out / "run.log"

        def ends(code, what, *keys):
            found, text = case.run("--status", str(status), *(word for key in keys for word in ("--set", key)))
            lines = dict(line.split(" = ", 1) for line in status.read_text().splitlines())
            check(found == code and f"ended with exit code {code}" not in text, f"{keys} give {code}, not {found}", text)
            check(log.read_text().endswith(f"\nended with exit code {code}\n"), f"run.log has the end with {code}", text)
            check(lines["state"] == "failed" and lines["exit_code"] == str(code) and what in lines["error"],
                  f"and so has the status of {code}", lines)
            check(lines["steps"] == "12" and "checkpoint" in lines, "which keeps its other lines", lines)
            if (case.out / "metrics.h5").exists():
                state, why = state_of(case)
                check(state == "failed" and what in why, f"nanotron-report says so of {code}", (state, why))

        ends(65, "no such folder", f"checkpoint.resume={case.folder}/nothing")
        ends(70, "not finite", "optimizer.learning_rate=1e30", "optimizer.clip_grad_norm=0")
        shutil.rmtree(case.out / "checkpoints")
        code, text = case.run("--status", str(status))
        check(code == 0 and "exit_code" not in status.read_text(), "the next start has a status of its own", text)
        check(state_of(case) == ("finished", ""), "and finishes", text)
        case.run()
        check(state_of(case) == ("finished", ""), "one more start of a finished run changes nothing")
        ends(78, "of a different model", "model.hidden_size=48", "run.steps=12")
    with Case("silent", steps=100000) as case:
        running = case.start()
        wait_for(case.out / "checkpoints/step_00000005")
        check(state_of(case)[0] == "running", "a run that goes on", state_of(case))
        for rank in ranks_of(case):
            os.kill(rank, signal.SIGKILL)
        running.communicate(timeout=60)
        for name in ("run.log", "metrics.h5"):
            os.utime(case.out / name, (time.time() - 3600,) * 2)
        state, why = state_of(case)
        check(state == "no recent output" and "nothing was written for 1:00:0" in why and "a step takes" in why,
              "one that was killed", (state, why))


def two_runs_in_one_directory():
    with Case("twice", steps=1000000) as case:
        running = case.start("--set", "run.check_stragglers_every=0")  # the other starts would make one
        wait_for(case.out / "checkpoints/step_00000005")
        code, text = case.run("--set", "checkpoint.resume=none", ranks=2)
        check(code == 71 and "another run writes" in text and ", process " in text, "a second run is refused", text)
        check("waiting up to" in text, "and says that it waits", text)
        elsewhere = f"run.output_dir={case.folder}/other"
        code, text = case.run("--set", elsewhere, "--set", f"checkpoint.directory={case.out}/checkpoints")
        check(code == 71 and "another run writes" in text, "and so it is in the folder of checkpoints", text)
        (case.out / "STOP").touch()
        text, _ = running.communicate(timeout=60)
        check(running.returncode == 75, f"the first run lives on and stops with 75, not {running.returncode}", text)
        check(not list(case.out.glob("*superseded*")) and "warning" not in text, "nobody moved its files", text)


def refused_runs_touch_nothing():
    with Case("refused") as case:
        case.run()
        deck = (case.out / "deck.nml").read_text()
        code, text = case.run("--set", "model.hidden_size=48", "--set", "run.steps=20")
        check(code == 78 and "hidden_size" in text, "another model is refused", text)
        check((case.out / "deck.nml").read_text() == deck, "deck.nml is of the run that was", text)
        code, text = case.run("--set", "run.steps=12", "--set", f"checkpoint.resume={case.folder}/nothing")
        check(code == 65 and "no such folder" in text and "change:" in text, "a missing checkpoint gives 65", text)


def benchmarks():
    with Case("bench") as case:
        bench = Path(program).with_name("nanotron_bench")
        environment = dict(os.environ, TMPDIR=str(case.folder))

        def run(at, *arguments):
            done = subprocess.run([mpiexec, "-n", "2", str(at), *(arguments or ("--set", "parallel.tp=3"))],
                                  text=True, timeout=100, cwd=case.folder, env=environment, stdin=subprocess.DEVNULL,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            return done.returncode, done.stdout

        code, text = run(bench, "--deck", str(case.deck), "--only", "step", "--rounds", "1", "--steps", "1",
                         "--seconds", "0.01")
        groups = re.findall(r"^ *(tensor parallel|data parallel|shard group|replicate group)  ", text, re.MULTILINE)
        check(code == 0 and sorted(groups) == ["data parallel", "replicate group", "shard group", "tensor parallel"],
              f"each group of a step is counted once: {groups}", text)
        code, text = run(bench)
        check(code == 78 and "does not divide the 2 ranks" in text, "the deck of the source tree is found", text)
        check(not list(case.folder.glob("nanotron_bench_*")), "nothing is left of a benchmark that was refused", text)
        code, text = run(shutil.copy(bench, case.folder))
        check(code == 78 and "no deck to measure" in text and "--deck" in text, "a missing deck is named", text)


def branches():
    with Case("trunk", steps=20) as trunk, Case("branch") as branch:
        trunk.run()
        branch.run()
        code, text = branch.run("--set", "run.steps=22", "--set", "checkpoint.every_steps=1",
                                "--set", f"checkpoint.resume={trunk.out}/checkpoints/step_00000020")
        check(code == 0 and "step 20," in text, "a branch begins where it was told to", text)
        kept = sorted(p.name for p in (branch.out / "checkpoints.superseded-1").glob("step_*"))
        check(kept == ["step_00000005", "step_00000010"], f"what was there is set aside, found {kept}", text)


def nodes_with_disks_of_their_own():
    with Case("local", out="run") as case:
        nodes = [case.folder / name for name in ("a", "b")]
        for node in nodes:
            node.mkdir()
        expect(*commands_of_ranks(*((1, ["env", "-C", node, program, case.deck]) for node in nodes)), code=71,
               says=["rank 1 on host", "all nodes share"])


def links_are_not_followed():
    """Except the one of the whole folder."""
    with Case("links", steps=12) as case:
        (case.folder / "scratch").mkdir()
        case.out.symlink_to(case.folder / "scratch")
        code, text = case.run("--set", "run.stop_after_steps=5")
        check(code == 75 and (case.folder / "scratch/metrics.h5").is_file(), "a folder that is a link serves", text)
        precious = {}
        for name in ("run.log", "deck.nml", "metrics.h5"):
            target = precious[name] = case.folder / f"precious_{name}"
            shutil.move(case.out / name, target)
            (case.out / name).symlink_to(target)
        before = {name: target.read_bytes() for name, target in precious.items()}
        code, text = case.run()
        check(code == 0 and "resumed from" in text and "symbolic link" in text, "the run continues beside links", text)
        for name, target in precious.items():
            check(target.read_bytes() == before[name], f"what {name} leads to is not written", text)
        check(not (case.out / "metrics.h5").is_symlink(), "metrics begin in a file of their own")


def checkpoints_that_are_gone():
    with Case("gone", steps=12) as case:
        status = ["--status", str(case.folder / "status")]
        code, text = case.run(*status, "--set", "run.stop_after_steps=7")
        checkpoints, away = case.out / "checkpoints", case.folder / "away"
        checkpoints.rename(away)
        for arguments, record in ((status, "status names"), ([], "metrics.h5 records")):
            code, text = case.run(*arguments)
            check(code == 71 and record in text and "resume=none" in text, f"no start from step 0: {arguments}", text)
        check([p.name for p in checkpoints.iterdir()] == ["run.lock"], "and nothing is written")
        (checkpoints / "latest").symlink_to("step_00000007")
        (case.out / "metrics.h5").unlink()
        code, text = case.run()
        check(code == 71 and "latest names" in text, "nor where only the link is left", text)
        code, text = case.run("--set", "checkpoint.resume=none", "--set", "run.stop_after_steps=2", "--set",
                              "checkpoint.every_steps=0")
        check(code == 75 and "step       1/12" in text, "on purpose it does", text)


def auxiliary_files_lock_nobody_out():
    with Case("aside", steps=12) as case:
        case.run("--set", "run.stop_after_steps=5")
        (case.out / "metrics.h5").unlink()
        (case.out / "metrics.h5").mkdir()
        (case.out / "run.log").unlink()
        os.mkfifo(case.out / "run.log")
        precious = case.folder / "precious"
        precious.write_text("mine")
        (case.out / "deck.nml.tmp").symlink_to(precious)
        os.mkfifo(case.folder / "status")
        code, text = case.run("--status", str(case.folder / "status"), "--set", "run.stop_after_steps=2")
        check(code == 75 and "step 5," in text, "the run continues beside them", text)
        check("run.log" in text and "metrics.h5 cannot be read and is moved to" in text, "and says what it lacks", text)
        check(precious.read_text() == "mine", "no link is followed")
        (case.out / "deck.nml").unlink()
        (case.out / "deck.nml").mkdir()
        code, text = case.run()
        check(code == 0 and "deck.nml cannot be written" in text, "nor does deck.nml end it", text)


def streams_that_are_closed():
    with Case("closed", steps=6) as case:
        def run(streams, *keys):
            return subprocess.run(["bash", "-c", f'"$@" {streams}', "bash", program, "--set", "parallel.tp=1", *keys, case.deck],
                                  timeout=100, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

        done = run(">&- 2>&- <&-")
        check(done.returncode == 0, f"closed streams are no reason to fail: {done.returncode}")
        log = (case.out / "run.log").read_text()
        check("finished: 6 steps" in log, "the log has it all", log)
        printed = re.findall(r"^(?:step +\d|finished: |grid: |where the time went).*$", log, re.MULTILINE)
        check(len(printed) >= 9, f"lines that the console shows: {printed}", log)
        files = [file for file in case.out.rglob("*") if file.is_file() and file.name != "run.log"]
        check({"deck.nml", "metrics.h5", "checkpoint.h5"} <= {file.name for file in files}, "the other files", files)
        for file in files:
            check(not any(line.encode() in file.read_bytes() for line in printed), f"nothing is printed into {file}")
        done = run("| head -1; exit ${PIPESTATUS[0]}", "--set", "run.steps=200")
        check(done.returncode == 71 and "standard output could not be written" in done.stdout,
              f"a console that goes away is told: {done.returncode}", done.stdout)
        check("step_00000200" in os.listdir(case.out / "checkpoints"), "and ends no run", done.stdout)


def what_is_told_before_it_happens():
    with Case("unsaved") as case:
        unsaved = "no checkpoint is written before the end"
        for arguments in (["--check"], []):
            code, text = case.run(*arguments, "--set", "checkpoint.every_steps=0", ranks=1 if arguments else 2)
            check(code == 0 and text.count(unsaved) == 1, f"{arguments}: a run without checkpoints is warned of", text)
            code, text = case.run(*arguments, "--set", "run.steps=20", ranks=1 if arguments else 2)
            check(code == 0 and unsaved not in text, f"{arguments}: others are not", text)
    with Case("memory", tp=1) as case:
        kib = int(re.search(r"MemTotal: +(\d+) kB", Path("/proc/meminfo").read_text())[1])
        width = 64 * math.ceil(1.1 * kib * 1024 / (2 * 3 * 64 * 16) / 64)  # 16 bytes for each parameter, of two layers
        code, text = case.run("--set", f"model.intermediate_size={width}", "--set", "model.hidden_size=64", ranks=1)
        check(code == 78 and "the ranks on" in text and "the memory of the host" in text,
              "more memory than the host has is refused", text)
    with Case("deadline", steps=100000) as case:
        expect(*case.command("--set", "run.wall_time_margin=55"), code=75, seconds=200,
               says=["SLURM_JOB_END_TIME", "checkpoint written"], SLURM_JOB_END_TIME=str(int(time.time()) + 60))
        _, text = call(*case.command("--set", "run.stop_after_steps=1"), seconds=200,
                       SLURM_JOB_END_TIME=str(int(time.time()) - 60))
        check(re.search(r"warning: SLURM_JOB_END_TIME was 6\d s ago", text), "one that is over is said", text)
    with Case("threads") as case:
        expect(*case.command(), code=78, says=["found:    100000", "OMP_NUM_THREADS"], OMP_NUM_THREADS="100000")
    with Case("prolonged") as case:
        cosine = ["--set", "schedule.kind=cosine", "--set", "schedule.min_lr_ratio=0.1"]
        case.run(*cosine)
        code, text = case.run(*cosine, "--set", "run.steps=20", "--set", "data.global_batch_size=16",
                              "--set", "optimizer.beta1=0.8", "--set", "precision.moments=bf16")
        check(code == 0 and "warning: the learning rate jumps from 3.661e-05 in step 10 to 0.000165 in step 11" in text,
              "the rate of a run that is prolonged is said", text)
        for change in ("run%steps is 20, was 10", "data%global_batch_size is 16, was 8",
                       "optimizer%beta1 is 0.8, was 0.9", "precision%moments is 'bf16', was 'master'"):
            check(f"changed since the checkpoint: {change}" in (case.out / "run.log").read_text(), change, text)
        code, text = case.run(*cosine, "--set", "schedule.decay_steps=20", "--set", "run.steps=21", "--set",
                              "precision.moments=bf16", "--set", "data.global_batch_size=16")
        check(code == 0 and "jumps" not in text, "and where it continues as before, nothing", text)


for part in (finishes_and_resumes, a_run_that_is_at_its_end, quiet_console, command_lines, deck_errors, data_errors,
             damaged_checkpoints, stops_after_steps, early_stops, validation_beside_an_early_end, killed_rank,
             bad_numbers, what_ended_a_run, two_runs_in_one_directory, refused_runs_touch_nothing, benchmarks, branches,
             nodes_with_disks_of_their_own, links_are_not_followed, checkpoints_that_are_gone,
             auxiliary_files_lock_nobody_out, streams_that_are_closed,
             what_is_told_before_it_happens):
    begin = time.time()
    part()
    print(f"{part.__name__}: passed, {time.time() - begin:.1f} s", flush=True)
