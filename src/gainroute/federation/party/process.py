"""The party process: beside its own data, answering the coordinators it names."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from gainroute.errors import SettingError
from gainroute.federation.event_loop import run
from gainroute.federation.logging import log_to_stderr
from gainroute.federation.party.audit import AuditLog
from gainroute.federation.party.quota import Quota
from gainroute.federation.party.service import Answering
from gainroute.federation.party.settings import PartySettings
from gainroute.federation.party.sources import Source, open_source
from gainroute.federation.party.views import open_views
from gainroute.federation.pki.access import Access, DenyList
from gainroute.federation.pki.certificates import CertificateFiles, Identity
from gainroute.federation.pki.credentials import ReloadingCertificate
from gainroute.federation.transport.grpc_server import GrpcServer, ServerOptions

__all__ = ["PartyNode", "run_party"]

log = logging.getLogger(__name__)

WARN_DAYS = 14
DAY = 86_400.0


class PartyNode:
    """A party that can be started and stopped inside a running event loop.

    Parameters
    ----------
    settings
        All of it.
    source
        Instead of what `settings.source` names.
    """

    def __init__(self, settings: PartySettings, *, source: Source | None = None) -> None:
        self.settings = settings
        files = CertificateFiles(settings.tls.ca, settings.tls.certificate, settings.tls.key)
        self._certificate = ReloadingCertificate(files)
        _check_own(self._certificate, settings.name)
        access = Access(settings.coordinators, None if settings.deny_list is None else DenyList(settings.deny_list))
        audit = settings.audit
        log_file = AuditLog(audit.path, max_bytes=audit.max_bytes, keep=audit.keep, sync=audit.sync)
        self._views = views = open_views(settings.views)
        self._answering = Answering(
            settings.name,
            source or open_source(settings.source, settings.name, views),
            self._certificate,
            quota=Quota(settings.quota.samples_per_minute, settings.quota.embeddings_per_minute),
            audit=log_file,
            codecs=settings.codecs,
            workers=settings.workers,
            max_samples=settings.max_samples,
            max_message_bytes=settings.max_message_bytes,
        )
        # A message is a little longer than the numbers or ids in it.
        options = ServerOptions(
            max_message_bytes=settings.max_message_bytes + (64 << 10),
            max_in_flight=settings.max_in_flight,
            reflection=settings.reflection,
        )
        self._server = GrpcServer(self._answering, access, self._certificate, options)
        self._rescanning: asyncio.Task[None] | None = None
        self.address = ""

    async def start(self) -> str:
        """Listen, and tell where: ``host:port``."""
        port = await self._server.start(self.settings.listen)
        self.address = f"{self.settings.listen.rpartition(':')[0]}:{port}"
        self._rescanning = asyncio.ensure_future(self._keep_looking())
        return self.address

    def summary(self) -> dict[str, Any]:
        """What is served, for `party --check`."""
        versions = list(self._answering.versions.values())
        return {
            "name": self.settings.name,
            "coordinators": list(self.settings.coordinators),
            "classes": list(versions[0].classes),
            "models": [{"hash": version.model.hash, "dimension": version.model.dimension} for version in versions],
            "codecs": list(self.settings.codecs),
            "certificate_days_left": round(self._certificate.info.days_left(), 1),
        }

    async def rescan(self) -> None:
        """Look for new model versions now."""
        await self._answering.rescan()

    async def _keep_looking(self) -> None:
        loop = asyncio.get_running_loop()
        warned = -DAY
        while True:
            left = self._certificate.info.days_left()
            if left < WARN_DAYS and loop.time() - warned >= DAY:
                log.warning("the party's certificate ends soon", extra={"days": round(left, 1)})
                warned = loop.time()
            await asyncio.sleep(self.settings.rescan_seconds)
            await self._answering.rescan()

    async def stop(self, grace: float | None = None) -> None:
        """Finish what is in flight, then end."""
        if self._rescanning is not None:
            self._rescanning.cancel()
            await asyncio.gather(self._rescanning, return_exceptions=True)
        await self._server.stop(self.settings.drain_seconds if grace is None else grace)
        self._answering.close()
        if self._views is not None:
            self._views.close()


def _check_own(certificate: ReloadingCertificate, name: str) -> None:
    info, path = certificate.info, certificate.files.certificate
    if info.identity != Identity("party", name):
        whose = "nobody" if info.identity is None else f"{info.identity.role} {info.identity.name!r}"
        raise SettingError(f"{path} is the certificate of {whose}, and this is party {name!r}: name the right file")
    if info.days_left() <= 0:
        raise SettingError(f"{path} has expired on {info.not_after:%Y-%m-%d}: make a new one with `gainroute certs`")


def run_party(settings: PartySettings, ready: Callable[[dict[str, Any]], None] | None = None) -> None:
    """Run a party until SIGTERM or Ctrl-C; what is in flight is finished first.

    SIGHUP looks for new model versions. Logs go to stderr as JSON lines.

    Parameters
    ----------
    settings
        All of it.
    ready
        Called once it listens, with name, process id and address.
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
        with contextlib.suppress(AttributeError, NotImplementedError):  # Windows knows fewer signals
            loop.add_signal_handler(getattr(signal, name), handler)
    told = {"name": settings.name, "pid": os.getpid(), "address": await node.start()}
    log.info("ready", extra={"party": settings.name, "pid": told["pid"], "address": told["address"]})
    if ready is not None:
        ready(told)
    await stopping.wait()
    log.info("draining")
    await node.stop()
    log.info("stopped")


def _limit_threads(threads: int) -> None:
    """Several processes on one machine slow each other down where each computes with all of its cores."""
    if not threads:
        return
    from threadpoolctl import threadpool_limits

    threadpool_limits(threads)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(threads)
