"""What every router is: pool, calibrate, score, compare with a threshold, answer. Here once, for all of them.

A router of your own derives from `Router` and defines `score(round_one)`, or, if the score has to be fitted first,
`fit_score(calibration_set)`, which returns such a function. Budgets, thresholds, labels, absent parties, `route` and
`answer` come with the base class.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from gainroute._util.arrays import shown
from gainroute._util.parameters import Settings
from gainroute._util.progress import Progress
from gainroute.errors import InputError, SettingError
from gainroute.routing.absent import answer_subsets, route_subsets
from gainroute.routing.calibrate import identity_calibration
from gainroute.routing.certify import Guarantee
from gainroute.routing.decide import (
    BUDGET_REMEDY,
    OwnRule,
    Threshold,
    ThresholdRule,
    Turns,
    check_promise,
    check_rule,
    escalate,
    escalate_ties,
)
from gainroute.routing.fitted import Fitted
from gainroute.routing.inputs import as_local_posteriors, as_present, check_folds, check_fraction
from gainroute.routing.labels import Labels, as_classes
from gainroute.routing.party_statistics import PartyStatistics
from gainroute.routing.pipeline import Pipeline, Stages, fit_stages
from gainroute.routing.pool import mean_over_parties
from gainroute.routing.reliability import Shrinkage
from gainroute.routing.samples import as_samples
from gainroute.routing.types import (
    Answer,
    ArrayLike,
    BoolArray,
    CalibrationSet,
    Calibrator,
    Decision,
    FloatArray,
    IntArray,
    LabelArray,
    Pool,
    Provenance,
    RoundOne,
    Score,
    ThresholdScores,
)  # fmt: skip

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Router"]


class Router(Fitted, Settings):
    """Base of all routers.

    Parameters
    ----------
    budget
        B in [0, 1], the share of samples that may be escalated. 0 escalates none and 1 all, exactly.
    threshold
        How τ is found. "cross-fitted" (default): the quantile of out-of-fold scores, carried over to the scale of the
        final fit by their ranks, so that the rate holds on new data. "calibration": the paper's quantile of in-sample
        scores. "certified": the true rate exceeds B with probability at most 1 − `confidence`; half of the samples
        fit the router, the other half only sets τ (see `gainroute.certified_threshold` for what voids it).
        "certified-error": of the answers that are kept (not escalated), more than `kept_error` are wrong with
        probability at most 1 − `confidence`, with as few escalations as that takes; B is not used. One half says which
        thresholds to try, the other tests them (see `gainroute.kept_error_threshold`). "certified-both": that, and a
        rate of at most B, together with probability `confidence`. `fit` raises an error if a promise cannot be had, and
        says which could. A number is τ itself. A function of your own is called with the out-of-fold scores
        (`threshold_scores_`) and B, and returns τ.
    confidence, kept_error
        For "certified…".
    min_gain
        τ is never below it; 0 means "never pay for an expected loss". It overrides the budget, even B = 1.
    folds
        For "cross-fitted". Fewer than 10 folds let the rate drift away from B where a class has few samples.
    seed
        Seed of the folds, the halves and the order within ties.
    classes
        Labels in column order, if they are not 0 … K−1.

    Attributes
    ----------
    threshold_
        τ.
    tied_share_
        Share of the samples with a score of exactly τ that are escalated; 0 unless the rule is "cross-fitted".
    threshold_scores_
        The scores from which τ was computed, each with whether the weak and the strong answer were right.
    guarantee_
        What a "certified…" threshold promises (`gainroute.Guarantee`); None at any other τ, and in earlier files.
    n_parties_, n_classes_
        M and K.
    party_statistics_
        How much the parties agreed on the calibration samples, and how confident each was; None in files of earlier
        versions.
    provenance_
        Hashes of the models, and the codec, it was calibrated with; empty if it was fitted on arrays alone.
    subset_routers_
        Routers for samples that lack parties, by the numbers of those present; see `gainroute.fit_subsets`.
    offers_
        What it is worth to ask some of the parties, for `gainroute.PartialRouter`; None if it was not fitted.
    fitted_types
        On the class: frozen dataclasses that a fitted score of it may be, so that `gainroute.load` can restore them.
    """

    extra_columns = 0  # columns of a party's message beyond the K classes
    shrinkage: Shrinkage = "none"
    blend: Any = "none"
    pooled_only: bool = False
    fitted_types: ClassVar[tuple[type[Any], ...]] = ()

    def __init__(
        self,
        budget: float = 0.2,
        *,
        threshold: ThresholdRule | float | OwnRule = "cross-fitted",
        confidence: float = 0.95,
        min_gain: float | None = None,
        folds: int = 20,
        seed: int = 0,
        classes: Sequence[Any] | LabelArray | None = None,
        kept_error: float | None = None,
    ) -> None:
        self.budget = check_fraction(budget, "budget", BUDGET_REMEDY)
        self.threshold = check_rule(threshold)
        self.kept_error = check_promise(kept_error, self.threshold)
        self.confidence = check_fraction(confidence, "confidence", "such as 0.95")
        if min_gain is not None and not isinstance(min_gain, (int, float, np.integer, np.floating)):
            raise SettingError(f"min_gain is {shown(min_gain)}; a number is needed (0 never pays for a loss), or None")
        self.min_gain = None if min_gain is None else float(min_gain)
        self.folds = check_folds(folds, usual=20)
        self.seed = seed
        self.classes = as_classes(classes)

    # ---- what distinguishes one router from another ---------------------------------------------

    def score(self, round_one: RoundOne) -> FloatArray:
        """Score samples after Round 1, (N,): the higher, the more Round 2 is worth."""
        raise SettingError(f"{type(self).__name__} defines neither score() nor fit_score(); a router needs one of them")

    def fit_score(self, calibration: CalibrationSet) -> Score:
        """Fit the score on calibration data; by default there is nothing to fit."""
        return self.score

    def pool(self, local: FloatArray, present: BoolArray | None = None) -> FloatArray:
        """Pool checked local posteriors into (N, K)."""
        return mean_over_parties(local, present)

    def fit_pool(self, local: FloatArray, labels: IntArray, weight: FloatArray) -> Pool:
        """Fit the pool; by default there is nothing to fit."""
        return self.pool

    def fit_calibrator(
        self, pooled: FloatArray, labels: IntArray, weight: FloatArray, start: Calibrator | None
    ) -> Calibrator:
        """Fit the calibrator; by default `calibrated` is `pooled`."""
        return identity_calibration

    def stages(self) -> Stages:
        """The unfitted stages that the settings describe."""
        return Stages(
            fit_pool=self.fit_pool,
            fit_calibrator=self.fit_calibrator,
            fit_score=self.fit_score,
            threshold=Threshold(self.threshold, self.confidence, self.min_gain, self.folds, self.seed, self.kept_error),
            shrinkage=self.shrinkage,
        )

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
        training: tuple[Any, ArrayLike] | None = None,
        check_class_order: bool = True,
        progress: Progress | None = None,
    ) -> Self:
        """Fit on calibration data: samples that trained neither route.

        Parameters
        ----------
        local_posteriors : (M, N, K), list of M arrays (N, K), or (N, K)
            The posterior of each party in Round 1. The columns of tables (pandas, polars, pyarrow) are matched to
            `classes` by name.
        labels : (N,)
            True classes.
        strong_prediction : (N,), optional
            The strong answers; −1 (None) if there is no usable one, which counts as wrong.
        strong_posterior : (N, K), optional
            The strong posteriors; their argmax is used if `strong_prediction` is not given.
        weak_prediction : (N,), optional
            Your own weak answer (a cut-off, a rule) instead of the argmax. `route` then needs it too.
        sample_weight : (N,), optional
        present : (M, N) bool, optional
            Who answered. Samples that lack a party are left out, with a warning.
        training : ((M, N', K), (N',)), optional
            Round 1 on samples that trained the local models, and their true classes: more data for the weak answer,
            where they help it on the calibration samples. Only an `ExpectedGainRouter` with the pooling "taught" reads
            them.
        check_class_order
            Whether to refuse columns that, by the labels, are in another order than the classes.
        progress
            Where progress is reported: many classes take seconds. By default nowhere.

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
            check_class_order=check_class_order,
            training=training,
        )
        pipeline, scores, fitted_scores = fit_stages(self.stages(), samples, progress)
        self._set(
            pipeline=pipeline,
            scores=scores,
            parties=len(samples.local),
            classes=k,
            own_weak_prediction=samples.weak_prediction is not None,
            provenance=Provenance(),
            party_statistics=PartyStatistics.of(samples.local, samples.weight),
            fitted_scores=fitted_scores,
        )
        return self

    def route(
        self,
        local_posteriors: Any,
        *,
        weak_prediction: ArrayLike | None = None,
        present: ArrayLike | None = None,
        checked: bool = False,
        turns: Turns | None = None,
    ) -> Decision:
        """Decide which samples to escalate.

        Parameters
        ----------
        local_posteriors : (M, N, K), list of M arrays (N, K), or (N, K)
        weak_prediction : (N,), optional
            Your own weak answer; needed if the router was fitted with one.
        present : (M, N) bool, optional
            Who answered. A sample that lacks a party is routed by the router of those present, if `fit_subsets` fitted
            one; else it is pooled over them, not escalated, and flagged in `incomplete`. One that no party has gets the
            label −1 (None) and a posterior of NaN.
        checked
            True skips the check that rows are posteriors, for values that were checked when they arrived.
        turns
            One dict, empty at first, for all pieces of a long table: ties at τ then take turns as in one call.
        """
        self._check_fitted()
        k = self.n_classes_ + self.extra_columns
        local = as_local_posteriors(local_posteriors, parties=self.n_parties_, classes=k, class_names=self.classes)
        n = local.shape[1]
        if (weak_prediction is not None) != self.own_weak_prediction_:
            fitted = "with" if self.own_weak_prediction_ else "without"
            raise InputError(
                f"the router was fitted {fitted} weak_prediction=; route it {fitted} as well: its gain is over that "
                "weak answer"
            )
        weak = None if weak_prediction is None else self._labels.encode(weak_prediction, "weak_prediction", n)
        mask = as_present(present, local.shape[:2])
        score, at = self._pipeline.scored_round_one(local, weak, mask, checked=checked)
        incomplete = np.zeros(n, dtype=bool) if mask is None else np.logical_not(np.all(mask, axis=0))
        decision = self._decision(score, at, incomplete, turns)
        if mask is None or not self.subset_routers_ or not incomplete.any():
            return decision
        return route_subsets(self, decision, local, weak_prediction, mask, turns)

    def _decision(self, score: FloatArray, at: RoundOne, incomplete: BoolArray, turns: Turns | None = None) -> Decision:
        escalated = escalate(score, self.threshold_)
        if self.tied_share_ and len(tied := np.flatnonzero(score == self.threshold_)):
            escalated[tied] = escalate_ties(at.local[:, tied], self.tied_share_, self.seed, turns)
        escalated &= ~incomplete
        return Decision(
            escalate=escalated,
            score=score,
            weak_prediction=self._labels.decode(at.weak_prediction),
            pooled=at.pooled,
            calibrated=at.calibrated,
            incomplete=incomplete,
            threshold=self.threshold_,
            local=at.local,
        )

    def answer(self, decision: Decision, strong: ArrayLike | None) -> Answer:
        """Combine the answers of both routes (eq. 5).

        Parameters
        ----------
        decision
            From `route`.
        strong : (E, K) or (E,)
            Posteriors or predictions of the E escalated samples, in their order. A prediction of −1 (None) means
            no usable answer: the weak one stands.
        """
        self._check_fitted()
        if decision.subset is not None or decision.ask is not None:
            return answer_subsets(self, decision, strong)
        return self._pipeline.answer(decision, strong, self._labels)

    def strong_answers(self, decision: Decision, strong_posterior: ArrayLike) -> LabelArray:
        """The strong answer for every sample of a decision, escalated or not, from all their posteriors (N, K); (N,).

        It is blended with Round 1 if the router blends.
        """
        everything = dataclasses.replace(decision, escalate=np.ones(len(decision), dtype=bool))
        return self.answer(everything, strong_posterior).prediction

    def threshold_for(self, budget: float) -> float:
        """τ for another budget, computed from the same calibration scores by the same rule; without a guarantee."""
        self._check_fitted()
        return self.stages().threshold.find(self.threshold_scores_, budget)

    # ---- inside ---------------------------------------------------------------------------------

    def _set(
        self,
        *,
        pipeline: Pipeline,
        scores: ThresholdScores,
        parties: int,
        classes: int,
        own_weak_prediction: bool,
        provenance: Provenance,
        party_statistics: PartyStatistics | None,
        fitted_scores: ThresholdScores | None = None,
        threshold: float | None = None,
        tied_share: float = 0.0,
        guarantee: Guarantee | None = None,
    ) -> None:
        """Set everything that was fitted at once: a router is fitted or it is not."""
        if threshold is None:  # first: it may refuse
            rule = self.stages().threshold
            guarantee = rule.certify(scores, fitted_scores, self.budget)
            threshold = rule.first(scores, self.budget) if guarantee is None else guarantee.threshold
            tied_share = rule.tied_share(scores, threshold, self.budget)
        self._pipeline = pipeline
        self._labels = Labels(classes, self.classes)
        self.threshold_scores_ = scores
        self.n_parties_ = parties
        self.n_classes_ = classes
        self.own_weak_prediction_ = own_weak_prediction
        self.provenance_ = provenance
        self.party_statistics_ = party_statistics
        self.subset_routers_, self.offers_ = {}, None
        self.threshold_, self.tied_share_, self._guarantee = threshold, tied_share, guarantee
