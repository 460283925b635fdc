"""The coordinator itself, without HTTP: parties, engine, log and what watches over them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TypeVar

from gainroute.errors import SettingError
from gainroute.federation.coordinator.batching import Engine
from gainroute.federation.coordinator.decision_log.rows import Entry
from gainroute.federation.coordinator.decision_log.store import delete_before, put_state
from gainroute.federation.coordinator.decision_log.writer import DecisionLog
from gainroute.federation.coordinator.deployment import Version
from gainroute.federation.coordinator.errors import CoordinatorError, LogFailedError
from gainroute.federation.coordinator.fusion import Fusion, load_fusion_source
from gainroute.federation.coordinator.handshake import class_names
from gainroute.federation.coordinator.metrics import Metrics
from gainroute.federation.coordinator.monitoring.statistics import Live
from gainroute.federation.coordinator.monitoring.watcher import Watcher
from gainroute.federation.coordinator.operator import Operator
from gainroute.federation.coordinator.outcome import Outcome, unlogged
from gainroute.federation.coordinator.parties import Parties
from gainroute.federation.coordinator.settings import CoordinatorSettings, FusionSettings
from gainroute.federation.transport.base import PartyConnection

__all__ = ["Answered", "Coordinator"]

T = TypeVar("T")
log = logging.getLogger("gainroute.coordinator")
RETENTION_SECONDS = 600.0
IMPATIENT_SECONDS = 1.0


@dataclass(frozen=True, eq=False)
class Answered:
    """The answers to a request, and the number of its first decision."""

    outcome: Outcome
    first: int


class Coordinator:
    """Answers samples by Algorithm 1 over remote parties, and keeps book.

    Parameters
    ----------
    settings
        What it is told.
    connections
        One a party, in the order of the route table, named as there.
    load_fusion
        Builds the strong route's end from its settings.
    certificates
        Days to expiry by name, for metrics and dashboard.

    Notes
    -----
    Between `start` and `stop`, both within one event loop. `start` raises a `HandshakeError` if router, fusion and
    the parties that answer do not fit together; a party that cannot be reached is waited for.
    """

    def __init__(
        self,
        settings: CoordinatorSettings,
        connections: Sequence[PartyConnection],
        *,
        load_fusion: Callable[[FusionSettings], Fusion] = load_fusion_source,
        certificates: Callable[[], Mapping[str, float]] | None = None,
    ) -> None:
        names = [c.name for c in connections]
        if names != [p.name for p in settings.party]:
            raise SettingError(f"connections lead to {names}, the route table has {[p.name for p in settings.party]}")
        self.settings = settings
        self.certificates = certificates
        self.live = Live()
        self.metrics = Metrics(self.live)
        self.parties = Parties(connections, settings.rounds.one_seconds)
        self._load_fusion = load_fusion
        self._watching: asyncio.Task[None] | None = None
        self._sample_bytes: dict[str, int] = {}
        self.log: DecisionLog
        self.engine: Engine
        self.operator: Operator
        self.watcher: Watcher

    # ---- from start to stop ---------------------------------------------------------------------

    async def start(self) -> None:
        """Open the log, load what was last in use, shake hands, and take requests."""
        self.log = await asyncio.to_thread(DecisionLog, self.settings.log)
        try:
            self.operator = Operator(self.settings, self.parties, self.log, self._load_fusion)
            version = await self.operator.resume()
            absent = await self.parties.shake(version)
            for link in self.parties.links.values():
                if link.name not in absent:
                    link.is_now("ok")
            self.engine = Engine(self.parties, version, self.settings.batching, self.settings.rounds, self.metrics)
            self.operator.engine = self.engine
            if self.settings.controller is not None:
                self.log.alongside = self.operator.save_control
            self.watcher = Watcher(self.settings.drift, self.log, self.operator, self.parties)
            await self.watcher.start()
        except BaseException:
            await self.parties.close()
            await asyncio.to_thread(self.log.close)
            raise
        for name, error in absent.items():
            log.warning("party %s is waited for: %s", name, error, extra={"party": name})
        self._watching = asyncio.create_task(self._watch())

    async def stop(self) -> None:
        """Answer what was taken on, then let go of everything."""
        if not await self.engine.drain(self.settings.server.drain_seconds):
            log.error("%d samples were not answered in time and are given up", self.engine.taken)
        if self._watching is not None:
            self._watching.cancel()
            with suppress(asyncio.CancelledError):
                await self._watching
        await self.watcher.stop()
        self.engine.close()
        await self.parties.close()
        await asyncio.to_thread(self.log.close)

    # ---- answering ------------------------------------------------------------------------------

    async def infer(self, ids: Sequence[str], request_id: str, encode: Callable[[Answered], T]) -> T:
        """Answer samples; returns once the decisions are on disk, or, if the policy says so, marked as not.

        Parameters
        ----------
        ids, request_id
            What is asked, and how the logs call it.
        encode
            Makes the reply of the answers; it works while the disk does.
        """
        began = time.perf_counter()
        n = len(ids)
        self.engine.take_on(n)
        try:
            outcome = await self.engine.answer(ids, request_id)
            first = self.log.numbers(n)
            entry = Entry(outcome, first, time.time(), request_id, time.perf_counter() - began)
            on_disk = self.log.append(entry, may_wait=self.engine.taken == n)
            try:
                if not on_disk.done():
                    await asyncio.sleep(0)  # the writer's turn
                reply = encode(Answered(outcome, first))
            finally:
                outcome, logged = await self._logged(outcome, on_disk)
            if not logged:
                reply = encode(Answered(outcome, first))
            seconds, size = time.perf_counter() - began, self.sample_bytes(outcome.version)
            # Counted once the reply is on its way: nothing is awaited between here and the socket.
            asyncio.get_running_loop().call_soon(self._answered, outcome, seconds, size)
            return reply
        finally:
            self.engine.let_go(n)

    def _answered(self, outcome: Outcome, seconds: float, sample_bytes: int | None) -> None:
        self.metrics.answered(outcome, seconds, sample_bytes)
        self.watcher.answered(outcome)

    async def _logged(self, outcome: Outcome, on_disk: Awaitable[None]) -> tuple[Outcome, bool]:
        """Wait for the disk; where it fails, refuse, or mark the answers, as the policy says."""
        try:
            await on_disk
        except LogFailedError:
            self.metrics.unlogged()
            if self.settings.log.on_failure == "refuse":
                raise
            return replace(outcome, route=[unlogged(route) for route in outcome.route]), False
        return outcome, True

    @property
    def version(self) -> Version:
        """What answers now."""
        return self.engine.version

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes in column order."""
        return class_names(self.version, self.parties.descriptions())

    def not_ready(self) -> str:
        """Why a request would be refused now; empty when it would not."""
        if self.engine.draining:
            return "the coordinator is stopping"
        if self.log.error and self.settings.log.on_failure == "refuse":
            return f"the decision log cannot be written ({self.log.error})"
        down = [link for link in self.parties.links.values() if link.state != "ok"]
        if down and (self.settings.rounds.on_missing_party == "refuse" or len(down) == len(self.parties.links)):
            return "; ".join(f"party {link.name!r} is {link.state}: {link.error or 'no answer yet'}" for link in down)
        return ""

    def sample_bytes(self, version: Version) -> int | None:
        """Payload of one sample in Round 2; None while a party has not told its dimension."""
        known = self._sample_bytes.get(version.hash)
        if known is None:
            known = self.operator.sample_bytes(version)
            if known is None:
                return None
            self._sample_bytes = {version.hash: known}
        return known

    # ---- watching -------------------------------------------------------------------------------

    async def _watch(self) -> None:
        cleaned = 0.0
        while True:
            restless = any(link.state != "ok" for link in self.parties.links.values()) or bool(self.log.error)
            seconds = self.settings.rounds.health_seconds
            await asyncio.sleep(min(seconds, IMPATIENT_SECONDS) if restless else seconds)
            try:
                await self.parties.watch(self.version)
                if self.log.error:  # nobody writes while the door is shut: see whether it can be opened again
                    await self.log.write(lambda c: put_state(c, "probe", time.time()))
                if time.monotonic() - cleaned > RETENTION_SECONDS:
                    cleaned = time.monotonic()
                    await self._forget()
            except CoordinatorError as error:
                log.warning("watching: %s", error)
            except Exception:
                log.exception("watching failed; it goes on")

    async def _forget(self) -> None:
        """Delete what is older than the log shall remember, a chunk at a time so that answers get between."""
        days = self.settings.log.retention_days
        if not days:
            return
        moment, total = time.time() - 86400 * days, 0
        while deleted := await self.log.write(lambda c: delete_before(c, moment)):
            total += deleted
        if total:
            log.info("%d decisions older than %g days were deleted", total, days)
