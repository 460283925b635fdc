"""`gainroute report`: every table and figure, from records alone."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from warnings import warn

import typer

from gainroute.cli import _options as opt
from gainroute.cli._command import needing, notes
from gainroute.cli._output import print_json, print_table, table
from gainroute.errors import GainrouteWarning

if TYPE_CHECKING:
    from gainroute.experiments.report import ReportExtra

__all__ = ["CACHE", "RECORDS", "RESULTS", "comparison_pages_or_note", "print_overview", "report"]

CACHE, RECORDS, RESULTS = Path("out/cache"), Path("records"), Path("docs/results")
OVERVIEW = {  # the columns of the overview that a terminal has room for, and their headings there
    "test part": "accuracy in %",
    "seeds": "seeds",
    "weak route": "weak",
    "expected gain at 20 %": "expected gain at 20 %",
    "our default at 20 %": "our default at 20 %",
    "our default against expected gain at 20 %": "difference",
    "strong route": "strong",
    "oracle share": "oracle share",
}


def report(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[DATASET]...",
            help="Rebuild the pages of these data sets only; the index and the pages of all together stay as they are.",
        ),
    ] = None,
    records_dir: opt.RecordsDir = RECORDS,
    out: opt.ReportDir = RESULTS,
    router: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MODULE:CLASS...",
            help="Routers of your own, from a module in this folder or installed, added to every table with paired "
            "differences. Their code is run.",
        ),
    ] = None,
    cache_dir: opt.CacheDir = CACHE,
    json: opt.Json = False,
) -> None:
    """Rebuild every table and figure from records. Nothing is trained; torch is not needed."""
    from gainroute._util.progress import show_progress

    with notes() as warnings, needing("the report", "plots"), show_progress() as progress:
        from gainroute.experiments.report import build_report

        extra = comparison_pages_or_note()
        built = build_report(
            records_dir,
            out,
            names=names or (),
            routers=router or (),
            extra=extra,
            cache_dir=cache_dir,
            progress=progress.say,
        )
    if json:
        rows = [row for summary in built.values() for row in summary.get("versus_paper", ())]
        print_json({"datasets": built, "versus_paper": rows, "warnings": warnings})
    else:
        print_overview(built, out)


def comparison_pages_or_note() -> ReportExtra | None:
    """The pages that only a checkout has; a note says that they are left out elsewhere."""
    from gainroute.experiments.checkout import NEEDS_CHECKOUT, comparison_pages

    found = comparison_pages()
    if found is None:
        warn(NEEDS_CHECKOUT, GainrouteWarning, stacklevel=2)
    return found


def print_overview(built: dict[str, Any], out: Path) -> None:
    """Print one row per data set and regime, and where the pages are."""
    from gainroute.experiments.pages import tables

    overview = tables.overview_table(built)
    shown = table(*OVERVIEW.values())
    for row in overview.rows:
        shown.add_row(*(row[overview.header.index(name)] for name in OVERVIEW))
    print_table(shown)
    typer.echo(f"Pages, tables and figures:\n{out / 'README.md'}")
