"""Statistics of recent samples and latencies, in ring buffers of fixed size."""

from __future__ import annotations

import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gainroute.federation.coordinator.deployment import Deployment, SetPoint
from gainroute.federation.coordinator.outcome import ROUND1, ROUND2, UNKNOWN, Outcome, degraded_reasons, round_of

__all__ = ["HISTORY_SECONDS", "Duration", "LiveStatistics", "RingBuffer"]

HISTORY_SECONDS = 86_400
SPACING = 5.0  # seconds between two points of the history
WINDOW, MOST_POINTS = 1000, 300


@dataclass
class Duration:
    """How often something was done, and how long it took in all."""

    count: int = 0
    seconds: float = 0.0

    def add(self, seconds: float, count: int = 1) -> None:
        """Add what took `seconds` in all."""
        self.count += count
        self.seconds += seconds


class RingBuffer:
    """The last `size` numbers."""

    def __init__(self, size: int, dtype: Any = np.float64) -> None:
        self._values = np.zeros(size, dtype=dtype)
        self._at = 0
        self.total = 0

    def extend(self, values: npt.NDArray[Any]) -> None:
        """Add numbers, oldest first."""
        size = len(self._values)
        self.total += len(values)
        values = values[-size:]
        end = self._at + len(values)
        if end <= size:
            self._values[self._at : end] = values
        else:
            cut = size - self._at
            self._values[self._at :] = values[:cut]
            self._values[: end - size] = values[cut:]
        self._at = end % size

    def add(self, value: float) -> None:
        """Add one number."""
        self._values[self._at] = value
        self._at = (self._at + 1) % len(self._values)
        self.total += 1

    def last(self, n: int) -> npt.NDArray[Any]:
        """The last n of them, or as many as there are."""
        n = min(n, self.total, len(self._values))
        return self._values[np.arange(self._at - n, self._at) % len(self._values)]


class LiveStatistics:
    """Counts since the start, and rates and latencies of the recent past; `clock` returns seconds since 1970."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self.since = clock()
        self.samples = self.escalated = self.unknown = self.degraded = 0
        self.without = {ROUND1: 0, ROUND2: 0}  # routed although parties were absent, by the round that answered
        self.reasons: Counter[str] = Counter()
        self.bytes = {1: 0, 2: 0}
        self.bytes_always = 0.0
        self.last_inference = 0.0  # time of the last batch
        # Requests answered and refused, requests that waited, batches; and batches by their number of samples.
        self.spent = {name: Duration() for name in ("success", "fail", "queue", "compute_infer")}
        self.batches: defaultdict[int, Duration] = defaultdict(Duration)
        self._wanted = RingBuffer(10_000)  # 1 if escalated; where it is chosen whom to ask, the share of the bytes
        self._point: tuple[str, SetPoint] | None = None
        self._changed_at: int | None = None  # known samples before the operating point was changed
        self._due = 0.0
        self._history: deque[dict[str, Any]] = deque(maxlen=int(HISTORY_SECONDS / SPACING))
        self._latency = {name: RingBuffer(4096) for name in ("round1", "round2", "request")}

    def answered(self, outcome: Outcome, sample_bytes: int | None) -> None:
        """Count the answers to a request; `sample_bytes` is the payload of an escalated sample in Round 2, if known."""
        n = len(outcome)
        unknown = 0
        for route, count in Counter(outcome.route).items():
            reasons = degraded_reasons(route)
            unknown += count if route == UNKNOWN else 0
            self.degraded += count if reasons else 0
            for reason in reasons:
                self.reasons[reason] += count
            if not reasons and ("absent:" in route or "missing:" in route):
                self.without[round_of(route)] += count
        self.samples += n
        self.unknown += unknown
        self.escalated += int(outcome.wanted.sum())
        spent = outcome.wanted if outcome.spent is None else outcome.spent
        known = spent if not unknown else spent[outcome.label >= 0]
        self._note(outcome.deployment)
        self._wanted.extend(known)
        moment = self._clock()
        if moment >= self._due:
            self._due = moment + SPACING
            self._history.append(self._at(moment, outcome.deployment))
        self.bytes_always += (n - unknown) * (sample_bytes or 0)

    def executed(self, samples: int, seconds: float, requests: int, waited: float) -> None:
        """Count a batch that took `seconds`, and whose requests had waited for `waited` in all."""
        self.last_inference = time.time()
        self.spent["queue"].add(waited, requests)
        self.spent["compute_infer"].add(seconds)
        self.batches[samples].add(seconds)

    def latency(self, name: str, seconds: float) -> None:
        """Record the duration of a round or a request."""
        self._latency[name].add(seconds)

    def rate(self, n: int) -> dict[str, Any]:
        """Share of the last n known samples for which Round 2 was asked."""
        last = self._wanted.last(n)
        return {"samples": len(last), "rate": float(last.mean()) if len(last) else None}

    def now(self, deployment: Deployment) -> dict[str, Any]:
        """Rate of at most the last 1,000 known samples since the operating point was changed, and whether it was."""
        self._note(deployment)
        before = self._changed_at or 0
        return self.rate(min(WINDOW, self._wanted.total - before)) | {"changed": self._changed_at is not None}

    def history(self, seconds: float, deployment: Deployment) -> list[dict[str, Any]]:
        """`now` over time, with the budget; the last point is of this moment."""
        moment = self._clock()
        found = [point for point in self._history if point["time"] >= moment - seconds]
        return [*found[:: -(-len(found) // MOST_POINTS) or 1], self._at(moment, deployment)]

    def _note(self, deployment: Deployment) -> None:
        """Count anew if the operating point has changed."""
        point = (deployment.hash, deployment.point)
        if point != self._point:
            self._changed_at = None if self._point is None else self._wanted.total
            self._point = point

    def _at(self, moment: float, deployment: Deployment) -> dict[str, Any]:
        return {"time": moment, **self.now(deployment), "budget": deployment.point.budget}

    def latencies(self) -> dict[str, dict[str, Any]]:
        """Median and 99th percentile of the last 4,096, in milliseconds."""
        found: dict[str, dict[str, Any]] = {}
        for name, ring in self._latency.items():
            last = ring.last(4096)
            p50, p99 = (1e3 * np.quantile(last, [0.5, 0.99])).tolist() if len(last) else (None, None)
            found[name] = {"count": ring.total, "p50": p50, "p99": p99}
        return found
