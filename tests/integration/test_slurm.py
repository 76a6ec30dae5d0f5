#!/usr/bin/env python3
# ranks: 4
# timeout: 600
"""jobscripts/slurm.sh in a Slurm of its own: a node is lost, the requeued job continues from the memory of the others, on a
spare node, without a checkpoint; then a rank is killed. The end has the bits of a run that nobody disturbed. Before that, a job
submits one that follows it.

    test_slurm.py <folder of the programs>
"""
import os
import re
import shutil
import signal
import sys

from runs import Case, check, ranks_of, root, state_at
from slurm_service import Slurm, copies, keys_of, log_of, resumes, skip_where_it_cannot_run

STEPS, EVERY = 120, 5


def a_job_that_follows(slurm):
    """It is of the same script, whose path has a blank, and excludes what the user excluded."""
    with Case("slurm_chain", steps=6) as case:
        script = case.folder / "my scripts/slurm.sh"
        script.parent.mkdir()
        shutil.copy(root / "jobscripts/slurm.sh", script)
        slurm.submit(case, *keys_of(case, 0, run__stop_after_steps=3), options=["--exclude=n3"], script=script, REQUEUE="no",
                     SUBMIT_OPTIONS=f"--chdir={case.folder} --output=job.log --open-mode=append")
        slurm.wait(case, "a job that follows", lambda: "Submitted batch job" in log_of(case))
        following = int(re.search(r"Submitted batch job (\d+)", log_of(case))[1])
        slurm.finish(case, following)
        check("finished: 6 steps" in log_of(case), "it continues to the end", log_of(case))
        check(slurm.show(following)["ExcNodeList"] == "n3", "without n3", str(slurm.show(following)))


def main():
    with Slurm() as slurm, Case("slurm_whole", steps=STEPS) as whole, Case("slurm", steps=STEPS) as case:
        a_job_that_follows(slurm)
        slurm.finish(whole, slurm.submit(whole, *keys_of(whole, EVERY)))
        expected = state_at(whole, STEPS)

        job = slurm.submit(case, *keys_of(case, EVERY))
        slurm.wait(case, "two copies", lambda: copies(case) >= 2)
        slurm.kill_node("n2")
        slurm.mark_down("n2")
        shutil.rmtree(case.folder / "hosts/n2")
        check(not list(case.out.glob("checkpoints/step_*")), "there is no checkpoint")
        known = copies(case)
        slurm.wait(case, "the job continues from copies", lambda: len(resumes(case)) == 1, job)
        check(resumes(case)[0] >= EVERY, f"at a later step than {resumes(case)}", log_of(case))
        check("n2" not in slurm.show(job)["NodeList"], "on other nodes", slurm.show(job)["NodeList"])

        slurm.wait(case, "another copy", lambda: copies(case) > known, job)
        os.kill(ranks_of(case)[-1], signal.SIGKILL)
        slurm.wait(case, "the job continues again", lambda: len(resumes(case)) == 2, job)
        slurm.finish(case, job)
        check(resumes(case)[1] > resumes(case)[0], f"later: {resumes(case)}", log_of(case))
        check(state_at(case, STEPS) == expected, "the same bits", log_of(case)[-4000:])
        left = [path for node in ("n1", "n3") for path in (case.folder / "hosts" / node).rglob("*") if path.is_file()]
        check(not left, f"nothing is left: {left}")
        print(f"resumed at steps {resumes(case)}: the same bits")


skip_where_it_cannot_run()
sys.exit(main())
