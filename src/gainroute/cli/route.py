"""`gainroute route` and `gainroute explain`: decide on new data, and explain a decision."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from gainroute._util.blas import one_thread
from gainroute.cli import _options as opt
from gainroute.cli._command import notes
from gainroute.cli._loading import folder_of, read_data, split_names
from gainroute.cli._output import budget_text, percent, print_json, print_table, table
from gainroute.cli._route_job import only_files, route_job
from gainroute.errors import DataError, SettingError
from gainroute.io.posteriors import Outcomes, for_router
from gainroute.routing.router import Router
from gainroute.routing.score import Explanation

__all__ = ["explain", "route"]

SHOWN = 15


def route(
    router: opt.RouterFile,
    out: Annotated[
        Path,
        typer.Option(
            "--out",
            "-o",
            metavar="FILE",
            help="Where to write the decisions: .npz, or .parquet; for many files the folder. Holds ids, escalate, "
            "score, weak_prediction, pooled, calibrated, incomplete and threshold.",
        ),
    ],
    data: opt.DataFiles = None,
    posteriors: opt.Posteriors = None,
    labels: opt.Labels = None,
    on: opt.On = None,
    classes: opt.Classes = None,
    columns: Annotated[
        str | None,
        typer.Option(
            metavar="A,B,...",
            help="Which columns to write besides ids, escalate and incomplete, such as score,weak_prediction: large "
            "jobs seldom need the posteriors. By default all.",
        ),
    ] = None,
    processes: Annotated[
        int | None,
        typer.Option(min=1, help="For many files: how many processes to use. By default one per core."),
    ] = None,
    engine: opt.EngineOption = "local",
    json: opt.Json = False,
) -> None:
    """Decide which new samples to escalate. Needs posteriors only: labels and strong answers are ignored.

    A sample that lacks a party is answered from the others. Unless the router is calibrated for those present, it is
    never escalated, and marked incomplete.

    Many or large Parquet files are read in pieces, in bounded memory, on all cores. Each becomes a file of the same
    name in the folder --out, or several if it has more than a million rows or so. After an interruption, the same
    command goes on where it stopped: files that are complete are kept, unless the router, the input or an option has
    changed.
    """
    with notes() as said:
        from gainroute._util.engines import choose_engine
        from gainroute.io.parquet_files import is_job
        from gainroute.routing.artifacts import load

        fitted = load(router)
        given = list(data or [])
        if is_job(given, out):
            only_files(posteriors, labels, on)
            if engine == "ray":  # whose processes have a folder of their own
                given, out = [path.absolute() for path in given], out.absolute()
            result = route_job(fitted, router, given, out, classes, columns, choose_engine(engine, processes))
        else:
            read = read_data(given[0] if given else None, posteriors, labels, on, classes)
            result = _route_whole(fitted, read, out, columns)
        result["rate"] = result["escalated"] / result["samples"] if result["samples"] else 0.0
        result |= {"budget": fitted.budget, "threshold": fitted.threshold_, "out": str(out), "warnings": said}
    if json:
        print_json(result)
        return
    typer.echo(
        f"{result['escalated']:,} of {result['samples']:,} samples are escalated: {percent(result['rate'])} (budget "
        f"{budget_text(fitted.budget)}, score > {fitted.threshold_:.4g})."
    )
    if result["incomplete"]:
        typer.echo(f"{result['incomplete']:,} lack a party: answered from the others, not escalated.")
    kept = f" ({result['kept']:,} of {result['files']:,} files were complete before)" if result.get("kept") else ""
    typer.echo(f"Decisions: {out}{kept}")


def _route_whole(fitted: Router, read: Outcomes, out: Path, columns: str | None) -> dict[str, Any]:
    from gainroute.io.decisions import check_columns, save_decision

    chosen = check_columns(split_names(columns))
    known, weak = for_router(fitted, read)
    with one_thread():  # threads move the last bits of a product, and with them those of a score
        decision = fitted.route(known.local_posteriors, weak_prediction=weak, present=known.present, checked=True)
    save_decision(decision, folder_of(out), known.ids, chosen)
    counts = {"escalated": int(decision.escalate.sum()), "incomplete": int(decision.incomplete.sum())}
    return {"samples": len(decision), **counts}


def explain(
    router: opt.RouterFile,
    data: opt.Data = None,
    row: Annotated[int | None, typer.Option("--row", "-r", help="Which sample, counted from 0.")] = None,
    sample: Annotated[str | None, typer.Option("--id", metavar="ID", help="Which sample, by its id.")] = None,
    posteriors: opt.Posteriors = None,
    labels: opt.Labels = None,
    on: opt.On = None,
    classes: opt.Classes = None,
    json: opt.Json = False,
) -> None:
    """Show why one sample is escalated or kept: what each class adds to its score.

    A class adds to the score if it is likely, is not the weak answer, and the strong route is reliable on it.
    """
    with notes() as said:
        from gainroute.routing.artifacts import load
        from gainroute.routing.routers import ExpectedGainRouter

        fitted = load(router)
        if not isinstance(fitted, ExpectedGainRouter):
            raise SettingError(
                f"{router} holds a {type(fitted).__name__}; only the score of an expected-gain router is a sum over "
                "classes that can be explained: fit one with --router expected-gain"
            )
        known, weak = for_router(fitted, read_data(data, posteriors, labels, on, classes))
        i = _row(known, row, sample)
        present = np.ones(fitted.n_parties_, dtype=bool) if known.present is None else known.present[:, i]
        decides = fitted if present.all() else fitted.subset_routers_.get(tuple(np.flatnonzero(present).tolist()))
        if not isinstance(decides, ExpectedGainRouter):
            absent = ", ".join(n for n, there in zip(known.party_names, present, strict=True) if not there)
            raise DataError(
                f"row {i} of {known.source} lacks {absent}; it is answered from the others and never escalated, so "
                "there is no score to explain: choose a complete row"
            )
        why = decides.explain(known.local_posteriors[present, i], weak_prediction=None if weak is None else weak[i])
    name = str(i if known.ids is None else known.ids[i])
    if json:
        print_json(_result(why, i, name) | {"warnings": said})
    else:
        _print(why, i, name, fitted.utility is not None)


def _row(outcomes: Outcomes, row: int | None, sample: str | None) -> int:
    if (row is None) == (sample is None):
        raise SettingError("which sample? Give one of --row (counted from 0) and --id")
    if row is not None:
        if not 0 <= row < len(outcomes):
            raise SettingError(f"--row is {row}; {outcomes.source} has the rows 0 to {len(outcomes) - 1}")
        return row
    outcomes.require("ids")
    ids = [str(value) for value in outcomes.ids.tolist()]  # type: ignore[union-attr] # required above
    if sample not in ids:
        raise SettingError(f"--id is {sample!r}; {outcomes.source} has no such id: they look like {', '.join(ids[:3])}")
    return ids.index(sample)


def _print(why: Explanation, row: int, name: str, utility: bool) -> None:
    verdict = "escalated" if why.escalate else "kept"
    relation = ">" if why.escalate else "≤"
    which = f"Row {row}" if name == str(row) else f"Row {row} (id {name})"
    typer.echo(
        f"{which} is {verdict}: score {why.score:+.4f} {relation} threshold {why.threshold:+.4f}. "
        f"The weak answer is {why.weak_prediction}."
    )
    worth = "strong is worth" if utility else "strong is right"
    shown = table("class", "pooled", "calibrated", worth, "adds to score")
    order = sorted(range(len(why.contribution)), key=lambda k: -abs(float(why.contribution[k])))
    for k in order[:SHOWN]:
        strong = f"{why.reliability[k]:.4g}" if utility else percent(float(why.reliability[k]))
        mark = " (weak answer)" if why.classes[k] == why.weak_prediction else ""
        shown.add_row(
            f"{why.classes[k]}{mark}",
            percent(float(why.pooled[k])),
            percent(float(why.calibrated[k])),
            strong,
            f"{why.contribution[k]:+.4f}",
        )
    if len(order) > SHOWN:
        rest = sum(float(why.contribution[k]) for k in order[SHOWN:])
        shown.add_row(f"{len(order) - SHOWN} more", "", "", "", f"{rest:+.4f}")
    if why.correction:
        shown.add_row("correction", "", "", "", f"{why.correction:+.4f}")
    shown.add_row("score", "", "", "", f"{why.score:+.4f}", style="bold")
    print_table(shown)
    unit = "utility" if utility else "accuracy"
    typer.echo(f"The score is the expected gain in {unit} from the strong route.")


def _result(why: Explanation, row: int, name: str) -> dict[str, Any]:
    columns = ("pooled", "calibrated", "reliability", "contribution")
    return {
        "row": row,
        "id": name,
        "escalate": why.escalate,
        "score": why.score,
        "threshold": why.threshold,
        "correction": why.correction,
        "weak_prediction": getattr(why.weak_prediction, "item", lambda: why.weak_prediction)(),
        "classes": [
            {"class": str(label), **{c: float(getattr(why, c)[k]) for c in columns}}
            for k, label in enumerate(why.classes)
        ],
    }
