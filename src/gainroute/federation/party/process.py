"""The party process: it runs beside the party's data and answers the coordinators named in its settings."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gainroute.errors import SettingError
from gainroute.federation.event_loop import run
from gainroute.federation.logging import log_to_stderr
from gainroute.federation.party.service import PartyService
from gainroute.federation.party.settings import PartySettings
from gainroute.federation.party.sources import ModelSource, open_source
from gainroute.federation.party.views import open_views
from gainroute.federation.pki.access import Access, DenyList
from gainroute.federation.pki.certificates import Identity
from gainroute.federation.pki.credentials import ReloadingCertificate
from gainroute.federation.pki.signatures import Trust
from gainroute.federation.transport.grpc_server import GrpcServer, ServerOptions

if TYPE_CHECKING:
    from gainroute.federation.formation.training_service import TrainingService

__all__ = ["PartyNode", "run_party"]

log = logging.getLogger(__name__)

WARN_DAYS = 14
DAY = 86_400.0
UNUSED_SECONDS = 10.0  # how often connections without a call are recorded


class PartyNode:
    """A party that can be started and stopped inside a running event loop.

    Parameters
    ----------
    settings
        Settings of the party.
    source
        Used instead of the one that `settings.source` selects.
    """

    def __init__(self, settings: PartySettings, *, source: ModelSource | None = None) -> None:
        self.settings = settings
        self._certificate = ReloadingCertificate(settings.tls)
        _check_own(self._certificate, settings.name)
        access = Access(settings.coordinators, None if settings.deny_list is None else DenyList(settings.deny_list))
        self._views = open_views(settings.views)
        trust = None if settings.trust is None else Trust(settings.trust.signers)
        trains = bool(settings.training.coordinators)
        if trains and settings.source.run is not None:
            settings.source.run.mkdir(parents=True, exist_ok=True)
        source = source or open_source(settings.source, settings.name, self._views, settings.threads, trust)
        self._service = PartyService(settings, source, self._certificate)
        # A message is slightly longer than the numbers or ids in it.
        options = ServerOptions(
            max_message_bytes=settings.max_message_bytes + (64 << 10),
            max_in_flight=settings.max_in_flight,
            reflection=settings.reflection,
        )
        self._training: TrainingService | None = None
        if trains:
            from gainroute.federation.formation.training_service import TrainingService

            service = self._service
            self._training = TrainingService(settings, access, service.audit, service.rescan, service.agreement)
        self._server = GrpcServer(self._service, access, self._certificate, options, self._training)
        self._keeping: list[asyncio.Task[None]] = []
        self.address = ""

    async def start(self) -> str:
        """Listen, and return the address, ``host:port``."""
        try:
            port = await self._server.start(self.settings.listen)
        except BaseException:
            self.close()
            raise
        self.address = f"{self.settings.listen.rpartition(':')[0]}:{port}"
        self._keeping = [asyncio.ensure_future(self._keep_scanning()), asyncio.ensure_future(self._keep_recording())]
        return self.address

    def summary(self) -> dict[str, Any]:
        """Return what is served, for `party --check`."""
        versions = list(self._service.versions.values())
        return {
            "name": self.settings.name,
            "coordinators": list(self.settings.coordinators),
            "classes": list(versions[0].classes) if versions else [],
            "models": [{"hash": version.model.hash, "dimension": version.model.dimension} for version in versions],
            "codecs": list(self.settings.codecs),
            "round1": self.settings.privacy.round1,
            "certificate_days_left": round(self._certificate.info.days_left(), 1),
        }

    async def rescan(self) -> None:
        """Look for new model versions now."""
        await self._service.rescan()

    async def _keep_scanning(self) -> None:
        loop = asyncio.get_running_loop()
        warned = -DAY
        while True:
            left = self._certificate.info.days_left()
            if left < WARN_DAYS and loop.time() - warned >= DAY:
                log.warning("the party's certificate expires soon", extra={"days": round(left, 1)})
                warned = loop.time()
            await asyncio.sleep(self.settings.rescan_seconds)
            await self._service.rescan()

    async def _keep_recording(self) -> None:
        while True:
            await asyncio.sleep(UNUSED_SECONDS)
            self._service.record_unused(UNUSED_SECONDS)

    async def stop(self, grace: float | None = None) -> None:
        """Finish the requests in flight, then stop."""
        for task in self._keeping:
            task.cancel()
        await asyncio.gather(*self._keeping, return_exceptions=True)
        await self._server.stop(self.settings.drain_seconds if grace is None else grace)
        self.close()

    def close(self) -> None:
        """Close what was opened to serve; `stop` does it too."""
        if self._training is not None:
            self._training.close()
        self._service.close()
        if self._views is not None:
            self._views.close()


def _check_own(certificate: ReloadingCertificate, name: str) -> None:
    info, path = certificate.info, certificate.files.certificate
    if info.identity != Identity("party", name):
        whose = "no one" if info.identity is None else f"{info.identity.role} {info.identity.name!r}"
        raise SettingError(f"{path} is the certificate of {whose}, but this is party {name!r}: name the right file")
    if info.days_left() <= 0:
        raise SettingError(f"{path} expired on {info.not_after:%Y-%m-%d}: renew it with `gainroute certs`")


def run_party(settings: PartySettings, ready: Callable[[dict[str, Any]], None] | None = None) -> None:
    """Run a party until SIGTERM or Ctrl-C, and finish the requests in flight before stopping.

    SIGHUP makes it look for new model versions. Logs go to stderr as JSON lines.

    Parameters
    ----------
    settings
        Settings of the party.
    ready
        Called with name, process id and address once the party listens.
    """
    log_to_stderr(settings.log_level)
    run(_serve(settings, ready))


async def _serve(settings: PartySettings, ready: Callable[[dict[str, Any]], None] | None) -> None:
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    node = PartyNode(settings)
    _limit_threads(settings.threads)
    rescans: set[asyncio.Task[None]] = set()

    def rescan() -> None:
        task = asyncio.ensure_future(node.rescan())
        rescans.add(task)
        task.add_done_callback(rescans.discard)

    for name, handler in (("SIGTERM", stopping.set), ("SIGINT", stopping.set), ("SIGHUP", rescan)):
        with contextlib.suppress(AttributeError, NotImplementedError):  # Windows has fewer signals
            loop.add_signal_handler(getattr(signal, name), handler)
    started = {"name": settings.name, "pid": os.getpid(), "address": await node.start()}
    log.info("ready", extra={"party": settings.name, "pid": started["pid"], "address": started["address"]})
    if ready is not None:
        ready(started)
    await stopping.wait()
    log.info("draining")
    await node.stop()
    log.info("stopped")


def _limit_threads(threads: int) -> None:
    """Limit computing threads: processes on one machine slow each other down if each uses all cores."""
    if not threads:
        return
    from threadpoolctl import threadpool_limits

    threadpool_limits(threads)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(threads)
