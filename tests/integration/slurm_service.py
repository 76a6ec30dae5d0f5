"""A Slurm of its own on this machine, with a few nodes that share it, for the scripts beside this one."""
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from runs import check, root
from skips import need_tools, skip

# Each task learns the name of its node: all nodes have the host name of this machine.
PROLOG = '#!/bin/sh\necho "export NANOTRON_HOST_NAME=$SLURMD_NODENAME"\n'
# No cgroups, no systemd, no accounting; more CPUs than the machine may have.
CONFIGURATION = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/affinity
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SwitchType=switch/none
SlurmdParameters=config_overrides
ReturnToService=1
KillWait=3
SlurmdTimeout=6
MpiDefault=pmix
TaskProlog={folder}/prolog.sh
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdSpoolDir={folder}/spool-%n
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmdLogFile={folder}/slurmd.%n.log
TmpFS={folder}/tmpfs-%n
NodeName=n[1-{nodes}] NodeHostname={host} NodeAddr=127.0.0.1 Port=[{ports}] CPUs=4 RealMemory=1000
PartitionName=test Nodes=n[1-{nodes}] Default=YES State=UP
"""


def skip_where_it_cannot_run():
    search = os.environ["PATH"] + ":/usr/sbin:/usr/local/sbin"
    reasons = ["needs root, whom the daemons of nodes are of"] if os.geteuid() != 0 else []
    if os.environ.get("NANOTRON_MPI_FLAVOUR", "openmpi") != "openmpi":
        reasons.append("srun --mpi=pmix starts Open MPI, not MPICH")
    if os.environ.get("NANOTRON_SANITIZE") == "ON":
        reasons.append("launches take too long under a sanitizer")
    if reasons:
        skip("; ".join(reasons))
    os.environ["PATH"] = search
    need_tools("munged", "slurmctld", "slurmd", "srun", "sbatch")


def keys_of(case, copies_every, **others):
    """Four ranks, which copy their state to the folder of a node, and write no checkpoint by themselves."""
    keys = {"checkpoint.neighbour_every_steps": copies_every, "checkpoint.neighbour_directory": f"{case.folder}/hosts/%h",
            "checkpoint.every_steps": 0, "parallel.dp": 2, "model.hidden_size": 128, "run.log_every": 10}
    keys.update({name.replace("__", "."): value for name, value in others.items()})
    return [word for name, value in keys.items() for word in ("--set", f"{name}={value}")]


def log_of(case):
    return (case.folder / "job.log").read_text()


def copies(case):
    return log_of(case).count("copied to other hosts")


def resumes(case):
    """The steps at which a start continued from copies."""
    return [int(step) for step in re.findall(r"resumed from copies on the hosts, \S+ \(step (\d+)", log_of(case))]


def free_ports(count):
    """Consecutive ones that nobody listens on now."""
    for first in range(21000 + os.getpid() % 5000, 32000, count):
        probes = [socket.socket() for _ in range(count)]
        try:
            for i, probe in enumerate(probes):
                probe.bind(("127.0.0.1", first + i))
            return first
        except OSError:
            continue
        finally:
            for probe in probes:
                probe.close()
    raise RuntimeError("no free ports")


def end(pid, how=signal.SIGTERM):
    try:
        os.kill(pid, how)
    except ProcessLookupError:
        pass


class Slurm:
    """Nodes n1, n2, ...; as many ranks each as a job asks for."""

    def __init__(self, nodes=3):
        self.nodes = [f"n{i + 1}" for i in range(nodes)]
        self.folder = Path(tempfile.mkdtemp(prefix="nanotron_slurm_"))
        self.pending = {}  # since when, by job
        self.marked = set()
        self.folder.chmod(0o755)  # as munge asks
        ports = free_ports(nodes + 1)
        self.configuration = self.folder / "slurm.conf"
        self.configuration.write_text(CONFIGURATION.format(
            host=socket.gethostname(), folder=self.folder, nodes=nodes, controller=ports, ports=f"{ports + 1}-{ports + nodes}"))
        (self.folder / "prolog.sh").write_text(PROLOG)
        # Newer ones start no node without the cgroups of a machine with systemd, unless told so.
        version = subprocess.run(["slurmctld", "-V"], text=True, stdout=subprocess.PIPE).stdout
        if int(re.search(r"\d+", version)[0]) >= 23:
            (self.folder / "cgroup.conf").write_text("CgroupPlugin=disabled\n")
        (self.folder / "prolog.sh").chmod(0o755)
        for name in ("state", *(f"{kind}-{node}" for kind in ("spool", "tmpfs") for node in self.nodes)):
            (self.folder / name).mkdir()
        # Two nodes of one host would use the same segments of shared memory: MPI goes over TCP.
        os.environ.update(SLURM_CONF=str(self.configuration), OMPI_MCA_btl="self,tcp", OMPI_MCA_btl_tcp_if_include="lo")

    def __enter__(self):
        key, munge = self.folder / "munge.key", f"{self.folder}/munge"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        self.run("munged", "--force", f"--socket={munge}.socket", f"--key-file={key}", f"--pid-file={munge}.pid",
                 f"--log-file={munge}.log", f"--seed-file={munge}.seed")
        self.run("slurmctld", "-c")
        for node in self.nodes:
            self.start_node(node)
        limit = time.time() + 30
        while self.run("sinfo", "-h", "-N", "-o", "%T").split() != ["idle"] * len(self.nodes):
            check(time.time() < limit, "the nodes come up", self.logs())
            time.sleep(0.2)
        return self

    def __exit__(self, *_):
        subprocess.run(["scancel", "--signal=KILL", "--full", "--state=RUNNING"], check=False, stderr=subprocess.DEVNULL)
        for node in self.nodes:
            self.kill_node(node)
        for name in ("slurmctld", "munge"):
            if (self.folder / f"{name}.pid").exists():
                end(int((self.folder / f"{name}.pid").read_text()), signal.SIGKILL)
        shutil.rmtree(self.folder, ignore_errors=True)

    @staticmethod
    def run(*command):
        done = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
        check(done.returncode == 0, " ".join(command), done.stdout)
        return done.stdout

    def logs(self):
        return "\n".join(path.read_text()[-2000:] for path in sorted(self.folder.glob("*.log")))

    def start_node(self, node):
        self.run("slurmd", "-N", node)
        if node in self.marked:  # with ReturnToService=2 a late answer of the lost daemon would do
            self.run("scontrol", "update", f"NodeName={node}", "State=RESUME")
            self.marked.remove(node)

    def kill_daemon(self, node):
        """The daemon alone: what runs on the node goes on, and nobody can reach it."""
        file = self.folder / f"slurmd.{node}.pid"
        if file.exists():
            end(int(file.read_text()), signal.SIGKILL)
            file.unlink()

    def kill_node(self, node):
        """The daemon and all that runs on the node, at once."""
        self.kill_daemon(node)
        for pid in self.processes_of(node):
            end(pid, signal.SIGKILL)

    def mark_down(self, node):
        """As a health check does; else Slurm notices by itself after some SlurmdTimeout."""
        self.run("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=lost")
        self.marked.add(node)

    def processes_of(self, node):
        """Scripts, ranks and the daemons of their steps."""
        found = set()
        marks = {f"SLURMD_NODENAME={node}".encode(), f"SLURM_CONF={self.configuration}".encode()}
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                if not marks <= set((entry / "environ").read_bytes().split(b"\0")):
                    continue
                parent = int(re.search(r"PPid:\s+(\d+)", (entry / "status").read_text())[1])
                found.add(int(entry.name))
                if b"slurmstepd" in Path(f"/proc/{parent}/cmdline").read_bytes():
                    found.add(parent)
            except OSError:
                continue
        return found

    def submit(self, case, *arguments, options=(), script=root / "jobscripts/slurm.sh", **environment):
        """The job script as it is, on two nodes with two ranks each. The number of the job."""
        (case.folder / "job.log").touch()
        done = subprocess.run(
            ["sbatch", "--parsable", "--nodes=2", "--ntasks-per-node=2", "--time=10", f"--chdir={case.folder}",
             "--output=job.log", *options, str(script), str(case.deck), *arguments],
            text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=case.folder,
            env={**os.environ, "PROGRAM": str(Path(sys.argv[1]).resolve() / "nanotron_hpc"), "LAUNCH_SECONDS": "0",
                 **environment})
        check(done.returncode == 0, "sbatch", done.stdout)
        return int(done.stdout)

    def show(self, job):
        """JobState and other fields."""
        return dict(re.findall(r"(\w+)=(\S*)", self.run("scontrol", "show", "job", str(job))))

    def hasten(self, job):
        """Slurm lets a requeued job wait for two minutes; a node refuses one that it ended in the same second."""
        now = time.time()
        if now - self.pending.setdefault(job, now) < 2.5:
            return
        self.pending.pop(job)
        subprocess.run(["scontrol", "update", f"JobId={job}", "StartTime=now"], check=False, stdout=subprocess.DEVNULL,
                       stderr=subprocess.DEVNULL)

    def wait(self, case, what, is_so, job=None, seconds=90):
        limit = time.time() + seconds
        while not is_so():
            if job and self.show(job)["JobState"] == "PENDING":
                self.hasten(job)
            else:
                self.pending.pop(job, None)
            check(time.time() < limit, what, log_of(case)[-6000:] + self.logs())
            time.sleep(0.1)

    def finish(self, case, job, seconds=120):
        """Until the job has ended well."""
        ended = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")
        self.wait(case, f"job {job} ends", lambda: self.show(job)["JobState"] in ended, job, seconds)
        check(self.show(job)["JobState"] == "COMPLETED", f"job {job}: {self.show(job)['JobState']}",
              log_of(case)[-6000:])
