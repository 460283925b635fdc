"""Scores of every router: fitted on a record's calibration part, applied to its test parts."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from gainroute.experiments.records import Record
from gainroute.routing.agreement import AgreementRouter
from gainroute.routing.conformal import ConformalRouter
from gainroute.routing.decide import calibration_threshold
from gainroute.routing.learned_gain import LearnedGainRouter
from gainroute.routing.quality import QualityRouter
from gainroute.routing.router import Router
from gainroute.routing.routers import (
    CalibratedConfidenceRouter,
    ConfidenceRouter,
    ExpectedGainRouter,
    RandomRouter,
)
from gainroute.routing.two_stage_defer import TwoStageDeferRouter
from gainroute.routing.types import ArrayLike, Decision, FloatArray, IntArray

__all__ = [
    "ABLATION",
    "AGREEMENT",
    "ANALYTICAL",
    "BUDGETS",
    "CALIBRATED",
    "CONFORMAL",
    "ORACLE",
    "OURS",
    "QUALITY",
    "REFERENCE",
    "ROUTING_ONLY",
    "TWO_STAGE",
    "Builder",
    "RouterScores",
    "RoutingOnlyRouter",
    "ablation_routers",
    "answers_by_mean",
    "blended_answers",
    "compared_routers",
    "defer_name",
    "defer_scores",
    "fit_router",
]

Builder = Callable[[], Router]

# Keys of results; `evaluation.router_names` says how they are shown.
ANALYTICAL = "expected gain"  # the paper's
OURS = "ours (total)"
ROUTING_ONLY = "ours (routing only)"
REFERENCE = "confidence"
CALIBRATED = "calibrated confidence"
AGREEMENT = "agreement"
CONFORMAL = "conformal"
QUALITY = "quality estimate"
TWO_STAGE = "two-stage defer"
ORACLE = "oracle"
BUDGETS = (0.1, 0.2, 0.4)  # for which thresholds are set
ABLATION = (ANALYTICAL, f"{ANALYTICAL}, temperature", f"{ANALYTICAL}, uncalibrated", CALIBRATED)


class RoutingOnlyRouter(ExpectedGainRouter):
    """The default's score with the paper's answers on both routes: the value of better routing alone."""


def compared_routers() -> dict[str, Builder]:
    """Every router that is fitted on Round 1 alone, by its key in results.

    The paper's router gets the cross-fitted τ as well as its own; at matched rates they agree. `OURS` is
    whatever `ExpectedGainRouter()` is by default, with its own answers on both routes. The others take the paper's τ,
    which needs one fit instead of twenty-one.
    """
    return {
        ANALYTICAL: lambda: ExpectedGainRouter.paper(threshold="cross-fitted"),
        OURS: lambda: ExpectedGainRouter(threshold="cross-fitted"),
        ROUTING_ONLY: lambda: RoutingOnlyRouter(threshold="calibration", blend="none"),
        CALIBRATED: lambda: CalibratedConfidenceRouter(threshold="calibration"),
        REFERENCE: ConfidenceRouter,
        AGREEMENT: AgreementRouter,
        CONFORMAL: lambda: ConformalRouter(threshold="calibration"),
        QUALITY: lambda: QualityRouter(threshold="calibration"),
        TWO_STAGE: lambda: TwoStageDeferRouter(threshold="calibration"),
        "learned gain": lambda: LearnedGainRouter(threshold="calibration", weight_decay="cv"),
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
    """A fitted router on one record: by regime (0 is the clean one), (N,) each on its test part."""

    score: Mapping[int, FloatArray]
    weak_prediction: Mapping[int, IntArray]
    thresholds: Mapping[tuple[str, float | None], float]  # τ as it would be deployed, by rule and budget
    # Where the router blends the strong answer with Round 1; elsewhere it is the record's own.
    strong_prediction: Mapping[int, IntArray] = field(default_factory=dict)

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Flatten into arrays by name."""
        parts = {"score": self.score, "weak": self.weak_prediction, "strong": self.strong_prediction}
        arrays: dict[str, Any] = {f"{name}.{regime}": v for name, part in parts.items() for regime, v in part.items()}
        rules = np.array(json.dumps(list(self.thresholds)))
        return {**arrays, "rules": rules, "thresholds": np.array(list(self.thresholds.values()))}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> RouterScores:
        """Undo `to_arrays`."""

        def part(prefix: str) -> dict[int, Any]:
            return {int(key.partition(".")[2]): value for key, value in arrays.items() if key.startswith(f"{prefix}.")}

        rules = map(tuple, json.loads(str(arrays["rules"])))
        thresholds: dict[Any, float] = dict(zip(rules, arrays["thresholds"].tolist(), strict=True))
        return cls(part("score"), part("weak"), thresholds, part("strong"))


def fit_router(build: Builder, record: Record, budgets: Sequence[float] = BUDGETS) -> RouterScores:
    """Fit a router on a record's calibration part, and score its test part under every regime.

    The expected-gain router is deployed by two rules, its own and the paper's. A router with a pooling of its own
    answers by it; the others share the record's exact weak prediction.
    """
    router = build()
    shared = answers_by_mean(router)
    held, training = record.calibration, record.training
    router.fit(
        held.local_posteriors,
        held.labels,
        held.strong_prediction,
        strong_posterior=held.strong_posterior,
        weak_prediction=held.weak_prediction if shared else None,
        training=None if training is None else (training.posteriors, training.labels),
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
    if router.stages().utility is not None:
        return False
    by_mean = getattr(router, "pooling", "mean") == "mean" or isinstance(router, RoutingOnlyRouter)
    pools_by_setting = type(router).fit_pool in (Router.fit_pool, ExpectedGainRouter.fit_pool)
    return type(router).pool is Router.pool and pools_by_setting and by_mean


def blended_answers(router: Router, decision: Decision, strong_posterior: ArrayLike) -> IntArray | None:
    """The strong answer to every sample, blended or by utility; None for a router that passes it through."""
    if not (router.blends_ or router.stages().utility is not None):
        return None
    return np.asarray(router.strong_answers(decision, strong_posterior), dtype=np.int64)


def defer_name(alpha: str) -> str:
    """Name learning to defer at one α as tables and figures do: "1-crossfit" is α = 1, expert cross-fitted."""
    value, _, crossfit = alpha.partition("-")
    return f"defer α={value}" + (" cross-fitted" if crossfit else "")


def defer_scores(record: Record, alpha: str, budgets: Sequence[float] = BUDGETS) -> RouterScores:
    """Learning to defer, read from the record: its pooled score and its own weak prediction."""
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
