"""Gain of a score at a given escalation rate, for weighted samples, with bootstrap intervals."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from scipy.special import stdtrit

from gainroute._util.arrays import FloatArray, IntArray

__all__ = [
    "escalated_share",
    "gain_curve",
    "gains_at",
    "interval",
    "replicates",
    "resampled_runs",
    "resamples",
    "t_interval",
]

REPLICATES = 1000
BLOCK_VALUES = 2**21  # weights held in memory at once


def gain_curve(score: FloatArray, gain: FloatArray, weight: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Weight escalated and gain collected, from none to all, highest score first; both start at 0.

    There is one point per distinct score. Within a tie the order is random: the expectation is linear between points.
    """
    order, starts = _ranked(score)
    return (
        _cumulated(np.add.reduceat(weight[order], starts)),
        _cumulated(np.add.reduceat((weight * gain)[order], starts)),
    )


def gains_at(score: FloatArray, gain: FloatArray, weights: FloatArray, rates: FloatArray) -> FloatArray:
    """Gain collected when the share `rates` (B,), by weight, of the highest scores is escalated, (R, B).

    Scores and gains are (N,), weights (R, N): one row per resample.
    """
    order, starts = _ranked(score)
    ranked = weights[:, order]
    mass = _cumulated(np.add.reduceat(ranked, starts, axis=1))
    value = _cumulated(np.add.reduceat(ranked * gain[order], starts, axis=1))
    return np.stack([np.interp(rates * m[-1], m, v) for m, v in zip(mass, value, strict=True)])


def escalated_share(score: FloatArray, weight: FloatArray, rates: FloatArray) -> FloatArray:
    """Share of each sample that is escalated at each rate, (B, N): 1 above the cut, 0 below, a fraction in a tie."""
    order, starts = _ranked(score)
    mass = _cumulated(np.add.reduceat(weight[order], starts))
    width = np.diff(mass)
    cut = rates[:, None] * mass[-1]
    with np.errstate(invalid="ignore", divide="ignore"):
        share = np.clip((cut - mass[:-1]) / width, 0, 1)
    share = np.where(width > 0, share, cut > mass[:-1])
    result = np.empty((len(rates), len(score)))
    result[:, order] = np.repeat(share, np.diff(np.append(starts, len(score))), axis=1)
    return result


def replicates(samples: int) -> int:
    """Number of resamples to draw: fewer for large sets, whose intervals vary less and cost more."""
    return int(np.clip(20_000_000 // samples, 200, REPLICATES))


def resamples(samples: int, count: int, rng: np.random.Generator) -> Iterator[FloatArray]:
    """How often each sample occurs in each resample, in blocks of rows (·, N): `count` rows in all."""
    rows = max(1, BLOCK_VALUES // samples)
    for first in range(0, count, rows):
        block = min(rows, count - first)
        drawn = rng.integers(samples, size=(block, samples)) + samples * np.arange(block)[:, None]
        yield np.bincount(drawn.ravel(), minlength=block * samples).reshape(block, samples).astype(np.float64)


def resampled_runs(runs: int, count: int, rng: np.random.Generator) -> FloatArray:
    """Weight of each training run in each resample, (count, runs); every row sums to 1.

    One run fewer than there are is drawn, with replacement: then the variance of their mean is that of the runs, and
    not (runs − 1) / runs of it, which matters for a handful. A single run is kept as it is.
    """
    drawn = max(runs - 1, 1)
    return rng.multinomial(drawn, np.full(runs, 1 / runs), size=count) / drawn


def t_interval(values: FloatArray, level: float = 0.95) -> tuple[FloatArray, FloatArray]:
    """Student's interval for the mean over the first axis, at least two values."""
    n = len(values)
    reach = stdtrit(n - 1, (1 + level) / 2) * values.std(axis=0, ddof=1) / np.sqrt(n)
    mean = values.mean(axis=0)
    return mean - reach, mean + reach


def interval(values: FloatArray, level: float = 0.95) -> tuple[FloatArray, FloatArray]:
    """Percentile interval over the first axis."""
    tail = 50 * (1 - level)
    low, high = np.percentile(values, [tail, 100 - tail], axis=0)
    return low, high


def _ranked(score: FloatArray) -> tuple[IntArray, IntArray]:
    """Rows from the highest score down, and where in that order each distinct score starts."""
    order = np.argsort(-score, kind="stable")
    ranked = score[order]
    return order, np.concatenate([[0], np.flatnonzero(ranked[1:] != ranked[:-1]) + 1])


def _cumulated(values: FloatArray) -> FloatArray:
    sums = np.cumsum(values, axis=-1)
    return np.concatenate([np.zeros((*sums.shape[:-1], 1)), sums], axis=-1)
