"""Quotas per coordinator: samples, embeddings and refused requests per minute."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["Quota", "QuotaExceeded"]

REFUSALS = 0  # the "round" to which refused requests are charged


@dataclass(frozen=True)
class QuotaExceeded:
    """Why a request exceeds the quota.

    Attributes
    ----------
    message
        What was requested, what is allowed, and when to ask again.
    retry_after
        Seconds; None if the request can never be granted.
    """

    message: str
    retry_after: float | None


class Quota:
    """Samples, embeddings and refused requests per minute, counted separately for each coordinator.

    An allowance holds at most one minute's worth and refills steadily. Requested ids count whether the party has them
    or not: guessing ids is not free.

    Parameters
    ----------
    samples_per_minute, embeddings_per_minute, refusals_per_minute
        0 for no limit.
    clock
        Monotonic seconds.
    """

    def __init__(
        self,
        samples_per_minute: int,
        embeddings_per_minute: int,
        clock: Callable[[], float] = time.monotonic,
        *,
        refusals_per_minute: int = 0,
    ) -> None:
        self._limits = {
            REFUSALS: ("refused requests", refusals_per_minute),
            1: ("samples", samples_per_minute),
            2: ("embeddings", embeddings_per_minute),
        }
        self._clock = clock
        self._left: dict[tuple[str, int], tuple[float, float]] = {}  # what is left, and when that was computed

    def take(self, coordinator: str, round_: int, count: int) -> QuotaExceeded | None:
        """Charge `count` ids of Round 1 or 2 to a coordinator; if they exceed its quota, charge nothing and say why."""
        what, limit = self._limits[round_]
        if not limit:
            return None
        if count > limit:
            message = f"{count} {what} were requested at once, the quota is {limit} per minute: ask for fewer"
            return QuotaExceeded(message, None)
        left = self._refill(coordinator, round_, limit)
        if count <= left:
            self._left[coordinator, round_] = (left - count, self._clock())
            return None
        return _exceeded(what, limit, count - left)

    def refused(self, coordinator: str) -> None:
        """Charge a refused request to a coordinator."""
        _, limit = self._limits[REFUSALS]
        if limit:
            left = self._refill(coordinator, REFUSALS, limit)
            self._left[coordinator, REFUSALS] = (max(left - 1, 0.0), self._clock())

    def barred(self, coordinator: str) -> QuotaExceeded | None:
        """Why nothing is answered for now: the coordinator had too many requests refused. Charges nothing."""
        what, limit = self._limits[REFUSALS]
        if not limit or (coordinator, REFUSALS) not in self._left:
            return None
        left = self._refill(coordinator, REFUSALS, limit)
        return None if left >= 1 else _exceeded(what, limit, 1 - left)

    def _refill(self, coordinator: str, round_: int, limit: int) -> float:
        now = self._clock()
        left, then = self._left.get((coordinator, round_), (float(limit), now))
        return min(float(limit), left + (now - then) * limit / 60)


def _exceeded(what: str, limit: int, lacking: float) -> QuotaExceeded:
    wait = lacking * 60 / limit
    return QuotaExceeded(f"the quota of {limit} {what} per minute is used up: ask again in {wait:.1f} s", wait)
