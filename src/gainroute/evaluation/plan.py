"""What each budget buys, on labelled held-out samples: arrays only, no drawing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from warnings import warn

import numpy as np

from gainroute._util.resampling import escalated_share, gain_curve, gains_at, interval, replicates, resamples
from gainroute.errors import GainrouteWarning, SettingError, ShapeError
from gainroute.evaluation.metrics import outcome_values
from gainroute.routing.decide import escalate
from gainroute.routing.inputs import as_utility, as_weights, check_fraction
from gainroute.routing.labels import as_labels
from gainroute.routing.types import ArrayLike, FloatArray, IntArray

__all__ = ["BUDGETS", "Plan", "PlanPoint", "plan_budgets"]

BUDGETS = (0.0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.6, 0.8, 1.0)
GRID = np.linspace(0, 1, 41)
KNEE_SLACK = 0.005  # half a point of accuracy; with a utility, that share of its range
SKEWED = 0.9


@dataclass(frozen=True, eq=False)
class PlanPoint:
    """What one escalation rate buys.

    Attributes
    ----------
    rate
        Share of the samples escalated, those of the highest score.
    value, low, high
        Accuracy (or mean utility) with its 95 % bootstrap interval.
    accuracy
        Accuracy, also where `value` is a utility.
    recall : (K,)
        Share of each class answered right; NaN for a class that does not occur.
    """

    rate: float
    value: float
    low: float
    high: float
    accuracy: float
    recall: FloatArray


@dataclass(frozen=True, eq=False)
class Plan:
    """What every budget buys.

    Attributes
    ----------
    points
        One per budget.
    rate, value : (P,)
        The full curve, one point per distinct score.
    band_rate, band_low, band_high : (41,)
        The 95 % interval along the curve.
    measure
        "accuracy" or "utility": what `value` is.
    knee
        The smallest rate whose value lies within half a point of the best; None if nothing is marked.
    gain_ends
        The rate beyond which the score, an expected gain, is no longer positive: escalating more is expected to lose.
        None if nothing is marked, or the score is not a gain.
    target
        The smallest rate that reaches the target accuracy; None without a target, or if no rate reaches it.
    deployed
        The result of the current threshold on these samples, if it was given.
    samples, replicates
        Number of samples, and of bootstrap resamples.
    skewed
        True if one class has more than 90 % of the samples and no utility was given.
    """

    points: tuple[PlanPoint, ...]
    rate: FloatArray
    value: FloatArray
    band_rate: FloatArray
    band_low: FloatArray
    band_high: FloatArray
    measure: str
    knee: PlanPoint | None
    gain_ends: PlanPoint | None
    target: PlanPoint | None
    deployed: PlanPoint | None
    samples: int
    replicates: int
    skewed: bool


def plan_budgets(
    score: ArrayLike,
    weak_prediction: ArrayLike,
    strong_prediction: ArrayLike,
    labels: ArrayLike,
    classes: int,
    *,
    utility: ArrayLike | None = None,
    sample_weight: ArrayLike | None = None,
    budgets: Sequence[float] = BUDGETS,
    target_accuracy: float | None = None,
    threshold: float | None = None,
    score_is_gain: bool = False,
    seed: int = 0,
) -> Plan:
    """Evaluate every budget on held-out samples.

    Parameters
    ----------
    score : (N,)
        Routing scores of samples that did not fit the router.
    weak_prediction, strong_prediction, labels : (N,)
        Column numbers; a strong prediction of −1 is no answer and counts as wrong.
    classes
        K.
    utility : (K, K), optional
        U[truth, answer]; accuracy by default.
    sample_weight : (N,), optional
    budgets
        Escalation rates to evaluate.
    target_accuracy
        The accuracy for which to find the smallest budget.
    threshold
        Current τ, evaluated in addition to the budgets.
    score_is_gain
        Whether the score is the gain expected of escalating, in units of `utility`: only then can `gain_ends`
        be computed.
    seed
        Seed of the bootstrap.

    Examples
    --------
    >>> plan = plan_budgets([0.9, 0.1], [0, 0], [1, 1], [1, 0], 2, budgets=[0, 0.5, 1])
    >>> [point.value for point in plan.points]
    [0.5, 1.0, 0.5]
    """
    truth = as_labels(labels, classes=classes)
    n = len(truth)
    weak = as_labels(weak_prediction, classes=classes, length=n, name="weak_prediction", missing=True)
    strong = as_labels(strong_prediction, classes=classes, length=n, name="strong_prediction", missing=True)
    s = np.asarray(score, dtype=np.float64)
    if s.shape != (n,) or not n or np.isnan(s).any():
        raise ShapeError(f"score has shape {s.shape} for {n} samples; one number per sample, (N,), N ≥ 1, is needed")
    weight = as_weights(sample_weight, n)
    u = as_utility(utility, classes)
    kept, taken = outcome_values(truth, weak, strong, u)
    if not len(budgets):
        raise SettingError("budgets is empty; give at least one share of samples, such as 0.2")
    rates = np.array([check_fraction(b, "budgets", "each the share of samples escalated") for b in budgets])

    mass, gained = gain_curve(s, taken - kept, weight)
    fine_rate = mass / mass[-1]
    fine_value = (float(weight @ kept) + gained) / mass[-1]
    skewed = u is None and float(np.bincount(truth, weight).max() / weight.sum()) > SKEWED
    marks: dict[str, float | None] = {"knee": None, "gain_ends": None}
    if skewed:
        common = int(np.bincount(truth, weight).argmax())
        warn(
            f"more than 90 % of the samples are of class {common}: accuracy hardly depends on the others, so no "
            "budget is marked; give the value of each answer as a utility (K × K, rows truth, columns answer), and "
            "look at the recall by class",
            GainrouteWarning,
            stacklevel=2,
        )
    else:
        slack = KNEE_SLACK * (1.0 if u is None else float(np.ptp(u)))
        marks["knee"] = _first_reaching(fine_rate, fine_value, float(fine_value.max()) - slack)
        if score_is_gain:
            marks["gain_ends"] = float(weight[s > 0].sum() / weight.sum())
    marks["target"] = None
    if target_accuracy is not None:
        level = check_fraction(target_accuracy, "target_accuracy", "the share to be answered right, such as 0.95")
        weak_right, strong_right = outcome_values(truth, weak, strong, None)
        right = (float(weight @ weak_right) + gain_curve(s, strong_right - weak_right, weight)[1]) / mass[-1]
        marks["target"] = _first_reaching(fine_rate, right, level)
    marks["deployed"] = None if threshold is None else float(weight[escalate(s, threshold)].sum() / weight.sum())

    wanted = np.concatenate([rates, GRID, [r for r in marks.values() if r is not None]])
    low, high, drawn = _bootstrap(s, kept, taken, weight, wanted, seed)
    points = _points(s, weight, truth, weak, strong, classes, (kept, taken), wanted, low, high)
    grid = slice(len(rates), len(rates) + len(GRID))
    marked = iter(points[grid.stop :])
    named = {name: None if r is None else next(marked) for name, r in marks.items()}
    return Plan(
        points=tuple(points[: len(rates)]),
        rate=fine_rate,
        value=fine_value,
        band_rate=GRID,
        band_low=low[grid],
        band_high=high[grid],
        measure="accuracy" if u is None else "utility",
        **named,
        samples=n,
        replicates=drawn,
        skewed=skewed,
    )


def _first_reaching(rate: FloatArray, value: FloatArray, level: float) -> float | None:
    """The smallest rate at which the curve, linear between its points, reaches `level`."""
    reached = np.flatnonzero(value >= level - 1e-12)
    if not len(reached):
        return None
    i = int(reached[0])
    if i == 0 or value[i] <= value[i - 1]:
        return float(rate[i])
    step = (level - value[i - 1]) / (value[i] - value[i - 1])
    return float(rate[i - 1] + np.clip(step, 0, 1) * (rate[i] - rate[i - 1]))


def _bootstrap(
    score: FloatArray, kept: FloatArray, taken: FloatArray, weight: FloatArray, rates: FloatArray, seed: int
) -> tuple[FloatArray, FloatArray, int]:
    """95 % interval of the value at each rate; samples are drawn and ranked again in every resample."""
    count = replicates(len(score))
    drawn = []
    for occurrence in resamples(len(score), count, np.random.default_rng(seed)):
        weights = occurrence * weight
        total = weights.sum(axis=1)
        usable = total > 0  # a resample without weight is skipped
        weights, total = weights[usable], total[usable]
        gained = gains_at(score, taken - kept, weights, rates)
        drawn.append(((weights @ kept)[:, None] + gained) / total[:, None])
    low, high = interval(np.concatenate(drawn))
    return low, high, count


def _points(
    score: FloatArray,
    weight: FloatArray,
    truth: IntArray,
    weak: IntArray,
    strong: IntArray,
    classes: int,
    values: tuple[FloatArray, FloatArray],
    rates: FloatArray,
    low: FloatArray,
    high: FloatArray,
) -> list[PlanPoint]:
    kept, taken = values
    weak_right, strong_right = (weak == truth).astype(np.float64), (strong == truth).astype(np.float64)
    of_class = np.bincount(truth, weight, minlength=classes)
    points = []
    for i, rate in enumerate(rates):
        share = escalated_share(score, weight, rates[i : i + 1])[0]
        right = weak_right + share * (strong_right - weak_right)
        with np.errstate(invalid="ignore"):
            recall = np.bincount(truth, weight * right, minlength=classes) / of_class
        points.append(
            PlanPoint(
                rate=float(rate),
                value=float(np.average(kept + share * (taken - kept), weights=weight)),
                low=float(low[i]),
                high=float(high[i]),
                accuracy=float(np.average(right, weights=weight)),
                recall=recall,
            )
        )
    return points
