"""What every router is: pool ∘ calibrate ∘ score ∘ decide. A method writes its score; the rest is here, once.

A router of one's own derives from `Router` and defines `score(round_one)`, or, where the score has to be
fitted first, `fit_score(calibration_set)`, which returns such a function. Budgets, thresholds, labels, absent
parties, `route` and `answer` come with it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from gainroute._util.parameters import Settings
from gainroute.errors import InputError, NotFittedError, SettingError, ShapeError, TooFewSamplesError
from gainroute.routing.answer import answer_by, blended, crossfit_blend
from gainroute.routing.calibrate import Calibrator, identity_calibration, unseen_classes, warn_unseen
from gainroute.routing.decide import (
    BUDGET_REMEDY,
    ThresholdRule,
    calibration_threshold,
    certified_threshold,
    check_rule,
    escalate,
    rate_above,
    rate_interval,
)
from gainroute.routing.inputs import (
    Samples,
    as_local_posteriors,
    as_posteriors,
    as_present,
    as_samples,
    check_fraction,
    check_posteriors,
)
from gainroute.routing.labels import Labels, as_classes
from gainroute.routing.pipeline import Pool, Road, Score, collect, fit_road, out_of_fold, scores_of, walk
from gainroute.routing.pool import mean_over_parties
from gainroute.routing.reliability import estimate_confusion, posterior_given
from gainroute.routing.types import (
    Answer,
    ArrayLike,
    BoolArray,
    CalibrationSet,
    Decision,
    FloatArray,
    IntArray,
    LabelArray,
    Provenance,
    RoundOne,
    ThresholdScores,
)

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Router"]

# Rows are routed in blocks whose arrays stay in the processor's cache, and whose memory is bounded.
BLOCK_VALUES = 2**17


class Router(Settings):
    """Base of all routers.

    Parameters
    ----------
    budget
        B in [0, 1], the share of samples that may be escalated. 0 escalates none and 1 all, exactly.
    threshold
        How τ is found. "cross-fitted" (default): the quantile of out-of-fold scores, so that the rate holds on
        new data. "calibration": the paper's quantile of in-sample scores. "certified": the true rate exceeds
        B with probability at most 1 − `confidence`; half of the samples fit the router, the other half only
        set τ (see `gainroute.certified_threshold` for what voids it). A number is τ itself.
    confidence
        For "certified".
    min_gain
        τ is never below it; 0 means "never pay for an expected loss". It overrides the budget, B = 1 included.
    folds
        For "cross-fitted". The fewer, the smaller the parts the scores are fitted on, and the further the rate falls
        below B (N = 500, K = 10, B = 0.1: 0.077 with 5 folds, 0.089 with 10, 0.095 with 20, 0.098 with 50).
    seed
        Draws the folds and the halves, from the number of samples alone.
    classes
        Labels in column order, if they are not 0 … K−1.

    Attributes
    ----------
    threshold_
        τ.
    calibrator_
        The fitted calibrator, callable on (N, K).
    confusion_, reliability_ : (K, K), (K,)
        The strong route's confusion matrix and its diagonal.
    threshold_scores_
        The scores τ was read off, each with whether the weak and the strong answer were right.
    n_parties_, n_classes_
        M and K.
    provenance_
        Hashes of the models and the codec it was calibrated with; empty for bare arrays.
    """

    extra_columns = 0  # columns of a party's message beyond the K classes
    shrinkage: Literal["none", "empirical-bayes"] = "none"
    blend: Literal["none", "cv"] = "none"

    def __init__(
        self,
        budget: float = 0.2,
        *,
        threshold: ThresholdRule | float = "cross-fitted",
        confidence: float = 0.95,
        min_gain: float | None = None,
        folds: int = 20,
        seed: int = 0,
        classes: Sequence[Any] | LabelArray | None = None,
    ) -> None:
        self.budget = check_fraction(budget, "budget", BUDGET_REMEDY)
        self.threshold = check_rule(threshold)
        self.confidence = check_fraction(confidence, "confidence", "such as 0.95")
        if min_gain is not None and not isinstance(min_gain, (int, float, np.integer, np.floating)):
            raise SettingError(f"min_gain is {min_gain!r}; a number is needed (0 never pays for a loss), or None")
        self.min_gain = None if min_gain is None else float(min_gain)
        if not isinstance(folds, (int, np.integer)) or folds < 2:
            raise SettingError(f"folds is {folds!r}; an integer of 2 or more is needed (20 is a good choice)")
        self.folds = int(folds)
        self.seed = seed
        self.classes = as_classes(classes)

    # ---- what a method writes -------------------------------------------------------------------

    def score(self, round_one: RoundOne) -> FloatArray:  # noqa: ARG002
        """Score samples after Round 1, (N,): the higher, the more Round 2 is worth."""
        raise SettingError(f"{type(self).__name__} defines neither score() nor fit_score(); a router needs one of them")

    def fit_score(self, calibration: CalibrationSet) -> Score:  # noqa: ARG002 (a score that needs no fit ignores it)
        """Fit the score on calibration data; by default there is nothing to fit."""
        return self.score

    def fit_calibrator(
        self,
        pooled: FloatArray,  # noqa: ARG002
        labels: IntArray,  # noqa: ARG002
        weight: FloatArray,  # noqa: ARG002
        start: Calibrator | None,  # noqa: ARG002
    ) -> Calibrator:
        """Fit what turns `pooled` into `calibrated`; by default they are the same."""
        return identity_calibration

    def pool(self, local: FloatArray, present: BoolArray | None = None) -> FloatArray:
        """Pool checked local posteriors into (N, K)."""
        return mean_over_parties(local, present)

    def fit_pool(self, local: FloatArray, labels: IntArray, weight: FloatArray) -> Pool:  # noqa: ARG002
        """Fit what pools the local posteriors; by default there is nothing to fit."""
        return self.pool

    # ---- what all routers share -----------------------------------------------------------------

    def fit(
        self,
        local_posteriors: Any,
        labels: ArrayLike,
        strong_prediction: ArrayLike | None = None,
        *,
        strong_posterior: ArrayLike | None = None,
        weak_prediction: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
        present: ArrayLike | None = None,
    ) -> Self:
        """Fit on calibration data: samples that trained neither route.

        Parameters
        ----------
        local_posteriors : (M, N, K), list of M arrays (N, K), or (N, K)
            What each party said in Round 1.
        labels : (N,)
            True classes.
        strong_prediction : (N,), optional
            What the strong route answers; −1 (None) where it has no usable answer, which counts as wrong.
        strong_posterior : (N, K), optional
            Its posterior; stands in for `strong_prediction` (by its argmax) where that is not given.
        weak_prediction : (N,), optional
            Your own cheap answer (a cut-off, a rule) instead of the argmax. `route` then needs it too.
        sample_weight : (N,), optional
        present : (M, N) bool, optional
            Who answered. Samples that lack a party are counted, warned of and left out.

        Returns
        -------
        self
        """
        samples, k = as_samples(
            local_posteriors,
            labels,
            strong_prediction,
            strong_posterior,
            weak_prediction=weak_prediction,
            sample_weight=sample_weight,
            present=present,
            classes=self.classes,
            extra_columns=self.extra_columns,
        )
        self._fit(samples, k)
        return self

    def route(
        self,
        local_posteriors: Any,
        *,
        weak_prediction: ArrayLike | None = None,
        present: ArrayLike | None = None,
    ) -> Decision:
        """Decide which samples to escalate.

        Parameters
        ----------
        local_posteriors : (M, N, K), list of M arrays (N, K), or (N, K)
        weak_prediction : (N,), optional
            Your own cheap answer; needed if the router was fitted with one.
        present : (M, N) bool, optional
            Who answered. A sample that lacks a party is pooled over those present, not escalated, and flagged in
            `incomplete`; one that nobody has gets the label −1 (None) and a posterior of NaN.
        """
        self._check_fitted()
        k = self.n_classes_ + self.extra_columns
        local = as_local_posteriors(local_posteriors, parties=self.n_parties_, classes=k)
        n = local.shape[1]
        weak = self._own_weak(weak_prediction, n)
        mask = as_present(present, local.shape[:2])
        rows = max(1, BLOCK_VALUES // k)

        def blocks() -> Iterator[tuple[FloatArray, IntArray, FloatArray, FloatArray]]:
            for first in range(0, n, rows):
                part = slice(first, first + rows)
                block, block_mask = local[:, part], None if mask is None else mask[:, part]
                check_posteriors(block, block_mask)
                own = None if weak is None else weak[part]
                at = walk(self._road.pool, self._road.calibrate, block, own, block_mask)
                yield scores_of(self._road.score, at), at.weak_prediction, at.pooled, at.calibrated

        score, answer, pooled, calibrated = collect(blocks(), n)
        escalated, incomplete = escalate(score, self.threshold_), np.zeros(n, dtype=bool)
        if mask is not None:
            incomplete = np.logical_not(np.all(mask, axis=0))
            escalated &= ~incomplete
        return Decision(
            escalate=escalated,
            score=score,
            weak_prediction=Labels(self.n_classes_, self.classes).decode(answer),
            pooled=pooled,
            calibrated=calibrated,
            incomplete=incomplete,
            threshold=self.threshold_,
            local=local,
        )

    def answer(self, decision: Decision, strong: ArrayLike | None) -> Answer:
        """Put the answers of both routes together (eq. 5).

        Parameters
        ----------
        decision
            From `route`.
        strong : (E, K) or (E,)
            Posteriors or predictions of the E escalated samples, in their order. −1 (None) among predictions
            is no usable answer: the cheap one stands.
        """
        self._check_fitted()
        rows = np.flatnonzero(decision.escalate)
        names = Labels(self.n_classes_, self.classes)
        probabilities = decision.pooled.copy()
        given = np.asarray([] if strong is None else strong)
        if len(given) != len(rows):
            raise ShapeError(
                f"strong has {len(given)} rows, {len(rows)} samples were escalated; pass the strong route's answers "
                "for exactly those, in order: x[decision.escalate]"
            )
        if not len(rows):
            return Answer(decision.weak_prediction, probabilities, np.zeros(len(decision), dtype=bool))
        if given.ndim == 2:
            posterior = self._blended(decision, rows, as_posteriors(given, classes=self.n_classes_, name="strong"))
            prediction, usable = posterior.argmax(axis=1), np.ones(len(rows), dtype=bool)
        else:
            prediction = names.encode(given, "strong", missing=True)
            usable = prediction >= 0
            posterior = posterior_given(decision.calibrated[rows], self.confusion_, np.maximum(prediction, 0))
        rows = rows[usable]
        final = names.encode(decision.weak_prediction, "weak_prediction", missing=True)
        final[rows] = prediction[usable]
        probabilities[rows] = posterior[usable]
        escalated = np.zeros(len(decision), dtype=bool)
        escalated[rows] = True
        return Answer(names.decode(final), probabilities, escalated)

    def strong_answers(self, decision: Decision, strong_posterior: ArrayLike) -> LabelArray:
        """Answer every sample as the strong route would in this router's hands, escalated or not, (N,).

        Parameters
        ----------
        decision
            From `route`.
        strong_posterior : (N, K)
            Of all its samples.
        """
        everything = dataclasses.replace(decision, escalate=np.ones(len(decision), dtype=bool))
        return self.answer(everything, strong_posterior).prediction

    def threshold_for(self, budget: float) -> float:
        """τ for another budget, read off the same calibration scores by the same rule."""
        self._check_fitted()
        behind = self.threshold_scores_
        if self.threshold == "certified":
            found = certified_threshold(behind.score, budget, self.confidence)
        else:
            found = calibration_threshold(behind.score, budget, behind.weight)
        return self._at_least_min_gain(found)

    @property
    def reliability_(self) -> FloatArray:
        """C[k, k] of the strong route, (K,)."""
        self._check_fitted()
        return np.diagonal(self.confusion_).copy()

    @property
    def blends_(self) -> bool:
        """Whether the strong answer takes Round 1 into account."""
        self._check_fitted()
        return self._road.blend is not None

    @property
    def calibrator_(self) -> Calibrator:
        """The fitted calibrator, callable on (N, K)."""
        self._check_fitted()
        return self._road.calibrate

    @property
    def expected_rate_(self) -> tuple[float, float, float]:
        """Escalation rate to expect on new data, with its 95 % interval (rate, low, high)."""
        self._check_fitted()
        if math.isinf(self.threshold_):
            rate = float(self.threshold_ < 0)
            return rate, rate, rate
        behind = self.threshold_scores_
        rate = rate_above(behind.score, self.threshold_, behind.weight)
        effective = float(behind.weight.sum() ** 2 / np.square(behind.weight).sum())
        return rate, *rate_interval(rate * effective, effective)

    # ---- inside ---------------------------------------------------------------------------------

    def _fit(self, samples: Samples, classes: int) -> None:
        fitted_on, behind = samples, samples  # what the road is fitted on, and what τ is read off
        if self.threshold == "certified":
            fitted_on, behind = _halves(samples, self.seed)
        blend = None
        if self.blend == "cv":
            blend, fitted_on = crossfit_blend(fitted_on)
        road = dataclasses.replace(fit_road(self, fitted_on), blend=blend)
        behind = answer_by(blend, behind) if self.threshold == "certified" else fitted_on
        if self.threshold in ("certified", "calibration"):
            round_one = walk(road.pool, road.calibrate, behind.local, behind.weak_prediction)
            score, weak = scores_of(road.score, round_one), round_one.weak_prediction
        else:
            score, weak = out_of_fold(self, behind, road, self.folds, self.seed)
        confusion = estimate_confusion(
            fitted_on.labels, fitted_on.strong_prediction, classes, fitted_on.weight, self.shrinkage
        )
        warn_unseen(unseen_classes(fitted_on.labels, classes, fitted_on.weight))
        self._set(
            road=road,
            scores=ThresholdScores(
                score, behind.weight, weak == behind.labels, behind.strong_prediction == behind.labels
            ),
            confusion=confusion,
            parties=len(samples.local),
            classes=classes,
            own_weak_prediction=samples.weak_prediction is not None,
            provenance=Provenance(),
        )

    def _set(
        self,
        *,
        road: Road,
        scores: ThresholdScores,
        confusion: FloatArray,
        parties: int,
        classes: int,
        own_weak_prediction: bool,
        provenance: Provenance,
        threshold: float | None = None,
    ) -> None:
        """Set everything that was fitted at once: a router is fitted or it is not."""
        self._road = road
        self.threshold_scores_ = scores
        self.confusion_ = confusion
        self.n_parties_ = parties
        self.n_classes_ = classes
        self.own_weak_prediction_ = own_weak_prediction
        self.provenance_ = provenance
        if threshold is not None:
            self.threshold_ = threshold
        elif isinstance(self.threshold, str):
            self.threshold_ = math.inf
            self.threshold_ = self.threshold_for(self.budget)
        else:
            self.threshold_ = self._at_least_min_gain(self.threshold)

    def _own_weak(self, weak_prediction: ArrayLike | None, n: int) -> IntArray | None:
        if (weak_prediction is not None) != self.own_weak_prediction_:
            fitted = "with" if self.own_weak_prediction_ else "without"
            raise InputError(
                f"the router was fitted {fitted} weak_prediction=; route it {fitted} as well: its gain is over that "
                "cheap answer"
            )
        if weak_prediction is None:
            return None
        return Labels(self.n_classes_, self.classes).encode(weak_prediction, "weak_prediction", n)

    def _blended(self, decision: Decision, rows: IntArray, strong: FloatArray) -> FloatArray:
        """Give the posterior of the strong route for the escalated rows."""
        if self._road.blend is None:
            return strong
        return blended(self._road.blend, strong, decision.local[:, rows, : self.n_classes_])

    def _at_least_min_gain(self, threshold: float) -> float:
        return threshold if self.min_gain is None else max(threshold, self.min_gain)

    def _check_fitted(self) -> None:
        if not hasattr(self, "threshold_"):
            raise NotFittedError(
                f"this {type(self).__name__} is not fitted; call fit(local_posteriors, labels, strong_prediction) on "
                "calibration data first, or gr.load a saved one"
            )


def _halves(samples: Samples, seed: int) -> tuple[Samples, Samples]:
    """Draw the half that a router is fitted on and the half that only sets its threshold."""
    order = np.random.default_rng(seed).permutation(len(samples))
    half = len(samples) // 2
    if not half:
        raise TooFewSamplesError('threshold="certified" needs two halves, there is one sample; add samples')
    return samples.take(np.sort(order[:half])), samples.take(np.sort(order[half:]))
