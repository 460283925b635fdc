"""Regularised multinomial logistic regression by an inexact Newton method.

Minimises, over θ of shape (S, D),

    f(θ) = Σₙ wₙ [ log Σⱼ exp(θⱼ·zₙ) − θ_{yₙ}·zₙ ] + λ ‖θ − θ₀‖²_F .

With soft labels tₙ, which add up to one, Σⱼ t_{jn} θⱼ·zₙ takes the place of θ_{yₙ}·zₙ.

f is 2λ-strongly convex, so that ‖θ − θ*‖ ≤ ‖∇f‖/(2λ): the stopping rule bounds the distance to the one
optimum, and the result does not depend on the start, on the order of the classes or on that of the samples.

Each Newton system is solved by conjugate gradients on Hessian-vector products, preconditioned by the
Kronecker form H ≈ E[diag p − p pᵀ] ⊗ ZᵀWZ + 2λI, whose inverse costs two small eigendecompositions.
The inner solve needs one or two digits only and runs in single precision; gradient and objective,
which decide where the iteration ends, stay in double.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["minimise"]

Matrix = npt.NDArray[Any]

# ‖θ − θ*‖ at the end by default, unless rounding stops the descent earlier.
DISTANCE = 1e-11
MAX_STEPS = 200
MAX_INNER = 500


def _probabilities(logits: Matrix) -> tuple[Matrix, Matrix]:
    """Columnwise softmax of (S, N) logits, and its log-normaliser (N,)."""
    top = logits.max(axis=0)
    p = np.exp(logits - top)
    total = p.sum(axis=0)
    p /= total
    return p, np.log(total) + top


def _newton_direction(
    gradient: Matrix, p: Matrix, z: Matrix, weight: Matrix, lam: float, basis: tuple[Matrix, Matrix], tol: float
) -> Matrix:
    """Solve H d = −g to a relative residual of `tol`, in the precision of `z`."""
    eigenvalues_b, vectors_b = basis
    weighted_p = p * weight
    mass = weighted_p.sum(axis=1)
    a = (np.diag(mass) - weighted_p @ p.T) / max(float(weight.sum()), 1e-300)
    eigenvalues_a, vectors_a = np.linalg.eigh(a)
    denominator = np.maximum(eigenvalues_a, 0)[:, None] * eigenvalues_b[None, :] + 2 * lam

    def precondition(r: Matrix) -> Matrix:
        preconditioned: Matrix = vectors_a @ ((vectors_a.T @ r @ vectors_b) / denominator) @ vectors_b.T
        return preconditioned

    def hessian(v: Matrix) -> Matrix:
        t = v @ z
        t *= weighted_p
        t -= p * t.sum(axis=0)
        return t @ z.T + (2 * lam) * v

    # Scaled to unit norm, so that single precision does not run out of range near the optimum.
    scale = float(np.linalg.norm(gradient))
    residual = (-gradient / scale).astype(z.dtype)
    direction = np.zeros_like(residual)
    y = precondition(residual)
    search = y.copy()
    rho = float(np.vdot(residual, y))
    stop = tol**2 * rho
    for _ in range(MAX_INNER):
        image = hessian(search)
        curvature = float(np.vdot(search, image))
        if curvature <= 0:  # rounding; the true Hessian is positive definite
            break
        step = rho / curvature
        direction += step * search
        residual -= step * image
        y = precondition(residual)
        rho_next = float(np.vdot(residual, y))
        if rho_next <= stop:
            break
        search *= rho_next / rho
        search += y
        rho = rho_next
    return direction.astype(np.float64) * scale


def minimise(
    z: npt.NDArray[np.float64],
    target: npt.NDArray[np.int64],
    origin: npt.NDArray[np.float64],
    lam: float,
    weight: npt.NDArray[np.float64] | None = None,
    start: npt.NDArray[np.float64] | None = None,
    distance: float = DISTANCE,
    callback: Callable[[float], bool] | None = None,
    soft: npt.NDArray[np.float64] | None = None,
) -> npt.NDArray[np.float64]:
    """Find the one θ, (S, D), that minimises f.

    Features `z` (D, N) have one column per sample; `target` (N,) is its class, 0 … S−1; `origin` is θ₀, (S, D), the
    centre of the penalty and the default start. Another `start` changes the time, not the result. `distance` is the
    largest ‖θ − θ*‖ allowed. `callback` gets the objective after each step; a true result ends the iteration. `soft`
    labels, (S, N), take the place of `target`.
    """
    samples = np.arange(len(target))
    w = np.ones(len(target)) if weight is None else weight
    theta = (origin if start is None else start).copy()
    inner = z.astype(np.float32)
    inner_weight = w.astype(np.float32)
    values, vectors = np.linalg.eigh((z * w) @ z.T)
    basis = (np.maximum(values, 0).astype(np.float32), vectors.astype(np.float32))

    def objective(logits: Matrix, normaliser: Matrix, at: Matrix) -> float:
        own = logits[target, samples] if soft is None else np.einsum("sn,sn->n", soft, logits)
        nll = float(w @ (normaliser - own))
        return nll + lam * float(np.sum((at - origin) ** 2))

    logits = theta @ z
    p, normaliser = _probabilities(logits)
    value = objective(logits, normaliser, theta)
    first = previous = None
    for _ in range(MAX_STEPS):
        if soft is None:
            residual = p * w
            residual[target, samples] -= w
        else:
            residual = (p - soft) * w
        gradient = residual @ z.T + 2 * lam * (theta - origin)
        norm = float(np.linalg.norm(gradient))
        first = norm if first is None else first
        # Once a full Newton step no longer shrinks the gradient, rounding is all that is left.
        stalled = previous is not None and norm > 0.5 * previous and norm < 1e-6 * max(first, 1.0)
        if norm <= 2 * lam * distance or stalled:
            break
        previous = norm
        tol = min(0.1, max(0.003, float(np.sqrt(norm / first)) * 0.1))
        direction = _newton_direction(gradient, p.astype(np.float32), inner, inner_weight, lam, basis, tol)
        slope = float(np.vdot(gradient, direction))
        shift = direction @ z
        step = 1.0
        while True:
            candidate = theta + step * direction
            trial = logits + step * shift
            p, normaliser = _probabilities(trial)
            next_value = objective(trial, normaliser, candidate)
            # The slack admits steps whose gain is below the rounding of the sum.
            if next_value <= value + 1e-4 * step * slope + 1e-13 * abs(value) or step < 1e-8:
                break
            step /= 2
        theta, logits, value = candidate, trial, next_value
        if callback is not None and callback(value):
            break
    return theta
