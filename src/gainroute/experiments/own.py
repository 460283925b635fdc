"""Own views, from files to a folder that serves: train, calibrate a router, judge it, apply it to new data."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from gainroute import __version__
from gainroute._util.files import write_bytes
from gainroute._util.progress import NoProgress, Progress
from gainroute.errors import ArtifactError, SettingError
from gainroute.experiments.measures import Routed, measures_at, routed
from gainroute.experiments.pages.headline import headline_of
from gainroute.experiments.pages.run import draw_own, own_page
from gainroute.experiments.runner import answer_views, train_views
from gainroute.experiments.scores import RouterScores, answers_by_mean
from gainroute.experiments.study import study_of
from gainroute.experiments.summary import RATES, summarise
from gainroute.io.preprocess import KINDS
from gainroute.io.run_folder import SERVER, RunFolder
from gainroute.io.views import read_labels
from gainroute.routing.artifacts import load, save
from gainroute.routing.decide import BUDGET_REMEDY
from gainroute.routing.inputs import check_fraction
from gainroute.routing.labels import Labels
from gainroute.routing.payload import check_codec, communication_cost, round_trip
from gainroute.routing.router import Router
from gainroute.routing.routers import ExpectedGainRouter
from gainroute.training.route_answers import RouteAnswers
from gainroute.training.settings import RouteSettings, default_route_settings

__all__ = ["calibrate_run", "evaluate_own", "kind_of", "load_calibrated_router", "served", "train_own"]

Paths = Sequence["str | os.PathLike[str]"]
_KIND_WORDS = {"cnn": "images", "mlp": "features"}


def kind_of(words: Sequence[str]) -> dict[str, str]:
    """Read "party=cnn" or "party=mlp" (also "images" and "features"), by party.

    Examples
    --------
    >>> kind_of(["front=cnn", "vitals=features"])
    {'front': 'images', 'vitals': 'features'}
    """
    found = {}
    for word in words:
        party, equals, kind = word.partition("=")
        kind = _KIND_WORDS.get(kind, kind)
        if not (party and equals) or kind not in KINDS:
            raise SettingError(f"kind is {word!r}; PARTY=cnn (images) or PARTY=mlp (features) is needed")
        found[party] = kind
    return found


# ---- the router of a run ------------------------------------------------------------------------


def served(run_dir: str | os.PathLike[str], split: RouteAnswers, codec: str, device: str = "cpu") -> RouteAnswers:
    """What a run's folders answer for the samples of `split` when embeddings travel in a codec.

    Parameters
    ----------
    run_dir
        A folder that training has left; its parties hold the samples.
    split
        Which samples, with their labels; its subsets and learning to defer are kept.
    codec
        One of `gainroute.routing.payload.CODECS`.
    device
        Where the models run.
    """
    from gainroute.training.trained_run import load_fusion, load_parties

    parties, ids = load_parties(run_dir, device), split.ids.tolist()
    local = np.stack([party.posteriors(ids) for party in parties])
    strong = load_fusion(RunFolder.at(run_dir).server.path, device)(
        [round_trip(p.embeddings(ids), codec) for p in parties]
    )
    return replace(
        split,
        local_posteriors=local,
        strong_posterior=strong,
        weak_prediction=local.mean(axis=0, dtype=np.float64).argmax(axis=1).astype(np.int64),
        strong_prediction=strong.argmax(axis=1).astype(np.int64),
    )


def calibrate_run(
    run_dir: str | os.PathLike[str],
    calibration: RouteAnswers,
    *,
    budget: float = 0.2,
    codec: str = "float32",
    seed: int = 0,
    device: str = "cpu",
) -> ExpectedGainRouter:
    """Calibrate the expected-gain router on what the run's folders answer, and leave it beside the fusion head.

    Parameters
    ----------
    run_dir
        A folder that training has left.
    calibration
        Ids and labels of samples that trained neither route; the answers are computed anew, through the codec.
    budget
        The share of samples that may be escalated.
    codec
        How embeddings will travel.
    seed
        Of the folds the threshold is cross-fitted in.
    device
        Where the models run.
    """
    run = RunFolder.at(run_dir)
    provenance, names = run.provenance(codec), run.class_names
    held = served(run.path, calibration, codec, device)
    router = ExpectedGainRouter(budget, seed=seed, classes=names)
    router.fit(held.local_posteriors, np.array(names)[held.labels], strong_posterior=held.strong_posterior)
    save(router, run.server.router, provenance=provenance)
    return router


def load_calibrated_router(run_dir: str | os.PathLike[str]) -> Router:
    """Load a run's router, if it was calibrated with the models that lie there now."""
    run = RunFolder.at(run_dir)
    names = run.party_names
    router = load(run.server.router)
    calibrated, now = router.provenance_.models, run.provenance(router.provenance_.codec).models
    changed = [holder for holder in now if calibrated.get(holder) != now[holder]]
    changed += sorted(set(calibrated) - {*names, SERVER})
    if changed:
        raise ArtifactError(
            f"{run.server.router} was calibrated with other models of {', '.join(changed)} than lie in {run.path}; "
            "train the run again"
        )
    return router


# ---- train and evaluate -------------------------------------------------------------------------


def train_own(
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
    device: str = "cpu",
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Train both routes on own views, calibrate a router, and judge all routers on the held-out part.

    Parameters
    ----------
    views, labels, seed, test, calibration, id_column, label_column, kinds
        As in `gainroute.experiments.runner.train_views`.
    out_dir
        The run's folder; a broken-off run is resumed.
    budget, codec
        Of the router that is left.
    epochs, local_epochs
        Of the strong route and of the local classifiers; modest numbers unless given.
    device, progress
        Where it runs, and who is told.

    Returns
    -------
    dict
        What ``results.json`` holds: `gainroute.experiments.study.summarise`, a headline, and the router as deployed.
    """
    budget, codec = check_fraction(budget, "budget", BUDGET_REMEDY), check_codec(codec)
    began, out, told = time.perf_counter(), Path(out_dir), progress or NoProgress()
    record = train_views(
        views,
        labels,
        out,
        seed=seed,
        test=test,
        calibration=calibration,
        id_column=id_column,
        label_column=label_column,
        kinds=kinds,
        settings=_settings(labels, test, calibration, id_column, label_column, epochs, local_epochs),
        device=device,
        progress=told,
    )
    told.start("routing and drawing", 3)
    router = calibrate_run(out, record.calibration, budget=budget, codec=codec, seed=seed, device=device)
    answered = replace(
        record,
        calibration=served(out, record.calibration, codec, device),
        test=served(out, record.test, codec, device),
    )
    told.advance()
    study = study_of([answered])
    results = summarise(study, sorted({*RATES, budget}))
    classes, dimensions = results["class_count"], results["embedding_dimensions"]
    results["bytes"] = [communication_cost(classes, dimensions, at, codec=codec) for at in results["rates"]]
    run = _run_of(router, answered.test)
    rate, accuracy = run.deploy(router.threshold_)
    results["headline"] = headline_of(results, budget, (rate, accuracy))
    results["deployed"] = {"budget": budget, "threshold": router.threshold_, "rate": rate, "accuracy": accuracy}
    results |= {"codec": codec, "version": __version__, "files": ["report.html", "results.json", "record.npz"]}
    told.advance()
    results["seconds"] = {"training": round(sum(record.metadata["seconds"].values()), 1)}
    write_bytes(RunFolder(out).report, own_page(results, draw_own(study, answered)).encode())
    results["seconds"]["all"] = round(time.perf_counter() - began, 1)
    write_bytes(RunFolder(out).results, json.dumps(results, indent=1).encode())
    told.advance()
    return results | {"folder": str(out)}


def evaluate_own(
    run_dir: str | os.PathLike[str],
    views: Paths,
    labels: str | os.PathLike[str],
    *,
    id_column: str = "id",
    label_column: str = "label",
    device: str = "cpu",
) -> dict[str, Any]:
    """Apply a run to new data: both routes, the router as deployed, and what other budgets would have given.

    Parameters
    ----------
    run_dir
        A folder `train_own` left.
    views, labels, id_column, label_column
        New files; a view's file stem names its party.
    device
        Where the models run.
    """
    router = load_calibrated_router(run_dir)
    codec, body = router.provenance_.codec, RunFolder.at(run_dir).read()
    split = answer_views(
        run_dir, views, labels, id_column=id_column, label_column=label_column, codec=codec, device=device
    )
    run, classes = _run_of(router, split), len(body["class_names"])
    dimensions = _dimensions(Path(run_dir), body["party_names"])
    at = measures_at([run], RATES)
    budgets = []
    for i, rate in enumerate(RATES):
        given, accuracy = run.deploy(router.threshold_for(rate))
        budgets.append(
            {
                "budget": rate,
                "accuracy": float(at.accuracy[0, i]),
                "precision": float(at.precision[0, i]),
                "neutral": float(at.neutral[0, i]),
                "bytes": communication_cost(classes, dimensions, rate, codec=codec),
                "rate_given": given,
                "accuracy_given": accuracy,
            }
        )
    rate, accuracy = run.deploy(router.threshold_)
    return {
        "samples": len(split),
        "parties": list(body["party_names"]),
        "classes": list(body["class_names"]),
        "codec": codec,
        "weak": float(run.weak_right.mean()),
        "strong": float(run.strong_right.mean()),
        "deployed": {
            "budget": router.budget,
            "threshold": router.threshold_,
            "rate": rate,
            "accuracy": accuracy,
            "bytes": communication_cost(classes, dimensions, rate, codec=codec),
        },
        "budgets": budgets,
    }


def _settings(
    labels: str | os.PathLike[str],
    test: float,
    calibration: float,
    id_column: str,
    label_column: str,
    epochs: int | None,
    local_epochs: int | None,
) -> RouteSettings | None:
    """The modest settings with other numbers of epochs; None where nothing is asked for."""
    if epochs is None and local_epochs is None:
        return None
    count = len(read_labels(labels, id_column=id_column, label_column=label_column).labels)
    chosen = default_route_settings(round(count * (1 - test) * (1 - calibration)))
    strong, weak = epochs or chosen.vfl.epochs, local_epochs or chosen.local.epochs
    return replace(
        chosen,
        local=replace(chosen.local, epochs=weak),
        vfl=replace(chosen.vfl, epochs=strong),
        masked=replace(chosen.masked, epochs=min(chosen.masked.epochs, strong)),
    )


def _run_of(router: Router, split: RouteAnswers) -> Routed:
    decision = router.route(split.local_posteriors)
    names = Labels(router.n_classes_, router.classes)
    weak, strong = split.weak_prediction, {}
    if not answers_by_mean(router):
        weak = names.encode(decision.weak_prediction, "weak_prediction")
    if router.blends_:
        answers = router.strong_answers(decision, split.strong_posterior)
        strong = {0: names.encode(answers, "strong_prediction")}
    return routed(RouterScores({0: decision.score}, {0: weak}, {}, strong), split, 0)


def _dimensions(root: Path, names: Sequence[str]) -> list[int]:
    from gainroute.training.trained_run import TrainedParty

    run = RunFolder(root)
    return [TrainedParty(run.party(name).path).dimension for name in names]
