"""Allowances per minute, by key: each holds at most one minute's worth and refills steadily."""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable

__all__ = ["Allowance"]


class Allowance:
    """What each key may still spend; beyond `most` keys, the one unused for longest is forgotten.

    Examples
    --------
    >>> allowance = Allowance(clock=lambda: 0.0)
    >>> [allowance.take("a", limit=2) for _ in range(3)], allowance.take("b", limit=2)
    ([0.0, 0.0, 30.0], 0.0)
    """

    def __init__(self, most: int = 10_000, clock: Callable[[], float] = time.monotonic) -> None:
        self._most, self._clock = most, clock
        self._left: OrderedDict[Hashable, tuple[float, float]] = OrderedDict()  # what is left, and when that was so

    def left(self, key: Hashable, limit: float) -> float:
        """What is left of the `limit` per minute."""
        spent = self._left.get(key)
        if spent is None:
            return limit
        left, then = spent
        return min(limit, left + (self._clock() - then) * limit / 60)

    def take(self, key: Hashable, limit: float, amount: float = 1.0) -> float:
        """Spend an amount; returns 0, or the seconds after which there will be enough, and then nothing is spent.

        Infinity for more than `limit`, which is never there at once. A negative amount gives back.
        """
        left = self.left(key, limit)
        if amount > left:
            return (amount - left) * 60 / limit if amount <= limit else math.inf
        self._left[key] = left - amount, self._clock()
        self._left.move_to_end(key)
        if len(self._left) > self._most:
            self._left.popitem(last=False)
        return 0.0
