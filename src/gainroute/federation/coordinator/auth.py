"""Authentication, request ids and the access log: every request passes here first."""

from __future__ import annotations

import asyncio
import logging
import re
import time
import uuid
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gainroute.federation.coordinator.api.http import error_response
from gainroute.federation.coordinator.errors import CoordinatorError, ForbiddenError, UnauthorizedError
from gainroute.federation.coordinator.settings import CoordinatorSettings, is_loopback
from gainroute.federation.coordinator.tokens import Tokens, bearer

__all__ = ["AuthMiddleware"]

log = logging.getLogger("gainroute.coordinator.access")

REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
PUBLIC = ("/v2/health/live", "/v2/health/ready")  # for load balancers, which have no token; they answer yes or no only
ADMIN = "/admin"


class AuthMiddleware:
    """Requires a token for everything that is not public.

    Adds to the state of a request: `request_id`, `who` ("client:<name>", "admin:<name>", "local") and `headers`.
    """

    def __init__(self, app: ASGIApp, settings: CoordinatorSettings) -> None:
        self._app = app
        self._clients, self._admins = Tokens(settings.tokens.client), Tokens(settings.tokens.admin)
        self._open = settings.open_access
        self._hashing = asyncio.Semaphore(1)  # guessing tokens against a slow hash occupies at most one core

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.perf_counter()
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        given = headers.get(b"x-request-id", "")
        request_id = given if REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
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
            state["who"] = await self._authenticate(scope, headers)
        except CoordinatorError as error:
            await error_response(error)(scope, receive, reply)
        else:
            await self._app(scope, receive, reply)
        finally:
            # Answers are in the decision log under the same request id; here they are logged for debugging only.
            level = logging.DEBUG if status == 200 and scope["path"].endswith("/infer") else logging.INFO
            if log.isEnabledFor(level):
                extra = {"request_id": request_id, "who": state["who"], "status": status,
                         "ms": round(1e3 * (time.perf_counter() - began), 3)}  # fmt: skip
                log.log(level, "%s %s %d", scope["method"], scope["path"], status, extra=extra)

    async def _authenticate(self, scope: Scope, headers: dict[bytes, str]) -> str:
        path: str = scope["path"]
        if path in PUBLIC:
            return ""
        host = headers.get(b"host", "")
        origin = headers.get(b"origin")
        if origin is not None and scope["method"] not in ("GET", "HEAD") and urlsplit(origin).netloc != host:
            raise ForbiddenError(f"a page from {origin[:100]!r} may not send this; only the coordinator's own may")
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
                raise ForbiddenError("this is a client token; an admin token is needed here")
        if for_admins:
            if not self._admins:
                raise ForbiddenError("no admin token is configured; add [tokens.admin] (coordinator --new-token)")
            raise UnauthorizedError("an admin token is needed here: Authorization: Bearer <token>")
        if self._open and token is None:
            # DNS rebinding: a foreign page can point its own name at 127.0.0.1, but cannot change the Host header.
            if not is_loopback(urlsplit(f"//{host}").hostname or ""):
                raise ForbiddenError(f"Host is {host[:100]!r}; without tokens, only 127.0.0.1 and localhost are served")
            return "local"
        raise UnauthorizedError(
            "a token is needed: Authorization: Bearer <token>" if token is None else "the token is not valid"
        )

    async def _holder(self, tokens: Tokens, token: str) -> str | None:
        known = tokens.remembered(token)
        if known is not None or not tokens.slow:
            return known or tokens.holder(token)
        async with self._hashing:
            return await asyncio.to_thread(tokens.holder, token)
