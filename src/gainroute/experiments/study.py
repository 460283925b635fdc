"""A study: all routers on all seeds of one dataset, and its summary as plain numbers, ready for JSON."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from gainroute._util.blas import one_thread
from gainroute._util.resampling import interval
from gainroute.errors import DataError
from gainroute.evaluation.metrics import oracle_share, tradeoff_curve
from gainroute.experiments.records import Record
from gainroute.experiments.results import (
    ANALYTICAL,
    ORACLE,
    OURS,
    REFERENCE,
    CalibrationQuality,
    Measures,
    Routed,
    RouterScores,
    ablation_routers,
    calibration_quality,
    compared_routers,
    curve_band,
    defer_name,
    defer_scores,
    deployed,
    fit_router,
    mean_std,
    measures_at,
    oracle_scores,
    resampled_accuracy,
    routed,
)
from gainroute.routing.payload import communication_cost
from gainroute.routing.router import Router
from gainroute.routing.types import FloatArray

__all__ = ["CALIBRATORS", "RATES", "Study", "study_of", "summarise"]

RATES = (0.0, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0)
CALIBRATORS = ("none", "temperature", "Dirichlet")

Fit = Callable[[str, Callable[[], Router], Record], RouterScores]
Judge = Callable[[Record, str], dict[int, CalibrationQuality]]


@dataclass(frozen=True, eq=False)
class Study:
    """All routers on all seeds of one dataset.

    Attributes
    ----------
    records
        One a seed.
    scores
        By router, by seed. Learning to defer with a cross-fitted expert may lack seeds.
    quality
        By calibrator, by seed, by regime.
    stamps
        By seed, the hash of the record's file, where the records were read from files.
    """

    records: tuple[Record, ...]
    scores: Mapping[str, Mapping[int, RouterScores]]
    quality: Mapping[str, Mapping[int, Mapping[int, CalibrationQuality]]]
    stamps: Mapping[int, str] = field(default_factory=dict)
    _runs: dict[tuple[str, int], list[Routed]] = field(default_factory=dict)
    _bands: dict[tuple[str, int], Measures] = field(default_factory=dict)

    @property
    def regimes(self) -> tuple[int, ...]:
        """Numbers of noisy classes, 0 first."""
        return tuple(sorted(self.records[0].regimes()))

    def runs(self, name: str, regime: int) -> list[Routed]:
        """One router under one regime, a run a seed that has it."""
        if (name, regime) not in self._runs:
            found = self.scores[name]
            self._runs[name, regime] = [
                routed(found[record.seed], record.regimes()[regime], regime)
                for record in self.records
                if record.seed in found
            ]
        return self._runs[name, regime]

    def band(self, name: str, regime: int) -> Measures:
        """Acc., EP and NE of one router under one regime on an even grid of rates, a row a seed."""
        if (name, regime) not in self._bands:
            self._bands[name, regime] = curve_band(self.runs(name, regime))
        return self._bands[name, regime]

    def seeds(self, name: str) -> list[int]:
        """Seeds that have a router."""
        return [record.seed for record in self.records if record.seed in self.scores[name]]

    def bytes_at(self, rate: float) -> float:
        """Payload bytes a sample at an escalation rate, all parties together, in float32."""
        dimensions = self.records[0].metadata["embedding_dimensions"]
        return communication_cost(len(self.records[0].class_names), dimensions, rate)


def study_of(
    records: Sequence[Record],
    strangers: Mapping[str, Callable[[], Router]] | None = None,
    *,
    fit: Fit | None = None,
    judge: Judge | None = None,
) -> Study:
    """Fit every router on every record of one dataset.

    Parameters
    ----------
    records
        Of one dataset, one a seed.
    strangers
        Further routers by name.
    fit, judge
        What fits a router and judges a calibrator; a caller with a cache puts it in between.
    """
    datasets = {record.dataset for record in records}
    if len(datasets) != 1:
        raise DataError(f"the records are of {sorted(datasets) or 'no dataset'}; one dataset at a time is needed")
    ordered = tuple(sorted(records, key=lambda record: record.seed))
    ids = np.sort(ordered[0].test.ids)
    for record in ordered[1:]:
        if not np.array_equal(ids, np.sort(record.test.ids)):
            raise DataError(
                f"seeds {ordered[0].seed} and {record.seed} of {record.dataset} have different test samples; paired "
                "differences need one test part"
            )
    fit = fit or (lambda _name, build, record: fit_router(build, record))
    judge = judge or calibration_quality
    builders = {**compared_routers(), **ablation_routers(), **(strangers or {})}
    scores: dict[str, dict[int, RouterScores]] = {name: {} for name in builders}
    quality: dict[str, dict[int, dict[int, CalibrationQuality]]] = {name: {} for name in CALIBRATORS}
    fits = [partial(fit, name, build, record) for name, build in builders.items() for record in ordered]
    judgements = [partial(judge, record, name) for name in CALIBRATORS for record in ordered]
    with one_thread():
        found = iter(_side_by_side([*fits, *judgements]))
    for name in builders:
        scores[name] = {record.seed: next(found) for record in ordered}
    for name in CALIBRATORS:
        quality[name] = {record.seed: next(found) for record in ordered}
    for record in ordered:
        for alpha in record.test.defer:
            scores.setdefault(defer_name(alpha), {})[record.seed] = defer_scores(record, alpha)
        scores.setdefault(ORACLE, {})[record.seed] = oracle_scores(record)
    # Chance and the oracle are no contenders: they close every table.
    last = ("random", ORACLE)
    names = [*(name for name in scores if name not in last), *last]
    return Study(ordered, {name: scores[name] for name in names}, quality)


def _side_by_side(work: Sequence[Callable[[], Any]]) -> list[Any]:
    """Do it all, on every core: what is fitted here is matrix products, and those let other threads run."""
    pool = ThreadPoolExecutor(os.cpu_count())
    try:
        return list(pool.map(lambda do: do(), work))
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


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
        """Mean accuracy of a router over some seeds, (R,), and on resampled test parts, (replicates, R)."""
        key = name, tuple(seeds)
        if key not in drawn:
            runs = [r for r, s in zip(study.runs(name, regime), study.seeds(name), strict=True) if s in seeds]
            drawn[key] = (
                measures_at(runs, rates).accuracy.mean(axis=0),
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
        "minus_weak": _interval(value - value[0], drawn - drawn[:, :1]),
        "minus_strong": _interval(value - value[-1], drawn - drawn[:, -1:]),
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


def _interval(difference: FloatArray, drawn: FloatArray) -> dict[str, list[float]]:
    low, high = interval(drawn)
    return {"mean": difference.tolist(), "low": low.tolist(), "high": high.tolist()}
