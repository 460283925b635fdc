"""HTTP connections and what each may cost before anyone is authenticated: bytes, seconds, and how many there are.

The listener accepts connections itself, so that they are counted before the TLS handshake. Once a second it looks how
long each connection has waited for its client; nothing is timed per request.
"""

from __future__ import annotations

import asyncio
import http
import json
import logging
import math
import resource
import socket
import ssl
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from gainroute.federation.coordinator.api.http import error_response, network_of
from gainroute.federation.coordinator.auth import ADMIN, PUBLIC
from gainroute.federation.coordinator.errors import BusyError
from gainroute.federation.coordinator.settings import ServerSettings

__all__ = ["RESERVED", "BoundedProtocol", "Listener", "most_connections", "raise_descriptor_limit"]

log = logging.getLogger("gainroute.coordinator")

BACKLOG = 2048  # connections that the kernel holds until they are accepted
PIPELINED = 16  # requests that a client may send before the first is answered
CHUNK_BYTES = 16  # of framing that a chunk of a body may have
LINGER_SECONDS = 2.0  # to read a refusal; a connection closed with unread input would discard it
SWEEP_SECONDS = 1.0
RESERVED = 16  # connections beyond max_connections, for health checks and admin calls only
DESCRIPTORS = 128  # kept free for parties, the decision log and other files
LOGGED = 10  # refusals per sweep that are logged one by one


class _RefusedError(Exception):
    """Stops the parser."""


class BoundedProtocol(HttpToolsProtocol):
    """One connection, whose headers are bounded, and which can tell how long its client may take.

    Trailers, which could be as long as headers, are counted with them and dropped.
    """

    def __init__(self, settings: ServerSettings, lost: Callable[[BoundedProtocol], None], group: str, **uvicorn: Any):
        super().__init__(**uvicorn)
        self.group = group  # of addresses that share a limit
        self.since = self.loop.time()  # when it began to wait for the client
        self.established = False  # after the TLS handshake
        self._settings, self._lost = settings, lost
        self._spare = settings.max_header_bytes  # bytes that may still arrive without belonging to a body
        self._in_body = False
        self._messages = 0
        self._refusal: tuple[int, str, str] | None = None
        self._waited: tuple[int, str] = (0, "header")

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Expect the first request."""
        super().connection_made(transport)
        self.established = True

    # ---- bytes ----------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Parse what has arrived; beyond the limit, refuse the request."""
        if self._refusal is not None:
            return
        self._spare -= len(data)
        super().data_received(data)
        if self._spare < 0 and self._refusal is None:
            self._headers_refused()
            self.send_400_response("")

    def on_url(self, url: bytes) -> None:
        """Collect the URL."""
        self.url += url
        if len(self.url) > self._settings.max_url_bytes:
            raise self._refused(414, "url_too_long", f"the URL has more than {self._settings.max_url_bytes} bytes")

    def on_headers_complete(self) -> None:
        """Start the request, unless it has too many headers."""
        limits, count = self._settings, len(self.headers)
        size = 0 if self._spare >= 0 else len(self.url) + sum(len(n) + len(v) + 4 for n, v in self.headers)
        if size > limits.max_header_bytes:
            raise self._headers_refused()
        if count > limits.max_headers:
            text = f"the request has {count} headers; {limits.max_headers} are allowed"
            raise self._refused(431, "headers_too_large", text)
        if len(self.pipeline) >= PIPELINED:
            raise self._refused(400, "bad_request", f"more than {PIPELINED} requests were sent before the first answer")
        super().on_headers_complete()
        self._in_body = True
        self.headers = []  # trailers follow: they are not headers of the request

    def on_body(self, body: bytes) -> None:
        """Pass a part of the body on."""
        self._spare = min(self._spare + len(body) + CHUNK_BYTES, self._settings.max_header_bytes)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Expect the next request."""
        self._in_body = False
        self._messages += 1
        self._spare = self._settings.max_header_bytes
        super().on_message_complete()

    def _refused(self, status: int, code: str, text: str) -> _RefusedError:
        self._refusal = (status, code, text)
        return _RefusedError(text)

    def _headers_refused(self) -> _RefusedError:
        text = f"the headers have more than {self._settings.max_header_bytes} bytes, which are allowed"
        return self._refused(431, "headers_too_large", text)

    def send_400_response(self, msg: str) -> None:
        """Answer with the refusal, if an answer is due at this point, and close the connection."""
        status, code, text = self._refusal = self._refusal or (400, "bad_request", msg)
        cycle = self.cycle
        due = not cycle.response_started if self._in_body else cycle is None or cycle.response_complete
        if not due or self.pipeline or self.transport.is_closing():
            self.transport.abort()
            return
        self.transport.write(_reply(status, code, text))
        if self._in_body:  # the app waits for the rest
            cycle.disconnected = True
            cycle.message_event.set()
        if self.transport.can_write_eof():
            self.transport.write_eof()

    # ---- seconds --------------------------------------------------------------------------------

    def waits_for(self) -> str:
        """What the client is expected to do; empty while its request is answered."""
        if not self.established:
            return "handshake"
        if self._refusal is not None:
            return "refusal"
        if self.transport.is_closing() or self.flow.write_paused:
            return "response"
        if self._in_body:
            return "body"
        if self.cycle is not None and not self.cycle.response_complete:
            return ""
        return "header" if self.cycle is None or self._spare < self._settings.max_header_bytes else "idle"

    def check(self, now: float) -> None:
        """Close the connection if the client has taken too long."""
        waited = (self._messages, self.waits_for())
        if waited != self._waited:
            self._waited, self.since = waited, now
        elif now - self.since > self._seconds(what := waited[1]):
            if what == "body" or (what == "header" and self._spare < self._settings.max_header_bytes):
                self._refused(408, "timeout", f"the {what} did not arrive within {self._seconds(what):g} s")
                self.send_400_response("")
            else:
                self.transport.abort()

    def _seconds(self, what: str) -> float:
        limits = self._settings  # uvicorn closes idle connections itself
        return {"refusal": LINGER_SECONDS, "response": limits.body_seconds, "body": limits.body_seconds,
                "header": limits.header_seconds}.get(what, math.inf)  # fmt: skip

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the listener."""
        super().connection_lost(exc)
        self._lost(self)


class Listener:
    """Accepts connections within the limits; takes the place of asyncio's server.

    With `max_connections` open, a new one takes the place of the one that has waited longest for its client, from the
    address with most of them. If all of them are being answered, a few more are accepted for health checks and admin
    calls only.
    """

    def __init__(
        self,
        listening: socket.socket,
        settings: ServerSettings,
        protocol: Callable[..., BoundedProtocol],
        tls: ssl.SSLContext | None,
    ) -> None:
        self._socket, self._settings, self._make, self._tls = listening, settings, protocol, tls
        self._loop = asyncio.get_running_loop()
        self._open: dict[BoundedProtocol, asyncio.Task[None]] = {}
        self._count: Counter[str] = Counter()
        self._refused = 0  # since the last sweep
        self._most = most_connections(settings)
        self._interval = min(SWEEP_SECONDS, settings.header_seconds / 2, settings.body_seconds / 2)
        listening.setblocking(False)
        listening.listen(BACKLOG)
        self._closed = False
        self._listen()
        self._sweep()

    # ---- what uvicorn asks of a server -----------------------------------------------------------

    def close(self) -> None:
        """Accept no more connections."""
        if not self._closed:
            self._loop.remove_reader(self._socket)
        self._closed = True

    async def wait_closed(self) -> None:
        """Nothing to wait for."""

    # ---- accepting -------------------------------------------------------------------------------

    def _listen(self) -> None:
        if not self._closed:
            self._loop.add_reader(self._socket, self._accept)

    def _accept(self) -> None:
        for _ in range(BACKLOG):
            try:
                connection, address = self._socket.accept()
            except (BlockingIOError, InterruptedError):
                return
            except ConnectionAbortedError:
                continue
            except OSError as error:  # out of descriptors or memory
                log.error("connections cannot be accepted (%s); one that waits is closed", error)  # noqa: TRY400
                self._make_room()
                self._loop.remove_reader(self._socket)
                self._loop.call_later(self._interval, self._listen)
                return
            self._admit(connection, str(address[0]))

    def _admit(self, connection: socket.socket, host: str) -> None:
        group, limits = network_of(host), self._settings
        if self._count[group] >= limits.max_connections_per_address:
            text = f"{self._count[group]} connections are open from {host}; no more are allowed: use them again"
            self._turn_away(connection, host, 429, text)
            return
        if len(self._open) >= self._most:
            self._make_room()
        if len(self._open) < self._most:
            self._begin(connection, host, group)
        elif len(self._open) < self._most + RESERVED:
            self._begin(connection, host, group, reserved=True)
        else:
            self._turn_away(connection, host, 503, f"{len(self._open)} connections are open; no more are allowed")

    def _begin(self, connection: socket.socket, host: str, group: str, *, reserved: bool = False) -> None:
        protocol = self._make(settings=self._settings, lost=self._release, group=group)
        if reserved:
            protocol.app = _urgent_only(protocol.app)
        self._count[group] += 1
        self._open[protocol] = self._loop.create_task(self._connect(connection, host, protocol))

    async def _connect(self, connection: socket.socket, host: str, protocol: BoundedProtocol) -> None:
        """Do the TLS handshake, if there is one, and pass the connection to the protocol."""
        timeout = None if self._tls is None else self._settings.header_seconds
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await self._loop.connect_accepted_socket(
                lambda: protocol, connection, ssl=self._tls, ssl_handshake_timeout=timeout
            )
        except OSError as error:
            self._release(protocol)
            connection.close()
            if self._tls is not None:
                self._report("the TLS handshake with %s failed: %s", host, str(error) or type(error).__name__)
        except BaseException:
            self._release(protocol)
            connection.close()
            raise

    def _turn_away(self, connection: socket.socket, host: str, status: int, text: str) -> None:
        with connection, suppress(OSError):
            self._report("a connection from %s was refused: %s", host, text)
            connection.setblocking(False)
            if self._tls is None:
                connection.send(_reply(status, "too_many_connections", text))
                connection.shutdown(socket.SHUT_WR)
                connection.recv(65536)  # a request that was sent already: unread, it would discard the reply

    def _make_room(self) -> None:
        """Close the connection that has waited longest for its client, if any waits."""
        waiting = [protocol for protocol in self._open if protocol.waits_for()]
        if not waiting:
            return
        victim = max(waiting, key=lambda p: (self._count[p.group], p.waits_for() != "idle", -p.since))
        if victim.established:
            victim.transport.abort()
        else:
            self._open[victim].cancel()
        self._report("a connection from %s was closed (%s) to make room", victim.group, victim.waits_for())
        self._release(victim)

    def _release(self, protocol: BoundedProtocol) -> None:
        if self._open.pop(protocol, None) is not None:
            self._count[protocol.group] -= 1
            if not self._count[protocol.group]:
                del self._count[protocol.group]

    # ---- once a second ---------------------------------------------------------------------------

    def _sweep(self) -> None:
        if self._refused > LOGGED:
            log.warning("%d more connections were refused or closed", self._refused - LOGGED)
        self._refused = 0
        now = self._loop.time()
        for protocol in list(self._open):
            protocol.check(now)
        if self._open or not self._closed:
            self._loop.call_later(self._interval, self._sweep)

    def _report(self, text: str, host: str, why: str) -> None:
        """Log a refusal; a flood of them is only counted."""
        self._refused += 1
        if self._refused <= LOGGED:
            log.warning(text, host, why, extra={"address": host})


def raise_descriptor_limit() -> None:
    """Raise the soft limit on open files to the hard one."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):  # macOS states a hard limit that it does not allow
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def most_connections(settings: ServerSettings) -> int:
    """Connections that each front door accepts: as many as configured, if this process may open so many files."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted, doors = settings.max_connections, 1 if settings.grpc_port is None else 2
    allowed = wanted
    if soft != resource.RLIM_INFINITY:
        allowed = min(wanted, max(RESERVED, (soft - DESCRIPTORS) // doors - RESERVED))
    if allowed < wanted:
        log.warning(
            "server.max_connections is %d, but this process may open %d files only: %d connections are accepted; "
            "raise the limit (ulimit -Hn, LimitNOFILE)", wanted, soft, allowed,
        )  # fmt: skip
    return allowed


def _reply(status: int, code: str, text: str) -> bytes:
    body = json.dumps({"error": text, "code": code}).encode()
    head = f"HTTP/1.1 {status} {http.HTTPStatus(status).phrase}\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(body)}\r\nconnection: close\r\n\r\n".encode() + body


def _urgent_only(app: ASGIApp) -> ASGIApp:
    """Answer health checks and admin calls only."""

    async def limited(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] in PUBLIC or scope["path"].startswith(f"{ADMIN}/"):
            await app(scope, receive, send)
        else:
            refusal = BusyError("all connections are in use; only health checks and admin calls are answered")
            await error_response(refusal)(scope, receive, send)

    return limited
