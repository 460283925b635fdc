"""Two-stage learning to defer: both routes are fixed, and only the wish to defer is learned (Mao et al., NeurIPS 2023).

The surrogate loss of a rejector r is, per sample,

    1[weak answer right] · log(1 + exp(r)) + 1[strong answer right] · log(1 + exp(−r)) ,

their multinomial logistic loss for one predictor and one expert whose cost is its error. It is consistent: the r that
minimises its expectation is log P(strong right | x) / P(weak right | x), which is above zero exactly where deferring is
right more often. Here x is what the server knows after Round 1, and r is linear in features of it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gainroute.routing._logistic import fit_logistic, logits, scaling
from gainroute.routing.learned_gain import gain_features
from gainroute.routing.quality import quality_features
from gainroute.routing.router import Router
from gainroute.routing.types import BoolArray, CalibrationSet, FloatArray, IntArray, RoundOne, Score

__all__ = ["TwoStageDeferRouter", "TwoStageDeferScore"]

_LAMS = (1.0, 10.0, 100.0)
_HELD_OUT = 5  # every fifth sample chooses λ


def _features(round_one: RoundOne) -> FloatArray:
    return np.concatenate([gain_features(round_one), quality_features(round_one)], axis=1)


@dataclass(frozen=True, eq=False)
class TwoStageDeferScore:
    """r(x), the log-odds of deferring, on standardised features."""

    mean: FloatArray
    scale: FloatArray
    coefficients: FloatArray

    def __call__(self, round_one: RoundOne) -> FloatArray:
        """Score samples, (N,)."""
        return logits((_features(round_one) - self.mean) / self.scale, self.coefficients)


class TwoStageDeferRouter(Router):
    """Learn after the fact where to defer: s = r(x), fitted by a consistent two-stage surrogate loss.

    In contrast to `DeferRouter`, Round 1 is not trained for it. The ridge of r is chosen on a fifth of the calibration
    samples. `threshold=0.0` defers by the sign of r, as the method does where there is no budget.
    """

    fitted_types = (TwoStageDeferScore,)

    def fit_score(self, calibration: CalibrationSet) -> Score:
        """Fit r on what is known after Round 1."""
        at, labels, weight = calibration.round_one, calibration.labels, calibration.sample_weight
        features = _features(at)
        mean, scale = scaling(features)
        z = (features - mean) / scale
        right = (at.weak_prediction == labels), (calibration.strong_prediction == labels)
        rows = np.random.default_rng(self.seed).permutation(len(labels))
        held_out, kept = rows[::_HELD_OUT], np.delete(rows, np.s_[::_HELD_OUT])
        if not len(kept):
            kept = rows

        def fit(rows: IntArray, lam: float) -> FloatArray:
            # A sample counts once for each route that is right: not at all, or twice.
            parts = [rows[route[rows]] for route in right]
            target = np.repeat([0, 1], [len(part) for part in parts])
            both = np.concatenate(parts)
            return fit_logistic(z[both], target, weight[both], lam)

        def loss(lam: float) -> float:
            r = logits(z[held_out], fit(kept, lam))
            return _surrogate(r, [route[held_out] for route in right], weight[held_out])

        return TwoStageDeferScore(mean, scale, fit(rows, min(_LAMS, key=loss)))


def _surrogate(r: FloatArray, right: list[BoolArray], weight: FloatArray) -> float:
    weak, strong = right
    return float(weight @ (weak * np.logaddexp(0, r) + strong * np.logaddexp(0, -r)))
