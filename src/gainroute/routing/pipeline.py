"""The stages of a router, fitted and run in order: pool → calibrate → score → threshold, and the final answer.

`Stages` is what a router is made of, `Pipeline` the same after the fit. `fit_stages` is the whole fit on one page.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from gainroute._util.progress import Progress
from gainroute.errors import ShapeError, TooFewSamplesError
from gainroute.routing.answer import (
    LOG_LINEAR_BLEND,
    BlendingPool,
    FinalAnswer,
    best_answer,
    crossfit_blend,
    use_if_better,
    with_strong_answers,
)
from gainroute.routing.calibrate import folds_of, identity_calibration, stratified_folds, unseen_classes, warn_unseen
from gainroute.routing.correction import fit_correction
from gainroute.routing.decide import Threshold, ranks_among, scores_at_ranks
from gainroute.routing.inputs import as_utility, check_posteriors
from gainroute.routing.reliability import Shrinkage, estimate_confusion
from gainroute.routing.samples import Samples
from gainroute.routing.score import ExpectedGainScore
from gainroute.routing.taught import TaughtPool, soft_labels
from gainroute.routing.types import (
    BoolArray,
    CalibrationSet,
    Calibrator,
    FloatArray,
    IntArray,
    Pool,
    RoundOne,
    Score,
    Stage,
    ThresholdScores,
)

__all__ = ["Pipeline", "Stages", "block_rows", "cross_fit", "fit_pipeline", "fit_stages", "out_of_fold"]

BLOCK_VALUES = 2**17
CORRECTION_FOLDS = 5


def block_rows(columns: int) -> int:
    """How many rows of posteriors are routed at a time: they fit into the processor's cache, and bound the memory."""
    return max(1, BLOCK_VALUES // columns)


class FitCalibrator(Protocol):
    """Fits a calibrator, with a warm start from one fitted on almost the same samples."""

    def __call__(
        self, pooled: FloatArray, labels: IntArray, weight: FloatArray, warm_start: Calibrator | None, /
    ) -> Calibrator: ...


@dataclass(frozen=True, eq=False)
class Stages:
    """What a router is made of, before the fit.

    Attributes
    ----------
    fit_pool, fit_calibrator, fit_score
        Samples → the fitted stage, a callable.
    threshold
        How τ is found.
    blend
        How the strong answer takes Round 1 into account; None if it stands alone.
    shrinkage
        How the confusion matrix of the strong route is estimated.
    utility : (K, K), optional
        U[truth, answer] by which both routes answer; None if they answer with the most likely class.
    refit_pool
        Fits the pool again on almost the same samples, starting from the one given; None to fit it anew.
    pooled_only
        Whether everything after the pool reads the pooled posterior instead of the local ones.
    teaches
        Whether the pool is also fitted to soft labels and the training part, its fourth and fifth argument, each None
        where there is none.
    corrects
        Whether the score, an `ExpectedGainScore`, is corrected where that pays.
    """

    fit_pool: Callable[..., Pool]
    fit_calibrator: FitCalibrator
    fit_score: Callable[[CalibrationSet], Score]
    threshold: Threshold
    blend: Stage | None = None
    shrinkage: Shrinkage = "none"
    utility: FloatArray | None = None
    refit_pool: Callable[..., Pool] | None = None
    pooled_only: bool = False
    teaches: bool = False
    corrects: bool = False


@dataclass(frozen=True, eq=False)
class Pipeline:
    """The fitted stages."""

    pool: Pool
    calibrate: Calibrator
    score: Score
    answer: FinalAnswer
    pooled_only: bool = False

    def round_one(
        self, local: FloatArray, weak_prediction: IntArray | None = None, present: BoolArray | None = None
    ) -> RoundOne:
        """Pool, answer and calibrate checked posteriors: all of Round 1 but the score."""
        pooled = self.pool(local, present)
        if self.pooled_only:
            return self.after_pool(pooled, weak_prediction)
        return _round_one(pooled, self.calibrate, self.answer.utility, local, weak_prediction, present)

    def after_pool(self, pooled: FloatArray, weak_prediction: IntArray | None = None) -> RoundOne:
        """`round_one` from pooled posteriors (N, K), which stand for the local ones; a row of NaN has no answer."""
        known = ~np.isnan(pooled[None, :, 0])
        present = None if known.all() else known
        return _round_one(pooled, self.calibrate, self.answer.utility, pooled[None], weak_prediction, present)

    def scored_round_one(
        self,
        local: FloatArray,
        weak_prediction: IntArray | None = None,
        present: BoolArray | None = None,
        *,
        checked: bool = False,
    ) -> tuple[FloatArray, RoundOne]:
        """Scores (N,) and Round 1 of posteriors, block by block; those that are not `checked` are checked."""

        def block(part: slice) -> tuple[FloatArray, RoundOne]:
            # A block is computed alike whether or not other blocks lack a party.
            mask = None if present is None or present[:, part].all() else present[:, part]
            if not checked:
                check_posteriors(local[:, part], mask, first_row=part.start)
            at = self.round_one(local[:, part], None if weak_prediction is None else weak_prediction[part], mask)
            return self.scores(at), at

        n, rows = local.shape[1], block_rows(local.shape[2])
        if n <= rows:
            score, at = block(slice(0, n))
            answer, pooled, calibrated = at.weak_prediction, at.pooled, at.calibrated
        else:
            k = len(self.answer.confusion)
            score, answer = np.empty(n), np.empty(n, dtype=np.int64)
            pooled, calibrated = np.empty((n, k)), np.empty((n, k))
            for first in range(0, n, rows):
                part = slice(first, first + rows)
                score[part], at = block(part)
                answer[part], pooled[part], calibrated[part] = at.weak_prediction, at.pooled, at.calibrated
        return score, RoundOne(pooled[None] if self.pooled_only else local, pooled, answer, calibrated)

    def scores(self, round_one: RoundOne) -> FloatArray:
        """Score samples, (N,), and refuse a score that is not one number per sample."""
        values = np.asarray(self.score(round_one), dtype=np.float64)
        if values.shape != round_one.weak_prediction.shape:
            raise ShapeError(
                f"the router's score has shape {values.shape} for {len(round_one.pooled)} samples; one number per "
                "sample, (N,), is needed"
            )
        return values


def _round_one(
    pooled: FloatArray,
    calibrate: Calibrator,
    utility: FloatArray | None,
    local: FloatArray,
    weak_prediction: IntArray | None,
    present: BoolArray | None = None,
) -> RoundOne:
    calibrated = calibrate(pooled)
    answer = weak_prediction
    if answer is None:
        # The most likely class is that of the pooled posterior (eq. 2). What an answer is worth is an expectation, and
        # needs probabilities: the calibrated ones.
        answer = best_answer(pooled if utility is None else calibrated, utility)
    if present is not None:
        answer = np.where(present.any(axis=0), answer, -1)
        # The pooled posterior stands in for an absent party, so that every score stays defined.
        blank = np.zeros((len(pooled), local.shape[2] - pooled.shape[1]))
        local = np.where(present[..., None], local, np.concatenate([pooled, blank], axis=1))
    return RoundOne(local, pooled, answer, calibrated)


def fit_stages(
    stages: Stages, samples: Samples, progress: Progress | None = None
) -> tuple[Pipeline, ThresholdScores, ThresholdScores | None]:
    """Fit all stages, and score the samples from which the threshold is computed.

    Where these are held out, the scores of those that fitted the stages are returned as well.
    """
    steps = progress or Progress()
    steps.start("fit", 2 + stages.threshold.folds * stages.threshold.cross_fits)
    utility = as_utility(stages.utility, samples.local.shape[2])
    samples = with_strong_answers(samples, utility)
    fitted_on, held_out = stages.threshold.split(samples)
    blend, fitted_on = _learn_from_strong(stages, fitted_on, utility)
    steps.advance("blend")
    pipeline, round_one = fit_pipeline(stages, fitted_on, blend=blend)
    if stages.corrects:
        pipeline = _corrected(stages, fitted_on, pipeline)
    steps.advance("calibration")
    scored, fitted_scores = fitted_on, None
    if held_out is not None:
        fitted_scores = _threshold_scores(fitted_on, pipeline.scores(round_one), round_one.weak_prediction)
        scored = with_strong_answers(held_out, utility, blend)
        round_one = pipeline.round_one(scored.local, scored.weak_prediction)
    score, weak = pipeline.scores(round_one), round_one.weak_prediction
    if stages.threshold.cross_fits:
        fits = cross_fit(stages, scored, pipeline)
        score, weak = out_of_fold(fits, scored, score, stages.threshold.seed, steps)
    if stages.pooled_only and blend is not None:  # the router passes it the pooled posterior
        pipeline = replace(pipeline, answer=replace(pipeline.answer, blend=blend.blend))
    warn_unseen(unseen_classes(fitted_on.labels, len(pipeline.answer.confusion), fitted_on.weight))
    return pipeline, _threshold_scores(scored, score, weak), fitted_scores


def _learn_from_strong(stages: Stages, samples: Samples, utility: FloatArray | None) -> tuple[Any, Samples]:
    """The blend, None if the strong answer stands alone; and the samples with its answers and with soft labels."""
    if stages.blend is None and not stages.teaches:
        return None, samples
    stage: Any = LOG_LINEAR_BLEND if stages.blend is None else stages.blend
    if stages.pooled_only:
        stage = BlendingPool(stage, stages.fit_pool, stages.refit_pool)
    fitted = crossfit_blend(stage, samples)
    if fitted is None:
        return None, samples
    if stages.teaches:
        soft = soft_labels(fitted.posterior, samples.labels, samples.strong_prediction >= 0)
        samples = replace(samples, soft=soft)
    return (None, samples) if stages.blend is None else use_if_better(fitted, samples, utility)


def _corrected(stages: Stages, samples: Samples, pipeline: Pipeline) -> Pipeline:
    """The pipeline with a corrected score, if that pays on samples that it was not fitted to."""
    score, n, k = pipeline.score, len(samples), len(pipeline.answer.confusion)
    if n < CORRECTION_FOLDS or not isinstance(score, ExpectedGainScore):
        return pipeline
    pooled, calibrated, weak = np.empty((n, k)), np.empty((n, k)), np.empty(n, dtype=np.int64)
    for held_out in folds_of(n, CORRECTION_FOLDS):
        kept, part = np.setdiff1d(np.arange(n), held_out), samples.take(held_out)
        fitted, _ = fit_pipeline(stages, samples.take(kept), warm_start=pipeline)
        at = fitted.round_one(part.local, part.weak_prediction)
        pooled[held_out], calibrated[held_out], weak[held_out] = at.pooled, at.calibrated, at.weak_prediction
    round_one = RoundOne(pooled[None] if stages.pooled_only else samples.local, pooled, weak, calibrated)
    truth = np.eye(k)[samples.labels] if samples.soft is None else samples.soft
    rows, strong = np.arange(n), samples.strong_prediction
    gain = np.where(strong < 0, 0.0, truth[rows, strong]) - truth[rows, weak]
    correction = fit_correction(round_one, score.value, gain - score(round_one), samples.weight)
    return replace(pipeline, score=replace(score, correction=correction))


def _threshold_scores(samples: Samples, score: FloatArray, weak_prediction: IntArray) -> ThresholdScores:
    right = weak_prediction == samples.labels, samples.strong_prediction == samples.labels
    return ThresholdScores(score, samples.weight, *right)


def fit_pipeline(
    stages: Stages,
    samples: Samples,
    *,
    escalated: Samples | None = None,
    confusion: FloatArray | None = None,
    blend: Pool | None = None,
    warm_start: Pipeline | None = None,
) -> tuple[Pipeline, RoundOne]:
    """Fit pool, calibrator and score; returns them, and Round 1 of the samples that fitted the score.

    Parameters
    ----------
    stages, samples
        What is fitted, on what.
    escalated, confusion
        Samples with a strong answer, and the confusion matrix of the strong route, where not all samples have one;
        by default all of `samples`, and what they show.
    blend
        The fitted blend, which is passed on.
    warm_start
        A pipeline fitted on almost the same samples.
    """
    start = None if warm_start is None else warm_start.calibrate
    if warm_start is None or stages.refit_pool is None:
        pool = stages.fit_pool(*_pool_samples(stages, samples))
    else:
        pool = stages.refit_pool(warm_start.pool, *_pool_samples(stages, samples))
    pooled = pool(samples.local)
    if isinstance(pool, TaughtPool):  # it is calibrated already
        calibrate: Calibrator = identity_calibration
    else:
        calibrate = stages.fit_calibrator(pooled, samples.labels, samples.weight, start)
    if confusion is None:
        confusion = estimate_confusion(
            samples.labels, samples.strong_prediction, pooled.shape[1], samples.weight, stages.shrinkage
        )
    if escalated is not None:
        samples, pooled = escalated, pool(escalated.local)
    local = pooled[None] if stages.pooled_only else samples.local
    round_one = _round_one(pooled, calibrate, stages.utility, local, samples.weak_prediction)
    score = stages.fit_score(
        CalibrationSet(round_one, samples.labels, samples.strong_prediction, samples.weight, confusion)
    )
    if stages.corrects and warm_start is not None and isinstance(score, ExpectedGainScore):
        score = replace(score, correction=getattr(warm_start.score, "correction", None))
    answer = FinalAnswer(confusion, blend, stages.utility)
    return Pipeline(pool, calibrate, score, answer, stages.pooled_only), round_one


def _pool_samples(stages: Stages, samples: Samples) -> tuple[Any, ...]:
    lessons = (samples.soft, samples.training) if stages.teaches else ()
    return samples.local, samples.labels, samples.weight, *lessons


def cross_fit(stages: Stages, samples: Samples, warm_start: Pipeline) -> Iterator[tuple[IntArray, Pipeline, RoundOne]]:
    """For each fold: its rows, a pipeline fitted without them, and Round 1 of the other rows."""
    n = len(samples)
    if n < 2:
        raise TooFewSamplesError(f'threshold="cross-fitted" needs at least 2 samples, there is {n}; add samples')
    for held_out in stratified_folds(samples.labels, stages.threshold.folds, stages.threshold.seed):
        kept = np.ones(n, dtype=bool)
        kept[held_out] = False
        yield held_out, *fit_pipeline(stages, samples.take(kept), warm_start=warm_start)


def out_of_fold(
    fits: Iterable[tuple[IntArray, Pipeline, RoundOne]],
    samples: Samples,
    in_sample: FloatArray,
    seed: int,
    progress: Progress | None = None,
) -> tuple[FloatArray, IntArray]:
    """Scores (N,) on the scale of `in_sample`, and weak answers (N,), of all samples, each by a fit without it.

    Scores of two fits differ by an offset that is small, but not small against the distance between scores where most
    samples are easy: a threshold read off out-of-fold scores then falls on the wrong side of the crowd. So a score is
    carried over by its rank: among the scores of the fold's own fit, and from there to the score at this rank in
    `in_sample`, the scores of the final fit. Within ties the rank is random. The `fits` are as from `cross_fit`.
    """
    score, weak_prediction = np.empty(len(samples)), np.empty(len(samples), dtype=np.int64)
    draw = np.random.default_rng(seed)
    for held_out, fitted, others in fits:
        part = samples.take(held_out)
        round_one = fitted.round_one(part.local, part.weak_prediction)
        found = fitted.scores(round_one)
        if not np.array_equal(found, in_sample[held_out]):  # equal where nothing is fitted: ranks would only add noise
            rank = ranks_among(fitted.scores(others), found, np.delete(samples.weight, held_out), draw)
            found = scores_at_ranks(in_sample, rank, samples.weight)
        score[held_out], weak_prediction[held_out] = found, round_one.weak_prediction
        if progress is not None:
            progress.advance("folds")
    return score, weak_prediction
