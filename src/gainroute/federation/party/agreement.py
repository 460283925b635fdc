"""The agreed share of escalations, enforced by the party itself: embeddings only after Round 1, and only for a share.

What a coordinator might try, and why it does not help:

- Asking for the same ids again and again in Round 1: distinct samples are counted.
- Asking for invented ids: only samples that the party has are counted.
- Asking for several model versions: samples are counted once, embeddings once per version.
- Sending several requests at the same time: embeddings are charged before they are computed.
- Asking for everything in Round 1: that is charged to its quota and audited, and yields the share once per window.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager

from gainroute.federation.party.settings import AgreementSettings

__all__ = ["Agreement"]


class Agreement:
    """Counts samples and embeddings per coordinator, over the last `window_seconds` or `max_ids` samples.

    Parameters
    ----------
    settings
        The share, the window, and how much is remembered.
    clock
        Monotonic seconds.
    """

    def __init__(self, settings: AgreementSettings, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings, self._clock = settings, clock
        self._counts: dict[str, _Counts] = {}
        self._lifted: dict[str, int] = {}

    def asked(self, coordinator: str, ids: Iterable[str]) -> None:
        """Count the samples of an answered Round 1; only those that the party has."""
        counts, now = self._current(coordinator)
        counts.asked.add(ids, now)
        counts.forget_beyond(self._settings.max_ids)

    def take(self, coordinator: str, model: str, ids: Iterable[str]) -> str:
        """Charge embeddings to a coordinator and return ""; if they are not agreed, charge nothing and say why."""
        if coordinator in self._lifted:
            return ""
        settings, wanted = self._settings, set(ids)
        counts, now = self._current(coordinator)
        strange = sum(name not in counts.asked.times for name in wanted)
        if strange:
            return (
                f"{strange} of {len(wanted)} samples were not asked for in Round 1 within the last "
                f"{settings.window_seconds:g} s: embeddings follow Round 1"
            )
        keys = [(model, name) for name in wanted]
        samples, given = len(counts.asked.times), len(counts.given.times)
        new = sum(key not in counts.given.times for key in keys)
        if given + new > settings.escalation_share * samples + settings.burst:
            return (
                f"{given} embeddings were given for {samples} samples within {settings.window_seconds:g} s, and {new} "
                f"more exceed the agreed share of {settings.escalation_share:g} (and {settings.burst} more)"
            )
        counts.given.add(keys, now)
        return ""

    @contextmanager
    def lifted(self, coordinator: str) -> Iterator[None]:
        """Set no limit for a coordinator meanwhile: it trains and calibrates, by a permission of its own."""
        self._lifted[coordinator] = self._lifted.get(coordinator, 0) + 1
        try:
            yield
        finally:
            self._lifted[coordinator] -= 1
            if not self._lifted[coordinator]:
                del self._lifted[coordinator]

    def _current(self, coordinator: str) -> tuple[_Counts, float]:
        now = self._clock()
        counts = self._counts.setdefault(coordinator, _Counts())
        counts.forget_before(now - self._settings.window_seconds)
        return counts, now


class _Counts:
    def __init__(self) -> None:
        self.asked, self.given = _Recent(), _Recent()

    def forget_before(self, moment: float) -> None:
        self.asked.forget(moment)
        self.given.forget(moment)

    def forget_beyond(self, most: int) -> None:
        """Keep the latest samples only, and the embeddings given since the earliest of them was asked for."""
        dropped = self.asked.shorten(most)
        if dropped is not None:
            self.given.forget(dropped)


class _Recent:
    """Distinct keys with the time of their last use, oldest first."""

    def __init__(self) -> None:
        self.times: OrderedDict[Hashable, float] = OrderedDict()

    def add(self, keys: Iterable[Hashable], now: float) -> None:
        times = self.times
        for key in keys:
            times[key] = now
            times.move_to_end(key)

    def forget(self, moment: float) -> None:
        """Forget keys that were not used after `moment`."""
        times = self.times
        while times and next(iter(times.values())) <= moment:
            times.popitem(last=False)

    def shorten(self, most: int) -> float | None:
        """Forget the oldest keys beyond `most`; returns when the last of them was used."""
        moment = None
        while len(self.times) > most:
            _, moment = self.times.popitem(last=False)
        return moment
