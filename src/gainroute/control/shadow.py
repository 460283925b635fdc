"""Compare the router in use with a shadow router on the same traffic, with an interval for the difference."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gainroute._util.resampling import gains_at, interval, replicates, resamples
from gainroute.control.logged_decisions import LoggedDecisions, check_enough, checked
from gainroute.routing.labels import Labels
from gainroute.routing.router import Router
from gainroute.routing.types import FloatArray

__all__ = ["ShadowComparison", "compare_shadow"]


@dataclass(frozen=True)
class ShadowComparison:
    """Two routers on the same traffic, at the same escalation rate.

    Attributes
    ----------
    rate
        Share escalated by both.
    old, new
        Accuracy that each would have had, estimated by inverse probability weighting.
    difference, low, high
        New minus old, with its interval.
    level
        Of the interval.
    labels, explored
        Answers with a label, and those of them that were escalated to explore.
    disagreements
        Labelled answers that one router would escalate and the other would not.
    """

    rate: float
    old: float
    new: float
    difference: float
    low: float
    high: float
    level: float
    labels: int
    explored: int
    disagreements: int

    @property
    def verdict(self) -> str:
        """The new router is "better" or "worse", or it is "undecided"."""
        return "better" if self.low > 0 else "worse" if self.high < 0 else "undecided"

    def __str__(self) -> str:
        return (
            f"at {100 * self.rate:.1f} % escalated: old {100 * self.old:.1f} %, new {100 * self.new:.1f} %, difference "
            f"{100 * self.difference:+.1f} points ({100 * self.low:+.1f} to {100 * self.high:+.1f} at "
            f"{100 * self.level:.0f} %): {self.verdict}; {self.labels:,} labels, {self.disagreements:,} of them on "
            f"samples that only one of the two would escalate, {self.explored:,} explored"
        )


def compare_shadow(
    old: Router,
    new: Router,
    log: LoggedDecisions,
    *,
    rate: float | None = None,
    level: float = 0.95,
    seed: int = 0,
) -> ShadowComparison:
    """Estimate the accuracy of two routers on the same traffic, both escalating the same share of it.

    Parameters
    ----------
    old, new
        Fitted routers. The log may come from another router; it must not contain the samples that fitted them.
    log
        Decisions with feedback.
    rate
        Share escalated by each; by default the share that was escalated in the log.
    level, seed
        Of the bootstrap interval.
    """
    rows = checked(old, log)
    rate = float((rows.strong >= 0).mean()) if rate is None else rate
    rows = rows.take(rows.labels >= 0)
    check_enough(rows, 2, 0)
    asked = rows.strong >= 0
    at = np.array([rate])
    weights = rows.weight
    values, above = [], []
    for router in (old, new):
        names = Labels(router.n_classes_, router.classes)
        decision = router.route(rows.local, weak_prediction=None if rows.weak is None else names.decode(rows.weak))
        weak_right = (names.encode(decision.weak_prediction, "weak_prediction") == rows.labels).astype(np.float64)
        gain = np.where(asked, ((rows.strong == rows.labels) - weak_right) / rows.probability, 0.0)
        values.append((decision.score, gain, weak_right))
        above.append(decision.score > np.quantile(decision.score, 1 - rate))
    blocks = resamples(len(weights), replicates(len(weights)), np.random.default_rng(seed))
    drawn = [np.stack([_accuracy(v, block * weights, at) for v in values], axis=1) for block in blocks]
    low, high = interval(np.diff(np.concatenate(drawn), axis=1)[:, 0], level)
    found = np.stack([_accuracy(v, weights[None], at) for v in values], axis=1)[0]
    return ShadowComparison(
        rate=rate,
        old=float(found[0]),
        new=float(found[1]),
        difference=float(found[1] - found[0]),
        low=float(low),
        high=float(high),
        level=level,
        labels=len(weights),
        explored=int((asked & (rows.probability < 1)).sum()),
        disagreements=int((above[0] != above[1]).sum()),
    )


def _accuracy(values: tuple[FloatArray, FloatArray, FloatArray], weights: FloatArray, at: FloatArray) -> FloatArray:
    """Accuracy with the share `at` of the highest scores escalated, one per row of weights, (R,)."""
    score, gain, weak_right = values
    right = gains_at(score, gain, weights, at)[:, 0] + weights @ weak_right
    return np.asarray(right / weights.sum(axis=1))
