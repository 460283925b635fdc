"""The headline of a summary: its numbers, its sentences, and the tables on a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gainroute.experiments.pages import tables
from gainroute.experiments.pages.text import Table, signed, to_rich
from gainroute.experiments.scores import ANALYTICAL, OURS

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["BUDGET", "against", "deployed", "headline_of", "print_summary", "sentence", "yardstick"]

BUDGET = 0.2  # the default of every router
HANDFUL = 10  # test samples: a gain of fewer is less than chance explains


def headline_of(
    summary: Mapping[str, Any], budget: float = BUDGET, given: tuple[float, float] | None = None
) -> dict[str, Any]:
    """The few numbers of a summary that matter most at one of its rates, as shares.

    `given` are rate and accuracy of a deployed router, by default those of the summary's cross-fitted threshold.
    """
    at = summary["rates"].index(budget)
    routers = summary["regimes"]["0"]["routers"]
    router = routers.get(OURS, routers[ANALYTICAL])  # what is deployed is the default
    accuracy = router["accuracy"]["mean"]
    full = accuracy[-1] - accuracy[0]
    apart = router["minus_confidence"]
    if given is None:
        point = next(p for p in router["deployed"] if p["rule"] == "cross-fitted" and p["budget"] == budget)
        given = point["rate"]["mean"], point["accuracy"]["mean"]
    return {
        "budget": budget,
        "weak": accuracy[0],
        "accuracy": accuracy[at],
        "strong": accuracy[-1],
        "share_of_gain": (accuracy[at] - accuracy[0]) / full if full > 0 else None,
        "gained_samples": round(full * summary["test_samples"]),
        "test_samples": summary["test_samples"],
        "share_of_bytes": summary["bytes"][at] / summary["bytes"][-1],
        "minus_confidence": {key: apart[key][at] for key in ("mean", "low", "high")},
        "deployed_rate": given[0],
        "deployed_accuracy": given[1],
    }


def sentence(headline: Mapping[str, Any]) -> str:
    """Say in one sentence what the budget buys."""
    budget, share = f"{100 * headline['budget']:g} %", headline["share_of_gain"]
    cost = f"{100 * headline['share_of_bytes']:.0f} % of the bytes"
    if share is None:
        return f"The strong route adds nothing here, so escalating {budget} of the samples for {cost} does not pay."
    gained = headline.get("gained_samples")
    if gained is not None and gained < HANDFUL:
        return (
            f"Always escalating gets {gained} of {headline['test_samples']:,} test samples more right than never: too "
            "few to say that any router is worth it. Stay with Round 1, or measure on more samples."
        )
    return f"Escalating {budget} of the samples gives {100 * share:.0f} % of what always escalating gains, for {cost}."


def against(headline: Mapping[str, Any]) -> str:
    """Say how far confidence is behind, and whether that is within chance."""
    apart = headline["minus_confidence"]
    words = (
        f"Against confidence at that budget: {signed(apart['mean'])} points (95 % interval "
        f"{signed(apart['low'])} to {signed(apart['high'])})"
    )
    if apart["high"] < 0:
        return words + ": confidence is ahead."
    return words + (": more than chance explains." if apart["low"] > 0 else ": within chance on so few samples.")


def deployed(headline: Mapping[str, Any]) -> str:
    """Say which rate and accuracy a threshold from calibration data gave."""
    return (
        f"As deployed, with a threshold set on calibration data for a budget of {100 * headline['budget']:g} %, the "
        f"router escalated {100 * headline['deployed_rate']:.1f} % and was right in "
        f"{100 * headline['deployed_accuracy']:.1f} %."
    )


def yardstick(results: Mapping[str, Any]) -> str:
    """Say how the local models compare with logistic regression per view; empty if that was not measured."""
    found = results.get("yardstick")
    if found is None:
        return ""
    local, regression = found["local_models"], found["logistic_regression"]
    words = (
        f"Round 1 by the mean of the local models: {100 * local:.1f} % right; by logistic regression on each view "
        f"instead: {100 * regression:.1f} %."
    )
    error = (regression * (1 - regression) / results["test_samples"]) ** 0.5
    if regression - local > 2 * error:
        own = "local" in results.get("estimators", {})
        remedy = "choose another estimator (--local)" if own else "train them longer (--local-epochs, local_epochs)"
        words += f" The local models are behind: {remedy}, or part of the gain is theirs."
    return words


def print_summary(results: Mapping[str, Any], console: Console, *, title: str, about: str, closing: str) -> None:
    """Print accuracy by router and budget, what the budgets buy, and the ``headline``.

    `title` and `about` stand above the tables; `closing` below them, as it is: a path is neither wrapped nor cut.
    """
    from rich.padding import Padding

    def line(text: str, style: str = "") -> None:
        console.print(Padding(text, (0, 1), expand=False), style=style, markup=False, highlight=False)

    def shown(table: Table, heading: str) -> None:
        console.print(Padding(to_rich(table, heading), (1, 1, 0, 1), expand=False))

    console.print()
    line(title, "bold")
    line(about, "dim")
    accuracy = replace(tables.accuracy_table(results, "0"), caption="")
    shown(accuracy, "Accuracy in % by router and budget (share escalated)")
    line("* the best router at that budget. The oracle knows the labels, and bounds the paper's answers only.", "dim")
    shown(tables.budget_table(results, "0", OURS), "What each budget buys with our default")
    console.print()
    line(sentence(results["headline"]), "bold")
    line(against(results["headline"]))
    line(deployed(results["headline"]))
    if yardstick(results):
        line(yardstick(results))
    console.print()
    for text in closing.splitlines():
        console.print(f" {text}", style="dim", markup=False, highlight=False, soft_wrap=True)
