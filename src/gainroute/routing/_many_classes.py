"""Calibration maps for many classes: a diagonal map, and a solver that stops early.

With K classes the Dirichlet map has K² + K parameters: with 500 classes far more than there are samples, and minutes of
work. The diagonal map softmax((t + dₖ) log pₖ + bₖ) has 2K + 1, and a product with its Hessian costs N·K operations. It
minimises −Σₙ log m[yₙ] + λ(‖d‖² + ‖b‖²) + (t − 1)²: strongly penalised, it is temperature scaling.

Both maps are linear in their parameters θ, and one Newton method serves them. It works in single precision unless the
features are double, and ends with a step that lowers the objective by less than `gap`: enough to compare maps by
cross-validation, or to leave out a fold. About a hundredth of that decrease is then left.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from gainroute._util.arrays import FloatArray, IntArray

__all__ = ["MANY", "fit_map"]

Matrix = npt.NDArray[Any]

MANY = 128  # classes, above which maps are chosen and refitted by this module
MAX_STEPS = 100
MAX_INNER = 100


class _Map(Protocol):
    """Logits that are linear in θ, and a quadratic penalty Σ ridge·(θ − origin)²/2."""

    origin: Matrix
    ridge: Any

    def logits(self, theta: Matrix) -> Matrix: ...

    def pull(self, residual: Matrix) -> Matrix: ...  # the adjoint of `logits`

    def preconditioner(self, curvature: Matrix) -> Callable[[Matrix], Matrix]: ...


class _Full:
    def __init__(self, z: Matrix, origin: Matrix, lam: float, weight: Matrix) -> None:
        self.z, self.ridge, self.origin = z, 2 * lam, origin.astype(z.dtype)
        values, self._vectors = np.linalg.eigh((z * weight) @ z.T)
        self._values, self._total = np.maximum(values, 0), weight.sum()

    def logits(self, theta: Matrix) -> Matrix:
        return np.asarray(theta @ self.z)

    def pull(self, residual: Matrix) -> Matrix:
        return np.asarray(residual @ self.z.T)

    def preconditioner(self, curvature: Matrix) -> Callable[[Matrix], Matrix]:
        # Kronecker form, as in _newton.py; among many classes, the products of two probabilities are negligible.
        scale = (curvature.sum(axis=1) / self._total)[:, None] * self._values + self.ridge
        return lambda r: ((r @ self._vectors) / scale) @ self._vectors.T


class _Diagonal:
    """θ = (t, d, b), of length 2S + 1; `z` are the logarithms of the S seen classes."""

    def __init__(self, z: Matrix, lam: float) -> None:
        self.z = z
        self.origin = np.eye(1, 2 * len(z) + 1, dtype=z.dtype)[0]
        self.ridge = 2 * np.where(self.origin > 0, 1.0, lam).astype(z.dtype)

    def logits(self, theta: Matrix) -> Matrix:
        slope, bias = theta[0] + theta[1 : len(self.z) + 1], theta[len(self.z) + 1 :]
        logits: Matrix = slope[:, None] * self.z
        logits += bias[:, None]
        return logits

    def pull(self, residual: Matrix) -> Matrix:
        slope = np.einsum("kn,kn->k", residual, self.z)
        return np.concatenate([[slope.sum()], slope, residual.sum(axis=1)]).astype(self.z.dtype)

    def preconditioner(self, curvature: Matrix) -> Callable[[Matrix], Matrix]:
        # A 2 × 2 block per class, and the temperature on its own.
        k, ridge = len(self.z), self.ridge[1]
        mixed = curvature * self.z
        aa, ab, bb = np.einsum("kn,kn->k", mixed, self.z) + ridge, mixed.sum(axis=1), curvature.sum(axis=1) + ridge
        determinant, first = aa * bb - ab * ab, aa.sum() + self.ridge[0]

        def apply(r: Matrix) -> Matrix:
            a, b = r[1 : k + 1], r[k + 1 :]
            parts = [r[:1] / first, (bb * a - ab * b) / determinant, (aa * b - ab * a) / determinant]
            return np.concatenate(parts).astype(r.dtype)

        return apply


def fit_map(
    z: Matrix,
    target: IntArray,
    seen: IntArray,
    lam: float,
    weight: FloatArray,
    start: FloatArray | None,
    gap: float,
    *,
    diagonal: bool,
    soft: FloatArray | None = None,
    origin: FloatArray | None = None,
) -> FloatArray:
    """Fit a map with penalty λ; returns W and b of the seen classes, (S, D).

    Parameters
    ----------
    z : (D, N)
        log(p + ε), and a row of ones: D = K + 1, or more for a map of several posteriors. Its precision is that of the
        fit.
    target : (N,)
        Index of each sample's class in `seen`.
    seen : (S,)
        Classes that have samples.
    lam
        λ > 0.
    weight : (N,)
        Weights of the samples.
    start : (S, D), optional
        A map of the same kind, fitted on almost the same samples.
    gap
        The fit ends with a step that lowers the objective by less than this.
    diagonal
        Whether the map is diagonal.
    soft : (S, N), optional
        Soft labels, which take the place of `target`.
    origin : (S, D), optional
        Where the penalty of a full map is 0, by default the identity.
    """
    w = weight.astype(z.dtype)
    labels = target if soft is None else soft.astype(z.dtype)
    if not diagonal:
        full = _Full(z, np.eye(len(z) - 1, len(z))[seen] if origin is None else origin, lam, w)
        return _minimise(full, labels, w, full.origin if start is None else start, gap).astype(np.float64)
    rows, classes = np.arange(len(seen)), len(z) - 1
    model = _Diagonal(np.ascontiguousarray(z[seen]), lam)
    begin = model.origin
    if start is not None:
        slope = start[rows, seen]
        t = (slope.sum() + 1 / lam) / (len(seen) + 1 / lam)  # at the optimum the d add up to (t − 1)/λ
        begin = np.concatenate([[t], slope - t, start[:, -1]])
    theta = _minimise(model, labels, w, begin, gap).astype(np.float64)
    found = np.zeros((len(seen), classes + 1))
    found[rows, seen] = theta[0] + theta[1 : len(seen) + 1]
    found[:, -1] = theta[len(seen) + 1 :]
    return found


def _minimise(model: _Map, labels: Matrix, weight: Matrix, start: Matrix, gap: float) -> Matrix:
    """Newton's method; `labels` are classes (N,), or soft (S, N)."""
    hard, samples = labels.ndim == 1, np.arange(len(weight))
    rounding = float(np.finfo(weight.dtype).eps)

    def state(at: Matrix) -> tuple[Matrix, float]:
        p = model.logits(at)
        own = (p[labels, samples] if hard else np.einsum("sn,sn->n", labels, p)).astype(np.float64)
        top = p.max(axis=0)
        p -= top
        np.exp(p, out=p)
        total = p.sum(axis=0)
        p /= total
        penalty = float((model.ridge * np.square(at - model.origin)).sum(dtype=np.float64)) / 2
        return p, float(weight @ (np.log(total) + top - own)) + penalty

    theta = start.astype(weight.dtype)
    p, value = state(theta)
    for _ in range(MAX_STEPS):
        weighted = p * weight
        if hard:
            residual = weighted.copy()
            residual[labels, samples] -= weight
        else:
            residual = weighted - labels * weight
        gradient = model.pull(residual) + model.ridge * (theta - model.origin)
        direction = _direction(model, gradient, p, weighted)
        slope, step = float(np.vdot(gradient, direction)), 1.0
        if -slope / 2 < max(gap, rounding * abs(value)):
            return theta + direction
        while True:
            candidate = theta + np.asarray(step, theta.dtype) * direction
            p, next_value = state(candidate)
            if next_value <= value + 1e-4 * step * slope + rounding * abs(value) or step < 1e-6:
                break
            step /= 2
        theta, value = candidate, next_value
    return theta


def _direction(model: _Map, gradient: Matrix, p: Matrix, weighted: Matrix) -> Matrix:
    """Solve H d = −g by preconditioned conjugate gradients, to a tenth of the residual."""
    precondition = model.preconditioner(weighted * (1 - p))
    residual, direction = -gradient, np.zeros_like(gradient)
    search = y = precondition(residual)
    rho = first = float(np.vdot(residual, y))
    for _ in range(MAX_INNER):
        image = model.logits(search)
        image *= weighted
        image -= p * image.sum(axis=0)
        product = model.pull(image) + model.ridge * search
        curvature = float(np.vdot(search, product))
        if curvature <= 0:  # rounding; the true Hessian is positive definite
            break
        step = np.asarray(rho / curvature, search.dtype)
        direction += step * search
        residual -= step * product
        y = precondition(residual)
        rho, previous = float(np.vdot(residual, y)), rho
        if rho <= 0.01 * first:
            break
        search = y + np.asarray(rho / previous, y.dtype) * search
    return direction
