"""What looks at the answers afterwards, off their path: the drift monitor, and the router in the shadow."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from gainroute.federation.coordinator.decision_log.writer import DecisionLog
from gainroute.federation.coordinator.deployment import Deployment
from gainroute.federation.coordinator.errors import CoordinatorError
from gainroute.federation.coordinator.monitoring.drift import DriftAlarm, LiveDrift
from gainroute.federation.coordinator.monitoring.shadow import LiveShadow
from gainroute.federation.coordinator.operator import Operator
from gainroute.federation.coordinator.outcome import Outcome
from gainroute.federation.coordinator.parties import PartyLinks
from gainroute.federation.coordinator.settings import DriftSettings
from gainroute.routing.types import BoolArray, FloatArray

__all__ = ["Monitor"]

log = logging.getLogger("gainroute.coordinator")

# Samples that wait to be looked at; more are not watched, and no memory is lost to them.
MOST_SCORES = 50_000
MOST_SHADOWED = 4096


class Monitor:
    """Gathers answers as they are given, and has them looked at every second.

    Parameters
    ----------
    settings
        The `[drift]` section.
    decisions, operator, parties
        Of the coordinator.
    """

    def __init__(
        self, settings: DriftSettings, decisions: DecisionLog, operator: Operator, parties: PartyLinks
    ) -> None:
        self.drift = LiveDrift(settings, decisions, operator)
        self.shadow = LiveShadow(decisions, operator, parties)
        self._seconds, self._operator = settings.seconds, operator
        self._scores: list[tuple[str, FloatArray, BoolArray]] = []
        self._outcomes: list[Outcome] = []
        self._waiting = self._shadowed = 0
        self._lock = asyncio.Lock()
        self._ticking: asyncio.Task[None] | None = None

    # ---- from start to stop ---------------------------------------------------------------------

    async def start(self) -> None:
        """Go on where the last one stopped: an alarm that stood stands, and protects, before the first request."""
        try:
            await self.shadow.resume(self._operator.deployment)
        except CoordinatorError as error:  # a full disk, say: whether to answer all the same is for the log's settings
            log.warning("the shadow could not be brought back: %s", error)
        await self.follow()
        self._ticking = asyncio.create_task(self._tick())

    async def stop(self) -> None:
        """Look once more, and keep everything."""
        if self._ticking is not None:
            self._ticking.cancel()
            with suppress(asyncio.CancelledError):
                await self._ticking
        try:
            await self.look()
            await self.drift.save()
            await self.shadow.save()
        except CoordinatorError as error:
            log.warning("what was watched could not be kept: %s", error)

    # ---- on the answers' path: as little as possible ---------------------------------------------

    def answered(self, outcome: Outcome) -> None:
        """Note the answers to a request."""
        n = len(outcome.ids)
        self._waiting += n
        if self._waiting <= MOST_SCORES:  # not the outcome itself: its posteriors would have to be kept
            self._scores.append((outcome.deployment.hash, outcome.score, outcome.wanted))
        if self.shadow.shadow is not None and self._shadowed + n <= MOST_SHADOWED:
            self._shadowed += n
            self._outcomes.append(outcome)

    def labelled(self) -> None:
        """Note that there are labels in the log that were not looked at."""
        self.drift.labels_wait = True

    # ---- afterwards -----------------------------------------------------------------------------

    async def look(self) -> None:
        """Look at everything that came in since the last time."""
        async with self._lock:
            deployment = self._operator.deployment
            scores, outcomes = self._scores, self._outcomes
            self._scores, self._outcomes, self._waiting, self._shadowed = [], [], 0, 0
            own = [(score, wanted) for identity, score, wanted in scores if identity == deployment.hash]
            score = np.concatenate([np.zeros(0), *(s for s, _ in own)])
            wanted = np.concatenate([np.zeros(0, dtype=bool), *(w for _, w in own)])
            await self.drift.look(deployment, score, wanted)
            await self.shadow.look(deployment, outcomes)

    async def follow(self) -> None:
        """Look now, because another router may be in use; what goes wrong is said, and tried again."""
        try:
            await self.look()
        except CoordinatorError as error:
            log.warning("watching the answers: %s", error)
        except Exception:
            log.exception("watching the answers failed; it goes on")

    async def reset(self, who: str, request_id: str) -> dict[str, DriftAlarm]:
        """Reset the drift monitor."""
        async with self._lock:
            return await self.drift.reset(who, request_id)

    async def load_shadow(self, artifact: Path, who: str, request_id: str) -> None:
        """Have a router run in the shadow."""
        async with self._lock:
            await self.shadow.load(artifact, who, request_id)

    async def drop_shadow(self, who: str, request_id: str) -> None:
        """Let go of it."""
        async with self._lock:
            await self.shadow.drop(who, request_id)

    async def swap_shadow(self, who: str, request_id: str) -> Deployment:
        """Have it answer."""
        async with self._lock:
            return await self.shadow.swap(who, request_id)

    def alarms(self) -> list[dict[str, Any]]:
        """Alarms that stand, those that cost most first."""
        found = self.drift.alarms
        order = ("collaboration", "calibration", "scores")
        return [{"name": n, "since": found[n].since, "text": found[n].text} for n in order if n in found]

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(self._seconds)
            await self.follow()
