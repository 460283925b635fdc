"""Round 1 that learns from Round 2: a calibrated pool, fitted to soft labels.

On calibration samples the strong posterior is known, and tells more than a label: which other classes a sample looks
like. Soft labels mix the two. The map that is fitted to them pools the parties, and is calibrated: both the weak answer
and the score are read off it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from gainroute.routing.calibrate import DirichletCalibration, DirichletCalibrator
from gainroute.routing.folds import folds_of
from gainroute.routing.pool import LogLinearPool, LogLinearPooling, solve_log_linear
from gainroute.routing.types import BoolArray, FloatArray, IntArray

__all__ = ["LABEL", "TaughtPool", "TaughtPooling", "soft_labels"]

FOLDS = 5
LABEL = 0.3  # share of the label in a soft label; the rest is the teacher's


def soft_labels(teacher: FloatArray, labels: IntArray, known: BoolArray) -> FloatArray:
    """Mix labels (N,) with the posteriors of a teacher (N, K) that did not see them; where none is `known`, labels."""
    share = np.where(known, LABEL, 1.0)[:, None]
    soft: FloatArray = (1 - share) * teacher
    soft[np.arange(len(labels)), labels] += share[:, 0]
    return soft


@dataclass(frozen=True, eq=False)
class TaughtPool:
    """softmax(V log(q + ε) + c), a Dirichlet map of the log-linear pool q = softmax(Σᵢ wᵢ log(pᵢ + ε) + b).

    Attributes
    ----------
    weight, bias, eps
        w (M,), b (K,) and ε of the log-linear pool.
    map_weight, map_bias, map_eps, lam, unseen
        V (K, K), c (K,), and the other attributes of the `gainroute.DirichletCalibrator`.
    """

    weight: FloatArray
    bias: FloatArray
    eps: float
    map_weight: FloatArray
    map_bias: FloatArray
    map_eps: float
    lam: float
    unseen: IntArray

    @classmethod
    def of(cls, pool: LogLinearPool, calibrator: DirichletCalibrator) -> TaughtPool:
        """The map of this pool."""
        c = calibrator
        return cls(pool.weight, pool.bias, pool.eps, c.weight, c.bias, c.eps, c.lam, c.unseen)

    @cached_property
    def pool(self) -> LogLinearPool:
        """The log-linear pool."""
        return LogLinearPool(self.weight, self.bias, self.eps)

    @cached_property
    def calibrator(self) -> DirichletCalibrator:
        """Its map."""
        return DirichletCalibrator(self.map_weight, self.map_bias, self.lam, self.map_eps, self.unseen, taught=True)

    def __call__(self, local: FloatArray, present: BoolArray | None = None) -> FloatArray:
        """Pool checked posteriors, (M, N, K) → (N, K); a sample that lacks a party gets the mean of the others."""
        pooled = self.pool(local, present)
        mapped = self.calibrator(pooled)
        if present is not None:
            lacking = ~present.all(axis=0)
            mapped[lacking] = pooled[lacking]
        return mapped

    def from_log_odds(self, total: FloatArray) -> FloatArray:
        """See `LogLinearPool.from_log_odds`."""
        return self.calibrator(self.pool.from_log_odds(total))


@dataclass(frozen=True)
class TaughtPooling:
    """A log-linear pool, and where there are soft labels that pay, a Dirichlet map of it; λ and ε are the map's."""

    lam: float | Literal["cv"] = "cv"
    eps: float | Literal["cv"] = 1e-6

    def fit(
        self, local: FloatArray, labels: IntArray, weight: FloatArray, soft: FloatArray | None = None
    ) -> LogLinearPool | TaughtPool:
        """Fit on local posteriors (M, N, K), the map to `soft` labels (N, K)."""
        pool = self._pooling.fit(local, labels, weight)
        if soft is None:
            return pool
        pooled = self._out_of_fold(pool, local, labels, weight)
        calibrator = DirichletCalibration(self.lam, self.eps).fit(pooled, labels, weight, soft)
        return TaughtPool.of(pool, calibrator) if calibrator.taught else pool

    def refit(
        self,
        fitted: LogLinearPool | TaughtPool,
        local: FloatArray,
        labels: IntArray,
        weight: FloatArray,
        soft: FloatArray | None = None,
    ) -> LogLinearPool | TaughtPool:
        """Fit on almost the same samples, starting from `fitted`, with the λ and ε it has chosen."""
        if isinstance(fitted, LogLinearPool):
            return self._pooling.refit(fitted, local, labels, weight)
        pool = self._pooling.refit(fitted.pool, local, labels, weight)
        pooled = self._out_of_fold(pool, local, labels, weight)
        calibration = DirichletCalibration(self.lam, self.eps)
        return TaughtPool.of(pool, calibration.refit(fitted.calibrator, pooled, labels, weight, soft))

    def _out_of_fold(self, pool: LogLinearPool, local: FloatArray, labels: IntArray, weight: FloatArray) -> FloatArray:
        """Pool each sample by a pool fitted without it, (N, K): on its own samples, a pool is too sure of itself."""
        pooled, n = pool(local), len(labels)
        for held_out in folds_of(n, FOLDS) if n >= FOLDS else ():
            kept = np.setdiff1d(np.arange(n), held_out)
            fold = solve_log_linear(local[:, kept], labels[kept], weight[kept], self._pooling.lam, pool.eps, near=pool)
            pooled[held_out] = fold(local[:, held_out])
        return pooled

    @property
    def _pooling(self) -> LogLinearPooling:
        return LogLinearPooling() if self.eps == "cv" else LogLinearPooling(eps=self.eps)
