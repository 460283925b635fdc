"""The report of the drift monitor: scores against calibration, feedback, and whether collaboration still helps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gainroute.routing.types import FloatArray

__all__ = ["Collaboration", "DriftReport", "ScoreDrift"]


@dataclass(frozen=True)
class ScoreDrift:
    """The scores of one full window, compared with the calibration scores."""

    samples: int
    distance: float  # the largest difference of the two distribution functions (Kolmogorov and Smirnov's)
    limit: float  # of the distance
    stability_index: float  # over ten equally likely bins: by convention, 0.1 is a change and 0.25 a large one
    rate: float  # share escalated in the window
    fixed_rate: float  # share above the router's own threshold
    calibration_rate: float  # the same in calibration

    @property
    def drifted(self) -> bool:
        """Whether the distribution of the scores differs from calibration."""
        return self.distance > self.limit


@dataclass(frozen=True)
class Collaboration:
    """Whether the strong route still does better than the weak one on escalated samples."""

    answers: int  # escalated and labelled, since the most likely time of a change
    strong_right: int
    weak_right: int
    promised: float  # mean score of these answers
    gained: float  # their mean gain
    e_value: float  # evidence that the strong route has become the worse one
    limit: float  # the e-value at which the alarm is raised
    harmful: bool  # whether it has been raised; it stays until `DriftMonitor.reset`

    def __str__(self) -> str:
        verdict = "collaboration has begun to hurt" if self.harmful else "no evidence that collaboration hurts"
        sign = "≥" if self.e_value >= self.limit else "<"
        return (
            f"{verdict}: of {self.answers:,} escalated and labelled answers the strong route was right on "
            f"{self.strong_right:,}, the weak one on {self.weak_right:,}; e-value {self.e_value:.3g} {sign} "
            f"{self.limit:g}"
        )


@dataclass(frozen=True, eq=False)
class DriftReport:
    """Everything the monitor knows.

    Attributes
    ----------
    scores
        The last full window; None before the first.
    labels
        Answers with feedback so far.
    calibration_error
        Expected calibration error of the weak answer over recent feedback; NaN without any.
    confidence_gap
        Share of weak answers that were right, minus the probability that the calibrated posterior gave them.
    reliability, reliability_low, reliability_high, reliability_labels : (K,)
        Estimated from feedback by inverse probability weighting, with a joint 99 % interval over all classes, and the
        effective number of labels. NaN where there are none.
    changed_classes
        Classes whose reliability in the router lies outside the interval. A hint: over time, chance causes some.
    collaboration
        Whether the strong route still helps.
    alarms
        Alarms by kind, each a sentence with its evidence.
    """

    scores: ScoreDrift | None
    labels: int
    calibration_error: float
    confidence_gap: float
    reliability: FloatArray
    reliability_low: FloatArray
    reliability_high: FloatArray
    reliability_labels: FloatArray
    changed_classes: tuple[Any, ...]
    collaboration: Collaboration
    alarms: dict[str, str]
