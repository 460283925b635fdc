"""Escalate by the difference of two quality estimates: the baseline of cascade routing (Dekoninck et al., 2410.10347).

Cascade routing chooses the next model by the estimated quality of each, minus a price for its cost: estimates are
*post hoc* for a model that has answered, *ex ante* for one that has not. With one weak and one strong route of constant
cost, its rule is: escalate where the ex-ante estimate of the strong route exceeds the post-hoc estimate of the weak one
by more than a price. The price is our threshold. Its theory leaves open how qualities are estimated; here it is one
logistic regression per route on features of Round 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gainroute.routing._logistic import chance, fit_logistic, logits, scaling
from gainroute.routing.router import Router
from gainroute.routing.types import CalibrationSet, FloatArray, RoundOne, Score

__all__ = ["QualityRouter", "QualityScore", "quality_features"]

_RIDGE = 1.0  # in samples: there are 2M + 4 coefficients per route


def quality_features(round_one: RoundOne) -> FloatArray:
    """How sure Round 1 is of its answer, (N, 2M + 3).

    The probability of the weak answer, its margin over the best other class, and the entropy, of the pooled posterior;
    the probability of that answer and the entropy of each local posterior.
    """
    answer = round_one.weak_prediction[:, None]
    posteriors = [round_one.pooled, *(p.astype(np.float64, copy=False) for p in round_one.local)]
    sure = [np.take_along_axis(p, answer, axis=1) for p in posteriors]
    entropy = [-np.einsum("nk,nk->n", p, np.log(np.maximum(p, 1e-12)))[:, None] for p in posteriors]
    others = round_one.pooled.copy()
    np.put_along_axis(others, answer, -np.inf, axis=1)
    return np.concatenate([*sure, sure[0] - others.max(axis=1, keepdims=True), *entropy], axis=1)


@dataclass(frozen=True, eq=False)
class QualityScore:
    """s = P(strong answer right | Round 1) − P(weak answer right | Round 1), both by logistic regression."""

    mean: FloatArray
    scale: FloatArray
    strong: FloatArray
    weak: FloatArray

    def __call__(self, round_one: RoundOne) -> FloatArray:
        """Score samples, (N,)."""
        z = (quality_features(round_one) - self.mean) / self.scale
        return chance(logits(z, self.strong)) - chance(logits(z, self.weak))


class QualityRouter(Router):
    """Escalate where the estimated quality of the strong route exceeds that of the weak one: s = q̂_strong − q̂_weak.

    It is the rule of cascade routing for two routes: both qualities are estimated from how sure Round 1 is, without
    regard to classes.

    Examples
    --------
    A strong route that is always right is worth a round wherever the weak one may be wrong:

    >>> import numpy as np
    >>> import gainroute as gr
    >>> local = np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4], [0.45, 0.55]] * 25)
    >>> labels = np.array([0, 1, 0, 0] * 25)
    >>> router = gr.QualityRouter(0.25, threshold="calibration").fit(local, labels, labels)
    >>> router.route(local[:4]).escalate.tolist()
    [False, False, False, True]
    """

    fitted_types = (QualityScore,)

    def fit_score(self, calibration: CalibrationSet) -> Score:
        """Fit both estimates to which answers were right."""
        at, labels = calibration.round_one, calibration.labels
        features = quality_features(at)
        mean, scale = scaling(features)
        z = (features - mean) / scale
        right = (calibration.strong_prediction == labels), (at.weak_prediction == labels)
        strong, weak = (fit_logistic(z, r.astype(np.int64), calibration.sample_weight, _RIDGE) for r in right)
        return QualityScore(mean, scale, strong, weak)
