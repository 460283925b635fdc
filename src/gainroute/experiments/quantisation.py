"""How much the rounding of posteriors in a record changes results."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from gainroute.experiments.records import Record, RouteAnswers
from gainroute.routing.routers import ExpectedGainRouter
from gainroute.routing.types import FloatArray

__all__ = ["quantisation_shift"]

Scorer = Callable[[RouteAnswers], FloatArray]


def _confidence(_record: Record) -> Scorer:
    return lambda split: np.asarray(-split.local_posteriors.mean(axis=0, dtype=np.float64).max(axis=1))


def _expected_gain(record: Record) -> Scorer:
    held = record.calibration
    router = ExpectedGainRouter.paper().fit(held.local_posteriors, held.labels, held.strong_prediction)
    return lambda split: router.route(split.local_posteriors).score


def _accuracy_at(split: RouteAnswers, scores: FloatArray, budget: float) -> float:
    rows = np.argsort(-scores, kind="stable")[: round(budget * len(split))]
    answer = split.weak_prediction.copy()
    answer[rows] = split.strong_prediction[rows]
    return float((answer == split.labels).mean())


def quantisation_shift(
    exact: Record, decoded: Record, budgets: Sequence[float] = (0.1, 0.2, 0.4, 0.6, 0.8)
) -> dict[int, float]:
    """The change of accuracy at the budgets, in points, when a float32 record is stored and decoded.

    Measured with confidence and the paper's router, which is fitted on the calibration part of each record.

    Parameters
    ----------
    exact, decoded
        The record as it was trained, and as it was read from its file.
    budgets
        Shares of samples that escalate.

    Returns
    -------
    dict
        By regime, the largest absolute shift over budgets and routers.
    """
    shifts = dict.fromkeys(exact.regimes(), 0.0)
    for scorer in (_confidence, _expected_gain):
        before, after = scorer(exact), scorer(decoded)
        for regime, first in exact.regimes().items():
            second = decoded.regimes()[regime]
            scores = before(first), after(second)
            moved = [
                100 * abs(_accuracy_at(first, scores[0], budget) - _accuracy_at(second, scores[1], budget))
                for budget in budgets
            ]
            shifts[regime] = max(shifts[regime], *moved)
    return shifts
