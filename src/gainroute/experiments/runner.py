"""Run experiments: one cell (config × seed) at a time, resumed if interrupted."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gainroute._util.engines import Engine
from gainroute._util.progress import Progress
from gainroute.errors import SettingError
from gainroute.experiments.config import Config
from gainroute.experiments.records import Record, load_record, save_record
from gainroute.io.features import TablePreprocess
from gainroute.io.preprocess import ImagePreprocess
from gainroute.routing.routers import ExpectedGainRouter
from gainroute.routing.types import FloatArray
from gainroute.training.data.dataset import Part
from gainroute.training.data.noise import add_noise, noise_deviations, noisy_classes
from gainroute.training.data.registry import load_dataset
from gainroute.training.route_answers import RouteAnswers, overlay

if TYPE_CHECKING:
    from gainroute.training.prepare import Prepared
    from gainroute.training.routes import Routes

__all__ = ["check_records", "quantisation_shift", "run", "run_cell", "run_seeds", "summary"]


def run_cell(
    config: Config,
    seed: int,
    *,
    data_dir: str | os.PathLike[str] | None = None,
    work_dir: str | os.PathLike[str] | None = None,
    device: str = "cpu",
    progress: Progress | None = None,
    run_dir: str | os.PathLike[str] | None = None,
) -> Record:
    """Train both routes for one seed and answer calibration, test and every noisy regime; in full precision.

    The seed is that of the calibration split, of training and of the noise. Checkpoints are kept under `work_dir`, in
    one folder per config and seed, and finished stages are loaded from there. `run_dir` gets one folder per party and
    one for the server, which can serve the calibration and test samples. Without these two nothing is written.
    """
    # torch is imported here and not above: a config and a record are read without it.
    from gainroute.training.checkpoint import CheckpointStore
    from gainroute.training.optimise import check_device, threads
    from gainroute.training.prepare import prepare_dataset
    from gainroute.training.routes import train_routes
    from gainroute.training.run import describe_training
    from gainroute.training.trained_run import write_run

    check_device(device)
    dataset = load_dataset(config.data, data_dir)
    prepared = prepare_dataset(dataset, config.data.calibration, seed, repr(config.data))
    if any(config.noise.classes) and any(isinstance(step, TablePreprocess) for step in prepared.preprocess):
        raise SettingError(
            f"noise.classes is {list(config.noise.classes)}, but {config.data.source} has tables, whose categories "
            "have no unit that noise could be stated in: write classes = [0]"
        )
    store = CheckpointStore(None if work_dir is None else Path(work_dir) / config.name / f"seed{seed}")
    progress = progress or Progress()
    with threads(config.threads):
        routes = train_routes(prepared.train, config.routes, seed=seed, store=store, progress=progress, device=device)
        began = time.perf_counter()
        answers = _answer(config, seed, prepared, routes, device)
        seconds = store.seconds() | {"answering": time.perf_counter() - began}
    if run_dir is not None:
        write_run(run_dir, routes, prepared)
    described = describe_training(config.as_dict(), prepared, routes, seconds)
    answers |= {"class_names": dataset.class_names, "party_names": dataset.party_names}
    return Record(dataset=config.name, seed=seed, metadata=described, **answers)


def _answer(config: Config, seed: int, prepared: Prepared, routes: Routes, device: str) -> dict[str, Any]:
    from gainroute.training.answer import answer, answer_locally

    clean, noise = prepared.test, config.noise
    test = answer(routes, clean, device)
    answers: dict[str, Any] = {
        "calibration": answer(routes, prepared.calibration, device),
        "test": test,
        "training": answer_locally(routes, prepared.train, device),
    }
    counts = [count for count in noise.classes if count > 0]
    chosen = {count: tuple(noisy_classes(prepared.train.classes, count, seed).tolist()) for count in counts}
    if not counts:
        return answers | {"noisy": {}, "noisy_classes": {}}
    rows = np.flatnonzero(np.isin(clean.labels, chosen[max(counts)]))
    # Tables were refused before: every view has deviations that it was divided by.
    scales = [np.asarray(p.standardise.deviation) for p in prepared.preprocess if isinstance(p, ImagePreprocess)]

    def regimes(unit: str, *, both_routes_only: bool = False) -> dict[int, RouteAnswers]:
        views = add_noise(clean.views, noise_deviations(unit, noise.sigma, scales), seed)
        asked = replace(routes, defer={}) if both_routes_only else routes
        base, touched = test, answer(asked, Part(clean.ids, clean.labels, views).take(rows), device)
        if both_routes_only:
            base, touched = base.of_both_routes(), touched.of_both_routes()
        inside = {count: np.isin(touched.labels, names) for count, names in chosen.items()}
        return {count: overlay(base, rows[where], touched.take(where)) for count, where in inside.items()}

    others = noise.other_units if seed in noise.other_seeds else ()
    readings = {unit: regimes(unit, both_routes_only=True) for unit in others}
    return answers | {"noisy": regimes(noise.unit), "noisy_classes": chosen, "readings": readings}


def run(
    config: Config,
    seeds: Sequence[int],
    *,
    records_dir: str | os.PathLike[str],
    data_dir: str | os.PathLike[str] | None = None,
    work_dir: str | os.PathLike[str],
    device: str = "cpu",
    progress: Progress | None = None,
) -> list[Path]:
    """Run seeds one after the other, and return the paths of their records; one that exists is not run again.

    Records go to ``<records_dir>/<config name>/seed<seed>.npz``, and state what rounding has changed; the record in
    float32 is kept in the work folder, as ``exact.npz``.
    """
    paths = []
    for seed in seeds:
        path = Path(records_dir) / config.name / f"seed{seed}.npz"
        if not path.is_file():
            record = run_cell(config, seed, data_dir=data_dir, work_dir=work_dir, device=device, progress=progress)
            save_record(record, Path(work_dir) / config.name / f"seed{seed}/exact.npz", bits=32)
            save_record(record, path)
            shift = quantisation_shift(record, load_record(path))
            stated = {str(regime): round(points, 3) for regime, points in shift.items()}
            save_record(replace(record, metadata={**record.metadata, "quantisation_shift": stated}), path)
        paths.append(path)
    return paths


def run_seeds(config: Config, seeds: Sequence[int], engine: Engine, **folders: Any) -> Iterator[Path]:
    """As `run`, with the seeds as tasks of an engine: the paths of their records, as they are finished.

    `folders` are `records_dir`, `data_dir` and `work_dir`, and `device`, as for `run`.
    """
    absolute = {
        key: Path(value).absolute() if key.endswith("_dir") and value else value for key, value in folders.items()
    }
    return engine(_run_seed, list(seeds), (config, absolute))


def _run_seed(seed: int, shared: tuple[Config, dict[str, Any]], _stopped: Callable[[], bool]) -> Path:
    config, options = shared
    [path] = run(config, [seed], **options)
    return path


def check_records(config: Config, seeds: Sequence[int], records_dir: str | os.PathLike[str]) -> None:
    """Raise SettingError if a record under the config's name was made with other settings."""
    # Through JSON, as in records. Keys that only one of them has are ignored, because configs may gain keys.
    wanted = json.loads(json.dumps(config.as_dict()))
    for seed in seeds:
        path = Path(records_dir) / config.name / f"seed{seed}.npz"
        if not path.is_file():
            continue
        found = _first_difference(load_record(path).metadata.get("config", {}), wanted)
        if found is not None:
            raise SettingError(
                f"{path} was made with {found[0]} = {found[1]!r}, the config has {found[2]!r}: give the config a name "
                "of its own, name another --records-dir, or delete the record to run it again"
            )


def _first_difference(made: Any, wanted: Any, where: str = "") -> tuple[str, Any, Any] | None:
    if isinstance(made, dict) and isinstance(wanted, dict):
        inner = (_first_difference(made[k], wanted[k], f"{where}{k}.") for k in sorted(set(made) & set(wanted)))
        return next((found for found in inner if found is not None), None)
    return None if made == wanted else (where.rstrip("."), made, wanted)


def summary(record: Record) -> dict[str, list[float]]:
    """Accuracy in percent of the weak and the strong route, by regime."""
    return {
        str(regime): [round(100 * split.weak_accuracy, 1), round(100 * split.strong_accuracy, 1)]
        for regime, split in record.regimes().items()
    }


# ---- what rounding changes ----------------------------------------------------------------------


def _confidence(_record: Record) -> Callable[[RouteAnswers], FloatArray]:
    return lambda split: np.asarray(-split.local_posteriors.mean(axis=0, dtype=np.float64).max(axis=1))


def _expected_gain(record: Record) -> Callable[[RouteAnswers], FloatArray]:
    held = record.calibration
    router = ExpectedGainRouter.paper().fit(held.local_posteriors, held.labels, held.strong_prediction)
    return lambda split: router.route(split.local_posteriors).score


def _accuracy_at(split: RouteAnswers, scores: FloatArray, budget: float) -> float:
    rows = np.argsort(-scores, kind="stable")[: round(budget * len(split))]
    answer = split.weak_prediction.copy()
    answer[rows] = split.strong_prediction[rows]
    return float((answer == split.labels).mean())


def quantisation_shift(
    exact: Record, decoded: Record, budgets: Sequence[float] = (0.1, 0.2, 0.4, 0.6, 0.8)
) -> dict[int, float]:
    """The change of accuracy at the budgets, in points, when a float32 record is stored and decoded, by regime.

    It is the largest over budgets, with confidence and with the paper's router, fitted on each record's calibration
    part.
    """
    shifts = dict.fromkeys(exact.regimes(), 0.0)
    for scorer in (_confidence, _expected_gain):
        before, after = scorer(exact), scorer(decoded)
        for regime, first in exact.regimes().items():
            second = decoded.regimes()[regime]
            scores = before(first), after(second)
            for budget in budgets:
                moved = abs(_accuracy_at(first, scores[0], budget) - _accuracy_at(second, scores[1], budget))
                shifts[regime] = max(shifts[regime], 100 * moved)
    return shifts
