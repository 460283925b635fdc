"""The coordinator without HTTP: parties, batcher, decision log and monitoring."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TypeVar

from gainroute.errors import SettingError
from gainroute.federation.coordinator.batching import Batcher
from gainroute.federation.coordinator.decision_log.retention import Retention
from gainroute.federation.coordinator.decision_log.store import put_state
from gainroute.federation.coordinator.decision_log.writer import DecisionLog
from gainroute.federation.coordinator.deployment import Deployment
from gainroute.federation.coordinator.errors import CoordinatorError, LogFailedError, NotFoundError
from gainroute.federation.coordinator.holder_quotas import HolderQuotas
from gainroute.federation.coordinator.metrics import Metrics
from gainroute.federation.coordinator.monitoring.monitor import Monitor
from gainroute.federation.coordinator.monitoring.statistics import LiveStatistics
from gainroute.federation.coordinator.operator import Operator
from gainroute.federation.coordinator.outcome import Outcome, unlogged
from gainroute.federation.coordinator.parties import PartyLinks
from gainroute.federation.coordinator.settings import CoordinatorSettings, FusionSettings
from gainroute.federation.coordinator.strong_source import StrongSource, load_strong_source
from gainroute.federation.pki.signatures import Trust
from gainroute.federation.tracing import open_tracing, span
from gainroute.federation.transport.base import PartyConnection

__all__ = ["Coordinator"]

T = TypeVar("T")
log = logging.getLogger("gainroute.coordinator")
RETENTION_SECONDS = 600.0
RETRY_SECONDS = 1.0  # interval of health checks while something is wrong


class Coordinator:
    """Answers samples by Algorithm 1 over remote parties, and logs every decision.

    There is one connection per party, in the order of the route table. `certificates` returns days until expiry by
    name. Usable between `start` and `stop`, in one event loop. `start` raises a `HandshakeError` if router, fusion and
    the parties that answer do not fit together; it does not wait for parties that cannot be reached.
    """

    def __init__(
        self,
        settings: CoordinatorSettings,
        connections: Sequence[PartyConnection],
        *,
        load_strong: Callable[[FusionSettings], StrongSource] | None = None,
        certificates: Callable[[], Mapping[str, float]] | None = None,
    ) -> None:
        names = [c.name for c in connections]
        if names != [p.name for p in settings.party]:
            raise SettingError(
                f"the connections are to {names}, the route table has {[p.name for p in settings.party]}"
            )
        self.settings = settings
        self.certificates = certificates
        self.doors: dict[str, Callable[[], bool]] = {}  # front doors beside HTTP: whether each accepts requests
        self.live = LiveStatistics()
        self.metrics = Metrics(self.live)
        self.parties = PartyLinks(connections, settings.rounds)
        self.quotas = HolderQuotas(settings.quota)
        self.tracing = open_tracing(settings.tracing, "gainroute-coordinator")
        self._trust = None if settings.trust is None else Trust(settings.trust.signers)
        self._load_strong = load_strong or partial(load_strong_source, trust=self._trust)
        self._checking: asyncio.Task[None] | None = None
        self._sample_bytes: dict[str, int] = {}
        self.log: DecisionLog
        self.batcher: Batcher
        self.operator: Operator
        self.monitor: Monitor

    # ---- start and stop -------------------------------------------------------------------------

    async def start(self) -> None:
        """Open the log, load the last deployment, do the handshake, and accept requests."""
        self.log = await asyncio.to_thread(DecisionLog, self.settings.log)
        try:
            self.operator = Operator(self.settings, self.parties, self.log, self._load_strong, self._trust)
            absent = await self.parties.handshake(await self.operator.resume())
            for link in self.parties.links.values():
                if link.name not in absent:
                    link.set_state("ok")
            self.batcher = Batcher(
                self.parties, self.operator, self.settings.batching, self.settings.rounds, self.quotas, self.metrics,
                self.log,
            )  # fmt: skip
            if self.settings.controller is not None:
                self.log.alongside = self.operator.save_control
            # Each coordinator monitors its own answers: together they raise a false alarm as seldom as one.
            share = self.settings.drift.false_alarm / self.settings.log.sharing
            drift = replace(self.settings.drift, false_alarm=share)
            self.monitor = Monitor(drift, self.log, self.operator, self.parties)
            await self.monitor.start()
        except BaseException:
            await self.parties.close()
            await asyncio.to_thread(self.log.close)
            raise
        if not self.settings.log.posteriors:
            log.info(
                "posteriors are not stored: explanations, recalibration, the comparison with a shadow router and the "
                "calibration alarm need [log] posteriors = true"
            )
        for name, error in absent.items():
            log.warning("party %s does not answer yet: %s", name, error, extra={"party": name})
        self._checking = asyncio.create_task(self._check())

    async def stop(self) -> None:
        """Answer the requests in flight, then close everything."""
        if not await self.batcher.drain(self.settings.server.drain_seconds):
            log.error("%d samples were not answered in time and are dropped", self.batcher.in_flight)
        if self._checking is not None:
            self._checking.cancel()
            with suppress(asyncio.CancelledError):
                await self._checking
        await self.monitor.stop()
        self.batcher.close()
        await self.parties.close()
        await asyncio.to_thread(self.log.close)
        if self.tracing is not None:
            await asyncio.to_thread(self.tracing.close)

    # ---- answering ------------------------------------------------------------------------------

    async def infer(
        self, ids: Sequence[str], request_id: str, encode: Callable[[Outcome, range], T], holder: str | None = None
    ) -> T:
        """Answer samples; returns once the decisions are durable or, if the policy allows it, marked as unlogged.

        `encode` makes the reply from the outcome and the numbers of its decisions; it runs while the log is
        written. The decisions belong to `holder`.
        """
        began = time.perf_counter()
        n = len(ids)
        self.quotas.charge(holder, n)
        self.batcher.admit(n, holder)
        try:
            outcome = await self.batcher.answer(ids, request_id, holder)
            numbers = self.log.numbers(n)
            lone = self.batcher.in_flight == n
            on_disk = self.log.append(outcome, numbers, request_id, time.perf_counter() - began, holder, lone=lone)
            try:
                reply = encode(outcome, numbers)
            finally:
                logged = await self._logged(on_disk)
            if not logged:
                outcome = replace(outcome, route=[unlogged(route) for route in outcome.route])
                reply = encode(outcome, numbers)
            # Counted once the reply is on its way: nothing is awaited between here and the socket.
            asyncio.get_running_loop().call_soon(self._count, outcome, time.perf_counter() - began)
            return reply
        finally:
            self.batcher.release(n, holder)

    async def _logged(self, on_disk: Awaitable[None]) -> bool:
        """Wait for the log; False if it failed and the policy is to answer all the same."""
        try:
            with span("log commit"):
                await on_disk
        except LogFailedError:
            self.metrics.unlogged()
            if self.settings.log.on_failure == "refuse":
                raise
            return False
        return True

    def _count(self, outcome: Outcome, seconds: float) -> None:
        self.metrics.answered(outcome, seconds, self.sample_bytes(outcome.deployment))
        self.monitor.answered(outcome)

    @property
    def deployment(self) -> Deployment:
        """What answers now."""
        return self.operator.deployment

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes in column order."""
        return self.parties.class_names(self.deployment)

    def check_model(self, name: str, version: str | None = None) -> None:
        """Refuse a request for another model, or for a version that is not in use."""
        model, used = self.settings.server.model, self.deployment.name
        if name != model:
            raise NotFoundError(f"there is no model {name[:60]!r}; this coordinator serves {model!r}")
        if version is not None and version != used:
            raise NotFoundError(
                f"version {version[:60]!r} is not in use; {used!r} is: leave the version out to follow it"
            )

    def not_ready(self) -> str:
        """Why requests would be refused now; empty if they would be answered."""
        if self.batcher.draining:
            return "the coordinator is stopping"
        closed = [name for name, is_open in self.doors.items() if not is_open()]
        if closed:
            return f"the server for {' and '.join(closed)} does not accept requests"
        if self.operator.behind:
            return f"a change by another coordinator could not be applied ({self.operator.behind})"
        if self.log.error and self.settings.log.on_failure == "refuse":
            return f"the decision log cannot be written ({self.log.error})"
        down = [link for link in self.parties.links.values() if link.state != "ok"]
        if down and (self.settings.rounds.on_missing_party == "refuse" or len(down) == len(self.parties.links)):
            return "; ".join(f"party {link.name!r} is {link.state}: {link.error or 'no answer yet'}" for link in down)
        return ""

    def sample_bytes(self, deployment: Deployment) -> int | None:
        """Payload of one sample in Round 2; None until every party has described itself."""
        if deployment.hash not in self._sample_bytes:
            known = self.operator.sample_bytes(deployment)
            if known is None:
                return None
            self._sample_bytes = {deployment.hash: known}
        return self._sample_bytes[deployment.hash]

    # ---- health --------------------------------------------------------------------------------

    async def _check(self) -> None:
        cleaned, retention = 0.0, Retention(self.log, self.settings.log.retention_days)
        while True:
            wrong = any(link.state != "ok" for link in self.parties.links.values()) or bool(self.log.error)
            seconds = self.settings.rounds.health_seconds
            await asyncio.sleep(min(seconds, RETRY_SECONDS) if wrong else seconds)
            try:
                for probe in await self.parties.check_health(self.deployment):
                    without = [name for name in self.parties.names if name != probe.party or not probe.answered]
                    self.log.asked(probe.id, probe.round, 1, without)
                if self.log.slot != self.log.adopted:
                    await self.operator.adopt()
                if self.log.error:  # requests are refused, so that nothing else tries to write
                    await self.log.write(lambda c: put_state(c, "probe", time.time()))
                if time.monotonic() - cleaned > RETENTION_SECONDS:
                    cleaned = time.monotonic()
                    await retention.run()
            except CoordinatorError as error:
                log.warning("health check: %s", error)
            except Exception:
                log.exception("a health check failed")
