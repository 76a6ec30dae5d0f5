#!/usr/bin/env python3
# ranks: 4
# timeout: 300
"""Hosts that lose their network: each is a network namespace with a link of its own to a bridge, and ranks exchange their
data by TCP. Files are on a network of their own, as far as this test goes: all hosts reach the run directory.

A host is unplugged in the middle of a run. Within the limit and ten seconds all ranks have ended with exit code 71, also
those of that host, and the verdict names them; the same command then goes on, with the bits of a run that nothing
happened to. A network that comes back within the limit changes no bit.

    test_unplugged_network.py <folder of the programs>   NANOTRON_FULL (all kinds of groups), NANOTRON_SEED, NANOTRON_ONLY
"""
import os
import random
import re
import signal
import subprocess
import time

from runs import Case, check, mpiexec, program, ranks_of, state_at, wait_for
from skips import need_tools, skip

os.environ.setdefault("NANOTRON_WAIT", "sleep")
TIMEOUT = 3.0
STEPS = 100  # far more than are over before the network is
EXPERTS = ["moe.num_experts=4", "moe.moe_intermediate_size=24"]
# What crosses hosts with four ranks on two of them, and how ranks are mapped to hosts.
KINDS = {
    "dp": ("slot", ["parallel.tp=2", "parallel.dp=2"]),
    "zero": ("slot", ["parallel.tp=2", "parallel.dp=2", "parallel.zero_stage=3"]),
    "tp": ("node", ["parallel.tp=2", "parallel.dp=2"]),
    "pp": ("node", ["parallel.tp=1", "parallel.pp=2", "parallel.dp=2"]),
    "cp": ("node", ["parallel.tp=1", "parallel.cp=2", "parallel.dp=2"]),
    "ep": ("node", ["parallel.tp=1", "parallel.ep=2", "parallel.dp=4", *EXPERTS]),
}


def ip(*words):
    return subprocess.run(["ip", *words], text=True, check=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE).stdout


class Hosts:
    """Hosts h0, h1, ... in the folder's own network, which nothing else is connected to."""

    def __init__(self, number, folder):
        self.names = [f"h{i}" for i in range(number)]
        self.prefix = f"nanotron{os.getpid()}-"
        self.agent = folder / "start_on_host"
        self.agent.write_text(f'#!/bin/sh\nhost=$1; shift\nexec ip netns exec {self.prefix}$host '
                              'unshare --uts sh -c "hostname $host; $*"\n')
        self.agent.chmod(0o755)

    def __enter__(self):
        hub = self.prefix + "hub"
        ip("netns", "add", hub)
        ip("-n", hub, "link", "add", "bridge", "type", "bridge")
        ip("-n", hub, "link", "set", "bridge", "up")
        for i, name in enumerate(self.names):
            space = self.prefix + name
            ip("netns", "add", space)
            ip("link", "add", "eth0", "netns", space, "type", "veth", "peer", "name", f"port{i}", "netns", hub)
            ip("-n", hub, "link", "set", f"port{i}", "master", "bridge", "up")
            ip("-n", space, "link", "set", "lo", "up")
            ip("-n", space, "address", "add", f"10.0.0.{i + 1}/24", "dev", "eth0")
            ip("-n", space, "link", "set", "eth0", "up")
        return self

    def __exit__(self, *_):
        self.end_all()
        for name in [*self.names, "hub"]:
            subprocess.run(["ip", "netns", "delete", self.prefix + name], check=False, stderr=subprocess.DEVNULL)

    def end_all(self):
        for name in self.names:
            for process in subprocess.run(["ip", "netns", "pids", self.prefix + name], text=True, check=False,
                                          stdout=subprocess.PIPE).stdout.split():
                try:
                    os.kill(int(process), signal.SIGKILL)
                except ProcessLookupError:
                    pass

    def plug(self, host, state, where="host"):
        """At the host, or at its port of the switch."""
        space, link = (host, "eth0") if where == "host" else ("hub", f"port{self.names.index(host)}")
        ip("-n", self.prefix + space, "link", "set", link, state)

    def wait_for_links(self):
        """Until each host answers each: after a link is up again a failed look for a neighbour is remembered for a while."""
        end = time.time() + 30
        for name in self.names:
            for i in range(len(self.names)):
                connect = ["ip", "netns", "exec", self.prefix + name, "bash", "-c", f"exec 3<>/dev/tcp/10.0.0.{i + 1}/9"]
                while "refused" not in subprocess.run(connect, text=True, check=False, stdout=subprocess.PIPE,
                                                      stderr=subprocess.STDOUT).stdout:
                    check(time.time() < end, f"{name} reaches h{i}")
                    time.sleep(0.1)

    def start(self, kind, case):
        """Each rank writes its exit code into a file."""
        by, grid = KINDS[kind]
        each = 4 // len(self.names)
        code = f'"$@"; echo $? > {case.folder}/$$; mv {case.folder}/$$ {case.folder}/code.$OMPI_COMM_WORLD_RANK'
        settings = {"plm_rsh_agent": self.agent, "btl": "tcp,vader,self", "btl_tcp_if_include": "eth0", "oob_tcp_if_include": "eth0"}
        command = [mpiexec, *(word for key, value in settings.items() for word in ("--mca", key, str(value))), "--map-by", by,
                   "-H", ",".join(f"{name}:{each}" for name in self.names), "-x", "NANOTRON_WAIT", "-n", "4",
                   "sh", "-c", code, "sh", program, "--status", str(case.folder / "status"),
                   *(word for key in ["data.micro_batch_size=2", *grid] for word in ("--set", key)), str(case.deck)]
        return subprocess.Popen([self.agent, "h0", *map(quoted, command)], text=True, stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT)

    def ranks_on(self, kind, host):
        number = len(self.names)
        i = self.names.index(host)
        each = 4 // number
        return set(range(i * each, (i + 1) * each)) if KINDS[kind][0] == "slot" else set(range(i, 4, number))


def quoted(word):
    return "'" + str(word).replace("'", "'\\''") + "'"


def case_of(name, timeout=TIMEOUT):
    return Case(name, steps=STEPS, run=f"hang_timeout = {timeout}", data="", checkpoint="keep_last = 10")


def finish(running, what):
    try:
        text = running.communicate(timeout=120)[0]
    except subprocess.TimeoutExpired:
        running.kill()
        check(False, f"{what}: no end", running.communicate()[0])
    check(running.returncode == 0, f"{what}: exit code {running.returncode}", text)
    return text


def at_step(case, running, step):
    """Waits for it."""
    wait_for(case.out / "run.log")
    end = time.time() + 60
    while f"step {step:>7}/" not in (case.out / "run.log").read_text():
        check(time.time() < end and running.poll() is None, f"step {step} never comes", (case.out / "run.log").read_text())
        time.sleep(0.02)


def ranks_of_text(text):
    """'0-2, 7' and '1-3/2'"""
    ranks = set()
    for part in text.split(", "):
        span, _, stride = part.partition("/")
        first, _, last = span.partition("-")
        ranks |= set(range(int(first), int(last or first) + 1, int(stride or 1)))
    return ranks


def check_same(case, undisturbed, what):
    mine, theirs = state_at(case, STEPS), state_at(undisturbed, STEPS)
    check(mine == theirs, f"{what}: other bits: {[key for key in theirs if mine.get(key) != theirs[key]][:5]}")


def unplugged(hosts, kind, host, where, undisturbed):
    what = f"{kind} on {len(hosts.names)} hosts, {host} is unplugged at the {where}"
    with case_of("unplugged") as case:
        running = hosts.start(kind, case)
        at_step(case, running, 7)
        hosts.plug(host, "down", where)
        began = time.time()
        verdict = case.out / "hang" / "verdict.txt"
        wait_for(verdict)
        took = time.time() - began
        while ranks_of(case) and time.time() < began + 60:
            time.sleep(0.05)
        ended = time.time() - began
        text = verdict.read_text()
        reports = {f.name: f.read_text() for f in (case.out / "hang").glob("rank_*.txt")}
        check(not ranks_of(case), f"{what}: ranks are left after {ended:.0f} s", text)
        limit = max(float(line.split("\t")[2]) for r in reports.values() for line in r.splitlines() if line.startswith("idle"))
        # The launcher waits for its daemon on the other side for as long as TCP does, about 15 minutes.
        try:
            running.wait(timeout=0.5)
            launcher = f"mpiexec returned {running.returncode}"
        except subprocess.TimeoutExpired:
            launcher = "mpiexec waits"
        hosts.end_all()
        output = running.communicate()[0]
        found = re.search(r"error: the run hangs: ranks? ([\d, /-]+)(?:, the first)? on (\S+?),? (?:is|are) late", text)
        check(found, f"{what}: nobody is named", text + "".join(reports.values()))
        check(ranks_of_text(found[1]) == hosts.ranks_on(kind, host) and found[2] == host,
              f"{what}: ranks {found[1]} on {found[2]} are named", text)
        check("eth0 is down" in text, f"{what}: the link is not named", text)
        check(took < limit + 10 and ended < limit + 15, f"{what}: {took:.1f} s and {ended:.1f} s of {limit:.1f} + 10", text)
        codes = [f.read_text().strip() for f in case.folder.glob("code.*")]  # without those of ranks that the launcher killed
        check(codes and set(codes) == {"71"}, f"{what}: exit codes {codes}", output)
        status = (case.folder / "status").read_text()
        check("state = failed" in status and "exit_code = 71" in status, f"{what}: the status is that of another end", status)
        hosts.plug(host, "up", where)
        hosts.wait_for_links()
        text = finish(hosts.start(kind, case), f"{what}, and again")
        check(re.search(r"resumed from \S+step_00000", text), f"{what}: it begins again", text)
        check_same(case, undisturbed, f"{what}, and again")
        return f"{what}: verdict after {took:.1f} s of {limit:.1f} + 10, all ended after {ended:.1f} s, {launcher}"


def healing(hosts, kind, host, where, undisturbed):
    seconds = 2.0
    what = f"{kind} on {len(hosts.names)} hosts, {host} without network for {seconds:.0f} s"
    with case_of("healing", timeout=30.0) as case:
        running = hosts.start(kind, case)
        at_step(case, running, 7)
        hosts.plug(host, "down", where)
        time.sleep(seconds)
        check(f"step {STEPS:>7}/" not in (case.out / "run.log").read_text(), f"{what}: the run was not held up")
        hosts.plug(host, "up", where)
        finish(running, what)
        check(not (case.out / "hang").exists(), f"{what}: reports are left")
        check_same(case, undisturbed, what)
        return f"{what}: the run continues with the same bits"


def sample(chance, everything):
    if everything:
        return [(number, kind, [unplugged] + [healing] * (number == 2)) for number in (2, 4) for kind in KINDS]
    return [(chance.choice((2, 4)), chance.choice(list(KINDS)), [unplugged, healing])]


def main(seed, everything):
    print(f"NANOTRON_SEED={seed}", flush=True)
    chance = random.Random(seed)
    only = os.environ.get("NANOTRON_ONLY", "")
    cases = [c for c in sample(chance, everything) if only in f"{c[1]} on {c[0]}"]
    check(cases, f"NANOTRON_ONLY={only} is of no case")
    for number, kind, what in cases:
        with case_of("undisturbed", timeout=30.0) as undisturbed, Hosts(number, undisturbed.folder) as hosts:
            finish(hosts.start(kind, undisturbed), "undisturbed")
            for run in what:
                print(run(hosts, kind, chance.choice(hosts.names), chance.choice(("host", "switch")), undisturbed), flush=True)


def why_not():
    if os.environ.get("NANOTRON_MPI_FLAVOUR", "openmpi") != "openmpi":
        return "hosts are started as Open MPI does it"
    need_tools("ip")
    try:
        ip("netns", "add", f"nanotron{os.getpid()}-try")
        ip("-n", f"nanotron{os.getpid()}-try", "link", "add", "eth0", "type", "veth", "peer", "name", "eth1")
        ip("netns", "delete", f"nanotron{os.getpid()}-try")
    except subprocess.CalledProcessError as error:
        return f"no network namespaces here, which need root: {error.stderr.strip()}"
    return ""


if reason := why_not():
    skip(reason)
main(int(os.environ.get("NANOTRON_SEED", str(int(time.time())))), bool(os.environ.get("NANOTRON_FULL")))
