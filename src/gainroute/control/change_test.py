"""A sequential test for the time at which a mean turns negative, valid at every moment.

The null hypothesis is that each new value x in [−1, 1] has mean at least 0, given the past. A bet of the share λ of the
money against it multiplies the money by 1 − λx, which is not expected to grow under the null. A single bet that started
at the first value would have lost nearly everything before a late change. Therefore a new bet of one coin starts at
every value; the total is

    R ← (R + 1)(1 − λx)            (Shiryaev and Roberts)

Under the null, R is expected to grow by at most one coin per value, so that E[R] ≤ H at any time up to H, even a random
one. R / H is therefore an e-value, and exceeds 1/α at any time up to H with probability at most α (Ville). The same
holds for the mean over several λ, so that none has to be chosen.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gainroute._util.arrays import shown
from gainroute.errors import SettingError, ShapeError
from gainroute.routing.types import FloatArray

__all__ = ["BETS", "ChangeTest", "bet"]

BETS = (0.025, 0.05, 0.1, 0.2, 0.4, 0.8)
RICHEST = 1e300  # the money is capped here, because it would overflow


def bet(money: FloatArray, value: FloatArray, bets: FloatArray) -> FloatArray:
    """Update the money, (…, bets), by one value."""
    return np.minimum((money + 1) * (1 - bets * value[..., None]), RICHEST)


class ChangeTest:
    """Raises an alarm once values in [−1, 1] have a negative mean.

    While no mean is negative, an alarm within the first `horizon` values has at most the probability `false_alarm`;
    within the first n values, n / horizon times that. `tallies` is the number of sums to keep over the values since the
    most likely time of a change.

    Examples
    --------
    >>> test = ChangeTest(horizon=10_000, false_alarm=0.01)
    >>> test.update(np.ones(5000))
    >>> test.alarm
    False
    >>> test.update(-np.ones(30))
    >>> test.alarm, test.limit
    (True, 100.0)
    """

    def __init__(self, horizon: int, false_alarm: float, *, tallies: int = 0) -> None:
        if not 0 < false_alarm < 1:
            raise SettingError(
                f"false_alarm is {shown(false_alarm)}; a probability between 0 and 1 is needed, such as 0.01"
            )
        self.horizon, self.limit = horizon, 1 / false_alarm
        self.alarm = False  # stays on once raised
        self.evidence = 0.0  # the current e-value, or that of the moment the alarm was raised
        self.values = 0  # so far
        self._bets = np.array(BETS)
        self._money = np.zeros(len(BETS))
        self._since = np.ones(len(BETS))  # the largest single bet: it started at the most likely time of a change
        self._tallies = np.zeros((len(BETS), tallies))

    @property
    def e_value(self) -> float:
        """Evidence against "no mean is negative"; an alarm is raised once it reaches `limit`."""
        return float(self._money.mean() / self.horizon)

    def update(self, values: FloatArray, tallies: FloatArray | None = None) -> None:
        """Add values, (N,), in their order, with the numbers to sum since the change, (N, tallies)."""
        x = np.asarray(values, dtype=np.float64)
        if x.ndim != 1 or (len(x) and not np.abs(x).max() <= 1):
            raise ShapeError(f"values have shape {x.shape} and reach beyond [−1, 1], or are NaN; (N,) within is needed")
        added = np.zeros((len(x), self._tallies.shape[1])) if tallies is None else tallies
        for value, more in zip(x, added, strict=True):
            self._money = bet(self._money, value, self._bets)
            fresh = self._since <= 1
            self._tallies[fresh] = 0.0
            self._since = np.minimum(np.where(fresh, 1.0, self._since) * (1 - self._bets * value), RICHEST)
            self._tallies += more
            if not self.alarm:
                self.evidence = self.e_value
                self.alarm = self.evidence >= self.limit
        self.values += len(x)

    def since_change(self) -> FloatArray:
        """The sums since the most likely time of a change, by the λ that has won most."""
        found: FloatArray = self._tallies[int(self._since.argmax())].copy()
        return found

    def state(self) -> dict[str, Any]:
        """Everything that must survive a restart, as plain JSON."""
        return {
            "alarm": self.alarm,
            "evidence": self.evidence,
            "values": self.values,
            "money": self._money.tolist(),
            "since": self._since.tolist(),
            "tallies": self._tallies.tolist(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""
        self.alarm, self.evidence, self.values = bool(state["alarm"]), float(state["evidence"]), int(state["values"])
        self._money, self._since = np.array(state["money"]), np.array(state["since"])
        self._tallies = np.array(state["tallies"]).reshape(self._tallies.shape)
