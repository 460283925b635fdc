"""`gainroute compare`: compare routers on the user's own data."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from gainroute._util.progress import show_progress
from gainroute.cli import _options as opt
from gainroute.cli._command import notes
from gainroute.cli._loading import read_data
from gainroute.cli._output import budget_text, print_json, print_table, table
from gainroute.evaluation.compare import ORACLE, REFERENCE, Comparison, candidates, compare_routers, load_router
from gainroute.evaluation.router_names import shown_name

__all__ = ["compare"]


def compare(
    data: opt.Data = None,
    router: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME|MODULE:CLASS",
            help="Another router: a name that an installed package offers, or a class of a module that is installed or "
            "in this folder (its code is run). May be repeated.",
        ),
    ] = None,
    folds: Annotated[int, typer.Option(help="Number of cross-validation folds.")] = 5,
    budgets: Annotated[
        str, typer.Option(metavar="B,B,...", help="Budgets at which routers are compared, from 0 to 1.")
    ] = "0.1,0.2,0.4",
    utility: opt.Utility = None,
    seed: Annotated[int, typer.Option(help="Seed of the folds and the bootstrap.")] = 0,
    posteriors: opt.Posteriors = None,
    labels: opt.Labels = None,
    on: opt.On = None,
    classes: opt.Classes = None,
    check_class_order: opt.CheckClassOrder = True,
    json: opt.Json = False,
) -> None:
    """Compare all routers on your own labelled data, by cross-validation.

    Every router is fitted on all folds but one and evaluated on that one, at equal budgets. Each is compared with
    confidence, the simplest rule: escalate where the largest pooled probability is lowest.
    """
    with notes() as said:
        worth = opt.read_utility(utility)
        named = candidates(worth) | {spec: load_router(spec) for spec in router or []}
        rates = opt.numbers(budgets, "--budgets")
        read = read_data(data, posteriors, labels, on, classes)
        read.require("labels", "strong_prediction")
        whole = read.complete()
        known = whole.in_labels(whole.class_names, whole.local_posteriors.shape[2])
        columns = _columns(known)
        with show_progress(lines=False) as bar:
            bar.start("fitting", folds * len(named))
            made = compare_routers(
                known.local_posteriors,
                **columns,
                routers=named,
                sample_weight=known.sample_weight,
                utility=worth,
                budgets=rates,
                folds=folds,
                seed=seed,
                check_class_order=check_class_order,
                progress=bar.advance,
            )
    if json:
        print_json(_result(made) | {"warnings": said})
    else:
        _print(made)


def _columns(known: Any) -> dict[str, Any]:
    from gainroute.routing.labels import Labels as Names

    names = Names(known.local_posteriors.shape[2], known.class_names)
    found = {
        field: names.encode(getattr(known, field), field, missing=field == "strong_prediction")
        for field in ("labels", "strong_prediction", "weak_prediction")
        if getattr(known, field) is not None
    }
    if "strong_prediction" not in found:
        found["strong_prediction"] = known.strong_posterior.argmax(axis=1)
    return found


def _print(made: Comparison) -> None:
    accuracy = made.measure == "accuracy"
    at = [budget_text(b) for b in made.budgets]

    def value(v: float) -> str:
        return f"{100 * v:.1f}" if accuracy else f"{v:.4g}"

    def difference(row: Any, i: int) -> str:
        scale, digits = (100, 1) if accuracy else (1, 4)
        ends = f"{scale * row.low[i]:+.{digits}f} to {scale * row.high[i]:+.{digits}f}"
        return f"{scale * row.difference[i]:+.{digits}f} ({ends})"

    unit = "Accuracy in %" if accuracy else "Mean utility"
    main = table("router", *(f"at {b}" for b in at), "share of oracle")
    for row in made.rows:
        main.add_row(shown_name(row.name), *(value(float(v)) for v in row.value), f"{100 * row.oracle_share:.0f} %")
    print_table(main, f"{unit} at equal budgets ({made.samples:,} samples, {made.folds} folds)")
    points = "points of accuracy" if accuracy else "utility"
    against = table("router", *(f"at {b}" for b in at))
    for row in made.rows:
        if row.name not in (REFERENCE, ORACLE):
            against.add_row(shown_name(row.name), *(difference(row, i) for i in range(len(at))))
    print_table(against, f"Difference from confidence in {points} (95 % interval)")
    typer.echo(
        f"Never escalating gives {value(made.weak)}, always {value(made.strong)}. Share of oracle: how much of what a "
        "router that knew the labels would gain over random escalation; 0 is random."
    )
    for line in _verdict(made, at):
        typer.echo(line)


def _verdict(made: Comparison, at: list[str]) -> list[str]:
    if not made.winners:
        plain = "None beats confidence beyond its interval on these data: confidence is the simplest choice "
        return [plain + "(gainroute fit --router confidence), or more samples may tell them apart."]
    lines = []
    for row in made.rows:
        if row.beats_reference:
            where = ", ".join(b for b, low in zip(at, row.low, strict=True) if low > 0)
            lines.append(f"{shown_name(row.name)} beats confidence beyond its interval at {where}.")
    wins = sum(int((row.low > 0).sum()) for row in made.rows if row.beats_reference)
    if wins == 1:  # each interval is right 39 times in 40 on this side, and there are many of them
        comparisons = (len(made.rows) - 2) * len(at)
        lines.append(f"That is one win among {comparisons} comparisons: it may be chance. Try another --seed.")
    return lines


def _result(made: Comparison) -> dict[str, Any]:
    return {
        "measure": made.measure,
        "samples": made.samples,
        "folds": made.folds,
        "budgets": list(made.budgets),
        "never_escalating": made.weak,
        "always_escalating": made.strong,
        "bootstrap_resamples": made.replicates,
        "routers": [
            {
                "name": row.name,
                made.measure: row.value,
                "oracle_share": row.oracle_share,
                "difference_from_confidence": row.difference,
                "interval": list(zip(row.low, row.high, strict=True)),
                "beats_confidence": row.beats_reference,
            }
            for row in made.rows
        ],
        "beat_confidence": list(made.winners),
    }
