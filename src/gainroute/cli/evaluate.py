"""`gainroute evaluate`: a trained run on new labelled data."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer

from gainroute.cli._extras import needing
from gainroute.cli._options import Device, IdColumn, Json, LabelColumn, LabelFile, ManyCommand, Views
from gainroute.cli._output import budget_text, console, guarded, notes, percent, print_json, table

__all__ = ["evaluate", "register"]


@guarded
def evaluate(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A folder that `gainroute train` wrote.")],
    views: Views,
    labels: LabelFile,
    id_column: IdColumn = "id",
    label_column: LabelColumn = "label",
    device: Device = "cpu",
    json: Json = False,
) -> None:
    """Apply a trained run to new labelled data: both routes, the router as deployed, and other budgets."""
    with notes() as warnings, needing("applying a trained run", "all"):
        from gainroute.experiments.run_report import evaluate_run

        results = evaluate_run(run, views, labels, id_column=id_column, label_column=label_column, device=device)
    if json:
        print_json(results | {"warnings": warnings})
        return
    terminal = console()
    point = results["deployed"]
    main = table("", "escalated", "Acc.", "bytes per sample")
    ends = results["budgets"]
    main.add_row("weak route", "0 %", percent(results["weak"]), f"{ends[0]['bytes']:,.0f}")
    deployed = f"routed, as deployed for {budget_text(point['budget'])}"
    main.add_row(deployed, percent(point["rate"]), percent(point["accuracy"]), f"{point['bytes']:,.0f}")
    main.add_row("strong route", "100 %", percent(results["strong"]), f"{ends[-1]['bytes']:,.0f}")
    terminal.print(f"{results['samples']:,} new samples, embeddings as {results['codec']}", style="bold")
    terminal.print(main)
    by_budget = table(
        "budget", "Acc. at that rate", "by confidence", "by calibrated confidence", "EP", "NE",
        "rate its threshold gave", "Acc. there",
    )  # fmt: skip
    for row in results["budgets"]:
        by_budget.add_row(
            budget_text(row["budget"]), percent(row["accuracy"]), _or_dash(row["confidence"]),
            _or_dash(row["calibrated_confidence"]), percent(row["precision"]), percent(row["neutral"]),
            percent(row["rate_given"]), percent(row["accuracy_given"]),
        )  # fmt: skip
    terminal.print("What each budget buys", style="bold")
    terminal.print(by_budget)
    terminal.print(
        "EP: share of the escalated samples whose error is corrected. NE: share whose outcome does not change. A "
        "threshold is set on calibration data; where the rate it gave is far from the budget, the new data differ "
        "from the calibration data.",
        style="dim",
        soft_wrap=True,
    )


def _or_dash(share: float | None) -> str:
    return percent(math.nan if share is None else share)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("evaluate", cls=ManyCommand, short_help="Apply a trained run to new data.")(evaluate)
