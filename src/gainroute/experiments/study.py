"""A study: every router fitted on every seed of one data set."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from gainroute._util.blas import one_thread
from gainroute._util.hashing import hash_contents
from gainroute.errors import DataError
from gainroute.experiments.cache import Arrays, Cache, source_hash
from gainroute.experiments.measures import (
    CALIBRATORS,
    CalibrationQuality,
    Measures,
    Routed,
    calibration_quality,
    curve_band,
    oracle_scores,
    routed,
)
from gainroute.experiments.records import Record, load_record
from gainroute.experiments.scores import (
    ORACLE,
    Builder,
    RouterScores,
    ablation_routers,
    compared_routers,
    defer_name,
    defer_scores,
    fit_router,
)
from gainroute.routing.payload import communication_cost

__all__ = ["Study", "load_study", "router_key", "study_of"]


@dataclass(frozen=True, eq=False)
class Study:
    """All routers on all seeds of one data set."""

    records: tuple[Record, ...]  # one per seed
    scores: Mapping[str, Mapping[int, RouterScores]]  # by router, by seed; a cross-fitted expert may lack seeds
    quality: Mapping[str, Mapping[int, Mapping[int, CalibrationQuality]]]  # by calibrator, by seed, by regime
    stamps: Mapping[int, str] = field(default_factory=dict)  # by seed, the hash of the record's file, if it has one
    _runs: dict[tuple[str, int], list[Routed]] = field(default_factory=dict)
    _bands: dict[tuple[str, int], Measures] = field(default_factory=dict)

    @property
    def regimes(self) -> tuple[int, ...]:
        """Numbers of noisy classes, 0 first."""
        return tuple(sorted(self.records[0].regimes()))

    def runs(self, name: str, regime: int) -> list[Routed]:
        """One router under one regime; one entry per seed that has it."""
        if (name, regime) not in self._runs:
            found = self.scores[name]
            self._runs[name, regime] = [
                routed(found[record.seed], record.regimes()[regime], regime)
                for record in self.records
                if record.seed in found
            ]
        return self._runs[name, regime]

    def band(self, name: str, regime: int) -> Measures:
        """Acc., EP and NE of one router under one regime on an even grid of rates, one row per seed."""
        if (name, regime) not in self._bands:
            self._bands[name, regime] = curve_band(self.runs(name, regime))
        return self._bands[name, regime]

    def seeds(self, name: str) -> list[int]:
        """Seeds that have a router."""
        return [record.seed for record in self.records if record.seed in self.scores[name]]

    def bytes_at(self, rate: float) -> float:
        """Payload bytes per sample at an escalation rate, all parties together, in float32."""
        dimensions = self.records[0].metadata["embedding_dimensions"]
        return communication_cost(len(self.records[0].class_names), dimensions, rate)


def study_of(
    records: Sequence[Record],
    external: Mapping[str, Builder] | None = None,
    *,
    cache: Cache | None = None,
    stamps: Mapping[int, str] | None = None,
    say: Callable[[str], None] | None = None,
) -> Study:
    """Fit every router, and further ones by name, on every record of one data set.

    Fitted scores are looked up and kept in `cache`, by `stamps`: the hash of each record's file by seed. `say` is
    called with a few words before each fit.
    """
    datasets = {record.dataset for record in records}
    if len(datasets) != 1:
        raise DataError(f"the records are of {sorted(datasets) or 'no data set'}; pass the records of one data set")
    ordered = tuple(sorted(records, key=lambda record: record.seed))
    ids = np.sort(ordered[0].test.ids)
    for record in ordered[1:]:
        if not np.array_equal(ids, np.sort(record.test.ids)):
            raise DataError(
                f"seeds {ordered[0].seed} and {record.seed} of {record.dataset} have different test samples; paired "
                "differences need one test part"
            )
    fitting = _Fitting(cache or Cache(), stamps or {}, say or (lambda _text: None))
    builders = {**compared_routers(), **ablation_routers(), **(external or {})}
    fits = [partial(fitting.scores, name, build, record) for name, build in builders.items() for record in ordered]
    judgements = [partial(fitting.quality, name, record) for name in CALIBRATORS for record in ordered]
    with one_thread():
        found = iter(_side_by_side([*fits, *judgements]))
    scores = {name: {record.seed: next(found) for record in ordered} for name in builders}
    quality = {name: {record.seed: next(found) for record in ordered} for name in CALIBRATORS}
    for record in ordered:
        for alpha in record.test.defer:
            scores.setdefault(defer_name(alpha), {})[record.seed] = defer_scores(record, alpha)
        scores.setdefault(ORACLE, {})[record.seed] = oracle_scores(record)
    # Random escalation and the oracle are no contenders: they are the last rows of every table.
    last = ("random", ORACLE)
    names = [*(name for name in scores if name not in last), *last]
    return Study(ordered, {name: scores[name] for name in names}, quality, stamps or {})


def load_study(
    paths: Sequence[Path],
    external: Mapping[str, Builder],
    cache: Cache,
    say: Callable[[str], None] | None = None,
) -> Study:
    """Read the records of one data set, and fit whatever the cache does not hold; see `study_of`."""
    records = [load_record(path) for path in paths]
    stamps = {record.seed: hash_contents(path) for record, path in zip(records, paths, strict=True)}
    return study_of(records, external, cache=cache, stamps=stamps, say=say)


def router_key(build: Builder) -> str:
    """Everything that decides a router's scores on given data: its settings, and its code."""
    router = build()
    return f"{type(router).__qualname__} {router.settings()!r} {source_hash(type(router).__module__)}"


@dataclass(frozen=True)
class _Fitting:
    """Fits routers and calibrators through the cache."""

    cache: Cache
    stamps: Mapping[int, str]
    say: Callable[[str], None]

    def scores(self, name: str, build: Builder, record: Record) -> RouterScores:
        def make() -> Arrays:
            self.say(f"{record.dataset}, seed {record.seed}: {name}")
            return fit_router(build, record).to_arrays()

        if not self.stamps:
            return fit_router(build, record)
        key = ("scores", self.stamps[record.seed], source_hash(fit_router.__module__), router_key(build))
        return RouterScores.from_arrays(self.cache.arrays(key, make))

    def quality(self, name: str, record: Record) -> dict[int, CalibrationQuality]:
        def make() -> Arrays:
            found = calibration_quality(record, name)
            return {f"{regime}.{key}": np.asarray(v) for regime, q in found.items() for key, v in vars(q).items()}

        if not self.stamps:
            return calibration_quality(record, name)
        key = ("calibration", self.stamps[record.seed], source_hash(calibration_quality.__module__), name)
        kept: Mapping[str, Any] = self.cache.arrays(key, make)
        names = [f.name for f in fields(CalibrationQuality)]
        return {r: CalibrationQuality(*(kept[f"{r}.{k}"][()] for k in names)) for r in record.regimes()}


def _side_by_side(work: Sequence[Callable[[], Any]]) -> list[Any]:
    """Run all of it on every core: fits are matrix products, which release the interpreter lock."""
    pool = ThreadPoolExecutor(os.cpu_count())
    try:
        return list(pool.map(lambda do: do(), work))
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
