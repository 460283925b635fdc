"""Formats of what commands print."""

from __future__ import annotations

import json
import math
import sys
from typing import TYPE_CHECKING, Any

import typer

from gainroute._util.files import plain

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

__all__ = ["budget_text", "console", "percent", "print_json", "print_table", "table"]

PIPED_WIDTH = 160  # if the output is not a terminal


def console() -> Console:
    """Build a console; piped output is not limited to 80 columns."""
    from rich.console import Console

    return Console(file=sys.stdout, width=None if sys.stdout.isatty() else PIPED_WIDTH, highlight=False, markup=False)


def table(*columns: str) -> Table:
    """Build a table whose first column is text and whose others are numbers."""
    from rich import box
    from rich.table import Table

    made = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for i, column in enumerate(columns):
        made.add_column(column, justify="left" if i == 0 else "right", no_wrap=True)
    return made


def print_table(shown: Table, heading: str = "") -> None:
    """Print a table below its heading."""
    if heading:
        console().print(heading, style="bold")
    console().print(shown)


def percent(share: float | None) -> str:
    """Format a result as a percentage with one decimal; a dash if there is none."""
    return "–" if share is None or math.isnan(share) else f"{100 * share:.1f} %"


def budget_text(share: float) -> str:
    """Format a budget or rate as briefly as possible: 5 %, 12.5 %."""
    return f"{round(100 * share, 1):g} %"


def print_json(result: dict[str, Any]) -> None:
    """Print standard JSON: a number that is not finite becomes null, or the text "inf"."""
    typer.echo(json.dumps(plain(result), indent=2, ensure_ascii=False, allow_nan=False))
