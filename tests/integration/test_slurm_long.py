#!/usr/bin/env python3
# ranks: 4
# timeout: 1500
# labels: long
"""jobscripts/slurm.sh in a Slurm of its own, with all that ends a job early: the time limit, its signal, scancel, a rank or
a launcher that is killed, nodes, their daemons alone, scontrol requeue, arrays, and jobs that may not be requeued. Each ends with
the bits of a run that nobody disturbed.

    test_slurm_long.py <folder of the programs>        NANOTRON_SLURM: names of cases, else all
"""
import os
import shutil
import signal
import sys
import time
from types import SimpleNamespace

from runs import Case, check, chosen, ranks_of, state_at
from slurm_service import Slurm, copies, end, keys_of, log_of, resumes, skip_where_it_cannot_run

STEPS, EVERY = 600, 20
TO_FILE = {"checkpoint__every_steps": 50}


def started(slurm, case, job, at_least=1):
    """Until so many copies or checkpoints are written."""
    slurm.wait(case, "the job runs",
               lambda: copies(case) + log_of(case).count("checkpoint written") >= at_least, job)


def requeued(case):
    return log_of(case).count("requeueing the job")


def wall_time(slurm, case):
    """The program stops by itself before the limit that the script hands it."""
    job = slurm.submit(case, *keys_of(case, EVERY, run__wall_time_margin=50), options=["--time=1"])
    slurm.finish(case, job)
    check(requeued(case) >= 1 and "wall" in log_of(case), "stopped by the limit and went on", log_of(case))


def limit_signal(slurm, case):
    """Slurm's signal arrives before the program's own limit; up to a minute early or late. Many copies: a longer run."""
    job = slurm.submit(case, *keys_of(case, 2), options=["--time=1", "--signal=USR1@57"], LAUNCH_SECONDS="-6000")
    slurm.wait(case, "the signal", lambda: requeued(case) >= 1, job)
    check("signal" in log_of(case), "stopped by the signal", log_of(case))
    run_on(slurm, case, job)


def run_on(slurm, case, job):
    """Without a further stop: more time, as an administrator may give it."""
    slurm.run("scontrol", "update", f"JobId={job}", "TimeLimit=10")
    slurm.finish(case, job, seconds=400)


def cancelled(slurm, case):
    """scancel ends the job; the next one goes on."""
    job = slurm.submit(case, *keys_of(case, EVERY))
    started(slurm, case, job)
    slurm.run("scancel", str(job))
    slurm.wait(case, "the job is gone", lambda: slurm.show(job)["JobState"] == "CANCELLED")
    slurm.wait(case, "its ranks are gone", lambda: not ranks_of(case))
    check(requeued(case) == 0, "and does not put itself back", log_of(case))
    slurm.finish(case, slurm.submit(case, *keys_of(case, EVERY)))
    check("resumed from" in log_of(case), "the second job went on", log_of(case))


def saved_on_demand(slurm, case):
    """scancel --signal=URG asks for a checkpoint, and the job goes on; so does the file SAVE."""
    job = slurm.submit(case, *keys_of(case, EVERY))
    started(slurm, case, job)
    written = lambda: log_of(case).count("checkpoint written")
    for count, ask in enumerate((lambda: slurm.run("scancel", "--signal=URG", str(job)), (case.out / "SAVE").touch), 1):
        ask()
        slurm.wait(case, "a checkpoint", lambda count=count: written() == count, job)
    slurm.finish(case, job)
    check(requeued(case) == 0 and "a checkpoint is asked for" in log_of(case), "without a stop", log_of(case))


def batch_signalled(slurm, case):
    """Signals that reach the batch shell too: it outlives them and requeues the job, and what reaches only the shell asks
    the program to stop."""
    job = slurm.submit(case, *keys_of(case, EVERY))
    for count, options in enumerate((["--signal=TERM", "--batch"], ["--full", "--signal=USR1"], ["--full", "--signal=TERM"]), 1):
        known = copies(case)
        slurm.wait(case, "the job runs", lambda known=known: copies(case) > known, job)
        slurm.run("scancel", *options, str(job))
        slurm.wait(case, f"{options}: requeueing the job", lambda count=count: requeued(case) == count, job)
    slurm.finish(case, job)
    check(log_of(case).count("a signal asked for it") == 2, "two stopped with a checkpoint", log_of(case))


def rank_killed(slurm, case):
    job = slurm.submit(case, *keys_of(case, EVERY))
    for kill in range(2):
        started(slurm, case, job, 2 * kill + 1)
        os.kill(ranks_of(case)[kill], signal.SIGKILL)
        slurm.wait(case, "the job continues from copies", lambda count=kill + 1: len(resumes(case)) == count, job)
    slurm.finish(case, job)


def node_lost(slurm, case, node):
    """Slurm notices by itself. The node of the batch script is another matter than the second one."""
    job = slurm.submit(case, *keys_of(case, EVERY))
    started(slurm, case, job)
    slurm.kill_node(node)
    shutil.rmtree(case.folder / "hosts" / node)
    slurm.wait(case, "the job continues from copies", lambda: len(resumes(case)) == 1, job)
    slurm.finish(case, job)
    slurm.start_node(node)
    slurm.wait(case, "the node is back", lambda: "down" not in slurm.run("sinfo", "-h", "-n", node, "-o", "%T"))


def second_node(slurm, case):
    node_lost(slurm, case, "n2")


def first_node(slurm, case):
    node_lost(slurm, case, "n1")


def daemon(slurm, case):
    """The daemon of a node dies, what runs there does not: the ranks end since the others do, or are in the way of none."""
    job = slurm.submit(case, *keys_of(case, EVERY))
    started(slurm, case, job)
    slurm.kill_daemon("n2")
    slurm.finish(case, job)  # before Slurm notices, or after a restart
    for pid in slurm.processes_of("n2"):
        end(pid, signal.SIGKILL)
    slurm.start_node("n2")
    slurm.wait(case, "the node is back", lambda: "down" not in slurm.run("sinfo", "-h", "-n", "n2", "-o", "%T"))


def all_memory_lost(slurm, case):
    """Both nodes of the job at once: from the file."""
    job = slurm.submit(case, *keys_of(case, EVERY, **TO_FILE))
    slurm.wait(case, "a checkpoint", lambda: "checkpoint written" in log_of(case))
    for node in ("n1", "n2"):
        slurm.kill_node(node)
        shutil.rmtree(case.folder / "hosts" / node)
    for node in ("n1", "n2"):
        slurm.mark_down(node)
    for node in ("n1", "n2"):
        slurm.start_node(node)
    slurm.wait(case, "the job continues from the file", lambda: "/checkpoints/step_" in log_of(case).split("resumed from")[-1]
               and "resumed from" in log_of(case), job)
    slurm.finish(case, job)


def requeue(slurm, case):
    """An administrator, or a job of a higher priority, puts it requeueing the job."""
    job = slurm.submit(case, *keys_of(case, EVERY))
    started(slurm, case, job)
    slurm.run("scontrol", "requeue", str(job))
    slurm.wait(case, "the job goes on", lambda: log_of(case).count("restart 1:") == 1, job)
    slurm.finish(case, job)
    check("resumed from" in log_of(case), "it went on", log_of(case))


def chain(slurm, case):
    """Where requeueing is forbidden, each job submits the one that follows it."""
    job = slurm.submit(case, *keys_of(case, EVERY, run__stop_after_steps=250), options=["--no-requeue"],
                       SUBMIT_OPTIONS=f"--no-requeue --chdir={case.folder} --output=job.log --open-mode=append")
    limit = time.time() + 120
    while "state = finished" not in "".join(path.read_text() for path in case.folder.glob("*.status")):
        check(time.time() < limit, "the chain ends", log_of(case) + slurm.run("squeue"))
        time.sleep(0.2)
    check(log_of(case).count("submitting a dependent job") == 2, "two followers", log_of(case))
    check(slurm.show(job)["Requeue"] == "0", "no job was requeued")


def array(slurm, case):
    """Each element puts itself alone into the queue again: Slurm gives one of them the number of the whole array."""
    sweep, runs = case.folder / "sweep.txt", case.folder / "sweep.txt.runs"
    sweep.write_text("--set output.metrics_every=1\n" * 2)
    job = slurm.submit(case, *keys_of(case, 0, run__stop_after_steps=350), options=["--array=1-2"], SWEEP=str(sweep))
    limit = time.time() + 400
    while "".join(path.read_text() for path in runs.glob("*/job.status")).count("state = finished") < 2:
        check(time.time() < limit, "both end", log_of(case) + slurm.run("squeue"))
        time.sleep(0.5)
    text = log_of(case)
    for element in (1, 2):
        check(text.count(f"job {job}_{element}, restart 0") == 1 and text.count(f"job {job}_{element}, restart 1") == 1, "one restart", text)
    check(requeued(case) == 2 and "restart 2" not in text, "of each", text)
    first, case.out = SimpleNamespace(out=runs / "1"), runs / "2"
    check(state_at(first, STEPS) == state_at(case, STEPS), "the same bits in both", text)


CASES = [array, wall_time, limit_signal, cancelled, saved_on_demand, batch_signalled, rank_killed, second_node, first_node, daemon, all_memory_lost, requeue, chain]


def main(names):
    cases = chosen(CASES, names, lambda work: work.__name__)
    with Slurm() as slurm, Case("slurm_whole", steps=STEPS) as whole:
        slurm.finish(whole, slurm.submit(whole, *keys_of(whole, 0)))
        expected = state_at(whole, STEPS)
        for work in cases:
            begin = time.time()
            with Case(work.__name__, steps=STEPS) as case:
                work(slurm, case)
                check(state_at(case, STEPS) == expected, f"{work.__name__}: the same bits", log_of(case)[-4000:])
            print(f"{work.__name__}: the same bits, {time.time() - begin:.0f} s", flush=True)


skip_where_it_cannot_run()
sys.exit(main(os.environ.get("NANOTRON_SLURM", "").split()))
