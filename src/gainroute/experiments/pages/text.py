"""Tables and numbers as text: Markdown, a terminal, percent, points with intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gainroute.evaluation.router_names import shown_name
from gainroute.experiments.scores import ORACLE, OURS

if TYPE_CHECKING:
    from rich.table import Table as RichTable

__all__ = [
    "Summary",
    "Table",
    "best_of",
    "interval_at",
    "percent",
    "regime_title",
    "signed",
    "spread",
    "to_markdown",
    "to_rich",
    "with_interval",
]

Summary = Mapping[str, Any]


@dataclass(frozen=True)
class Table:
    """Texts in rows, which row is the router this is about, and which cells are best."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    caption: str = ""
    main: tuple[str, ...] = (shown_name(OURS),)
    faint: tuple[str, ...] = (ORACLE, "random")
    best: tuple[tuple[bool, ...], ...] | None = None


def percent(value: float, digits: int = 1) -> str:
    """Write a share in percent, without the sign."""
    return f"{100 * value:.{digits}f}"


def signed(value: float, digits: int = 1) -> str:
    """Write a difference of shares in points, with its sign; zero has none."""
    text = f"{100 * value:+.{digits}f}".replace("-", "−")
    return text[1:] if float(text.replace("−", "-")) == 0 else text


def with_interval(mean: float, low: float, high: float, digits: int = 1) -> str:
    """Write a difference of shares in points, its 95 % interval in brackets."""
    return f"{signed(mean, digits)} ({signed(low, digits)} … {signed(high, digits)})"


def interval_at(stated: Mapping[str, Sequence[float]], at: int) -> str:
    """Write one entry of a list of differences with ``mean``, ``low`` and ``high``."""
    return with_interval(stated["mean"][at], stated["low"][at], stated["high"][at])


def regime_title(regime: str, summary: Summary) -> str:
    """Name a noise regime."""
    return "clean" if regime == "0" else f"noise on {regime} of {summary['class_count']} classes"


def spread(stated: Summary, at: int, seeds: int) -> str:
    """Write mean and, of several seeds, standard deviation in percent."""
    mean = percent(stated["mean"][at])
    return mean if seeds == 1 else f"{mean} ± {percent(stated['std'][at])}"


def best_of(values: Sequence[Sequence[float]], skip: Sequence[bool], *, lowest: bool = False) -> list[list[bool]]:
    """Mark the best of each column as printed, among the rows that are not skipped; none where all are level."""
    found = [[False] * len(row) for row in values]
    for j in range(len(values[0])):
        column = {i: round(100 * row[j], 1) for i, row in enumerate(values) if not skip[i]}
        top = min(column.values()) if lowest else max(column.values())
        winners = [i for i, value in column.items() if value == top]
        if len(winners) < len(column):
            for i in winners:
                found[i][j] = True
    return found


def to_markdown(table: Table) -> str:
    """Render as a markdown table, its caption below; best cells bold."""
    lines = ["| " + " | ".join(table.header) + " |", "|" + "---|" * len(table.header)]
    for i, row in enumerate(table.rows):
        cells = [f"**{c}**" if table.best is not None and table.best[i][j] else c for j, c in enumerate(row)]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + (f"\n\n{table.caption}\n" if table.caption else "\n")


def to_rich(table: Table, title: str = "") -> RichTable:
    """Render for a terminal."""
    from rich import box
    from rich.table import Table as RichTable
    from rich.text import Text

    shown = RichTable(
        title=title or None, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False,
        caption=table.caption or None, caption_justify="left", caption_style="dim",
    )  # fmt: skip
    for j, name in enumerate(table.header):
        shown.add_column(name, justify="left" if j == 0 else "right", no_wrap=True)
    for i, row in enumerate(table.rows):
        style = "bold cyan" if row[0] in table.main else "dim" if row[0] in table.faint else ""
        marked = table.best[i] if table.best is not None else np.zeros(len(row), dtype=bool)
        cells = [Text(f"{c}*" if m else c + (" " if j else ""), style=style + (" bold" if m else ""))
                 for j, (c, m) in enumerate(zip(row, marked, strict=True))]  # fmt: skip
        shown.add_row(*cells)
    return shown
