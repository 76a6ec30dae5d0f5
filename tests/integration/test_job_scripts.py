#!/usr/bin/env python3
# ranks: 2
# timeout: 900
"""The job scripts under stand-ins for Slurm and PBS: what they take for finished, what they try again, and how often.

    test_job_scripts.py <folder of the programs>
"""
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import schedulers
from runs import Case, check, program, root, state_at, wait_for

if os.environ.get("NANOTRON_SANITIZE") == "ON":
    sys.exit(77)  # nothing here is instrumented that is not elsewhere


class Job:
    """Starts of one job in the queue of a stand-in."""

    def __init__(self, case, scheduler="slurm"):
        self.case, self.scheduler = case, scheduler
        self.log = case.folder / "scheduler.log"
        self.log.touch()
        self.status = case.folder / "nanotron-7.status"
        self.environment = schedulers.install(case.folder / "stand_ins", self.log)
        self.environment.update(PROGRAM=program)

    def start(self, *options, code, says, **environment):
        if self.scheduler == "slurm":
            command = ["sbatch", root / "jobscripts/slurm.sh", self.case.deck, *options]
        else:
            variables = f"DECK={self.case.deck},JOB_SCRIPT={root / 'jobscripts/pbs.pro.sh'},OPTIONS={' '.join(options)}"
            command = ["qsub", "-v", variables, root / "jobscripts/pbs.pro.sh"]
        done = subprocess.run(list(map(str, command)), cwd=self.case.folder, text=True, timeout=100,
                              env=dict(self.environment, **environment), stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        check(done.returncode == code, f"the job ends with {code}, not {done.returncode}", done.stdout)
        check(says in done.stdout, f"and says '{says}'", done.stdout)
        return done.stdout

    def requeued(self):
        again = "scontrol requeue 7" if self.scheduler == "slurm" else "qsub -W depend=afterany:7.server"
        return self.log.read_text().count(again)

    def state(self):
        return dict(line.split(" = ", 1) for line in self.status.read_text().splitlines() if " = " in line)


def finished_is_what_the_program_says(scheduler):
    with Case("nothing", steps=6) as case:
        job = Job(case, scheduler)
        for failures in (1, 2):
            job.start(code=71, says="exit code 0, state", STAND_IN_LAUNCH="nothing")
            check(job.requeued() == failures, "a launch that started nothing is tried again", job.log.read_text())
        job.start(code=71, says="failed: 3 starts in a row wrote no checkpoint", STAND_IN_LAUNCH="nothing")
        check(job.requeued() == 2, "three times", job.log.read_text())
        job.start(code=0, says="finished")
        check(job.state()["state"] == "finished" and job.state()["step"] == "6", "then it runs", str(job.state()))
        job.start(code=71, says="exit code 0, state launching", STAND_IN_LAUNCH="nothing")


def what_another_start_mends_and_what_not():
    with Case("codes", steps=6) as case:
        job = Job(case)
        for code in (65, 70, 78):
            job.start(code=code, says=f"failed: exit code {code}", STAND_IN_LAUNCH=str(code))
        check(job.requeued() == 0, "decks, data and numbers are the user's", job.log.read_text())
        job.start(code=71, says="back into the queue", STAND_IN_LAUNCH="71")
        job.start(code=137, says="back into the queue", STAND_IN_LAUNCH="137")
        job.start("--set", "run.stop_after_steps=2", code=75, says="exit code 75, state stopped: back into the queue")
        job.start(code=71, says="back into the queue", STAND_IN_LAUNCH="71", MAX_RESTARTS="4")
        check(job.requeued() == 4, "a checkpoint resets the count of failures", job.log.read_text())
        job.start(code=71, says="not requeued (MAX_RESTARTS)", STAND_IN_LAUNCH="71", SLURM_RESTART_COUNT="1000")
        job.start(code=71, says="a job that follows this one", STAND_IN_LAUNCH="71", STAND_IN_REQUEUE="1",
                  MAX_FAILURES="9", SLURM_JOB_NUM_NODES="3", SLURM_JOB_PARTITION="gpu")
        noted = job.log.read_text()
        check("sbatch --dependency=afterany:7 --export=ALL --nodes=3 --partition=gpu" in noted, "a chain of jobs", noted)
        requeued = job.requeued()
        job.start(code=71, says="a job that follows this one (REQUEUE=no)", STAND_IN_LAUNCH="71", REQUEUE="no", MAX_FAILURES="9")
        check(job.requeued() == requeued and job.log.read_text().count("--dependency=afterany:7") == 2, "without waiting",
              job.log.read_text())


# A rank dies after a checkpoint; the deck begins anew, the job does not.
def a_killed_rank_costs_no_checkpoint(scheduler):
    steps = 100  # none of them is over before the kill
    with Case("whole", steps=steps, checkpoint="resume = 'none'") as whole, \
            Case("killed", steps=steps, checkpoint="resume = 'none'") as killed:
        code, text = whole.run()
        check(code == 0, "a run without a job", text)
        job = Job(killed, scheduler)
        if scheduler == "slurm":
            job.start(code=137, says="exit code 137, state running: back into the queue", STAND_IN_LAUNCH="killed")
        else:
            job.start("--set", "run.stop_after_steps=7", code=75, says="submitting the next job")
        step = int(job.state()["checkpoint"][-8:])
        check(5 <= step < steps, "a checkpoint is noted", str(job.state()))
        text = job.start(code=0, says="finished")
        check(f"step_{step:08d} (step {step}," in text, "the job goes on from it", text)
        check(state_at(whole, steps) == state_at(killed, steps), "to the same bits")


# A start that was lost with its node or batch script is judged by the next one.
def lost_starts_count():
    with Case("lost", steps=6) as case:
        job = Job(case)
        for _ in range(2):
            job.status.write_text(f"state = running\ndirectory = {case.out}/checkpoints\ncheckpoint = \n")
            job.start(code=78, says="failed: exit code 78", STAND_IN_LAUNCH="78", MAX_FAILURES="2")
        job.start(code=71, says="back into the queue", STAND_IN_LAUNCH="71")
        for failures in (2, 3):
            job.status.write_text("state = running\n")
            if failures < 3:
                job.start(code=71, says="back into the queue", STAND_IN_LAUNCH="71", MAX_FAILURES="4")
            else:
                job.start(code=71, says="the last with a lost node or batch script: not started", MAX_FAILURES="4")
        job.start(code=78, says="cannot be written", STATUS_FILE="/no/such/folder/x")


# Whoever asks for the end of a run wants no other job; who submits it again goes on.
def a_stop_file_ends_the_chain(scheduler):
    with Case("held", steps=8) as case:
        job = Job(case, scheduler)
        case.out.mkdir()
        (case.out / "STOP").touch()
        job.start(code=75, says="stopped by the file STOP")
        check(job.state()["state"] == "held" and float(job.state()["checkpoint_seconds"]) > 0, "a user holds it", str(job.state()))
        check(job.requeued() == 0 and "afterany" not in job.log.read_text(), "no job follows", job.log.read_text())
        text = job.start(code=0, says="finished")
        check("(step 1," in text, "it goes on from there", text)


# The status file of another run, of another folder, is not where this one goes on.
def another_runs_file_is_not_followed():
    with Case("first", steps=8, checkpoint="resume = 'none'") as first, \
            Case("second", steps=8, checkpoint="resume = 'none'") as second:
        job, other = Job(first), Job(second)
        shared = str(first.folder / "shared.status")
        job.start("--set", "run.stop_after_steps=6", code=75, says="stopped after step 6", STATUS_FILE=shared)
        text = other.start("--set", "run.stop_after_steps=1", code=75, says="stopped after step 1", STATUS_FILE=shared)
        check("resumed from" not in text, "another run begins anew", text)
    with Case("again", steps=6, checkpoint="resume = 'none'") as case:
        job = Job(case)
        job.start(code=0, says="finished: 6 steps")
        text = job.start(code=0, says="finished: 6 steps")
        check("resumed from" not in text, "a finished job is not gone on with", text)


# An element of an array trains in its own folder, with its own options, and goes on there.
def elements_of_an_array_go_on():
    with Case("array", steps=6, checkpoint="resume = 'none'") as case:
        job = Job(case)
        (case.folder / "seeds.txt").write_text("--set run.seed=1\n--set run.seed=2\n")
        for element in ("1", "2"):
            own = dict(SWEEP="seeds.txt", SLURM_ARRAY_JOB_ID="7", SLURM_ARRAY_TASK_ID=element)
            job.start("--set", "run.stop_after_steps=2", code=75, says="stopped after step 2", **own)
            noted = job.log.read_text()
            check(f"scontrol requeue 7_{element}\n" in noted and "requeue 7\n" not in noted, "that element alone again", noted)
            text = job.start(code=0, says="finished: 6 steps", **own)
            folder = case.folder / "seeds.txt.runs" / element
            check(f"resumed from seeds.txt.runs/{element}/" in text, "it goes on from its own checkpoint", text)
            check(f"seed = {element}" in " ".join((folder / "deck.nml").read_text().split()), "with its own seed")
            check("state = finished" in (folder / "job.status").read_text(), "and its own status")
        check(not case.out.exists(), "nothing is written into the folder of the deck")


# A host that the run found faulty is left out from the next start on; PBS can only say so.
def faulty_hosts_are_left_out():
    with Case("faulty", steps=8) as case:
        job = Job(case)
        job.start("--set", "run.stop_after_steps=6", code=75, says="back into the queue")
        check(job.state()["output_dir"] == str(case.out), "the run is known", str(job.state()))
        (case.out / "excluded_hosts").write_text("n7.site.org 2026-01-01T00:00:00Z step 3: memory\nn3 2026-01-02 step 5: sums\n")
        job.start(code=71, says="a job that follows this one, without n3,n7", STAND_IN_LAUNCH="71")
        check("sbatch --dependency=afterany:7 --export=ALL --nodes=1 --exclude=n3,n7" in job.log.read_text(), "by its name")
        job.start(code=71, says="sbatch refuses it: this job again", STAND_IN_LAUNCH="71", STAND_IN_SBATCH="1")
        check(job.requeued() == 2, "as it is", job.log.read_text())
        job.start(code=71, says="NO JOB FOLLOWS", STAND_IN_LAUNCH="71", STAND_IN_SBATCH="1", STAND_IN_REQUEUE="1", MAX_FAILURES="9")
        job.start(code=71, says="back into the queue", STAND_IN_LAUNCH="71", EXCLUDED="n3,n7", MAX_FAILURES="9")
        check(job.requeued() == 4, "a job that excludes them is requeued as it is", job.log.read_text())
    with Case("faulty", steps=8) as case:
        job = Job(case, "pbs")
        job.start("--set", "run.stop_after_steps=6", code=75, says="submitting the next job")
        host = socket.gethostname()
        (case.out / "excluded_hosts").write_text(f"n7 2026-01-01 step 3: memory\n{host} 2026-01-01 step 3: memory\n")
        job.start(code=0, says=f"of the hosts of this run these are faulty: {host};")


# After two starts in a row that failed the nodes of the job are left, where there are as many others.
def other_nodes_after_two_failures():
    with Case("nodes", steps=6) as case:
        job = Job(case)
        own = dict(STAND_IN_LAUNCH="71", SLURM_JOB_NODELIST="n1,n2", SLURM_JOB_NUM_NODES="2", SLURM_JOB_PARTITION="gpu",
                   STAND_IN_NODES="n1 n2 n3 n4", MAX_FAILURES="9")
        job.start(code=71, says="back into the queue", **own)
        check(job.requeued() == 1 and "--exclude" not in job.log.read_text(), "one failure: the same job", job.log.read_text())
        job.start(code=71, says="a job that follows this one, without n1,n2", **own)
        check("--partition=gpu --exclude=n1,n2" in job.log.read_text(), "two: others", job.log.read_text())
        job.start(code=71, says="a job that follows this one, without n3,n4",
                  **own | dict(SLURM_JOB_NODELIST="n3,n4", LEFT_NODES="n1,n2", EXCLUDED="n1,n2"))
    with Case("nodes", steps=6) as case:
        job = Job(case)
        for _ in range(2):
            job.start(code=71, says="back into the queue", **own | dict(STAND_IN_NODES="n1 n2 n3"))
        check(job.requeued() == 2, "too few others: the same nodes", job.log.read_text())


# qsig asks for a checkpoint and a job that follows; SIGTERM before the time is up, as of qdel, for a checkpoint alone.
def signals_to_the_script_of_pbs():
    for name, says in (("USR1", "submitting the next job"), ("USR2", "submitting the next job"),
                       ("TERM", "PBS ends this job before its time")):
        with Case("signals", steps=10**6) as case:
            job = Job(case, "pbs")
            command = ["qsub", "-v", f"DECK={case.deck},JOB_SCRIPT={root / 'jobscripts/pbs.pro.sh'}", root / "jobscripts/pbs.pro.sh"]
            running = subprocess.Popen(list(map(str, command)), cwd=case.folder, text=True, env=job.environment,
                                       stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            wait_for(case.out / "checkpoints/step_00000005")
            running.send_signal(getattr(signal, f"SIG{name}"))
            text = running.communicate(timeout=60)[0]
            check(running.returncode == 75 and says in text, f"SIG{name}: {running.returncode}, {says}", text)
            check(job.requeued() == (name != "TERM"), f"SIG{name}: what follows", job.log.read_text())
            check(job.state()["state"] == "judged", f"SIG{name}: judged", str(job.state()))


def a_launcher_does_not_wait_for_ever():
    with Case("waits", steps=6) as case:
        job = Job(case)
        began = time.time()
        job.start(code=71, says="the launcher has not: killed", STAND_IN_LAUNCH="waits", STAND_IN_RUN=str(case.out),
                  VERDICT_SECONDS="1")
        check(time.time() - began < 60, "after the verdict")
        check(job.requeued() == 1 and job.state()["state"] == "judged", "the job is tried again", job.log.read_text())
        job.start(code=71, says="the launcher has not: killed", STAND_IN_LAUNCH="waits", STAND_IN_RUN=str(case.out),
                  STAND_IN_ENDS="yes", VERDICT_SECONDS="1")  # one that ends at once
        job.start(code=0, says="finished", VERDICT_SECONDS="0")  # an old verdict ends nothing


def both_scripts_judge_alike():
    blocks = [(root / "jobscripts" / name).read_text().split("####")[1] for name in ("slurm.sh", "pbs.pro.sh")]
    check(blocks[0] == blocks[1] and "judge()" in blocks[0], "the common block is the same text")


def the_status_file_never_ends_a_run():
    with Case("status", steps=3) as case:
        code, text = case.run("--status", str(case.folder / "no/such/folder/x"))
        check(code == 0 and text.count("cannot be written") == 1, "a warning", text)
    with Case("resume", steps=6, checkpoint="resume = 'none'") as case:
        code, text = case.run("--set", "run.stop_after_steps=2")
        check(code == 75 and "--set checkpoint.resume=auto" in text, "how to go on where the deck begins anew", text)


assert Path(program).exists()
for name in ("slurm", "pbs"):
    finished_is_what_the_program_says(name)
    a_killed_rank_costs_no_checkpoint(name)
    a_stop_file_ends_the_chain(name)
what_another_start_mends_and_what_not()
lost_starts_count()
another_runs_file_is_not_followed()
elements_of_an_array_go_on()
faulty_hosts_are_left_out()
other_nodes_after_two_failures()
signals_to_the_script_of_pbs()
a_launcher_does_not_wait_for_ever()
both_scripts_judge_alike()
the_status_file_never_ends_a_run()
print("job scripts: passed")
