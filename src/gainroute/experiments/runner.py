"""Run experiments: one cell (config × seed) at a time, resumed where it was broken off.

::

    python -m gainroute.experiments.runner modelnet40 --seeds 0 1 2 --data-dir DIR --work-dir DIR --records-dir DIR
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gainroute._util.progress import LineProgress, NoProgress, Progress
from gainroute.errors import DataError, SettingError
from gainroute.experiments.config import Config, load_config
from gainroute.experiments.records import Record, load_record, quantisation_shift, save_record
from gainroute.routing.payload import round_trip
from gainroute.training.data.noise import add_noise, noisy_classes
from gainroute.training.data.registry import load_dataset
from gainroute.training.route_answers import RouteAnswers, overlay
from gainroute.training.settings import RouteSettings, default_route_settings

if TYPE_CHECKING:
    from gainroute.training.prepare import Prepared
    from gainroute.training.routes import Routes

__all__ = ["answer_views", "check_records", "main", "run", "run_cell", "summary", "train_views"]


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
        Where the data files are; the digits need none.
    work_dir
        Where checkpoints are kept, in a folder for the config and seed; finished stages are loaded from
        there. None keeps nothing.
    device
        A torch device.
    progress
        Who is told; nobody unless given.
    run_dir
        Where a folder for each party and one for the server are left, to serve the calibration and test
        samples from; nothing is left unless given.

    Returns
    -------
    Record
        In full precision; `save_record` rounds it.
    """
    # torch is imported here and not above: a config and a record are read without it.
    from gainroute.training.checkpoint import CheckpointStore
    from gainroute.training.optimise import threads
    from gainroute.training.prepare import prepare
    from gainroute.training.routes import train_routes
    from gainroute.training.trained_run import write_run

    dataset = load_dataset(config.data, data_dir)
    prepared = prepare(dataset, config.data.calibration, seed, repr(config.data))
    store = CheckpointStore(None if work_dir is None else Path(work_dir) / config.name / f"seed{seed}")
    told = progress or NoProgress()
    with threads(config.threads):
        routes = train_routes(prepared.train, config.routes, seed=seed, store=store, progress=told, device=device)
        began = time.perf_counter()
        calibration, test, noisy, chosen = _answer(config, seed, prepared, routes, dataset.classes, device)
        seconds = store.seconds() | {"answering": time.perf_counter() - began}
    if run_dir is not None:
        held, clean = prepared.calibration, prepared.test
        write_run(
            run_dir,
            routes,
            prepared.preprocess,
            np.concatenate([held.ids, clean.ids]),
            [np.concatenate(pair) for pair in zip(held.views, clean.views, strict=True)],
            party_names=dataset.party_names,
            class_names=dataset.class_names,
        )
    return Record(
        config.name,
        seed,
        calibration,
        test,
        noisy,
        chosen,
        dataset.class_names,
        dataset.party_names,
        _metadata(config.as_dict(), prepared, routes, seconds),
    )


def _answer(
    config: Config, seed: int, prepared: Prepared, routes: Routes, classes: int, device: str
) -> tuple[RouteAnswers, RouteAnswers, dict[int, RouteAnswers], dict[int, tuple[int, ...]]]:
    from gainroute.training.answer import answer

    held, clean = prepared.calibration, prepared.test
    calibration = answer(routes, held.views, held.ids, held.labels, device)
    test = answer(routes, clean.views, clean.ids, clean.labels, device)
    counts = [count for count in config.noise.classes if count > 0]
    chosen = {count: tuple(noisy_classes(classes, count, seed).tolist()) for count in counts}
    if not counts:
        return calibration, test, {}, {}
    rows = np.flatnonzero(np.isin(clean.labels, chosen[max(counts)]))
    views = [view[rows] for view in add_noise(clean.views, config.noise.sigma, seed)]
    touched = answer(routes, views, clean.ids[rows], clean.labels[rows], device)
    noisy = {}
    for count, names in chosen.items():
        inside = np.isin(touched.labels, names)
        noisy[count] = overlay(test, rows[inside], touched.take(inside))
    return calibration, test, noisy, chosen


def _metadata(config: dict[str, Any], prepared: Prepared, routes: Routes, seconds: dict[str, float]) -> dict[str, Any]:
    import torch

    return {
        "config": config,
        "versions": {"python": platform.python_version(), "numpy": np.__version__, "torch": torch.__version__},
        "split_hash": prepared.fingerprint,
        "embedding_dimensions": list(routes.strong.head_spec.options["dimensions"]),
        "parameters": {
            "local": [sum(p.numel() for p in model.parameters()) for model in routes.local],
            "encoder": [sum(p.numel() for p in model.parameters()) for model in routes.strong.encoders],
            "head": sum(p.numel() for p in routes.strong.head.parameters()),
        },
        "train_samples": len(prepared.train.labels),
        "seconds": {name: round(value, 1) for name, value in seconds.items()},
    }


def _state_shift(record: Record, work: Path, path: Path) -> Record:
    """Save in float32 under `work` and rounded at `path`, the shift between the two within the latter."""
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
    """Run seeds one after the other, each whole before the next; a record that is there is not run again.

    Parameters
    ----------
    config, device, progress, data_dir
        As in `run_cell`.
    seeds
        Which seeds.
    records_dir
        Records go to ``<records_dir>/<config name>/seed<seed>.npz``. Delete one to run it anew.
    work_dir
        For checkpoints, and beside them ``exact.npz``: the record in float32.

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
    """Refuse to take a record for the config's own that was made with other settings under the same name."""
    # Through JSON, as records keep it; keys that one of them does not know are left out: configs may grow.
    wanted = json.loads(json.dumps(config.as_dict()))
    for seed in seeds:
        path = Path(records_dir) / config.name / f"seed{seed}.npz"
        if not path.is_file():
            continue
        found = _first_difference(load_record(path).metadata.get("config", {}), wanted)
        if found is not None:
            raise SettingError(
                f"{path} was made with {found[0]} = {found[1]!r}, the config has {found[2]!r}: give the config a name "
                "of its own, name another --records-dir, or delete the record to run it anew"
            )


def _first_difference(made: Any, wanted: Any, where: str = "") -> tuple[str, Any, Any] | None:
    if isinstance(made, dict) and isinstance(wanted, dict):
        inner = (_first_difference(made[k], wanted[k], f"{where}{k}.") for k in sorted(set(made) & set(wanted)))
        return next((found for found in inner if found is not None), None)
    return None if made == wanted else (where.rstrip("."), made, wanted)


def train_views(
    views: Sequence[str | os.PathLike[str]],
    labels: str | os.PathLike[str],
    out_dir: str | os.PathLike[str],
    *,
    seed: int = 0,
    test: float = 0.3,
    calibration: float = 0.2,
    id_column: str = "id",
    label_column: str = "label",
    kinds: Mapping[str, str] | None = None,
    settings: RouteSettings | None = None,
    device: str = "cpu",
    progress: Progress | None = None,
) -> Record:
    """Train both routes on own views and leave party folders, server folder and ``record.npz`` in `out_dir`.

    Parameters
    ----------
    views, labels, test, calibration, id_column, label_column, kinds
        As in `gainroute.training.own.prepare_own`.
    out_dir
        The run's folder; checkpoints are kept in ``work`` within it, and a broken-off run is resumed.
    seed
        Of splits and training.
    settings
        How both routes are trained; modest models unless given.
    device, progress
        Where it runs, and who is told.
    """
    from gainroute.training.answer import answer
    from gainroute.training.checkpoint import CheckpointStore
    from gainroute.training.own import prepare_own
    from gainroute.training.routes import train_routes
    from gainroute.training.trained_run import write_run

    out, told = Path(out_dir), progress or NoProgress()
    options = {"seed": seed, "test": test, "calibration": calibration}
    own = prepare_own(
        views,
        labels,
        seed=seed,
        test=test,
        calibration=calibration,
        id_column=id_column,
        label_column=label_column,
        kinds=kinds,
    )
    prepared, store = own.prepared, CheckpointStore(out / "work")
    chosen = settings or default_route_settings(len(prepared.train.labels))
    routes = train_routes(prepared.train, chosen, seed=seed, store=store, progress=told, device=device)
    parties = prepared.train.party_names
    splits = [answer(routes, p.views, p.ids, p.labels, device) for p in (prepared.calibration, prepared.test)]
    config = {**options, **asdict(chosen)}
    metadata = _metadata(config, prepared, routes, store.seconds())
    record = Record("own", seed, splits[0], splits[1], {}, {}, own.class_names, parties, metadata)
    write_run(out, routes, prepared.preprocess, own.ids, own.views, party_names=parties, class_names=own.class_names)
    save_record(record, out / "record.npz")
    return record


def answer_views(
    run_dir: str | os.PathLike[str],
    views: Sequence[str | os.PathLike[str]],
    labels: str | os.PathLike[str],
    *,
    id_column: str = "id",
    label_column: str = "label",
    codec: str = "float32",
    device: str = "cpu",
) -> RouteAnswers:
    """What a trained run answers on new views; no subsets, no learning to defer.

    Parameters
    ----------
    run_dir
        A folder `train_views` left.
    views, labels
        New files; a view's file stem names its party, in any order.
    id_column, label_column
        Of Parquet files.
    codec
        How embeddings travel to the fusion.
    device
        Where it runs.
    """
    from gainroute.io.views import align, read_labels, read_view
    from gainroute.training.own import encode_labels
    from gainroute.training.trained_run import load_fusion, load_parties

    parties = load_parties(run_dir, device)
    read = {v.name: v for v in (read_view(p, id_column=id_column, label_column=label_column) for p in views)}
    names = [party.name for party in parties]
    if sorted(read) != sorted(names):
        raise DataError(f"views {', '.join(read)}: the run was trained on {', '.join(names)}; name the files alike")
    found = read_labels(labels, id_column=id_column, label_column=label_column)
    ids, aligned, values = align([read[name] for name in names], found)
    serving = [party.holding(ids, view.raw) for party, view in zip(parties, aligned, strict=True)]
    local = np.stack([party.posteriors(list(ids)) for party in serving])
    sent = [round_trip(party.embeddings(list(ids)), codec) for party in serving]
    strong = load_fusion(Path(run_dir) / "server", device)(sent)
    weak = local.mean(axis=0, dtype=np.float64).argmax(axis=1)
    codes = encode_labels(np.asarray(values), parties[0].class_names)
    return RouteAnswers(ids, codes, local, strong, weak.astype(np.int64), strong.argmax(axis=1).astype(np.int64))


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
