"""The expected-gain router, and the baselines it is compared with. Each is little more than its score."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from gainroute._util.registry import Registry
from gainroute.errors import SettingError, ShapeError
from gainroute.routing.answer import LOG_LINEAR_BLEND
from gainroute.routing.calibrate import CALIBRATORS, DirichletCalibration, TemperatureCalibration, check_choices
from gainroute.routing.decide import OwnRule, ThresholdRule, uniform_of
from gainroute.routing.inputs import as_utility, one_of
from gainroute.routing.pipeline import Stages
from gainroute.routing.pool import POOLS, LogLinearPooling, mean_over_parties
from gainroute.routing.reliability import SHRINKAGE, Shrinkage
from gainroute.routing.router import Router
from gainroute.routing.score import ExpectedGainScore, Explanation, contributions, strong_value
from gainroute.routing.taught import TaughtPooling, check_training_weight
from gainroute.routing.types import (
    ArrayLike,
    BoolArray,
    CalibrationSet,
    Calibrator,
    FloatArray,
    IntArray,
    LabelArray,
    Pool,
    RoundOne,
    Score,
    Stage,
)

__all__ = [
    "ROUTERS",
    "CalibratedConfidenceRouter",
    "ConfidenceRouter",
    "DeferRouter",
    "ExpectedGainRouter",
    "RandomRouter",
]

ROUTERS: Registry[type[Router]] = Registry(
    "gainroute.routers",
    "router",
    {
        "expected-gain": "gainroute.routing.routers:ExpectedGainRouter",
        "confidence": "gainroute.routing.routers:ConfidenceRouter",
        "agreement": "gainroute.routing.agreement:AgreementRouter",
        "calibrated-confidence": "gainroute.routing.routers:CalibratedConfidenceRouter",
        "quality": "gainroute.routing.quality:QualityRouter",
        "conformal": "gainroute.routing.conformal:ConformalRouter",
        "two-stage-defer": "gainroute.routing.two_stage_defer:TwoStageDeferRouter",
        "learned-gain": "gainroute.routing.learned_gain:LearnedGainRouter",
        "defer": "gainroute.routing.routers:DeferRouter",
        "random": "gainroute.routing.routers:RandomRouter",
    },
)
BLENDS = CORRECTIONS = ("none", "cv")
ANSWER_BY = ("utility", "argmax")


class CalibratingRouter(Router):
    """Base of the routers whose score reads the calibrated posterior.

    Parameters
    ----------
    calibration
        "dirichlet" (the paper's), "temperature", "none" (the pooled posterior is used as it is), a name registered with
        `gainroute.register_calibrator`, or a stage of your own: an object whose ``fit(pooled, labels, weight)`` returns
        a callable on (N, K).
    lam, eps
        λ and ε of the Dirichlet fit; "cv" chooses them by cross-validated likelihood.
    """

    def __init__(
        self,
        budget: float = 0.2,
        *,
        calibration: str | Stage = "dirichlet",
        lam: float | Literal["cv"] = 1.0,
        eps: float | Literal["cv"] = 1e-6,
        **settings: Any,
    ) -> None:
        super().__init__(budget, **settings)
        check_choices(lam, eps)
        self.calibration = _check_stage(calibration, CALIBRATORS)
        self.lam, self.eps = lam, eps

    def fit_calibrator(
        self, pooled: FloatArray, labels: IntArray, weight: FloatArray, start: Calibrator | None
    ) -> Calibrator:
        """Fit the calibrator that `calibration` names or is."""
        dirichlet, temperature = DirichletCalibration(self.lam, self.eps), TemperatureCalibration(self._floor)
        stage = _stage(self.calibration, CALIBRATORS, {"dirichlet": dirichlet, "temperature": temperature})
        refit = getattr(stage, "refit", None)
        if start is None or refit is None:
            return stage.fit(pooled, labels, weight)  # type: ignore[no-any-return]
        return refit(start, pooled, labels, weight)  # type: ignore[no-any-return]

    @property
    def _floor(self) -> float:
        return 1e-6 if self.eps == "cv" else self.eps


def _check_stage(value: str | Stage, registry: Registry[type[Stage]]) -> str | Stage:
    if isinstance(value, str):
        registry.get(value)
    elif isinstance(value, type) or not callable(getattr(value, "fit", None)):
        names = ", ".join(map(repr, registry.names()))
        raise SettingError(
            f"{registry.what} is {value!r}; allowed are {names}, or an instance with fit(posteriors, labels, weight)"
        )
    return value


def _stage(value: str | Stage, registry: Registry[type[Stage]], configured: Mapping[str, Stage]) -> Stage:
    """Return the stage that a setting names or is; `configured` are those that other settings configure."""
    if not isinstance(value, str):
        return value
    return configured[value] if value in configured else registry.get(value)()


class ExpectedGainRouter(CalibratingRouter):
    """Escalate where the expected gain of the strong route exceeds a threshold set by the budget.

    The defaults were chosen on calibration data (docs/decisions/0003 and 0015); `paper` builds the paper's router.

    Parameters
    ----------
    budget, threshold, confidence, min_gain, folds, seed, classes, kept_error
        See `Router`.
    calibration, lam, eps
        How P(y = k | pooled) is estimated; see `CalibratingRouter`.
    shrinkage
        "empirical-bayes" draws the reliability of rare classes towards the overall rate; "none" is the paper's
        plain classwise ratio.
    pooling
        "log-linear" weights the parties by how informative they are, for the weak answer and for the score; see
        `gainroute.fit_log_linear`. "taught" learns from a `strong_posterior` in `fit` as well, where that makes the
        labels of held-out samples more likely: a Dirichlet map of that pool is fitted to soft labels, and both the weak
        answer and the score are read off it; elsewhere it is "log-linear". It learns from `training` samples on the
        same condition. "mean" is the paper's. Or a name registered
        with `gainroute.register_pool`, or a stage of your own: an object whose ``fit(local, labels, weight)`` returns a
        callable on (M, N, K).
    training_weight
        Weight of a sample of the `training` part in `fit`, where a calibration sample weighs 1 on average; "cv" chooses
        among 0, 0.3 and 1.
    blend
        "cv" lets the strong answer take Round 1 into account if that is right more often on held-out samples. It needs
        `strong_posterior` in `fit` and posteriors in `answer`; without them, and with "none", the strong answer stands
        alone. A stage of your own is fitted on the strong posterior followed by the local ones, (1 + M, N, K), and is
        used on the same condition.
    correction
        "cv" adds to the score what six looks at Round 1 (how sure it is, whether the parties agree) tell about the gain
        beyond the expected one, if that explains gains on held-out samples. Not with a utility.
    utility : (K, K), optional
        U[truth, answer]; accuracy by default. With rare classes, accuracy may never escalate where recall would.
    answer_by
        With a utility, "utility" lets both routes give the answer with the largest expected utility: the weak route by
        the calibrated posterior, the strong route by its posterior, where it has one. "argmax" is the most likely
        class, for those who cannot change the answers. A `weak_prediction` of your own, and strong answers without a
        posterior, are never changed.
    pooled_only
        True for a federation whose Round 1 is masked, where the server sees the pooled posterior only: everything after
        the pool reads that alone, and the strong answer is blended with it. Fitting still needs the local posteriors.

    Examples
    --------
    >>> import numpy as np
    >>> import gainroute as gr
    >>> rng = np.random.default_rng(0)
    >>> labels = rng.integers(3, size=300)
    >>> local = rng.dirichlet([1, 1, 1], size=(2, 300)) + 0.7 * np.eye(3)[labels]
    >>> local /= local.sum(axis=2, keepdims=True)
    >>> strong = np.where(rng.random(300) < 0.95, labels, (labels + 1) % 3)
    >>> router = gr.ExpectedGainRouter(budget=0.2).fit(local, labels, strong)
    >>> decision = router.route(local[:, :5])
    >>> decision.escalate.shape, decision.calibrated.shape
    ((5,), (5, 3))
    """

    def __init__(
        self,
        budget: float = 0.2,
        *,
        calibration: str | Stage = "dirichlet",
        lam: float | Literal["cv"] = "cv",
        eps: float | Literal["cv"] = 1e-6,
        shrinkage: Shrinkage = "empirical-bayes",
        pooling: str | Stage = "taught",
        training_weight: float | Literal["cv"] = "cv",
        blend: Literal["none", "cv"] | Stage = "cv",
        correction: Literal["none", "cv"] = "cv",
        utility: ArrayLike | None = None,
        answer_by: Literal["utility", "argmax"] = "utility",
        pooled_only: bool = False,
        threshold: ThresholdRule | float | OwnRule = "cross-fitted",
        confidence: float = 0.95,
        min_gain: float | None = None,
        folds: int = 20,
        seed: int = 0,
        classes: Sequence[Any] | LabelArray | None = None,
        kept_error: float | None = None,
    ) -> None:
        super().__init__(
            budget,
            calibration=calibration,
            lam=lam,
            eps=eps,
            threshold=threshold,
            confidence=confidence,
            min_gain=min_gain,
            folds=folds,
            seed=seed,
            classes=classes,
            kept_error=kept_error,
        )
        self.shrinkage = one_of(shrinkage, "shrinkage", SHRINKAGE)
        self.pooling = _check_stage(pooling, POOLS)
        self.training_weight = check_training_weight(training_weight)
        self.blend = blend if hasattr(blend, "fit") else one_of(blend, "blend", BLENDS)
        self.correction = one_of(correction, "correction", CORRECTIONS)
        self.utility = None if utility is None else np.asarray(utility, dtype=np.float64)
        self.answer_by = one_of(answer_by, "answer_by", ANSWER_BY)
        self.pooled_only = pooled_only

    @classmethod
    def paper(cls, budget: float = 0.2, **settings: Any) -> ExpectedGainRouter:
        """Build the router exactly as the paper describes it.

        Mean pooling, Dirichlet calibration (λ = 1, ε = 1e-6: the paper does not state them), plain
        classwise ratios, answers by argmax, and τ the quantile of the calibration scores themselves.
        """
        as_printed: dict[str, Any] = {
            "calibration": "dirichlet",
            "lam": 1.0,
            "eps": 1e-6,
            "shrinkage": "none",
            "pooling": "mean",
            "blend": "none",
            "correction": "none",
            "answer_by": "argmax",
            "threshold": "calibration",
        }
        return cls(budget, **{**as_printed, **settings})

    def fit_pool(self, local: FloatArray, labels: IntArray, weight: FloatArray) -> Pool:
        """Fit the pool that `pooling` names or is."""
        return self.pool if self.pooling == "mean" else self._pool_stage().fit(local, labels, weight)

    def _pool_stage(self) -> Any:
        pools: dict[str, Stage] = {
            "log-linear": LogLinearPooling(eps=self._floor),
            "taught": TaughtPooling(self.lam, self.eps, self.training_weight, self.pooled_only),
        }
        return _stage(self.pooling, POOLS, pools)

    def fit_score(self, calibration: CalibrationSet) -> Score:
        """Compute what the strong route is worth on each class."""
        utility = as_utility(self.utility, len(calibration.confusion))
        return ExpectedGainScore(strong_value(calibration.confusion, utility), utility)

    def stages(self) -> Stages:
        """The unfitted stages that the settings describe."""
        blend = {"none": None, "cv": LOG_LINEAR_BLEND}.get(self.blend) if isinstance(self.blend, str) else self.blend
        # A subclass with a pool of its own does not refit the one that the setting names, nor teach it.
        refits = type(self).fit_pool is ExpectedGainRouter.fit_pool
        teaches = refits and self.pooling == "taught" and self.calibration == "dirichlet"
        return replace(
            super().stages(),
            fit_pool=self._pool_stage().fit if teaches else self.fit_pool,
            blend=blend,
            utility=self.utility if self.answer_by == "utility" else None,
            refit_pool=getattr(self._pool_stage(), "refit", None) if refits else None,
            pooled_only=self.pooled_only,
            teaches=teaches,
            corrects=self.correction == "cv" and self.utility is None,
        )

    def explain(self, posteriors: ArrayLike, *, weak_prediction: Any = None) -> Explanation:
        """Explain one sample's score class by class.

        Parameters
        ----------
        posteriors : (M, K), or (K,) for one party
            Its local posteriors, such as `new_posteriors[:, 0]`.
        weak_prediction
            Your own weak answer, if the router was fitted with one.
        """
        self._check_fitted()
        sample = np.asarray(posteriors)
        if sample.ndim == 1:
            sample = sample[None]
        if sample.ndim != 2:
            raise ShapeError(f"posteriors have shape {sample.shape}; one sample, (M, K), is needed: posteriors[:, i]")
        weak = None if weak_prediction is None else np.asarray([weak_prediction])
        decision = self.route(sample[:, None], weak_prediction=weak)
        score = self._pipeline.score
        assert isinstance(score, ExpectedGainScore)  # noqa: S101 (fit_score returns nothing else)
        column = self._labels.encode(decision.weak_prediction, "weak_prediction")
        contribution = contributions(decision.calibrated, score.value, column, score.utility)[0]
        return Explanation(
            classes=np.arange(self.n_classes_) if self.classes is None else self.classes,
            pooled=decision.pooled[0],
            calibrated=decision.calibrated[0],
            reliability=score.value,
            contribution=contribution,
            weak_prediction=decision.weak_prediction[0],
            score=float(decision.score[0]),
            threshold=self.threshold_,
            escalate=bool(decision.escalate[0]),
            correction=0.0 if score.correction is None else float(decision.score[0] - contribution.sum()),
        )


class ConfidenceRouter(Router):
    """Escalate where the pooled posterior is least sure: s = −maxₖ p̄[k]."""

    def score(self, round_one: RoundOne) -> FloatArray:
        """Score samples, (N,)."""
        confidence: FloatArray = round_one.pooled.max(axis=1)
        return -confidence


class CalibratedConfidenceRouter(CalibratingRouter):
    """Escalate where the weak answer is most likely to be wrong: s = 1 − m[ŷ].

    This is the expected-gain score for a strong route that is always right.
    """

    def score(self, round_one: RoundOne) -> FloatArray:
        """Score samples, (N,)."""
        return 1 - np.take_along_axis(round_one.calibrated, round_one.weak_prediction[:, None], axis=1)[:, 0]


class DeferRouter(Router):
    """Learning to defer: parties send K + 1 outputs, the last of which is the wish for Round 2.

    Messages are (M, N, K + 1); s = p̄⁺_def − maxₖ p̄⁺[k]. The weak answer is the argmax over the K classes.
    `DeferRouter.canonical()` escalates exactly where the defer output is the largest.
    """

    extra_columns = 1

    @classmethod
    def canonical(cls, **settings: Any) -> DeferRouter:
        """Build the router whose decision is the argmax over the K + 1 outputs: τ = 0."""
        return cls(**{"threshold": 0.0, **settings})

    def pool(self, local: FloatArray, present: BoolArray | None = None) -> FloatArray:
        """Average the outputs, and renormalise those of the K classes."""
        pooled = mean_over_parties(local, present)[:, :-1]
        # If all parties defer there is nothing to renormalise: the classes are then equally likely.
        pooled = np.maximum(pooled, 1e-12)
        pooled /= pooled.sum(axis=1, keepdims=True)
        return pooled

    def score(self, round_one: RoundOne) -> FloatArray:
        """Score samples, (N,)."""
        outputs = mean_over_parties(round_one.local)
        best: FloatArray = outputs[:, :-1].max(axis=1)
        return outputs[:, -1] - best


class RandomRouter(Router):
    """Escalate at random: the value of a budget without a score.

    The score is a hash of the posteriors, so that the same sample always gets the same decision.
    """

    def score(self, round_one: RoundOne) -> FloatArray:
        """Score samples, (N,), uniformly in [0, 1)."""
        return uniform_of(round_one.pooled, self.seed)
