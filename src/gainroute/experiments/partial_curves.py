"""Accuracy for bytes when only some parties are asked, from the subsets that a record holds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from gainroute.experiments.pages import tables
from gainroute.experiments.records import Record, RouteAnswers
from gainroute.experiments.results import ABLATION, ORACLE, answers_by_mean, mean_std
from gainroute.routing.partial import PartialDecision, PartialEscalation
from gainroute.routing.routers import ExpectedGainRouter
from gainroute.routing.types import FloatArray, IntArray

__all__ = ["PARTIAL", "POINTS", "bytes_table", "partial_builder", "partial_curves", "partial_summary"]

PARTIAL = "partial escalation"
POINTS = 101
PRICES = 400
VALUE_BYTES = 4


def partial_builder() -> ExpectedGainRouter:
    """Our default, fitted as cheaply as a curve allows: its prices are swept over, not set on calibration data."""
    return ExpectedGainRouter(threshold="calibration", blend="none", folds=2)


def partial_curves(record: Record, build: Callable[[], ExpectedGainRouter]) -> dict[int, FloatArray]:
    """Accuracy at an even grid of bytes, from Round 1 alone to everything, by regime, (POINTS,) each.

    The subsets' answers are the masked head's; of all parties together, the strong route's. Prices are swept over, so
    that the bytes are matched as escalation rates are elsewhere.

    Parameters
    ----------
    record
        With predictions on subsets of the parties.
    build
        Makes the router whose pooling and calibration are used.
    """
    router = build()
    shared = answers_by_mean(router)
    dimensions = record.metadata["embedding_dimensions"]
    each = [float(VALUE_BYTES * d) for d in dimensions]
    held = record.calibration
    partial = PartialEscalation(sum(each), router).fit(
        held.local_posteriors,
        held.labels,
        _answers(held),
        each,
        weak_prediction=held.weak_prediction if shared else None,
    )
    found = {}
    for regime, split in record.regimes().items():
        decision = partial.route(split.local_posteriors, weak_prediction=split.weak_prediction if shared else None)
        found[regime] = _curve(decision, partial.bytes_, split)
    return found


def _answers(split: RouteAnswers) -> dict[tuple[int, ...], IntArray]:
    everyone = tuple(range(len(split.local_posteriors)))
    return {**split.subset_predictions, everyone: split.strong_prediction}


def _curve(decision: PartialDecision, cost: FloatArray, split: RouteAnswers) -> FloatArray:
    right = np.stack([_answers(split)[subset] == split.labels for subset in decision.subsets], axis=1)
    weak = decision.weak_prediction == split.labels
    rows = np.arange(len(weak))
    spent, accuracy = [0.0], [float(weak.mean())]
    for price in np.concatenate([np.geomspace(1 / cost.min(), 1e-9, PRICES), np.linspace(0, -1 / cost.min(), PRICES)]):
        net = decision.gain - price * cost
        best = net.argmax(axis=1)
        asked = net[rows, best] > 0
        spent.append(float(np.where(asked, cost[best], 0).mean()))
        accuracy.append(float(np.where(asked, right[rows, best], weak).mean()))
    order = np.argsort(spent, kind="stable")
    at = np.linspace(0, float(cost.max()), POINTS)
    matched: FloatArray = np.interp(at, np.array(spent)[order], np.array(accuracy)[order])
    return matched


# ---- as numbers, and as a table -----------------------------------------------------------------


def partial_summary(curves: Mapping[int, Mapping[int, FloatArray]], rates: list[float]) -> dict[str, Any]:
    """Sum up curves by seed and regime: by regime, accuracy at the bytes of each escalation rate, and the mean curve.

    Parameters
    ----------
    curves
        Of `partial_curves`, by seed.
    rates
        Escalation rates. Round 2 of a share r of the samples costs r of all its bytes, which is where a curve is read.
    """
    grid = np.linspace(0, 1, POINTS)
    found = {}
    for regime in next(iter(curves.values())):
        stacked = np.stack([by_regime[regime] for by_regime in curves.values()])
        mean, std = mean_std(np.stack([np.interp(rates, grid, row) for row in stacked]))
        whole, spread = mean_std(stacked)
        found[str(regime)] = {
            "accuracy": {"mean": mean.tolist(), "std": std.tolist()},
            "curve": {"mean": whole.tolist(), "std": spread.tolist()},
        }
    return found


def bytes_table(summary: Mapping[str, Any], regime: str) -> tables.Table:
    """Accuracy of every deployable router, and of partial escalation, for the same bytes a sample."""
    routers, seeds = summary["regimes"][regime]["routers"], len(summary["seeds"])
    shown = [name for name in routers if name not in (ORACLE, "random", *ABLATION[1:3])]
    stated = {name: routers[name]["accuracy"] for name in shown}
    counts = {name: len(routers[name]["seeds"]) for name in shown}
    if summary.get("partial"):
        stated[PARTIAL], counts[PARTIAL] = summary["partial"][regime]["accuracy"], seeds
    at = [i for i, rate in enumerate(summary["rates"]) if 0 < rate < 1]
    rows = tuple((name, *(tables.spread(accuracy, i, counts[name]) for i in at)) for name, accuracy in stated.items())
    header = ("router", *(f"{summary['bytes'][i]:,.0f} bytes ({100 * summary['rates'][i]:g} %)" for i in at))
    values = [[accuracy["mean"][i] for i in at] for accuracy in stated.values()]
    marked = tables.best_of(values, [counts[name] < seeds for name in stated])
    return tables.Table(
        header,
        rows,
        "Accuracy in % for the same payload bytes a sample, both rounds, in float32; in brackets, the escalation rate "
        "at which asking every party costs as much. Partial escalation asks the parties whose embeddings are worth "
        "their bytes, by our default's score; where it asks all, the strong route answers alone.",
        best=tuple((False, *row) for row in marked),
    )
