"""Accuracy, EP, NE, paired resamples and calibration quality of scored routers, as arrays.

::

    records ─ scores.fit_router ─→ RouterScores ─ routed ─→ Routed (one router, regime and seed)
            → measures_at, curve_band, resampled_accuracy, calibration_quality, deployed → tables and figures
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from gainroute._util.resampling import gains_at, resampled_runs, resamples, t_interval
from gainroute.errors import DataError
from gainroute.evaluation.metrics import (
    TradeoffCurve,
    expected_calibration_error,
    negative_log_likelihood,
    operating_point,
    oracle_score,
    reliability_diagram,
    tradeoff_curve,
)
from gainroute.experiments.records import Record, RouteAnswers
from gainroute.experiments.scores import RouterScores
from gainroute.routing.calibrate import fit_dirichlet, fit_temperature, identity_calibration
from gainroute.routing.pool import pool_mean
from gainroute.routing.types import Calibrator, FloatArray, IntArray

__all__ = [
    "CALIBRATORS",
    "CalibrationQuality",
    "Measures",
    "Routed",
    "calibration_quality",
    "chosen_alpha",
    "curve_band",
    "deployed",
    "mean_std",
    "measures_at",
    "oracle_scores",
    "over_seeds",
    "resampled_accuracy",
    "routed",
]

REPLICATES = 1000


def chosen_alpha(record: Record) -> str | None:
    """The α with the best mean accuracy over all rates on the calibration part, which was not trained on."""
    held = record.calibration

    def worth(alpha: str) -> float:
        outcome = held.defer[alpha]
        curve = tradeoff_curve(outcome.score, outcome.prediction, held.strong_prediction, held.labels)
        return float(curve.accuracy.mean())

    return max((alpha for alpha in held.defer if "-" not in alpha), key=worth, default=None)


def oracle_scores(record: Record) -> RouterScores:
    """The realised gain as a score; it needs the labels, so no router can use it."""
    regimes = record.regimes()
    return RouterScores(
        {r: oracle_score(s.weak_prediction, s.strong_prediction, s.labels) for r, s in regimes.items()},
        {r: s.weak_prediction for r, s in regimes.items()},
        {},
    )


@dataclass(frozen=True, eq=False)
class Routed:
    """One router on one test part: (N,) each, in the order of the sample ids."""

    score: FloatArray
    weak_right: FloatArray
    strong_right: FloatArray
    thresholds: Mapping[tuple[str, float | None], float]

    @property
    def gain(self) -> FloatArray:
        """Realised gain of escalating, (N,)."""
        return self.strong_right - self.weak_right

    @cached_property
    def curve(self) -> TradeoffCurve:
        """The whole trade-off curve."""
        return tradeoff_curve(self.score, *self._answers)

    @property
    def _answers(self) -> tuple[IntArray, IntArray, IntArray]:
        # For every measure here only right or wrong counts: 1 is right, 0 is wrong, the truth is 1.
        return self.weak_right.astype(int), self.strong_right.astype(int), np.ones(len(self.score), dtype=int)

    def deploy(self, threshold: float) -> tuple[float, float]:
        """Actual escalation rate at a threshold, and the accuracy there."""
        point = operating_point(self.score, *self._answers, threshold=threshold)
        return point.escalation_rate, point.accuracy


def routed(scores: RouterScores, split: RouteAnswers, regime: int) -> Routed:
    """Combine a router's scores with which answers of both routes are right, in the order of the ids."""
    order = np.argsort(split.ids, kind="stable")
    answers = scores.weak_prediction[regime], scores.strong_prediction.get(regime, split.strong_prediction)
    weak, strong = ((answer == split.labels)[order].astype(np.float64) for answer in answers)
    return Routed(scores.score[regime][order], weak, strong, scores.thresholds)


@dataclass(frozen=True, eq=False)
class Measures:
    """Acc., EP and NE at some rates: (S, R) each, one row per seed."""

    rates: FloatArray
    accuracy: FloatArray
    precision: FloatArray
    neutral: FloatArray


def measures_at(runs: Sequence[Routed], rates: Sequence[float]) -> Measures:
    """Acc., EP and NE at matched rates, for every seed; EP = NE = 0 at rate 0."""
    at = np.asarray(rates, dtype=np.float64)
    some = np.where(at > 0, at, 1.0)

    def read(of: Callable[[TradeoffCurve], FloatArray]) -> FloatArray:
        return np.stack([np.interp(at, run.curve.escalation_rate, of(run.curve)) for run in runs])

    # Shares among the escalated are ratios: the counts are interpolated, not the ratios.
    return Measures(
        at,
        read(lambda c: c.accuracy),
        read(lambda c: c.precision * c.escalation_rate) / some,
        read(lambda c: c.neutral * c.escalation_rate) / some,
    )


def curve_band(runs: Sequence[Routed], points: int = 101) -> Measures:
    """Acc., EP and NE on an even grid of rates from 0 to 1, to draw."""
    return measures_at(runs, np.linspace(0, 1, points).tolist())


def mean_std(values: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Mean and standard deviation over seeds, the first axis; one seed has deviation 0."""
    return values.mean(axis=0), values.std(axis=0, ddof=1) if len(values) > 1 else np.zeros(values.shape[1:])


def resampled_accuracy(
    runs: Sequence[Routed], rates: Sequence[float], *, count: int = REPLICATES, seed: int = 0
) -> FloatArray:
    """Mean accuracy at matched rates over resampled seeds and resampled test parts, (count, R).

    Seeds are drawn, and test samples, the same ones for all seeds (they share one test part): an interval covers what
    other training runs and other samples would change. All calls draw the same: two routers of the same seeds may be
    subtracted row by row.
    """
    sizes = {len(run.score) for run in runs}
    if len(sizes) != 1:
        raise DataError(
            f"the seeds have test parts of {sorted(sizes)} samples; a paired difference needs one test part"
        )
    at, n = np.asarray(rates, dtype=np.float64), sizes.pop()

    def accuracy(weights: FloatArray) -> FloatArray:
        parts = [(weights @ r.weak_right)[:, None] + gains_at(r.score, r.gain, weights, at) for r in runs]
        return np.stack(parts, axis=1) / n

    drawn = np.concatenate([accuracy(weights) for weights in resamples(n, count, np.random.default_rng(seed))])
    of_runs = resampled_runs(len(runs), count, np.random.default_rng([seed, len(runs)]))
    mean: FloatArray = np.einsum("cs,csr->cr", of_runs, drawn)
    return mean


def over_seeds(values: FloatArray) -> dict[str, Any]:
    """Student's 95 % interval for the mean over seeds, the first axis: ``t_low`` and ``t_high``; none of one seed."""
    if len(values) < 2:
        return {}
    low, high = t_interval(values)
    return {"t_low": low.tolist(), "t_high": high.tolist()}


def deployed(runs: Sequence[Routed], rule: str, budget: float | None) -> tuple[FloatArray, FloatArray]:
    """Actual rates and accuracies, (S,) each, when τ is set on calibration data by a rule."""
    rates, accuracies = zip(*(run.deploy(run.thresholds[rule, budget]) for run in runs), strict=True)
    return np.array(rates), np.array(accuracies)


@dataclass(frozen=True, eq=False)
class CalibrationQuality:
    """How well calibrated a posterior is on a test part: ECE, negative log-likelihood and reliability diagram."""

    ece: float
    nll: float
    confidence: FloatArray  # by bin, as `accuracy` and `share`
    accuracy: FloatArray
    share: FloatArray


CALIBRATORS: dict[str, Callable[[FloatArray, IntArray], Calibrator]] = {
    "none": lambda _p, _y: identity_calibration,
    "temperature": fit_temperature,
    "Dirichlet": fit_dirichlet,
}


def calibration_quality(record: Record, name: str, bins: int = 15) -> dict[int, CalibrationQuality]:
    """Fit a calibrator ("none", "temperature", "Dirichlet") and measure it under every regime."""
    held = record.calibration
    calibrate = CALIBRATORS[name](pool_mean(held.local_posteriors), held.labels)
    found = {}
    for regime, split in record.regimes().items():
        m = calibrate(pool_mean(split.local_posteriors))
        ece, nll = expected_calibration_error(m, split.labels, bins), negative_log_likelihood(m, split.labels)
        found[regime] = CalibrationQuality(ece, nll, **vars(reliability_diagram(m, split.labels, bins)))
    return found
