"""A run, from files of views to a folder that can be served: train both routes, answer, calibrate the router."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch

from gainroute._util.files import writable_folder
from gainroute._util.hashing import hash_text
from gainroute._util.progress import Progress
from gainroute.errors import ArtifactError, DataError, SettingError
from gainroute.io.run_folder import SERVER, RunFolder
from gainroute.routing.absent import FEWEST, calibrated_subsets, fit_subsets
from gainroute.routing.artifacts import load, save
from gainroute.routing.decide import BUDGET_REMEDY
from gainroute.routing.inputs import check_fraction
from gainroute.routing.payload import check_codec
from gainroute.routing.router import Router
from gainroute.routing.routers import ExpectedGainRouter
from gainroute.training.answer import answer_as_served, answer_defer
from gainroute.training.checkpoint import CheckpointStore
from gainroute.training.optimise import check_device, choose_threads
from gainroute.training.optimise import threads as torch_threads
from gainroute.training.prepare import Paths, Prepared, encode_labels, prepare_views, read_aligned
from gainroute.training.ray_parties import starting_parties
from gainroute.training.route_answers import LocalAnswers, RouteAnswers, training_rows
from gainroute.training.routes import Routes, train_routes
from gainroute.training.settings import RouteSettings, default_route_settings
from gainroute.training.sklearn_models import Estimators, describe_estimator, make_estimator
from gainroute.training.trained_run import TrainedFusion, TrainedParty, load_fusion, load_parties, write_run
from gainroute.training.yardstick import logistic_accuracy

__all__ = [
    "TrainedRun",
    "answer_views",
    "calibrate_run",
    "describe_training",
    "fit_router",
    "load_calibrated_router",
    "train_run",
]


@dataclass(frozen=True)
class TrainedRun:
    """A run folder as training left it, and what it answered.

    Attributes
    ----------
    folder
        Where it is.
    router
        Calibrated on `calibration`.
    codec
        How embeddings are sent.
    calibration, test
        The answers on the two held-out parts, as they will be served.
    training
        Round 1 on the training part, as far as the router was fitted to it.
    class_names, party_names
        In the order of labels and of views.
    seed
        Of splits and training.
    metadata
        As `describe_training` returns it.
    seconds
        How long all of it took.
    """

    folder: RunFolder
    router: ExpectedGainRouter
    codec: str
    calibration: RouteAnswers
    test: RouteAnswers
    training: LocalAnswers | None
    class_names: tuple[str, ...]
    party_names: tuple[str, ...]
    seed: int
    metadata: Mapping[str, Any]
    seconds: float


def train_run(
    views: Paths,
    labels: str | os.PathLike[str],
    out_dir: str | os.PathLike[str],
    *,
    budget: float = 0.2,
    codec: str = "float32",
    seed: int = 0,
    test: float = 0.3,
    calibration: float = 0.2,
    id_column: str = "id",
    label_column: str = "label",
    kinds: Mapping[str, str] | None = None,
    epochs: int | None = None,
    local_epochs: int | None = None,
    settings: RouteSettings | None = None,
    local: Any = None,
    fused: Any = None,
    device: str = "cpu",
    progress: Progress | None = None,
    overwrite: bool = False,
    threads: int | None = None,
    pooled_only: bool = False,
    engine: str = "local",
) -> TrainedRun:
    """Train both routes on files of views, write the run folder, and calibrate its router.

    Calibration and test samples are answered once, as they will be served, and the router is calibrated on these
    answers.

    Parameters
    ----------
    views, labels, seed, test, calibration, id_column, label_column, kinds
        As in `gainroute.training.prepare.prepare_views`.
    out_dir
        The run folder. Checkpoints are kept in ``work`` within it, and an interrupted run is resumed.
    budget, codec
        The share of samples that may be escalated, and how embeddings are sent.
    epochs, local_epochs
        Of the strong route and of the local classifiers; small numbers by default.
    settings
        Everything about training, in place of the defaults.
    local, fused
        scikit-learn classifiers in place of networks, as local models and as the fusion head of all parties: an
        estimator, or a text such as ``"sklearn.linear_model:LogisticRegression(C=0.1)"``; see
        `gainroute.training.sklearn_models`. The encoders are networks in any case.
    device, progress
        A torch device, and where progress is reported.
    overwrite
        Whether to delete another run that `out_dir` holds. A run of the same data and settings is resumed.
    threads
        Number of threads that torch computes with, 0 for torch's choice. By default one for small views, where more
        would only wait for each other; see `gainroute.training.optimise.choose_threads`.
    pooled_only
        Whether the router is for a masked Round 1; see `gainroute.ExpectedGainRouter`.
    engine
        Where the encoders are trained: "local", or "ray", each in a process of a Ray cluster inside one organisation.
    """
    check_device(device)
    budget, codec = check_fraction(budget, "budget", BUDGET_REMEDY), check_codec(codec)
    began, progress = time.perf_counter(), progress or Progress()
    given = {"local": local, "fused": fused}
    models = {name: make_estimator(value, name) for name, value in given.items() if value is not None}
    if "local" in models and local_epochs is not None:
        raise SettingError(
            f"local_epochs is {local_epochs}, but the local models are estimators: leave one of them out"
        )
    prepared = prepare_views(
        views, labels, seed=seed, test=test, calibration=calibration, id_column=id_column, label_column=label_column,
        kinds=kinds,
    )  # fmt: skip
    chosen = settings or default_route_settings(len(prepared.train.labels), epochs, local_epochs)
    run, data = RunFolder(writable_folder(out_dir)), prepared.train
    described = {name: describe_estimator(estimator) for name, estimator in models.items()}
    identity = (data.fingerprint, data.party_names, chosen, seed, *described.items())
    run.claim(hash_text(repr(identity)), overwrite=overwrite)
    store = CheckpointStore(run.work)
    if threads is None:
        threads = choose_threads(max(view.clean[0].size for view in data.views))
    with torch_threads(threads), starting_parties(engine, threads) as start:
        held_out = prepared.calibration.joined(prepared.test).views if models else ()
        estimators = Estimators(**models, held_out=held_out)
        routes = train_routes(
            data, chosen, seed=seed, store=store, progress=progress, device=device, estimators=estimators, start=start
        )
        config = {"seed": seed, "test": test, "calibration": calibration, **asdict(chosen)}
        metadata = describe_training(config, prepared, routes, store.seconds())
        if described:
            metadata["estimators"] = described
        metadata["logistic_regression"] = logistic_accuracy(prepared, seed)

        run = write_run(out_dir, routes, prepared)
        parties, fusion = load_parties(run.path, device), load_fusion(run.server.path, device)
        held, tested = (
            replace(
                answer_as_served(parties, fusion, part.ids, part.labels, codec),
                defer=answer_defer(routes.defer, part.views, device),
            )
            for part in (prepared.calibration, prepared.test)
        )
        trained = _answer_training(parties, prepared)
    router = calibrate_run(
        run.path, held, budget=budget, codec=codec, seed=seed, pooled_only=pooled_only, training=trained
    )
    seconds = time.perf_counter() - began
    names = prepared.class_names, prepared.train.party_names
    return TrainedRun(run, router, codec, held, tested, trained, *names, seed, metadata, seconds)


def _answer_training(parties: Sequence[TrainedParty], prepared: Prepared) -> LocalAnswers:
    assert prepared.whole is not None, "views from files are prepared whole"  # noqa: S101 (for the type checker)
    data, whole = prepared.train, prepared.whole
    rows = data.views[0].rows[training_rows(len(data.labels), len(parties), data.classes)]
    ids = whole.ids[rows].tolist()
    return LocalAnswers(whole.labels[rows], np.stack([party.posteriors(ids) for party in parties]))


def describe_training(
    config: dict[str, Any], prepared: Prepared, routes: Routes, seconds: Mapping[str, float]
) -> dict[str, Any]:
    """Everything a record says about training: config, versions, split, sizes and timings."""
    strong = routes.strong
    return {
        "config": config,
        "versions": {"python": platform.python_version(), "numpy": np.__version__, "torch": torch.__version__},
        "split_hash": prepared.split_hash,
        "embedding_dimensions": list(strong.head_spec.options["dimensions"]),
        "parameters": {
            "local": [_count(model) for model in routes.local],
            "encoder": [_count(model) for model in strong.encoders],
            "head": _count(strong.head),
        },
        "train_samples": len(prepared.train.labels),
        "seconds": {name: round(value, 1) for name, value in seconds.items()},
    }


def _count(model: torch.nn.Module) -> int | None:
    return sum(parameter.numel() for parameter in model.parameters()) or None  # unknown of an ONNX graph


def fit_router(
    answers: RouteAnswers,
    classes: Sequence[int] | Sequence[str],
    *,
    budget: float,
    seed: int,
    pooled_only: bool = False,
    training: LocalAnswers | None = None,
) -> ExpectedGainRouter:
    """Calibrate the expected-gain router on answers of both routes, for absent parties too if there are enough.

    Round 1 on the `training` part helps its weak answer.
    """
    router = ExpectedGainRouter(budget, seed=seed, classes=classes, pooled_only=pooled_only)
    labels = np.array(classes)[answers.labels]
    more = None if training is None else (training.posteriors, np.array(classes)[training.labels])
    # The columns are the run's own: a poor model is no sign of another order.
    router.fit(
        answers.local_posteriors,
        labels,
        strong_posterior=answers.strong_posterior,
        training=more,
        check_class_order=False,
    )
    if pooled_only or len(answers) < FEWEST:
        return router
    known = answers.subset_predictions
    wanted = [subset for subset in calibrated_subsets(len(answers.local_posteriors)) if subset in known]
    by_subset = {subset: np.array(classes)[known[subset]] for subset in wanted}
    # All encoders of a run have the same width: a party's embedding costs as much as another's.
    each = [1.0] * len(answers.local_posteriors)
    if not by_subset:
        return router
    return fit_subsets(router, answers.local_posteriors, labels, by_subset, party_bytes=each, training=more)


def calibrate_run(
    run_dir: str | os.PathLike[str],
    answers: RouteAnswers,
    *,
    budget: float = 0.2,
    codec: str = "float32",
    seed: int = 0,
    pooled_only: bool = False,
    training: LocalAnswers | None = None,
) -> ExpectedGainRouter:
    """Calibrate the expected-gain router on the run's own answers, and save it next to the fusion head.

    Parameters
    ----------
    run_dir
        A run folder.
    answers
        Of the run, through `codec`, on samples that trained neither route.
    budget
        The share of samples that may be escalated.
    codec
        How embeddings are sent.
    seed
        Of the folds in which the threshold is cross-fitted.
    pooled_only
        Whether the router is for a masked Round 1.
    training
        Round 1 on samples that trained the local classifiers.
    """
    run = RunFolder(run_dir)
    provenance, names = run.provenance(codec), run.labels
    router = fit_router(answers, names, budget=budget, seed=seed, pooled_only=pooled_only, training=training)
    save(router, run.server.router, provenance=provenance)
    return router


def load_calibrated_router(run_dir: str | os.PathLike[str]) -> Router:
    """Load a run's router; raises ArtifactError unless it was calibrated with the models in the folder."""
    run = RunFolder(run_dir)
    holders = {*run.party_names, SERVER}
    router = load(run.server.router)
    calibrated, now = router.provenance_.models, run.provenance(router.provenance_.codec).models
    changed = [holder for holder in now if calibrated.get(holder) != now[holder]]
    changed += sorted(set(calibrated) - holders)
    if changed:
        raise ArtifactError(
            f"{run.server.router} was calibrated with other models of {', '.join(changed)} than those in {run.path}; "
            "train the run again"
        )
    return router


def answer_views(
    parties: Sequence[TrainedParty],
    fusion: TrainedFusion,
    views: Paths,
    labels: str | os.PathLike[str],
    *,
    id_column: str = "id",
    label_column: str = "label",
    codec: str = "float32",
) -> RouteAnswers:
    """Answer new views by a trained run.

    Parameters
    ----------
    parties, fusion
        Of the run: `load_parties` and `load_fusion`.
    views, labels
        New files; the name of a view's file without its suffix is the party's name, in any order.
    id_column, label_column
        Of Parquet files.
    codec
        How embeddings are sent to the fusion.
    """
    ids, aligned, values = read_aligned(views, labels, id_column=id_column, label_column=label_column)
    given, names = {view.name: view for view in aligned}, [party.name for party in parties]
    if sorted(given) != sorted(names):
        raise DataError(f"views {', '.join(given)}: the run was trained on {', '.join(names)}; name the files alike")
    serving = [party.holding(ids, given[party.name].raw) for party in parties]
    return answer_as_served(serving, fusion, ids, encode_labels(values, parties[0].class_names), codec)
