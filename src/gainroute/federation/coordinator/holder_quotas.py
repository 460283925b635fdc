"""What each holder of a token may use per minute: requests, samples, escalations."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from gainroute._util.allowance import Allowance
from gainroute.federation.coordinator.client_settings import ClientQuotaSettings, HolderQuota
from gainroute.federation.coordinator.errors import TooLargeError, TooManyRequestsError

__all__ = ["HolderQuotas"]


class HolderQuotas:
    """Charges holders; a request that is refused costs a request all the same."""

    def __init__(self, settings: ClientQuotaSettings, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings
        self._own = {own.name: own for own in settings.holder}
        self._used = Allowance(clock=clock)
        every: list[ClientQuotaSettings | HolderQuota] = [settings, *settings.holder]
        self.limits_escalations = any(own.escalations_per_minute for own in every)
        self._limits_requests = any(own.requests_per_minute or own.samples_per_minute for own in every)

    def charge(self, holder: str | None, samples: int = 0) -> None:
        """Charge a request, or refuse it."""
        if not self._limits_requests:
            return
        for what, amount in (("requests", 1), ("samples", samples)):
            limit = self._limit(holder, what)
            wait = self._used.take((holder, what), limit, amount) if limit else 0.0
            if wait == math.inf:
                raise TooLargeError(
                    f"{samples} samples in one request; the quota of {holder or 'local'} is {limit} samples per "
                    "minute: split the request"
                )
            if wait:
                raise TooManyRequestsError(
                    f"the quota of {holder or 'local'}, {limit} {what} per minute, is used up; ask again in "
                    f"{wait:.1f} s",
                    wait,
                )

    def escalations(self, holder: str | None, wanted: int) -> int:
        """Charge up to `wanted` escalations; returns how many are granted."""
        limit = self._limit(holder, "escalations")
        if not limit:
            return wanted
        granted = min(wanted, int(self._used.left((holder, "escalations"), limit) + 1e-9))
        if granted:
            self._used.take((holder, "escalations"), limit, granted)
        return granted

    def _limit(self, holder: str | None, what: str) -> int:
        own = None if holder is None else self._own.get(holder)
        value = None if own is None else getattr(own, f"{what}_per_minute")
        found: int = getattr(self._settings, f"{what}_per_minute") if value is None else value
        return found
