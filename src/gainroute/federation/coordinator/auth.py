"""Authentication, request ids and the access log: every request passes here first."""

from __future__ import annotations

import asyncio
import logging
import re
import time
import uuid
from collections.abc import Collection, Mapping
from functools import lru_cache

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gainroute._util.allowance import Allowance
from gainroute.federation.coordinator.api.http import error_response, network_location, network_of
from gainroute.federation.coordinator.errors import (
    CoordinatorError,
    ForbiddenError,
    TooManyRequestsError,
    UnauthorizedError,
)
from gainroute.federation.coordinator.live_tokens import LiveTokens
from gainroute.federation.coordinator.settings import CoordinatorSettings, is_loopback
from gainroute.federation.coordinator.tokens import LOCAL, ROLES, Grant, Tokens, bearer

__all__ = ["ADMIN", "PUBLIC", "AuthMiddleware", "Authenticator", "log_access", "request_id_of"]

log = logging.getLogger("gainroute.coordinator.access")

REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
PUBLIC = ("/v2/health/live", "/v2/health/ready")  # for load balancers, which have no token; they answer yes or no only
ADMIN = "/admin"
# Roles that open a path, by its beginning. Inference and explanations check the role themselves.
DOORS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (ADMIN, ("admin",)),
    ("/feedback", ("client", "feedback", "admin")),
    ("/v2", ROLES),
    ("/docs", ROLES),
    ("/openapi.json", ROLES),
)
ELSEWHERE = ("client", "view", "admin")
MOST_HASHED = 64  # requests that wait for a slow hash at once
# Headers that proxies add.
FORWARDED = {b"forwarded", b"via", b"x-forwarded-for", b"x-forwarded-host", b"x-forwarded-proto", b"x-real-ip"}


@lru_cache(maxsize=256)
def _is_local(host: str) -> bool:
    """Whether a Host header names this machine."""
    return is_loopback(network_location(f"//{host}").hostname or "")


def request_id_of(headers: Mapping[bytes, str]) -> str:
    """The id that a client gave its request, or a new one."""
    given = headers.get(b"x-request-id", "")
    return given if REQUEST_ID.fullmatch(given) else uuid.uuid4().hex


def log_access(method: str, path: str, status: int, seconds: float, request_id: str, who: str, *, infer: bool) -> None:
    """Log a request. Answers are in the decision log under the same request id: here, for debugging only."""
    level = logging.DEBUG if status == 200 and infer else logging.INFO
    if log.isEnabledFor(level):
        extra = {"request_id": request_id, "who": who, "status": status, "ms": round(1e3 * seconds, 3)}
        log.log(level, "%s %s %d", method, path, status, extra=extra)


class Authenticator:
    """Looks up tokens for all front doors: what an address guesses at one of them counts at the others."""

    def __init__(self, settings: CoordinatorSettings) -> None:
        self._tokens = LiveTokens(settings.tokens)
        self._open = settings.open_access
        self._failures, self._most_failures = Allowance(), settings.tokens.failures_per_minute
        self._hashing = asyncio.Semaphore(1)  # guessing tokens against a slow hash occupies at most one core
        self._hashed = 0  # requests that wait for it

    @property
    def has_admin(self) -> bool:
        """Whether there is an admin's token."""
        return self._tokens.current().has_admin

    async def find(self, token: str | None, address: str, needed: Collection[str]) -> Grant | None:
        """What a token grants, if it has not expired and has one of the roles; None without a valid token."""
        if token is None:
            return None
        tokens = self._tokens.current()
        grant = tokens.find(token) or await self._verify(tokens, token, network_of(address))
        if grant is None:
            return None
        if grant.expires <= time.time():
            raise UnauthorizedError("the token has expired; ask the operator for a new one")
        if not grant.may(*needed):
            has = " and ".join(sorted(grant.roles))
            raise ForbiddenError(f"this is a {has} token; a token for {' or '.join(needed)} is needed here")
        return grant

    def without(self, token: str | None, headers: Collection[bytes], host: str | None) -> Grant:
        """What a request without a valid token may do; `host` is None if no page in a browser can have sent it."""
        if not self._open or token is not None:
            raise UnauthorizedError(
                "a token is needed: Authorization: Bearer <token>" if token is None else "the token is not valid"
            )
        # DNS rebinding: a foreign page can point its own name at 127.0.0.1, but cannot change the Host header.
        if host is not None and not _is_local(host):
            raise ForbiddenError(f"Host is {host[:100]!r}; without tokens, only 127.0.0.1 and localhost are served")
        if not FORWARDED.isdisjoint(headers):
            raise ForbiddenError(
                "the request came through a proxy; without tokens only requests of this machine are answered: add "
                "[tokens.client] to the settings"
            )
        return LOCAL

    async def _verify(self, tokens: Tokens, token: str, network: str) -> Grant | None:
        """Try the slow hashes, if there are any; failures are counted by address, before the work is done."""
        wait = self._failures.take(network, self._most_failures)
        if wait or self._hashed >= MOST_HASHED:
            raise TooManyRequestsError(
                f"too many requests with a wrong token from {network or 'this address'}; use a valid one, or ask again "
                f"in {max(wait, 1):.0f} s",
                wait,
            )
        if not tokens.slow:
            return None
        self._hashed += 1
        try:
            async with self._hashing:
                grant = tokens.find(token) or await asyncio.to_thread(tokens.verify, token)
        finally:
            self._hashed -= 1
        if grant is not None:
            self._failures.take(network, self._most_failures, -1.0)
        return grant


class AuthMiddleware:
    """Requires a token for everything that is not public.

    Adds to the state of a request: `request_id`, `grant`, `who` ("client:<name>", "admin:<name>", "local"), `headers`.
    """

    def __init__(self, app: ASGIApp, authenticator: Authenticator) -> None:
        self._app, self._authenticator = app, authenticator

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.perf_counter()
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        request_id = request_id_of(headers)
        state = scope.setdefault("state", {})
        state["request_id"], state["who"], state["headers"] = request_id, "", headers
        status = 500

        async def reply(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", request_id.encode())]
            await send(message)

        try:
            grant = state["grant"] = await self._authenticate(scope, headers)
            state["who"] = "" if grant is None else grant.who
        except CoordinatorError as error:
            await error_response(error)(scope, receive, reply)
        else:
            await self._app(scope, receive, reply)
        finally:
            path, seconds = scope["path"], time.perf_counter() - began
            infer = path.endswith("/infer")
            log_access(scope["method"], path, status, seconds, request_id, state["who"], infer=infer)

    async def _authenticate(self, scope: Scope, headers: dict[bytes, str]) -> Grant | None:
        path: str = scope["path"]
        if path in PUBLIC:
            return None
        host = headers.get(b"host", "")
        origin = headers.get(b"origin")
        if origin is not None and scope["method"] not in ("GET", "HEAD") and network_location(origin).netloc != host:
            raise ForbiddenError(f"a page from {origin[:100]!r} may not send this; only the coordinator's own may")
        for_admins = path == ADMIN or path.startswith(f"{ADMIN}/")
        token = bearer(headers.get(b"authorization"), basic=not for_admins)
        needed = next((roles for start, roles in DOORS if path == start or path.startswith(f"{start}/")), ELSEWHERE)
        grant = await self._authenticator.find(token, (scope.get("client") or ("",))[0], needed)
        if grant is not None:
            return grant
        if for_admins:
            if not self._authenticator.has_admin:
                raise ForbiddenError("no admin token is configured; add [tokens.admin] (coordinator --new-token)")
            raise UnauthorizedError("an admin token is needed here: Authorization: Bearer <token>")
        return self._authenticator.without(token, headers, host)
