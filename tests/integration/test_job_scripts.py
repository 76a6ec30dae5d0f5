#!/usr/bin/env python3
# ranks: 2
# timeout: 900
"""The job scripts under stand-ins for Slurm, PBS and PJM: what they take for finished, what they try again, and how often.

    test_job_scripts.py <folder of the programs>
"""
import datetime
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

import faults
import schedulers
from runs import Case, check, program, root, state_at, wait_for
from skips import skip

if os.environ.get("NANOTRON_SANITIZE") == "ON":
    skip("nothing here is instrumented that is not elsewhere")


SCRIPTS = dict(slurm="slurm.sh", pbs="pbs.pro.sh", pjm="pjm.sh")
FOLLOWS = dict(slurm="scontrol requeue 7", pbs="qsub -W depend=afterany:7.server", pjm="pjsub -z jid --step --sparam jid=7 ")


class Job:
    """Starts of one job in the queue of a stand-in."""

    def __init__(self, case, scheduler="slurm"):
        self.case, self.scheduler = case, scheduler
        self.log = case.folder / "scheduler.log"
        self.log.touch()
        self.status = case.folder / "nanotron-7.status"
        self.environment = schedulers.install(case.folder / "stand_ins", self.log)
        self.environment.update(PROGRAM=program)
        self.script = root / "jobscripts" / SCRIPTS[scheduler]
        self.kind = ["--step"]  # of a PJM job

    def begin(self, *options, **environment):
        """A start that runs."""
        if self.scheduler == "slurm":
            command = ["sbatch", self.script, self.case.deck, *options]
        elif self.scheduler == "pjm":
            values = [f"DECK={self.case.deck}", f"JOB_SCRIPT={self.script}", "PROGRAM", f"OPTIONS={' '.join(options)}", *environment]
            command = ["pjsub", *self.kind, *(word for value in values for word in ("-x", value)), self.script]
        else:
            command = ["qsub", "-v", f"DECK={self.case.deck},JOB_SCRIPT={self.script},OPTIONS={' '.join(options)}", self.script]
        return subprocess.Popen(list(map(str, command)), cwd=self.case.folder, text=True,
                                env=dict(self.environment, **environment), stdin=subprocess.DEVNULL,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    def end(self, running, code, says):
        text = running.communicate(timeout=100)[0]
        check(running.returncode == code, f"the job ends with {code}, not {running.returncode}", text)
        check(says in text, f"and says '{says}'", text)
        return text

    def start(self, *options, code, says, **environment):
        return self.end(self.begin(*options, **environment), code, says)

    def before(self, name, text):
        """Bash that runs before the stand-in of this name, and may exit."""
        stand_in = self.case.folder / "stand_ins" / name
        as_it_was = stand_in.rename(stand_in.with_name(f"{name}.as_it_was")) if stand_in.exists() else "true"
        stand_in.write_text(f'#!/bin/bash\n{text}\nexec "{as_it_was}" "$@"\n')
        stand_in.chmod(0o755)

    def requeued(self):
        return self.log.read_text().count(FOLLOWS[self.scheduler])

    def state(self):
        return dict(line.split(" = ", 1) for line in self.status.read_text().splitlines() if " = " in line)


def finished_is_what_the_program_says(scheduler):
    with Case("nothing", steps=6) as case:
        job = Job(case, scheduler)
        for failures in (1, 2):
            job.start(code=71, says="exit code 0, state", STAND_IN_LAUNCH="nothing")
            check(job.requeued() == failures, "a launch that started nothing is tried again", job.log.read_text())
        job.start(code=71, says="failed: 3 starts brought no checkpoint or copy of a later step", STAND_IN_LAUNCH="nothing")
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
        job.start(code=71, says="requeueing the job", STAND_IN_LAUNCH="71")
        job.start(code=137, says="requeueing the job", STAND_IN_LAUNCH="137")
        job.start("--set", "run.stop_after_steps=2", code=75, says="exit code 75, state stopped: requeueing the job")
        job.start(code=71, says="requeueing the job", STAND_IN_LAUNCH="71", MAX_RESTARTS="4")
        check(job.requeued() == 4, "a checkpoint resets the count of failures", job.log.read_text())
        job.start(code=71, says="not requeued (MAX_RESTARTS)", STAND_IN_LAUNCH="71", SLURM_RESTART_COUNT="1000")
        job.start(code=71, says="submitting a dependent job", STAND_IN_LAUNCH="71", STAND_IN_REQUEUE="1",
                  MAX_FAILURES="9", SLURM_JOB_NUM_NODES="3", SLURM_JOB_PARTITION="gpu")
        noted = job.log.read_text()
        check("sbatch --dependency=afterany:7 --export=ALL --nodes=3 --partition=gpu" in noted, "a chain of jobs", noted)
        requeued = job.requeued()
        job.start(code=71, says="submitting a dependent job (REQUEUE=no)", STAND_IN_LAUNCH="71", REQUEUE="no", MAX_FAILURES="9")
        check(job.requeued() == requeued and job.log.read_text().count("--dependency=afterany:7") == 2, "without waiting",
              job.log.read_text())


# A rank dies after a checkpoint; the deck starts from scratch, the job does not.
def a_killed_rank_costs_no_checkpoint(scheduler):
    steps = 100  # none of them is over before the kill
    with Case("whole", steps=steps, checkpoint="resume = 'none'") as whole, \
            Case("killed", steps=steps, checkpoint="resume = 'none'") as killed:
        code, text = whole.run()
        check(code == 0, "a run without a job", text)
        job = Job(killed, scheduler)
        if scheduler == "slurm":
            job.start(code=137, says="exit code 137, state running: requeueing the job", STAND_IN_LAUNCH="killed")
        else:
            job.start("--set", "run.stop_after_steps=7", code=75, says="submitting the next job")
        step = int(job.state()["checkpoint"][-8:])
        check(5 <= step < steps, "a checkpoint is noted", str(job.state()))
        text = job.start(code=0, says="finished")
        check(f"step_{step:08d} (step {step}," in text, "the job continues from it", text)
        check(state_at(whole, steps) == state_at(killed, steps), "to the same bits")


# The deck starts from scratch; the status file, which says that the job goes on, is there.
def a_status_file_that_cannot_be_looked_at(scheduler):
    with Case("looks", steps=6, checkpoint="resume = 'none'") as case:
        job = Job(case, scheduler)
        job.start("--set", "run.stop_after_steps=2", code=75, says="exit code 75")
        library = faults.build(case.folder, r"""
#include <sys/stat.h>
int stat(const char *restrict path, struct stat *restrict status) {
  REAL(stat);
  if (strcmp(program_invocation_short_name, "bash") != 0 || !strstr(path, ".status")) return real(path, status);
  errno = ESTALE;
  return -1;
}
""")
        text = job.start(code=0, says="finished", LD_PRELOAD=str(library))
        check("resumed from" in text and "step       1/" not in text, "the job continues from its checkpoint", text)


# A start that was lost with its node or batch script is judged by the next one.
def lost_starts_count():
    with Case("lost", steps=6) as case:
        job = Job(case)
        for _ in range(2):
            job.status.write_text(f"state = running\ndirectory = {case.out}/checkpoints\ncheckpoint = \n")
            job.start(code=78, says="failed: exit code 78", STAND_IN_LAUNCH="78", MAX_FAILURES="2")
        job.start(code=71, says="requeueing the job", STAND_IN_LAUNCH="71")
        for failures in (2, 3):
            job.status.write_text("state = running\n")
            if failures < 3:
                job.start(code=71, says="requeueing the job", STAND_IN_LAUNCH="71", MAX_FAILURES="4")
            else:
                job.start(code=71, says="the last with a lost node or batch script: not started", MAX_FAILURES="4")
        job.start(code=78, says="cannot be written", STATUS_FILE="/no/such/folder/x")


# Copies of another identity each time: a start that continues from the same checkpoint gets no further by them.
COPIES_AT_A_STEP = """
if [ -n "${STAND_IN_STEP:-}" ]; then
  folder="/dev/shm/nanotron_hpc-0/$RANDOM/step_$(printf %08d "$STAND_IN_STEP")"
  printf 'state = running\\ncheckpoint = %s\\n' "$folder" > "$STATUS_FILE"
  exit 71
fi"""


def only_later_steps_are_progress(scheduler):
    launcher, again = ("srun", "requeueing the job") if scheduler == "slurm" else ("mpiexec", "submitting the next job")
    given_up = "failed: 3 starts brought no checkpoint or copy of a later step"
    for steps in ((110, 110, 110, 110), (110, 105, 110, 105, 110, 105)):
        with Case("copies", steps=6) as case:
            job = Job(case, scheduler)
            job.before(launcher, COPIES_AT_A_STEP)
            for step in steps[:-1]:
                job.start(code=71, says=again, STAND_IN_STEP=str(step))
            job.start(code=71, says=given_up, STAND_IN_STEP=str(steps[-1]))
            check(job.requeued() == len(steps) - 1, f"steps {steps} do not continue forever", job.log.read_text())
    with Case("back", steps=6) as case:  # to an earlier checkpoint, from which it comes forward; then past the highest
        job = Job(case, scheduler)
        job.before(launcher, COPIES_AT_A_STEP)
        for step in (200, 100, 120, 140, 160, 100, 120, 210, 150, 150):
            job.start(code=71, says=again, STAND_IN_STEP=str(step))
        job.status.unlink()  # as somebody does who wants an older checkpoint
        for step in (50, 50, 50):
            job.start(code=71, says=again, STAND_IN_STEP=str(step))
        job.start(code=71, says=given_up, STAND_IN_STEP="50")


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
        check("(step 1," in text, "it continues from there", text)


# The status file of another run, of another folder, is not where this one goes on.
def another_runs_file_is_not_followed():
    with Case("first", steps=8, checkpoint="resume = 'none'") as first, \
            Case("second", steps=8, checkpoint="resume = 'none'") as second:
        job, other = Job(first), Job(second)
        shared = str(first.folder / "shared.status")
        job.start("--set", "run.stop_after_steps=6", code=75, says="stopped after step 6", STATUS_FILE=shared)
        text = other.start("--set", "run.stop_after_steps=1", code=75, says="stopped after step 1", STATUS_FILE=shared)
        check("resumed from" not in text, "another run starts from scratch", text)
    with Case("again", steps=6, checkpoint="resume = 'none'") as case:
        job = Job(case)
        job.start(code=0, says="finished: 6 steps")
        text = job.start(code=0, says="finished: 6 steps")
        check("resumed from" not in text, "a finished job is not gone on with", text)


# An element of an array trains in its own folder, with its own options, and continues there.
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
            check(f"resumed from seeds.txt.runs/{element}/" in text, "it continues from its own checkpoint", text)
            check(f"seed = {element}" in " ".join((folder / "deck.nml").read_text().split()), "with its own seed")
            check("state = finished" in (folder / "job.status").read_text(), "and its own status")
        check(not case.out.exists(), "nothing is written into the folder of the deck")


# A host that the run found faulty is left out from the next start on; PBS can only say so.
def faulty_hosts_are_left_out():
    with Case("faulty", steps=8) as case:
        job = Job(case)
        job.start("--set", "run.stop_after_steps=6", code=75, says="requeueing the job")
        check(job.state()["output_dir"] == str(case.out), "the run is known", str(job.state()))
        (case.out / "excluded_hosts").write_text("n7.site.org 2026-01-01T00:00:00Z step 3: memory\nn3 2026-01-02 step 5: sums\n")
        job.start(code=71, says="submitting a dependent job without n3,n7", STAND_IN_LAUNCH="71")
        check("sbatch --dependency=afterany:7 --export=ALL --nodes=1 --exclude=n3,n7" in job.log.read_text(), "by its name")
        job.start(code=71, says="sbatch failed: requeueing this job", STAND_IN_LAUNCH="71", STAND_IN_SBATCH="1")
        check(job.requeued() == 2, "as it is", job.log.read_text())
        job.start(code=71, says="NO JOB FOLLOWS", STAND_IN_LAUNCH="71", STAND_IN_SBATCH="1", STAND_IN_REQUEUE="1", MAX_FAILURES="9")
        job.start(code=71, says="requeueing the job", STAND_IN_LAUNCH="71", EXCLUDED="n3,n7", MAX_FAILURES="9")
        check(job.requeued() == 4, "a job that excludes them is requeued as it is", job.log.read_text())
    with Case("faulty", steps=8) as case:
        job = Job(case, "pbs")
        job.start("--set", "run.stop_after_steps=6", code=75, says="submitting the next job")
        host = socket.gethostname()
        (case.out / "excluded_hosts").write_text(f"n7 2026-01-01 step 3: memory\n{host} 2026-01-01 step 3: memory\n")
        job.start(code=0, says=f"lists hosts of this run as faulty: {host};")


# After two starts in a row that failed the nodes of the job are left, where there are as many others.
def other_nodes_after_two_failures():
    with Case("nodes", steps=6) as case:
        job = Job(case)
        own = dict(STAND_IN_LAUNCH="71", SLURM_JOB_NODELIST="n1,n2", SLURM_JOB_NUM_NODES="2", SLURM_JOB_PARTITION="gpu",
                   STAND_IN_NODES="n1 n2 n3 n4", MAX_FAILURES="9")
        job.start(code=71, says="requeueing the job", **own)
        check(job.requeued() == 1 and "--exclude" not in job.log.read_text(), "one failure: the same job", job.log.read_text())
        job.start(code=71, says="submitting a dependent job without n1,n2", **own)
        check("--partition=gpu --exclude=n1,n2" in job.log.read_text(), "two: others", job.log.read_text())
        job.start(code=71, says="submitting a dependent job without n3,n4",
                  **own | dict(SLURM_JOB_NODELIST="n3,n4", LEFT_NODES="n1,n2", EXCLUDED="n1,n2"))
    with Case("nodes", steps=6) as case:
        job = Job(case)
        for _ in range(2):
            job.start(code=71, says="requeueing the job", **own | dict(STAND_IN_NODES="n1 n2 n3"))
        check(job.requeued() == 2, "too few others: the same nodes", job.log.read_text())
        job.start(code=71, says="requeueing the job", **own | dict(USER_EXCLUDED="n4"))
        check(job.requeued() == 3, "one that the user excludes is none", job.log.read_text())
    with Case("nodes", steps=6) as case:
        job = Job(case)
        job.before("srun", COPIES_AT_A_STEP)
        for step, says in ((110, "requeueing"), (100, "requeueing"), (100, "job without n1,n2"), (105, "requeueing")):
            job.start(code=71, says=says, STAND_IN_STEP=str(step), **own)
        check(job.requeued() == 3, "nodes on which it got further are kept", job.log.read_text())


# Hosts that the user excluded stay so in jobs that follow; those of the script come and go.
def the_users_exclusion_stays():
    with Case("excluded", steps=8) as case:
        job = Job(case)
        job.before("scontrol", """
if [ "$1 $2" = "show job" ]; then printf '   ReqNodeList=(null) ExcNodeList=%s\\n' "$STAND_IN_EXCLUDED"; fi
if [ "$*" = "show hostnames n[8-9]" ]; then printf 'n8\\nn9\\n' && exit; fi""")
        case.out.mkdir()
        job.status.write_text(f"state = judged\noutput_dir = {case.out}\n")
        own = dict(code=71, STAND_IN_LAUNCH="71", REQUEUE="no", MAX_FAILURES="9")
        job.start(says="submitting a dependent job", STAND_IN_EXCLUDED="n[8-9]", **own)
        check("--nodes=1 --exclude=n8,n9 --time" in job.log.read_text(), "of the first job", job.log.read_text())
        (case.out / "excluded_hosts").write_text("n3 2026-01-02 step 5: sums\n")
        job.start(says="without n3", STAND_IN_EXCLUDED="n[8-9]", USER_EXCLUDED="n8,n9", **own)
        check("--nodes=1 --exclude=n3,n8,n9 --time" in job.log.read_text(), "and those of the script", job.log.read_text())
        (case.out / "excluded_hosts").unlink()
        job.start(says="without the exclusion", STAND_IN_EXCLUDED="n[3,8-9]", USER_EXCLUDED="n8,n9", EXCLUDED="n3", **own)
        check(job.log.read_text().count("--nodes=1 --exclude=n8,n9 --time") == 2, "which are repaired", job.log.read_text())
        job.start(says="submitting a dependent job", STAND_IN_EXCLUDED="(null)", **own)
        check("--nodes=1 --time" in job.log.read_text(), "nobody's", job.log.read_text())


# The job that follows counts restarts from 0, and is of this script, wherever it lies.
def what_the_next_job_is_given():
    with Case("next", steps=6) as case:
        job = Job(case)
        job.script = case.folder / "my scripts/slurm.sh"
        job.script.parent.mkdir()
        shutil.copy(root / "jobscripts/slurm.sh", job.script)
        job.before("sbatch", """
if [[ " $*" = *" --dependency="* ]]; then echo "restarts $RESTARTS + ${SLURM_RESTART_COUNT:-none}" >> "$STAND_IN_LOG"; fi""")
        job.before("scontrol", f"""
if [ "$1 $2" = "show job" ]; then printf '   Command=%s %s --set run.seed=3\\n   WorkDir=/\\n' "$STAND_IN_SCRIPT" {case.deck} && exit; fi""")
        job.start("--set", "run.seed=3", code=71, says="submitting a dependent job", STAND_IN_LAUNCH="71", REQUEUE="no", RESTARTS="2",
                  SLURM_RESTART_COUNT="3")
        noted = job.log.read_text()
        check("restarts 6 + none" in noted, "restarts count once", noted)
        check(f"--time=1:00:00 {job.script} {case.deck} --set run.seed=3\n" in noted, "a path with a blank", noted)


# The time that is left and the times for the ledger; the next job asks for what this one has.
def what_a_job_has():
    with Case("has", steps=6) as case:
        job = Job(case)
        job.before("squeue", 'if [ "${*: -1}" = %L ]; then echo "$STAND_IN_LEFT" && exit; fi')
        job.before("scontrol", """
if [ "$1 $2" = "show job" ]; then printf '   SubmitTime=2026-01-02T03:04:05 x=y\\n   StartTime=2026-01-02T04:00:00 x=y\\n'; fi""")
        job.before("srun", 'echo "times $NANOTRON_SUBMIT_TIME $NANOTRON_JOB_START_TIME" >> "$STAND_IN_LOG"')
        own = dict(code=71, STAND_IN_LAUNCH="71", MAX_FAILURES="99")
        for left, seconds in (("2-03:04:05", 183815), ("1:00:00", 3570), ("10:00", 570), ("45", 15), ("29", 1)):
            job.log.write_text("")
            job.start(says=f"restart 0: {seconds} seconds left", STAND_IN_LEFT=left, **own)
            check(f"--set run.wall_time_limit={seconds}" in job.log.read_text(), f"{left} is a limit of {seconds} s", job.log.read_text())
        times = [int(datetime.datetime(2026, 1, 2, *clock).timestamp()) for clock in ((3, 4, 5), (4, 0, 0))]
        check(f"times {times[0]} {times[1]}\n" in job.log.read_text(), "the ledger's times", job.log.read_text())
        job.log.write_text("")
        job.start(says="no limit of seconds left", STAND_IN_LEFT="UNLIMITED", **own)
        check("srun" in job.log.read_text() and "wall_time_limit" not in job.log.read_text(), "no limit", job.log.read_text())
        job.start(says="submitting a dependent job", STAND_IN_LEFT="45", REQUEUE="no", SLURM_NTASKS_PER_NODE="4", SLURM_CPUS_PER_TASK="8",
                  SLURM_GPUS_PER_NODE="2", SLURM_JOB_PARTITION="gpu", SLURM_JOB_ACCOUNT="physics", SLURM_JOB_QOS="long", **own)
        check("--nodes=1 --ntasks-per-node=4 --cpus-per-task=8 --gpus-per-node=2 --partition=gpu --account=physics --qos=long "
              "--time=1:00:00" in job.log.read_text(), "the next job", job.log.read_text())


# qsig asks for a checkpoint and a job that follows; SIGTERM before the time is up, as of qdel, for a checkpoint alone.
def signals_to_the_script(scheduler):
    for name, says in (("USR1", "submitting the next job"), ("USR2", "submitting the next job"),
                       ("TERM", f"{scheduler.upper()} ends this job before its time")):
        with Case("signals", steps=10**6) as case:
            job = Job(case, scheduler)
            running = job.begin()
            wait_for(case.out / "checkpoints/step_00000005")
            running.send_signal(getattr(signal, f"SIG{name}"))
            job.end(running, 75, says)
            check(job.requeued() == (name != "TERM"), f"SIG{name}: what follows", job.log.read_text())
            check(job.state()["state"] == "judged", f"SIG{name}: judged", str(job.state()))


# A launcher whose program ends when it is asked to, or not at all, and a scheduler whose first answers fail.
PROGRAM_OF_JOB = """
echo "mpiexec $*" >> "$STAND_IN_LOG"
if [ -n "${STAND_IN_STATE:-}" ]; then
  trap '[ "$STAND_IN_STATE" = deaf ] || { echo "state = $STAND_IN_STATE" > "$STATUS_FILE"; exit 75; }' USR1
  touch runs
  while [ -e runs ]; do sleep 0.05; done
  exit 137
fi"""
ANSWERS = """
if [ "${STAND_IN_FAILS:-0}" = unlimited ]; then echo " STATE : RUN" && exit; fi
echo asked >> "$STAND_IN_LOG"
if [ "$(grep -c ^asked "$STAND_IN_LOG")" -le "${STAND_IN_FAILS:-0}" ]; then echo "cannot connect to server" >&2 && exit 1; fi"""


def a_scheduler_that_does_not_answer(scheduler):
    says, submits, asks, deletes = dict(pbs=("PBS", "qsub -W", "qstat", "qdel"), pjm=("PJM", "pjsub -z", "pjstat", "pjdel"))[scheduler]
    repeats = {f"{asks.upper()}_SECONDS": "0"}
    with Case("deaf", steps=6) as case:
        job = Job(case, scheduler)
        job.before(asks, ANSWERS)
        job.before("mpiexec", PROGRAM_OF_JOB)
        job.before(submits.split()[0], f'if [ "$1" = {submits.split()[1]} ]; then echo 8.server; fi')
        job.before(deletes, f'echo "{deletes} $*" >> "$STAND_IN_LOG"')

        def left(text="seconds left", **environment):
            job.log.write_text("")
            text = job.start("--set", "run.stop_after_steps=1", code=75, says=text, **repeats, **environment)
            seconds = int((re.search(r"(\d+) seconds left", text) or [0, -1])[1])
            noted = job.log.read_text()
            check("mpiexec" in noted and (f"--set run.wall_time_limit={seconds} " in noted) == (seconds >= 0), "which the program is told", noted)
            return seconds

        def terminated(state, code, text, **environment):
            job.log.write_text("")
            running = job.begin(STAND_IN_STATE=state, **repeats, **environment)
            wait_for(case.folder / "runs")
            running.send_signal(signal.SIGTERM)
            if state == "deaf":
                end = time.time() + 30
                while submits not in job.log.read_text():
                    check(time.time() < end, "the next job is submitted while the program ends")
                    time.sleep(0.05)
                (case.folder / "runs").unlink()
            job.end(running, code, text)
            (case.folder / "runs").unlink(missing_ok=True)
            return job.log.read_text()

        check(3500 < left(STAND_IN_FAILS="3") <= 3570, "it is asked again")
        check(500 < left(STAND_IN_FAILS="99", WALLTIME="10:00") <= 570, "the user knows it")
        check(job.log.read_text().count("asked") == 1, "which needs no second question", job.log.read_text())
        job.start(code=78, says="WALLTIME=soon is neither", WALLTIME="soon")
        check(left(f"{says} does not answer", STAND_IN_FAILS="99") == -1, "nobody does")

        noted = terminated("stopped", 75, "the next job: 8.server", STAND_IN_FAILS="99")
        check(noted.count(submits) == 1 and deletes not in noted, "SIGTERM is the end of the time: one follows", noted)
        noted = terminated("deaf", 137, "the next job: 8.server", STAND_IN_FAILS="99")
        check(noted.count(submits) == 1, "also of a program that does not end", noted)
        noted = terminated("finished", 0, "finished", STAND_IN_FAILS="99")
        check(f"{deletes} 8.server" in noted, "none follows a run that is finished", noted)
        noted = terminated("stopped", 75, f"{says} ends this job before its time", STAND_IN_FAILS="unlimited")
        check(submits not in noted, f"a queue without a limit: SIGTERM is {deletes}'s", noted)


# The next step of a step job, and a job of its own where the job is none or takes no step. What it is given.
def what_the_next_pjm_job_is_given():
    with Case("given", steps=6) as case:
        job = Job(case, "pjm")
        own = dict(code=71, STAND_IN_LAUNCH="71", MAX_FAILURES="99")
        job.before("mpiexec", 'echo "mpiexec $* times $NANOTRON_SUBMIT_TIME $NANOTRON_JOB_START_TIME" >> "$STAND_IN_LOG"\n'
                   'if [ -n "${STAND_IN_LAUNCH:-}" ]; then exit "$STAND_IN_LAUNCH"; fi')
        job.start("--set", "run.title=a,b", says="submitting the next job", SUBMIT_OPTIONS="-g physics", RESTARTS="2", **own)
        noted = job.log.read_text()
        check("pjsub -z jid --step --sparam jid=7 -g physics -x DECK -x OPTIONS -x PROGRAM -x JOB_SCRIPT -x SUBMIT_OPTIONS -x MAX_FAILURES "
              f"-x RESTARTS -x STATUS_FILE {job.script}\n" in noted, "variables by their names", noted)
        check("mpiexec -n 2 " in noted and "--set run.title=a,b" in noted, "the ranks of --mpi proc, and a value with a comma", noted)
        times = [int(datetime.datetime(2026, 1, 2, *clock).timestamp()) for clock in ((3, 4, 5), (4, 0, 0))]
        check(f" times {times[0]} {times[1]}\n" in noted, "the ledger's times", noted)
        job.log.write_text("")
        job.start(says="the next job: submitted", STAND_IN_STEP_JOB="1", **own)
        check("pjsub -z jid -x DECK" in job.log.read_text(), "a step job that takes no step", job.log.read_text())
        job.kind = []
        job.log.write_text("")
        job.start(says="the next job: submitted", RANKS_PER_NODE="3", **own)
        noted = job.log.read_text()
        check("pjsub -z jid -x DECK" in noted and "jid=7" not in noted, "none", noted)
        check("mpiexec -n 6 " in noted, "ranks of each node", noted)
        job.start(says="NO JOB FOLLOWS", STAND_IN_PJSUB="1", **own)
        job.before("pjstat", """
if [ "$1" = -s ]; then echo " JOB ID : 7" && exit; fi
echo "JOB_ID  JOB_NAME  MD  ST   USER   START_DATE      ELAPSE_LIM  NODE_REQUIRE  VNODE  CORE  V_MEM"
echo "7       pjm.sh    NM  RUN  user1  11/17 09:01:41  0002:00:00  12:2x3x2      -      -     -" && exit""")
        text = job.start(says="seconds left", **own)
        left = int(re.search(r"(\d+) seconds left", text)[1])
        check(7100 < left <= 7170, "the limit in the list of jobs", text)


# Where compute nodes cannot submit, steps are submitted beforehand: after the end of the run they do nothing.
def steps_submitted_beforehand():
    for state, code, says in (("finished", 0, "finished"), ("held", 75, "stopped by the file STOP"), ("ended", 78, "failed: exit code 78")):
        with Case("beforehand", steps=6) as case:
            job = Job(case, "pjm")
            job.before("mpiexec", 'if [ -n "${STAND_IN_LAUNCH:-}" ]; then exit "$STAND_IN_LAUNCH"; fi')
            own = dict(MAX_RESTARTS="0")
            job.start("--set", "run.stop_after_steps=2", code=75, says="not submitted again (MAX_RESTARTS)", **own)
            check(job.requeued() == 0, "none follows", job.log.read_text())
            if state == "held":
                (case.out / "STOP").touch()
            job.start(code=code, says=says, STAND_IN_NUMBER="1", **own, **(dict(STAND_IN_LAUNCH="78") if state == "ended" else {}))
            check(job.state()["state"] == state, "the run is over", str(job.state()))
            for number in ("2", "3"):
                text = job.start(code=0, says="nothing to do", STAND_IN_NUMBER=number, **own)
                check("resumed from" not in text, "and stays so", text)
            job.start(code=0, says="finished", **own)  # a new step job


def a_launcher_does_not_wait_for_ever():
    with Case("waits", steps=6) as case:
        job = Job(case)
        began = time.time()
        job.start(code=71, says="the launcher still runs after the verdict of a hang: killed", STAND_IN_LAUNCH="waits", STAND_IN_RUN=str(case.out),
                  VERDICT_SECONDS="1")
        check(time.time() - began < 60, "after the verdict")
        check(job.requeued() == 1 and job.state()["state"] == "judged", "the job is tried again", job.log.read_text())
        job.start(code=71, says="the launcher still runs after the verdict of a hang: killed", STAND_IN_LAUNCH="waits", STAND_IN_RUN=str(case.out),
                  STAND_IN_ENDS="yes", VERDICT_SECONDS="1")  # one that ends at once
        job.start(code=0, says="finished", VERDICT_SECONDS="0")  # an old verdict ends nothing


def outside_of_a_job_they_say_how():
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("SLURM_", "PBS_", "PJM_"))}
    for name, says in (("slurm.sh", "submit it with sbatch"), ("pbs.pro.sh", "submit it with qsub -v DECK=x.deck"),
                       ("pjm.sh", "submit it with pjsub --step -x DECK=x.deck")):
        done = subprocess.run(["bash", root / "jobscripts" / name, "x.deck"], env=environment | {"DECK": "x.deck"}, text=True,
                              capture_output=True)
        check(done.returncode == 78 and says in done.stderr, f"{name} outside of a job says '{says}'", done.stderr)


def all_scripts_judge_alike():
    texts = [(root / "jobscripts" / name).read_text() for name in SCRIPTS.values()]
    blocks = {text.split("####")[1] for text in texts}
    check(len(blocks) == 1 and "judge()" in blocks.pop(), "the common block is the same text")
    programs = {text[text.index("# find_program <"):].split("\n}\n")[0] for text in texts}
    check(len(programs) == 1, "they find the same program")


def the_status_file_never_ends_a_run():
    with Case("status", steps=3) as case:
        code, text = case.run("--status", str(case.folder / "no/such/folder/x"))
        check(code == 0 and text.count("cannot be written") == 1, "a warning", text)
    with Case("resume", steps=6, checkpoint="resume = 'none'") as case:
        code, text = case.run("--set", "run.stop_after_steps=2")
        check(code == 75 and "--set checkpoint.resume=auto" in text, "how to continue if the deck starts from scratch", text)


assert Path(program).exists()
for name in SCRIPTS:
    finished_is_what_the_program_says(name)
    a_killed_rank_costs_no_checkpoint(name)
    a_status_file_that_cannot_be_looked_at(name)
    a_stop_file_ends_the_chain(name)
    only_later_steps_are_progress(name)
outside_of_a_job_they_say_how()
what_another_start_mends_and_what_not()
lost_starts_count()
another_runs_file_is_not_followed()
elements_of_an_array_go_on()
faulty_hosts_are_left_out()
other_nodes_after_two_failures()
the_users_exclusion_stays()
what_the_next_job_is_given()
what_a_job_has()
for name in ("pbs", "pjm"):
    signals_to_the_script(name)
    a_scheduler_that_does_not_answer(name)
what_the_next_pjm_job_is_given()
steps_submitted_beforehand()
a_launcher_does_not_wait_for_ever()
all_scripts_judge_alike()
the_status_file_never_ends_a_run()
print("job scripts: passed")
