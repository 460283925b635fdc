"""How much a coordinator may ask for: token buckets, one for samples and one for embeddings a coordinator."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from gainroute.errors import SettingError

__all__ = ["Quota", "QuotaExceeded", "TokenBucket"]


@dataclass(frozen=True)
class QuotaExceeded:
    """A no.

    Attributes
    ----------
    message
        What was asked for, what is allowed, and when to ask again.
    retry_after
        Seconds; None where it would never be granted.
    """

    message: str
    retry_after: float | None


class TokenBucket:
    """Holds a minute's worth, refilled steadily.

    Parameters
    ----------
    per_minute
        More than 0.
    clock
        Seconds, never going back.
    """

    def __init__(self, per_minute: int, clock: Callable[[], float] = time.monotonic) -> None:
        if per_minute < 1:
            raise SettingError(f"per_minute is {per_minute}; 1 or more is needed")
        self.per_minute = per_minute
        self._clock = clock
        self._left = float(per_minute)
        self._at = clock()

    def take(self, count: int) -> float | None:
        """Take `count` if they are there: None. Else nothing is taken, and the seconds until they would be are told."""
        now = self._clock()
        self._left = min(float(self.per_minute), self._left + (now - self._at) * self.per_minute / 60)
        self._at = now
        if count <= self._left:
            self._left -= count
            return None
        return (count - self._left) * 60 / self.per_minute


class Quota:
    """Samples and embeddings a minute, for each coordinator apart.

    What is asked for counts, whether the party has it or not: guessing at ids is not free.

    Parameters
    ----------
    samples_per_minute, embeddings_per_minute
        0 for no limit.
    clock
        Seconds, never going back.
    """

    def __init__(
        self, samples_per_minute: int, embeddings_per_minute: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._limits = {1: ("samples", samples_per_minute), 2: ("embeddings", embeddings_per_minute)}
        self._clock = clock
        self._buckets: dict[tuple[str, int], TokenBucket] = {}

    def take(self, coordinator: str, round_: int, count: int) -> QuotaExceeded | None:
        """Charge `count` ids of Round 1 or 2 to a coordinator: None, or why not."""
        what, limit = self._limits[round_]
        if not limit:
            return None
        if count > limit:
            told = f"{count} {what} were asked for at once, the quota is {limit} a minute: ask for fewer"
            return QuotaExceeded(told, None)
        bucket = self._buckets.get((coordinator, round_))
        if bucket is None:
            bucket = self._buckets[coordinator, round_] = TokenBucket(limit, self._clock)
        wait = bucket.take(count)
        if wait is None:
            return None
        told = f"the quota of {limit} {what} a minute is used up: ask again in {wait:.1f} s"
        return QuotaExceeded(told, wait)
