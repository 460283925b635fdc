"""The trade-off curve expected from calibration: accuracy by escalation rate.

It is computed from the scores that the threshold was chosen from, each with whether both routes were correct. Labels of
new samples are not involved, so that the service does not need `gainroute.evaluation`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gainroute.routing.decide import escalate
from gainroute.routing.router import Router
from gainroute.routing.types import ThresholdScores

__all__ = ["curve_points", "expected_at"]

POINTS = 201


def expected_at(scores: ThresholdScores, threshold: float) -> tuple[float, float]:
    """Expected escalation rate and accuracy at a threshold."""
    above = escalate(scores.score, threshold)
    right = np.where(above, scores.strong_right, scores.weak_right)
    return float(np.average(above, weights=scores.weight)), float(np.average(right, weights=scores.weight))


def curve_points(router: Router, points: int = POINTS) -> list[dict[str, Any]]:
    """Rate, accuracy and threshold from escalating none to escalating all, at about `points` even steps.

    Tied scores are escalated together or not at all.
    """
    behind = router.threshold_scores_
    order = np.argsort(-behind.score, kind="stable")
    ranked, weight = behind.score[order], behind.weight[order]
    gain = weight * (behind.strong_right[order].astype(np.float64) - behind.weak_right[order])
    total = float(weight.sum())
    rate = np.concatenate([[0.0], np.cumsum(weight)]) / total
    accuracy = (
        float(np.average(behind.weak_right, weights=behind.weight)) + np.concatenate([[0.0], np.cumsum(gain)]) / total
    )
    threshold = np.concatenate([ranked, [-np.inf]])
    apart = np.concatenate([[0], np.flatnonzero(ranked[1:] != ranked[:-1]) + 1, [len(ranked)]])
    if len(apart) > points:
        near = np.searchsorted(rate[apart], np.linspace(0, 1, points)).clip(0, len(apart) - 1)
        apart = apart[np.unique(near)]
    return [
        {"rate": r, "accuracy": a, "threshold": t}
        for r, a, t in zip(rate[apart].tolist(), accuracy[apart].tolist(), threshold[apart].tolist(), strict=True)
    ]
