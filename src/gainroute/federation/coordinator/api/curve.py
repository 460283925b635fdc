"""The trade-off curve expected from calibration: accuracy by escalation rate, with an interval.

It is computed from the scores that the threshold was chosen from, each with whether both routes were correct. Labels of
new samples are not involved, so that the service does not need `gainroute.evaluation`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gainroute.routing.decide import escalate
from gainroute.routing.router import Router
from gainroute.routing.types import FloatArray, ThresholdScores

__all__ = ["curve_points", "expected_at", "recommend"]

POINTS = 201
LEVEL, DRAWS = 0.95, 2000


def expected_at(scores: ThresholdScores, threshold: float) -> tuple[float, float]:
    """Expected escalation rate and accuracy at a threshold."""
    above = escalate(scores.score, threshold)
    right = np.where(above, scores.strong_right, scores.weak_right)
    return float(np.average(above, weights=scores.weight)), float(np.average(right, weights=scores.weight))


def curve_points(router: Router, points: int = POINTS) -> list[dict[str, Any]]:
    """Rate, accuracy, its interval and threshold from escalating none to escalating all, at about `points` even steps.

    The interval is that of the advantage over the weak route, added to the weak accuracy: with 95 % confidence it
    holds at all rates together. Tied scores are escalated together or not at all.
    """
    behind = router.threshold_scores_
    order = np.argsort(-behind.score, kind="stable")
    ranked, weight = behind.score[order], behind.weight[order]
    gain = weight * (behind.strong_right[order].astype(np.float64) - behind.weak_right[order])
    total = float(weight.sum())
    rate, advantage, square, cross = (
        np.concatenate([[0.0], np.cumsum(values)]) for values in (weight, gain, gain**2, gain * weight)
    )
    threshold = np.concatenate([ranked, [-np.inf]])
    apart = np.concatenate([[0], np.flatnonzero(ranked[1:] != ranked[:-1]) + 1, [len(ranked)]])
    if len(apart) > points:
        near = np.searchsorted(rate[apart], np.linspace(0, total, points)).clip(0, len(apart) - 1)
        apart = apart[np.unique(near)]
    weak = float(np.average(behind.weak_right, weights=behind.weight))
    rate, mean, square, cross = rate[apart] / total, advantage[apart] / total, square[apart], cross[apart]
    spread = np.sqrt(np.maximum(square - 2 * mean * cross + mean**2 * float((weight**2).sum()), 0)) / total
    wide = _critical(square) * spread
    columns = {
        "rate": rate, "accuracy": weak + mean, "low": np.maximum(weak + mean - wide, 0),
        "high": np.minimum(weak + mean + wide, 1), "error": spread, "threshold": threshold[apart],
    }  # fmt: skip
    return [dict(zip(columns, row, strict=True)) for row in zip(*(v.tolist() for v in columns.values()), strict=True)]


def recommend(points: list[dict[str, Any]]) -> float | None:
    """The smallest budget within one standard error of the best, if its interval excludes the weak accuracy.

    None if no budget is shown to be better than 0.
    """
    weak = points[0]["accuracy"]
    better = [point for point in points if point["low"] > weak]
    if not better:
        return None
    best = max(better, key=lambda point: float(point["accuracy"]))
    # The gain between two rates is independent of the gain up to the first: variances subtract.
    return next(
        float(p["rate"]) for p in better
        if best["accuracy"] - p["accuracy"] <= max(best["error"] ** 2 - p["error"] ** 2, 0) ** 0.5
    )  # fmt: skip


def _critical(square: FloatArray) -> float:
    """How many standard errors the widest deviation of a curve has with 95 % confidence, by simulation.

    `square` is the variance at each point, up to a factor: the increments between points are independent.
    """
    steps = np.diff(square)
    steps = steps[steps > 0]
    if not len(steps):
        return 0.0
    paths = np.cumsum(np.random.default_rng(0).normal(size=(DRAWS, len(steps))) * np.sqrt(steps), axis=1)
    return float(np.quantile(np.abs(paths / np.sqrt(np.cumsum(steps))).max(axis=1), LEVEL))
