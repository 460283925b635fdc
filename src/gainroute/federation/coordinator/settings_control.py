"""Settings of what keeps the budget and watches over it: the controller, its cap, and the drift monitor."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from gainroute.errors import SettingError

__all__ = ["CapSettings", "ControllerSettings", "DriftSettings", "at_least"]


def at_least(value: float, low: float, name: str, remedy: str) -> None:
    """Refuse a value that is too small."""
    if not value >= low:
        raise SettingError(f"{name} is {value!r}; {low} or more is needed: {remedy}")


@dataclass(frozen=True, kw_only=True)
class CapSettings:
    """A hard limit on bursts of escalations: at most `burst` + `rate`·T in any stretch of length T.

    Attributes
    ----------
    rate, burst
        What may be spent in the long run and at once. A burst below one sample is taken as one sample.
    unit
        Escalated "samples", or the "bytes" of their embeddings.
    per
        Whether `rate` is per "second", or per "sample" that is routed.
    """

    rate: float
    burst: float
    unit: Literal["samples", "bytes"] = "samples"
    per: Literal["second", "sample"] = "second"

    def __post_init__(self) -> None:
        for name in ("rate", "burst"):
            if not 0 < getattr(self, name) < math.inf:
                raise SettingError(f"controller.cap: {name} is {getattr(self, name)!r}; a number above 0 is needed")


@dataclass(frozen=True, kw_only=True)
class ControllerSettings:
    """The budget controller, which keeps the rate at the budget while scores drift; without the section there is none.

    Attributes
    ----------
    budget
        B; that of `[router]`, or the artifact's own, unless given.
    explore
        Share of the samples below the threshold escalated at random, out of the budget and never more than it; 0 leaves
        nothing to recalibrate from.
    step
        How far the threshold moves a sample, on the scale of the calibration scores; see `gainroute.BudgetController`.
    cap
        A hard limit on bursts.
    seed
        Draws what is explored.
    """

    budget: float | None = None
    explore: float = 0.01
    step: float | None = None
    cap: CapSettings | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.budget is not None and not 0 <= self.budget <= 1:
            raise SettingError(f"controller: budget is {self.budget!r}; a share in [0, 1] is needed, such as 0.2")
        if not 0 <= self.explore <= 1:
            raise SettingError(f"controller: explore is {self.explore!r}; a share in [0, 1] is needed, such as 0.01")
        if self.step is not None and not 0 < self.step <= 1:
            raise SettingError(f"controller: step is {self.step!r}; it lies in (0, 1]: leave it out for the default")
        at_least(self.seed, 0, "controller: seed", "any whole number")


@dataclass(frozen=True, kw_only=True)
class DriftSettings:
    """The drift monitor: scores and rate against calibration and, with feedback, whether collaboration still helps.

    Attributes
    ----------
    enabled
        Whether anything is watched.
    protect
        Whether, once collaboration has begun to hurt, more gain is demanded of every escalation until an admin resets
        the alarm.
    window, horizon, false_alarm, memory, min_feedback_probability
        See `gainroute.DriftMonitor`. Feedback with a smaller probability than that is kept, and not watched.
    seconds
        How often what came in is looked at.
    """

    enabled: bool = True
    protect: bool = False
    window: int = 1000
    horizon: int = 10_000
    false_alarm: float = 0.01
    memory: int = 5000
    min_feedback_probability: float = 0.1
    seconds: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.window <= self.horizon:
            raise SettingError(
                f"drift: window is {self.window} and horizon {self.horizon}; 0 < window ≤ horizon is needed"
            )
        for name in ("false_alarm", "min_feedback_probability"):
            if not 0 < getattr(self, name) < 1:
                raise SettingError(f"drift: {name} is {getattr(self, name)!r}; it lies between 0 and 1")
        at_least(self.memory, 1, "drift: memory", "5000 is a good choice")
        at_least(self.seconds, 0.01, "drift: seconds", "1 is a good choice")
