"""Routing some rows of a Parquet file into another, block by block: the unit of work of a job."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

from gainroute._util.files import replacing
from gainroute.errors import DataError, GainrouteError
from gainroute.io.arrow_router import ArrowRouter
from gainroute.io.tables import naming_parquet_damage
from gainroute.routing.decide import Turns

__all__ = ["MADE_FROM", "Part", "Routed", "route_part"]

GROUP_BLOCKS = 10  # blocks per row group of the output
READ_BYTES = 2**20  # buffered per column; without it, pyarrow reads the column of a whole row group at once
MADE_FROM = b"gainroute.made_from"
DICTIONARIES = ["weak_prediction", "threshold"]  # other columns hardly repeat: a dictionary would only cost time


@dataclass(frozen=True)
class Part:
    """Rows of one input file, and the output file they become."""

    source: Path
    target: Path
    first: int
    last: int  # exclusive
    made_from: str  # equal for two parts only if their output is


@dataclass(frozen=True)
class Routed:
    """How many samples, how many of them are escalated or lack a party, and in how many files."""

    samples: int = 0
    escalated: int = 0
    incomplete: int = 0
    files: int = 0
    kept: int = 0  # files that an earlier run had finished

    def __add__(self, other: Routed) -> Routed:
        return Routed(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))


def route_part(part: Part, route: ArrowRouter, stopped: Callable[[], bool]) -> Routed:
    """Route the rows of a part; the output is written completely or not at all."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    source = str(part.source)
    with naming_parquet_damage(source):
        empty = pq.read_schema(source).empty_table()
    schema = route._route_piece(empty, source, numbered=True).schema.with_metadata({MADE_FROM: part.made_from})
    counts, row = Routed(files=1), part.first
    turns: Turns = {}
    with replacing(part.target) as out, pq.ParquetWriter(out, schema, use_dictionary=DICTIONARIES) as writer:
        waiting: list[Any] = []
        for block in _blocks(part, route):
            if stopped():
                raise GainrouteError(f"{source}: stopped before its end")
            decided = route._route_piece(block, source, row, turns=turns, numbered=True)
            row += len(decided)
            escalated, incomplete = (pc.sum(decided[name]).as_py() for name in ("escalate", "incomplete"))
            counts += Routed(len(decided), escalated, incomplete)
            waiting.append(decided)
            if len(waiting) == GROUP_BLOCKS or row == part.last:
                writer.write_table(pa.concat_tables(waiting))
                waiting = []
        if row != part.last:
            raise DataError(f"{source} has changed since the start: it ends at row {row}; run the command again")
    return counts


def _blocks(part: Part, route: ArrowRouter) -> Iterator[Any]:
    """Read the rows of a part as tables of one block each, whatever the row groups are."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    size = route._block_rows
    with naming_parquet_damage(part.source), pq.ParquetFile(part.source, buffer_size=READ_BYTES) as file:
        columns = [name for name in file.schema_arrow.names if route._needs(name)]
        groups, row = _groups(file.metadata, part.first, part.last)
        waiting: list[Any] = []
        for batch in file.iter_batches(size, groups, columns, use_threads=False):
            skipped = min(max(part.first - row, 0), len(batch))
            waiting.append(batch.slice(skipped, max(part.last - row - skipped, 0)))
            row += len(batch)
            while (count := sum(map(len, waiting))) >= size or (count and row >= part.last):
                table = pa.Table.from_batches(waiting)
                yield table.slice(0, size)
                waiting = table.slice(size).to_batches()
            if row >= part.last:
                return


def _groups(metadata: Any, first: int, last: int) -> tuple[list[int], int]:
    """The row groups that hold some of these rows, and the first row of the first one."""
    row, begin = 0, 0
    found: list[int] = []
    for i in range(metadata.num_row_groups):
        end = row + metadata.row_group(i).num_rows
        if row < last and end > first:
            begin = begin if found else row
            found.append(i)
        row = end
    return found, begin
