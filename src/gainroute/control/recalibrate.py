"""A router refitted from what it did: logged decisions, the answers they brought, and the labels that came back.

What a log shows is chosen twice. The strong answer is known only where the router escalated; the label only where
somebody gave it. Each row is therefore weighted by one over the probability with which it was seen: the calibrator by
that of its label, the reliability of the strong route by that of its label times that of its escalation. Without
exploration the second is 0 below the threshold, and nothing can be learned there.
"""

from __future__ import annotations

import dataclasses
import warnings
from typing import Any

import numpy as np

from gainroute.control.logged_decisions import LoggedDecisions, Rows, check_enough, checked
from gainroute.errors import GainrouteWarning
from gainroute.routing.calibrate import folds_of, unseen_classes, warn_unseen
from gainroute.routing.pipeline import Road, scores_of, walk
from gainroute.routing.reliability import estimate_confusion
from gainroute.routing.router import Router
from gainroute.routing.routers import ExpectedGainRouter, ExpectedGainScore
from gainroute.routing.score import strong_value
from gainroute.routing.types import CalibrationSet, FloatArray, IntArray, RoundOne, ThresholdScores

__all__ = ["recalibrate"]

MIN_LABELS = 200
MIN_LABELS_A_CLASS = 10
MIN_EXPLORED = 10
PRIOR = 2.0


def recalibrate(
    router: Router,
    log: LoggedDecisions,
    *,
    prior: float = PRIOR,
    min_labels: int | None = None,
    min_explored: int = MIN_EXPLORED,
) -> Router:
    """Refit calibrator, reliability and threshold from a log; a new router of the same kind and settings.

    Parameters
    ----------
    router
        The router that made the decisions, or any that is to be refitted on them. It is left as it is.
    log
        The decisions. The more of them lie after the drift, the better.
    prior
        How many labels a class the reliability of the old router counts for. Weights of 1/0.01 make few labels of many;
        with 0, a single explored sample can turn a class over.
    min_labels, min_explored
        What is needed to refit: labels (by default 200, or ten a class if that is more), and among them samples that
        were escalated to explore.

    Raises
    ------
    InputError
        There are no posteriors in the log, or samples that could not have been escalated: nothing was explored.
    TooFewSamplesError
        There are too few labels.
    """
    router._check_fitted()
    k = router.n_classes_
    rows = checked(router, log)
    labelled = rows.take(rows.labels >= 0)
    check_enough(labelled, max(MIN_LABELS, MIN_LABELS_A_CLASS * k) if min_labels is None else min_labels, min_explored)
    warn_unseen(unseen_classes(labelled.labels, k, labelled.weight))
    road = _fit_road(router, labelled, prior)
    score, weak = _scores(router, labelled, road, prior)
    asked = labelled.strong >= 0
    confusion = _confusion(router, labelled, prior)
    # What the strong route would have said elsewhere is not known: its chance of being right stands in for it.
    expected = _walk(road, labelled).calibrated @ np.diagonal(confusion)
    strong_right = np.where(asked, labelled.strong == labelled.labels, expected)
    made = type(router)(**_settings(router))
    made._set(
        road=road,
        scores=ThresholdScores(score, labelled.weight, weak == labelled.labels, strong_right),
        confusion=confusion,
        parties=router.n_parties_,
        classes=k,
        own_weak_prediction=router.own_weak_prediction_,
        provenance=router.provenance_,
    )
    return made


# ---- inside -------------------------------------------------------------------------------------


def _settings(router: Router) -> dict[str, Any]:
    settings = router.settings()
    if settings["threshold"] == "certified":
        warnings.warn(
            'a log certifies no budget: the new router has threshold="cross-fitted" in place of "certified"',
            GainrouteWarning,
            stacklevel=3,
        )
        settings["threshold"] = "cross-fitted"
    return settings


def _walk(road: Road, rows: Rows) -> RoundOne:
    return walk(road.pool, road.calibrate, rows.local, rows.weak)


def _fit_road(router: Router, rows: Rows, prior: float, near: Road | None = None) -> Road:
    """`road.fit_road`, with weights of its own for what the strong route answered."""
    pool = router.fit_pool(rows.local, rows.labels, rows.weight)
    start = None if near is None else near.calibrate
    calibrate = router.fit_calibrator(pool(rows.local), rows.labels, rows.weight, start)
    road = dataclasses.replace(router._road, pool=pool, calibrate=calibrate)
    asked = rows.take(rows.strong >= 0)
    at = _walk(road, asked)
    score = router.fit_score(CalibrationSet(at, asked.labels, asked.strong, asked.strong_weight))
    if isinstance(score, ExpectedGainScore):
        score = ExpectedGainScore(strong_value(_confusion(router, rows, prior), score.utility), score.utility)
    return dataclasses.replace(road, score=score)


def _scores(router: Router, rows: Rows, road: Road, prior: float) -> tuple[FloatArray, IntArray]:
    """Scores and cheap answers for the threshold: out of fold, unless the router reads it off its own samples."""
    if router.threshold == "calibration":
        at = _walk(road, rows)
        return scores_of(road.score, at), at.weak_prediction
    n = len(rows.labels)
    score, weak = np.empty(n), np.empty(n, dtype=np.int64)
    for held_out in folds_of(n, router.folds, router.seed):
        kept = np.ones(n, dtype=bool)
        kept[held_out] = False
        fitted = _fit_road(router, rows.take(kept), prior, near=road)
        at = _walk(fitted, rows.take(held_out))
        score[held_out], weak[held_out] = scores_of(fitted.score, at), at.weak_prediction
    return score, weak


def _confusion(router: Router, rows: Rows, prior: float) -> FloatArray:
    """Confusion matrix of the strong route by inverse probability, drawn towards the old one by `prior` labels a class.

    Weights are first scaled, class by class, to the number of equally weighted labels they are worth.
    """
    k = router.n_classes_
    weight = rows.strong_weight
    total = np.bincount(rows.labels, weight, minlength=k)
    square = np.bincount(rows.labels, weight**2, minlength=k)
    worth = np.divide(total, square, out=np.ones(k), where=square > 0)
    labels, answers = np.divmod(np.arange(k * k), k)
    return estimate_confusion(
        np.concatenate([rows.labels, labels]),
        np.concatenate([np.maximum(rows.strong, 0), answers]),
        k,
        np.concatenate([weight * worth[rows.labels], prior * router.confusion_.ravel()]),
        router.shrinkage if isinstance(router, ExpectedGainRouter) else "none",
    )
