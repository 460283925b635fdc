"""Metrics of a router on labelled data: arrays only, no drawing. The serving side does not import this module."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gainroute._util.arrays import shown
from gainroute.errors import SettingError, ShapeError
from gainroute.routing.answer import answer_value
from gainroute.routing.decide import escalate
from gainroute.routing.inputs import as_posteriors, as_utility, check_fraction
from gainroute.routing.labels import as_labels, class_count
from gainroute.routing.types import ArrayLike, FloatArray, IntArray

__all__ = [
    "OperatingPoint",
    "ReliabilityDiagram",
    "TradeoffCurve",
    "expected_calibration_error",
    "negative_log_likelihood",
    "operating_point",
    "oracle_score",
    "oracle_share",
    "outcome_values",
    "reliability_diagram",
    "tradeoff_curve",
]


def oracle_score(weak_prediction: ArrayLike, strong_prediction: ArrayLike, labels: ArrayLike) -> FloatArray:
    """Realised gain G = 1[ŷ_VFL = y] − 1[ŷ_loc = y] (eq. 7), (N,): the score of the oracle, which needs labels.

    Examples
    --------
    >>> oracle_score([0, 0, 1], [1, 0, 0], [1, 0, 1])
    array([ 1.,  0., -1.])
    """
    weak, strong, truth = _predictions(weak_prediction, strong_prediction, labels)
    gain: FloatArray = (strong == truth).astype(np.float64) - (weak == truth)
    return gain


@dataclass(frozen=True, eq=False)
class TradeoffCurve:
    """The result of every threshold, from escalating none to escalating all; arrays of N + 1 points.

    Attributes
    ----------
    escalation_rate
        ER: 0, 1/N, …, 1.
    threshold
        A τ with about this rate (exactly, if scores are not tied).
    accuracy
        Acc.
    utility
        Mean utility; the accuracy if no utility was given.
    precision
        EP: share of the escalated whose error the strong route corrects; 0 at rate 0.
    neutral
        NE: share of the escalated whose correctness does not change; 0 at rate 0.
    """

    escalation_rate: FloatArray
    threshold: FloatArray
    accuracy: FloatArray
    utility: FloatArray
    precision: FloatArray
    neutral: FloatArray


@dataclass(frozen=True)
class OperatingPoint:
    """One point of a trade-off curve: escalation rate, Acc., mean utility, EP and NE."""

    escalation_rate: float
    threshold: float
    accuracy: float
    utility: float
    precision: float
    neutral: float


def tradeoff_curve(
    score: ArrayLike,
    weak_prediction: ArrayLike,
    strong_prediction: ArrayLike,
    labels: ArrayLike,
    utility: ArrayLike | None = None,
) -> TradeoffCurve:
    """Sweep the threshold over the scores.

    Parameters
    ----------
    score : (N,)
    weak_prediction, strong_prediction, labels : (N,)
    utility : (K, K), optional
        U[truth, answer].

    Notes
    -----
    Samples of equal score are escalated in random order: every point is the expectation over that
    order, so that the order of the samples does not matter.

    Examples
    --------
    >>> curve = tradeoff_curve([0.9, 0.1], weak_prediction=[0, 1], strong_prediction=[1, 0], labels=[1, 1])
    >>> curve.accuracy
    array([0.5, 1. , 0.5])
    """
    s, counts, base = _count(score, weak_prediction, strong_prediction, labels, utility)
    n = len(s)
    order = np.argsort(-s, kind="stable")
    ranked = s[order]
    sums = np.concatenate([np.zeros((1, counts.shape[1])), np.cumsum(counts[order], axis=0)])
    # Only where a tie ends is the set of escalated samples fixed; in between, the expectation is linear.
    fixed = np.concatenate([[0], np.flatnonzero(ranked[1:] != ranked[:-1]) + 1, [n]])
    k = np.arange(n + 1)
    gained, benefit, neutral, utility_gained = (np.interp(k, fixed, sums[fixed, j]) for j in range(4))
    some = np.maximum(k, 1)
    return TradeoffCurve(
        escalation_rate=k / n,
        threshold=np.concatenate([ranked, [-np.inf]]),
        accuracy=base[0] + gained / n,
        utility=base[1] + utility_gained / n,
        precision=benefit / some,
        neutral=neutral / some,
    )


def operating_point(
    score: ArrayLike,
    weak_prediction: ArrayLike,
    strong_prediction: ArrayLike,
    labels: ArrayLike,
    *,
    rate: float | None = None,
    threshold: float | None = None,
    utility: ArrayLike | None = None,
) -> OperatingPoint:
    """Evaluate one point: at a matched `rate`, to compare routers, or at a deployed `threshold`.

    At a rate, the highest scores are escalated until the rate is met (ties and fractions in expectation). At a
    threshold, the rate is the one it gives on these samples.

    Examples
    --------
    >>> point = operating_point([0.9, 0.1], [0, 1], [1, 0], [1, 1], threshold=0.5)
    >>> point.escalation_rate, point.accuracy, point.precision
    (0.5, 1.0, 1.0)
    """
    if (rate is None) == (threshold is None):
        raise SettingError(f"rate is {shown(rate)} and threshold {shown(threshold)}; give exactly one of them")
    if threshold is not None:
        s, counts, base = _count(score, weak_prediction, strong_prediction, labels, utility)
        chosen = escalate(s, threshold)
        k, n = int(chosen.sum()), len(s)
        gained, benefit, neutral, utility_gained = counts[chosen].sum(axis=0)
        some = max(k, 1)
        return OperatingPoint(
            *map(float, (k / n, threshold, base[0] + gained / n, base[1] + utility_gained / n)),
            *map(float, (benefit / some, neutral / some)),
        )
    share = check_fraction(rate if rate is not None else 0.0, "rate", "the share of samples escalated")
    curve = tradeoff_curve(score, weak_prediction, strong_prediction, labels, utility)
    return point_at_rate(curve, share)


def point_at_rate(curve: TradeoffCurve, rate: float) -> OperatingPoint:
    """Interpolate a curve at one rate, as if one more sample were escalated with the fitting probability."""
    r = curve.escalation_rate
    i = min(int(np.ceil(rate * (len(r) - 1) - 1e-9)), len(r) - 1)

    def at(values: FloatArray) -> float:
        return float(np.interp(rate, r, values))

    # Shares among the escalated are ratios: the counts are interpolated, not the ratios.
    some = rate if rate > 0 else 1.0
    return OperatingPoint(
        rate, float(curve.threshold[i]), at(curve.accuracy), at(curve.utility),
        at(curve.precision * r) / some, at(curve.neutral * r) / some,
    )  # fmt: skip


def oracle_share(curve: TradeoffCurve, oracle: TradeoffCurve) -> float:
    """Share of the oracle's gain that a router captures.

    Both areas are taken above the chord between the two endpoints, never and always escalating, which random
    escalation would follow; 1 is the oracle, 0 is random.
    """

    def area(c: TradeoffCurve) -> float:
        ends = oracle.accuracy[0], oracle.accuracy[-1]
        chord = ends[0] + c.escalation_rate * (ends[1] - ends[0])
        return float(np.trapezoid(c.accuracy - chord, c.escalation_rate))

    whole = area(oracle)
    return area(curve) / whole if whole > 0 else 0.0


@dataclass(frozen=True, eq=False)
class ReliabilityDiagram:
    """Confidence of the top class against how often it is right, by bin.

    Attributes
    ----------
    confidence, accuracy, share : (bins,)
        Mean confidence, accuracy, and share of the samples in each bin; NaN, NaN and 0 for an empty bin.
    """

    confidence: FloatArray
    accuracy: FloatArray
    share: FloatArray


def reliability_diagram(posteriors: ArrayLike, labels: ArrayLike, bins: int = 15) -> ReliabilityDiagram:
    """Bin samples by the confidence of their top class, in bins of equal width."""
    p = as_posteriors(posteriors)
    y = as_labels(labels, classes=p.shape[1], length=len(p))
    top = p.max(axis=1).astype(np.float64)
    right = (p.argmax(axis=1) == y).astype(np.float64)
    cell = np.clip(np.ceil(top * bins).astype(int) - 1, 0, bins - 1)
    count = np.bincount(cell, minlength=bins)
    with np.errstate(invalid="ignore"):
        confidence = np.bincount(cell, top, minlength=bins) / count
        accuracy = np.bincount(cell, right, minlength=bins) / count
    return ReliabilityDiagram(confidence, accuracy, count / len(p))


def expected_calibration_error(posteriors: ArrayLike, labels: ArrayLike, bins: int = 15) -> float:
    """ECE: mean distance between confidence and accuracy over the bins of `reliability_diagram`.

    Examples
    --------
    >>> round(expected_calibration_error([[0.9, 0.1], [0.9, 0.1]], [0, 1]), 6)
    0.4
    """
    diagram = reliability_diagram(posteriors, labels, bins)
    return float(np.nansum(diagram.share * np.abs(diagram.confidence - diagram.accuracy)))


def negative_log_likelihood(posteriors: ArrayLike, labels: ArrayLike) -> float:
    """Mean −log p[y], p floored at 1e-12.

    Examples
    --------
    >>> round(negative_log_likelihood([[0.5, 0.5]], [1]), 4)
    0.6931
    """
    p = as_posteriors(posteriors)
    y = as_labels(labels, classes=p.shape[1], length=len(p))
    return float(-np.log(np.maximum(p[np.arange(len(y)), y], 1e-12)).mean())


def outcome_values(
    labels: IntArray, weak: IntArray, strong: IntArray, utility: FloatArray | None
) -> tuple[FloatArray, FloatArray]:
    """Value of the weak and of the strong answer of each sample, (N,) each; no answer counts as the worst one."""
    return answer_value(weak, labels, utility), answer_value(strong, labels, utility)


def _predictions(weak: ArrayLike, strong: ArrayLike, labels: ArrayLike) -> tuple[IntArray, IntArray, IntArray]:
    """Encode predictions and labels of any kind as numbers that can be compared."""
    arrays = [np.asarray(a) for a in (weak, strong, labels)]
    if any(a.ndim != 1 or len(a) != len(arrays[0]) for a in arrays) or not len(arrays[0]):
        shapes = ", ".join(str(a.shape) for a in arrays)
        raise ShapeError(
            f"weak_prediction, strong_prediction and labels have shapes {shapes}; one (N,) each, N ≥ 1, is needed"
        )
    if all(a.dtype.kind in "iub" for a in arrays):
        names = ("weak_prediction", "strong_prediction", "labels")
        weak_, strong_, truth = (
            as_labels(a, classes=None, name=name, missing=name != "labels")
            for a, name in zip(arrays, names, strict=True)
        )
        return weak_, strong_, truth
    found = {label: i for i, label in enumerate(sorted(set(arrays[2].tolist()), key=str))}
    weak_, strong_, truth = (np.array([found.get(v, -1) for v in a.tolist()], dtype=np.int64) for a in arrays)
    return weak_, strong_, truth


def _count(
    score: ArrayLike, weak: ArrayLike, strong: ArrayLike, labels: ArrayLike, utility: ArrayLike | None
) -> tuple[FloatArray, FloatArray, tuple[float, float]]:
    """Scores; per sample gain, benefit, neutrality and utility gained, (N, 4); weak accuracy and utility."""
    w, v, y = _predictions(weak, strong, labels)
    s = np.asarray(score, dtype=np.float64)
    if s.shape != y.shape:
        raise ShapeError(f"score has shape {s.shape} for {len(y)} samples; one number per sample, (N,), is needed")
    if np.isnan(s).any():
        raise SettingError("a score is NaN; a score must be a number for every sample")
    gain = (v == y).astype(np.float64) - (w == y)
    accuracy = float((w == y).mean())
    if utility is None:
        return s, np.column_stack([gain, gain > 0, gain == 0, gain]), (accuracy, accuracy)
    u = np.asarray(utility, dtype=np.float64)
    as_utility(u, max(len(u), class_count(None, y)))
    kept, taken = outcome_values(y, w, v, u)
    return s, np.column_stack([gain, gain > 0, gain == 0, taken - kept]), (accuracy, float(kept.mean()))
