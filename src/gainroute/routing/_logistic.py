"""Logistic regression with two outcomes on a few dozen features of Round 1, by Newton's method.

`_newton` is for many classes and avoids the Hessian. Here that has one row per feature, and features that nearly
repeat each other need an exact solve.
"""

from __future__ import annotations

import numpy as np

from gainroute._util.blas import one_thread
from gainroute.routing.types import FloatArray, IntArray

__all__ = ["chance", "fit_logistic", "logits", "scaling"]

_STEPS = 50
_DECREMENT = 1e-10  # of the objective, by the last step


def scaling(features: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Mean and deviation of each feature, (D,); a constant one is shifted only."""
    scale = features.std(axis=0)
    return features.mean(axis=0), np.where(scale < 1e-12, 1.0, scale)


def fit_logistic(z: FloatArray, target: IntArray, weight: FloatArray, lam: float) -> FloatArray:
    """Coefficients (D + 1,), the intercept last, of the log-odds that `target` is 1.

    The ridge λ/2 ‖θ − θ₀‖² draws them towards the overall odds θ₀, with half a sample of either kind added.
    """
    ones = float(weight @ target)
    origin = np.zeros(z.shape[1] + 1)
    origin[-1] = np.log((ones + 0.5) / (weight.sum() - ones + 0.5))
    x = np.column_stack([z, np.ones(len(z))])

    def objective(theta: FloatArray) -> float:
        at = x @ theta
        return float(weight @ (np.logaddexp(0, at) - target * at)) + lam / 2 * float(np.sum((theta - origin) ** 2))

    theta, value = origin, objective(origin)
    with one_thread():
        for _ in range(_STEPS):
            p = chance(x @ theta)
            gradient = x.T @ (weight * (p - target)) + lam * (theta - origin)
            hessian = (x.T * (weight * p * (1 - p))) @ x + lam * np.eye(len(theta))
            direction = -np.linalg.solve(hessian, gradient)
            decrement = -float(gradient @ direction)
            if decrement <= _DECREMENT:
                break
            step, candidate = 1.0, objective(theta + direction)
            while candidate > value - 1e-4 * step * decrement and step > 1e-8:
                step /= 2
                candidate = objective(theta + step * direction)
            theta, value = theta + step * direction, candidate
    return theta


def logits(z: FloatArray, coefficients: FloatArray) -> FloatArray:
    """Log-odds (N,) of standardised features (N, D)."""
    found: FloatArray = z @ coefficients[:-1] + coefficients[-1]
    return found


def chance(log_odds: FloatArray) -> FloatArray:
    """The probability 1 / (1 + exp(−x)), without overflow."""
    found: FloatArray = 0.5 * (1 + np.tanh(log_odds / 2))
    return found
