"""Connections that lead to no call: refused TLS handshakes, and clients that connect and leave."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable

__all__ = ["UnusedConnections"]

GRACE_SECONDS = 10.0  # from the beginning of a connection to its first call
KNOWN_SECONDS = 3600.0  # how long the address of a caller is remembered
MOST = 4096  # connections and addresses that are remembered


class UnusedConnections:
    """Counts connections without a call.

    gRPC tells when a TLS handshake begins, but neither from where nor how it ends. A call tells its address. So the
    connections that began and the addresses that called are compared.

    Parameters
    ----------
    clock
        Monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()  # gRPC calls `began` from a thread of its own
        self._begun: deque[float] = deque()
        self._callers: OrderedDict[str, float] = OrderedDict()
        self._uncounted = 0  # dropped to bound the memory

    def began(self) -> None:
        """A TLS handshake begins. May be called in any thread."""
        with self._lock:
            self._begun.append(self._clock())
            if len(self._begun) > MOST:
                self._begun.popleft()
                self._uncounted += 1

    def called(self, peer: str) -> None:
        """A call arrived from this address and port."""
        now, callers = self._clock(), self._callers
        known = callers.pop(peer, None)
        callers[peer] = now
        if known is None or now - known > KNOWN_SECONDS:
            with self._lock:
                if self._begun:
                    self._begun.popleft()
        if len(callers) > MOST:
            callers.popitem(last=False)

    def take(self) -> int:
        """The number of connections that led to no call in time. Each is returned once."""
        late = self._clock() - GRACE_SECONDS
        with self._lock:
            count, self._uncounted = self._uncounted, 0
            while self._begun and self._begun[0] <= late:
                self._begun.popleft()
                count += 1
        return count
