"""The report of a trained run: every router on its held-out part, and the run on new data."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from typing import Any

from gainroute import __version__
from gainroute._util.files import write_bytes
from gainroute._util.progress import Progress
from gainroute.experiments.measures import Routed, measures_at, routed
from gainroute.experiments.pages.headline import headline_of
from gainroute.experiments.pages.reports import draw_own, own_page
from gainroute.experiments.records import Record, load_record, save_record
from gainroute.experiments.scores import RouterScores, answers_by_mean
from gainroute.experiments.study import study_of
from gainroute.experiments.summary import RATES, summarise
from gainroute.io.run_folder import RunFolder
from gainroute.routing.labels import Labels
from gainroute.routing.payload import communication_cost
from gainroute.routing.router import Router
from gainroute.routing.routers import CalibratedConfidenceRouter, ConfidenceRouter
from gainroute.routing.types import FloatArray
from gainroute.training.opened_run import open_run
from gainroute.training.route_answers import RouteAnswers
from gainroute.training.run import TrainedRun, answer_views

__all__ = ["evaluate_run", "report_run"]


def report_run(trained: TrainedRun, progress: Progress | None = None) -> dict[str, Any]:
    """Evaluate all routers on the answers of a run, and write ``record.npz``, ``report.html`` and ``results.json``.

    Returns what ``results.json`` holds: `gainroute.experiments.summary.summarise`, a headline, the deployed router.
    """
    began, progress = time.perf_counter(), progress or Progress()
    progress.start("routing and drawing", 3)
    names = trained.class_names, trained.party_names
    parts = trained.calibration, trained.test
    record = Record("own", trained.seed, *parts, {}, {}, *names, trained.metadata, training=trained.training)
    save_record(record, trained.folder.record)
    progress.advance()
    study, router = study_of([record]), trained.router
    budget, codec = router.budget, trained.codec
    results = summarise(study, sorted({*RATES, budget}))
    classes, dimensions = results["class_count"], results["embedding_dimensions"]
    results["bytes"] = [communication_cost(classes, dimensions, at, codec=codec) for at in results["rates"]]
    rate, accuracy = _routed_by(router, trained.test).deploy(router.threshold_)
    results["headline"] = headline_of(results, budget, (rate, accuracy))
    results["deployed"] = _as_deployed(router, rate, accuracy)
    if "estimators" in trained.metadata:
        results["estimators"] = trained.metadata["estimators"]
    if "logistic_regression" in trained.metadata:
        pooled = {"local_models": trained.test.weak_accuracy}
        results["yardstick"] = {**pooled, "logistic_regression": trained.metadata["logistic_regression"]}
    results |= {"codec": codec, "version": __version__, "files": ["report.html", "results.json", "record.npz"]}
    progress.advance()
    results["seconds"] = {"training": round(sum(record.metadata["seconds"].values()), 1)}
    write_bytes(trained.folder.report, own_page(results, draw_own(study, record)).encode())
    results["seconds"]["all"] = round(trained.seconds + time.perf_counter() - began, 1)
    write_bytes(trained.folder.results, json.dumps(results, indent=1).encode())
    progress.advance()
    return results | {"folder": str(trained.folder.path)}


def evaluate_run(
    run_dir: str | os.PathLike[str],
    views: Sequence[str | os.PathLike[str]],
    labels: str | os.PathLike[str],
    *,
    id_column: str = "id",
    label_column: str = "label",
    device: str = "cpu",
) -> dict[str, Any]:
    """Apply a run, a folder that `gainroute train` wrote, to new data, read as `training.run.answer_views` does.

    Returns both routes, the router as deployed, and what other budgets would have given.
    """
    opened = open_run(run_dir, device=device)
    router, codec, classes = opened.router, opened.codec, opened.class_names
    answers = answer_views(
        opened.parties, opened.fusion, views, labels, id_column=id_column, label_column=label_column, codec=codec
    )
    run, dimensions = _routed_by(router, answers), [party.dimension for party in opened.parties]

    def payload(rate: float) -> float:
        return communication_cost(len(classes), dimensions, rate, codec=codec)

    at = measures_at([run], RATES)
    others = _baselines(RunFolder(run_dir), answers)
    budgets = []
    for i, rate in enumerate(RATES):
        given, accuracy = run.deploy(router.threshold_for(rate))
        budgets.append(
            {
                "budget": rate,
                **{name: float(getattr(at, name)[0, i]) for name in ("accuracy", "precision", "neutral")},
                "bytes": payload(rate),
                "rate_given": given,
                "accuracy_given": accuracy,
                **{name: None if other is None else float(other[i]) for name, other in others.items()},
            }
        )
    rate, accuracy = run.deploy(router.threshold_)
    return {
        "samples": len(answers),
        "parties": list(opened.party_names),
        "classes": list(classes),
        "codec": codec,
        "weak": float(run.weak_right.mean()),
        "strong": float(run.strong_right.mean()),
        "deployed": {**_as_deployed(router, rate, accuracy), "bytes": payload(rate)},
        "budgets": budgets,
    }


def _as_deployed(router: Router, rate: float, accuracy: float) -> dict[str, float]:
    return {"budget": router.budget, "threshold": router.threshold_, "rate": rate, "accuracy": accuracy}


def _baselines(run: RunFolder, answers: RouteAnswers) -> dict[str, FloatArray | None]:
    """Accuracy of confidence and calibrated confidence at `RATES`, calibrated on the run's own calibration part."""
    found: dict[str, FloatArray | None] = {"confidence": None, "calibrated_confidence": None}
    if not run.record.is_file():
        return found
    held = load_record(run.record).calibration
    for name, router in (("confidence", ConfidenceRouter()), ("calibrated_confidence", CalibratedConfidenceRouter())):
        router.threshold = "calibration"  # rates are matched here, and this one needs a single fit
        router.fit(held.local_posteriors, held.labels, held.strong_prediction, check_class_order=False)
        found[name] = measures_at([_routed_by(router, answers)], RATES).accuracy[0]
    return found


def _routed_by(router: Router, answers: RouteAnswers) -> Routed:
    """Route answers by a fitted router; both routes answer as the router would have them."""
    decision = router.route(answers.local_posteriors)
    names = Labels(router.n_classes_, router.classes)
    weak, strong = answers.weak_prediction, {}
    if not answers_by_mean(router):
        weak = names.encode(decision.weak_prediction, "weak_prediction")
    if router.blends_ or router.stages().utility is not None:
        answered = router.strong_answers(decision, answers.strong_posterior)
        strong = {0: names.encode(answered, "strong_prediction")}
    return routed(RouterScores({0: decision.score}, {0: weak}, {}, strong), answers, 0)
