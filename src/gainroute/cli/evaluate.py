"""`gainroute evaluate`: a trained run on new labelled data."""

from __future__ import annotations

import typer

from gainroute.cli import _options as opt
from gainroute.cli._command import needing, notes
from gainroute.cli._output import budget_text, percent, print_json, print_table, table

__all__ = ["evaluate"]


def evaluate(
    run: opt.Run,
    views: opt.Views,
    labels: opt.LabelFile,
    id_column: opt.IdColumn = "id",
    label_column: opt.LabelColumn = "label",
    device: opt.Device = "cpu",
    json: opt.Json = False,
) -> None:
    """Apply a trained run to new labelled data: both routes, the router as deployed, and other budgets."""
    with notes() as warnings, needing("applying a trained run", "all"):
        from gainroute.experiments.run_report import evaluate_run

        results = evaluate_run(run, views, labels, id_column=id_column, label_column=label_column, device=device)
    if json:
        print_json(results | {"warnings": warnings})
        return
    point = results["deployed"]
    main = table("", "escalated", "Acc.", "bytes per sample")
    ends = results["budgets"]
    main.add_row("weak route", "0 %", percent(results["weak"]), f"{ends[0]['bytes']:,.0f}")
    deployed = f"routed, as deployed for {budget_text(point['budget'])}"
    main.add_row(deployed, percent(point["rate"]), percent(point["accuracy"]), f"{point['bytes']:,.0f}")
    main.add_row("strong route", "100 %", percent(results["strong"]), f"{ends[-1]['bytes']:,.0f}")
    print_table(main, f"{results['samples']:,} new samples, embeddings as {results['codec']}")
    by_budget = table(
        "budget", "Acc. at that rate", "by confidence", "by calibrated confidence", "EP", "NE",
        "rate its threshold gave", "Acc. there",
    )  # fmt: skip
    for row in results["budgets"]:
        by_budget.add_row(
            budget_text(row["budget"]), percent(row["accuracy"]), percent(row["confidence"]),
            percent(row["calibrated_confidence"]), percent(row["precision"]), percent(row["neutral"]),
            percent(row["rate_given"]), percent(row["accuracy_given"]),
        )  # fmt: skip
    print_table(by_budget, "What each budget buys")
    typer.echo(
        "EP: share of the escalated samples whose error is corrected. NE: share whose outcome does not change. A "
        "threshold is set on calibration data; where the rate it gave is far from the budget, the new data differ "
        "from the calibration data.",
    )
