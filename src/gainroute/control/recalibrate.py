"""Refit a router from a decision log: the decisions, the strong answers of the escalated ones, and the labels.

A log is selected twice: a strong answer is known only for escalated samples, a label only for samples with feedback.
Each row is therefore weighted by one over the probability of observing it: for the calibrator, that of its label; for
the reliability of the strong route, that of its label times that of its escalation. Without exploration the second is 0
below the threshold, and nothing can be learned there.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from gainroute.control.logged_decisions import LoggedDecisions, Rows, check_enough, checked
from gainroute.errors import GainrouteWarning
from gainroute.routing.adapted import AdaptedPooling
from gainroute.routing.calibrate import stratified_folds, unseen_classes, warn_unseen
from gainroute.routing.party_statistics import PartyStatistics
from gainroute.routing.pipeline import Pipeline, Stages, fit_pipeline, out_of_fold
from gainroute.routing.reliability import estimate_confusion
from gainroute.routing.router import Router
from gainroute.routing.samples import Samples
from gainroute.routing.taught import TaughtPool, TaughtPooling
from gainroute.routing.types import FloatArray, IntArray, RoundOne, ThresholdScores

__all__ = ["recalibrate"]

MIN_LABELS = 200
MIN_LABELS_PER_CLASS = 10
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
    """Refit pool, calibrator, reliability and threshold from a log, as a new router of the same kind and settings.

    Parameters
    ----------
    router
        The router that made the decisions, or any other to refit on them. It is not changed.
    log
        The decisions. The more of them were made after the drift, the better.
    prior
        How many labels per class the reliability of the old router counts for. Weights such as 1/0.01 leave few
        effective labels; with 0, a single explored sample can reverse the reliability of a class.
    min_labels, min_explored
        The least to refit on: labels (by default 200, or ten per class if that is more), and among them samples that
        were escalated to explore.

    Raises
    ------
    InputError
        The log has no posteriors, or samples that could not have been escalated because nothing was explored.
    TooFewSamplesError
        There are too few labels.
    """
    router._check_fitted()
    k = router.n_classes_
    rows = checked(router, log)
    labelled = rows.take(rows.labels >= 0)
    check_enough(
        labelled, max(MIN_LABELS, MIN_LABELS_PER_CLASS * k) if min_labels is None else min_labels, min_explored
    )
    warn_unseen(unseen_classes(labelled.labels, k, labelled.weight))
    stages = _adapting(router)
    pipeline = _fit(stages, router, labelled, prior)
    score, weak = _scores(stages, router, labelled, prior, pipeline)
    # The strong answer to other samples is not known: its probability of being right stands in for it.
    calibrated = pipeline.round_one(labelled.local, labelled.weak).calibrated
    expected = calibrated @ np.diagonal(pipeline.answer.confusion)
    strong_right = np.where(labelled.strong >= 0, labelled.strong == labelled.labels, expected)
    settings = router.settings()
    if stages.threshold.certifies:
        warnings.warn(
            'a log cannot certify a budget or an error: the new router has threshold="cross-fitted" instead of '
            f'"{settings["threshold"]}"',
            GainrouteWarning,
            stacklevel=2,
        )
        settings |= {"threshold": "cross-fitted", "kept_error": None}
    made = type(router)(**settings)
    made._set(
        pipeline=pipeline,
        scores=ThresholdScores(score, labelled.weight, weak == labelled.labels, strong_right),
        parties=router.n_parties_,
        classes=k,
        own_weak_prediction=router.own_weak_prediction_,
        provenance=router.provenance_,
        party_statistics=PartyStatistics.of(labelled.local, labelled.weight),
    )
    return made


# ---- inside -------------------------------------------------------------------------------------


def _adapting(router: Router) -> Stages:
    """The stages of a router; a pool that was taught is not forgotten, but moved as far as the labels ask for."""
    stages, pool = router.stages(), router._pipeline.pool
    if not isinstance(pool, TaughtPool):
        return stages
    pooling = AdaptedPooling(pool, TaughtPooling(getattr(router, "lam", "cv"), getattr(router, "eps", pool.eps)))
    return replace(stages, fit_pool=pooling.fit, refit_pool=pooling.refit, teaches=False)


def _fit(stages: Stages, router: Router, rows: Rows, prior: float, warm_start: Pipeline | None = None) -> Pipeline:
    """Fit on a log: the score on escalated rows only, the reliability by inverse probability."""

    def samples(of: Rows, weight: FloatArray) -> Samples:
        return Samples(of.local, of.labels, of.strong, of.weak, weight)

    escalated = rows.take(rows.strong >= 0)
    pipeline, _ = fit_pipeline(
        stages,
        samples(rows, rows.weight),
        escalated=samples(escalated, escalated.strong_weight),
        confusion=_confusion(router, rows, prior),
        blend=router._pipeline.answer.blend,
        warm_start=warm_start,
    )
    return pipeline


def _scores(
    stages: Stages, router: Router, rows: Rows, prior: float, pipeline: Pipeline
) -> tuple[FloatArray, IntArray]:
    """Scores and weak answers for the threshold: out of fold, unless the rule is "calibration"."""
    at = pipeline.round_one(rows.local, rows.weak)
    if router.threshold == "calibration":
        return pipeline.scores(at), at.weak_prediction

    def fits() -> Iterator[tuple[IntArray, Pipeline, RoundOne]]:
        for held_out in stratified_folds(rows.labels, router.folds, router.seed):
            kept = rows.take(np.setdiff1d(np.arange(len(rows.labels)), held_out))
            fitted = _fit(stages, router, kept, prior, pipeline)
            yield held_out, fitted, fitted.round_one(kept.local, kept.weak)

    samples = Samples(rows.local, rows.labels, rows.strong, rows.weak, rows.weight)
    return out_of_fold(fits(), samples, pipeline.scores(at), router.seed)


def _confusion(router: Router, rows: Rows, prior: float) -> FloatArray:
    """Confusion matrix of the strong route by inverse probability, with the old one as `prior` labels per class.

    Weights are first scaled, class by class, to the effective number of labels.
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
        router.shrinkage,
    )
