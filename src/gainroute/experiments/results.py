"""What records say: every router on every regime and seed, as arrays. No drawing, no printing, no torch.

::

    records ─ fit_router ─→ RouterScores ─ routed ─→ Routed (a router, a regime, a seed)
            → measures_at, curve_band, resampled_accuracy, calibration_quality, deployed → tables and figures
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from gainroute._util.resampling import gains_at, resamples
from gainroute.errors import DataError
from gainroute.evaluation.metrics import (
    TradeoffCurve,
    expected_calibration_error,
    negative_log_likelihood,
    operating_point,
    oracle_score,
    reliability_diagram,
    tradeoff_curve,
)
from gainroute.experiments.records import Record, RouteAnswers
from gainroute.routing.calibrate import Calibrator, fit_dirichlet, fit_temperature, identity_calibration
from gainroute.routing.decide import calibration_threshold
from gainroute.routing.pool import pool_mean
from gainroute.routing.router import Router
from gainroute.routing.routers import (
    CalibratedConfidenceRouter,
    ConfidenceRouter,
    ExpectedGainRouter,
    LearnedGainRouter,
    RandomRouter,
)
from gainroute.routing.types import ArrayLike, Decision, FloatArray, IntArray

__all__ = [
    "ABLATION",
    "ANALYTICAL",
    "BUDGETS",
    "ORACLE",
    "OURS",
    "REFERENCE",
    "ROUTING_ONLY",
    "CalibrationQuality",
    "Measures",
    "Routed",
    "RouterScores",
    "RoutingOnlyRouter",
    "ablation_routers",
    "answers_by_mean",
    "blended_answers",
    "calibration_quality",
    "chosen_alpha",
    "compared_routers",
    "curve_band",
    "defer_name",
    "defer_scores",
    "deployed",
    "fit_router",
    "mean_std",
    "measures_at",
    "oracle_scores",
    "resampled_accuracy",
    "routed",
]

Builder = Callable[[], Router]

ANALYTICAL = "expected gain"  # the paper's
OURS = "ours (total)"
ROUTING_ONLY = "ours (routing only)"
REFERENCE = "confidence"
ORACLE = "oracle"
BUDGETS = (0.1, 0.2, 0.4)  # those a threshold is deployed for
ABLATION = (ANALYTICAL, f"{ANALYTICAL}, temperature", f"{ANALYTICAL}, uncalibrated", "calibrated confidence")
REPLICATES = 1000


class RoutingOnlyRouter(ExpectedGainRouter):
    """The default's score beside the paper's answers on both routes: what better routing alone is worth."""


def compared_routers() -> dict[str, Builder]:
    """Every router that is fitted on Round 1 alone, by the name it has in tables and figures.

    The paper's row has the cross-fitted τ beside the paper's own: at matched rates they are one. "ours (total)" is
    whatever `ExpectedGainRouter()` is by default, with its own answers on both routes. The others take the paper's τ,
    which needs one fit instead of twenty-one.
    """
    return {
        ANALYTICAL: lambda: ExpectedGainRouter.paper(threshold="cross-fitted"),
        OURS: lambda: ExpectedGainRouter(threshold="cross-fitted"),
        ROUTING_ONLY: lambda: RoutingOnlyRouter(threshold="calibration", blend="none"),
        "calibrated confidence": lambda: CalibratedConfidenceRouter(threshold="calibration"),
        REFERENCE: ConfidenceRouter,
        "learned gain": lambda: LearnedGainRouter(threshold="calibration"),
        "random": RandomRouter,
    }


def ablation_routers() -> dict[str, Builder]:
    """The expected-gain router with the other calibrators."""
    return {
        ABLATION[1]: lambda: ExpectedGainRouter.paper(calibration="temperature"),
        ABLATION[2]: lambda: ExpectedGainRouter.paper(calibration="none"),
    }


@dataclass(frozen=True, eq=False)
class RouterScores:
    """A fitted router on one record.

    Attributes
    ----------
    score, weak_prediction
        By regime (0 is the clean one), (N,) each on its test part.
    thresholds
        τ as it would be deployed, by rule and budget.
    strong_prediction
        By regime, where the router blends the strong answer with Round 1; the record's own elsewhere.
    """

    score: Mapping[int, FloatArray]
    weak_prediction: Mapping[int, IntArray]
    thresholds: Mapping[tuple[str, float | None], float]
    strong_prediction: Mapping[int, IntArray] = field(default_factory=dict)


def fit_router(build: Builder, record: Record, budgets: Sequence[float] = BUDGETS) -> RouterScores:
    """Fit a router on a record's calibration part, and score its test part under every regime.

    The expected-gain router is deployed by two rules, its own and the paper's. A router with a pooling of its own
    answers by it; the others share the record's exact weak prediction.
    """
    router = build()
    shared = answers_by_mean(router)
    held = record.calibration
    router.fit(
        held.local_posteriors,
        held.labels,
        held.strong_prediction,
        strong_posterior=held.strong_posterior,
        weak_prediction=held.weak_prediction if shared else None,
    )
    thresholds: dict[tuple[str, float | None], float] = {
        (str(router.threshold), budget): router.threshold_for(budget) for budget in budgets
    }
    if type(router) is ExpectedGainRouter and router.threshold != "calibration":
        pooled = router.route(held.local_posteriors, weak_prediction=held.weak_prediction if shared else None)
        thresholds |= {("calibration", budget): calibration_threshold(pooled.score, budget) for budget in budgets}
    score, weak, strong = {}, {}, {}
    for regime, split in record.regimes().items():
        decision = router.route(split.local_posteriors, weak_prediction=split.weak_prediction if shared else None)
        score[regime], weak[regime] = decision.score, np.asarray(decision.weak_prediction, dtype=np.int64)
        blended = blended_answers(router, decision, split.strong_posterior)
        if blended is not None:
            strong[regime] = blended
    return RouterScores(score, weak, thresholds, strong)


def answers_by_mean(router: Router) -> bool:
    """Whether a router's Round-1 answer is the paper's: the argmax of the mean."""
    by_mean = getattr(router, "pooling", "mean") == "mean" or isinstance(router, RoutingOnlyRouter)
    pools_by_setting = type(router).fit_pool in (Router.fit_pool, ExpectedGainRouter.fit_pool)
    return type(router).pool is Router.pool and pools_by_setting and by_mean


def blended_answers(router: Router, decision: Decision, strong_posterior: ArrayLike) -> IntArray | None:
    """What the strong route would answer for every sample in this router's hands; None where it answers alone."""
    if not router.blends_:
        return None
    return np.asarray(router.strong_answers(decision, strong_posterior), dtype=np.int64)


def defer_name(alpha: str) -> str:
    """Name learning to defer at one α as tables and figures do: "1-crossfit" is α = 1, expert cross-fitted."""
    value, _, crossfit = alpha.partition("-")
    return f"defer α={value}" + (" cross-fitted" if crossfit else "")


def defer_scores(record: Record, alpha: str, budgets: Sequence[float] = BUDGETS) -> RouterScores:
    """Learning to defer, read off the record: its pooled score and its own weak prediction."""
    held = record.calibration.defer[alpha]
    thresholds: dict[tuple[str, float | None], float] = {
        ("calibration", budget): calibration_threshold(held.score, budget) for budget in budgets
    }
    regimes = {regime: split.defer[alpha] for regime, split in record.regimes().items()}
    return RouterScores(
        {regime: outcome.score.astype(np.float64) for regime, outcome in regimes.items()},
        {regime: outcome.prediction for regime, outcome in regimes.items()},
        {**thresholds, ("canonical", None): 0.0},
    )


def chosen_alpha(record: Record) -> str | None:
    """The α of the best mean accuracy over all rates on the calibration part, which trained nothing."""
    held = record.calibration

    def worth(alpha: str) -> float:
        outcome = held.defer[alpha]
        curve = tradeoff_curve(outcome.score, outcome.prediction, held.strong_prediction, held.labels)
        return float(curve.accuracy.mean())

    return max((alpha for alpha in held.defer if "-" not in alpha), key=worth, default=None)


def oracle_scores(record: Record) -> RouterScores:
    """The realised gain as a score: what no router can know."""
    regimes = record.regimes()
    return RouterScores(
        {r: oracle_score(s.weak_prediction, s.strong_prediction, s.labels) for r, s in regimes.items()},
        {r: s.weak_prediction for r, s in regimes.items()},
        {},
    )


@dataclass(frozen=True, eq=False)
class Routed:
    """One router on one test part: (N,) each, in the order of the sample ids."""

    score: FloatArray
    weak_right: FloatArray
    strong_right: FloatArray
    thresholds: Mapping[tuple[str, float | None], float]

    @property
    def gain(self) -> FloatArray:
        """Realised gain of escalating, (N,)."""
        return self.strong_right - self.weak_right

    @cached_property
    def curve(self) -> TradeoffCurve:
        """The whole trade-off curve."""
        return tradeoff_curve(self.score, *self._answers)

    @property
    def _answers(self) -> tuple[IntArray, IntArray, IntArray]:
        # For every measure here only right or wrong counts: 1 is right, 0 is wrong, the truth is 1.
        return self.weak_right.astype(int), self.strong_right.astype(int), np.ones(len(self.score), dtype=int)

    def deploy(self, threshold: float) -> tuple[float, float]:
        """Escalation rate really given at a threshold, and the accuracy there."""
        point = operating_point(self.score, *self._answers, threshold=threshold)
        return point.escalation_rate, point.accuracy


def routed(scores: RouterScores, split: RouteAnswers, regime: int) -> Routed:
    """Put a router's scores beside what both routes got right, in the order of the ids."""
    order = np.argsort(split.ids, kind="stable")
    weak = scores.weak_prediction[regime] == split.labels
    strong = scores.strong_prediction.get(regime, split.strong_prediction) == split.labels
    return Routed(
        scores.score[regime][order],
        weak[order].astype(np.float64),
        strong[order].astype(np.float64),
        scores.thresholds,
    )


@dataclass(frozen=True, eq=False)
class Measures:
    """Acc., EP and NE at some rates: (S, R) each, a row a seed."""

    rates: FloatArray
    accuracy: FloatArray
    precision: FloatArray
    neutral: FloatArray


def measures_at(runs: Sequence[Routed], rates: Sequence[float]) -> Measures:
    """Acc., EP and NE at matched rates, for every seed; EP = NE = 0 at rate 0."""
    at = np.asarray(rates, dtype=np.float64)
    some = np.where(at > 0, at, 1.0)

    def read(of: Callable[[TradeoffCurve], FloatArray]) -> FloatArray:
        return np.stack([np.interp(at, run.curve.escalation_rate, of(run.curve)) for run in runs])

    # Shares among the escalated are ratios: the counts are interpolated, not the ratios.
    return Measures(
        at,
        read(lambda c: c.accuracy),
        read(lambda c: c.precision * c.escalation_rate) / some,
        read(lambda c: c.neutral * c.escalation_rate) / some,
    )


def curve_band(runs: Sequence[Routed], points: int = 101) -> Measures:
    """Acc., EP and NE on an even grid of rates from 0 to 1, to draw."""
    return measures_at(runs, np.linspace(0, 1, points).tolist())


def mean_std(values: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Mean and standard deviation over seeds, the first axis; one seed has deviation 0."""
    return values.mean(axis=0), values.std(axis=0, ddof=1) if len(values) > 1 else np.zeros(values.shape[1:])


def resampled_accuracy(
    runs: Sequence[Routed], rates: Sequence[float], *, count: int = REPLICATES, seed: int = 0
) -> FloatArray:
    """Accuracy at matched rates on resampled test parts, mean over the seeds, (count, R).

    Test samples are drawn with replacement, the same ones for all seeds together (they share one test part), and the
    same ones at every call: two routers may be subtracted row by row.
    """
    sizes = {len(run.score) for run in runs}
    if len(sizes) != 1:
        raise DataError(
            f"the seeds have test parts of {sorted(sizes)} samples; a paired difference needs one test part"
        )
    at, n = np.asarray(rates, dtype=np.float64), sizes.pop()

    def accuracy(weights: FloatArray) -> FloatArray:
        parts = [(weights @ r.weak_right)[:, None] + gains_at(r.score, r.gain, weights, at) for r in runs]
        return np.asarray(np.mean(parts, axis=0) / n, dtype=np.float64)

    return np.concatenate([accuracy(weights) for weights in resamples(n, count, np.random.default_rng(seed))])


def deployed(runs: Sequence[Routed], rule: str, budget: float | None) -> tuple[FloatArray, FloatArray]:
    """Rates really given and accuracies, (S,) each, when τ comes from calibration data by a rule."""
    points = [run.deploy(run.thresholds[rule, budget]) for run in runs]
    return np.array([rate for rate, _ in points]), np.array([accuracy for _, accuracy in points])


@dataclass(frozen=True, eq=False)
class CalibrationQuality:
    """How well a calibrator's posterior can be taken at its word on a test part.

    Attributes
    ----------
    ece, nll
        Expected calibration error and negative log-likelihood.
    confidence, accuracy, share : (bins,)
        The reliability diagram.
    """

    ece: float
    nll: float
    confidence: FloatArray
    accuracy: FloatArray
    share: FloatArray


CALIBRATORS: dict[str, Callable[[FloatArray, IntArray], Calibrator]] = {
    "none": lambda _p, _y: identity_calibration,
    "temperature": fit_temperature,
    "Dirichlet": fit_dirichlet,
}


def calibration_quality(record: Record, name: str, bins: int = 15) -> dict[int, CalibrationQuality]:
    """Fit a calibrator ("none", "temperature", "Dirichlet") and judge it under every regime."""
    held = record.calibration
    calibrate = CALIBRATORS[name](pool_mean(held.local_posteriors), held.labels)
    found = {}
    for regime, split in record.regimes().items():
        m = calibrate(pool_mean(split.local_posteriors))
        diagram = reliability_diagram(m, split.labels, bins)
        found[regime] = CalibrationQuality(
            expected_calibration_error(m, split.labels, bins),
            negative_log_likelihood(m, split.labels),
            diagram.confidence,
            diagram.accuracy,
            diagram.share,
        )
    return found
