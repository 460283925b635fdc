"""Round 1: (M, N, K) local posteriors become one (N, K) pooled posterior, by their mean or log-linearly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from gainroute._util.blas import one_thread
from gainroute._util.registry import Registry
from gainroute.routing._many_classes import MANY
from gainroute.routing.calibrate import softmax, unseen_classes
from gainroute.routing.inputs import as_local_posteriors, as_present, as_weights, check_positive, check_posteriors
from gainroute.routing.labels import as_labels
from gainroute.routing.types import ArrayLike, BoolArray, FloatArray, IntArray, Pool, Stage

__all__ = [
    "POOLS",
    "LogLinearPool",
    "LogLinearPooling",
    "MeanPooling",
    "fit_log_linear",
    "mean_over_parties",
    "pool_mean",
    "solve_log_linear",
]

POOLS: Registry[type[Stage]] = Registry(
    "gainroute.pools",
    "pooling",
    {
        "mean": "gainroute.routing.pool:MeanPooling",
        "log-linear": "gainroute.routing.pool:LogLinearPooling",
        "taught": "gainroute.routing.taught:TaughtPooling",
    },
)

# ‖θ − θ*‖ at the end, unless rounding stops the descent earlier.
DISTANCE = 1e-9
MAX_STEPS = 100
# Decrease of the objective per sample by the last step of a fold's fit; what it leaves is far smaller.
FOLD_GAP = 1e-5
# Up to this many values, all parties are pooled at once, which halves the time of a single sample; above it, one by
# one, which stays in the processor's cache.
SMALL = 2**14


def pool_mean(local_posteriors: Any, present: ArrayLike | None = None) -> FloatArray:
    """Average the parties' posteriors (eq. 1): p̄ = (1/M) Σᵢ pᵢ.

    Parameters
    ----------
    local_posteriors : (M, N, K), list of M arrays (N, K), or (N, K)
    present : (M, N) bool, optional
        Who answered. A sample is averaged over the parties present; one that no party has becomes a row of NaN.

    Returns
    -------
    (N, K)

    Examples
    --------
    >>> pool_mean([[[0.9, 0.1]], [[0.5, 0.5]]])
    array([[0.7, 0.3]])
    """
    local = as_local_posteriors(local_posteriors)
    mask = as_present(present, local.shape[:2])
    check_posteriors(local, mask)
    return mean_over_parties(local, mask)


def mean_over_parties(local: FloatArray, present: BoolArray | None = None) -> FloatArray:
    """`pool_mean` on arrays already checked, always in double precision."""
    if present is None:
        total: FloatArray = np.add.reduce(local, axis=0, dtype=np.float64)
        total /= len(local)
        return total
    weight = present[..., None]
    total = np.where(weight, local, 0.0).sum(axis=0, dtype=np.float64)
    with np.errstate(invalid="ignore"):
        pooled: FloatArray = total / weight.sum(axis=0)
    return pooled


@dataclass(frozen=True, eq=False)
class LogLinearPool:
    """softmax(Σᵢ wᵢ log(pᵢ + ε) + b): each party is weighted by how informative it was on calibration data.

    Attributes
    ----------
    weight : (M,)
        w. If parties err independently the weights add up to more than one: agreement is evidence.
    bias : (K,)
        b.
    eps
        ε, the floor under the logarithm.
    """

    weight: FloatArray
    bias: FloatArray
    eps: float

    def __call__(self, local: FloatArray, present: BoolArray | None = None) -> FloatArray:
        """Pool checked posteriors, (M, N, K) → (N, K); a sample that lacks a party gets the mean of the others."""
        if present is not None and not present.all():
            lacking = ~present.all(axis=0)
            pooled = np.empty(local.shape[1:])
            pooled[lacking] = mean_over_parties(local[:, lacking], present[:, lacking])
            pooled[~lacking] = self(local[:, ~lacking])
            return pooled
        if local.size <= SMALL:
            logs = np.add(local, self.eps, dtype=np.float64)
            np.log(logs, out=logs)
            logits = (self.weight @ logs.reshape(len(logs), -1)).reshape(local.shape[1:])
            logits += self.bias
            return softmax(logits)
        logits = np.tile(self.bias, (local.shape[1], 1))
        for weight, posterior in zip(self.weight, local, strict=True):
            term = np.add(posterior, self.eps, dtype=np.float64)
            np.log(term, out=term)
            term *= weight
            logits += term
        return softmax(logits)

    def from_log_odds(self, total: FloatArray) -> FloatArray:
        """Pooled posteriors (N, K) from the sum Σᵢ wᵢ log((pᵢ[k] + ε) / (pᵢ[K] + ε)) for k < K, (N, K − 1)."""
        logits = np.tile(self.bias, (len(total), 1))
        logits[:, :-1] += total
        return softmax(logits)


@dataclass(frozen=True)
class MeanPooling:
    """The mean over the parties (eq. 1)."""

    def fit(self, local: FloatArray, labels: IntArray, weight: FloatArray) -> Pool:  # noqa: ARG002
        """Return the mean: there is nothing to fit."""
        return mean_over_parties


@dataclass(frozen=True)
class LogLinearPooling:
    """The log-linear pool, see `fit_log_linear`; λ and ε are numbers > 0.

    `first_alone` draws the weights towards the first posterior alone instead of the geometric mean of all.
    """

    lam: float = 1.0
    eps: float = 1e-6
    first_alone: bool = False

    def fit(self, local: FloatArray, labels: IntArray, weight: FloatArray) -> LogLinearPool:
        """Fit on local posteriors (M, N, K)."""
        return solve_log_linear(local, labels, weight, self.lam, self.eps, self._origin(local))

    def refit(self, fitted: LogLinearPool, local: FloatArray, labels: IntArray, weight: FloatArray) -> LogLinearPool:
        """Fit on almost the same samples; with many classes from `fitted`, and only as far as a fold needs."""
        if local.shape[2] <= MANY:
            return self.fit(local, labels, weight)
        return solve_log_linear(local, labels, weight, self.lam, self.eps, self._origin(local), fitted)

    def _origin(self, local: FloatArray) -> FloatArray | None:
        return np.eye(len(local))[0] if self.first_alone else None


def fit_log_linear(
    local_posteriors: Any,
    labels: ArrayLike,
    lam: float = 1.0,
    eps: float = 1e-6,
    sample_weight: ArrayLike | None = None,
) -> LogLinearPool:
    """Fit the log-linear pool: maximum likelihood, drawn towards the geometric mean.

    Minimises −Σₙ log p(y⁽ⁿ⁾) + λ(‖w − 1/M‖² + ‖b‖²). These are M + K parameters: a few hundred samples are enough.

    Parameters
    ----------
    local_posteriors : (M, N, K), list of M arrays (N, K), or (N, K)
    labels : (N,)
        True classes, 0 … K−1.
    lam, eps
        λ > 0, and ε > 0, the floor under the logarithm.
    sample_weight : (N,), optional

    Examples
    --------
    The first party knows the label three times out of four, the second guesses:

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> labels = rng.integers(2, size=1000)
    >>> knows, guesses = np.where(rng.random(1000) < 0.75, labels, 1 - labels), rng.integers(2, size=1000)
    >>> said = np.array([[0.8, 0.2], [0.2, 0.8]])
    >>> weight = fit_log_linear([said[knows], said[guesses]], labels).weight
    >>> bool(weight[0] > 10 * abs(weight[1]))
    True
    """
    local = as_local_posteriors(local_posteriors)
    check_posteriors(local)
    y = as_labels(labels, classes=local.shape[2], length=local.shape[1])
    weight = as_weights(sample_weight, len(y))
    return solve_log_linear(local, y, weight, check_positive(lam, "lam"), check_positive(eps, "eps"))


def solve_log_linear(
    posteriors: FloatArray,
    y: IntArray,
    weight: FloatArray,
    lam: float,
    eps: float,
    origin: FloatArray | None = None,
    near: LogLinearPool | None = None,
) -> LogLinearPool:
    """`fit_log_linear` on checked arrays, with the weights drawn towards `origin` (the geometric mean by default).

    A class without a sample keeps the bias 0. From a pool `near` the optimum the fit runs in single precision, and ends
    with a step that lowers the objective by less than `FOLD_GAP` per sample.
    """
    used = weight > 0
    y, weight = y[used], weight[used]
    gap = 0.0 if near is None else FOLD_GAP * float(weight.sum())
    logs = np.add(
        posteriors if used.all() else posteriors[:, used],
        eps,
        dtype=np.float64 if near is None else np.float32,
        order="C",
    )
    np.log(logs, out=logs)
    parties, _, classes = logs.shape
    unseen = parties + unseen_classes(y, classes, weight)
    towards = np.full(parties, 1 / parties) if origin is None else origin
    theta = start = np.concatenate([towards, np.zeros(classes)])
    if near is not None:
        theta = np.concatenate([near.weight, near.bias])
        theta[unseen] = 0
    with one_thread():
        value, p = _loss(theta, start, logs, y, weight, lam)
        for _ in range(MAX_STEPS):
            gradient, hessian = _derivatives(theta, start, p, logs, y, weight, lam)
            gradient[unseen] = 0
            hessian[unseen], hessian[:, unseen], hessian[unseen, unseen] = 0, 0, 1
            if np.linalg.norm(gradient) <= 2 * lam * DISTANCE:
                break
            direction = -np.linalg.solve(hessian, gradient)
            slope, step = float(gradient @ direction), 1.0
            if -slope / 2 < gap:
                theta = theta + direction
                break
            while True:
                candidate = theta + step * direction
                next_value, p = _loss(candidate, start, logs, y, weight, lam)
                # The slack admits steps whose gain is below the rounding of the sum.
                if next_value <= value + 1e-4 * step * slope + 1e-13 * abs(value) or step < 1e-8:
                    break
                step /= 2
            stalled = value - next_value <= 1e-14 * abs(value)
            theta, value = candidate, next_value
            if stalled:
                break
    return LogLinearPool(weight=theta[:parties].copy(), bias=theta[parties:].copy(), eps=float(eps))


def _loss(
    theta: FloatArray, start: FloatArray, logs: Any, y: IntArray, weight: FloatArray, lam: float
) -> tuple[float, Any]:
    """Compute the objective, and the pooled posteriors (N, K), in the precision of `logs`."""
    at = theta.astype(logs.dtype)
    logits = (at[: len(logs)] @ logs.reshape(len(logs), -1)).reshape(logs.shape[1:])
    logits += at[len(logs) :]
    p = softmax(logits)
    likelihood = np.log(np.maximum(p[np.arange(len(y)), y], 1e-37, dtype=np.float64))
    return float(-weight @ likelihood + lam * np.sum((theta - start) ** 2)), p


def _derivatives(
    theta: FloatArray, start: FloatArray, p: Any, logs: Any, y: IntArray, weight: FloatArray, lam: float
) -> tuple[FloatArray, FloatArray]:
    """Compute gradient and Hessian in (w, b)."""
    parties, _, classes = logs.shape
    flat = logs.reshape(parties, -1)
    weighted = p * weight.astype(p.dtype)[:, None]
    hessian = np.empty((parties + classes, parties + classes))
    hessian[parties:, parties:] = np.diag(weighted.sum(axis=0)) - weighted.T @ p
    mean = np.empty((parties, len(y)), dtype=p.dtype)  # of each party's log-posterior, under p, weighted
    for i in range(parties):
        scaled = weighted * logs[i]
        mean[i] = scaled.sum(axis=1)
        hessian[i, :parties] = flat @ scaled.ravel()
        hessian[i, parties:] = hessian[parties:, i] = scaled.sum(axis=0) - mean[i] @ p
    hessian[:parties, :parties] -= (mean / weight) @ mean.T
    hessian[np.diag_indices_from(hessian)] += 2 * lam
    residual = weighted
    residual[np.arange(len(y)), y] -= weight
    gradient = np.concatenate([flat @ residual.ravel(), residual.sum(axis=0)]).astype(np.float64)
    return gradient + 2 * lam * (theta - start), hessian
