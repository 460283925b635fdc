"""A budget that holds under drift: the threshold follows the scores, sample by sample.

A threshold computed from calibration data spends B only as long as new scores are distributed like the old ones. The
controller keeps a level θ on the scale of the calibration distribution function F, escalates where F(s) > θ, and
updates θ after every sample:

    θ ← θ + η (1[escalated] − B)

An escalation raises θ, a sample that is kept lowers it. Because F(s) lies in [0, 1], θ can never leave
[−ηB, 1 + η(1 − B)], and so, for any scores, over any n consecutive samples

    |rate − B| ≤ (1 + η) / (η n)

This is the argument of adaptive conformal inference (Gibbs and Candès, 2021), for a rate in place of a coverage.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from gainroute._util.arrays import shown
from gainroute.control.score_scale import CalibrationScale
from gainroute.control.token_bucket import TokenBucket
from gainroute.errors import SettingError
from gainroute.routing.absent import routers_of
from gainroute.routing.decide import BUDGET_REMEDY, calibration_threshold
from gainroute.routing.inputs import check_fraction
from gainroute.routing.offers import PricedDecision, priced
from gainroute.routing.router import Router
from gainroute.routing.two_round import Decider
from gainroute.routing.types import Answer, ArrayLike, BoolArray, Decision, FloatArray, IntArray

__all__ = ["BudgetController", "ControlledDecision"]

FORMAT = "gainroute.budget"
VERSION = 1
WINDOW, TOLERANCE = 2000, 0.02  # of the default step: any 2,000 consecutive samples are within 2 points of B
DEFAULT_STEP = 1 / (WINDOW * TOLERANCE - 1)
DECISION = tuple(f.name for f in fields(Decision))
COUNTS = ("samples", "escalated", "explored", "capped")


@dataclass(frozen=True, eq=False)
class ControlledDecision(Decision):
    """A decision whose threshold changed from sample to sample.

    Attributes
    ----------
    escalate, score, weak_prediction, pooled, calibrated, incomplete, threshold
        See `Decision`; `threshold` is τ before the first sample.
    thresholds : (N,)
        τ of each sample; +∞ where nothing could be escalated because the cap was reached or the budget spent.
    probability : (N,)
        Probability of escalation, given the score and the past: 1 above the threshold, the explored share below it, 0
        where nothing could be escalated.
    explored : (N,) bool
        True where a sample below its threshold was escalated at random.
    capped : (N,) bool
        True where only the cap prevented an escalation.
    """

    thresholds: FloatArray
    probability: FloatArray
    explored: BoolArray
    capped: BoolArray


class BudgetController:
    """Keep the escalation rate at B, batch after batch, for any scores.

    It is a `Decider` like the router it wraps, and can be used in its place, for example in `predict_two_round` and
    `cascade`. Samples are counted one by one, so that a stream gives the same decisions in any batches. A sample that
    lacks a party counts like any other, on the scale of the router of those present (`gainroute.fit_subsets`); without
    such a router it is never escalated and not counted.

    Parameters
    ----------
    router
        A fitted router.
    budget
        B, the share of samples that may be escalated; by default the router's own.
    step
        η. By default 1/39, with which any 2,000 consecutive samples are within 2 points of B, or B(1 − B)/6 if that is
        smaller: with larger steps, escalation would depend on the previous samples rather than on the gain.
    explore
        Share of the samples below the threshold that are escalated at random (0.01 is a good choice), so that the
        strong route is observed there too. They count towards B.
    cap
        A hard limit on bursts. θ is updated as if there were no cap: a cap below B lowers the rate and does not change
        which samples are preferred.
    min_gain
        Only samples with a larger score are escalated, except to explore; by default the router's own. The rate stays
        below B while gains are too small.
    seed
        Seed of the exploration.
    partial
        Whether samples are escalated by the gain per byte, to the parties that are worth it; see
        `gainroute.PartialRouter`. B is then the share of the bytes of asking everyone for everything, and the bound is
        one on overspending. Who is explored is asked in full.

    Attributes
    ----------
    samples, escalated, explored, capped
        Counts since the start.
    spent
        What counts towards B: the number of escalated samples, or with `partial` the sum of their shares of the bytes.
    level
        θ.
    protection
        None, or a second `min_gain` that can be set and removed at run time; see `DriftMonitor.protect`.

    Examples
    --------
    >>> import numpy as np
    >>> import gainroute as gr
    >>> from gainroute.control.budget import BudgetController
    >>> rng = np.random.default_rng(0)
    >>> labels = rng.integers(3, size=300)
    >>> local = 0.5 * rng.dirichlet([1, 1, 1], size=300) + 0.5 * np.eye(3)[labels]
    >>> router = gr.ConfidenceRouter(budget=0.2).fit(local, labels, labels)
    >>> harder = 0.7 * rng.dirichlet([1, 1, 1], size=5000) + 0.1
    >>> controller = BudgetController(router)
    >>> bool(router.route(harder).escalate.mean() > 0.5), round(float(controller.route(harder).escalate.mean()), 2)
    (True, 0.2)
    >>> print(controller.describe())
    budget 0.2, step 0.02564: over any 2,000 consecutive samples the rate is within 2.0 points of it
    5,000 samples, 20.2 % escalated, 0 of them to explore; 0 stopped by the cap
    """

    def __init__(
        self,
        router: Router,
        budget: float | None = None,
        *,
        step: float | None = None,
        explore: float = 0.0,
        cap: TokenBucket | None = None,
        min_gain: float | None = None,
        seed: int = 0,
        partial: bool = False,
    ) -> None:
        router._check_fitted()
        if partial and router.offers_ is None:
            raise SettingError(
                "partial is True, but the router does not know what asking some of the parties is worth; fit it with "
                "gr.fit_subsets(…, party_bytes=…)"
            )
        self.offers = router.offers_ if partial else None
        self.router = router
        self.budget = check_fraction(router.budget if budget is None else budget, "budget", BUDGET_REMEDY)
        widest = self.budget * (1 - self.budget) / 6
        self.step = min(DEFAULT_STEP, widest) if step is None else _check_step(step)
        self.explore = check_fraction(explore, "explore", "the share escalated at random, such as 0.01")
        if self.explore > self.budget:
            raise SettingError(
                f"explore is {self.explore} and the budget {self.budget}; exploration counts towards the budget: lower "
                "explore, or raise the budget"
            )
        self.cap = cap
        self.min_gain = router.min_gain if min_gain is None else float(min_gain)
        if partial:  # bytes are not paid for an expected loss, however large the budget
            self.min_gain = max(self.min_gain or 0.0, 0.0)
        self.protection: float | None = None
        self.seed = seed
        # One per router that may decide, as `Decision.subset` numbers them.
        behind = [fitted.threshold_scores_ for _, fitted in routers_of(router)]
        # A gain per byte is on one scale, whoever is present.
        self._scales = [
            CalibrationScale.of(s) for s in (behind if self.offers is None else [self.offers.threshold_scores()])
        ]
        self.scale = self._scales[0]
        self.level = self._first_level()
        self.samples = self.escalated = self.explored = self.capped = 0
        self.spent = 0.0
        self._drawn = 0
        self._random = np.random.default_rng(seed)
        self._lock = threading.Lock()

    # ---- deciding -------------------------------------------------------------------------------

    def route(
        self,
        local_posteriors: Any,
        *,
        weak_prediction: ArrayLike | None = None,
        present: ArrayLike | None = None,
        checked: bool = False,
    ) -> ControlledDecision:
        """Decide which samples to escalate, in their order; the arguments are those of `Router.route`."""
        scored = self.router.route(local_posteriors, weak_prediction=weak_prediction, present=present, checked=checked)
        return self.decide(scored)

    def decide(self, decision: Decision) -> ControlledDecision:
        """Decide on samples that the router has scored; call it in the order of the samples."""
        if self.offers is not None and not isinstance(decision, PricedDecision):
            decision = priced(cast("ExpectedGainRouter", self.router), decision, self.threshold)
        with self._lock:
            return self._decide(decision)

    def answer(self, decision: Decision, strong: ArrayLike | None) -> Answer:
        """Combine the answers of both routes; see `Router.answer`."""
        return self.router.answer(decision, strong)

    @property
    def threshold(self) -> float:
        """The current τ: the score at level θ, and never below `min_gain` or `protection`."""
        return float(self._threshold_at(np.array([self.level]))[0])

    @property
    def rate(self) -> float:
        """What was spent of the budget per sample since the start; NaN before the first sample."""
        return self.spent / self.samples if self.samples else math.nan

    def bound(self, samples: int) -> float:
        """The largest possible distance of the rate from B over this many consecutive samples, for any scores.

        With a cap, a `min_gain`, a `protection` or `partial` it bounds overspending only: they lower the rate on
        purpose.
        """
        if self.step == 0:  # B is 0 or 1, and kept exactly
            return 0.0
        return min(1.0, (1 + self.step) / (self.step * samples))

    def describe(self) -> str:
        """Text with the guarantee and the counts so far."""
        share = "" if not self.samples else f"{100 * self.rate:.1f} % escalated, "
        return (
            f"budget {self.budget:g}, step {self.step:.4g}: over any {WINDOW:,} consecutive samples the rate is within "
            f"{100 * self.bound(WINDOW):.1f} points of it\n"
            f"{self.samples:,} samples, {share}{self.explored:,} of them to explore; {self.capped:,} stopped by the cap"
        )

    def __repr__(self) -> str:
        width = 1 + 1 / self.step if self.step else 0.0
        return (
            f"BudgetController({self.router!r}, budget={self.budget:g}, step={self.step:.4g}, "
            f"explore={self.explore:g}, cap={self.cap!r}): |rate − B| ≤ {width:.1f}/n over any n samples"
        )

    # ---- surviving a restart --------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Everything that must survive a restart, as plain JSON."""
        with self._lock:
            return {
                "format": FORMAT,
                "version": VERSION,
                **self._identity(),
                "level": str(self.level) if math.isinf(self.level) else self.level,
                **{name: getattr(self, name) for name in COUNTS},
                "spent": self.spent,
                "drawn": self._drawn,
                "protection": str(self.protection) if self.protection == math.inf else self.protection,
                "cap": None if self.cap is None else self.cap.state(),
            }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from the saved state of a controller of the same router and settings."""
        if state.get("format") != FORMAT or state.get("version") != VERSION:
            raise SettingError(
                f"the state has format {state.get('format')!r}, version {state.get('version')!r}; {FORMAT!r}, version "
                f"{VERSION} is needed: pass what BudgetController.state returned, or start without one"
            )
        for name, value in self._identity().items():
            if state.get(name) != value:
                raise SettingError(
                    f"the state was saved with {name} {state.get(name)!r}, this controller has {value!r}; restore it "
                    "into a controller of the same router and settings, or start without it"
                )
        # Everything is read before anything is set: a bad state leaves the controller unchanged.
        counts: dict[str, float] = {name: int(state[name]) for name in COUNTS}
        counts["spent"] = float(state.get("spent", counts["escalated"]))
        level, drawn, protection = float(state["level"]), int(state["drawn"]), state["protection"]
        protection = None if protection is None else float(protection)
        with self._lock:
            if self.cap is not None and state["cap"] is not None:
                self.cap.restore(state["cap"])
            self.level, self.protection, self._drawn = level, protection, drawn
            vars(self).update(counts)
            # One 64-bit draw per sample: the state of the generator follows from their number.
            self._random = np.random.Generator(np.random.PCG64(self.seed).advance(drawn))

    # ---- inside ---------------------------------------------------------------------------------

    def _identity(self) -> dict[str, Any]:
        settings = {name: getattr(self, name) for name in ("budget", "step", "explore", "seed")}
        return {"router": self.scale.digest(), **settings}

    def _first_level(self) -> float:
        """The level of the router's threshold for this budget, so that the first decision is the router's."""
        behind = self.router.threshold_scores_
        if self.offers is None:
            start = calibration_threshold(behind.score, self.budget, behind.weight)
        else:
            start = self.offers.price_for(self.budget) if self.budget < 1 else -math.inf
        return start if math.isinf(start) else float(self.scale(np.array([start]))[0])

    @property
    def _floor(self) -> float:
        return max((f for f in (self.min_gain, self.protection) if f is not None), default=-math.inf)

    def _levels_of(self, decision: Decision) -> FloatArray:
        """F of each score, on the scale of the router that decided."""
        levels = self.scale(decision.score)
        for number in self._others(decision.subset):
            rows = decision.subset == number
            levels[rows] = self._scales[number](decision.score[rows])
        return levels

    def _threshold_at(self, level: FloatArray, subset: IntArray | None = None) -> FloatArray:
        within = np.clip(level, 0.0, 1.0)
        found = self.scale.inverse(within)
        for number in self._others(subset):
            rows = subset == number
            found[rows] = self._scales[number].inverse(within[rows])
        return np.maximum(found, self._floor)

    def _others(self, subset: IntArray | None) -> list[int]:
        return (
            []
            if subset is None or self.offers is not None
            else [number for number in np.unique(subset).tolist() if number]
        )

    def _decide(self, decision: Decision) -> ControlledDecision:
        """Decide, and update θ sample by sample.

        Plain numbers in plain lists: each θ depends on the one before, so there is nothing to vectorise.
        """
        n, floor = len(decision), self._floor
        counted = ~(decision.incomplete | np.isnan(decision.score))
        gains = counted if floor == -math.inf else counted & (decision.score > floor)
        lucky = self._random.random(n) < self.explore
        self._drawn += n
        level, budget, step, cap, share = self.level, self.budget, self.step, self.cap, self.explore
        lowest = -step * budget
        if cap is not None:
            cap.refill()
        track: list[tuple[float, bool, float, bool, bool, int, float]] = []
        buys = self._buyer(decision)
        rows = zip(*(column.tolist() for column in (self._levels_of(decision), counted, gains, lucky)), strict=True)
        for row, (u, counts, gain, luck) in enumerate(rows):
            above = gain and u > level
            explores = counts and luck and not above and level < 1
            want = above or explores
            subset, cost = buys(row, level, explores) if want else (-1, 0.0)
            free = cap is None or cap.take(want, cost)
            room = free and level < 1  # at θ ≥ 1 the budget is spent, and nothing is escalated
            chance = 1.0 if above and free else share if room and counts else 0.0
            track.append(
                (level if room else math.inf, want and free, chance, explores and free, want and not free, subset, cost)
            )
            if counts and step:
                # Only min_gain can hold θ down there; bounded, it spends at most 1/η samples once min_gain is lifted.
                level = max(level + step * (cost - budget), lowest)
        self.level = level
        levels, escalate, probability, explored, capped, subsets, costs = map(np.array, zip(*track, strict=True))
        self.spent += float(costs[escalate].sum())
        for name, added in zip(COUNTS, (counted, escalate, explored, capped), strict=True):
            setattr(self, name, getattr(self, name) + int(added.sum()))
        thresholds = self._threshold_at(levels, decision.subset)
        scored: dict[str, Any] = {name: getattr(decision, name) for name in DECISION}
        scored |= {"escalate": escalate, "threshold": float(thresholds[0]), "thresholds": thresholds}
        if self.offers is not None:
            scored["ask"] = self.offers.asked(np.where(escalate, subsets, -1))
        return ControlledDecision(**scored, probability=probability, explored=explored, capped=capped)

    def _buyer(self, decision: Decision) -> Callable[[int, float, bool], tuple[int, float]]:
        """The offer that an escalated sample takes at a level, and its share of the bytes; the largest to explore."""
        if not isinstance(decision, PricedDecision) or self.offers is None:
            return lambda row, level, explores: (-1, 1.0)  # noqa: ARG005
        gain, everyone, cost = decision.gain, self.offers.everyone(decision.gain), self.offers.cost

        def buy(row: int, level: float, explores: bool) -> tuple[int, float]:
            chosen = int(everyone[row])
            if not explores:
                price = float(self._threshold_at(np.array([level]))[0])
                chosen = int((gain[row] - price * cost).argmax())
            return chosen, float(cost[chosen])

        return buy


def _check_step(step: float) -> float:
    if not isinstance(step, (int, float, np.integer, np.floating)) or not 0 < step <= 1:
        raise SettingError(f"step is {shown(step)}; it lies in (0, 1]: None for the default, 1/39 at most")
    return float(step)


if TYPE_CHECKING:
    from gainroute.routing.routers import ExpectedGainRouter

    DECIDERS: tuple[type[Decider], ...] = (Router, BudgetController)
