"""Compares token files with the hashes of their blocks, or writes the hashes; compares metrics.h5 with its row hashes.

    nanotron-verify tokens.h5 more.h5        checks every block
    nanotron-verify run/metrics.h5           checks every row
    nanotron-verify --add tokens.h5          writes hashes into a file without any, such as one of another program

nanotron-tokenize and nanotron-import write the hashes with the tokens. nanotron_hpc compares each block that it reads
with its hash, so this tool is needed only to find all damage, or to hash the tokens of other programs.

--add leaves correct hashes unchanged. --replace writes new ones, after an intended change of a file. Both read the
whole file first, and then write into it: no other program may use it at the same time.

Exit codes: 0 done; 2 or 64 wrong command line; 65 a file that is damaged, or has no hashes; 71 system failure.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import h5py

from . import common, row_hashes, token_hashes

MAX_LINES = 20


def compare(path: Path) -> token_hashes.Comparison:
    """The whole file against its hashes."""
    with h5py.File(path, "r") as file:
        comparison = token_hashes.Comparison(file)
        if comparison.exists:
            for name in comparison.names:
                for _, data in token_hashes.pieces(file[name]):
                    comparison.add(name, data)
            comparison.finish()
        return comparison


def listed(found: list[str]) -> str:
    more = f"\n          and {len(found) - MAX_LINES} more" if len(found) > MAX_LINES else ""
    return "another hash of\n          " + "\n          ".join(found[:MAX_LINES]) + more


def problems(path: Path, comparison: token_hashes.Comparison) -> common.ToolError | None:
    found = [*map(str, comparison.damages), *comparison.wrong]
    if not found:
        return None
    return common.wrong(path, "data that match the hashes", listed(found),
                        "restore the file from a copy, or recreate it; if the change was intended: --replace")


def check_ids(path: Path) -> None:
    """Hashes of tokens that are none would only say that they stayed so."""
    with h5py.File(path, "r") as file:
        if "tokens" not in file or file["tokens"].ndim != 1 or file["tokens"].dtype.kind != "u":
            raise common.wrong(path, "a token file", ", ".join(file) or "nothing", "name a token file")
        limit = int(file.attrs.get("vocab_size", 1 << 31))
        for begin, data in token_hashes.pieces(file["tokens"]):
            if data.size and int(data.max()) >= limit:
                at = begin + int((data >= limit).argmax())
                raise common.wrong(f"{path}, /tokens[{at}]", f"an id below {limit}", str(data[at - begin]),
                                   "recreate the file, or correct its vocab_size")


def verify_metrics(path: Path) -> None:
    try:
        with h5py.File(path, "r") as file:
            found = row_hashes.compare(file)
    except (KeyError, ValueError) as error:
        raise common.wrong(path, "columns of 8 bytes under each hash", str(error), "bring the file back") from None
    if found is None:
        raise common.wrong(path, "hashes of its rows", "none", "nothing: the next start of the run adds them")
    if found.damaged:
        raise common.wrong(path, "rows that match their hashes",
                           listed(found.damaged), "take the numbers of these steps from run.log")
    without = f", {found.unknown:,} of them without a hash, of an earlier release" if found.unknown else ""
    print(f"{path}: verified, {found.rows:,} rows{without}")


def one(path: Path, options: argparse.Namespace) -> None:
    if not path.is_file():
        raise common.wrong(path, "a token file, or metrics.h5", "no such file", "correct the name")
    begin = time.perf_counter()
    try:
        with h5py.File(path, "r") as file:
            of_metrics = row_hashes.is_metrics(file)
        if of_metrics:
            return verify_metrics(path)
        comparison = None if options.replace else compare(path)
        if comparison and comparison.exists:
            if error := problems(path, comparison):
                raise error
            content = comparison.content
        elif options.add or options.replace:
            check_ids(path)
            content = token_hashes.add(path)
        else:
            raise common.wrong(path, "hashes of its blocks", "none", "write them: nanotron_verify.py --add")
    except OSError as error:
        raise common.wrong(path, "an HDF5 file that can be used", str(error), "download or recreate it") from None
    seconds = time.perf_counter() - begin
    done = "verified" if comparison and comparison.exists else "hashed"
    print(f"{path}: {done}, content {content}, {path.stat().st_size / 1e9:.3f} GB in {seconds:.1f} s")


def main(argv: list[str] | None = None) -> int:
    parser = common.parser(__doc__)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--add", action="store_true", help="write hashes into files that have none")
    parser.add_argument("--replace", action="store_true", help="write new hashes")
    options = parser.parse_args(argv)
    return common.for_each(options.files, lambda path: one(path, options))
