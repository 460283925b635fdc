"""Array aliases and the frozen records that travel along the road.

M parties, N samples, K classes: local posteriors are (M, N, K), pooled and calibrated posteriors (N, K),
labels, predictions and scores (N,).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from gainroute._util.arrays import ArrayLike, BoolArray, FloatArray, IntArray, LabelArray

__all__ = [
    "Answer",
    "ArrayLike",
    "BoolArray",
    "CalibrationSet",
    "Decision",
    "FloatArray",
    "IntArray",
    "LabelArray",
    "Provenance",
    "RoundOne",
    "ThresholdScores",
]


@dataclass(frozen=True, eq=False)
class RoundOne:
    """All that the server knows after Round 1; what a router's score is a function of.

    Attributes
    ----------
    local : (M, N, K)
        The posterior each party sent.
    pooled : (N, K)
        Their mean (eq. 1).
    weak_prediction : (N,)
        The cheap answer as a column number: the argmax of `pooled` (eq. 2), or the user's own.
    calibrated : (N, K)
        P(y = k | pooled) as estimated by the calibrator (eq. 17); `pooled` itself where there is none.
    """

    local: FloatArray
    pooled: FloatArray
    weak_prediction: IntArray
    calibrated: FloatArray


@dataclass(frozen=True, eq=False)
class CalibrationSet:
    """Round 1 on held-out samples, with what a score may be fitted to.

    Attributes
    ----------
    round_one : RoundOne
    labels : (N,)
        True classes as column numbers.
    strong_prediction : (N,)
        The collaborative answer as a column number; −1 where there was none.
    sample_weight : (N,)
    """

    round_one: RoundOne
    labels: IntArray
    strong_prediction: IntArray
    sample_weight: FloatArray

    @property
    def gain(self) -> IntArray:
        """G = 1[ŷ_VFL = y] − 1[ŷ_loc = y] (eq. 7), (N,)."""
        weak_right = (self.round_one.weak_prediction == self.labels).astype(np.int64)
        gain: IntArray = (self.strong_prediction == self.labels) - weak_right
        return gain


@dataclass(frozen=True, eq=False)
class Decision:
    """What Round 1 ends with: a cheap answer for every sample, and which ones to escalate.

    Attributes
    ----------
    escalate : (N,) bool
        True where the score lies strictly above the threshold.
    score : (N,)
        The routing score; for the expected-gain router, accuracy expected to be gained by Round 2.
    weak_prediction : (N,)
        The cheap answer, in the labels the router was fitted with.
    pooled, calibrated : (N, K)
        The pooled posterior, and P(y = k | pooled) as the router estimates it.
    incomplete : (N,) bool
        True where a party was absent: such a sample is answered from those present and never escalated,
        because the calibration does not apply to it.
    threshold
        τ, as it stood.
    local : (M, N, K)
        What the parties sent, for a strong answer that takes it into account.
    """

    escalate: BoolArray
    score: FloatArray
    weak_prediction: LabelArray
    pooled: FloatArray
    calibrated: FloatArray
    incomplete: BoolArray
    threshold: float
    local: FloatArray

    def __len__(self) -> int:
        return len(self.escalate)


@dataclass(frozen=True, eq=False)
class Answer:
    """The final answers of both routes together (eq. 5).

    Attributes
    ----------
    prediction : (N,)
        ŷ_VFL where a strong answer was given, ŷ_loc elsewhere.
    probabilities : (N, K)
        The posterior of the route that answered: pooled in Round 1, the strong posterior in Round 2.
        A strong answer that came without a posterior gives P(y | Round 1, strong answer) by Bayes' rule
        from the calibrated posterior and the confusion matrix.
    escalated : (N,) bool
        True where the answer is the strong route's.
    """

    prediction: LabelArray
    probabilities: FloatArray
    escalated: BoolArray


@dataclass(frozen=True, eq=False)
class ThresholdScores:
    """The scores a threshold is read off, and what became of each sample on both routes.

    Attributes
    ----------
    score, weight : (n,)
    weak_right, strong_right : (n,) bool
    """

    score: FloatArray
    weight: FloatArray
    weak_right: BoolArray
    strong_right: BoolArray


@dataclass(frozen=True)
class Provenance:
    """What a router was calibrated with, so that a service can refuse a mismatch.

    Attributes
    ----------
    models
        Hash of each model by the name of its holder; empty for bare arrays.
    codec
        How embeddings were encoded on the wire; empty for bare arrays.
    """

    models: Mapping[str, str] = field(default_factory=dict)
    codec: str = ""
