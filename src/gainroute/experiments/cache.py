"""What was fitted once is not fitted twice: scores kept by the hash of record, router, settings and version."""

from __future__ import annotations

import hashlib
import inspect
import io
import json
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

import gainroute
from gainroute import __version__
from gainroute._util.blas import one_thread
from gainroute._util.files import write_bytes
from gainroute.experiments.partial_curves import partial_builder, partial_curves
from gainroute.experiments.records import Record, load_record
from gainroute.experiments.results import CalibrationQuality, RouterScores, calibration_quality, fit_router
from gainroute.experiments.study import Study, study_of
from gainroute.routing.router import Router
from gainroute.routing.types import FloatArray

__all__ = ["Cache", "cached_partial", "cached_study", "settings_text", "stamp"]

T = TypeVar("T")
CORE = Path(gainroute.__file__).parent / "routing"
RESTS_ON = ("_newton", "blend", "calibrate", "score", "learned_gain", "log_linear", "pool", "reliability", "pipeline")
Arrays = Mapping[str, npt.NDArray[Any]]


class Cache:
    """Arrays and summaries by the hash of what they were made from; absent or damaged ones are made anew.

    Parameters
    ----------
    folder
        Where they are kept; None keeps nothing.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def arrays(self, key: Sequence[str], make: Callable[[], Arrays]) -> Arrays:
        """Return the arrays under `key`, made by `make` unless they are kept."""

        def read(data: bytes) -> Arrays:
            with np.load(io.BytesIO(data), allow_pickle=False) as file:
                return {name: file[name] for name in file.files}

        def write(arrays: Arrays) -> bytes:
            out = io.BytesIO()
            named: dict[str, Any] = dict(arrays)
            np.savez_compressed(out, **named)
            return out.getvalue()

        return self._kept(key, "npz", make, read, write)

    def numbers(self, key: Sequence[str], make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Return the plain numbers under `key`, made by `make` unless they are kept."""

        def read(data: bytes) -> dict[str, Any]:
            return dict(json.loads(data))

        return self._kept(key, "json", make, read, lambda value: json.dumps(value).encode())

    def _kept(
        self,
        key: Sequence[str],
        kind: str,
        make: Callable[[], T],
        read: Callable[[bytes], T],
        write: Callable[[T], bytes],
    ) -> T:
        if self._folder is None:
            return make()
        name = hashlib.sha256("\0".join((__version__, *key)).encode()).hexdigest()[:32]
        path = self._folder / f"{name}.{kind}"
        if path.is_file():
            try:
                return read(path.read_bytes())
            except (ValueError, OSError, EOFError, zipfile.BadZipFile):
                path.unlink(missing_ok=True)
        value = make()
        self._folder.mkdir(parents=True, exist_ok=True)
        write_bytes(path, write(value))
        return value


def stamp(paths: Sequence[Path]) -> str:
    """Hash the content of files."""
    whole = hashlib.sha256()
    for path in paths:
        whole.update(path.read_bytes())
    return whole.hexdigest()


def settings_text(build: Callable[[], Router]) -> str:
    """Everything that decides a router's scores: its settings, and the files that it and what it rests on are in."""
    router = build()
    kinds = (inspect.getsourcefile(kind) for kind in type(router).__mro__[:-1])
    files = {*(Path(file) for file in kinds if file is not None), *(CORE / f"{name}.py" for name in RESTS_ON)}
    return f"{type(router).__qualname__} {router.settings()!r} {stamp(sorted(files))}"


def cached_study(
    paths: Sequence[Path],
    strangers: Mapping[str, Callable[[], Router]],
    cache: Cache,
    say: Callable[[str], None] | None = None,
) -> Study:
    """Do `study_of` on record files, fitting only what the cache does not hold.

    Parameters
    ----------
    paths
        Records of one dataset.
    strangers
        Routers from outside the package, by name.
    cache
        Where fitted scores are looked up and kept.
    say
        Called with a few words before each fit.
    """
    records = {path: load_record(path) for path in paths}
    stamps = {id(record): stamp([path]) for path, record in records.items()}

    def fit(name: str, build: Callable[[], Router], record: Record) -> RouterScores:
        def make() -> Arrays:
            if say is not None:
                say(f"{record.dataset}, seed {record.seed}: {name}")
            return _flat(fit_router(build, record))

        return _whole(cache.arrays((stamps[id(record)], "scores", settings_text(build)), make))

    def judge(record: Record, name: str) -> dict[int, CalibrationQuality]:
        def make() -> Arrays:
            found = calibration_quality(record, name)
            return {f"{regime}.{k}": np.asarray(v) for regime, q in found.items() for k, v in vars(q).items()}

        kept = cache.arrays((stamps[id(record)], "calibration", name), make)

        def read(regime: int) -> CalibrationQuality:
            ece, nll, *diagram = (kept[f"{regime}.{k}"] for k in ("ece", "nll", "confidence", "accuracy", "share"))
            return CalibrationQuality(float(ece), float(nll), *diagram)

        return {regime: read(regime) for regime in record.regimes()}

    study = study_of(list(records.values()), strangers, fit=fit, judge=judge)
    return replace(study, stamps={record.seed: stamps[id(record)] for record in study.records})


def cached_partial(
    study: Study, cache: Cache, say: Callable[[str], None] | None = None
) -> dict[int, dict[int, FloatArray]]:
    """Partial escalation by seed and regime, computed only where the cache does not hold it; {} without subsets.

    Parameters
    ----------
    study
        Of `cached_study`.
    cache, say
        As there.
    """
    found = {}
    for record in study.records:
        if not record.calibration.subset_predictions:
            return {}

        def make(record: Record = record) -> Arrays:
            if say is not None:
                say(f"{record.dataset}, seed {record.seed}: partial escalation")
            with one_thread():
                return {str(regime): curve for regime, curve in partial_curves(record, partial_builder).items()}

        key = (study.stamps[record.seed], "partial", settings_text(partial_builder))
        found[record.seed] = {int(regime): curve for regime, curve in cache.arrays(key, make).items()}
    return found


def _flat(scores: RouterScores) -> Arrays:
    arrays: dict[str, npt.NDArray[Any]] = {f"score.{regime}": value for regime, value in scores.score.items()}
    arrays |= {f"weak.{regime}": value for regime, value in scores.weak_prediction.items()}
    arrays |= {f"strong.{regime}": value for regime, value in scores.strong_prediction.items()}
    rules = np.array(json.dumps(list(scores.thresholds)))
    return {**arrays, "rules": rules, "thresholds": np.array(list(scores.thresholds.values()))}


def _whole(arrays: Arrays) -> RouterScores:
    rules: list[tuple[str, float | None]] = [(rule, budget) for rule, budget in json.loads(str(arrays["rules"]))]

    def part(prefix: str) -> dict[int, Any]:
        return {int(key.partition(".")[2]): value for key, value in arrays.items() if key.startswith(f"{prefix}.")}

    thresholds = dict(zip(rules, arrays["thresholds"].tolist(), strict=True))
    return RouterScores(part("score"), part("weak"), thresholds, part("strong"))
