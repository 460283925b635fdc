"""A map of every party's posterior: whom to believe about which class.

m(p₁ … p_M) = softmax(Σᵢ Vᵢ log(pᵢ + ε) + c) has M·K² + K parameters: with the training part there are samples enough
for them. The penalty λ Σᵢ‖Vᵢ − wᵢ I‖² + λ‖c − b‖² draws it towards the log-linear pool softmax(Σᵢ wᵢ log(pᵢ + ε) + b).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from gainroute.routing._dirichlet import (
    FOLD_GAP,
    GAP,
    LAM_GRID,
    choice_folds,
    label_loss,
    mapped,
    solve_seen,
)
from gainroute.routing._many_classes import fit_map
from gainroute.routing.pool import LogLinearPool
from gainroute.routing.types import FloatArray, IntArray

__all__ = ["MOST_WEIGHTS", "AllPartyMap", "choose_all_parties", "solve_all_parties"]

MOST_WEIGHTS = 10_000  # M·K², up to which it is tried


@dataclass(frozen=True, eq=False)
class AllPartyMap:
    """softmax(Σᵢ Vᵢ log(pᵢ + ε) + c).

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


@dataclass(frozen=True, eq=False)
class _Problem:
    """What a fit is made of: logs of local posteriors and a row of ones (M·K + 1, N), and the samples' targets."""

    features: FloatArray
    labels: IntArray
    weight: FloatArray
    soft: FloatArray | None
    pool: LogLinearPool

    def take(self, rows: IntArray) -> _Problem:
        soft = None if self.soft is None else self.soft[rows]
        return _Problem(self.features[:, rows], self.labels[rows], self.weight[rows], soft, self.pool)

    def solve(self, lam: float, start: AllPartyMap | None, gap: float) -> AllPartyMap:
        """Fit until a step lowers the objective by less than `gap` per sample."""
        k, m = len(self.pool.bias), len(self.pool.weight)
        origin = np.column_stack([*(w * np.eye(k) for w in self.pool.weight), self.pool.bias])

        def minimise(z: FloatArray, target: IntArray, seen: IntArray, w: FloatArray, begin: Any, t: Any) -> FloatArray:
            end = gap * float(w.sum())
            return fit_map(z, target, seen, lam, w, begin, end, diagonal=False, soft=t, origin=origin[seen])

        begin = None if start is None else np.column_stack([*start.weight, start.bias])
        theta, unseen = solve_seen(self.features, self.labels, self.weight, origin, begin, self.soft, minimise)
        weight = np.stack(np.split(theta[:, :-1], m, axis=1))
        return AllPartyMap(weight, theta[:, -1].copy(), float(lam), self.pool.eps, unseen)


def _problem(
    pool: LogLinearPool, local: FloatArray, labels: IntArray, weight: FloatArray, soft: FloatArray | None
) -> _Problem:
    m, n, k = local.shape
    features = np.ones((m * k + 1, n), dtype=np.float32)
    np.log(local.transpose(0, 2, 1).reshape(m * k, n) + pool.eps, out=features[:-1], casting="same_kind")
    return _Problem(features, labels, weight, soft, pool)


def choose_all_parties(
    pool: LogLinearPool,
    local: FloatArray,
    labels: IntArray,
    weight: FloatArray,
    soft: FloatArray | None,
    *,
    judged: int,
    early: bool,
) -> tuple[float, AllPartyMap]:
    """As `gainroute.routing._dirichlet.choose_dirichlet`, with comparable losses: λ is chosen, ε is the pool's."""
    problem = _problem(pool, local, labels, weight, soft)
    parts = choice_folds(len(labels), judged, early=early)
    fitted: list[AllPartyMap | None] = [None] * len(parts)
    best: tuple[float, AllPartyMap] | None = None
    for lam in sorted(LAM_GRID, reverse=True):
        loss = 0.0
        for number, (kept, held_out) in enumerate(parts):
            found = problem.take(kept).solve(lam, fitted[number], FOLD_GAP)
            fitted[number] = found
            posteriors = found(local[:, held_out], pool(local[:, held_out]))
            loss += label_loss(posteriors, labels[held_out], weight[held_out])
        if best is not None and loss > best[0]:
            break
        best = loss, found
    assert best is not None  # noqa: S101 (the grid is not empty)
    return best


def solve_all_parties(
    near: AllPartyMap,
    pool: LogLinearPool,
    local: FloatArray,
    labels: IntArray,
    weight: FloatArray,
    soft: FloatArray | None,
    *,
    fold: bool = False,
) -> AllPartyMap:
    """Fit with the λ of `near`, starting there; of a `fold` as exactly as that needs."""
    return _problem(pool, local, labels, weight, soft).solve(near.lam, near, FOLD_GAP if fold else GAP)
