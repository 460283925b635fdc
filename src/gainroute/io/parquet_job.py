"""Routing many Parquet files, or large ones, in bounded memory, on all cores, with resuming.

Each file is read in blocks of rows. Files of many rows are cut into parts, which are routed in parallel. A part is
written under a temporary name and renamed when it is complete. It records what it was made from: a part that is there,
made from the same input by the same router, is kept.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from warnings import warn

from gainroute._util.engines import Engine
from gainroute._util.files import writable_folder
from gainroute._util.progress import Progress
from gainroute._version import __version__
from gainroute.errors import DataError, GainrouteError, GainrouteWarning, MissingExtraError, StorageError
from gainroute.io.arrow_router import ArrowRouter
from gainroute.io.parquet_files import InputFiles
from gainroute.io.parquet_part import MADE_FROM, Part, Routed, route_part
from gainroute.io.tables import file_format, naming_parquet_damage

__all__ = ["route_files"]

PART_ROWS = 2**20  # a part has at least so many rows, but for the last of a file
TAIL_BYTES = 2**16  # of the end of a file, where Parquet keeps sizes, places and statistics of all columns


def route_files(
    route: ArrowRouter, made_by: str, inputs: InputFiles, out: Path, *, engine: Engine, progress: Progress
) -> Routed:
    """Route files into a folder; see the top of this module.

    `made_by` identifies the router, such as the hash of its file.
    """
    try:
        import pyarrow.parquet  # noqa: F401 (missed here, and not in every process)
    except ImportError:
        raise MissingExtraError("reading Parquet", "parquet") from None
    inputs.check_output(out)
    parts = _plan(route, made_by, inputs, writable_folder(out))
    with _locked(out):
        finished = {part for part in parts if _is_finished(part)}
        total = sum((_count(part.target) for part in finished), Routed())
        todo = [part for part in parts if part not in finished]
        _remove_leftovers(todo)
        _warn_of_strangers(out, parts)
        progress.start("routing", len(parts), len(finished))
        try:
            for routed in engine(route_part, todo, route):
                total += routed
                progress.advance(f"{total.samples:,} samples")
        except GainrouteError as error:
            done = f"{total.files} of {len(parts)} output files are complete and kept"
            raise type(error)(f"{error} ({done}: the same command continues from there)") from error
    return total


# ---- planning -----------------------------------------------------------------------------------


def _plan(route: ArrowRouter, made_by: str, inputs: InputFiles, out: Path) -> list[Part]:
    """Look at every file's schema and row groups, and cut the files into parts; nothing is written."""
    import pyarrow.parquet as pq

    parts: list[Part] = []
    first_names: tuple[str, ...] | None = None
    unused = False
    for path in inputs.files:
        if file_format(path) != "parquet":
            raise DataError(f"{path} is an .npz file; a job of many files takes Parquet files: route it on its own")
        with naming_parquet_damage(path), pq.ParquetFile(path) as file:
            schema, metadata = file.schema_arrow, file.metadata
            groups = [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]
        names = route._party_names(schema, str(path))
        first_names = names if first_names is None else first_names
        if names != first_names:
            raise DataError(
                f"{path} has the parties {', '.join(names)}, and {inputs.files[0]} {', '.join(first_names)}; all files "
                "need the same columns of posteriors in the same order"
            )
        unused |= "weak_prediction" in schema.names and not route.router.own_weak_prediction_
        target = out / inputs.relative(path)
        source = {"name": str(inputs.relative(path)), **_identity(path)}
        made_from = {
            "gainroute": __version__, "router": made_by, "columns": route.columns, "source": source,
            "class_names": None if route.class_names is None else route.class_names.tolist(),
        }  # fmt: skip
        rows = _cut(groups, route._block_rows)
        for i, (first, last) in enumerate(rows):
            name = f"{target.stem}-{i:05d}-of-{len(rows):05d}{target.suffix}" if len(rows) > 1 else target.name
            text = json.dumps({**made_from, "rows": [first, last]})
            parts.append(Part(path, target.with_name(name), first, last, text))
    _refuse_equal_targets(parts)
    if unused:
        warn(
            "weak_prediction in the files is not used: the router was fitted without one, on the argmax of the pooled "
            "posterior",
            GainrouteWarning,
            stacklevel=3,
        )
    return parts


def _cut(groups: Sequence[int], block: int) -> list[tuple[int, int]]:
    """Cut the rows of a file near the ends of row groups, where a block ends: blocks decide the last bits."""
    total, first, row = sum(groups), 0, 0
    found: list[tuple[int, int]] = []
    for size in groups:
        row += size
        last = min(-(-row // block) * block, total)
        if last - first >= PART_ROWS and total - last >= PART_ROWS // 2:
            found.append((first, last))
            first = last
    return [*found, (first, total)]


def _identity(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        stat = os.fstat(file.fileno())
        file.seek(max(0, stat.st_size - TAIL_BYTES))
        return {"bytes": stat.st_size, "modified": stat.st_mtime_ns, "tail": hashlib.sha256(file.read()).hexdigest()}


def _refuse_equal_targets(parts: Sequence[Part]) -> None:
    sources: dict[Path, Path] = {}
    for part in parts:
        other = sources.setdefault(part.target, part.source)
        if other != part.source:
            raise DataError(f"{other} and {part.source} would both be written to {part.target}; rename one of them")


# ---- resuming -----------------------------------------------------------------------------------


@contextmanager
def _locked(out: Path) -> Iterator[None]:
    """Keep other jobs out of the folder; the lock ends with the process, however it ends."""
    descriptor = os.open(out, os.O_RDONLY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise StorageError(
                f"another job writes to the folder {out}; wait for its end, or choose another folder"
            ) from None
        yield
    finally:
        os.close(descriptor)


def _is_finished(part: Part) -> bool:
    """Whether the output is there, made from this input by this router; raises for a file that is not ours."""
    import pyarrow.parquet as pq

    if not part.target.exists():
        return False
    try:
        found = (pq.read_schema(part.target).metadata or {}).get(MADE_FROM)
    except Exception:  # noqa: BLE001 (whatever damage leads to)
        found = None
    if found is None:
        raise StorageError(
            f"{part.target} exists and was not written by this command; choose another folder, or remove the file"
        )
    return bool(found == part.made_from.encode())


def _count(path: Path) -> Routed:
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    table = pq.read_table(path, columns=["escalate", "incomplete"], partitioning=None)
    escalated, incomplete = (int(pc.sum(table[name]).as_py() or 0) for name in table.column_names)
    return Routed(len(table), escalated, incomplete, files=1, kept=1)


def _remove_leftovers(parts: Sequence[Part]) -> None:
    """Remove what a killed process left half written."""
    for part in parts:
        for left in part.target.parent.glob(f".{part.target.name}.*.part"):
            left.unlink(missing_ok=True)


def _warn_of_strangers(out: Path, parts: Sequence[Part]) -> None:
    ours = {part.target for part in parts}
    others = sorted(path for path in out.rglob("*.parquet") if path not in ours)
    if others:
        warn(
            f"{out} holds {len(others)} Parquet file(s) that this job does not write, such as {others[0]}; a reader of "
            "the folder would mix them with its decisions: remove them, or choose another folder",
            GainrouteWarning,
            stacklevel=3,
        )
