"""Runs of nanotron_hpc in folders of their own, for the scripts beside this one."""
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import h5py

root = Path(__file__).resolve().parents[2]
sys.path.append(str(root / "tests/support"))
program = str(Path(sys.argv[1]).resolve() / "nanotron_hpc")
mpiexec = os.environ.get("NANOTRON_MPIEXEC", "mpiexec")
each_rank = str(root / "tests/integration/each_rank.sh")

DECK = """
&run steps = {steps} output_dir = '{out}' log_every = 1 {run} /
&model hidden_size = 32 num_hidden_layers = 2 num_attention_heads = 4 num_key_value_heads = 2
       intermediate_size = 88 vocab_size = 131 /
&parallel tp = {tp} /
&data path = '{tokens}' sequence_length = 16 global_batch_size = 8 micro_batch_size = 1 shuffle = 'global' {data} /
&checkpoint every_steps = 5 {checkpoint} /
"""


def remove_session_folders():
    """Open MPI 5 names the folder of an mpiexec by its process number, and ends where one that was killed left the same."""
    for folder in Path(tempfile.gettempdir()).glob("prterun.*"):
        number = folder.name.split(".")[-2]
        if number.isdigit() and not Path("/proc", number).exists():
            shutil.rmtree(folder, ignore_errors=True)


class Case:
    """A folder with a deck, and runs of it."""

    def __init__(self, name, **keys):
        self.folder = Path(tempfile.mkdtemp(prefix=f"nanotron_{name}_"))
        self.out = self.folder / "run"
        values = dict(steps=10, tp=2, run="", data="", checkpoint="", out=self.out,
                      tokens=root / "tests/golden/llama/tokens.h5")
        values.update(keys)
        self.deck = self.folder / "input.deck"
        self.deck.write_text(DECK.format(**values))

    def __enter__(self):
        remove_session_folders()
        return self

    def __exit__(self, *_):
        shutil.rmtree(self.folder, ignore_errors=True)

    def command(self, *arguments, ranks=2):
        return [mpiexec, "-n", str(ranks), program, *arguments, str(self.deck)]

    def start(self, *arguments):
        """As under a user's mpiexec, which gives ranks time to end after one was killed."""
        environment = {key: value for key, value in os.environ.items() if key != "OMPI_MCA_odls_base_sigkill_timeout"}
        return subprocess.Popen(self.command(*arguments), text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment)

    def run(self, *arguments, ranks=2):
        return call(*self.command(*arguments, ranks=ranks))


def commands_of_ranks(*parts):
    """A command line of mpiexec for pairs (number of ranks, their command)."""
    words = [word for ranks, command in parts for word in (",", ranks, *command)]
    return [mpiexec, "-n", str(sum(ranks for ranks, _ in parts)), each_rank, *map(str, words[1:])]


class Tally:
    """What became of the faults of each kind, for tests/fault_table.py."""

    def __init__(self):
        self.counts = {}

    def add(self, kind, outcome):
        self.counts.setdefault(kind, {}).setdefault(outcome, 0)
        self.counts[kind][outcome] += 1

    def print(self):
        for kind, outcomes in sorted(self.counts.items()):
            print(f"faults: {kind}: " + ", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items())),
                  flush=True)


def outcome_of(code, hit=True):
    return {0: "same bits", 65: "refused", 71: "ended with 71"}[code] if hit else "not met"


def call(*command, seconds=100, environment=os.environ, cwd=None, **variables):
    """Exit code of a command, and what it printed."""
    words = [str(word) for word in command]
    try:
        done = subprocess.run(words, text=True, errors="replace", timeout=seconds, cwd=cwd, env={**environment, **variables},
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    except subprocess.TimeoutExpired as late:
        check(False, f"{' '.join(words)}: no end in {seconds} s", (late.stdout or b"").decode(errors="replace"))
    return done.returncode, done.stdout


def alone(case, *arguments, **variables):
    """A run of one rank, without a launcher."""
    return call(program, *arguments, case.deck, **variables)


def check(condition, what, output=""):
    if not condition:
        print(f"FAILED: {what}\n{output}")
        sys.exit(1)


def expect(*command, code=0, says=(), **options):
    """What a command printed: it ends with this code and says these words."""
    found, text = call(*command, **options)
    what = " ".join(Path(str(word)).name for word in command)
    check(found == code, f"'{what}' ends with {code}, not {found}", text)
    for words in says:
        check(words in text, f"'{what}' says '{words}'", text)
    return text


def report_of(case):
    """Of nanotron-report."""
    done = subprocess.run([sys.executable, root / "tools/nanotron_report.py", case.out, "--json"], text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    check(done.returncode == 0, "nanotron-report", done.stderr)
    report, = json.loads(done.stdout)
    return report


def chosen(cases, names, name_of):
    """Those of these names, all without a name. A name that none of them has ends the test: nothing is no pass."""
    unknown = set(names) - {name_of(case) for case in cases}
    check(not unknown, f"there is no {', '.join(sorted(unknown))}: {', '.join(sorted(map(name_of, cases)))}")
    return [case for case in cases if not names or name_of(case) in names]


def state_at(case, step):
    """Every tensor of the checkpoint of this step as bytes, and the counters."""
    content = {}
    with h5py.File(case.out / f"checkpoints/step_{step:08d}/checkpoint.h5") as file:
        for group in ("parameters", "optimizer"):
            file[group].visititems(lambda name, item, group=group: content.__setitem__(
                f"{group}/{name}", item[()].tobytes()) if isinstance(item, h5py.Dataset) else None)
        content["state"] = {key: value.tolist() for key, value in file["state"].attrs.items()}
    return content


def wait_for(path, seconds=60):
    end = time.time() + seconds
    while not path.exists():
        check(time.time() < end, f"{path} never came")
        time.sleep(0.02)


def killed_end(case, running):
    """Output of a run some of whose ranks were killed: the others end within 60 s. Open MPI's launcher may then wait
    for a lock of its own forever (PMIx 4, PMIx_server_finalize)."""
    end = time.time() + 60
    while True:
        try:
            return running.communicate(timeout=5)[0]
        except subprocess.TimeoutExpired as late:
            check(not ranks_of(case) or time.time() < end, "the other ranks end", (late.stdout or b"").decode())
            if time.time() > end:
                running.kill()


def kill_all(processes):
    """At once; those that are gone already, after the first of them perhaps, are no error."""
    for process in processes:
        try:
            os.kill(process, signal.SIGKILL)
        except ProcessLookupError:
            pass


def ranks_of(case):
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if words[0].endswith(b"nanotron_hpc") and str(case.deck).encode() in words:
            found.append(int(entry.name))
    return sorted(found)
