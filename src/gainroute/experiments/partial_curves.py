"""Accuracy for bytes when only some parties are asked, from the subsets that a record holds."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gainroute.experiments.records import Record, Split
from gainroute.experiments.results import answers_by_mean
from gainroute.partial import PartialDecision, PartialEscalation
from gainroute.routers import ExpectedGainRouter
from gainroute.types import FloatArray, IntArray

__all__ = ["POINTS", "partial_curves"]

POINTS = 101
PRICES = 400
VALUE_BYTES = 4


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


def _answers(split: Split) -> dict[tuple[int, ...], IntArray]:
    everyone = tuple(range(len(split.local_posteriors)))
    return {**split.subset_predictions, everyone: split.strong_prediction}


def _curve(decision: PartialDecision, cost: FloatArray, split: Split) -> FloatArray:
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
