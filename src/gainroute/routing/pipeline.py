"""The fitted road from local posteriors to a score, and how it is fitted: once, or out of fold."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from gainroute.errors import ShapeError, TooFewSamplesError
from gainroute.routing.calibrate import Calibrator, folds_of
from gainroute.routing.inputs import Samples
from gainroute.routing.pool import LogLinearPool
from gainroute.routing.types import BoolArray, CalibrationSet, FloatArray, IntArray, RoundOne

__all__ = ["Method", "Pool", "Road", "Score", "collect", "cross_fit", "fit_road", "out_of_fold", "scores_of", "walk"]

Score = Callable[[RoundOne], FloatArray]


class Pool(Protocol):
    """From checked local posteriors (M, N, K), and who is present (M, N) or None for all, to (N, K)."""

    def __call__(self, local: FloatArray, present: BoolArray | None = None) -> FloatArray: ...  # noqa: D102


class Method(Protocol):
    """What distinguishes one router from another; see `Router` for what each part means."""

    extra_columns: int

    def fit_pool(self, local: FloatArray, labels: IntArray, weight: FloatArray) -> Pool: ...  # noqa: D102
    def fit_calibrator(  # noqa: D102
        self, pooled: FloatArray, labels: IntArray, weight: FloatArray, start: Calibrator | None
    ) -> Calibrator: ...
    def fit_score(self, calibration: CalibrationSet) -> Score: ...  # noqa: D102


@dataclass(frozen=True, eq=False)
class Road:
    """The fitted part of a router: what lies between the local posteriors and the score.

    `blend` joins the strong posterior with what Round 1 said; None where the strong answer stands alone.
    """

    pool: Pool
    calibrate: Calibrator
    score: Score
    blend: LogLinearPool | None = None


def walk(
    pool: Pool, calibrate: Calibrator, local: FloatArray, weak: IntArray | None, present: BoolArray | None = None
) -> RoundOne:
    """Pool, answer cheaply, calibrate: all of Round 1 but the score."""
    pooled = pool(local, present)
    answer = pooled.argmax(axis=1) if weak is None else weak
    if present is not None:
        answer = np.where(present.any(axis=0), answer, -1)
        # Those present, pooled, stand in for an absent party, so that every score stays defined.
        blank = np.zeros((len(pooled), local.shape[2] - pooled.shape[1]))
        local = np.where(present[..., None], local, np.concatenate([pooled, blank], axis=1))
    return RoundOne(local, pooled, answer, calibrate(pooled))


def scores_of(score: Score, round_one: RoundOne) -> FloatArray:
    """Score samples, and refuse a score that is not one number a sample."""
    values = np.asarray(score(round_one), dtype=np.float64)
    if values.shape != round_one.weak_prediction.shape:
        raise ShapeError(
            f"the router's score has shape {values.shape} for {len(round_one.pooled)} samples; one number a sample, "
            "(N,), is needed"
        )
    return values


def fit_road(method: Method, samples: Samples, near: Road | None = None) -> Road:
    """Fit pool, calibrator and score; `near` is a road fitted on almost the same samples, to start from."""
    pool = method.fit_pool(samples.local, samples.labels, samples.weight)
    pooled = pool(samples.local)
    answer = pooled.argmax(axis=1) if samples.weak_prediction is None else samples.weak_prediction
    start = None if near is None else near.calibrate
    calibrate = method.fit_calibrator(pooled, samples.labels, samples.weight, start)
    round_one = RoundOne(samples.local, pooled, answer, calibrate(pooled))
    score = method.fit_score(CalibrationSet(round_one, samples.labels, samples.strong_prediction, samples.weight))
    return Road(pool, calibrate, score)


def cross_fit(
    method: Method, samples: Samples, road: Road, folds: int, seed: int
) -> Iterator[tuple[IntArray, Road, RoundOne]]:
    """Walk every sample along a road fitted without it: held-out rows, that road, and Round 1 of those rows."""
    n = len(samples)
    if n < 2:
        raise TooFewSamplesError(f'threshold="cross-fitted" needs at least 2 samples, there is {n}; add samples')
    for held_out in folds_of(n, folds, seed):
        kept = np.ones(n, dtype=bool)
        kept[held_out] = False
        fitted = fit_road(method, samples.take(kept), near=road)
        part = samples.take(held_out)
        yield held_out, fitted, walk(fitted.pool, fitted.calibrate, part.local, part.weak_prediction)


def out_of_fold(method: Method, samples: Samples, road: Road, folds: int, seed: int) -> tuple[FloatArray, IntArray]:
    """Score every sample, and answer it cheaply, by a road fitted without it: (N,) and (N,)."""
    score, weak_prediction = np.empty(len(samples)), np.empty(len(samples), dtype=np.int64)
    for held_out, fitted, at in cross_fit(method, samples, road, folds, seed):
        score[held_out], weak_prediction[held_out] = scores_of(fitted.score, at), at.weak_prediction
    return score, weak_prediction


def collect(blocks: Iterator[tuple[Any, ...]], n: int) -> tuple[Any, ...]:
    """Put the blocks' arrays together in arrays allocated once; a single block is passed on as it is."""
    first = next(blocks)
    if len(first[0]) == n:
        return first
    whole = tuple(np.empty((n, *a.shape[1:]), a.dtype) for a in first)
    at = 0
    for block in itertools.chain([first], blocks):
        for target, values in zip(whole, block, strict=True):
            target[at : at + len(values)] = values
        at += len(block[0])
    return whole
