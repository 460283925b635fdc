"""Whom to ask in Round 2: what the embeddings of each subset of the parties are worth, and what they cost.

A fusion head that accepts absent parties can answer from any subset S. Its expected gain on a sample is

    ŝ_S = Σₖ m[k] C_S[k, k] − m[ŷ],

and its cost c_S the share that its bytes are of asking everyone. At a price τ, the sample goes to the subset with the
largest ŝ_S − τ·c_S, or keeps its weak answer if none exceeds 0: it is escalated if max_S ŝ_S / c_S, its gain per byte,
exceeds τ. If asking everyone is the only offer, that is the router's own rule. A budget is then a share of the bytes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from gainroute.errors import SettingError, ShapeError
from gainroute.routing.absent import Subset
from gainroute.routing.decide import ranks_among, scores_at_ranks
from gainroute.routing.pipeline import Pipeline, Stages, cross_fit
from gainroute.routing.reliability import estimate_confusion
from gainroute.routing.samples import Samples
from gainroute.routing.score import gain_score, strong_value
from gainroute.routing.types import (
    Answer,
    ArrayLike,
    BoolArray,
    Decision,
    FloatArray,
    IntArray,
    ThresholdScores,
)  # fmt: skip

if TYPE_CHECKING:
    from gainroute.routing.router import Router
    from gainroute.routing.routers import ExpectedGainRouter
    from gainroute.routing.score import ExpectedGainScore

__all__ = [
    "Offers",
    "PartialRouter",
    "PricedDecision",
    "choose",
    "fit_offers",
    "out_of_fold_gains",
    "price_for",
    "priced",
    "score_of",
    "spent_by",
    "subset_gains",
]


@dataclass(frozen=True, eq=False, kw_only=True)
class PricedDecision(Decision):
    """A decision by the gain per byte: `score` is max_S ŝ_S / c_S, `threshold` the price.

    Attributes
    ----------
    gain : (N, S)
        ŝ_S of every offer; −∞ where one of its parties is absent.
    """

    gain: FloatArray


@dataclass(frozen=True, eq=False)
class Offers:
    """The subsets that may be asked, and what they were worth on calibration samples.

    Attributes
    ----------
    member : (S, M) bool
        The parties of each; the last offer is everyone.
    share : (M,)
        Share of each party in the bytes of Round 2.
    value : (S, K)
        What each is worth on each class: C_S[k, k], or by the router's utility.
    gain : (N, S)
        Out-of-fold gains of the calibration samples, from which prices are computed.
    weight, weak_right : (N,)
    right : (N, S)
        Weight of each sample, and whether the weak answer and that of each subset was right.
    """

    member: BoolArray
    share: FloatArray
    value: FloatArray
    gain: FloatArray
    weight: FloatArray
    weak_right: BoolArray
    right: BoolArray

    @property
    def cost(self) -> FloatArray:
        """c_S, (S,): the share that its bytes are of asking everyone."""
        cost: FloatArray = self.member @ self.share
        return cost

    def scores(self, gain: FloatArray) -> FloatArray:
        """Gain per byte of the best offer, (N,), in units of the bytes of everyone."""
        best: FloatArray = (gain / self.cost).max(axis=1)
        return best

    def threshold_scores(self) -> ThresholdScores:
        """The calibration scores, with whether asking everyone was right."""
        return ThresholdScores(self.scores(self.gain), self.weight, self.weak_right, self.right[:, -1])

    def price_for(self, budget: float) -> float:
        """τ at which calibration samples spend no more than this share of the bytes."""
        return price_for(self.gain, self.cost, budget, self.weight)

    def expected(self, price: float) -> tuple[float, float]:
        """Share of the bytes that is spent at a price, and the accuracy, by the calibration samples."""
        subset, cost = choose(self.gain, self.cost, price)
        right = np.where(subset < 0, self.weak_right, self.right[np.arange(len(subset)), subset])
        return float(np.average(cost, weights=self.weight)), float(np.average(right, weights=self.weight))

    def everyone(self, gain: FloatArray) -> IntArray:
        """The largest offer that each sample has, (N,)."""
        sizes = np.where(np.isneginf(gain), -1, self.member.sum(axis=1))
        largest: IntArray = sizes.argmax(axis=1)
        return largest

    def asked(self, subset: IntArray) -> BoolArray:
        """Parties of the chosen offers, (M, N); none where −1."""
        found: BoolArray = self.member[subset].T & (subset >= 0)
        return found

    def spent(self, ask: BoolArray) -> FloatArray:
        """Share of the bytes of Round 2 by sample, (N,)."""
        share: FloatArray = self.share @ ask
        return share


class PartialRouter:
    """Ask, for each sample, the parties whose embeddings are worth their bytes; a `Decider` like the router it wraps.

    Parameters
    ----------
    router
        With offers: ``gr.fit_subsets(…, party_bytes=…)``.
    budget
        The share that the bytes of Round 2 may have of asking everyone for everything; by default the router's budget.

    Attributes
    ----------
    price_
        τ, the expected gain that all bytes of Round 2 together must bring per sample.
    """

    def __init__(self, router: ExpectedGainRouter, budget: float | None = None) -> None:
        if router.offers_ is None:
            raise SettingError(
                "the router does not know what the embeddings of each party cost; fit it with gr.fit_subsets(…, "
                "party_bytes=…)"
            )
        self.router, self.offers = router, router.offers_
        self.budget = router.budget if budget is None else budget
        self.price_ = self.offers.price_for(self.budget)

    def route(
        self,
        local_posteriors: Any,
        *,
        weak_prediction: ArrayLike | None = None,
        present: ArrayLike | None = None,
        checked: bool = False,
    ) -> PricedDecision:
        """Decide which parties to ask for which samples; the arguments are those of `Router.route`."""
        found = self.router.route(local_posteriors, weak_prediction=weak_prediction, present=present, checked=checked)
        return self.decide(found)

    def answer(self, decision: Decision, strong: ArrayLike | None) -> Answer:
        """Combine the answers of both routes; see `Router.answer`."""
        return self.router.answer(decision, strong)

    def decide(self, decision: Decision, price: float | None = None) -> PricedDecision:
        """Decide on samples that the router has routed, at another price than that of the budget if it is given."""
        return priced(self.router, decision, self.price_ if price is None else price)


def priced(router: ExpectedGainRouter, decision: Decision, price: float) -> PricedDecision:
    """Decide by the gain per byte on samples that the router has routed."""
    offers, n = router.offers_, len(decision)
    assert offers is not None  # noqa: S101 (callers have checked)
    weak = router._labels.encode(decision.weak_prediction, "weak_prediction", missing=True)
    gain = subset_gains(decision.calibrated, offers.value, np.maximum(weak, 0), score_of(router).utility)
    if decision.subset is not None:
        lacks = np.isnan(decision.local[:, :, 0])
        gain[(offers.member @ lacks).T] = -np.inf
    blank = decision.incomplete | (weak < 0)
    gain[blank] = -np.inf
    score = np.where(blank, decision.score, 0.0)
    score[~blank] = offers.scores(gain[~blank])
    chosen = choose(gain, offers.cost, price)[0]
    known = {
        name: getattr(decision, name) for name in ("weak_prediction", "pooled", "calibrated", "incomplete", "local")
    }
    return PricedDecision(
        **known, escalate=chosen >= 0, score=score, threshold=price, subset=decision.subset,
        ask=offers.asked(chosen) if n else np.zeros((len(offers.share), 0), dtype=bool), gain=gain,
    )  # fmt: skip


def spent_by(router: Router, decision: Decision) -> FloatArray:
    """What a decision spends of a budget, (N,): 1 per escalated sample, or where it chooses whom to ask their bytes."""
    if decision.ask is None or router.offers_ is None:
        return decision.escalate.astype(np.float64)
    return router.offers_.spent(decision.ask & decision.escalate)


def score_of(router: ExpectedGainRouter) -> ExpectedGainScore:
    """The fitted score of an expected-gain router."""
    score: Any = router._pipeline.score  # `fit_score` returns nothing else
    fitted: ExpectedGainScore = score
    return fitted


# ---- the arithmetic, shared with `PartialEscalation` ----------------------------------------------------


def subset_gains(
    calibrated: FloatArray, value: FloatArray, weak_prediction: IntArray, utility: FloatArray | None = None
) -> FloatArray:
    """Expected gain of every subset, (N, S)."""
    return np.column_stack([gain_score(calibrated, each, weak_prediction, utility) for each in value])


def choose(gain: FloatArray, cost: FloatArray, price: float) -> tuple[IntArray, FloatArray]:
    """Choose the best subset per sample, or none (−1), and its cost."""
    if price == math.inf:
        return np.full(len(gain), -1), np.zeros(len(gain))
    net = gain - price * cost
    best = net.argmax(axis=1)
    worth = np.take_along_axis(net, best[:, None], axis=1)[:, 0] > 0
    subset: IntArray = np.where(worth, best, -1)
    return subset, np.where(worth, cost[best], 0.0)


def price_for(gain: FloatArray, cost: FloatArray, budget: float, weight: FloatArray | None = None) -> float:
    """The price at which samples of these gains spend no more than `budget` on average; 0 if they need less."""
    if budget == 0:
        return math.inf

    def spent(price: float) -> float:
        return float(np.average(choose(gain, cost, price)[1], weights=weight))

    if spent(0.0) <= budget:
        return 0.0
    low, high = 0.0, max(float((gain / cost).max()), 0.0)  # beyond this price nothing is asked for
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if spent(middle) > budget else (low, middle)
    return high


def out_of_fold_gains(
    stages: Stages, samples: Samples, pipeline: Pipeline, answers: Sequence[IntArray], utility: FloatArray | None = None
) -> tuple[FloatArray, FloatArray]:
    """What each subset is worth, (S, K), and its gain on each sample by a fit without it, (N, S).

    Gains of different fits are compared by rank, as in `fit_stages`.
    """
    k, everything = len(pipeline.answer.confusion), np.arange(len(samples))
    draw = np.random.default_rng(stages.threshold.seed)

    def values(rows: IntArray) -> FloatArray:
        found = [
            estimate_confusion(samples.labels[rows], a[rows], k, samples.weight[rows], stages.shrinkage)
            for a in answers
        ]
        return np.stack([strong_value(matrix, utility) for matrix in found])

    def gains(fitted: Pipeline, rows: IntArray, value: FloatArray) -> FloatArray:
        part = samples.take(rows)
        at = fitted.round_one(part.local, part.weak_prediction)
        return subset_gains(at.calibrated, value, at.weak_prediction, utility)

    value = values(everything)
    in_sample = gains(pipeline, everything, value)
    gain = np.empty_like(in_sample)
    for held_out, fitted, _ in cross_fit(stages, samples, pipeline):
        kept = np.setdiff1d(everything, held_out)
        of_fold, weight = values(kept), samples.weight[kept]
        found, reference = gains(fitted, held_out, of_fold), gains(fitted, kept, of_fold)
        for i in range(len(answers)):
            rank = ranks_among(reference[:, i], found[:, i], weight, draw)
            gain[held_out, i] = scores_at_ranks(in_sample[:, i], rank, samples.weight)
    return value, gain


def fit_offers(
    router: ExpectedGainRouter, samples: Samples, answers: Mapping[Subset, IntArray], party_bytes: Sequence[float]
) -> Offers:
    """Fit what asking each subset is worth, on the samples that fitted the router.

    Parameters
    ----------
    router
        Fitted on `samples`; its score is that of asking everyone.
    samples
        Calibration samples.
    answers
        Strong answers (N,) as columns, by subset.
    party_bytes : (M,)
        Bytes of each party's embedding.
    """
    each, m = np.asarray(party_bytes, dtype=np.float64), router.n_parties_
    if each.shape != (m,) or not (each > 0).all():
        raise ShapeError(f"party_bytes is {party_bytes!r}; {m} numbers above 0 are needed, one per party")
    behind = router.threshold_scores_
    if len(behind.score) != len(samples):
        raise SettingError(
            f"the router's threshold is that of {len(behind.score)} samples, and here are {len(samples)}; party_bytes"
            ' needs the same samples, and a rule that does not set any aside: "cross-fitted" or "calibration"'
        )
    stages = router.stages()
    stages = replace(stages, threshold=replace(stages.threshold, folds=min(router.folds, 5)))
    score = score_of(router)
    value, gain = out_of_fold_gains(stages, samples, router._pipeline, list(answers.values()), score.utility)
    member = np.array([[party in subset for party in range(m)] for subset in (*answers, range(m))])
    right = np.stack([a == samples.labels for a in answers.values()], axis=1)
    return Offers(
        member=member,
        share=each / each.sum(),
        value=np.concatenate([value, score.value[None]]),
        gain=np.column_stack([gain, behind.score]),
        weight=behind.weight,
        weak_right=behind.weak_right,
        right=np.column_stack([right, behind.strong_right]),
    )
