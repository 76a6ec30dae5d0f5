#!/usr/bin/env python3
# ranks: 2
# timeout: 300
"""cmake --install, the prefix moved elsewhere, and what is in it used: programs, decks, tools, job scripts, manual
pages, completion, modulefile.

    test_install.py <folder of the programs>
"""
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import schedulers
from runs import check, expect, mpiexec, program
from skips import has_tool, lacking, skip

if os.environ.get("NANOTRON_SANITIZE") == "ON":
    skip("nothing here is instrumented that is not elsewhere")
python = os.environ.get("NANOTRON_PYTHON", sys.executable)
build = Path(program).parents[1]
PROGRAMS = ("nanotron_hpc", "nanotron_generate", "nanotron_bench", "nanotron_plan")

# What bash offers: the end of a line, and words among its completions.
COMPLETIONS = {"nanotron_hpc --pl": {"--plan"}, "nanotron_hpc --set parallel.tp_": {"parallel.tp_mode="},
               "nanotron_hpc --set parallel.tp_mode=re": {"reduce_scatter"},
               "nanotron_hpc --set=precision.compute=f": {"fp64", "fp32", "fp8"},
               "nanotron_hpc --help o": {"optimizer", "output"}, "nanotron_hpc in": {"input.deck", "input"},
               "nanotron_bench --only gemm,st": {"gemm,step"}, "nanotron_generate --compute b": {"bf16"},
               "nanotron_plan --val": {"--validate"}}


def has_module(name):
    return subprocess.run([python, "-c", f"import {name}"], stderr=subprocess.DEVNULL).returncode == 0


def trains_and_looks(prefix, work):
    share, programs = prefix / "share/nanotron_hpc", prefix / "bin"
    deck, tools = share / "input/quickstart.deck", share / "tools"
    texts = work / "texts"
    texts.mkdir()
    for i in range(4):
        (texts / f"{i}.txt").write_text(f"{i}: the quick brown fox jumps over the lazy dog\n" * 3000)
    expect(python, tools / "nanotron_tokenize.py", texts, "--glob", "*.txt", "--output", "runs/quickstart/tokens.h5",
        cwd=work)
    ranks = (mpiexec, "-n", "2")
    hpc = programs / "nanotron_hpc"
    expect(hpc, "--check", deck, cwd=work, says=["deck OK"])
    expect(*ranks, hpc, "--set", "run.stop_after_steps=3", deck, cwd=work, code=75, says=["stopped after step 3 of 220"])
    expect(*ranks, hpc, "--set", "run.stop_after_steps=2", deck, cwd=work, code=75,
        says=["resumed from runs/quickstart/checkpoints/step_00000003", "stopped after step 5 of 220"])
    expect(*ranks, programs / "nanotron_generate", "--checkpoint", "runs/quickstart/checkpoints", "--prompt", "the",
        "--max-new-tokens", "5", cwd=work)
    expect(python, tools / "nanotron_ls.py", "runs/quickstart", cwd=work, says=["step_00000005", "valid"])
    expect(python, tools / "nanotron_convert.py", "to-hf", "runs/quickstart", "exported", cwd=work)
    expect(python, tools / "nanotron_export.py", "runs/quickstart", "--format", "csv", "-o", "csv", cwd=work,
        says=["5 steps", "training.csv"])
    expect(python, tools / "nanotron_report.py", "runs/quickstart", cwd=work,
        says=["stopped: run%stop_after_steps", "5 of 220", "1, after step 3", "step_00000005", "complete"])
    expect(python, tools / "nanotron_top.py", "runs/quickstart", cwd=work,
        says=["stopped: run%stop_after_steps", "5 of 220", "step_00000005", "metrics.h5"])
    if has_module("matplotlib"):
        expect(python, tools / "nanotron_plot.py", "runs/quickstart", "-o", "loss.png", cwd=work)
        check((work / "loss.png").stat().st_size > 1000, "a plot is drawn")
    else:
        lacking("no matplotlib: nanotron_plot.py")
    expect(*ranks, programs / "nanotron_bench", "--set", "parallel.tp=3", cwd=work, code=78,
        says=["does not divide the 2 ranks"])  # of the installed default deck


def job_scripts_find_the_program(prefix, work):
    scripts = prefix / "share/nanotron_hpc/jobscripts"
    shutil.copy(prefix / "share/nanotron_hpc/input/quickstart.deck", work / "input.deck")
    log = work / "scheduler.log"
    environment = schedulers.install(work / "stand_ins", log)
    steps = ["--set", "run.stop_after_steps=1"]
    expect("sbatch", scripts / "slurm.sh", "input.deck", *steps, cwd=work, code=75, environment=environment,
        says=["stopped after step 6 of 220", "requeueing the job"])
    expect("qsub", "-v", f"DECK=input.deck,JOB_SCRIPT={scripts / 'pbs.pro.sh'},OPTIONS=" + " ".join(steps),
        scripts / "pbs.pro.sh", cwd=work, code=75, environment=environment, says=["stopped after step 7 of 220"])
    noted = log.read_text()
    check("scontrol requeue 7" in noted and f"-V {scripts / 'pbs.pro.sh'}" in noted, "jobs are submitted again", noted)
    expect("qsub", "-v", "DECK=input.deck", scripts / "pbs.pro.sh", cwd=work, code=78, environment=environment,
        says=["JOB_SCRIPT="])
    bare = work / "bare"
    bare.mkdir()
    shutil.copy(scripts / "slurm.sh", bare)
    expect("sbatch", bare / "slurm.sh", "input.deck", cwd=bare, code=78, environment=environment, says=["give PROGRAM"])
    environment["PATH"] += f":{prefix / 'bin'}"
    expect("sbatch", bare / "slurm.sh", work / "input.deck", *steps, cwd=work, code=75, environment=environment,
        says=["stopped after step 8 of 220"])


def checked_by(tool, *options, file, mistake, work):
    """The tool finds a planted mistake, and nothing in the file, if this machine has it."""
    if not has_tool(tool, file.name):
        return
    planted = work / f"planted{file.suffix}"
    planted.write_text(mistake)
    for path, is_good in ((planted, False), (file, True)):
        done = subprocess.run([tool, *options, path], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        check((done.returncode == 0 and not done.stdout) == is_good, f"{tool} finds {'nothing' if is_good else 'the mistake'} in {path.name}",
              done.stdout)


def is_a_manual(page, work):
    checked_by("mandoc", "-T", "lint", "-W", "warning", file=page, mistake=page.read_text() + ".XYZZY planted\n", work=work)


def manuals_are_complete(prefix, work):
    for name in PROGRAMS:
        page = prefix / f"share/man/man1/{name}.1"
        is_a_manual(page, work)
        options = re.findall(r"^  (?:-\w,)?(--[\w-]+)", expect(prefix / "bin" / name, "--help", cwd=work), re.M)
        text = page.read_text().replace("\\-", "-")
        lacking = [option for option in options if f"\\fB{option}\\fR" not in text]
        check(len(options) > 5 and not lacking, f"{name}.1 has every option", str(lacking))
    page = prefix / "share/man/man5/nanotron_hpc.5"
    is_a_manual(page, work)
    keys = re.findall(r"^  (\w+) +=", expect(prefix / "bin/nanotron_hpc", "--print-defaults", cwd=work), re.M)
    lacking = [key for key in keys if f"\\fB{key}\\fR" not in page.read_text()]
    check(len(keys) > 100 and not lacking, "nanotron_hpc.5 has every key", str(lacking))


def shells_complete(prefix, work):
    lines = work / "lines"
    lines.mkdir()
    (lines / "input").mkdir()
    for name in ("input.deck", "inputs.txt"):
        (lines / name).touch()
    for name in PROGRAMS:
        for tool, folder in (("bash -n", "bash-completion/completions/"), ("shellcheck", "bash-completion/completions/"),
                             ("zsh -n", "zsh/site-functions/_")):
            script = prefix / f"share/{folder}{name}"
            checked_by(*tool.split(), file=script, mistake=script.read_text() + "if true; then\n", work=work)
    script = 'source "$1"; COMP_LINE="$2" COMP_POINT=${#2}; "_${2%% *}"; printf "%s\\n" "${COMPREPLY[@]}"'
    for line, words in COMPLETIONS.items():
        completion = prefix / "share/bash-completion/completions" / line.split()[0]
        offered = set(expect("bash", "-c", script, "bash", completion, line, cwd=lines).split())
        check(words <= offered and "inputs.txt" not in offered, f"bash completes '{line}' to {words}", str(offered))


def module_loads(prefix, work):
    if not has_tool("modulecmd", "the modulefile"):
        return
    environment = dict(os.environ, MODULEPATH=str(prefix / "share/modulefiles"), LOADEDMODULES="", _LMFILES_="")
    expect("modulecmd", "sh", "load", "nanotron_hpc", cwd=work, environment=environment,
        says=[f"{prefix}/bin", f"NANOTRON_HPC_SHARE={prefix}/share/nanotron_hpc"])


with tempfile.TemporaryDirectory(prefix="nanotron_install_") as name:
    folder = Path(name)
    expect("cmake", "--install", build, "--prefix", folder / "first", cwd=folder)
    prefix, work = (folder / "first").rename(folder / "a new place"), folder / "work"
    prefix = prefix.rename(folder / "second")
    work.mkdir()
    installed = sorted(str(path.relative_to(prefix)) for path in prefix.rglob("*") if path.is_file())
    for path in (*(f"bin/{name}" for name in PROGRAMS), "share/nanotron_hpc/input/llama_30m.deck",
                 "share/nanotron_hpc/jobscripts/submit.sh", "share/nanotron_hpc/jobscripts/machines/perlmutter/gpu.sh",
                 "share/nanotron_hpc/tools/nanotron_tools/common.py", "share/doc/nanotron_hpc/README.md",
                 "share/doc/nanotron_hpc/doc/first_job.md"):
        check(path in installed, f"{path} is installed", "\n".join(installed))
    others = [path for path in installed if "__pycache__" in path or "test" in path]
    check(not others, "nothing else is", "\n".join(others))
    manuals_are_complete(prefix, work)
    shells_complete(prefix, work)
    module_loads(prefix, work)
    trains_and_looks(prefix, work)
    job_scripts_find_the_program(prefix, work)
print("installed, moved and used: passed")
