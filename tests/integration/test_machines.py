#!/usr/bin/env python3
# ranks: 1
# timeout: 120
"""Files of machines, submit.sh and arrays under stand-ins for Slurm, PBS, PJM, the modules and the program itself: what
reaches the scheduler and the program. No MPI is started.

    test_machines.py <folder of the programs>
"""
import os
import re
import shutil
import tempfile
from pathlib import Path

import schedulers
from runs import check, expect, root
from skips import skip

scripts = root / "jobscripts"
machines = sorted((scripts / "machines").glob("*/*.sh"))

# The program: its arguments and what machines set, in a file for each start; a deck of the name bad... is wrong.
PROGRAM = """#!/bin/bash
{ printf '%s\\n' "$*"; env | grep -E '^(NCCL_|PLANTED|OMP_NUM_THREADS)'; } > "$(mktemp starts.XXXXXX)"
deck="${!#}"
if [ ! -f "$deck" ] || [[ "$deck" = bad* ]]; then exit 78; fi
if [ "$1" = --check ]; then exit 0; fi
while [ $# -gt 0 ]; do
  if [ "$1" = --status ]; then echo "state = ${STAND_IN_STATE:-finished}" > "$2"; fi
  shift
done
if [ "${STAND_IN_STATE:-finished}" != finished ]; then exit 75; fi
"""
# mpiexec of the stand-ins of srun and mpiexec: one process.
LAUNCHER = """#!/bin/bash
echo "launch $*" >> "$STAND_IN_LOG"
while [ "$1" != "$PROGRAM" ]; do shift; done
exec "$@"
"""
CHECKER = '#!/bin/bash\necho "$*" > checked\nexit "${STAND_IN_CHECK:-0}"\n'
MODULE = '#!/bin/bash\necho "module $*" >> "$STAND_IN_LOG"\nexit "${STAND_IN_MODULE:-0}"\n'


class Site:
    """A folder with decks and the stand-ins."""

    def __enter__(self):
        self.folder = Path(tempfile.mkdtemp(prefix="nanotron_machines_"))
        self.log = self.folder / "scheduler.log"
        self.log.touch()
        self.environment = schedulers.install(self.folder / "stand_ins", self.log)
        for name, text in dict(program=PROGRAM, checker=CHECKER, launcher=LAUNCHER, module=MODULE).items():
            (self.folder / "stand_ins" / name).write_text(text)
            (self.folder / "stand_ins" / name).chmod(0o755)
        self.environment.update(PROGRAM=str(self.folder / "stand_ins/program"),
                                NANOTRON_MPIEXEC=str(self.folder / "stand_ins/launcher"))
        for variable in ("SITE", "SWEEP", "ELEMENT", "STATUS_FILE", "MPI_TYPE", "OMP_NUM_THREADS"):
            self.environment.pop(variable, None)
        for deck in ("input.deck", "other.deck", "bad.deck"):
            (self.folder / deck).touch()
        return self

    def __exit__(self, *_):
        shutil.rmtree(self.folder, ignore_errors=True)

    def run(self, *command, **options):
        return expect(*command, cwd=self.folder, environment=self.environment, **options)

    def noted(self):
        """The log of the stand-ins, emptied."""
        text = self.log.read_text()
        self.log.write_text("")
        return text

    def starts(self):
        """What each start of the program noted, forgotten then."""
        files = list(self.folder.glob("starts.*"))
        texts = sorted(file.read_text() for file in files)
        for file in files:
            file.unlink()
        return texts

    def file(self, text):
        """A machine of this text."""
        path = self.folder / "site.sh"
        path.write_text(text)
        return path


def files_are_clean():
    for script in (*machines, *(scripts / name for name in ("slurm.sh", "pbs.pro.sh", "pjm.sh", "submit.sh"))):
        expect("bash", "-n", script)
    page = (root / "doc/job_scripts.md").read_text()
    for machine in machines:
        name = f"{machine.parent.name}/{machine.name}"
        text = machine.read_text()
        check(name in page, f"doc/job_scripts.md names {name}")
        check("never run" in text.lower(), f"{name} says that it has never been run")
        check("https://" in text or machine.parent.name == "generic", f"{name} says where its values are from")


def every_machine_submits():
    for machine in machines:
        name = f"{machine.parent.name}/{machine.name}"
        with Site() as site:
            command = re.search(r"^submit=\"?(\w+)", machine.read_text(), re.M)[1]
            account = dict(sbatch=("--account=project",), qsub=("-A", "project"), pjsub=("-g", "project"))[command]
            site.run(scripts / "submit.sh", machine, *account, "--", "input.deck", "--set", "run.steps=3",
                     says=["finished"])
            noted, starts = site.noted(), site.starts()
            check(len(starts) == 2 and starts[0].startswith("--check --set run.steps=3 input.deck"),
                  f"{name}: the deck is checked first", str(starts))
            check("--set run.steps=3 input.deck" in starts[1], f"{name}: then run", str(starts))
            submitted = f"{command} -" in noted and " ".join(account) in noted
            check(submitted, f"{name} is submitted", noted)
            ranks = dict(sbatch="--ntasks-per-node=", qsub="select=", pjsub="--mpi max-proc-per-node=")[command]
            check(ranks in noted, f"{name}: ranks", noted)
            site.run(scripts / "submit.sh", machine, "--", "bad.deck", code=78)
            check(f"{command} -" not in site.noted(), f"{name}: a wrong deck is not submitted")
            if "module load" in noted:
                site.run(scripts / "submit.sh", machine, "--", "input.deck", code=78, says=["module"],
                         STAND_IN_MODULE="1")


def settings_reach_the_program():
    with Site() as site:
        machine = site.file("submit=sbatch\nsite_options=(--partition=planted --gres=gpu:4)\nMPI_TYPE=default\n"
                            "CPU_BIND=sockets\nexport PLANTED=here NCCL_CROSS_NIC=1 OMP_NUM_THREADS=3\n: $UNSET\n")
        site.run("sbatch", scripts / "slurm.sh", "input.deck", says=["finished"], SITE=str(machine))
        start = site.starts()[0]
        expected = ("PLANTED=here", "NCCL_CROSS_NIC=1", "OMP_NUM_THREADS=3")
        check(all(words in start for words in expected), "in Slurm", start)
        noted = site.noted()
        check("srun --kill" in noted and "--cpu-bind=sockets" in noted and "--mpi" not in noted, "of srun", noted)
        site.run("sbatch", scripts / "slurm.sh", "input.deck", code=78, says=["SITE="], SITE="/no/such/file")
        site.run("qsub", "-v", f"DECK=input.deck,JOB_SCRIPT={scripts / 'pbs.pro.sh'}", scripts / "pbs.pro.sh",
                 says=["finished"], SITE=str(machine))
        start = site.starts()[0]
        check(all(words in start for words in expected), "and in PBS", start)
        site.noted()
        machine.write_text("submit=qsub\nsite_options=(-l select=2:system=x)\nRANKS_PER_NODE=4\n"
                           "MPIEXEC_OPTIONS='--ppn 4'\n")
        site.run(scripts / "submit.sh", machine, "-q", "fast", "--", "input.deck", says=["finished"])
        noted = site.noted()
        check("qsub -l select=2:system=x -q fast -V" in noted, "options of the machine, then of the user", noted)
        check("launch -n 4 --hostfile" in noted and "--ppn 4" in noted, "four ranks on one host", noted)
        machine.write_text("submit=pjsub\nsite_options=(-L node=2 -x PLANTED=here)\nRANKS_PER_NODE=4\n"
                           "MPIEXEC_OPTIONS='-std-proc out'\nexport NCCL_CROSS_NIC=1 OMP_NUM_THREADS=3\n: $UNSET\n")
        site.starts()
        site.run(scripts / "submit.sh", machine, "-L", "rscgrp=small", "--", "input.deck", "--set", "run.title=a,b", says=["finished"],
                 CHECK_PROGRAM=str(site.folder / "stand_ins/checker"))
        noted, starts = site.noted(), site.starts()
        check("pjsub -L node=2 -x PLANTED=here -L rscgrp=small --step -x DECK -x OPTIONS -x JOB_SCRIPT -x PROGRAM -x SITE -x SUBMIT_OPTIONS "
              in noted, "PJM: options of the machine, of the user, and variables by name", noted)
        check("launch -n 8 -std-proc out " in noted, "four ranks on each of two nodes", noted)
        check(len(starts) == 1 and all(words in starts[0] for words in (*expected, "--set run.title=a,b input.deck")), "and in PJM", str(starts))
        check((site.folder / "checked").read_text() == "--check --set run.title=a,b input.deck\n", "another program checks")
        site.run(scripts / "submit.sh", machine, "--", "input.deck", code=3, CHECK_PROGRAM=str(site.folder / "stand_ins/checker"),
                 STAND_IN_CHECK="3")
        check("pjsub" not in site.noted(), "a deck that it refuses is not submitted")


# Where jobs cannot be requeued the next one asks for the same.
def the_next_job_asks_for_the_same():
    with Site() as site:
        machine = site.file("submit=sbatch\nsite_options=(--constraint=planted --gres=gpu:4)\n")
        site.run(scripts / "submit.sh", machine, "--account=a", "--", "input.deck", code=75,
                 says=["submitting a dependent job"], STAND_IN_STATE="stopped", STAND_IN_REQUEUE="1")
        noted = site.noted()
        check("sbatch --constraint=planted --gres=gpu:4 --account=a --dependency=afterany:7 --export=ALL" in noted,
              "Slurm", noted)
        site.run(scripts / "submit.sh", machine, "--array=1-2", "--", "input.deck", code=78, says=["comes from SWEEP"])
        machine.write_text("submit=qsub\nsite_options=(-l select=2:system=x)\n")
        site.run(scripts / "submit.sh", machine, "-A", "a", "--", "input.deck", code=75, says=["submitting the next job"],
                 STAND_IN_STATE="stopped")
        noted = site.noted()
        check("qsub -W depend=afterany:7.server -l select=2:system=x -A a -V" in noted, "PBS", noted)
        for file in site.folder.glob("nanotron-7.status*"):  # three starts without progress are too many
            file.unlink()
        machine.write_text("submit=pjsub\nsite_options=(-L node=2 -x PLANTED=here)\n")
        site.run(scripts / "submit.sh", machine, "-g", "a", "--", "input.deck", code=75, says=["submitting the next job"],
                 STAND_IN_STATE="stopped")
        noted = site.noted()
        check("pjsub -z jid --step --sparam jid=7 -L node=2 -x PLANTED=here -g a -x DECK" in noted, "PJM", noted)
        for option in ("--bulk", "--step"):
            site.run(scripts / "submit.sh", machine, option, "--", "input.deck", code=78, says=["comes from SWEEP"])


def elements_have_folders_of_their_own():
    for scheduler in ("sbatch", "qsub", "pjsub"):
        with Site() as site:
            queue = dict(sbatch="--partition=planted", qsub="-q planted", pjsub="-L rscgrp=planted")[scheduler]
            machine = site.file(f"submit={scheduler}\nsite_options=({queue})\n")
            (site.folder / "lr.txt").write_text("--set optimizer.learning_rate=1e-4\nother.deck --set optimizer.learning_rate=2e-4\n"
                                                "--set optimizer.learning_rate=3e-4 --set run.seed=2\n")
            site.run(scripts / "submit.sh", machine, "--", "input.deck", "--set", "run.steps=3", SWEEP="lr.txt",
                     says=["finished"])
            starts = site.starts()
            checked = [start for start in starts if start.startswith("--check")]
            runs = [start.splitlines()[0] for start in starts if not start.startswith("--check")]
            check(len(checked) == 3 and len(runs) == 3, "each element is checked and run", str(starts))
            for i, rate, deck in ((1, "1e-4", "input.deck"), (2, "2e-4", "other.deck"), (3, "3e-4", "input.deck")):
                own = [run for run in runs if f"--set run.output_dir=lr.txt.runs/{i} --set optimizer.learning_rate={rate}" in run]
                check(len(own) == 1 and own[0].endswith(f"--set run.steps=3 {deck}"), f"element {i}", str(runs))
                check(f"--status lr.txt.runs/{i}/job.status" in own[0], "and its own status", own[0])
                check((site.folder / f"lr.txt.runs/{i}/job.status").is_file(), "in its folder")
            noted = site.noted()
            check(dict(sbatch="--array=1-3", qsub="-J 1-3 -r y", pjsub="--bulk --sparam 1-3")[scheduler] in noted, "an array of three", noted)

            site.run(scripts / "submit.sh", machine, "--", "input.deck", SWEEP="lr.txt", code=75,
                     STAND_IN_STATE="stopped", STAND_IN_REQUEUE="1")
            lines = site.noted().splitlines()
            follows = [line for line in lines if "--dependency" in line or line.startswith(("qsub -a ", "pjsub -z "))]
            check(len(follows) == 3 and not any("array" in line or "-J" in line or "--bulk" in line for line in follows),
                  "each element is followed by one job, not by an array", str(follows))
            site.starts()
            names = ("SWEEP", "ELEMENT", "PROGRAM", f"JOB_SCRIPT={scripts / 'pjm.sh'}", "DECK=input.deck")
            following = dict(
                sbatch=["sbatch", scripts / "slurm.sh", "input.deck"],
                qsub=["qsub", "-v", f"DECK=input.deck,JOB_SCRIPT={scripts / 'pbs.pro.sh'}", scripts / "pbs.pro.sh"],
                pjsub=["pjsub", *(word for name in names for word in ("-x", name)), scripts / "pjm.sh"])[scheduler]
            site.run(*following, SWEEP="lr.txt", ELEMENT="2", says=["finished"])
            start = site.starts()[0]
            check("run.output_dir=lr.txt.runs/2 " in start and "other.deck" in start, "which stays that element", start)
            for element in ("4", "", "x"):
                site.run(*following, SWEEP="lr.txt", ELEMENT=element, code=78, says=["has no line"])


if os.environ.get("NANOTRON_SANITIZE") == "ON":
    skip("nothing here is instrumented")
check(len(machines) > 5, "there are files of machines", str(machines))
files_are_clean()
every_machine_submits()
settings_reach_the_program()
the_next_job_asks_for_the_same()
elements_have_folders_of_their_own()
print("machines: passed")
