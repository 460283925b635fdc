"""`gainroute recalibrate`: refit a router from its decision log."""

from __future__ import annotations

import time
from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from gainroute.cli._command import needing, notes
from gainroute.cli._options import Json
from gainroute.cli._output import percent, print_json, print_table, table
from gainroute.errors import SettingError, TooFewSamplesError

__all__ = ["recalibrate"]

HELD_OUT = 0.3
DAY = 86_400.0


def recalibrate(
    router: Annotated[Path, typer.Argument(metavar="ROUTER", help="The saved router that made the decisions.")],
    log: Annotated[Path, typer.Option(metavar="FILE", help="The coordinator's decision log.")],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="Where to write the new router.")],
    days: Annotated[
        float | None, typer.Option(metavar="N", help="Use only the last N days, such as those after a drift.")
    ] = None,
    min_labels: Annotated[
        int | None, typer.Option(show_default="200, or ten per class", help="Labels needed at least.")
    ] = None,
    trust: Annotated[
        list[str] | None,
        typer.Option(metavar="HOLDER", help="A holder whose labels may decide alone; repeat for several."),
    ] = None,
    json: Json = False,
) -> None:
    """Refit a router's calibrator, reliability and threshold from its decision log and the feedback in it.

    Some samples below the threshold must have been escalated at random (explore in the coordinator's settings);
    otherwise nothing is known about the strong route there. A router fitted on the older 70 % of the labelled decisions
    is compared with the old one on the rest, at the same rate; then one fitted on all of them is written.

    Labels by one holder of a client's token count at most as many as those of all others together, unless --trust
    names the holder.
    """
    with notes() as said:
        result, comparison = _refit(router, log, out, days, min_labels, trust or ())
    if json:
        print_json(result | {"warnings": said})
        return
    shown = table("", "old", "new")
    for name, old, new in result["changes"]:
        shown.add_row(name, f"{old:.4g}", f"{new:.4g}")
    print_table(shown)
    typer.echo(comparison)
    typer.echo(
        f"{result['labels']:,} labels on {result['decisions']:,} decisions, {percent(result['rate'])} of them "
        f"escalated. New router: {out}"
    )
    if result["unexplored"]:
        typer.echo(f"{result['unexplored']:,} decisions made while nothing was explored were left out.")
    if result["left_out"]:
        typer.echo(f"Left out were {result['left_out']}; --trust takes them all.")


def _refit(
    path: Path, log: Path, out: Path, days: float | None, min_labels: int | None, trusted: Collection[str]
) -> tuple[dict[str, Any], str]:
    if days is not None and not days > 0:
        raise SettingError(f"--days is {days}; a number above 0 is needed")
    with needing("reading a decision log", "serve"):
        from gainroute.federation.coordinator.decision_log.reading import read_decisions
    from gainroute._util.hashing import hash_contents
    from gainroute.control.recalibrate import recalibrate as refit
    from gainroute.control.shadow import compare_shadow
    from gainroute.routing.artifacts import load, save

    old = load(path)
    since = 0.0 if days is None else time.time() - days * DAY
    read = read_decisions(log, old, hash_contents(path), since, trusted)
    try:
        new = refit(old, read.decisions, min_labels=min_labels)
    except TooFewSamplesError as error:
        if not read.left_out:
            raise
        raise TooFewSamplesError(f"{error}. Left out were {read.left_out}: use --trust if they are right") from None
    comparison: dict[str, Any] | None = None
    told = "Too few labels to hold some back for a comparison: run the new router in the shadow before you deploy it."
    labelled = np.flatnonzero(read.labelled)
    first = labelled[round((1 - HELD_OUT) * len(labelled))]
    try:
        older = refit(old, read.take(slice(0, first)).decisions, min_labels=min_labels)
        found = compare_shadow(old, older, read.take(slice(first, None)).decisions)
        comparison, told = vars(found) | {"verdict": found.verdict}, f"On decisions held back, {found}."
    except TooFewSamplesError:
        pass
    save(new, out, provenance=old.provenance_)
    result = {
        "out": str(out),
        "decisions": len(read.time),
        "labels": len(labelled),
        "unexplored": read.unexplored,
        "left_out": read.left_out,
        "rate": float(read.escalated.mean()),
        "changes": [
            ["threshold", old.threshold_, new.threshold_],
            ["mean reliability", float(old.reliability_.mean()), float(new.reliability_.mean())],
            ["expected rate", old.expected_rate_[0], new.expected_rate_[0]],
        ],
        "comparison": comparison,
    }
    return result, told
