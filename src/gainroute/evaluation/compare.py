"""Compare routers on the user's own data by cross-validation: arrays only, no printing."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gainroute._util.importing import load_object
from gainroute._util.resampling import gain_curve, gains_at, interval, replicates, resamples
from gainroute.errors import GainrouteWarning, SettingError, TooFewSamplesError
from gainroute.evaluation.metrics import outcome_values
from gainroute.routing.agreement import AgreementRouter
from gainroute.routing.calibrate import folds_of
from gainroute.routing.class_order import check_class_order as check_order
from gainroute.routing.conformal import ConformalRouter
from gainroute.routing.inputs import as_local_posteriors, as_utility, as_weights, check_folds, check_fraction
from gainroute.routing.labels import as_labels
from gainroute.routing.learned_gain import LearnedGainRouter
from gainroute.routing.quality import QualityRouter
from gainroute.routing.router import Router
from gainroute.routing.routers import (
    ROUTERS,
    CalibratedConfidenceRouter,
    ConfidenceRouter,
    ExpectedGainRouter,
    RandomRouter,
)
from gainroute.routing.two_stage_defer import TwoStageDeferRouter
from gainroute.routing.types import ArrayLike, FloatArray, IntArray

__all__ = [
    "ORACLE",
    "REFERENCE",
    "Candidate",
    "Comparison",
    "ComparisonRow",
    "candidates",
    "compare_routers",
    "load_router",
]

Candidate = Callable[[], Router]

REFERENCE = "confidence"
ORACLE = "oracle (needs labels)"
DEFAULT = "ours (routing only)"


def load_router(spec: str) -> type[Router]:
    """Find a router by its registered name, or as "module:Class", which runs the module.

    The current folder is searched first, as `python` does.
    """
    if ":" in spec:
        here = str(Path.cwd())
        if here not in sys.path:
            sys.path.insert(0, here)
        found = load_object(spec, "router")
    else:
        found = ROUTERS.get(spec, "install the package that offers it, or name a class as module:Class")
    if not (isinstance(found, type) and issubclass(found, Router)):
        raise SettingError(f"router is {spec!r}, which is {found!r}; a class derived from gainroute.Router is needed")
    return found


@dataclass(frozen=True, eq=False)
class ComparisonRow:
    """The out-of-fold result of one router; arrays have one entry per budget."""

    name: str
    value: FloatArray  # accuracy (or mean utility)
    oracle_share: float  # of the oracle's gain over random escalation, over all rates; 1 is the oracle, 0 is random
    difference: FloatArray  # from confidence, paired
    low: FloatArray  # its 95 % bootstrap interval
    high: FloatArray

    @property
    def beats_reference(self) -> bool:
        """Whether it beats confidence beyond the interval at any budget."""
        return self.name not in (REFERENCE, ORACLE) and bool((self.low > 0).any())


@dataclass(frozen=True, eq=False)
class Comparison:
    """One row per router, the oracle last, and the value of either route alone.

    `measure` is "accuracy" or "utility"; `weak` and `strong` are the values of never and of always escalating.
    """

    rows: tuple[ComparisonRow, ...]
    budgets: tuple[float, ...]
    measure: str
    weak: float
    strong: float
    folds: int
    samples: int
    replicates: int

    @property
    def winners(self) -> tuple[str, ...]:
        """Routers that beat confidence beyond their interval at some budget."""
        return tuple(row.name for row in self.rows if row.beats_reference)


def candidates(utility: ArrayLike | None = None) -> dict[str, Candidate]:
    """Routers of the package that need no special training of the parties, by name.

    All of them keep the answers of both routes as they are, so that only the routing is compared: the first is the
    score of `ExpectedGainRouter()` without its answers. The tuned one is the paper's with λ and ε chosen by
    cross-validation and the reliabilities of rare classes shrunk.
    """
    return {
        DEFAULT: lambda: ExpectedGainRouter(utility=utility, blend="none"),
        "expected-gain (paper)": lambda: ExpectedGainRouter.paper(utility=utility),
        "expected-gain (tuned)": lambda: ExpectedGainRouter.paper(
            lam="cv", shrinkage="empirical-bayes", utility=utility
        ),
        REFERENCE: ConfidenceRouter,
        "calibrated-confidence": CalibratedConfidenceRouter,
        "agreement": AgreementRouter,
        "conformal": ConformalRouter,
        "quality": QualityRouter,
        "two-stage-defer": TwoStageDeferRouter,
        "learned-gain": LearnedGainRouter,
        "random": RandomRouter,
    }


def compare_routers(
    local_posteriors: Any,
    labels: ArrayLike,
    strong_prediction: ArrayLike,
    *,
    routers: Mapping[str, Candidate] | None = None,
    weak_prediction: ArrayLike | None = None,
    sample_weight: ArrayLike | None = None,
    utility: ArrayLike | None = None,
    budgets: Sequence[float] = (0.1, 0.2, 0.4),
    folds: int = 5,
    seed: int = 0,
    check_class_order: bool = True,
    progress: Callable[[str], None] | None = None,
) -> Comparison:
    """Compare routers by cross-validation.

    Parameters
    ----------
    local_posteriors : (M, N, K), list of M arrays (N, K), or (N, K)
    labels, strong_prediction, weak_prediction : (N,)
        Column numbers.
    routers
        Functions that build the routers, by name; `candidates()` by default. Confidence is always included.
    sample_weight : (N,), optional
    utility : (K, K), optional
        U[truth, answer]; accuracy by default.
    budgets
        Escalation rates at which the routers are compared.
    folds, seed
        Every router is fitted on all folds but one and evaluated on that one.
    check_class_order
        Whether to refuse columns that, by the labels, are in another order than the classes.
    progress
        Called with a router's name after each fold: folds × routers times.

    Notes
    -----
    Scores of different folds come from different fits and may differ in scale, so they are never ranked together: each
    fold is evaluated by itself, its highest scores escalated until the rate is met, and the folds are averaged by
    weight. The bootstrap resamples within each fold and uses the same resamples for every router, so that the
    differences are paired. It does not refit: the intervals cover the uncertainty of the evaluation, not of the fit.
    """
    local = as_local_posteriors(local_posteriors)
    n = local.shape[1]
    folds = check_folds(folds, usual=5)
    if n < 2 * folds:
        raise TooFewSamplesError(f"{n} samples are too few for {folds} folds; at least {2 * folds} are needed")
    if not len(budgets):
        raise SettingError("budgets is empty; give at least one share of samples, such as 0.2")
    rates = np.array([check_fraction(b, "budgets", "each the share of samples escalated") for b in budgets])
    named = dict(candidates(utility) if routers is None else routers)
    named.setdefault(REFERENCE, ConfidenceRouter)
    classes = local.shape[2]
    truth = as_labels(labels, classes=classes, length=n)
    strong = as_labels(strong_prediction, classes=classes, length=n, name="strong_prediction", missing=True)
    own = None if weak_prediction is None else as_labels(weak_prediction, classes=classes, length=n)
    weight = as_weights(sample_weight, n)
    if check_class_order:
        check_order([("local_posteriors", local.mean(axis=0))], truth, None)
    held_out = folds_of(n, folds, seed)
    _warn_rare(truth, classes, folds)

    scores, weak = {name: np.empty(n) for name in named}, np.empty(n, dtype=np.int64)
    for fold in held_out:
        fitted_on = np.setdiff1d(np.arange(n), fold)
        for name, build in named.items():
            router = build()
            answers = local.mean(axis=0).argmax(axis=1) if own is None and name == DEFAULT else own
            # τ does not matter at equal rates: the rule without folds of its own is the fastest.
            router.threshold = "calibration"
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", GainrouteWarning)  # rare classes were warned about already
                router.fit(
                    local[:, fitted_on],
                    truth[fitted_on],
                    strong[fitted_on],
                    weak_prediction=None if answers is None else answers[fitted_on],
                    sample_weight=weight[fitted_on],
                    check_class_order=False,  # all samples were checked together
                )
            decision = router.route(local[:, fold], weak_prediction=None if answers is None else answers[fold])
            scores[name][fold] = decision.score
            if name == REFERENCE:
                weak[fold] = decision.weak_prediction
            if progress is not None:
                progress(name)
    kept, taken = outcome_values(truth, weak, strong, as_utility(utility, classes))
    gain = taken - kept
    scores[ORACLE] = gain
    base, total = float(weight @ kept), float(weight.sum())
    resampled, count = _resampled(scores, gain, weight, held_out, rates, seed)
    areas = {name: _area(score, gain, weight, held_out) for name, score in scores.items()}
    gained = {
        name: np.sum([gains_at(s[f], gain[f], weight[None, f], rates)[0] for f in held_out], axis=0) / total
        for name, s in scores.items()
    }
    rows = []
    for name in scores:
        low, high = interval(resampled[name] - resampled[REFERENCE])
        rows.append(
            ComparisonRow(
                name=name,
                value=base / total + gained[name],
                oracle_share=areas[name] / areas[ORACLE] if areas[ORACLE] > 0 else 0.0,
                difference=gained[name] - gained[REFERENCE],
                low=low,
                high=high,
            )
        )
    return Comparison(
        rows=tuple(rows),
        budgets=tuple(rates.tolist()),
        measure="accuracy" if utility is None else "utility",
        weak=base / total,
        strong=float(weight @ taken) / total,
        folds=folds,
        samples=n,
        replicates=count,
    )


def _resampled(
    scores: Mapping[str, FloatArray],
    gain: FloatArray,
    weight: FloatArray,
    held_out: list[IntArray],
    rates: FloatArray,
    seed: int,
) -> tuple[dict[str, FloatArray], int]:
    """Mean gain of each router at each rate in every resample, (R, B); the same resamples for all."""
    count = replicates(len(gain))
    rng = np.random.default_rng(seed)
    sums = {name: np.zeros((count, len(rates))) for name in scores}
    total = np.zeros(count)
    for fold in held_out:
        first = 0
        for occurrence in resamples(len(fold), count, rng):
            weights = occurrence * weight[fold]
            rows = slice(first, first + len(weights))
            first = rows.stop
            total[rows] += weights.sum(axis=1)
            for name, score in scores.items():
                sums[name][rows] += gains_at(score[fold], gain[fold], weights, rates)
    some = np.where(total > 0, total, 1)[:, None]
    return {name: value / some for name, value in sums.items()}, count


def _area(score: FloatArray, gain: FloatArray, weight: FloatArray, held_out: list[IntArray]) -> float:
    """Area between the gain curve and the chord that random escalation follows, folds added up by weight."""
    area = 0.0
    for fold in held_out:
        mass, gained = gain_curve(score[fold], gain[fold], weight[fold])
        if mass[-1] > 0:
            above = gained - gained[-1] * mass / mass[-1]
            area += float(np.sum((above[1:] + above[:-1]) / 2 * np.diff(mass)) / mass[-1])
    return area


def _warn_rare(truth: IntArray, classes: int, folds: int) -> None:
    counts = np.bincount(truth, minlength=classes)
    rare = np.flatnonzero(counts < 2 * folds)
    if len(rare):
        listed = ", ".join(map(str, rare[:20])) + (", …" if len(rare) > 20 else "")
        warnings.warn(
            f"class(es) {listed} have fewer than {2 * folds} samples: some fits see hardly any of them; add samples, "
            "or read the differences with care",
            GainrouteWarning,
            stacklevel=3,
        )
