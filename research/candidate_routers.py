"""Routers that were compared with the default; kept so that the comparison can be repeated, see docs/decisions.

Each changes one part of the expected-gain router: the pool, or the estimate of the strong route's accuracy. The library
offers none of them, because none improved enough on the default.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import expit, logit

from gainroute.routing import _newton
from gainroute.routing.calibrate import folds_of, softmax
from gainroute.routing.pool import LogLinearPool, mean_over_parties, solve_log_linear
from gainroute.routing.reliability import estimate_confusion
from gainroute.routing.routers import ExpectedGainRouter
from gainroute.routing.score import ExpectedGainScore
from gainroute.routing.types import BoolArray, CalibrationSet, FloatArray, IntArray, Pool, RoundOne, Score

__all__ = [
    "AllPartyRouter",
    "CorrectedGainRouter",
    "LookRouter",
    "PartyClassRouter",
]

EPS = 1e-6
INNER_FOLDS = 3
MAP_LAMS = (1000.0, 300.0, 100.0, 30.0, 10.0, 3.0)  # the strongest first: it is solved fastest, and warms the next
CLASS_LAMS = (100.0, 10.0, 3.0, 1.0)


def _logs(local: FloatArray) -> FloatArray:
    return np.log(np.add(local, EPS, dtype=np.float64))


def _log_linear(local: FloatArray, labels: IntArray, weight: FloatArray) -> LogLinearPool:
    return solve_log_linear(local, labels, weight, 1.0, EPS)


def _loss(posterior: FloatArray, labels: IntArray, weight: FloatArray) -> float:
    likely = posterior[np.arange(len(labels)), labels]
    return float(-weight @ np.log(np.maximum(likely, 1e-300)))


# ---- one map from all parties' log-posteriors --------------------------------------------------------


@dataclass(frozen=True, eq=False)
class AllPartyMap:
    """softmax(Σᵢ Wᵢ log(pᵢ + ε) + b), the rows of (W₁ … W_M, b) in `theta` (K, M·K + 1)."""

    theta: FloatArray

    def __call__(self, local: FloatArray, present: BoolArray | None = None) -> FloatArray:
        """Map (M, N, K) → (N, K); where a party is absent, the mean of those present."""
        if present is not None and not present.all():
            return mean_over_parties(local, present)
        return softmax(_features(local).T @ self.theta.T)


def _features(local: FloatArray) -> FloatArray:
    return np.vstack([*(log.T for log in _logs(local)), np.ones(local.shape[1])])


class AllPartyRouter(ExpectedGainRouter):
    """All-party Dirichlet calibration: W₁ … W_M and b drawn towards the log-linear pool, λ by cross-validation."""

    def fit_pool(self, local: FloatArray, labels: IntArray, weight: FloatArray) -> Pool:
        """Choose λ on inner folds, then fit on everything."""
        n = len(labels)
        loss = np.zeros(len(MAP_LAMS))
        for out in folds_of(n, INNER_FOLDS):
            kept = np.setdiff1d(np.arange(n), out)
            path = self._path(local[:, kept], labels[kept], weight[kept], MAP_LAMS)
            loss += [_loss(found(local[:, out]), labels[out], weight[out]) for found in path]
        return self._path(local, labels, weight, MAP_LAMS[: int(loss.argmin()) + 1])[-1]

    @staticmethod
    def _path(local: FloatArray, labels: IntArray, weight: FloatArray, lams: tuple[float, ...]) -> list[AllPartyMap]:
        pool, classes = _log_linear(local, labels, weight), local.shape[2]
        origin = np.hstack([*(w * np.eye(classes) for w in pool.weight), pool.bias[:, None]])
        features = np.ascontiguousarray(_features(local))
        theta, path = None, []
        for lam in lams:
            theta = _newton.minimise(features, labels, origin, lam, weight, theta)
            path.append(AllPartyMap(theta))
        return path


# ---- one weight per party and class ------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class PartyClassPool:
    """softmaxₖ(Σᵢ wᵢₖ log(pᵢ[k] + ε) + b[k]); `weight` (M, K), `bias` (K,)."""

    weight: FloatArray
    bias: FloatArray

    def __call__(self, local: FloatArray, present: BoolArray | None = None) -> FloatArray:
        """Pool (M, N, K) into (N, K); where a party is absent, the mean of those present."""
        if present is not None and not present.all():
            return mean_over_parties(local, present)
        return softmax(np.einsum("mk,mnk->nk", self.weight, _logs(local)) + self.bias)


class PartyClassRouter(ExpectedGainRouter):
    """One weight per party and class, shrunk towards one weight per party; cross-validation sets the strength."""

    def fit_pool(self, local: FloatArray, labels: IntArray, weight: FloatArray) -> Pool:
        """Choose the strength on inner folds, then fit on everything."""
        n = len(labels)
        loss = np.zeros(len(CLASS_LAMS))
        for out in folds_of(n, INNER_FOLDS):
            kept = np.setdiff1d(np.arange(n), out)
            for i, lam in enumerate(CLASS_LAMS):
                found = _party_class(local[:, kept], labels[kept], weight[kept], lam)
                loss[i] += _loss(found(local[:, out]), labels[out], weight[out])
        return _party_class(local, labels, weight, CLASS_LAMS[int(loss.argmin())])


def _party_class(local: FloatArray, labels: IntArray, weight: FloatArray, lam: float) -> PartyClassPool:
    """Newton's method with the whole Hessian: (M + 1)·K parameters."""
    pool, (m, n, k) = _log_linear(local, labels, weight), local.shape
    logs = np.concatenate([_logs(local), np.ones((1, n, k))])
    theta = start = np.concatenate([np.repeat(pool.weight[:, None], k, axis=1), pool.bias[None]])

    def evaluate(at: FloatArray) -> tuple[float, FloatArray]:
        p = softmax(np.einsum("mk,mnk->nk", at, logs))
        return _loss(p, labels, weight) + lam * float(np.sum((at - start) ** 2)), p

    value, p = evaluate(theta)
    for _ in range(50):
        residual = p * weight[:, None]
        residual[np.arange(n), labels] -= weight
        gradient = np.einsum("nk,mnk->mk", residual, logs) + 2 * lam * (theta - start)
        direction = -np.linalg.solve(_hessian(p, logs, weight, lam), gradient.ravel()).reshape(theta.shape)
        slope, step = float(np.sum(gradient * direction)), 1.0
        while True:
            trial, p = evaluate(theta + step * direction)
            if trial <= value + 1e-4 * step * slope + 1e-13 * abs(value) or step < 1e-8:
                break
            step /= 2
        theta, done, value = theta + step * direction, value - trial <= 1e-10 * abs(value), trial
        if done:
            break
    return PartyClassPool(theta[:m], theta[m])


def _hessian(p: FloatArray, logs: FloatArray, weight: FloatArray, lam: float) -> FloatArray:
    parts, k = len(logs), p.shape[1]
    scaled = p * logs
    hessian = np.empty((parts * k, parts * k))
    for i in range(parts):
        weighted = scaled[i] * weight[:, None]
        for j in range(parts):
            block = -weighted.T @ scaled[j]
            block[np.diag_indices(k)] += (weighted * logs[j]).sum(axis=0)
            hessian[i * k : (i + 1) * k, j * k : (j + 1) * k] = block
    hessian[np.diag_indices_from(hessian)] += 2 * lam
    return hessian


# ---- what the strong route is worth ------------------------------------------------------------------


def _look(round_one: RoundOne, reliability: FloatArray) -> FloatArray:
    """What Round 1 looked like, (N, 6): the classwise estimate first, then how sure and how agreed the parties were."""
    m = round_one.calibrated
    ranked = np.sort(m, axis=1)
    entropy = -(m * np.log(m + 1e-12)).sum(axis=1)
    agree = (round_one.local.argmax(axis=2) == round_one.weak_prediction).mean(axis=0)
    classwise = logit(np.clip(m @ reliability, 1e-3, 1 - 1e-3))
    sure, second = np.log(ranked[:, -1]), np.log(ranked[:, -2] + EPS)
    return np.column_stack([classwise, np.ones(len(m)), sure, second, entropy, agree])


@dataclass(frozen=True, eq=False)
class _LookScore:
    reliability: FloatArray
    slope: FloatArray
    centre: FloatArray
    scale: FloatArray
    offset: bool

    def __call__(self, round_one: RoundOne) -> FloatArray:
        m = round_one.calibrated
        kept = np.take_along_axis(m, round_one.weak_prediction[:, None], axis=1)[:, 0]
        look = (_look(round_one, self.reliability) - self.centre) / self.scale
        worth: FloatArray = expit(look @ self.slope)
        if self.offset:
            worth = m @ self.reliability + look @ self.slope
        return worth - kept


def _standard(look: FloatArray) -> tuple[FloatArray, FloatArray]:
    centre, scale = look.mean(axis=0), look.std(axis=0)
    centre[:2], scale[:2] = 0, 1  # the classwise estimate keeps its scale, the constant its one
    return centre, np.where(scale > 0, scale, 1)


class LookRouter(ExpectedGainRouter):
    """P(strong right | class, look): a logistic model drawn towards the classwise reliability, λ = 10."""

    def fit_score(self, calibration: CalibrationSet) -> Score:
        """Fit by Newton's method; the classwise estimate has slope 1 and the rest 0 before any data."""
        at, weight = calibration.round_one, calibration.sample_weight
        k = at.calibrated.shape[1]
        confusion = estimate_confusion(calibration.labels, calibration.strong_prediction, k, weight, self.shrinkage)
        reliability = np.diagonal(confusion).copy()
        look = _look(at, reliability)
        centre, scale = _standard(look)
        x, target = (look - centre) / scale, (calibration.strong_prediction == calibration.labels).astype(np.float64)
        origin = np.eye(x.shape[1])[0]
        slope = origin.copy()
        for _ in range(30):
            p = expit(x @ slope)
            gradient = x.T @ (weight * (p - target)) + 20 * (slope - origin)
            step = np.linalg.solve((x * (weight * p * (1 - p))[:, None]).T @ x + 20 * np.eye(len(slope)), gradient)
            slope -= step
            if np.abs(step).max() < 1e-9:
                break
        return _LookScore(reliability, slope, centre, scale, offset=False)


class CorrectedGainRouter(ExpectedGainRouter):
    """The analytical score plus a ridge regression of what is left of the realised gain, drawn towards none."""

    def fit_score(self, calibration: CalibrationSet) -> Score:
        """Fit the correction with a penalty worth a tenth of the samples."""
        base = super().fit_score(calibration)
        assert isinstance(base, ExpectedGainScore)  # noqa: S101 (fit_score returns nothing else)
        at, weight = calibration.round_one, calibration.sample_weight
        look = _look(at, base.value)
        centre, scale = _standard(look)
        x = (look - centre) / scale
        left = calibration.gain - base(at)
        ridge = 0.1 * weight.sum() * np.eye(x.shape[1])
        slope = np.linalg.solve((x * weight[:, None]).T @ x + ridge, x.T @ (weight * left))
        return _LookScore(base.value, slope, centre, scale, offset=True)
