"""Round 1 that learns from Round 2, and from the training part: a calibrated pool, fitted to more than labels.

On calibration samples the strong posterior is known, and tells more than a label: which other classes a sample looks
like. Soft labels mix the two. Samples that trained the local models are more, if poorer, data: there the models are too
sure. The map that is fitted to them pools the parties, and is calibrated: both the weak answer and the score are read
off it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np

from gainroute._util.arrays import shown
from gainroute.errors import SettingError
from gainroute.routing._dirichlet import (
    DirichletCalibrator,
    choose_dirichlet,
    refit_dirichlet,
    solve_chosen,
    solve_dirichlet,
)
from gainroute.routing._many_classes import MANY
from gainroute.routing._map_fit import AllPartyMap, FittedMap, MapFit, logs_of_parties
from gainroute.routing.folds import folds_of
from gainroute.routing.pool import LogLinearPool, LogLinearPooling, solve_log_linear
from gainroute.routing.types import BoolArray, FloatArray, IntArray

__all__ = [
    "LABEL",
    "TRAINING_WEIGHTS",
    "TaughtPool",
    "TaughtPooling",
    "TrainingPart",
    "check_training_weight",
    "is_much_work",
    "soft_labels",
]

FOLDS = 5
MUCH_WORK = 4e6  # samples × classes², above which a fit of the map stops early
MOST_WEIGHTS = 10_000  # M·K², above which a map of every party is not tried
TRAINING_WEIGHTS = (0.0, 0.3, 1.0)
Map = DirichletCalibrator | AllPartyMap

LABEL = 0.3  # share of the label in a soft label; the rest is the teacher's


def check_training_weight(value: float | Literal["cv"]) -> float | Literal["cv"]:
    """Refuse a weight that is neither a number ≥ 0 nor "cv"."""
    if value == "cv" or (isinstance(value, (int, float)) and 0 <= value < np.inf):
        return value
    raise SettingError(f'training_weight is {shown(value)}; it is a number ≥ 0, or "cv" to choose it')


def is_much_work(samples: int, classes: int) -> bool:
    """Whether fits of a map to so many samples stop early."""
    return classes > MANY or samples * classes**2 > MUCH_WORK


def soft_labels(teacher: FloatArray, labels: IntArray, known: BoolArray) -> FloatArray:
    """Mix labels (N,) with the posteriors of a teacher (N, K) that did not see them; where none is `known`, labels."""
    share = np.where(known, LABEL, 1.0)[:, None]
    soft: FloatArray = (1 - share) * teacher
    soft[np.arange(len(labels)), labels] += share[:, 0]
    return soft


@dataclass(frozen=True, eq=False)
class TaughtPool:
    """A calibrated map of Round 1, and the log-linear pool q = softmax(Σᵢ wᵢ log(pᵢ + ε) + b) below it.

    The map is softmax(V log(q + ε) + c), a Dirichlet map of the pool, or softmax(Σᵢ Vᵢ log(pᵢ + ε) + c), a map of every
    party.

    Attributes
    ----------
    weight, bias, eps
        w (M,), b (K,) and ε of the log-linear pool.
    map_weight, map_bias, map_eps, lam, unseen
        V (K, K) or (M, K, K), c (K,), and the other attributes of the `gainroute.DirichletCalibrator`.
    training_weight
        Weight of a sample of the training part in the fit; 0 if it has none.
    """

    weight: FloatArray
    bias: FloatArray
    eps: float
    map_weight: FloatArray
    map_bias: FloatArray
    map_eps: float
    lam: float
    unseen: IntArray
    training_weight: float = 0.0

    @classmethod
    def of(cls, pool: LogLinearPool, found: Map, training_weight: float = 0.0) -> TaughtPool:
        """The map of this pool."""
        shown = found.weight, found.bias, found.eps, found.lam, found.unseen
        return cls(pool.weight, pool.bias, pool.eps, *shown, training_weight)

    @classmethod
    def of_theta(cls, pool: LogLinearPool, eps: float, found: FittedMap, training_weight: float = 0.0) -> TaughtPool:
        """The map with these parameters: of every party if there are so many of them."""
        weight, bias = found.theta[:, :-1], found.theta[:, -1].copy()
        parties, rest = divmod(weight.shape[1], len(bias))
        assert rest == 0  # noqa: S101 (columns are those of whole posteriors)
        if parties > 1:
            whole: Map = AllPartyMap(np.stack(np.split(weight, parties, axis=1)), bias, found.lam, eps, found.unseen)
        else:
            whole = DirichletCalibrator(np.ascontiguousarray(weight), bias, found.lam, eps, found.unseen)
        return cls.of(pool, whole, training_weight)

    @property
    def theta(self) -> FloatArray:
        """V and c side by side, (K, K + 1) or (K, M·K + 1)."""
        blocks = self.map_weight if self.map_weight.ndim == 3 else self.map_weight[None]
        return np.column_stack([*blocks, self.map_bias])

    @cached_property
    def pool(self) -> LogLinearPool:
        """The log-linear pool."""
        return LogLinearPool(self.weight, self.bias, self.eps)

    @cached_property
    def map(self) -> Map:
        """Its map."""
        kind = AllPartyMap if self.map_weight.ndim == 3 else DirichletCalibrator
        return kind(self.map_weight, self.map_bias, self.lam, self.map_eps, self.unseen)

    def __call__(self, local: FloatArray, present: BoolArray | None = None) -> FloatArray:
        """Pool checked posteriors, (M, N, K) → (N, K); a sample that lacks a party gets the mean of the others."""
        pooled, whole = self.pool(local, present), self.map
        if present is None or present.all():
            return whole(local, pooled) if isinstance(whole, AllPartyMap) else whole(pooled)
        complete = present.all(axis=0)
        pooled[complete] = self(local[:, complete])
        return pooled

    def from_log_odds(self, total: FloatArray) -> FloatArray:
        """See `LogLinearPool.from_log_odds`; a map of every party cannot be read off their sum."""
        assert isinstance(self.map, DirichletCalibrator)  # noqa: S101 (a router of sums alone fits no other)
        return self.map(self.pool.from_log_odds(total))


@dataclass(frozen=True, eq=False)
class TrainingPart:
    """Round 1 on samples that trained the local models: posteriors (M, N, K), and classes (N,)."""

    local: FloatArray
    labels: IntArray


@dataclass(frozen=True, eq=False)
class _MapSamples:
    """What a map may be fitted to: calibration samples, then those of the training part.

    Attributes
    ----------
    local, pooled
        Local posteriors (M, N, K), and their pool (N, K): of a calibration sample, by a pool fitted without it.
    labels, weight, soft
        (N,), (N,), and soft labels (N, K) or None.
    training_weight
        Weight of a sample of the training part; 0 if there are none.
    """

    local: FloatArray
    pooled: FloatArray
    labels: IntArray
    weight: FloatArray
    soft: FloatArray | None
    training_weight: float = 0.0

    @property
    def is_much_work(self) -> bool:
        """Whether a fit should stop early."""
        return is_much_work(*self.pooled.shape)

    @property
    def has_few_weights(self) -> bool:
        """Whether a map of every party is tried: with more weights than samples it does not hold the budget."""
        weights = len(self.local) * self.pooled.shape[1] ** 2
        return len(self.local) > 1 and weights <= min(MOST_WEIGHTS, len(self.labels))

    def of_all_parties(self, pool: LogLinearPool) -> MapFit:
        """The fit of a map of every party, drawn towards their pool."""
        origin = np.column_stack([*(w * np.eye(len(pool.bias)) for w in pool.weight), pool.bias])
        logs = logs_of_parties(self.local, pool.eps)
        return MapFit(logs, self.pooled, self.labels, self.weight, self.soft, origin)

    def joined(self, pool: LogLinearPool, training: TrainingPart | None, training_weight: float) -> _MapSamples:
        """These, and the training part with its labels."""
        if training is None or not training_weight:
            return self
        hard = np.eye(self.pooled.shape[1])[training.labels]
        return _MapSamples(
            np.concatenate([self.local, training.local], axis=1),
            np.concatenate([self.pooled, pool(training.local)]),
            np.concatenate([self.labels, training.labels]),
            np.concatenate([self.weight, np.full(len(hard), training_weight * self.weight.mean())]),
            None if self.soft is None else np.concatenate([self.soft, hard]),
            training_weight,
        )


@dataclass(frozen=True)
class TaughtPooling:
    """A log-linear pool, and where it pays, a calibrated map of Round 1.

    A Dirichlet map of the pool is fitted to soft labels, to the training part as well, or to both: to what makes the
    labels of held-out calibration samples most likely. If the labels of the calibration samples alone do, there is no
    map. A map of every party takes its place if it makes them likelier still.

    Attributes
    ----------
    lam, eps
        λ and ε of the map.
    training_weight
        Weight of a sample of the training part, where a calibration sample weighs 1 on average.
    pooled_only
        Whether only the pool may be mapped, not every party.
    """

    lam: float | Literal["cv"] = "cv"
    eps: float | Literal["cv"] = 1e-6
    training_weight: float | Literal["cv"] = "cv"
    pooled_only: bool = False

    def fit(
        self,
        local: FloatArray,
        labels: IntArray,
        weight: FloatArray,
        soft: FloatArray | None = None,
        training: TrainingPart | None = None,
    ) -> LogLinearPool | TaughtPool:
        """Fit on local posteriors (M, N, K), the map to `soft` labels (N, K) and the `training` part."""
        pool = self._pooling.fit(local, labels, weight)
        weights = self._training_weights(training)
        if soft is None and not any(weights):
            return pool
        plain = self._samples(pool, local, labels, weight, None)
        taught = [replace(plain, soft=soft).joined(pool, training, w) for w in weights if w or soft is not None]
        if len(taught) == 1 and self.lam != "cv" and self.eps != "cv":
            s = taught[0]
            found: Map = solve_dirichlet(s.pooled, s.labels, self.lam, self.eps, s.weight, soft=s.soft)
            return TaughtPool.of(pool, found, s.training_weight)
        n, early = len(labels), taught[-1].is_much_work
        (untaught, _, _), *judged = (
            (*choose_dirichlet(s.pooled, s.labels, self.lam, self.eps, s.weight, s.soft, judged=n, early=early), s)
            for s in (plain, *taught)
        )
        loss, near, s = min(judged, key=lambda found: found[0])
        if self.lam == "cv" and s.has_few_weights and not self.pooled_only:
            of_all = s.of_all_parties(pool)
            least, begin = of_all.choose(n, early=early)
            if least < min(loss, untaught):
                return TaughtPool.of_theta(pool, pool.eps, of_all.solve(begin), s.training_weight)
        if untaught <= loss:
            return pool
        found = solve_chosen(near, s.pooled, s.labels, s.weight, s.soft, early=early)
        return TaughtPool.of(pool, found, s.training_weight)

    def refit(
        self,
        fitted: LogLinearPool | TaughtPool,
        local: FloatArray,
        labels: IntArray,
        weight: FloatArray,
        soft: FloatArray | None = None,
        training: TrainingPart | None = None,
    ) -> LogLinearPool | TaughtPool:
        """Fit on almost the same samples, starting from `fitted`, with what it has chosen."""
        if isinstance(fitted, LogLinearPool):
            return self._pooling.refit(fitted, local, labels, weight)
        pool, near = self._pooling.refit(fitted.pool, local, labels, weight), fitted.map
        if isinstance(near, AllPartyMap):
            s = _MapSamples(local, pool(local), labels, weight, soft).joined(pool, training, fitted.training_weight)
            begin = FittedMap(fitted.theta, fitted.lam, fitted.unseen)
            return TaughtPool.of_theta(
                pool, pool.eps, s.of_all_parties(pool).solve(begin, fold=True), s.training_weight
            )
        s = self._samples(pool, local, labels, weight, soft).joined(pool, training, fitted.training_weight)
        found = refit_dirichlet(near, s.pooled, s.labels, s.weight, s.soft, early=s.is_much_work)
        return TaughtPool.of(pool, found, s.training_weight)

    def _training_weights(self, training: TrainingPart | None) -> tuple[float, ...]:
        if training is None:
            return (0.0,)
        return TRAINING_WEIGHTS if self.training_weight == "cv" else (self.training_weight,)

    def fit_out_of_fold(
        self, local: FloatArray, labels: IntArray, weight: FloatArray
    ) -> tuple[LogLinearPool, FloatArray]:
        """A log-linear pool, and the posterior (N, K) that each sample gets from one fitted without it."""
        pool = self._pooling.fit(local, labels, weight)
        return pool, self._samples(pool, local, labels, weight, None).pooled

    def _samples(
        self, pool: LogLinearPool, local: FloatArray, labels: IntArray, weight: FloatArray, soft: FloatArray | None
    ) -> _MapSamples:
        """Pool each sample by a pool fitted without it: on its own samples, a pool is too sure of itself."""
        pooled, n = pool(local), len(labels)
        for held_out in folds_of(n, FOLDS) if n >= FOLDS else ():
            kept = np.setdiff1d(np.arange(n), held_out)
            fold = solve_log_linear(local[:, kept], labels[kept], weight[kept], self._pooling.lam, pool.eps, near=pool)
            pooled[held_out] = fold(local[:, held_out])
        return _MapSamples(local, pooled, labels, weight, soft)

    @property
    def _pooling(self) -> LogLinearPooling:
        return LogLinearPooling() if self.eps == "cv" else LogLinearPooling(eps=self.eps)
