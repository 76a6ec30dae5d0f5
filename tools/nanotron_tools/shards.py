"""A corpus in shards, token files of their own that any number of processes on any number of nodes makes.

The shards of a corpus follow from its files and --shard-mb alone: a text file and one that is read as a stream are
never cut, a .jsonl file after a line. Rank r of n makes the shards r, r + n, ... . A shard that is there is passed
over if it proves to be the same: it has the key of the settings, the tokenizer and the names and places of its texts,
the hash of these texts, which are read again, and the hash of its own tokens. The plan, plan.json, lists the keys in
order; what joins the shards reads them and the plan.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import h5py

from . import common, corpus
from .checkpoint import write_atomically
from .corpus import Span
from .encode import Settings
from .foreign import TokenFile, proof
from .tokenizers import Tokenizer

FORMAT = "nanotron_hpc shards of tokens, 3"
PLAN = "plan.json"
LEFT_OUT = "records_left_out"
READ_BYTES = 1 << 24
# Variables of launchers: rank, number of ranks, and one without which they do not count. Slurm gives its own to a batch
# script too, as rank 0 of all tasks, but no step; an mpirun in a job of Slurm sets variables of its own.
LAUNCHERS = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", None),
    ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", None),
    ("PMI_RANK", "PMI_SIZE", None),
    ("FLUX_TASK_RANK", "FLUX_JOB_SIZE", None),
    ("PMIX_RANK", "SLURM_STEP_NUM_TASKS", None),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_ID"),
    ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_STEP_ID"),
)


@dataclass(frozen=True)
class Place:
    rank: int
    ranks: int
    source: str  # where that was found


@dataclass(frozen=True)
class Shard:
    path: Path
    spans: list[Span]
    key: str

    @property
    def bytes(self) -> int:
        return sum(span.end - span.start for span in self.spans)


def place_of(rank: int | None, ranks: int | None, environment: Mapping[str, str]) -> Place:
    """The options --rank and --ranks, or what the launcher says, or 0 of 1."""
    if (rank is None) != (ranks is None):
        raise common.ToolError("--rank and --ranks: expected both or neither", common.EXIT_USAGE)
    if rank is not None and ranks is not None:
        return checked(Place(rank, ranks, "--rank, --ranks"))
    for rank_name, size_name, needed in LAUNCHERS:
        if rank_name in environment and size_name in environment and (needed is None or needed in environment):
            try:
                found = Place(int(environment[rank_name]), int(environment[size_name]), f"{rank_name}, {size_name}")
            except ValueError:
                raise common.wrong(f"{rank_name}, {size_name}", "numbers",
                                   f"{environment[rank_name]!r}, {environment[size_name]!r}",
                                   "give --rank and --ranks", common.EXIT_USAGE) from None
            return checked(found)
    return Place(0, 1, "no launcher")


def checked(place: Place) -> Place:
    if not 0 <= place.rank < place.ranks:
        raise common.ToolError(f"{place.source}: expected a rank from 0 to {place.ranks - 1}, found {place.rank}",
                               common.EXIT_USAGE)
    return place


def cut(spans: list[Span], shard_bytes: int) -> list[list[Span]]:
    """The spans in shards of about `shard_bytes`, in order."""
    shards: list[list[Span]] = [[]]
    used = 0
    for span in spans:
        start = span.start
        while start < span.end:
            if used >= shard_bytes:
                shards.append([])
                used = 0
            end = span.end
            if span.kind.has_places and span.kind.name == "JSON lines" and end - start > shard_bytes - used:
                with open(span.path, "rb") as file:
                    end = corpus.line_boundary(file, start + shard_bytes - used, span.end, True)
            shards[-1].append(dataclasses.replace(span, start=start, end=end))
            used += end - start
            start = end
    return shards


def plan(folder: Path, spans: list[Span], shard_bytes: int, tokenizer: Tokenizer, settings: Settings) -> list[Shard]:
    decides = [FORMAT, tokenizer.sha256, tokenizer.vocab_size, tokenizer.eos, tokenizer.bos, tokenizer.recipe()[-1],
               settings.field,
               repr(settings.chat), settings.ends,
               settings.skip_bad > 0]
    shards = []
    for number, part in enumerate(cut(spans, shard_bytes)):
        text = json.dumps([decides, [(span.name, span.kind.title, span.start, span.end) for span in part]])
        key = hashlib.blake2b(text.encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()
        shards.append(Shard(folder / f"shard_{number:06d}.h5", part, key))
    return shards


def write_plan(folder: Path, shards: list[Shard]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    content = {"format": FORMAT, "shards": [{"file": shard.path.name, "key": shard.key, "bytes": shard.bytes}
                                            for shard in shards]}
    write_atomically(folder / PLAN, json.dumps(content, indent=1) + "\n")


def read_plan(folder: Path) -> list[Shard]:
    path = folder / PLAN
    if not path.is_file():
        raise common.wrong(folder, f"a folder of shards, with {PLAN}", "none", "make them with --shards")
    try:
        content = common.from_json(path.read_text(encoding="utf-8"))
        if content["format"] != FORMAT:
            raise ValueError(f"the format {content['format']!r}")
        return [Shard(folder / item["file"], [], item["key"]) for item in content["shards"]]
    except (ValueError, KeyError, TypeError) as error:
        raise common.wrong(path, repr(FORMAT), str(error), "recreate the shards") from None


def hash_of_texts(spans: list[Span]) -> str:
    """Of the bytes of the spans. A file that shrinks meanwhile is an error."""
    digest = hashlib.blake2b(digest_size=16)
    for span in spans:
        with open(span.path, "rb", buffering=0) as file:
            file.seek(span.start)
            left = span.end - span.start
            while left:
                data = file.read(min(left, READ_BYTES))
                if not data:
                    raise common.wrong(span.path, f"{span.end} bytes", f"{span.end - left}: it was truncated meanwhile",
                                       "start again when it is complete")
                digest.update(data)
                left -= len(data)
    return digest.hexdigest()


def times_of(spans: list[Span]) -> list[tuple[int, int]]:
    states = [os.stat(span.path) for span in spans]
    return [(state.st_size, state.st_mtime_ns) for state in states]


def is_sound(path: Path) -> bool:
    """The data are those that were written."""
    try:
        for _ in TokenFile(path).pieces():
            pass
    except common.ToolError:
        return False
    return True


def is_done(shard: Shard) -> bool:
    """The shard is there, of this key, of these texts, and undamaged."""
    if not shard.path.is_file():
        return False
    try:
        with h5py.File(shard.path, "r") as file:
            found = {name: proof(file, name) for name in ("shard_key", "input_blake2b", "tokens_blake2b")}
    except OSError:
        return False
    return found["shard_key"] == shard.key and found["tokens_blake2b"] != "" and is_sound(shard.path) and \
        found["input_blake2b"] == hash_of_texts(shard.spans)


def left_out(shard: Shard) -> int:
    """Records that were left out when the shard was made."""
    with h5py.File(shard.path, "r") as file:
        return int(proof(file, LEFT_OUT) or 0)


def check_keys(folder: Path) -> list[Path]:
    """The shards of the plan, which are all there; damage is found when they are read."""
    shards, missing, other = read_plan(folder), [], []
    for shard in shards:
        if not shard.path.is_file():
            missing.append(shard.path.name)
            continue
        try:
            with h5py.File(shard.path, "r") as file:
                if proof(file, "shard_key") != shard.key:
                    other.append(shard.path.name)
        except OSError as error:
            other.append(f"{shard.path.name} ({error})")
    if missing or other:
        names = ", ".join([*missing, *other][:8])
        raise common.wrong(folder, f"the {len(shards)} shards of {PLAN}", f"{len(missing)} missing, {len(other)} of "
                           f"other texts or settings, or damaged: {names}", "run the command with --shards again")
    return [shard.path for shard in shards]
