"""Quotas per coordinator: samples, embeddings and refused requests per minute."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from gainroute._util.allowance import Allowance

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
        self._used = Allowance(clock=clock)

    def take(self, coordinator: str, round_: int, count: int) -> QuotaExceeded | None:
        """Charge `count` ids of Round 1 or 2 to a coordinator; if they exceed its quota, charge nothing and say why."""
        what, limit = self._limits[round_]
        if not limit:
            return None
        if count > limit:
            message = f"{count} {what} were requested at once, the quota is {limit} per minute: ask for fewer"
            return QuotaExceeded(message, None)
        wait = self._used.take((coordinator, round_), limit, count)
        return _exceeded(what, limit, wait) if wait else None

    def refused(self, coordinator: str) -> None:
        """Charge a refused request to a coordinator."""
        _, limit = self._limits[REFUSALS]
        if limit:
            key = coordinator, REFUSALS
            self._used.take(key, limit, min(1.0, self._used.left(key, limit)))

    def barred(self, coordinator: str) -> QuotaExceeded | None:
        """Why nothing is answered for now: the coordinator had too many requests refused. Charges nothing."""
        what, limit = self._limits[REFUSALS]
        if not limit:
            return None
        left = self._used.left((coordinator, REFUSALS), limit)
        return None if left >= 1 else _exceeded(what, limit, (1 - left) * 60 / limit)


def _exceeded(what: str, limit: int, wait: float) -> QuotaExceeded:
    return QuotaExceeded(f"the quota of {limit} {what} per minute is used up: ask again in {wait:.1f} s", wait)
