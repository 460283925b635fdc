"""The expected gain of escalating a sample, and its explanation class by class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gainroute.errors import ShapeError
from gainroute.routing.correction import correction_of
from gainroute.routing.inputs import as_posteriors, as_utility
from gainroute.routing.labels import as_labels
from gainroute.routing.types import ArrayLike, FloatArray, IntArray, LabelArray, RoundOne

__all__ = ["ExpectedGainScore", "Explanation", "contributions", "expected_gain", "gain_score", "strong_value"]


def strong_value(confusion: FloatArray, utility: FloatArray | None) -> FloatArray:
    """What the strong route is worth on each class, (K,): Σ_c C[k, c]·U[k, c], or C[k, k] under accuracy.

    A sample without a strong answer (a row of C that sums to less than one) counts as the worst answer of its class.
    """
    if utility is None:
        return np.diagonal(confusion).copy()
    unanswered = np.clip(1 - confusion.sum(axis=1), 0, 1)
    value: FloatArray = (confusion * utility).sum(axis=1) + unanswered * utility.min(axis=1)
    return value


def gain_score(
    calibrated: FloatArray, value: FloatArray, weak_prediction: IntArray, utility: FloatArray | None = None
) -> FloatArray:
    """Expected gain from checked arrays: m·value − (utility expected of keeping the weak answer)."""
    kept: FloatArray
    if utility is None:
        kept = calibrated[np.arange(len(calibrated)), weak_prediction]
    else:
        kept = np.einsum("nk,kn->n", calibrated, utility[:, weak_prediction])
    return calibrated @ value - kept


def expected_gain(
    calibrated: ArrayLike,
    reliability: ArrayLike,
    weak_prediction: ArrayLike,
    utility: ArrayLike | None = None,
) -> FloatArray:
    """Expected gain of Round 2 over Round 1, sample by sample (eq. 18).

    s = Σₖ m[k] (C[k, k] − 1[ŷ = k]); with a utility, s = Σₖ m[k] (Σ_c C[k, c]·U[k, c] − U[k, ŷ]).

    Parameters
    ----------
    calibrated : (N, K)
        m, the calibrated posterior.
    reliability : (K,) or (K, K)
        C[k, k], or the whole confusion matrix C, which a utility needs.
    weak_prediction : (N,)
        ŷ, the weak answer, 0 … K−1.
    utility : (K, K), optional
        U[truth, answer]; the identity, which is accuracy, by default.

    Returns
    -------
    (N,)

    Examples
    --------
    Class 1 is likely and the strong route is reliable on it; the weak answer was 0:

    >>> expected_gain([[0.4, 0.6]], [0.5, 0.9], [0])
    array([0.34])
    """
    m = as_posteriors(calibrated, name="calibrated").astype(np.float64, copy=False)
    k = m.shape[1]
    weak = as_labels(weak_prediction, classes=k, length=len(m), name="weak_prediction")
    c = np.asarray(reliability, dtype=np.float64)
    u = as_utility(utility, k)
    if c.shape == (k, k):
        return gain_score(m, strong_value(c, u), weak, u)
    if c.shape != (k,):
        raise ShapeError(f"reliability has shape {c.shape}; ({k},) or the confusion matrix ({k}, {k}) is needed")
    if u is not None:
        raise ShapeError(
            f"a utility depends on what the strong route answers when it is wrong: pass the confusion matrix ({k}, "
            f"{k}) of gr.confusion_matrix instead of the reliabilities ({k},)"
        )
    return gain_score(m, c, weak)


def contributions(
    calibrated: FloatArray, value: FloatArray, weak_prediction: IntArray, utility: FloatArray | None = None
) -> FloatArray:
    """Contribution of each class to the score, (N, K); rows sum to it."""
    kept = np.eye(calibrated.shape[1]) if utility is None else utility
    return calibrated * (value - kept[:, weak_prediction].T)


@dataclass(frozen=True, eq=False)
class ExpectedGainScore:
    """ŝ = Σₖ m[k](value[k] − U[k, ŷ]) (eq. 18), plus a correction (3, 6) if there is one.

    A `utility` of None is the identity, which is accuracy.
    """

    value: FloatArray
    utility: FloatArray | None
    correction: FloatArray | None = None

    def __call__(self, round_one: RoundOne) -> FloatArray:
        """Score samples, (N,)."""
        score = gain_score(round_one.calibrated, self.value, round_one.weak_prediction, self.utility)
        return score if self.correction is None else score + correction_of(self.correction, round_one, self.value)


@dataclass(frozen=True, eq=False)
class Explanation:
    """Why one sample is escalated or kept: its score, class by class.

    Attributes
    ----------
    classes : (K,)
        Labels in column order.
    pooled, calibrated : (K,)
        The posterior before and after calibration.
    reliability : (K,)
        What the strong route is worth on each class.
    contribution : (K,)
        What each class adds to the score; together with `correction`, they sum to `score`.
    weak_prediction
        The weak answer.
    score, threshold, escalate
        The decision.
    correction
        What no class explains; 0 if the router does not correct its score.
    """

    classes: LabelArray | Sequence[Any]
    pooled: FloatArray
    calibrated: FloatArray
    reliability: FloatArray
    contribution: FloatArray
    weak_prediction: Any
    score: float
    threshold: float
    escalate: bool
    correction: float = 0.0

    def __str__(self) -> str:
        verdict = "escalate" if self.escalate else "keep"
        relation = "=" if self.score == self.threshold else ">" if self.escalate else "≤"
        lines = [
            f"{verdict}: {self.score:+.4f} {relation} τ = {self.threshold:+.4f}; weak answer {self.weak_prediction}",
            f"{'class':>12} {'pooled':>8} {'calibrated':>11} {'reliability':>12} {'contribution':>13}",
        ]
        columns = self.pooled, self.calibrated, self.reliability, self.contribution
        lines += [
            "{!s:>12} {:8.4f} {:11.4f} {:12.4f} {:+13.4f}".format(self.classes[i], *(c[i] for c in columns))
            for i in np.argsort(-np.abs(self.contribution), kind="stable")[:10].tolist()
        ]
        if len(self.contribution) > 10:
            lines.append(f"{'…':>12} ({len(self.contribution) - 10} classes contribute less)")
        if self.correction:
            lines.append(f"{'correction':>12} {self.correction:+46.4f}")
        return "\n".join(lines)
