"""Run experiments: one cell (config × seed) at a time, resumed if interrupted.

::

    python -m gainroute.experiments.runner modelnet40 --seeds 0 1 2 --data-dir DIR --work-dir DIR --records-dir DIR
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gainroute._util.progress import LineProgress, Progress
from gainroute.errors import SettingError
from gainroute.experiments.config import Config, load_config
from gainroute.experiments.quantisation import quantisation_shift
from gainroute.experiments.records import Record, load_record, save_record
from gainroute.training.data.dataset import Part
from gainroute.training.data.noise import add_noise, noisy_classes
from gainroute.training.data.registry import load_dataset
from gainroute.training.route_answers import RouteAnswers, overlay

if TYPE_CHECKING:
    from gainroute.training.prepare import Prepared
    from gainroute.training.routes import Routes

__all__ = ["check_records", "main", "run", "run_cell", "summary"]


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
    """Train both routes for one seed and answer calibration, test and every noisy regime.

    Parameters
    ----------
    config
        The experiment.
    seed
        Of the calibration split, of training and of the noise.
    data_dir
        The folder of the data files; the digits need none.
    work_dir
        Where checkpoints are kept, in one folder per config and seed; finished stages are loaded from there. None
        keeps nothing.
    device
        A torch device.
    progress
        Where progress is reported.
    run_dir
        Gets one folder per party and one for the server, which can serve the calibration and test samples. Nothing is
        written by default.

    Returns
    -------
    Record
        In full precision; `save_record` rounds it.
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
    store = CheckpointStore(None if work_dir is None else Path(work_dir) / config.name / f"seed{seed}")
    progress = progress or Progress()
    with threads(config.threads):
        routes = train_routes(prepared.train, config.routes, seed=seed, store=store, progress=progress, device=device)
        began = time.perf_counter()
        calibration, test, noisy, chosen = _answer(config, seed, prepared, routes, device)
        seconds = store.seconds() | {"answering": time.perf_counter() - began}
    if run_dir is not None:
        write_run(run_dir, routes, prepared)
    return Record(
        config.name,
        seed,
        calibration,
        test,
        noisy,
        chosen,
        dataset.class_names,
        dataset.party_names,
        describe_training(config.as_dict(), prepared, routes, seconds),
    )


def _answer(
    config: Config, seed: int, prepared: Prepared, routes: Routes, device: str
) -> tuple[RouteAnswers, RouteAnswers, dict[int, RouteAnswers], dict[int, tuple[int, ...]]]:
    from gainroute.training.answer import answer

    clean = prepared.test
    calibration, test = answer(routes, prepared.calibration, device), answer(routes, clean, device)
    counts = [count for count in config.noise.classes if count > 0]
    chosen = {count: tuple(noisy_classes(prepared.train.classes, count, seed).tolist()) for count in counts}
    if not counts:
        return calibration, test, {}, {}
    rows = np.flatnonzero(np.isin(clean.labels, chosen[max(counts)]))
    degraded = Part(clean.ids, clean.labels, add_noise(clean.views, config.noise.sigma, seed)).take(rows)
    touched = answer(routes, degraded, device)
    noisy = {}
    for count, names in chosen.items():
        inside = np.isin(touched.labels, names)
        noisy[count] = overlay(test, rows[inside], touched.take(inside))
    return calibration, test, noisy, chosen


def _state_shift(record: Record, work: Path, path: Path) -> Record:
    """Save a record in float32 under `work` and rounded at `path`; the latter states the shift between the two."""
    save_record(record, work / "exact.npz", bits=32)
    save_record(record, path)
    shift = quantisation_shift(record, load_record(path))
    stated = {str(regime): round(points, 3) for regime, points in shift.items()}
    record = replace(record, metadata={**record.metadata, "quantisation_shift": stated})
    save_record(record, path)
    return record


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
    """Run seeds one after the other; a seed whose record exists is not run again.

    Parameters
    ----------
    config, device, progress, data_dir
        As in `run_cell`.
    seeds
        Which seeds.
    records_dir
        Records go to ``<records_dir>/<config name>/seed<seed>.npz``. Delete one to run it again.
    work_dir
        For checkpoints, and next to them ``exact.npz``: the record in float32.

    Returns
    -------
    list of Path
        The records, in the order of `seeds`.
    """
    paths = []
    for seed in seeds:
        path = Path(records_dir) / config.name / f"seed{seed}.npz"
        if not path.is_file():
            record = run_cell(config, seed, data_dir=data_dir, work_dir=work_dir, device=device, progress=progress)
            _state_shift(record, Path(work_dir) / config.name / f"seed{seed}", path)
        paths.append(path)
    return paths


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


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line of this module; `gainroute reproduce` is the one for users."""
    parser = argparse.ArgumentParser(prog="python -m gainroute.experiments.runner", description=__doc__)
    parser.add_argument("config")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--data-dir")
    parser.add_argument("--work-dir", required=True)
    parser.add_argument("--records-dir", required=True)
    parser.add_argument("--device", default="cpu")
    chosen = parser.parse_args(arguments)
    config, progress = load_config(chosen.config), LineProgress(sys.stderr)
    for seed in chosen.seeds:
        progress.say(f"{config.name}, seed {seed}")
        [path] = run(
            config,
            [seed],
            records_dir=chosen.records_dir,
            data_dir=chosen.data_dir,
            work_dir=chosen.work_dir,
            device=chosen.device,
            progress=progress,
        )
        progress.say(f"{path}: {json.dumps(summary(load_record(path)))}")


if __name__ == "__main__":
    main()
