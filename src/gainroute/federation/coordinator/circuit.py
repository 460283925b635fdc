"""Circuit breakers: a party that does not answer in time is not asked again until it answers a probe."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

__all__ = ["Circuit", "CircuitState"]

CircuitState = Literal["closed", "open", "half-open"]


class Circuit:
    """Opens after `failures` timeouts in a row; a probe is then due every `seconds`, and an answer closes it.

    `failures` 0 keeps it closed. `clock` returns monotonic seconds.
    """

    def __init__(self, failures: int, seconds: float, clock: Callable[[], float]) -> None:
        self.state: CircuitState = "closed"
        self.sample = ""  # the id to probe with: of the last request without an answer
        self._failures, self._seconds, self._clock = failures, seconds, clock
        self._late = 0  # timeouts in a row
        self._probe_at = 0.0

    @property
    def reason(self) -> str:
        """Why the party is not asked."""
        return (
            f"did not answer {self._late} requests in a row in time; it is not asked until it answers a probe, sent "
            f"every {self._seconds:g} s"
        )

    def late(self, sample: str) -> None:
        """Count a request that was not answered in time."""
        self._late += 1
        self.sample = sample
        if self._failures and self._late >= self._failures:
            self.state, self._probe_at = "open", self._clock() + self._seconds

    def answered(self) -> None:
        """Close it: the party has answered, whatever it said."""
        self._late, self.state = 0, "closed"

    def probe(self) -> bool:
        """Whether a probe is due; it is half open until `answered` or `late`."""
        if self.state == "closed" or self._clock() < self._probe_at:
            return False
        self.state = "half-open"
        return True
