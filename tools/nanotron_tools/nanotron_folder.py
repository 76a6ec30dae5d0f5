"""A checkpoint folder of Hugging Face's Nanotron: its shards of weights and of the optimizer, each checked.

    checkpoint_metadata.json   step, samples and tokens consumed, tp and dp
    model_config.json          sizes
    config.yaml                the rest of the run
    model/<module>/model_<weight|bias>[_pp-rank-P-of-N_tp-rank-T-of-N].safetensors
                               tensor 'data'; metadata: shape of the whole, slices of this shard
    optimizer/optimizer_config.json
    optimizer/optimizer_pp-P-of-N[_dp-D-of-N]_tp-T-of-N[_exp-E-of-N].pt
                               with dp: a stretch of each shard (ZeRO-1)

As nanotron/serialize writes them (format 1.5, 2026-04-07). lr_scheduler and random are not read.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import common, taken_over, torch_file
from . import safetensors as st
from .nanotron_names import Whole
from .taken_over import Piece, Slice

SHARD = re.compile(r"_pp-rank-(\d+)-of-(\d+)_tp-rank-(\d+)-of-(\d+)\.safetensors$")
STATES = re.compile(r"^optimizer_pp-(\d+)-of-(\d+)(?:_dp-(\d+)-of-(\d+))?_tp-(\d+)-of-(\d+)"
                    r"(?:_exp-(\d+)-of-(\d+))?\.pt$")
NEWEST = (1, 5)
COPY = "copy the whole folder again"


def metadata_of(folder: Path) -> dict[str, Any]:
    """checkpoint_metadata.json, of a version that is read here."""
    path = folder / "checkpoint_metadata.json"
    found = st.read_json(path)
    version = str(found.get("version", ""))
    if not re.fullmatch(r"\d+\.\d+", version) or tuple(map(int, version.split("."))) > NEWEST:
        raise common.wrong(f"{path}, version", "at most 1.5", version or "none", "update these tools")
    metas = found.get("metas")
    if not isinstance(metas, dict) or any(
            type(value) is not int or not 0 <= value < 1 << 53
            for value in (metas.get("last_train_step"), metas.get("consumed_train_samples"), found.get("tp"))):
        raise common.wrong(path, "tp, metas.last_train_step and metas.consumed_train_samples", "others", COPY)
    return found


@dataclass(frozen=True)
class Shard:
    """What one rank of tensor parallelism has of a tensor."""

    stored: st.StoredTensor
    slices: tuple[Slice, ...]

    def pieces(self, stored: st.StoredTensor | None = None) -> Iterable[Piece]:
        """Of this shard, or of a tensor of its shape."""
        whole = self.stored if stored is None else stored
        matrix = st.StoredTensor(whole.path, whole.dtype, (whole.shape[0], math.prod(whole.shape[1:])), whole.offset)
        return taken_over.pieces_of(0, 0, matrix, self.slices)

    def pieces_of_stretch(self, stored: st.StoredTensor, begin: int) -> Iterable[Piece]:
        for row, column, matrix in taken_over.rectangles(stored, begin, math.prod(self.stored.shape[1:])):
            yield from taken_over.pieces_of(row, column, matrix, self.slices)


def shards_of(folder: Path, whole: Whole, ranks: int) -> list[Shard]:
    """Of every rank, in their order; common.ToolError names a file that is missing or does not belong here."""
    *modules, kind = whole.name.split(".")
    below = folder / "model" / Path(*modules)
    if whole.split is None:
        return [_unsharded(below / f"model_{kind}.safetensors", whole)]
    found: dict[int, Path] = {}
    for path in sorted(below.glob(f"model_{kind}_*.safetensors")):
        match = SHARD.search(path.name)
        if "_exp-rank-" in path.name or not match:
            raise common.wrong(path, "shards of pipeline and tensor parallelism", "another name", "rename it")
        if int(match[4]) != ranks or int(match[3]) in found:
            raise common.wrong(path, f"one shard for each of {ranks} ranks (checkpoint_metadata.json, tp)", path.name,
                               "remove shards of another checkpoint")
        found[int(match[3])] = path
    for rank in range(ranks):
        if rank not in found:
            raise common.wrong(below, f"model_{kind}_pp-rank-*_tp-rank-{rank}-of-{ranks}.safetensors", "no such file",
                               COPY)
    return [_shard(found[rank], whole, ranks) for rank in range(ranks)]


def _data(path: Path) -> st.StoredTensor:
    if not path.is_file():
        raise common.wrong(path, "a shard of the weights", "no such file", COPY)
    tensors = st.read_header(path)
    if list(tensors) != ["data"]:
        raise common.wrong(path, "the tensor 'data'", ", ".join(tensors) or "none", COPY)
    if tensors["data"].dtype not in taken_over.FLOATS:
        raise common.wrong(path, f"numbers of type {', '.join(taken_over.FLOATS)}", tensors["data"].dtype,
                           "save the weights in one of them")
    return tensors["data"]


def _unsharded(path: Path, whole: Whole) -> Shard:
    stored = _data(path)
    if stored.shape != whole.shape:
        raise common.wrong(path, f"shape {whole.shape} (model_config.json)", f"{stored.shape}",
                           "copy model_config.json of the same checkpoint")
    return Shard(stored, (Slice((0, 0), (0, 0), whole.shape[0], whole.columns),))


def _shard(path: Path, whole: Whole, ranks: int) -> Shard:
    stored, said = _data(path), st.read_metadata(path)
    shape = tuple(int(re.sub(r"^np\.int64\((\d+)\)$", r"\1", word.strip())) if re.search(r"\d", word) else -1
                  for word in re.sub(r"^\((.*?),?\)$", r"\1", said.get("unsharded_shape", "")).split(","))
    if shape != whole.shape:
        raise common.wrong(f"{path}, unsharded_shape", f"{whole.shape} (model_config.json)",
                           said.get("unsharded_shape", "nothing"), "copy model_config.json of the same checkpoint")
    if stored.shape != whole.local_shape(ranks):
        raise common.wrong(path, f"shape {whole.local_shape(ranks)} of a rank", f"{stored.shape}", COPY)
    try:
        pairs = said["local_global_slices_pairs"].split(";")
        return Shard(stored, tuple(_slice(pair, stored.shape, shape) for pair in pairs))
    except (KeyError, ValueError) as error:
        raise common.wrong(f"{path}, local_global_slices_pairs", "slices of this shard and of the whole",
                           f"{said.get('local_global_slices_pairs', 'nothing')} ({error})", COPY) from None


def _slice(text: str, local: tuple[int, ...], whole: tuple[int, ...]) -> Slice:
    sides = [[_range(part, extent) for part, extent in zip(side.split("|"), shape)]
             for side, shape in zip(text.split("#"), (local, whole))]
    if [[end - begin for begin, end in side] for side in sides] != [[end - begin for begin, end in sides[0]]] * 2 or \
            len(sides[0]) != len(local):
        raise ValueError("the slices differ in shape")
    (rows, *columns), (wide, *others) = sides
    width = columns[0][1] - columns[0][0] if columns else 1
    return Slice((rows[0], columns[0][0] if columns else 0), (wide[0], others[0][0] if others else 0),
                 rows[1] - rows[0], width)


def _range(text: str, extent: int) -> tuple[int, int]:
    begin, end, step = (None if word == "None" else int(word) for word in text.split(","))
    first, last = begin or 0, extent if end is None else end
    if step not in (None, 1) or not 0 <= first < last <= extent:
        raise ValueError(f"the slice {text} of {extent}")
    return first, last


# ---------------------------------------------------------------------------------------------
# The optimizer


@dataclass(frozen=True)
class State:
    """Of one parameter on one rank."""

    archive: torch_file.Archive
    values: dict[str, Any]
    master: Any
    group: dict[str, Any]
    stretch: int | None  # which part of the shard, with ZeRO


class Optimizer:
    """The files of the optimizer; rank of tensor parallelism and name of a parameter -> its states."""

    def __init__(self, folder: Path, ranks: int):
        self.folder, self.config = folder / "optimizer", st.read_json(folder / "optimizer" / "optimizer_config.json")
        parallelism = self.config.get("parallelism") or {}
        where = self.folder / "optimizer_config.json"
        try:
            sizes = [int(parallelism[key + "_size"]) for key in ("pp", "dp", "tp", "expert_parallel")]
        except (TypeError, KeyError, ValueError):
            raise common.wrong(f"{where}, parallelism", "sizes of pp, dp, tp", f"{parallelism!r:.100}", COPY) from None
        self.pp, self.dp, tp, experts = sizes
        if tp != ranks or experts != 1 or not 0 < self.pp < 1 << 16 or not 0 < self.dp < 1 << 20:
            raise common.wrong(f"{where}, parallelism", f"tp_size {ranks} (checkpoint_metadata.json) and "
                               "expert_parallel_size 1", f"{parallelism}", "copy all files of one checkpoint")
        self.is_zero = self.config.get("type") == "ZeroDistributedOptimizer"
        self.states: dict[tuple[int, str], list[State]] = {}
        files = self._files()
        for stage in range(self.pp):
            for part in range(self.dp if self.is_zero else 1):
                for rank in range(ranks):
                    self._read(files, (stage, part if self.is_zero else None, rank), ranks)

    def _files(self) -> dict[tuple[int, int | None, int], Path]:
        found = {}
        for path in sorted(self.folder.glob("optimizer_pp-*.pt")):
            if not (match := STATES.match(path.name)):
                raise common.wrong(path, "a name as Nanotron gives", path.name, "rename or remove it")
            found[int(match[1]), None if match[3] is None else int(match[3]), int(match[5])] = path
        return found

    def _read(self, files: dict[tuple[int, int | None, int], Path], key: tuple[int, int | None, int],
              ranks: int) -> None:
        stage, part, rank = key
        if key not in files:
            between = "" if part is None else f"_dp-{part}-of-{self.dp}"
            raise common.wrong(self.folder, f"optimizer_pp-{stage}-of-{self.pp}{between}_tp-{rank}-of-{ranks}*.pt",
                               "no such file", COPY)
        archive = torch_file.load(files[key])
        found = archive.object
        good = isinstance(found, dict) and all(isinstance(found.get(name), dict) for name in ("state", "names")) and \
            isinstance(found.get("param_groups"), list) and found["state"].keys() == found["names"].keys()
        if not good:
            raise common.wrong(archive.path, "state, names and param_groups of an optimizer", "others", COPY)
        masters = found.get("gradient_accumulator")
        groups = {index: group for group in found["param_groups"] if isinstance(group, dict)
                  for index in group.get("params", ())}
        for index, values in found["state"].items():
            name = str(found["names"][index]).removeprefix("module.")
            states = self.states.setdefault((rank, name), [])
            if any(state.stretch == part for state in states):
                continue  # tied embeddings, on another stage too
            states.append(State(archive, values if isinstance(values, dict) else {},
                                masters.get(name) if isinstance(masters, dict) else None, groups.get(index, {}), part))

    def states_of(self, rank: int, name: str) -> list[State]:
        states = self.states.get((rank, name), [])
        if not states:
            raise common.wrong(self.folder, f"the state of {name} on rank {rank} of tensor parallelism", "none", COPY)
        return states

    @property
    def has_masters(self) -> bool:
        return all(state.master is not None for states in self.states.values() for state in states)

    def steps(self) -> set[int]:
        found = set()
        for (_, name), states in self.states.items():
            for state in states:
                step = state.values.get("step")
                number = float(taken_over.elements(state.archive.stored(step, f"step of {name}")).reshape(-1)[0]) \
                    if not isinstance(step, (int, float)) else float(step)
                found.add(int(number) if math.isfinite(number) else -1)
        return found

    def pieces(self, shard: Shard, rank: int, whole: Whole, kind: str) -> Iterable[Piece]:
        """kind: a moment, or 'master'."""
        for state in self.states_of(rank, whole.name):
            value = state.master if kind == "master" else state.values.get(kind)
            stored = state.archive.stored(value, f"{kind} of {whole.name}")
            if stored.dtype not in taken_over.FLOATS:
                raise common.wrong(f"{state.archive.path}, {kind} of {whole.name}",
                                   f"numbers of type {', '.join(taken_over.FLOATS)}", stored.dtype, COPY)
            if state.stretch is None:
                wanted: tuple[int, ...] = shard.stored.shape
            else:
                begin, end = self._stretch(state.stretch, math.prod(shard.stored.shape), whole.name)
                wanted = (end - begin,)
            if stored.shape != wanted:
                raise common.wrong(f"{state.archive.path}, {kind} of {whole.name}", f"shape {wanted}",
                                   f"{stored.shape}", "copy all files of one checkpoint")
            yield from shard.pieces(stored) if state.stretch is None else shard.pieces_of_stretch(stored, begin)

    def _stretch(self, part: int, count: int, name: str) -> tuple[int, int]:
        """Elements of a shard that a rank of ZeRO has: the first ranks have one more."""
        small, more = divmod(count, self.dp)
        begin = part * small + min(part, more)
        end = begin + small + (part < more)
        offsets: Any = self.config
        for key in ("configs", "param_name_to_dp_rank_offsets", name):
            offsets = offsets.get(key) if isinstance(offsets, dict) else None
        if isinstance(offsets, dict) and offsets.get(str(part), [str(begin), str(end)]) != [str(begin), str(end)]:
            raise common.wrong(f"{self.folder / 'optimizer_config.json'}, param_name_to_dp_rank_offsets, {name}",
                               f"{begin} to {end} for rank {part} of {self.dp}", f"{offsets[str(part)]}",
                               "copy all files of one checkpoint")
        return begin, end
