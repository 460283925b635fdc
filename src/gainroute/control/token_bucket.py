"""A hard cap on bursts: a token bucket that refills at a steady rate, and from which every escalation takes tokens."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any, Literal

from gainroute._util.arrays import shown
from gainroute.errors import SettingError
from gainroute.routing.inputs import one_of

__all__ = ["TokenBucket"]


class TokenBucket:
    """Allows at most `burst` + `rate`·T over any interval of length T.

    Parameters
    ----------
    rate
        How much may be spent per second in the long run; with `per="sample"`, per routed sample.
    burst
        How much may be spent at once. The bucket starts full.
    unit
        What is counted: escalated "samples", or their "bytes".
    size
        With "bytes": the bytes of one escalated sample, such as ``communication_cost(K, dims) − communication_cost(K,
        dims, 0)``.
    per
        "second", or "sample" where samples are the clock.
    clock
        Returns seconds; for tests, any function that never decreases.

    Examples
    --------
    >>> bucket = TokenBucket(rate=10, burst=2, clock=lambda: 0.0)
    >>> [bucket.take() for _ in range(4)]
    [True, True, False, False]
    """

    def __init__(
        self,
        rate: float,
        burst: float,
        *,
        unit: Literal["samples", "bytes"] = "samples",
        size: float | None = None,
        per: Literal["second", "sample"] = "second",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        one_of(unit, "unit", ("samples", "bytes"))
        one_of(per, "per", ("second", "sample"))
        if (unit == "bytes") != (size is not None):
            raise SettingError(
                f"unit is {unit!r} and size {shown(size)}; with 'bytes', and only then, size is the bytes of one "
                "escalated sample"
            )
        self.rate, self.burst = _amount(rate, "rate"), _amount(burst, "burst")
        self.unit, self.per = unit, per
        self.size = 1.0 if size is None else _amount(size, "size")
        if self.burst < self.size:
            raise SettingError(
                f"burst is {self.burst:g} {unit} and one escalated sample takes {self.size:g}; nothing would ever be "
                "escalated: raise burst"
            )
        self._clock = clock
        self._tokens = self.burst
        self._time = clock()

    def refill(self) -> None:
        """Add the tokens earned since the last refill; with `per="sample"`, `take` does this."""
        if self.per == "second":
            now = self._clock()
            self._earn(max(now - self._time, 0.0))
            self._time = now

    def take(self, wanted: bool = True, share: float = 1.0) -> bool:
        """Count a sample and return whether it can be escalated; tokens are taken only if `wanted`.

        Of bytes, a `share` is taken where only some of the parties are asked; there must be enough for all of them.
        """
        if self.per == "sample":
            self._earn(1.0)
        is_open = self._tokens >= self.size
        if is_open and wanted:
            self._tokens -= self.size * (share if self.unit == "bytes" else 1.0)
        return is_open

    def state(self) -> dict[str, Any]:
        """Everything that must survive a restart."""
        return {"tokens": self._tokens, "unit": self.unit, "per": self.per}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a saved state. The time in between earns no tokens: the clock may have been reset."""
        if (state["unit"], state["per"]) != (self.unit, self.per):
            raise SettingError(
                f"the saved cap counts {state['unit']} per {state['per']}, this one {self.unit} per {self.per}; start "
                "without the saved state"
            )
        self._tokens = min(float(state["tokens"]), self.burst)
        self._time = self._clock()

    def __repr__(self) -> str:
        return f"TokenBucket({self.rate:g} {self.unit} per {self.per}, burst {self.burst:g})"

    def _earn(self, amount: float) -> None:
        self._tokens = min(self.burst, self._tokens + self.rate * amount)


def _amount(value: float, name: str) -> float:
    if not isinstance(value, (int, float)) or not 0 < value < math.inf:
        raise SettingError(f"{name} is {shown(value)}; a number above 0 is needed")
    return float(value)
