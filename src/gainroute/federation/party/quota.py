"""Quotas per coordinator: samples and embeddings per minute."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["Quota", "QuotaExceeded"]


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
    """Samples and embeddings per minute, counted separately for each coordinator.

    An allowance holds at most one minute's worth and refills steadily. Requested ids count whether the party has them
    or not: guessing ids is not free.

    Parameters
    ----------
    samples_per_minute, embeddings_per_minute
        0 for no limit.
    clock
        Monotonic seconds.
    """

    def __init__(
        self, samples_per_minute: int, embeddings_per_minute: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._limits = {1: ("samples", samples_per_minute), 2: ("embeddings", embeddings_per_minute)}
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
        now = self._clock()
        left, then = self._left.get((coordinator, round_), (float(limit), now))
        left = min(float(limit), left + (now - then) * limit / 60)
        granted = count <= left
        self._left[coordinator, round_] = (left - count if granted else left, now)
        if granted:
            return None
        wait = (count - left) * 60 / limit
        return QuotaExceeded(f"the quota of {limit} {what} per minute is used up: ask again in {wait:.1f} s", wait)
