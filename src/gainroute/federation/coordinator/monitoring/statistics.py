"""Statistics of recent samples and latencies, in ring buffers of fixed size."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gainroute.federation.coordinator.outcome import UNKNOWN, Outcome, degraded_reasons

__all__ = ["Duration", "LiveStatistics", "RingBuffer"]


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
    """Counts since the start, and rates and latencies of the recent past."""

    def __init__(self) -> None:
        self.since = time.time()
        self.samples = self.escalated = self.unknown = self.degraded = 0
        self.reasons: Counter[str] = Counter()
        self.bytes = {1: 0, 2: 0}
        self.bytes_always = 0.0
        self.last_inference = 0.0  # time of the last batch
        # Requests answered and refused, requests that waited, batches; and batches by their number of samples.
        self.spent = {name: Duration() for name in ("success", "fail", "queue", "compute_infer")}
        self.batches: defaultdict[int, Duration] = defaultdict(Duration)
        self._wanted = RingBuffer(10_000, np.bool_)
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
        self.samples += n
        self.unknown += unknown
        self.escalated += int(outcome.wanted.sum())
        known = outcome.wanted if not unknown else outcome.wanted[outcome.label >= 0]
        self._wanted.extend(known)
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

    def latencies(self) -> dict[str, dict[str, Any]]:
        """Median and 99th percentile of the last 4,096, in milliseconds."""
        found: dict[str, dict[str, Any]] = {}
        for name, ring in self._latency.items():
            last = ring.last(4096)
            p50, p99 = (1e3 * np.quantile(last, [0.5, 0.99])).tolist() if len(last) else (None, None)
            found[name] = {"count": ring.total, "p50": p50, "p99": p99}
        return found
