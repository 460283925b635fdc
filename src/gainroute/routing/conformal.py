"""Escalate where a conformal prediction set is large: split conformal prediction with the score 1 − p̄[y]."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from gainroute.routing.inputs import check_fraction
from gainroute.routing.router import Router
from gainroute.routing.types import CalibrationSet, FloatArray, RoundOne, Score

__all__ = ["ConformalRouter", "ConformalScore"]


@dataclass(frozen=True, eq=False)
class ConformalScore:
    """s = |{k : P[k] > α}| − (P[ŷ] − max P[k ≠ ŷ]) / 2, with P[k] the conformal p-value of class k.

    Attributes
    ----------
    nonconformity : (n,)
        1 − p̄[y] of the calibration samples, ascending.
    tail : (n,)
        Share of the samples that are at least as strange as each of them, the new one included.
    level
        α.
    """

    nonconformity: FloatArray
    tail: FloatArray
    level: float

    def p_values(self, pooled: FloatArray) -> FloatArray:
        """The p-value of every class, (N, K); between two calibration samples it is interpolated."""
        found: FloatArray = np.interp(1 - pooled, self.nonconformity, self.tail)
        return found

    def __call__(self, round_one: RoundOne) -> FloatArray:
        """Score samples, (N,)."""
        p, answer = self.p_values(round_one.pooled), round_one.weak_prediction[:, None]
        size = np.maximum((p > self.level).sum(axis=1), 1)
        sure = np.take_along_axis(p, answer, axis=1)[:, 0]
        np.put_along_axis(p, answer, -np.inf, axis=1)
        score: FloatArray = size - (sure - p.max(axis=1)) / 2
        return score


class ConformalRouter(Router):
    """Escalate where more classes remain possible at a confidence of 1 − α; among equally many, by the p-values.

    The prediction set of a sample holds every class whose conformal p-value exceeds α. On new samples like those of
    calibration it contains the truth with probability 1 − α. Large sets are escalated first; among sets of equal size,
    those where the p-value of the weak answer is the least above that of the next class. Whether the strong route would
    help is not estimated.

    Parameters
    ----------
    level
        α.

    Examples
    --------
    >>> import numpy as np
    >>> import gainroute as gr
    >>> local = np.array([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7], [0.55, 0.45]])
    >>> router = gr.ConformalRouter(0.25, level=0.2, threshold="calibration").fit(local, [0, 0, 1, 1], [0, 0, 1, 1])
    >>> router.route(local).escalate.tolist()
    [False, False, False, True]
    """

    fitted_types = (ConformalScore,)

    def __init__(self, budget: float = 0.2, *, level: float = 0.1, **settings: Any) -> None:
        super().__init__(budget, **settings)
        self.level = check_fraction(level, "level", "such as 0.1 for sets that hold the truth in 90 % of the cases")

    def fit_score(self, calibration: CalibrationSet) -> Score:
        """Keep how strange the true class of each calibration sample was."""
        truth = np.take_along_axis(calibration.round_one.pooled, calibration.labels[:, None], axis=1)[:, 0]
        order = np.argsort(-truth, kind="stable")
        weight = calibration.sample_weight[order]
        total = float(weight.sum())
        new = total / len(weight)  # the new sample counts as one of them
        tail = (total - np.cumsum(weight) + weight + new) / (total + new)
        strange = (1 - truth)[order]
        return ConformalScore(strange, tail[np.searchsorted(strange, strange)], self.level)  # ties count as one
