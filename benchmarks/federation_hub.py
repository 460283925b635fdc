"""The coordinator of the federation bench as a process: `python -m benchmarks.federation_hub federation.toml`."""

from __future__ import annotations

import asyncio
import json
import sys
import time

from gainroute._util.progress import Progress
from gainroute.federation.formation.federate import Formation
from gainroute.federation.formation.plan import load_federation_settings

__all__ = ["EpochTimes"]


class EpochTimes(Progress):
    """Seconds of every epoch of the strong route, its checkpoint included."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._running, self._last = False, 0.0

    def start(self, name: str, total: int, done: int = 0) -> None:  # noqa: ARG002 (the interface's parameters)
        """Start the clock if this is the strong route."""
        self._running, self._last = name == "vfl", time.perf_counter()

    def advance(self, note: str = "") -> None:  # noqa: ARG002
        """Note the time of an epoch."""
        if self._running:
            now = time.perf_counter()
            self.seconds.append(now - self._last)
            self._last = now


def main(path: str) -> None:
    """Form the federation, and print seconds per epoch and bytes as JSON."""
    times = EpochTimes()
    formation = Formation(load_federation_settings(path), "v1", times)
    asyncio.run(formation.run())
    print(json.dumps({"seconds": times.seconds, "bytes": list(formation.payload_bytes.values())}))


if __name__ == "__main__":
    main(sys.argv[1])
