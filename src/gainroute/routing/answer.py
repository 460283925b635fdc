"""The final answer: the strong one where escalated, blended with Round 1 where that is more accurate.

Once the embeddings have come, the server still holds every party's posterior of Round 1. The blend is a log-linear pool
of the strong posterior and the local ones, drawn towards the strong posterior alone. It is used only if it answers
calibration samples that it was not fitted on better than the strong route alone, by more than two standard errors.

With a utility, both routes answer by what an answer is expected to be worth, unless the router is set otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gainroute._util.arrays import from_tensors
from gainroute.errors import ShapeError
from gainroute.routing.folds import folds_of, pays
from gainroute.routing.inputs import as_posteriors, in_class_order
from gainroute.routing.labels import Labels
from gainroute.routing.pool import LogLinearPooling
from gainroute.routing.reliability import posterior_given
from gainroute.routing.samples import Samples
from gainroute.routing.types import Answer, ArrayLike, BoolArray, Decision, FloatArray, IntArray, Pool, Stage

__all__ = [
    "LOG_LINEAR_BLEND",
    "BlendingPool",
    "CrossFittedBlend",
    "FinalAnswer",
    "answer_value",
    "best_answer",
    "blended",
    "crossfit_blend",
    "use_if_better",
    "with_strong_answers",
]

FOLDS = 10
LOG_LINEAR_BLEND = LogLinearPooling(first_alone=True)


@dataclass(frozen=True, eq=False)
class FinalAnswer:
    """Combines the answers of both routes (eq. 5)."""

    confusion: FloatArray  # (K, K), C[k, c] = P(strong answer c | truth k), for strong answers without a posterior
    blend: Pool | None = None  # combines the strong posterior with Round 1; None if the strong answer stands alone
    utility: FloatArray | None = None  # (K, K), U[truth, answer]; None if both routes give the most likely class

    def __call__(self, decision: Decision, strong: ArrayLike | None, names: Labels) -> Answer:
        """Answer every sample; `strong` holds posteriors (E, K) or predictions (E,) of the escalated ones."""
        rows = np.flatnonzero(decision.escalate)
        given = np.asarray([] if strong is None else from_tensors(in_class_order(strong, names.names, "strong")))
        if len(given) != len(rows):
            raise ShapeError(
                f"strong has {len(given)} rows, {len(rows)} samples were escalated; pass the strong route's answers "
                "for exactly those, in order: x[decision.escalate]"
            )
        probabilities = decision.pooled.copy()
        if not len(rows):
            return Answer(decision.weak_prediction, probabilities, np.zeros(len(decision), dtype=bool))
        if given.ndim == 2:
            posterior = as_posteriors(given, classes=names.count, name="strong")
            if self.blend is not None:
                posterior = blended(self.blend, posterior, decision.local[:, rows, : names.count])
            prediction, usable = best_answer(posterior, self.utility), np.ones(len(rows), dtype=bool)
        else:
            prediction = names.encode(given, "strong", missing=True)
            usable = prediction >= 0
            posterior = posterior_given(decision.calibrated[rows], self.confusion, np.maximum(prediction, 0))
        rows = rows[usable]
        final = names.encode(decision.weak_prediction, "weak_prediction", missing=True)
        final[rows] = prediction[usable]
        probabilities[rows] = posterior[usable]
        escalated = np.zeros(len(decision), dtype=bool)
        escalated[rows] = True
        return Answer(names.decode(final), probabilities, escalated)


def best_answer(posterior: FloatArray, utility: FloatArray | None) -> IntArray:
    """Answer with the largest expected utility, argmax_c Σₖ p[k]·U[k, c]; without a utility, the most likely class."""
    worth = posterior if utility is None else posterior @ utility
    found: IntArray = worth.argmax(axis=1)
    return found


def with_strong_answers(samples: Samples, utility: FloatArray | None, blend: Pool | None = None) -> Samples:
    """Replace the strong answers by those that the router will give; a blend must not have been fitted on them.

    They change if there is a blend or a utility, and a strong posterior.
    """
    posterior = samples.strong_posterior
    if posterior is None or (blend is None and utility is None):
        return samples
    if blend is not None:
        posterior = blended(blend, posterior, samples.local)
    answers = best_answer(posterior, utility)
    return replace(samples, strong_prediction=np.where(samples.strong_prediction < 0, -1, answers))


# ---- the blend --------------------------------------------------------------------------------------


def blended(blend: Pool, strong: FloatArray, local: FloatArray) -> FloatArray:
    """Blend strong posteriors (N, K) with the local ones (M, N, K), into (N, K)."""
    return blend(np.concatenate([strong[None], local]))


@dataclass(frozen=True, eq=False)
class BlendingPool:
    """A blend of the strong posterior with the pooled one, as a stage on (1 + M, N, K).

    `fit` also fits the pool, so that a cross-fitted blend has not seen the held-out samples at all. Once fitted,
    `blend` is a callable on the strong and the pooled posterior, (2, N, K).
    """

    blend: Any
    fit_pool: Callable[..., Pool]
    refit_pool: Callable[..., Pool] | None = None
    pool: Pool | None = None

    def fit(self, posteriors: FloatArray, labels: IntArray, weight: FloatArray) -> BlendingPool:
        """Fit the pool, then the blend on its result."""
        return self._fit(self.fit_pool(posteriors[1:], labels, weight), posteriors, labels, weight)

    def refit(self, fitted: BlendingPool, posteriors: FloatArray, labels: IntArray, weight: FloatArray) -> BlendingPool:
        """Fit on almost the same samples; the pool starts from that of `fitted` if it can."""
        if self.refit_pool is None:
            return self.fit(posteriors, labels, weight)
        pool = self.refit_pool(fitted.pool, posteriors[1:], labels, weight)
        return self._fit(pool, posteriors, labels, weight)

    def _fit(self, pool: Pool, posteriors: FloatArray, labels: IntArray, weight: FloatArray) -> BlendingPool:
        both = np.stack([posteriors[0], pool(posteriors[1:])])
        return replace(self, blend=self.blend.fit(both, labels, weight), pool=pool)

    def __call__(self, posteriors: FloatArray, present: BoolArray | None = None) -> FloatArray:
        """Pool the local posteriors and blend the result, (1 + M, N, K) → (N, K)."""
        assert self.pool is not None  # noqa: S101 (`fit` sets it)
        both = np.stack([posteriors[0], self.pool(posteriors[1:], present)])
        blended_: FloatArray = self.blend(both)
        return blended_


@dataclass(frozen=True, eq=False)
class CrossFittedBlend:
    """A blend fitted on all samples, and the posterior (N, K) that each gets from a blend fitted without it."""

    blend: Any
    posterior: FloatArray


def crossfit_blend(stage: Stage, samples: Samples) -> CrossFittedBlend | None:
    """Fit a blend on all samples, and without each tenth; None if there is no strong posterior, or too few samples."""
    n, strong = len(samples), samples.strong_posterior
    if strong is None or n < FOLDS:
        return None
    posteriors = np.concatenate([strong[None], samples.local])
    everything = stage.fit(posteriors, samples.labels, samples.weight)
    refit = getattr(stage, "refit", None)
    posterior = np.empty(strong.shape)
    for held_out in folds_of(n, FOLDS):
        rows = np.setdiff1d(np.arange(n), held_out)
        fold = posteriors[:, rows], samples.labels[rows], samples.weight[rows]
        fitted = stage.fit(*fold) if refit is None else refit(everything, *fold)
        posterior[held_out] = blended(fitted, strong[held_out], samples.local[:, held_out])
    return CrossFittedBlend(everything, posterior)


def use_if_better(fitted: CrossFittedBlend, samples: Samples, utility: FloatArray | None = None) -> tuple[Any, Samples]:
    """The blend, and the samples with its out-of-fold answers; None and the samples if it is no better than strong."""
    prediction = best_answer(fitted.posterior, utility)
    prediction[samples.strong_prediction < 0] = -1  # no usable answer stays none
    if not _is_better(prediction, samples, utility):
        return None, samples
    return fitted.blend, replace(samples, strong_prediction=prediction)


def _is_better(prediction: IntArray, samples: Samples, utility: FloatArray | None) -> bool:
    now, before = (answer_value(p, samples.labels, utility) for p in (prediction, samples.strong_prediction))
    return pays(now - before, samples.weight)


def answer_value(prediction: IntArray, labels: IntArray, utility: FloatArray | None) -> FloatArray:
    """What each answer is worth, (N,); no answer counts as the worst."""
    if utility is None:
        return np.asarray(prediction == labels, dtype=np.float64)
    return np.where(prediction < 0, utility.min(axis=1)[labels], utility[labels, prediction])
