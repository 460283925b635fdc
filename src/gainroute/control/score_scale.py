"""The rank of a score among the calibration scores, as a continuous scale from 0 to 1."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np

from gainroute.routing.types import FloatArray, ThresholdScores

__all__ = ["CalibrationScale"]


@dataclass(frozen=True, eq=False)
class CalibrationScale:
    """F, the distribution function of the calibration scores, strictly increasing onto (0, 1), and its inverse.

    F is linear between the calibration scores; beyond the outermost ones it decays towards 0 and 1, so that scores
    never seen in calibration still differ.
    """

    score: FloatArray  # distinct calibration scores, (n,)
    level: FloatArray  # F at each
    spread: float  # scale of the decay beyond them

    @classmethod
    def of(cls, scores: ThresholdScores) -> CalibrationScale:
        """Build it from the scores from which a router's threshold was computed."""
        distinct, where = np.unique(scores.score, return_inverse=True)
        weight = np.bincount(where, scores.weight)
        # One sample more than there are: F stays below 1, which leaves room above the largest score.
        level = np.cumsum(weight) / (weight.sum() + scores.weight.mean())
        kept = weight > 0
        return cls(distinct[kept], level[kept], float(np.ptp(distinct[kept])) or 1.0)

    def __call__(self, score: FloatArray) -> FloatArray:
        """F(s), (N,); NaN where the score is."""
        first, last = self.score[0], self.score[-1]
        inner: FloatArray = np.interp(score, self.score, self.level)
        if not ((score < first) | (score > last)).any():  # the usual case, and the fast one
            return inner
        below = self.level[0] * np.exp(np.minimum(score - first, 0) / self.spread)
        above = 1 - (1 - self.level[-1]) * np.exp(np.minimum(last - score, 0) / self.spread)
        return np.where(score < first, below, np.where(score > last, above, inner))

    def inverse(self, level: FloatArray) -> FloatArray:
        """Scores at these levels, (N,); −∞ below 0 and +∞ from 1 on."""
        low, high = self.level[0], self.level[-1]
        inner: FloatArray = np.interp(level, self.level, self.score)
        if not ((level < low) | (level > high)).any():
            return inner
        with np.errstate(divide="ignore"):
            below = self.score[0] + self.spread * np.log(np.clip(level, 0, low) / low)
            above = self.score[-1] - self.spread * np.log(np.clip(1 - level, 0, 1 - high) / (1 - high))
        return np.where(level < low, below, np.where(level > high, above, inner))

    def digest(self) -> str:
        """A hash that identifies the scale."""
        return hashlib.sha256(self.score.tobytes() + self.level.tobytes()).hexdigest()[:16]
