"""A taught pool that moves with its inputs: fitted to what came back from service, drawn to what it was.

What a map has learned from the training part and from the strong route is worth keeping where inputs are as before.
Where they are not, labels from service tell. The penalty λ‖θ − θ₀‖² draws the map to the old one, and λ says how much
of it still holds. λ is chosen by the likelihood of held-out labels, which also decides between
that map and a pool fitted anew.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from gainroute.routing._dirichlet import choose_dirichlet
from gainroute.routing._map_fit import FittedMap, MapFit, logs_of, logs_of_parties
from gainroute.routing.pool import LogLinearPool, LogLinearPooling
from gainroute.routing.taught import TaughtPool, TaughtPooling, is_much_work
from gainroute.routing.types import FloatArray, IntArray

__all__ = ["AdaptedPooling"]


@dataclass(frozen=True, eq=False)
class AdaptedPooling:
    """The stage: the `old` map, moved, or a log-linear pool fitted anew, whichever makes held-out labels likelier."""

    old: TaughtPool
    anew: TaughtPooling

    def fit(self, local: FloatArray, labels: IntArray, weight: FloatArray) -> LogLinearPool | TaughtPool:
        """Fit on local posteriors (M, N, K)."""
        fit, n = self._fit(local, labels, weight), len(labels)
        early = is_much_work(n, len(self.old.bias))
        moved, near = fit.choose(n, early=early)
        pool, pooled = self.anew.fit_out_of_fold(local, labels, weight)
        fresh, _ = choose_dirichlet(pooled, labels, self.anew.lam, self.anew.eps, weight, early=early)
        return pool if fresh < moved else self._moved(fit.solve(near))

    def refit(
        self, fitted: LogLinearPool | TaughtPool, local: FloatArray, labels: IntArray, weight: FloatArray
    ) -> LogLinearPool | TaughtPool:
        """Fit on almost the same samples, starting from `fitted`, with what it has chosen."""
        if isinstance(fitted, LogLinearPool):
            return LogLinearPooling(eps=fitted.eps).refit(fitted, local, labels, weight)
        near = FittedMap(fitted.theta, fitted.lam, fitted.unseen)
        return self._moved(self._fit(local, labels, weight).solve(near, fold=True))

    def _fit(self, local: FloatArray, labels: IntArray, weight: FloatArray) -> MapFit:
        old, pooled = self.old, self.old.pool(local)
        read = logs_of_parties(local, old.map_eps) if old.map_weight.ndim == 3 else logs_of(pooled, old.map_eps)
        return MapFit(read, pooled, labels, weight, None, old.theta)

    def _moved(self, found: FittedMap) -> TaughtPool:
        """A class that the new samples lack keeps its row of the old map."""
        unseen = np.intersect1d(found.unseen, self.old.unseen)
        return TaughtPool.of_theta(self.old.pool, self.old.map_eps, replace(found, unseen=unseen))
