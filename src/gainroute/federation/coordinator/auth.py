"""The doorkeeper: every request passes here first. Who may enter, under which request id, and a line in the log."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
import uuid
from typing import Any
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gainroute.federation.coordinator.errors import CoordinatorError, ForbiddenError, UnauthorizedError
from gainroute.federation.coordinator.settings import CoordinatorSettings, is_loopback
from gainroute.federation.coordinator.tokens import Tokens, bearer

__all__ = ["Doorkeeper", "error_body", "error_headers"]

log = logging.getLogger("gainroute.coordinator.access")

REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
# Load balancers and supervisors have no token, and learn nothing here but yes or no.
OPEN = ("/v2/health/live", "/v2/health/ready")
ADMIN = "/admin"


def error_body(error: CoordinatorError) -> bytes:
    """The body of an error."""
    return json.dumps({"error": str(error), "code": error.code}).encode()


def error_headers(error: CoordinatorError) -> dict[str, str]:
    """Headers that go with an error."""
    found = {"Content-Type": "application/json"}
    if error.retry_after is not None:
        found["Retry-After"] = str(error.retry_after)
    if isinstance(error, UnauthorizedError):
        # Browsers ask for a password: it is the token, under any name.
        found["WWW-Authenticate"] = 'Bearer realm="gainroute", Basic realm="gainroute"'
    return found


class Doorkeeper:
    """Wraps an app; what is not expressly open needs a token.

    Parameters
    ----------
    app
        What lies behind.
    settings
        Tokens, and whether the door is open to this machine.
    """

    def __init__(self, app: ASGIApp, settings: CoordinatorSettings) -> None:
        self._app = app
        self._clients, self._admins = Tokens(settings.tokens.client), Tokens(settings.tokens.admin)
        self._open_door = settings.open_access
        self._slow = asyncio.Semaphore(1)  # guessing tokens against a slow hash takes one core at most

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request in, or answer it here."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.perf_counter()
        headers = {k: v.decode("latin-1") for k, v in scope["headers"]}
        given = headers.get(b"x-request-id", "")
        name = given if REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
        state = scope.setdefault("state", {})
        state["request_id"], state["who"] = name, ""
        status = 500
        mark = (b"x-request-id", name.encode())

        async def reply(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), mark]
            await send(message)

        try:
            state["who"] = await self._let_in(scope, headers)
        except CoordinatorError as error:
            await _send_error(error, reply)
        else:
            await self._app(scope, receive, reply)
        finally:
            # An answer stands in the decision log, with the same request id: a line here would say it twice.
            level = logging.DEBUG if status == 200 and scope["path"].endswith("/infer") else logging.INFO
            if log.isEnabledFor(level):
                log.log(
                    level, "%s %s %d", scope["method"], scope["path"], status,
                    extra={"request_id": name, "who": state["who"], "status": status,
                           "ms": round(1e3 * (time.perf_counter() - began), 3)},
                )  # fmt: skip

    async def _let_in(self, scope: Scope, headers: dict[bytes, str]) -> str:
        path: str = scope["path"]
        if path in OPEN:
            return ""
        host = headers.get(b"host", "")
        origin = headers.get(b"origin")
        if origin is not None and scope["method"] not in ("GET", "HEAD") and urlsplit(origin).netloc != host:
            raise ForbiddenError(f"a page from {origin[:100]!r} may not act here; only the coordinator's own may")
        for_admins = path == ADMIN or path.startswith(f"{ADMIN}/")
        token = bearer(headers.get(b"authorization"), basic=not for_admins)
        if token is not None:
            admin = await self._holder(self._admins, token)
            if admin is not None:
                return f"admin:{admin}"
            client = await self._holder(self._clients, token)
            if client is not None and not for_admins:
                return f"client:{client}"
            if client is not None:
                raise ForbiddenError("this is a client's token; an admin's is needed here")
        if for_admins:
            if not self._admins:
                raise ForbiddenError("no admin token is configured; add [tokens.admin] (coordinator --new-token)")
            raise UnauthorizedError("an admin token is needed here: Authorization: Bearer <token>")
        if self._open_door and token is None:
            # A page elsewhere can point a name of its own at 127.0.0.1; it cannot change the name it asks for.
            if not is_loopback(urlsplit(f"//{host}").hostname or ""):
                raise ForbiddenError(f"Host is {host[:100]!r}; without tokens, only 127.0.0.1 and localhost are served")
            return "local"
        raise UnauthorizedError(
            "a token is needed: Authorization: Bearer <token>" if token is None else "the token is nobody's"
        )

    async def _holder(self, tokens: Tokens, token: str) -> str | None:
        if not tokens.slow:
            return tokens.holder(token)
        known = tokens.remembered(token)
        if known is not None:
            return known
        async with self._slow:
            return await asyncio.to_thread(tokens.holder, token)


async def _send_error(error: CoordinatorError, send: Send) -> None:
    body = error_body(error)
    headers: list[Any] = [(k.lower().encode(), v.encode()) for k, v in error_headers(error).items()]
    headers.append((b"content-length", str(len(body)).encode()))
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
