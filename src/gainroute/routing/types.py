"""Array aliases, the records that pass from stage to stage, and what a stage has to offer.

M parties, N samples, K classes: local posteriors are (M, N, K), pooled and calibrated posteriors (N, K),
labels, predictions and scores (N,).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from gainroute._util.arrays import ArrayLike, BoolArray, FloatArray, IntArray, LabelArray

__all__ = [
    "Answer",
    "ArrayLike",
    "BoolArray",
    "CalibrationSet",
    "Calibrator",
    "Decision",
    "FloatArray",
    "IntArray",
    "LabelArray",
    "Pool",
    "Provenance",
    "RoundOne",
    "Score",
    "Stage",
    "ThresholdScores",
]


@dataclass(frozen=True, eq=False)
class RoundOne:
    """Everything that is known after Round 1; a router's score is a function of it.

    Attributes
    ----------
    local : (M, N, K)
        The posterior each party sent.
    pooled : (N, K)
        The pooled posterior: log-linear by default, the mean (eq. 1) in the paper.
    weak_prediction : (N,)
        The weak answer as a column number: the argmax of `pooled` (eq. 2), the one with the largest expected utility
        under `calibrated` if the router has a utility, or the user's own.
    calibrated : (N, K)
        P(y = k | pooled) as estimated by the calibrator (eq. 17); `pooled` itself if there is none.
    """

    local: FloatArray
    pooled: FloatArray
    weak_prediction: IntArray
    calibrated: FloatArray

    def take(self, rows: IntArray) -> RoundOne:
        """Only these samples."""
        return RoundOne(self.local[:, rows], self.pooled[rows], self.weak_prediction[rows], self.calibrated[rows])


@dataclass(frozen=True, eq=False)
class CalibrationSet:
    """Round 1 of the calibration samples, with everything a score may be fitted to.

    Attributes
    ----------
    round_one : RoundOne
    labels : (N,)
        True classes as column numbers.
    strong_prediction : (N,)
        The strong answer as a column number; −1 if there was none.
    sample_weight : (N,)
    confusion : (K, K)
        C[k, c] = P(strong answer c | truth k), as the router estimates it (eq. 14); (0, 0) where nothing was estimated.
    """

    round_one: RoundOne
    labels: IntArray
    strong_prediction: IntArray
    sample_weight: FloatArray
    confusion: FloatArray = field(default_factory=lambda: np.zeros((0, 0)))

    @property
    def gain(self) -> IntArray:
        """G = 1[ŷ_VFL = y] − 1[ŷ_loc = y] (eq. 7), (N,)."""
        weak_right = (self.round_one.weak_prediction == self.labels).astype(np.int64)
        gain: IntArray = (self.strong_prediction == self.labels) - weak_right
        return gain


@dataclass(frozen=True, eq=False)
class Decision:
    """The result of Round 1: a weak answer for every sample, and which samples to escalate.

    Attributes
    ----------
    escalate : (N,) bool
        True where the score lies strictly above the threshold.
    score : (N,)
        The routing score; for the expected-gain router, accuracy expected to be gained by Round 2.
    weak_prediction : (N,)
        The weak answer, in the labels the router was fitted with.
    pooled, calibrated : (N, K)
        The pooled posterior, and P(y = k | pooled) as the router estimates it.
    incomplete : (N,) bool
        True where a party was absent, and there is no router for those present (`gainroute.fit_subsets`). Such a
        sample is answered from the parties present and never escalated, because the calibration does not apply to it.
    threshold
        τ at the time of the decision.
    local : (M, N, K)
        What the parties sent, for a strong answer that takes it into account; with `subset`, NaN where one is absent.
    subset : (N,), optional
        Which router decided: 0 that of all parties, i the i-th of `Router.subset_routers_`. None if all samples have
        all parties, or there is no other router.
    ask : (M, N) bool, optional
        Which parties to ask for the embeddings of escalated samples; None for all that have the sample.
    """

    escalate: BoolArray
    score: FloatArray
    weak_prediction: LabelArray
    pooled: FloatArray
    calibrated: FloatArray
    incomplete: BoolArray
    threshold: float
    local: FloatArray
    subset: IntArray | None = field(default=None, kw_only=True)
    ask: BoolArray | None = field(default=None, kw_only=True)

    def __len__(self) -> int:
        return len(self.escalate)


@dataclass(frozen=True, eq=False)
class Answer:
    """The final answers of both routes (eq. 5).

    Attributes
    ----------
    prediction : (N,)
        ŷ_VFL where a strong answer was given, ŷ_loc elsewhere.
    probabilities : (N, K)
        The posterior of the route that answered: pooled in Round 1, the strong posterior in Round 2.
        For a strong answer without a posterior, P(y | Round 1, strong answer) by Bayes' rule from the
        calibrated posterior and the confusion matrix.
    escalated : (N,) bool
        True where the answer is the strong route's.
    """

    prediction: LabelArray
    probabilities: FloatArray
    escalated: BoolArray


@dataclass(frozen=True, eq=False)
class ThresholdScores:
    """The scores from which a threshold is computed, and whether each route was right on each sample; all (n,)."""

    score: FloatArray
    weight: FloatArray
    weak_right: BoolArray
    strong_right: BoolArray


@dataclass(frozen=True)
class Provenance:
    """The models and the codec a router was calibrated with, so that a service can refuse a mismatch.

    Attributes
    ----------
    models
        Hash of each model by the name of its holder; empty if the router was fitted on arrays alone.
    codec
        How embeddings were encoded on the wire; empty likewise.
    """

    models: Mapping[str, str] = field(default_factory=dict)
    codec: str = ""


# ---- stages -----------------------------------------------------------------------------------------


class Pool(Protocol):
    """A fitted pool: checked local posteriors (M, N, K), and who is present (M, N) or None for all → (N, K)."""

    def __call__(self, local: FloatArray, present: BoolArray | None = None) -> FloatArray: ...  # noqa: D102


Calibrator = Callable[[FloatArray], FloatArray]  # a fitted calibrator: (N, K) → (N, K)
Score = Callable[[RoundOne], FloatArray]  # a fitted score: Round 1 → (N,)


class Stage(Protocol):
    """A pool, calibrator or blend before it is fitted: settings alone, and `fit`, which returns a callable.

    A pool is fitted on local posteriors (M, N, K), a calibrator on pooled ones (N, K), a blend on the strong posterior
    followed by the local ones (1 + M, N, K). A calibrator may also offer ``refit(fitted, pooled, labels, weight)``, a
    warm start from a fit on almost the same samples, which the folds of "cross-fitted" use.
    """

    def fit(self, posteriors: FloatArray, labels: IntArray, weight: FloatArray, /) -> Any: ...  # noqa: D102
