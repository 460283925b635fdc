"""Accuracy for bytes when only some parties are asked, from the subsets that a record holds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from gainroute._util.blas import one_thread
from gainroute.experiments.cache import Arrays, Cache, source_hash
from gainroute.experiments.measures import mean_std
from gainroute.experiments.records import Record, RouteAnswers
from gainroute.experiments.scores import answers_by_mean
from gainroute.experiments.study import Study, router_key
from gainroute.routing.partial import PartialDecision, PartialEscalation
from gainroute.routing.routers import ExpectedGainRouter
from gainroute.routing.types import FloatArray, IntArray

__all__ = ["PARTIAL", "POINTS", "load_partial_curves", "partial_builder", "partial_curves", "partial_summary"]

PARTIAL = "partial escalation"
POINTS = 101
PRICES = 400
VALUE_BYTES = 4


def partial_builder() -> ExpectedGainRouter:
    """Our default, with the cheapest fit: a curve sweeps over prices, so no threshold is set on calibration data."""
    return ExpectedGainRouter(threshold="calibration", blend="none", folds=2)


def partial_curves(record: Record, build: Callable[[], ExpectedGainRouter]) -> dict[int, FloatArray]:
    """Accuracy at an even grid of bytes, from Round 1 alone to everything, by regime, (POINTS,) each.

    The subsets' answers are the masked head's; of all parties together, the strong route's. Prices are swept over, so
    that the bytes are matched as escalation rates are elsewhere. Pooling and calibration are those of a router that
    `build` makes.
    """
    router, held = build(), record.calibration
    shared = answers_by_mean(router)
    each = [float(VALUE_BYTES * d) for d in record.metadata["embedding_dimensions"]]
    weak = held.weak_prediction if shared else None
    partial = PartialEscalation(sum(each), router)
    partial.fit(held.local_posteriors, held.labels, _answers(held), each, weak_prediction=weak)
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


def load_partial_curves(
    study: Study, cache: Cache, say: Callable[[str], None] | None = None
) -> dict[int, dict[int, FloatArray]]:
    """`partial_curves` of our default by seed, from the cache where it holds them; {} for records without subsets.

    `say` is called with a few words before each computation.
    """
    found = {}
    for record in study.records:
        if not record.calibration.subset_predictions:
            return {}

        def make(record: Record = record) -> Arrays:
            if say is not None:
                say(f"{record.dataset}, seed {record.seed}: partial escalation")
            with one_thread():
                return {str(regime): curve for regime, curve in partial_curves(record, partial_builder).items()}

        key = ("partial", study.stamps[record.seed], source_hash(__name__), router_key(partial_builder))
        found[record.seed] = {int(regime): curve for regime, curve in cache.arrays(key, make).items()}
    return found


def partial_summary(curves: Mapping[int, Mapping[int, FloatArray]], rates: list[float]) -> dict[str, Any]:
    """Sum up curves by seed and regime: by regime, accuracy at the bytes of each escalation rate, and the mean curve.

    Round 2 of a share r of the samples costs r of all its bytes, which is where a curve is read.
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
