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
from gainroute.routing.types import ArrayLike, FloatArray

__all__ = ["BUDGETS", "Plan", "PlanPoint", "plan_budgets"]

BUDGETS = (0.0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.6, 0.8, 1.0)
GRID = np.linspace(0, 1, 41)
KNEE_SLACK = 0.005  # half a point of accuracy; with a utility, that share of its range
SKEWED = 0.9


@dataclass(frozen=True, eq=False)
class PlanPoint:
    """What one escalation rate buys."""

    rate: float  # share of the samples escalated, those of the highest score
    value: float  # accuracy (or mean utility)
    low: float  # its 95 % bootstrap interval
    high: float
    accuracy: float  # also where `value` is a utility
    recall: FloatArray  # (K,), share of each class answered right; NaN for a class that does not occur


@dataclass(frozen=True, eq=False)
class Plan:
    """What every budget buys."""

    points: tuple[PlanPoint, ...]  # one per budget
    rate: FloatArray  # the full curve, one point per distinct score
    value: FloatArray
    band_rate: FloatArray  # the 95 % interval along the curve
    band_low: FloatArray
    band_high: FloatArray
    measure: str  # "accuracy" or "utility": what `value` is
    knee: PlanPoint | None  # the smallest rate whose value lies within half a point of the best, if one is marked
    # The rate beyond which the score, if it is an expected gain, is no longer positive: more is expected to lose.
    gain_ends: PlanPoint | None
    target: PlanPoint | None  # the smallest rate that reaches the target accuracy, if there is one
    deployed: PlanPoint | None  # the result of the current threshold on these samples, if it was given
    guaranteed: PlanPoint | None  # that of a threshold with a guarantee, if one was given
    samples: int
    replicates: int  # of the bootstrap
    skewed: bool  # whether one class has more than 90 % of the samples and no utility was given


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
    guaranteed_threshold: float | None = None,
    score_is_gain: bool = False,
    seed: int = 0,
) -> Plan:
    """Evaluate every budget on held-out samples, which did not fit the router.

    Parameters
    ----------
    score, weak_prediction, strong_prediction, labels : (N,)
        Answers and labels are column numbers; a strong prediction of −1 is no answer and counts as wrong.
    classes
        K.
    utility : (K, K), optional
        U[truth, answer]; accuracy by default.
    target_accuracy
        The accuracy for which to find the smallest budget.
    threshold
        Current τ, evaluated in addition to the budgets.
    guaranteed_threshold
        Another τ to evaluate, such as one from `gainroute.kept_error_threshold`.
    score_is_gain
        Whether the score is the gain expected of escalating, in units of `utility`: only then can `gain_ends`
        be computed.

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
    weak_right, strong_right = outcome_values(truth, weak, strong, None)
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
        right = (float(weight @ weak_right) + gain_curve(s, strong_right - weak_right, weight)[1]) / mass[-1]
        marks["target"] = _first_reaching(fine_rate, right, level)
    for name, tau in (("deployed", threshold), ("guaranteed", guaranteed_threshold)):
        marks[name] = None if tau is None else float(weight[escalate(s, tau)].sum() / weight.sum())

    wanted = np.concatenate([rates, GRID, [r for r in marks.values() if r is not None]])
    low, high, drawn = _bootstrap(s, kept, taken, weight, wanted, seed)
    of_class = np.bincount(truth, weight, minlength=classes)
    points = []
    for i, rate in enumerate(wanted):
        share = escalated_share(s, weight, wanted[i : i + 1])[0]
        right = weak_right + share * (strong_right - weak_right)
        with np.errstate(invalid="ignore"):
            recall = np.bincount(truth, weight * right, minlength=classes) / of_class
        value, accuracy = (float(np.average(v, weights=weight)) for v in (kept + share * (taken - kept), right))
        points.append(PlanPoint(float(rate), value, float(low[i]), float(high[i]), accuracy, recall))
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
