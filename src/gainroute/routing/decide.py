"""From a budget to a threshold, and from scores to the samples to escalate: those strictly above τ."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from scipy.special import bdtr, betaincinv

from gainroute._util.arrays import shown
from gainroute.errors import SettingError, ShapeError, TooFewSamplesError
from gainroute.routing.certify import Guarantee, certify_kept_error, check_kept_error
from gainroute.routing.inputs import as_weights, check_fraction
from gainroute.routing.samples import Samples
from gainroute.routing.types import ArrayLike, BoolArray, FloatArray, ThresholdScores

__all__ = [
    "BUDGET_REMEDY",
    "THRESHOLD_RULES",
    "Threshold",
    "ThresholdRule",
    "Turns",
    "calibration_threshold",
    "certified_threshold",
    "check_promise",
    "check_rule",
    "escalate",
    "escalate_ties",
    "expected_rate",
    "ranks_among",
    "rate_above",
    "rate_interval",
    "scores_at_ranks",
    "uniform_of",
]

ThresholdRule = Literal["calibration", "cross-fitted", "certified", "certified-error", "certified-both"]
Turns = dict[float, int]  # how many equal samples have been decided, by the hash of their posteriors
OwnRule = Callable[[ThresholdScores, float], float]
CERTIFIED = ("certified", "certified-error", "certified-both")
THRESHOLD_RULES = ("calibration", "cross-fitted", *CERTIFIED)
BUDGET_REMEDY = "the share of samples that may be escalated, such as 0.2"


def escalate(score: FloatArray, threshold: float) -> BoolArray:
    """π = 1[s > τ] (eq. 19). Strictly: with `>=`, ties overshoot the budget.

    A threshold of −∞ escalates every sample that has a score.
    """
    if threshold == -math.inf:
        return ~np.isnan(score)
    return score > threshold


def uniform_of(rows: FloatArray, seed: int) -> FloatArray:
    """A hash of each row, (N, C), as a number that is uniform in [0, 1)."""
    bits = np.ascontiguousarray(rows, dtype=np.float64).view(np.uint64)
    odd = np.random.default_rng(seed).integers(2**63, size=bits.shape[1], dtype=np.uint64) * 2 + 1
    mixed = (bits * odd).sum(axis=1, dtype=np.uint64)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    uniform: FloatArray = (mixed >> np.uint64(11)) * 2.0**-53
    return uniform


def escalate_ties(local: FloatArray, share: float, seed: int, turns: Turns | None = None) -> BoolArray:
    """Which samples whose score is τ itself to escalate: a share of them, by a hash of their posteriors, (M, N, K).

    A sample alone always gets the same decision. Equal samples in one call take turns, and with the same `turns`,
    which counts them by their hash, also those of several calls.
    """
    parties, n, columns = local.shape
    drawn = uniform_of(local.transpose(1, 0, 2).reshape(n, parties * columns), seed)
    order = np.argsort(drawn, kind="stable")
    turn = np.empty(len(drawn), dtype=np.int64)
    turn[order] = np.arange(len(drawn)) - np.searchsorted(drawn[order], drawn[order])
    if turns is not None:
        values, which, counts = np.unique(drawn, return_inverse=True, return_counts=True)
        before = [turns.get(value, 0) for value in values.tolist()]
        turn += np.array(before, dtype=np.int64)[which]
        turns.update(zip(values.tolist(), (before + counts).tolist(), strict=True))
    # Multiples of the golden ratio, modulo 1, are spread as evenly as any sequence.
    return (drawn + turn * 0.6180339887498949) % 1 < share


def check_rule(threshold: Any) -> ThresholdRule | float | OwnRule:
    """Refuse a threshold that is neither the name of a rule, nor a function, nor a number."""
    if callable(threshold) or (isinstance(threshold, str) and threshold in THRESHOLD_RULES):
        return threshold  # type: ignore[no-any-return]
    if isinstance(threshold, (int, float, np.integer, np.floating)) and not math.isnan(threshold):
        return float(threshold)
    allowed = ", ".join(map(repr, THRESHOLD_RULES))
    raise SettingError(
        f"threshold is {shown(threshold)}; allowed are {allowed}, a number to use as τ, or a function of the scores "
        "and B"
    )


def check_promise(kept_error: float | None, threshold: ThresholdRule | float | OwnRule) -> float | None:
    """Check α for a rule: one that certifies the kept error needs it, no other may have it."""
    if threshold in ("certified-error", "certified-both"):
        return check_kept_error(kept_error)
    if kept_error is not None:
        raise SettingError(
            f"kept_error is {shown(kept_error)}, but threshold={shown(threshold)} promises nothing about it; use "
            'threshold="certified-error" or "certified-both", or leave kept_error out'
        )
    return None


@dataclass(frozen=True)
class Threshold:
    """How τ is found; see `Router` for what each setting means."""

    rule: ThresholdRule | float | OwnRule
    confidence: float = 0.95
    min_gain: float | None = None
    folds: int = 20
    seed: int = 0
    kept_error: float | None = None

    @property
    def certifies(self) -> bool:
        """Whether τ comes with a guarantee."""
        return self.rule in CERTIFIED

    @property
    def cross_fits(self) -> bool:
        """Whether τ is computed from out-of-fold scores."""
        return self.rule != "calibration" and not self.certifies

    def split(self, samples: Samples) -> tuple[Samples, Samples | None]:
        """The samples to fit the router on, and for a rule that certifies the other half, which only sets τ."""
        if not self.certifies:
            return samples, None
        order = np.random.default_rng(self.seed).permutation(len(samples))
        half = len(samples) // 2
        if not half:
            raise TooFewSamplesError(f'threshold="{self.rule}" needs two halves, there is one sample; add samples')
        return samples.take(np.sort(order[:half])), samples.take(np.sort(order[half:]))

    def certify(self, scores: ThresholdScores, fitted_on: ThresholdScores | None, budget: float) -> Guarantee | None:
        """The guarantee of a router that has just been fitted, with its τ; None for a rule that gives none.

        The `scores` are those of the held-out half, `fitted_on` those of the other half, which says what to try.
        """
        if not self.certifies:
            return None
        if self.rule == "certified":
            found = self.find(scores, budget)
            kept = ~escalate(scores.score, found)
            counts = len(kept), int(kept.sum()), int((kept & ~scores.weak_right).sum())
            return Guarantee(self.confidence, found, *counts, budget=budget)
        assert fitted_on is not None and self.kept_error is not None  # noqa: S101, PT018 (checked by `Router`)
        within = budget if self.rule == "certified-both" else None
        return certify_kept_error(
            scores, fitted_on, self.kept_error, self.confidence, budget=within, min_gain=self.min_gain
        )

    def find(self, scores: ThresholdScores, budget: float) -> float:
        """τ for a budget; a rule that is a number is not consulted, and nothing is promised about the kept error."""
        if callable(self.rule):
            found = float(self.rule(scores, budget))
        elif self.rule in ("certified", "certified-both"):
            found = certified_threshold(scores.score, budget, self.confidence)
        else:
            found = calibration_threshold(scores.score, budget, scores.weight)
        return self._at_least_min_gain(found)

    def first(self, scores: ThresholdScores, budget: float) -> float:
        """τ of a router that has just been fitted: the number given, or the one for its budget."""
        if isinstance(self.rule, (int, float)):
            return self._at_least_min_gain(self.rule)
        return self.find(scores, budget)

    def tied_share(self, scores: ThresholdScores, threshold: float, budget: float) -> float:
        """Share of the samples whose score is τ itself to escalate, so that the rate is B where scores tie."""
        tied = scores.score == threshold
        floored = self.min_gain is not None and threshold <= self.min_gain
        if self.rule != "cross-fitted" or floored or np.count_nonzero(tied) < 2:
            return 0.0
        short = budget * scores.weight.sum() - scores.weight[scores.score > threshold].sum()
        return float(np.clip(short / scores.weight[tied].sum(), 0, 1))

    def _at_least_min_gain(self, threshold: float) -> float:
        return threshold if self.min_gain is None else max(threshold, self.min_gain)


def _sorted(scores: ArrayLike, budget: float) -> tuple[FloatArray, float]:
    values = np.asarray(scores, dtype=np.float64)
    if values.ndim != 1 or not len(values):
        raise ShapeError(f"scores have shape {values.shape}; at least one score, (N,), is needed")
    if np.isnan(values).any():
        raise SettingError("a score is NaN; a router's score must be a number for every sample")
    return values, check_fraction(budget, "budget", BUDGET_REMEDY)


def calibration_threshold(scores: ArrayLike, budget: float, sample_weight: ArrayLike | None = None) -> float:
    """Empirical (1 − B)-quantile: without ties, exactly ⌊N·B⌋ of the scores lie above it.

    With ties, as many lie above it as B allows. B = 0 gives +∞, B = 1 gives −∞.

    Parameters
    ----------
    scores : (N,)
        Scores of calibration samples; out-of-fold scores, if the rate must hold on new data.
    budget
        B in [0, 1].
    sample_weight : (N,), optional
        Then the weight above τ, not the number, is kept within B.

    Examples
    --------
    >>> calibration_threshold([0.1, 0.2, 0.3, 0.4, 0.5], 0.4)
    0.3
    """
    values, share = _sorted(scores, budget)
    if share in (0.0, 1.0):
        return math.inf if share == 0 else -math.inf
    weight = as_weights(sample_weight, len(values))
    order = np.argsort(-values, kind="stable")
    above = np.concatenate([[0.0], np.cumsum(weight[order])])
    # The largest k whose rate k/N does not exceed B as the two are written in floating point:
    # ⌊N·B⌋ itself would lose 29 of 100 at B = 0.29 to rounding.
    k = int(np.flatnonzero(above / above[-1] <= share)[-1])
    return float(values[order[min(k, len(values) - 1)]])


def certified_threshold(scores: ArrayLike, budget: float, confidence: float = 0.95) -> float:
    """Threshold whose true escalation rate exceeds B with probability at most 1 − confidence.

    With n scores, the k largest of them lie above it, k the largest number with
    P(Bin(n, B) ≤ k) ≤ 1 − confidence: the exact binomial bound. It holds for ONE budget fixed in
    advance, for scores of samples that did not fit the router, and for future samples that are exchangeable
    with these. Trying several budgets and keeping the best voids it, and so does drift.

    Examples
    --------
    >>> import numpy as np
    >>> tau = certified_threshold(np.linspace(0, 1, 300), 0.1)
    >>> int((np.linspace(0, 1, 300) > tau).sum())
    21
    """
    values, share = _sorted(scores, budget)
    level = check_fraction(confidence, "confidence", "the probability with which the budget is kept, such as 0.95")
    if share in (0.0, 1.0):
        return math.inf if share == 0 else -math.inf
    n = len(values)
    within = np.flatnonzero(bdtr(np.arange(n, dtype=np.float64), n, share) <= 1 - level)
    if not len(within):
        if level == 1:
            raise SettingError("confidence is 1.0; only B = 0 or B = 1 can be certain: use a value such as 0.95")
        need = math.ceil(math.log(1 - level) / math.log(1 - share))
        raise TooFewSamplesError(
            f"{n} samples cannot certify a budget of {share} at confidence {level}: at least {need} are needed for the "
            'threshold; add calibration samples, raise the budget, or use threshold="cross-fitted"'
        )
    return float(np.sort(values)[::-1][int(within[-1])])


def ranks_among(reference: FloatArray, score: FloatArray, weight: FloatArray, draw: np.random.Generator) -> FloatArray:
    """Rank of each score in (0, 1) among the reference scores, which have weights; random within ties."""
    order = np.argsort(reference, kind="stable")
    below = np.concatenate([[0.0], np.cumsum(weight[order])])
    first, last = (np.searchsorted(reference[order], score, side) for side in ("left", "right"))
    tied = first < last
    within = np.where(tied, draw.random(len(score)), 0.5)
    own = weight.mean()  # the weight of the sample itself, between its neighbours or among its ties
    rank: FloatArray = (below[first] + within * (below[last] - below[first] + own)) / (below[-1] + own)
    return rank


def scores_at_ranks(reference: FloatArray, rank: FloatArray, weight: FloatArray) -> FloatArray:
    """Quantiles of the reference scores, which have weights: the inverse of `ranks_among`."""
    order = np.argsort(reference, kind="stable")
    position = np.cumsum(weight[order]) / (weight.sum() + weight.mean())
    if np.isfinite(reference).all():
        return np.interp(rank, position, reference[order])
    return reference[order][np.minimum(np.searchsorted(position, rank), len(order) - 1)]


def rate_above(scores: FloatArray, threshold: float, weight: FloatArray | None = None) -> float:
    """Share of the scores (by weight) that lie above τ."""
    return float(np.average(escalate(scores, threshold), weights=weight))


def rate_interval(above: float, samples: float, level: float = 0.95) -> tuple[float, float]:
    """Interval for the true rate of a threshold with `above` of `samples` scores above it.

    A threshold read off n exchangeable scores so that k lie above has a true rate that is Beta(k + 1, n − k).
    """
    tail = (1 - level) / 2
    low = 0.0 if above == 0 else float(betaincinv(above + 1, samples - above, tail))
    high = 1.0 if above == samples else float(betaincinv(above + 1, samples - above, 1 - tail))
    return low, high


def expected_rate(scores: ThresholdScores, threshold: float, tied_share: float) -> tuple[float, float, float]:
    """Escalation rate to expect on new data, with its 95 % interval (rate, low, high)."""
    if math.isinf(threshold):
        rate = float(threshold < 0)
        return rate, rate, rate
    rate = rate_above(scores.score, threshold, scores.weight)
    rate += tied_share * float(np.average(scores.score == threshold, weights=scores.weight))
    effective = float(scores.weight.sum() ** 2 / np.square(scores.weight).sum())
    return rate, *rate_interval(rate * effective, effective)
