"""Queues that serve several holders in turn, so that none waits for the backlog of another.

Start-time fair queuing: a holder's position grows by the cost of what it is served, and the holder with the lowest
position is next. A holder that comes back starts at the position served last, so that nobody saves up for a burst.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import AsyncIterator, Hashable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Generic, TypeVar

__all__ = ["FairGate", "FairQueue"]

T = TypeVar("T")


class FairQueue(Generic[T]):
    """Items by holder, each with a cost; first in, first out for each holder.

    Examples
    --------
    >>> queue = FairQueue()
    >>> for holder, item in [("a", 1), ("a", 2), ("a", 3), ("b", 4)]:
    ...     queue.put(holder, item, cost=10)
    >>> [queue.take() for _ in range(5)]
    [1, 4, 2, 3, None]
    """

    def __init__(self) -> None:
        self.cost = 0.0  # of everything that waits
        self._waiting: dict[Hashable, deque[tuple[T, float]]] = {}
        self._position: dict[Hashable, float] = {}
        self._now = 0.0

    def position(self, holder: Hashable) -> float:
        """Where another item of the holder would start."""
        waiting = sum(cost for _, cost in self._waiting.get(holder, ()))
        return max(self._position.get(holder, 0.0), self._now) + waiting

    def put(self, holder: Hashable, item: T, cost: float) -> None:
        """Add an item."""
        waiting = self._waiting.get(holder)
        if waiting is None:
            waiting = self._waiting[holder] = deque()
            self._position[holder] = self.position(holder)
        waiting.append((item, cost))
        self.cost += cost

    def take(self, room: float = math.inf) -> T | None:
        """Remove and return the next item that costs at most `room`; None if there is none."""
        fitting = [holder for holder, waiting in self._waiting.items() if waiting[0][1] <= room]
        if not fitting:
            return None
        holder = fitting[0] if len(fitting) == 1 else min(fitting, key=self._position.__getitem__)
        item, cost = self._waiting[holder].popleft()
        self.cost -= cost
        self._now = self._position[holder]
        self._position[holder] += cost
        if not self._waiting[holder]:
            del self._waiting[holder]
            if not self._waiting:  # nobody waits, so that nobody is ahead
                self._position.clear()
                self._now = 0.0
        return item


class FairGate:
    """Lets `slots` tasks in at once; those that wait are let in by the holder that was served least."""

    def __init__(self, slots: int) -> None:
        self._free = slots
        self._queue: FairQueue[asyncio.Future[None]] = FairQueue()

    @asynccontextmanager
    async def turn(self, costs: Mapping[Any, float]) -> AsyncIterator[None]:
        """Wait for a slot; `costs` are by holder, and the holder served least stands for all of them."""
        if self._free:
            self._free -= 1
        else:
            holder = min(costs, key=self._queue.position)
            ready = asyncio.get_running_loop().create_future()
            self._queue.put(holder, ready, costs[holder])
            try:
                await ready
            except asyncio.CancelledError:
                if not ready.cancelled():  # let in and cancelled at once
                    self._release()
                raise
        try:
            yield
        finally:
            self._release()

    def _release(self) -> None:
        while (ready := self._queue.take()) is not None:
            if not ready.done():
                ready.set_result(None)
                return
        self._free += 1
