"""A coordinator as a process: connections, sockets, signals."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import ssl
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import uvicorn
from threadpoolctl import threadpool_limits

from gainroute._util.files import file_state
from gainroute.errors import DataError, SettingError
from gainroute.federation.coordinator.app import create_app
from gainroute.federation.coordinator.auth import Authenticator
from gainroute.federation.coordinator.connections import BoundedProtocol, Listener, raise_descriptor_limit
from gainroute.federation.coordinator.coordinator import Coordinator
from gainroute.federation.coordinator.settings import CoordinatorSettings, CoordinatorTls, PartyEndpoint
from gainroute.federation.event_loop import run
from gainroute.federation.transport.base import PartyConnection, connect

if TYPE_CHECKING:
    from gainroute.federation.coordinator.grpc_door.server import GrpcDoor

__all__ = ["ConnectionFactory", "ServerCertificate", "certificate_days", "connect_party", "run_coordinator", "serve"]

log = logging.getLogger("gainroute.coordinator")

ConnectionFactory = Callable[[PartyEndpoint, CoordinatorTls], PartyConnection]


def connect_party(party: PartyEndpoint, tls: CoordinatorTls) -> PartyConnection:
    """Connect to a party by the transport that its address names; gRPC with mutual TLS by default."""
    from gainroute.federation.pki.certificates import CertificateFiles

    files = None
    if tls.ca is not None and tls.certificate is not None and tls.key is not None:
        files = CertificateFiles(tls.ca, tls.certificate, tls.key)
    return connect(party.name, party.address, files)


def run_coordinator(
    settings: CoordinatorSettings,
    *,
    connect: ConnectionFactory = connect_party,
    on_ready: Callable[[str], None] | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT, then drain; `on_ready` is called with the URL once requests are accepted."""
    raise_descriptor_limit()
    # Batches are small: more BLAS threads would only compete with each other and with the event loop.
    with threadpool_limits(1, user_api="blas"):
        run(serve(settings, connect=connect, on_ready=on_ready))


async def serve(
    settings: CoordinatorSettings,
    *,
    connect: ConnectionFactory = connect_party,
    on_ready: Callable[[str], None] | None = None,
) -> None:
    """`run_coordinator` in a running event loop."""
    listening = _bind(settings)  # first: an address in use should fail before anything is loaded
    grpc_door = None
    try:
        if settings.server.grpc_port is not None:
            from gainroute.federation.coordinator.grpc_door.server import GrpcDoor

            grpc_door = GrpcDoor(settings.server)
        connections = [connect(party, settings.tls) for party in settings.party]
        coordinator = Coordinator(settings, connections, certificates=lambda: certificate_days(settings, connections))
        await coordinator.start()
        try:
            address = _address(settings, listening)
            server = _Server(settings, coordinator, lambda: on_ready and on_ready(address), grpc_door)
            loop = asyncio.get_running_loop()
            for number in (signal.SIGTERM, signal.SIGINT):
                with contextlib.suppress(NotImplementedError, ValueError, RuntimeError):  # not in the main thread
                    loop.add_signal_handler(number, server.ask_to_stop, number)
            try:
                await server.serve(sockets=[listening])
            finally:
                for listener in server.servers:
                    listener.close()
        finally:
            await coordinator.stop()
    finally:
        if grpc_door is not None:
            await grpc_door.stop(None)
        listening.close()


class _Server(uvicorn.Server):
    """Uvicorn without its signal handling, which would raise signals again before the log is closed.

    The gRPC front door, if there is one, starts and stops with it.
    """

    def __init__(
        self,
        settings: CoordinatorSettings,
        coordinator: Coordinator,
        ready: Callable[[], object],
        grpc_door: GrpcDoor | None,
    ) -> None:
        door = settings.server
        authenticator = Authenticator(settings)
        app = create_app(coordinator, manage=False, authenticator=authenticator)
        config = uvicorn.Config(
            app, lifespan="off", log_config=None, access_log=False, ws="none",
            server_header=False, proxy_headers=False, timeout_keep_alive=door.idle_seconds,  # type: ignore[arg-type]
            timeout_graceful_shutdown=max(1, round(door.drain_seconds)),
            ssl_certfile=door.certificate, ssl_keyfile=door.key,
        )  # fmt: skip
        super().__init__(config)
        self.servers = []
        self._ready = ready
        self._door = door
        self._certificate: ServerCertificate | None = None
        self._grpc_door = grpc_door
        self._coordinator, self._authenticator = coordinator, authenticator
        self._stopping: asyncio.Future[None] | None = None

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and report once requests are accepted."""
        await super().startup([])  # no socket: the listener accepts connections itself
        protocol = partial(BoundedProtocol, config=self.config, server_state=self.server_state, app_state={})
        self.servers = [Listener(s, self._door, protocol, self.config.ssl) for s in sockets or ()]  # type: ignore[misc]
        if self.config.ssl is not None and self._door.certificate is not None and self._door.key is not None:
            self._certificate = ServerCertificate(self.config.ssl, self._door.certificate, self._door.key)
        if self._grpc_door is not None:
            await self._grpc_door.start(self._coordinator, self._authenticator)
        self._ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Finish requests in flight at both front doors."""
        doors = [super().shutdown(sockets)]
        if self._grpc_door is not None:
            doors.append(self._grpc_door.stop(self._door.drain_seconds))
        await asyncio.gather(*doors)

    async def on_tick(self, counter: int) -> bool:
        """Check once a second whether the certificate was replaced."""
        changed = counter % 10 == 0 and self._certificate is not None and self._certificate.reload()
        if changed and self._grpc_door is not None:
            self._grpc_door.reload()
        return await super().on_tick(counter)

    def ask_to_stop(self, number: int) -> None:
        """Accept no new connections and finish requests in flight; a second signal stops at once."""
        log.info("signal %d: draining", number)
        self.force_exit = self.should_exit
        self.should_exit = True
        if self.force_exit and self._grpc_door is not None:
            self._stopping = asyncio.ensure_future(self._grpc_door.stop(None))


class ServerCertificate:
    """Reloads changed PEM files into the SSL context in use, for new connections, without a restart."""

    def __init__(self, context: ssl.SSLContext, certificate: Path, key: Path) -> None:
        self._context, self._certificate, self._key = context, certificate, key
        self._state = file_state(certificate, key)

    def reload(self) -> bool:
        """Reload changed files; returns whether a new certificate is in use.

        A certificate that does not match its key, as during a rotation, is not loaded: the earlier one stays.
        """
        state = file_state(self._certificate, self._key)
        if state == self._state:
            return False
        self._state = state
        try:
            # Tried separately first: a mismatch would leave the context in use half changed.
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self._certificate, self._key)
            self._context.load_cert_chain(self._certificate, self._key)
        except (OSError, ssl.SSLError) as error:
            log.warning("the server's new certificate was not loaded, the earlier one stays: %s", error)
            return False
        log.info("the server's new certificate was loaded")
        return True


def _bind(settings: CoordinatorSettings) -> socket.socket:
    host, port = settings.server.host, settings.server.port
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # The protocol is named: asyncio sets TCP_NODELAY only if it finds TCP there; clients would wait 40 ms otherwise.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host.strip("[]"), port))
    except OSError as error:
        listening.close()
        raise SettingError(f"cannot listen on {host}:{port} ({error.strerror}); choose another host or port") from None
    return listening


def _address(settings: CoordinatorSettings, listening: socket.socket) -> str:
    host = settings.server.host
    scheme = "http" if settings.server.certificate is None else "https"
    shown = f"[{host}]" if ":" in host and not host.startswith("[") else host
    return f"{scheme}://{shown}:{listening.getsockname()[1]}"


def certificate_days(settings: CoordinatorSettings, connections: Sequence[PartyConnection]) -> Mapping[str, float]:
    """Days until each certificate expires: the coordinator's, the HTTP server's, and the parties'."""
    from gainroute.federation.pki.certificates import read_certificate

    found: dict[str, float] = {}
    for name, path in (("coordinator", settings.tls.certificate), ("front door", settings.server.certificate)):
        if path is not None:
            with contextlib.suppress(OSError, DataError):  # it may be being replaced
                found[name] = read_certificate(path.read_bytes(), str(path)).days_left()
    for connection in connections:
        end = getattr(connection, "certificate_expires", None)
        if isinstance(end, datetime):
            found[f"party {connection.name}"] = (end - datetime.now(timezone.utc)) / timedelta(days=1)
    return found
