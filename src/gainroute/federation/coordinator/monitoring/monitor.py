"""Examines answers in the background: the drift monitor, and the shadow router."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import Any

import numpy as np

from gainroute.federation.coordinator.decision_log.store import CHANGES, get_state
from gainroute.federation.coordinator.decision_log.writer import DecisionLog
from gainroute.federation.coordinator.errors import CoordinatorError
from gainroute.federation.coordinator.monitoring.drift import LiveDrift
from gainroute.federation.coordinator.monitoring.shadow import LiveShadow
from gainroute.federation.coordinator.operator import Operator
from gainroute.federation.coordinator.outcome import Outcome
from gainroute.federation.coordinator.parties import PartyLinks
from gainroute.federation.coordinator.settings import DriftSettings
from gainroute.routing.types import BoolArray, FloatArray

__all__ = ["Monitor"]

log = logging.getLogger("gainroute.coordinator")

# Samples kept until they are examined; beyond that they are skipped, so that memory is bounded.
MOST_SCORES = 50_000
MOST_SHADOWED = 4096
MOST_POSTERIOR_BYTES = 32 << 20


class Monitor:
    """Collects answers as they are given, and has them examined every second by `drift` and `shadow`."""

    def __init__(
        self, settings: DriftSettings, decisions: DecisionLog, operator: Operator, parties: PartyLinks
    ) -> None:
        self.drift = LiveDrift(settings, decisions, operator)
        self.shadow = LiveShadow(decisions, operator, parties, settings.trusted_holders)
        self._seconds, self._operator, self._log = settings.seconds, operator, decisions
        self._scores: list[tuple[str, FloatArray, BoolArray]] = []
        self._outcomes: list[Outcome] = []
        self._local: list[tuple[str, FloatArray]] = []
        self._waiting = self._shadowed = self._local_bytes = 0
        self.lock = asyncio.Lock()  # to be held while `drift` or `shadow` is changed
        self._ticking: asyncio.Task[None] | None = None

    # ---- start and stop -------------------------------------------------------------------------

    async def start(self) -> None:
        """Restore the saved state: an alarm raised before a restart stands before the first request is answered."""
        try:
            await self.shadow.resume(self._operator.deployment)
        except CoordinatorError as error:  # such as a full disk; [log] on_failure decides about requests
            log.warning("the shadow router could not be restored: %s", error)
        await self.refresh()
        self._ticking = asyncio.create_task(self._tick())

    async def stop(self) -> None:
        """Examine what is left, and save the state."""
        if self._ticking is not None:
            self._ticking.cancel()
            with suppress(asyncio.CancelledError):
                await self._ticking
        try:
            await self.examine()
            await self.drift.save()
            await self.shadow.save()
        except CoordinatorError as error:
            log.warning("the monitoring state could not be saved: %s", error)

    # ---- while answering ------------------------------------------------------------------------

    def answered(self, outcome: Outcome) -> None:
        """Keep the answers to a request for later."""
        n = len(outcome.ids)
        self._waiting += n
        # Not the whole outcome, which holds the posteriors. A gain per byte is on another scale than the calibration's.
        if self._waiting <= MOST_SCORES and not outcome.deployment.partial:
            whole = outcome.complete  # the scores of samples that lack a party are on another scale
            score, wanted = (
                (outcome.score, outcome.wanted) if whole.all() else (outcome.score[whole], outcome.wanted[whole])
            )
            self._scores.append((outcome.deployment.hash, score, wanted))
        if self.drift.enabled and outcome.deployment.masked is None and self._local_bytes <= MOST_POSTERIOR_BYTES:
            self._local_bytes += outcome.local.nbytes
            self._local.append((outcome.deployment.hash, outcome.local))
        if self.shadow.shadow is not None and self._shadowed + n <= MOST_SHADOWED:
            self._shadowed += n
            self._outcomes.append(outcome)

    # ---- in the background------------------------------------------------------------------------

    async def examine(self) -> None:
        """Examine everything that is new since the last call."""
        async with self.lock:
            await self._follow()
            deployment = self._operator.deployment
            scores, outcomes, posteriors = self._scores, self._outcomes, self._local
            self._scores, self._outcomes, self._local = [], [], []
            self._waiting = self._shadowed = self._local_bytes = 0
            own = [(score, wanted) for identity, score, wanted in scores if identity == deployment.hash]
            score = np.concatenate([np.zeros(0), *(s for s, _ in own)])
            wanted = np.concatenate([np.zeros(0, dtype=bool), *(w for _, w in own)])
            local = [values for identity, values in posteriors if identity == deployment.hash]
            await self.drift.examine(deployment, score, wanted, local)
            await self.shadow.examine(deployment, outcomes)

    async def _follow(self) -> None:
        """Apply what another coordinator of the same log has changed."""
        if self._log.shared and not self._log.error:
            found = await asyncio.to_thread(get_state, self._log.place, (CHANGES,))
            if found.get(CHANGES, 0) != self._operator.changes:
                await self._operator.follow()
                await self.shadow.resume(self._operator.deployment)

    async def refresh(self) -> None:
        """Examine now, for example because the router was switched; errors are logged."""
        try:
            await self.examine()
        except CoordinatorError as error:
            log.warning("monitoring: %s", error)
        except Exception:
            log.exception("monitoring failed")

    def alarms(self, *, named: bool = True) -> list[dict[str, Any]]:
        """Current alarms, the most serious first; unless `named`, without whose labels they were."""
        found = self.drift.alarms
        order = ("parties", "collaboration", "calibration", "scores")
        texts = {name: str(alarm) if named else alarm.text for name, alarm in found.items()}
        return [{"name": n, "since": found[n].since, "text": texts[n]} for n in order if n in found]

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(self._seconds)
            await self.refresh()
