"""Guarantees that hold with a stated probability: on the escalation rate, and on the error of the answers kept.

For a threshold fixed in advance, the number of wrong answers among n kept ones is binomial (n, e), e the true error of
kept answers, so that Clopper and Pearson's bound on e is exact. Which threshold to take is decided on the same samples,
by tests in a fixed sequence: the thresholds and their order come from other samples, those that fitted the router; each
is tested at the full level, and the first that fails ends the sequence. For a false claim, the first threshold of the
sequence whose error is too large has to pass, whatever happens at the others. So no correction for the number of tests
is needed, and the error may change along the sequence in any way. Bonferroni's correction would need no order, but each
of a hundred thresholds would have to pass at a hundredth of the level.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import bdtr, betaincinv

from gainroute._util.arrays import shown
from gainroute.errors import SettingError, ShapeError, TooFewSamplesError
from gainroute.routing.inputs import check_fraction
from gainroute.routing.types import ArrayLike, BoolArray, FloatArray, IntArray, ThresholdScores

__all__ = [
    "Guarantee",
    "binomial_bound",
    "certify_kept_error",
    "check_kept_error",
    "kept_error_threshold",
]

STEPS = 100  # of the sequence: thresholds are one point of the rate apart
CONFIDENCE_REMEDY = "the probability with which the promise is kept, such as 0.95"
KEPT_ERROR_REMEDY = "the largest share of wrong answers among those that are kept, above 0 and below 1, such as 0.05"


@dataclass(frozen=True)
class Guarantee:
    """What holds at one threshold, with probability at least `confidence` over the draw of the held-out samples.

    It is about new samples that are exchangeable with these, that every party answered, and that are escalated if their
    score is above `threshold`. It covers neither another threshold nor data that have drifted.

    Attributes
    ----------
    confidence
        1 − δ; with both promises, that of both together.
    threshold
        τ.
    samples, kept, wrong
        Held-out samples, those of them with a score of at most τ, and the wrong weak answers among the latter.
    budget
        At most this share of new samples is escalated; None if nothing is promised about it.
    kept_error
        At most this share of the kept weak answers is wrong; None if nothing is promised about it.
    """

    confidence: float
    threshold: float
    samples: int
    kept: int
    wrong: int
    budget: float | None = None
    kept_error: float | None = None

    def as_json(self) -> dict[str, Any]:
        """Plain JSON, with the guarantee as a sentence; without τ, which stands beside it."""
        return {name: value for name, value in vars(self).items() if name != "threshold"} | {"text": self.text}

    @property
    def text(self) -> str:
        """The guarantee as a sentence."""
        promises = []
        if self.budget is not None:
            promises.append(f"at most {100 * self.budget:g} % of samples are escalated")
        if self.kept_error is not None:
            promises.append(f"at most {100 * self.kept_error:g} % of the kept answers are wrong")
        return (
            f"With {100 * self.confidence:g} % confidence, {' and '.join(promises)} (from {self.samples:,} held-out "
            f"samples: {self.kept:,} kept, {self.wrong:,} of them wrong)."
        )


def check_kept_error(kept_error: float | None) -> float:
    """Refuse an α that is not a number in (0, 1)."""
    number = isinstance(kept_error, (int, float, np.integer, np.floating)) and not isinstance(kept_error, bool)
    if kept_error is None or not number or not 0 < kept_error < 1:
        raise SettingError(f"kept_error is {shown(kept_error)}; it is {KEPT_ERROR_REMEDY}")
    return float(kept_error)


def binomial_bound(count: ArrayLike, of: ArrayLike, confidence: float = 0.95) -> FloatArray:
    """Clopper and Pearson's upper bound on a probability, from `count` events in `of` independent trials.

    Examples
    --------
    >>> round(float(binomial_bound(0, 59)), 3)
    0.05
    """
    events, trials = np.asarray(count, dtype=np.float64), np.asarray(of, dtype=np.float64)
    certain = events >= trials  # of none, too
    bound = betaincinv(events + 1, np.where(certain, 1.0, trials - events), confidence)
    return np.where(certain, 1.0, bound)


def kept_error_threshold(
    scores: ArrayLike, weak_right: ArrayLike, thresholds: ArrayLike, kept_error: float, confidence: float = 0.95
) -> float:
    """Threshold at which, with probability `confidence`, at most `kept_error` of the kept answers are wrong.

    An answer is kept if its score is at most τ. The thresholds are tested one after the other by the exact binomial
    bound, and the last one before the first that fails is returned. It holds for thresholds, an order and ONE error
    fixed in advance, without a look at these samples; for scores of samples that did not fit the router; and for future
    samples that are exchangeable with these. Out-of-fold scores are not such: they come from other fits than the one
    that is used. Trying several errors and keeping the best voids it, and so does drift.

    Parameters
    ----------
    scores : (N,)
        Scores of held-out samples.
    weak_right : (N,) bool
        Whether the weak answer to each is right.
    thresholds : (T,)
        In the order in which they are tested, usually ascending: first the one that is most likely to pass, last the
        one that keeps most answers.
    kept_error
        α in (0, 1).
    confidence
        1 − δ.

    Examples
    --------
    Half of the answers with a positive score are wrong:

    >>> import numpy as np
    >>> score = np.linspace(-1, 1, 400)
    >>> right = (score <= 0) | (np.arange(400) % 2 == 0)
    >>> kept_error_threshold(score, right, [-0.5, 0.0, 0.01, 0.02, 0.5], 0.05)
    0.02
    """
    values, right = np.asarray(scores, dtype=np.float64), np.asarray(weak_right, dtype=np.bool_)
    order = np.asarray(thresholds, dtype=np.float64)
    if values.ndim != 1 or values.shape != right.shape or not len(values):
        raise ShapeError(
            f"scores have shape {values.shape}, weak_right {right.shape}; one value per sample each, (N,), is needed"
        )
    if order.ndim != 1 or not len(order) or np.isnan(order).any() or np.isnan(values).any():
        raise SettingError("a score or a threshold is NaN, or there is no threshold; numbers are needed, at least one")
    alpha = check_kept_error(kept_error)
    level = check_fraction(confidence, "confidence", CONFIDENCE_REMEDY)
    _check_possible(len(values), alpha, level)
    kept, wrong = _kept(values, right, order)
    last = _last_passed(kept, wrong, alpha, level)
    if last is None:
        raise _not_certified(order[0], kept[0], wrong[0], alpha, level, _up(binomial_bound(wrong[0], kept[0], level)))
    return float(order[last])


def certify_kept_error(
    scores: ThresholdScores,
    fitted_on: ThresholdScores,
    kept_error: float,
    confidence: float,
    *,
    budget: float | None = None,
    min_gain: float | None = None,
) -> Guarantee:
    """Certify the largest threshold that a fixed sequence reaches, and with a budget its rate as well.

    The sequence comes from `fitted_on`, samples that are not among `scores`: quantiles of their scores, never below
    `min_gain`, and at last +∞, which keeps everything. It starts at the threshold that these samples certify most
    clearly, not at the one with the lowest error: of a few kept answers none may be wrong, and yet no test can pass.
    From there on, more and more answers are kept.

    With a budget, each promise gets half of the probability of a mistake. The rate at the threshold reached is tested
    alone: since rates fall along the sequence, this is the same as testing them in order.
    """
    n, level = len(scores.score), confidence if budget is None else 1 - (1 - confidence) / 2
    if np.ptp(scores.weight) > 0:
        raise SettingError(
            "the samples differ in weight; an exact binomial bound counts samples: leave sample_weight out, or use "
            'threshold="cross-fitted"'
        )
    _check_possible(n, kept_error, level)
    thresholds = np.quantile(fitted_on.score, np.linspace(0, 1, STEPS + 1), method="higher")
    thresholds = np.unique(np.append(thresholds[thresholds > -math.inf], math.inf))
    if min_gain is not None:
        thresholds = np.unique(np.maximum(thresholds, min_gain))
    before = _kept(fitted_on.score, fitted_on.weak_right, thresholds)
    kept, wrong = _kept(scores.score, scores.weak_right, thresholds)
    rate = np.where(thresholds == math.inf, 0.0, binomial_bound(n - kept, n, level))  # +∞ escalates none, for certain

    def reached(alpha: float) -> tuple[int, int | None]:
        """First threshold of the sequence, and the last that passes."""
        power = _p_value(*before, alpha)
        first = len(power) - 1 - int(np.argmin(power[::-1]))
        last = _last_passed(kept[first:], wrong[first:], alpha, level)
        return first, None if last is None else first + last

    def holds(last: int | None) -> bool:
        return last is not None and (budget is None or bool(rate[last] <= budget))

    first, last = reached(kept_error)
    if last is not None and holds(last):
        counts = n, int(kept[last]), int(wrong[last])
        return Guarantee(confidence, float(thresholds[last]), *counts, budget=budget, kept_error=kept_error)
    larger = np.arange(math.floor(kept_error * 200) + 1, 200) / 200
    instead = next((float(alpha) for alpha in larger if holds(reached(alpha)[1])), None)
    if budget is None or last is None:
        raise _not_certified(thresholds[first], kept[first], wrong[first], kept_error, level, instead, budget)
    raise SettingError(
        f"budget {budget:g} and kept_error {kept_error:g} cannot both be certified at confidence {confidence:g}: of "
        f"{n} held-out samples, the error allows to keep {kept[last]}, {wrong[last]} of them wrong; the other "
        f"{n - kept[last]} are to be escalated, and the true rate may be {_up(rate[last]):g}. What could be had "
        f"instead: budget={_up(rate[last]):g} with kept_error={kept_error:g}, or {_named(instead)} with "
        f"budget={budget:g}"
    )


def _check_possible(samples: int, kept_error: float, confidence: float) -> None:
    if confidence >= 1:
        raise SettingError("confidence is 1.0; no error of kept answers can be certain: use a value such as 0.95")
    need = max(1, math.ceil(math.log(1 - confidence) / math.log1p(-kept_error)))
    if samples < need:
        raise TooFewSamplesError(
            f"{samples} held-out samples cannot certify a kept error of {kept_error:g} at confidence {confidence:g}: "
            f"even if no answer is wrong, {need} kept ones are needed; add samples (a fit holds out half of them), "
            "raise kept_error, or lower the confidence"
        )


def _p_value(kept: IntArray, wrong: IntArray, kept_error: float) -> FloatArray:
    """Probability of so few wrong answers if the error were `kept_error`; 1 where none is kept."""
    found: FloatArray = bdtr(wrong.astype(np.float64), kept, kept_error)
    return found


def _last_passed(kept: IntArray, wrong: IntArray, kept_error: float, confidence: float) -> int | None:
    """The last threshold before the first that fails; None if the first one does."""
    fails = np.flatnonzero(_p_value(kept, wrong, kept_error) > 1 - confidence)
    last = int(fails[0]) - 1 if len(fails) else len(kept) - 1
    return None if last < 0 else last


def _kept(score: FloatArray, right: BoolArray, thresholds: FloatArray) -> tuple[IntArray, IntArray]:
    """How many answers each threshold keeps, and how many of these are wrong; answers at the threshold are kept."""
    order = np.argsort(score, kind="stable")
    kept = np.searchsorted(score[order], thresholds, side="right")
    kept[thresholds == -math.inf] = 0
    wrong: IntArray = np.concatenate([[0], np.cumsum(~right[order].astype(np.bool_))])[kept]
    return kept, wrong


def _not_certified(
    threshold: float,
    kept: int,
    wrong: int,
    kept_error: float,
    confidence: float,
    instead: float | None,
    budget: float | None = None,
) -> SettingError:
    with_budget = "" if budget is None else f" with budget={budget:g}"
    return SettingError(
        f"a kept error of {kept_error:g} cannot be certified at confidence {confidence:g}: at score > {threshold:.4g}, "
        f"where the test starts, {wrong} of {kept} kept held-out answers are wrong, and the true error may be "
        f"{_up(binomial_bound(wrong, kept, confidence)):g}. What could be had instead: {_named(instead)}{with_budget}; "
        "or add samples, or lower the confidence"
    )


def _named(kept_error: float | None) -> str:
    return "no kept_error" if kept_error is None else f"kept_error={kept_error:g}"


def _up(bound: FloatArray) -> float:
    """A bound rounded up to four digits, so that a second try with this number passes."""
    return min(math.ceil(float(bound) * 1e4) / 1e4, 1.0)
