"""The summary of a study: plain numbers, ready for JSON; every table and page is made from it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gainroute._util.blas import one_thread
from gainroute._util.resampling import interval
from gainroute.evaluation.metrics import oracle_share, tradeoff_curve
from gainroute.experiments.measures import Routed, deployed, mean_std, measures_at, over_seeds, resampled_accuracy
from gainroute.experiments.scores import ANALYTICAL, OURS, REFERENCE
from gainroute.experiments.study import Study
from gainroute.routing.types import FloatArray

__all__ = ["RATES", "summarise"]

RATES = (0.0, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0)


def summarise(study: Study, rates: Sequence[float] = RATES, *, replicates: int = 1000) -> dict[str, Any]:
    """Sum a study up in plain numbers: shares, not percent; every list runs along `rates`."""
    first = study.records[0]
    with one_thread():
        regimes = {str(regime): _regime(study, regime, rates, replicates) for regime in study.regimes}
    return {
        "dataset": first.dataset,
        "seeds": [record.seed for record in study.records],
        "test_samples": len(first.test),
        "calibration_samples": len(first.calibration),
        "class_count": len(first.class_names),
        "parties": list(first.party_names),
        "embedding_dimensions": list(first.metadata["embedding_dimensions"]),
        "rates": list(rates),
        "bytes": [study.bytes_at(rate) for rate in rates],
        "quantisation_shift": {
            str(record.seed): record.metadata["quantisation_shift"]
            for record in study.records
            if "quantisation_shift" in record.metadata
        },
        "regimes": regimes,
    }


def _regime(study: Study, regime: int, rates: Sequence[float], replicates: int) -> dict[str, Any]:
    splits = [record.regimes()[regime] for record in study.records]
    drawn: dict[tuple[str, tuple[int, ...]], tuple[FloatArray, FloatArray]] = {}

    def accuracy(name: str, seeds: Sequence[int]) -> tuple[FloatArray, FloatArray]:
        """Accuracy of a router by seed, (S, R), and its mean over resampled seeds and samples, (replicates, R)."""
        key = name, tuple(seeds)
        if key not in drawn:
            runs = [r for r, s in zip(study.runs(name, regime), study.seeds(name), strict=True) if s in seeds]
            drawn[key] = (
                measures_at(runs, rates).accuracy,
                resampled_accuracy(runs, rates, count=replicates),
            )
        return drawn[key]

    return {
        "weak": _stated(np.array([split.weak_accuracy for split in splits])),
        "strong": _stated(np.array([split.strong_accuracy for split in splits])),
        "routers": {name: _router(study, name, regime, rates, accuracy) for name in study.scores},
        "calibration": {
            name: {
                "ece": _stated(np.array([found[regime].ece for found in by_seed.values()])),
                "nll": _stated(np.array([found[regime].nll for found in by_seed.values()])),
            }
            for name, by_seed in study.quality.items()
        },
    }


def _router(
    study: Study,
    name: str,
    regime: int,
    rates: Sequence[float],
    accuracy: Callable[[str, Sequence[int]], tuple[FloatArray, FloatArray]],
) -> dict[str, Any]:
    runs, seeds = study.runs(name, regime), study.seeds(name)
    at = measures_at(runs, rates)
    band = study.band(name, regime).accuracy.mean(axis=0)
    value, drawn = accuracy(name, seeds)

    def minus(other: str) -> dict[str, list[float]]:
        its_value, its_drawn = accuracy(other, seeds)
        return _interval(value - its_value, drawn - its_drawn)

    return {
        "seeds": seeds,
        "accuracy": _stated(at.accuracy),
        "precision": _stated(at.precision),
        "neutral": _stated(at.neutral),
        "oracle_share": _stated(np.array([_share(run) for run in runs])),
        "peak": {"rate": float(band.argmax()) / (len(band) - 1), "accuracy": float(band.max())},
        "minus_confidence": minus(REFERENCE),
        "minus_analytical": minus(ANALYTICAL),
        "minus_ours": minus(OURS),
        "minus_weak": _interval(value - value[:, :1], drawn - drawn[:, :1]),
        "minus_strong": _interval(value - value[:, -1:], drawn - drawn[:, -1:]),
        "deployed": [
            {"rule": rule, "budget": budget, **_deployed(runs, rule, budget)}
            for rule, budget in runs[0].thresholds
        ],
    }  # fmt: skip


def _share(run: Routed) -> float:
    """Share of the oracle's gain over the router's own weak answers."""
    right = np.ones(len(run.score), dtype=int)
    best = tradeoff_curve(run.gain, run.weak_right.astype(int), run.strong_right.astype(int), right)
    return oracle_share(run.curve, best)


def _deployed(runs: Sequence[Routed], rule: str, budget: float | None) -> dict[str, Any]:
    rate, accuracy = deployed(runs, rule, budget)
    return {"rate": _stated(rate), "accuracy": _stated(accuracy)}


def _stated(values: FloatArray) -> dict[str, Any]:
    mean, std = mean_std(values)
    return {"mean": mean.tolist(), "std": std.tolist()}


def _interval(differences: FloatArray, drawn: FloatArray) -> dict[str, list[float]]:
    """Mean of differences by seed, with the interval of resamples and, beside it, Student's over the seeds."""
    low, high = interval(drawn)
    mean = differences.mean(axis=0)
    return {"mean": mean.tolist(), "low": low.tolist(), "high": high.tolist(), **over_seeds(differences)}
