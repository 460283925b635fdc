"""What the expected gain leaves unexplained: a ridge regression on six looks at Round 1.

The score takes the reliability of the strong route from the class alone. Among samples with the same calibrated
posterior the gain still depends on how sure the cheap answer is and on whether the parties agree. The correction is
fitted to out-of-fold scores, and used only if it explains gains that it was not fitted to.
"""

from __future__ import annotations

import numpy as np

from gainroute.routing.folds import folds_of, pays
from gainroute.routing.types import FloatArray, IntArray, RoundOne

__all__ = ["correction_of", "fit_correction"]

RIDGE = 0.1  # per sample, on standardised looks
FOLDS = 10
FLOOR = 1e-6


def _looks(round_one: RoundOne, value: FloatArray) -> FloatArray:
    """Six numbers per sample, (N, 6): a constant, and five that say how sure Round 1 is."""
    m = round_one.calibrated
    first, second = np.partition(m, -2, axis=1)[:, :-3:-1].T
    logs = np.log(np.maximum(m, 1e-12))
    votes = round_one.local[..., : m.shape[1]].argmax(axis=2) == round_one.weak_prediction
    return np.column_stack(
        [
            np.ones(len(m)),
            m @ value,
            np.log(first + FLOOR),
            np.log(second + FLOOR),
            -np.einsum("nk,nk->n", m, logs),
            votes.mean(axis=0),
        ]
    )


def correction_of(fitted: FloatArray, round_one: RoundOne, value: FloatArray) -> FloatArray:
    """What to add to the score of each sample, (N,); `fitted` is from `fit_correction`, `value` is (K,)."""
    centre, scale, slope = fitted
    corrected: FloatArray = ((_looks(round_one, value) - centre) / scale) @ slope
    return corrected


def fit_correction(
    round_one: RoundOne, value: FloatArray, unexplained: FloatArray, weight: FloatArray
) -> FloatArray | None:
    """Fit the `unexplained` part of the gain, (N,).

    Returns centre, scale and slope, (3, 6), or None if that does not pay. Round 1 of a sample must come from a fit
    without it.
    """
    looks = _looks(round_one, value)
    centre = np.average(looks, axis=0, weights=weight)
    scale = np.sqrt(np.average((looks - centre) ** 2, axis=0, weights=weight))
    centre[0], scale[scale == 0] = 0, 1
    x, n = (looks - centre) / scale, len(looks)
    if n < FOLDS:
        return None
    better: FloatArray = np.empty(n)
    for held_out in folds_of(n, FOLDS):
        kept = np.setdiff1d(np.arange(n), held_out)
        found = x[held_out] @ _slope(x, unexplained, weight, kept)
        better[held_out] = unexplained[held_out] ** 2 - (unexplained[held_out] - found) ** 2
    if not pays(better, weight):
        return None
    return np.stack([centre, scale, _slope(x, unexplained, weight, np.arange(n))])


def _slope(x: FloatArray, y: FloatArray, weight: FloatArray, rows: IntArray) -> FloatArray:
    x, y, weight = x[rows], y[rows], weight[rows]
    normal = (x * weight[:, None]).T @ x + RIDGE * weight.sum() * np.eye(x.shape[1])
    slope: FloatArray = np.linalg.solve(normal, (x * weight[:, None]).T @ y)
    return slope
