"""`gainroute fit`: fit a router on calibration data, and save it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from gainroute._util.progress import Progress, show_progress
from gainroute.cli import _options as opt
from gainroute.cli._command import notes
from gainroute.cli._loading import as_columns, class_names, folder_of, read_data, strong_columns
from gainroute.cli._output import budget_text, percent, print_json
from gainroute.errors import DataError, SettingError
from gainroute.io.posteriors import Outcomes, load_outcomes
from gainroute.routing.router import Router

__all__ = ["fit", "progress_for"]

RULES = ("cross-fitted", "calibration", "certified", "certified-error", "certified-both")
ROUTER_NAMES = (
    "expected-gain",
    "paper",
    "confidence",
    "calibrated-confidence",
    "agreement",
    "conformal",
    "quality",
    "two-stage-defer",
    "learned-gain",
    "defer",
    "random",
)
SLOW = 200_000  # values in all posteriors
PAPER_SETTINGS = ("min_gain", "utility")  # the others are fixed by the paper


def fit(
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="Where to write the router.")],
    data: opt.Data = None,
    budget: Annotated[
        float, typer.Option("--budget", "-b", help="The share of samples that may be escalated, from 0 to 1.")
    ] = 0.2,
    router: Annotated[
        str, typer.Option(metavar="NAME", help=f"{', '.join(ROUTER_NAMES)}, or one of an installed package.")
    ] = "expected-gain",
    threshold: Annotated[
        str | None,
        typer.Option(
            metavar="RULE",
            help="How to find the score above which a sample is escalated: cross-fitted (the default: the rate holds "
            "on new data), calibration (the paper's; escalates somewhat more on new data), certified (the true rate "
            "exceeds the budget with probability at most 1 − confidence; it sets half of the data aside), "
            "certified-error (likewise, the error of the answers that are kept exceeds --kept-error), certified-both "
            "(neither exceeds its limit), or a number.",
        ),
    ] = None,
    confidence: Annotated[float | None, typer.Option(help="For --threshold certified…; 0.95 by default.")] = None,
    kept_error: Annotated[
        float | None,
        typer.Option(
            help="For --threshold certified-error and certified-both: the largest share of wrong answers among those "
            "that are kept, such as 0.05."
        ),
    ] = None,
    min_gain: Annotated[
        float | None,
        typer.Option(
            help="Never escalate at a score below this, even within the budget; 0: never pay for an expected loss."
        ),
    ] = None,
    utility: opt.Utility = None,
    answer_by: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="With --utility: utility (the default), both routes give the answer with the largest expected "
            "utility; or argmax, the most likely class.",
        ),
    ] = None,
    calibration: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="How the pooled posterior is calibrated: dirichlet (the default), temperature, none, or the name of a "
            "calibrator that an installed package offers.",
        ),
    ] = None,
    lam: Annotated[
        str | None,
        typer.Option(
            metavar="NUMBER|cv",
            help="Penalty λ of the Dirichlet calibration; cv chooses it by cross-validation (the default of "
            "expected-gain; 1.0 for other routers).",
        ),
    ] = None,
    eps: Annotated[
        str | None,
        typer.Option(
            metavar="NUMBER|cv",
            help="Floor ε under the logarithm (1e-6 by default); cv chooses it by cross-validation.",
        ),
    ] = None,
    shrinkage: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="empirical-bayes (the default): draw the strong route's reliability on rare classes towards its "
            "overall rate; or none, the paper's.",
        ),
    ] = None,
    pooling: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="taught (the default): weight the parties by how informative they are, and learn from "
            "strong_posterior where that pays; log-linear: only weight them; mean, the paper's; or the name of a pool "
            "that an installed package offers.",
        ),
    ] = None,
    training: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Posteriors on samples that trained the local models, and their labels: an .npz or Parquet file like "
            "DATA, without strong answers. More data for the weak answer of expected-gain, where that helps on the "
            "calibration samples.",
        ),
    ] = None,
    training_weight: Annotated[
        str | None,
        typer.Option(
            metavar="NUMBER|cv",
            help="With --training: the weight of one of its samples, where a calibration sample has 1 on average; cv "
            "(the default) chooses among 0, 0.3 and 1.",
        ),
    ] = None,
    blend: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="cv (the default): let the strong answer take the parties' posteriors into account if that is right "
            "more often on held-out samples, which needs strong_posterior; or none, the paper's.",
        ),
    ] = None,
    correction: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="cv (the default): add to the score what else Round 1 tells about the gain, if that explains gains on "
            "held-out samples; or none, the paper's.",
        ),
    ] = None,
    pooled_only: opt.PooledOnly = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the folds; 0 by default.")] = None,
    posteriors: opt.Posteriors = None,
    labels: opt.Labels = None,
    on: opt.On = None,
    classes: opt.Classes = None,
    check_class_order: opt.CheckClassOrder = True,
    json: opt.Json = False,
) -> None:
    """Fit a router on calibration data: labelled samples that trained neither route.

    Prints the samples per class, the accuracy of both routes, and the expected escalation rate on new data.
    """
    with notes() as said:
        build = _builder(
            router,
            threshold=opt.number_or(threshold, "--threshold", RULES),
            confidence=confidence,
            kept_error=kept_error,
            min_gain=min_gain,
            utility=opt.read_utility(utility),
            answer_by=answer_by,
            calibration=calibration,
            lam=opt.number_or(lam, "--lam", ("cv",)),
            eps=opt.number_or(eps, "--eps", ("cv",)),
            shrinkage=shrinkage,
            pooling=pooling,
            training_weight=opt.number_or(training_weight, "--training-weight", ("cv",)),
            blend=blend,
            correction=correction,
            pooled_only=pooled_only,
            seed=seed,
        )
        outcomes = read_data(data, posteriors, labels, on, classes)
        outcomes.require("labels", "strong_prediction")
        unfitted = build(budget, outcomes.class_names)
        k = outcomes.local_posteriors.shape[2] - unfitted.extra_columns
        known = outcomes.in_labels(outcomes.class_names, k)
        more = None if training is None else _training_part(training, unfitted, known, k)
        with progress_for(known.local_posteriors.size) as progress:
            fitted = unfitted.fit(
                known.local_posteriors,
                known.labels,  # type: ignore[arg-type] # required above
                known.strong_prediction,
                strong_posterior=known.strong_posterior,
                weak_prediction=known.weak_prediction,
                sample_weight=known.sample_weight,
                present=known.present,
                training=more,
                check_class_order=check_class_order,
                progress=progress,
            )
        from gainroute.routing.artifacts import save

        save(fitted, folder_of(out))
        result = _summary(fitted, known, router) | {"out": str(out), "warnings": said}
    if json:
        print_json(result)
    else:
        _print(result)


def _training_part(path: Path, router: Router, calibration: Outcomes, classes: int) -> tuple[Any, Any]:
    if getattr(router, "pooling", None) != "taught":
        raise SettingError(
            f"--training is {path}, which only the expected-gain router with --pooling taught learns from: leave it out"
        )
    names = calibration.class_names
    given = load_outcomes(path, class_names=None if names is None else names.tolist())
    given.require("labels")
    if given.party_names != calibration.party_names:
        raise DataError(
            f"{path} has the parties {', '.join(given.party_names)}, the calibration data have "
            f"{', '.join(calibration.party_names)}: name them alike, in the same order"
        )
    part = given.complete().in_labels(names, classes)
    return part.local_posteriors, part.labels


def progress_for(values: int) -> AbstractContextManager[Progress]:
    """A bar in a terminal, for posteriors of so many values that the fit takes seconds."""
    return show_progress(lines=False) if values > SLOW else nullcontext(Progress())


def _builder(name: str, **settings: Any) -> Callable[[float, Any], Router]:
    from gainroute.routing.routers import ROUTERS, ExpectedGainRouter

    if name not in ROUTER_NAMES and name not in ROUTERS.names():
        allowed = ", ".join(dict.fromkeys((*ROUTER_NAMES, *ROUTERS.names())))
        raise SettingError(
            f"--router is {name!r}; allowed are {allowed}: for another, install the package that offers it (group "
            f"{ROUTERS.group!r} of its entry points)"
        )

    def applies(key: str, router: str) -> bool:
        return key in (PAPER_SETTINGS if router == "paper" else ROUTERS.get(router).setting_names())

    given = {key: value for key, value in settings.items() if value is not None}
    for key in given:
        if not applies(key, name):
            where = ", ".join(router for router in ROUTER_NAMES if applies(key, router))
            raise SettingError(f"--{key.replace('_', '-')} does not apply to --router {name}; it applies to {where}")
    make: Callable[..., Router] = ExpectedGainRouter.paper if name == "paper" else ROUTERS.get(name)
    return lambda budget, classes: make(budget, classes=classes, **given)


def _summary(router: Router, given: Outcomes, name: str) -> dict[str, Any]:
    whole = slice(None) if given.present is None else given.present.all(axis=0)
    rows = given.take(np.arange(len(given))[whole])
    decision = router.route(rows.local_posteriors, weak_prediction=rows.weak_prediction)
    truth = as_columns(router, rows.labels, "labels")
    weak = as_columns(router, decision.weak_prediction, "weak_prediction")
    strong = strong_columns(router, rows, decision)
    rate, low, high = router.expected_rate_
    counts = np.bincount(truth, minlength=router.n_classes_)
    return {
        "router": name,
        "data": given.source,
        "samples": len(rows),
        "left_out": len(given) - len(rows),
        "parties": list(given.party_names),
        "classes": router.n_classes_,
        "samples_by_class": dict(zip(class_names(router), counts.tolist(), strict=True)),
        "weak_accuracy": float(np.average(weak == truth, weights=rows.sample_weight)),
        "strong_accuracy": float(np.average(strong == truth, weights=rows.sample_weight)),
        "budget": router.budget,
        "threshold_rule": router.threshold if isinstance(router.threshold, str) else "given",
        "threshold": router.threshold_,
        "expected_rate": rate,
        "expected_rate_interval": [low, high],
        "min_gain": router.min_gain,
        "guarantee": None if router.guarantee_ is None else router.guarantee_.as_json(),
    }


def _print(result: dict[str, Any]) -> None:
    low, high = result["expected_rate_interval"]
    budget = "" if result["threshold_rule"] == "certified-error" else f" (budget {budget_text(result['budget'])})"
    lines = {
        "data": f"{result['data']}: {result['samples']:,} samples, {_named(result['parties'])}, "
        f"{result['classes']} classes",
        "samples per class": _counts(result["samples_by_class"]),
        "weak route": f"{percent(result['weak_accuracy'])} right (the pooled posteriors of the parties)",
        "strong route": f"{percent(result['strong_accuracy'])} right",
        "threshold": f"score > {result['threshold']:.4g} is escalated ({result['threshold_rule']})",
        "expected rate": f"{percent(result['expected_rate'])} of new samples escalated, 95 % interval "
        f"{100 * low:.1f} to {100 * high:.1f} %{budget}",
        "guarantee": result["guarantee"]["text"] if result["guarantee"] is not None else None,
        "written to": result["out"],
    }
    for name, text in lines.items():
        if text is not None:
            typer.echo(f"{name:<16} {text}")
    if result["threshold_rule"] == "calibration":
        typer.echo(
            "The threshold was computed from the samples the router was fitted on: new data escalate somewhat more."
        )
    if result["min_gain"] is not None and result["expected_rate"] < result["budget"] - 0.005:
        typer.echo("The minimum gain keeps the rate below the budget.")
    if result["strong_accuracy"] <= result["weak_accuracy"]:
        typer.echo("The strong route is not right more often than the weak route: a budget gains little on these data.")
    typer.echo(f"Next, on other labelled samples: gainroute plan {result['out']} holdout.npz")


def _named(parties: list[str]) -> str:
    count = f"{len(parties)} part{'y' if len(parties) == 1 else 'ies'}"
    telling = not all(name.startswith("party") for name in parties) and len(parties) <= 8
    return f"{count} ({', '.join(parties)})" if telling else count


def _counts(counts: dict[str, int]) -> str:
    if len(counts) <= 12:
        return ", ".join(f"{name}: {count}" for name, count in counts.items())
    fewest = sorted(counts.items(), key=lambda item: item[1])
    low = ", ".join(f"{name}: {count}" for name, count in fewest[:3])
    return f"from {fewest[0][1]} to {fewest[-1][1]}, median {int(np.median(list(counts.values())))}; fewest {low}"
