"""A measured row, medians of interleaved runs, and how both are shown and kept."""

from __future__ import annotations

import json
import operator
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from gainroute._util.files import write_bytes

__all__ = ["Row", "interleaved", "row", "show", "timed", "write"]

COMPARE = {">=": operator.ge, "<=": operator.le}


@dataclass(frozen=True)
class Row:
    """`ratio` is what `bar` speaks of: other/ours where faster is better, ours/other where a cost is bounded.

    `ours` is None where nothing could be measured; `what` says why.
    """

    what: str
    ours: float | None
    other: float | None
    ratio: float | None
    bar: str | None
    holds: bool | None


def row(what: str, ours: float | None, other: float | None, ratio: float | None, bar: str | None = None) -> Row:
    """Build a row, and judge it by its bar, such as ">= 3"."""
    holds = None
    if bar is not None and ratio is not None:
        sign, limit = bar.split()
        holds = bool(COMPARE[sign](ratio, float(limit)))
    return Row(what, ours, other, ratio, bar, holds)


def timed(call: Callable[[], Any]) -> float:
    """Seconds that one call takes."""
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def interleaved(calls: Sequence[Callable[[], float]], repeats: int) -> list[float]:
    """Median of what each call returns, all calls taking turns, so that a busy moment hits everyone alike."""
    found: list[list[float]] = [[] for _ in calls]
    for _ in range(repeats):
        for values, call in zip(found, calls, strict=True):
            values.append(call())
    return [statistics.median(values) for values in found]


def show(topic: str, rows: Sequence[Row], console: Console) -> None:
    """Print the rows as a table."""
    table = Table("what", "ours", "other", "ratio", "bar", "holds", title=f"bench: {topic}", title_justify="left")
    for column in table.columns[1:]:
        column.justify = "right"
    for r in rows:
        mark = {None: "", True: "[green]yes[/]", False: "[red]NO[/]"}[r.holds]
        table.add_row(r.what, _number(r.ours), _number(r.other), _number(r.ratio), r.bar or "", mark)
    console.print(table)


def write(topic: str, rows: Sequence[Row], folder: Path) -> Path:
    """Write the rows as JSON, whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{topic}.json"
    write_bytes(path, (json.dumps([asdict(r) for r in rows], indent=1) + "\n").encode())
    return path


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"
