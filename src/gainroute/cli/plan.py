"""`gainroute plan`: what each budget buys, as a table and a figure."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from gainroute.cli import _options as opt
from gainroute.cli._command import notes
from gainroute.cli._loading import as_columns, class_names, folder_of, read_data, strong_columns
from gainroute.cli._output import budget_text, percent, print_json, print_table, table
from gainroute.errors import MissingExtraError, SettingError, TooFewSamplesError
from gainroute.evaluation.plan import BUDGETS, Plan, PlanPoint, plan_budgets
from gainroute.io.posteriors import for_router
from gainroute.routing.certify import Guarantee, certify_kept_error, check_kept_error
from gainroute.routing.decide import escalate
from gainroute.routing.inputs import check_fraction
from gainroute.routing.router import Router
from gainroute.routing.types import ThresholdScores

__all__ = ["plan"]

DEFAULTS = ",".join(f"{b:g}" for b in BUDGETS)
RECALL_COLUMNS = 10
MARKS = {
    "knee": "knee",
    "gain_ends": "gain ends",
    "target": "target",
    "guaranteed": "kept error",
    "deployed": "as saved",
}


def plan(
    router: opt.RouterFile,
    data: opt.Data = None,
    target_accuracy: Annotated[
        float | None, typer.Option(help="Find the smallest budget that reaches this accuracy, such as 0.95.")
    ] = None,
    kept_error: Annotated[
        float | None,
        typer.Option(
            help="Find the smallest budget at which these samples certify that at most this share of the kept answers "
            "is wrong, such as 0.05."
        ),
    ] = None,
    max_budget: Annotated[
        float | None, typer.Option(help="With --kept-error: certify that no larger share is escalated as well.")
    ] = None,
    confidence: Annotated[float, typer.Option(help="For --kept-error: how sure the guarantee is.")] = 0.95,
    dimensions: Annotated[
        str | None,
        typer.Option(
            metavar="D,D,...", help="Length of each party's embedding, such as 512,512: adds the bytes sent per sample."
        ),
    ] = None,
    cost_weak: Annotated[float | None, typer.Option(help="Cost of the weak answer, paid for every sample.")] = None,
    cost_strong: Annotated[
        float | None, typer.Option(help="Additional cost of the strong answer, paid for escalated samples.")
    ] = None,
    utility: opt.Utility = None,
    budgets: Annotated[str, typer.Option(metavar="B,B,...", help="The budgets of the table, from 0 to 1.")] = DEFAULTS,
    figure: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Where to write the figure (.png, .svg or .pdf). By default <router>-plan.png beside the router if "
            "matplotlib is installed; with --json, none.",
        ),
    ] = None,
    no_figure: Annotated[bool, typer.Option("--no-figure", help="Draw no figure.")] = False,
    seed: Annotated[int, typer.Option(help="Seed of the bootstrap intervals.")] = 0,
    posteriors: opt.Posteriors = None,
    labels: opt.Labels = None,
    on: opt.On = None,
    classes: opt.Classes = None,
    json: opt.Json = False,
) -> None:
    """Show what each budget buys, on labelled samples that did not fit the router.

    For every budget: the accuracy (or mean utility) with its 95 % interval, the recall of each class, and the cost.
    Marks show the knee (the smallest budget within 0.5 points of the best), the rate beyond which escalation is
    expected to lose, and the router as it was saved.
    """
    with notes() as said:
        from gainroute.routing.artifacts import load

        fitted = load(router)
        cost = _cost(fitted, dimensions, cost_weak, cost_strong)
        rates = opt.numbers(budgets, "--budgets")
        read = read_data(data, posteriors, labels, on, classes)
        read.require("labels", "strong_prediction")
        known, weak = for_router(fitted, read.complete())
        decision = fitted.route(known.local_posteriors, weak_prediction=weak)
        own = getattr(fitted, "utility", None)
        worth = own if utility is None else opt.read_utility(utility)
        weak_answer, strong, truth = (
            as_columns(fitted, decision.weak_prediction, "weak_prediction"),
            strong_columns(fitted, known, decision),
            as_columns(fitted, known.labels, "labels"),
        )
        weight = np.ones(len(truth)) if known.sample_weight is None else np.asarray(known.sample_weight)
        held = ThresholdScores(decision.score, weight, weak_answer == truth, strong == truth)
        promised, why = _certified(fitted, held, kept_error, max_budget, confidence)
        made = plan_budgets(
            decision.score,
            weak_answer,
            strong,
            truth,
            fitted.n_classes_,
            utility=worth,
            sample_weight=known.sample_weight,
            budgets=rates,
            target_accuracy=target_accuracy,
            threshold=fitted.threshold_,
            guaranteed_threshold=None if promised is None else promised.threshold,
            score_is_gain=_predicts_gain(fitted, own, worth),
            seed=seed,
        )
        beside = None if json or no_figure else router.with_name(f"{router.stem}-plan.png")
        drawn, why_not = _draw(made, figure, beside, known.source)
    if json:
        written = {"guarantee": _promise_json(promised), "no_guarantee": why, "figure": drawn, "warnings": said}
        print_json(_result(made, class_names(fitted), cost) | written)
    else:
        _print(made, fitted, class_names(fitted), cost, target_accuracy)
        for line in _promise_lines(made, fitted, held, promised, why):
            typer.echo(line)
        if drawn or why_not:
            typer.echo(f"Figure: {drawn or why_not}")


def _certified(
    router: Router, held: ThresholdScores, kept_error: float | None, budget: float | None, confidence: float
) -> tuple[Guarantee | None, str | None]:
    """What these samples certify, or why they do not; the thresholds to try come from the router's calibration."""
    if kept_error is None:
        if budget is not None:
            raise SettingError("--max-budget needs --kept-error, with which it is certified; give both, or neither")
        return None, None
    alpha, level = check_kept_error(kept_error), check_fraction(confidence, "--confidence", "such as 0.95")
    within = None if budget is None else check_fraction(budget, "--max-budget", "the share escalated, such as 0.3")
    before = router.threshold_scores_
    try:
        return certify_kept_error(held, before, alpha, level, budget=within, min_gain=router.min_gain), None
    except (SettingError, TooFewSamplesError) as error:
        return None, str(error)


def _promise_json(promised: Guarantee | None) -> dict[str, Any] | None:
    return None if promised is None else {"threshold": promised.threshold} | promised.as_json()


def _promise_lines(
    made: Plan, router: Router, held: ThresholdScores, promised: Guarantee | None, why: str | None
) -> list[str]:
    lines = []
    if made.guaranteed is not None and promised is not None:
        lines.append(
            f"Kept error: {budget_text(made.guaranteed.rate)} is the smallest budget certified (score > "
            f"{promised.threshold:.4g}). {promised.text}"
        )
    if why is not None:
        lines.append(f"Kept error: {why}.")
    if router.guarantee_ is not None:
        kept = ~escalate(held.score, router.threshold_)
        wrong = int((kept & ~held.weak_right).sum())
        lines.append(
            f"Saved with a guarantee: {router.guarantee_.text} Here, {kept.sum():,} are kept, {wrong:,} wrong."
        )
    return lines


Cost = dict[str, Callable[[float], float]]


def _predicts_gain(router: Router, own: Any, worth: Any) -> bool:
    """Whether the score is an expected gain in the units of the plan."""
    from gainroute.routing.learned_gain import LearnedGainRouter
    from gainroute.routing.routers import ExpectedGainRouter

    same = worth is own or (own is not None and np.array_equal(own, worth))
    return isinstance(router, (ExpectedGainRouter, LearnedGainRouter)) and same


def _cost(router: Router, dimensions: str | None, weak: float | None, strong: float | None) -> Cost:
    cost: Cost = {}
    if dimensions is not None:
        from gainroute.routing.payload import communication_cost

        lengths = opt.numbers(dimensions, "--dimensions", int, "512,512")
        if len(lengths) != router.n_parties_:
            raise SettingError(
                f"--dimensions lists {len(lengths)} length(s), the router has {router.n_parties_} parties; one each is "
                "needed"
            )
        k = router.n_classes_ + router.extra_columns
        communication_cost(k, lengths)  # refuses bad lengths before anything is computed
        cost["bytes"] = lambda rate: communication_cost(k, lengths, rate)
    if (weak is None) != (strong is None):
        raise SettingError("--cost-weak and --cost-strong go together; give both (0 is allowed)")
    if weak is not None and strong is not None:
        if min(weak, strong) < 0:
            raise SettingError(f"--cost-weak is {weak} and --cost-strong {strong}; costs are numbers of 0 or more")
        cost["cost"] = lambda rate: weak + rate * strong
    return cost


def _draw(made: Plan, asked: Path | None, default: Path | None, source: str) -> tuple[str | None, str]:
    """Draw, and return the path, or why not: the default figure may fail without failing the command."""
    from gainroute.evaluation.plan_figure import draw_plan

    title = f"What each budget buys on {Path(source).name} ({made.samples:,} samples)"
    if asked is not None:
        draw_plan(made, folder_of(asked), title)
        return str(asked), ""
    if default is None:
        return None, ""
    try:
        draw_plan(made, default, title)
    except MissingExtraError as error:
        return None, f"not drawn: {error}"
    except OSError as error:
        return None, f"not drawn ({error}); choose a place with --figure"
    return str(default), ""


def _print(made: Plan, router: Router, names: list[str], cost: Cost, target: float | None) -> None:
    rows = _rows(made)
    accuracy = made.measure == "accuracy"

    def value(v: float) -> str:
        return percent(v) if accuracy else f"{v:.4g}"

    few = len(names) <= RECALL_COLUMNS
    costs = [{"bytes": "bytes per sample", "cost": "cost per sample"}[name] for name in cost]
    main = table("budget", made.measure, "95 % interval", *costs, *([] if few else ["lowest recalls"]), "")
    main.columns[-1].justify = "left"
    for point, marks in rows:
        ends = f"{100 * point.low:.1f} – {100 * point.high:.1f}" if accuracy else f"{point.low:.4g} – {point.high:.4g}"
        paid = [f"{of(point.rate):,.4g}" if name == "cost" else f"{of(point.rate):,.0f}" for name, of in cost.items()]
        lowest = [] if few else [_lowest(point.recall, names)]
        main.add_row(budget_text(point.rate), value(point.value), ends, *paid, *lowest, ", ".join(marks))
    print_table(main, f"What each budget buys ({made.samples:,} samples)")
    if few:
        recall = table("budget", *(name[:12] for name in names))
        for point, _ in rows:
            recall.add_row(budget_text(point.rate), *("–" if np.isnan(r) else f"{100 * r:.1f}" for r in point.recall))
        print_table(recall, "Recall: share of each true class answered right, in %")
    for line in _marks(made, router, value, target):
        typer.echo(line)


def _rows(made: Plan) -> list[tuple[PlanPoint, list[str]]]:
    """Budgets and marked points by rate; a mark that falls on a budget joins its row."""
    rows: list[tuple[PlanPoint, list[str]]] = [(point, []) for point in made.points]
    for field, text in MARKS.items():
        point = getattr(made, field)
        if point is None:
            continue
        same = [marks for other, marks in rows if abs(other.rate - point.rate) < 5e-4]
        if same:
            same[0].append(text)
        else:
            rows.append((point, [text]))
    return sorted(rows, key=lambda row: row[0].rate)


def _marks(made: Plan, router: Router, value: Callable[[float], str], target: float | None) -> list[str]:
    lines = []
    best = int(np.argmax(made.value))
    if made.knee is not None:
        near = "0.5 points" if made.measure == "accuracy" else "0.5 % of the utility's range"
        lines.append(
            f"Knee: {budget_text(made.knee.rate)} is the smallest budget within {near} of the best "
            f"({value(float(made.value[best]))} at {budget_text(float(made.rate[best]))})."
        )
    if made.gain_ends is not None:
        ends = made.gain_ends.rate
        lines.append(
            "Gain: expected to be positive for every sample."
            if ends >= 1
            else f"Gain ends: beyond {budget_text(ends)} the router expects each further escalation to lose; "
            "`gainroute fit --min-gain 0` stops there."
        )
    if target is not None:
        lines.append(
            f"Target: no budget reaches an accuracy of {percent(target)} on these samples."
            if made.target is None
            else f"Target: {budget_text(made.target.rate)} is the smallest budget that reaches an accuracy of "
            f"{percent(target)}; the interval shows the uncertainty."
        )
    if made.deployed is not None:
        lines.append(
            f"As saved: budget {budget_text(router.budget)}, score > {router.threshold_:.4g}, which escalates "
            f"{budget_text(made.deployed.rate)} of these samples: {value(made.deployed.value)}."
        )
    return lines


def _lowest(recall: np.ndarray[Any, np.dtype[np.float64]], names: list[str]) -> str:
    known = [i for i in np.argsort(recall, kind="stable") if not np.isnan(recall[i])]
    return ", ".join(f"{names[i]}: {100 * recall[i]:.0f} %" for i in known[:3])


def _result(made: Plan, names: list[str], cost: Cost) -> dict[str, Any]:
    def written(point: PlanPoint | None) -> dict[str, Any] | None:
        if point is None:
            return None
        recall = dict(zip(names, point.recall.tolist(), strict=True))
        return {
            "rate": point.rate,
            made.measure: point.value,
            "interval": [point.low, point.high],
            "accuracy": point.accuracy,
            "recall": recall,
            **{name: of(point.rate) for name, of in cost.items()},
        }

    return {
        "measure": made.measure,
        "samples": made.samples,
        "bootstrap_resamples": made.replicates,
        "budgets": [written(point) for point in made.points],
        "knee": written(made.knee),
        "gain_ends": written(made.gain_ends),
        "target": written(made.target),
        "kept_error": written(made.guaranteed),
        "as_saved": written(made.deployed),
        "skewed": made.skewed,
    }
