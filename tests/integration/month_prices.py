"""Seconds of a machine of 16,384 GPUs for what an interrupted run (month.py) went through. None is measured on such a
machine by this project: each row says where it is from."""
MONTH = 30 * 86400.0
STATE = 405e9 * 12  # bytes: master weights and two moments in fp32
SHARE = STATE / 16384
ASSEMBLED = 0.73e9  # bytes of a rank in a second (two cores of a Zen 5 VM, 2026-11-24)

# Name, seconds, what and whose.
PRICES = [
    ("step", 6.2, "16.8 M tokens, 405 G parameters, 400 TFLOP/s a GPU (Llama 3, table 4)"),
    ("copy", SHARE / ASSEMBLED, "training waits for a copy of 297 MB a rank, at the rate of the assembly of a checkpoint on two cores of a Zen 5 VM"),
    ("copies", 15 * 6.2, "between two copies, 15 steps: Daly's interval"),
    ("checkpoint", SHARE / ASSEMBLED, "training waits for an asynchronous checkpoint: the same assembly"),
    ("checkpoints", 1800.0, "between two checkpoints"),
    ("ended", 30.0, "a rank ended, until all have: Slurm's KillWait after srun --kill-on-bad-exit"),
    ("vanished", 300.0, "a host is gone, until the job ends: Slurm's SlurmdTimeout"),
    ("hang", 605.0, "run%hang_timeout (600 s, its default), and the verdict"),
    ("computed again", 2 * 6.2, "a step computed again, or a checkpoint that says it failed"),
    ("stop", 10.0, "the last checkpoint: 4.9 TB written and read back at 2 TB/s (Llama 3, section 3.3.1), and the step"),
    ("requeue", 148.0, "from the end of a job to the begin of the same one requeued, on idle nodes (Slurm 22.05, measured twice)"),
    ("following job", 1.0, "to the begin of a job that follows, REQUEUE=no (measured twice)"),
    ("launch", 30.0, "LAUNCH_SECONDS of jobscripts/slurm.sh"),
    ("communicators", 30.0, "NCCL on more than 10,000 GPUs (MegaScale, Jiang et al. 2024, section 3.5)"),
    ("state", 3.0, "297 MB a rank from copies, or 4.9 TB at 2 TB/s"),
    ("first step", 10.0, "data, memory, kernels: a guess"),
]
PRICE = {name: seconds for name, seconds, _ in PRICES}
ENDS = {"GPU fails": "ended", "rank killed": "ended", "rank crashes": "ended", "host is lost": "vanished", "rank hangs": "hang",
        "bit flips": "computed again", "writes fail": "computed again", "job stopped": "stop"}


def seconds_of_month(counts, lost_share, **other):
    """By class of the ledger. counts: interruptions by fault, of a month; lost_share: of the time between two copies, lost
    on the mean of those that left no checkpoint behind."""
    price = PRICE | other
    number = sum(counts.values())
    again = price["launch"] + price["communicators"] + price["state"] + price["first step"]
    seconds = {"lost": (number - counts.get("job stopped", 0)) * lost_share * price["copies"],
               "restart": number * again,
               "waiting": number * price["requeue"] + sum(count * price[ENDS[fault]] for fault, count in counts.items())}
    training = MONTH - sum(seconds.values())
    rate = price["copy"] / price["copies"] + price["checkpoint"] / price["checkpoints"]
    seconds["checkpoint"] = training * rate / (1 + rate)
    return {"useful": MONTH - sum(seconds.values())} | seconds


WAYS = [("as it comes: the job is requeued, `hang_timeout` 600 s", {}),
        ("`REQUEUE=no`", {"requeue": PRICE["following job"]}),
        ("`REQUEUE=no`, `run%hang_timeout = 120`", {"requeue": PRICE["following job"], "hang": 125.0})]


def tables(counts, lost_share):
    """Markdown, and the goodput of each way."""
    lines = ["| assumed cost | seconds | of |", "|---|---|---|"]
    lines += [f"| {name} | {seconds:.3g} | {text} |" for name, seconds, text in PRICES]
    goodput, names = [], ["useful", "lost", "checkpoint", "restart", "waiting"]
    lines += ["", "| hours of the month | " + " | ".join(names) + " | goodput |", "|---" * (len(names) + 2) + "|"]
    for way, other in WAYS:
        seconds = seconds_of_month(counts, lost_share, **other)
        goodput.append(seconds["useful"] / MONTH)
        lines.append(f"| {way} | " + " | ".join(f"{seconds[name] / 3600:.1f}" for name in names) + f" | {100 * goodput[-1]:.1f} % |")
    return "\n".join(lines), goodput
