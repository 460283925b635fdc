"""Maps of Round 1 that are drawn towards another map: of every party, or fitted to other samples than before.

A map softmax(θ z) is linear in the logs z of what it reads. Its penalty is λ‖θ − θ₀‖²: a strong one leaves the map θ₀.
Fits stop early, in single precision, as those of `gainroute.routing._many_classes`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from gainroute._util.arrays import Float32Array
from gainroute.routing._dirichlet import FOLD_GAP, GAP, LAM_GRID, choice_folds, label_loss, mapped, solve_seen
from gainroute.routing._many_classes import fit_map
from gainroute.routing.types import FloatArray, IntArray

__all__ = ["AllPartyMap", "FittedMap", "MapFit", "logs_of", "logs_of_parties"]


@dataclass(frozen=True, eq=False)
class AllPartyMap:
    """softmax(Σᵢ Vᵢ log(pᵢ + ε) + c): whom to believe about which class.

    Attributes
    ----------
    weight : (M, K, K)
        Vᵢ.
    bias : (K,)
        c.
    lam, eps
        λ of the fit, and ε.
    unseen : (U,)
        Classes without a sample, whose mass stays that of the log-linear pool.
    """

    weight: FloatArray
    bias: FloatArray
    lam: float
    eps: float
    unseen: IntArray

    def __call__(self, local: FloatArray, pooled: FloatArray) -> FloatArray:
        """Map local posteriors (M, N, K), whose log-linear pool is `pooled` (N, K), to (N, K)."""
        logits = np.tile(self.bias, (local.shape[1], 1))
        for weight, posterior in zip(self.weight, local, strict=True):
            logits += np.log(np.add(posterior, self.eps, dtype=np.float64)) @ weight.T
        return mapped(logits, pooled, self.unseen)


def logs_of_parties(local: FloatArray, eps: float) -> Float32Array:
    """What a map of every party reads: log(pᵢ + ε) one below the other, and a row of ones, (M·K + 1, N)."""
    m, n, k = local.shape
    return _with_ones(local.transpose(0, 2, 1).reshape(m * k, n), eps)


def logs_of(pooled: FloatArray, eps: float) -> Float32Array:
    """What a Dirichlet map of the pool (N, K) reads, (K + 1, N)."""
    return _with_ones(pooled.T, eps)


def _with_ones(values: FloatArray, eps: float) -> Float32Array:
    logs = np.ones((len(values) + 1, values.shape[1]), dtype=np.float32)
    np.log(values + eps, out=logs[:-1], casting="same_kind")
    return logs


@dataclass(frozen=True, eq=False)
class FittedMap:
    """θ (K, D), its λ, and the classes without a sample, for which θ is θ₀."""

    theta: FloatArray
    lam: float
    unseen: IntArray


@dataclass(frozen=True, eq=False)
class MapFit:
    """Samples and θ₀ of a fit.

    Attributes
    ----------
    logs : (D, N)
        What the map reads.
    pooled : (N, K)
        From which classes without a sample keep their mass.
    labels, weight, soft
        (N,), (N,), and soft labels (N, K) that take the place of the labels, or None.
    origin : (K, D)
        θ₀.
    """

    logs: Float32Array
    pooled: FloatArray
    labels: IntArray
    weight: FloatArray
    soft: FloatArray | None
    origin: FloatArray

    def choose(self, judged: int, *, early: bool) -> tuple[float, FittedMap]:
        """As `gainroute.routing._dirichlet.choose_dirichlet` over λ: losses are comparable."""
        parts = choice_folds(len(self.labels), judged, early=early)
        fitted: list[FittedMap | None] = [None] * len(parts)
        best: tuple[float, FittedMap] | None = None
        for lam in sorted(LAM_GRID, reverse=True):
            loss = 0.0
            for number, (kept, held_out) in enumerate(parts):
                found = self._take(kept)._solve(lam, fitted[number], FOLD_GAP)
                fitted[number] = found
                logits = (found.theta @ self.logs[:, held_out]).T
                posteriors = mapped(logits, self.pooled[held_out], found.unseen)
                loss += label_loss(posteriors, self.labels[held_out], self.weight[held_out])
            if best is not None and loss > best[0]:
                break
            best = loss, found
        assert best is not None  # noqa: S101 (the grid is not empty)
        return best

    def solve(self, near: FittedMap, *, fold: bool = False) -> FittedMap:
        """Fit with the λ of `near`, starting there; of a `fold` as exactly as that needs."""
        return self._solve(near.lam, near, FOLD_GAP if fold else GAP)

    def _take(self, rows: IntArray) -> MapFit:
        soft = None if self.soft is None else self.soft[rows]
        return MapFit(self.logs[:, rows], self.pooled[rows], self.labels[rows], self.weight[rows], soft, self.origin)

    def _solve(self, lam: float, start: FittedMap | None, gap: float) -> FittedMap:
        def minimise(z: FloatArray, target: IntArray, seen: IntArray, w: FloatArray, begin: Any, t: Any) -> FloatArray:
            end = gap * float(w.sum())
            return fit_map(z, target, seen, lam, w, begin, end, diagonal=False, soft=t, origin=self.origin[seen])

        begin = None if start is None else start.theta
        theta, unseen = solve_seen(self.logs, self.labels, self.weight, self.origin, begin, self.soft, minimise)
        return FittedMap(theta, float(lam), unseen)
