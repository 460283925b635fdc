"""The HTTP app, built from a coordinator: the Open Inference Protocol, dashboard, feedback, admin, metrics."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from gainroute.errors import GainrouteError
from gainroute.federation.coordinator.api.admin import admin_routes
from gainroute.federation.coordinator.api.docs_page import docs_page
from gainroute.federation.coordinator.api.feedback import feedback_routes
from gainroute.federation.coordinator.api.http import error_response, json_response
from gainroute.federation.coordinator.api.inference import ShortWay, add_inference
from gainroute.federation.coordinator.api.status import status_routes
from gainroute.federation.coordinator.auth import Doorkeeper
from gainroute.federation.coordinator.coordinator import Coordinator
from gainroute.federation.coordinator.dashboard import dashboard_routes
from gainroute.federation.coordinator.errors import BadRequestError, NotFoundError
from gainroute.federation.coordinator.metrics import CONTENT_TYPE

__all__ = ["create_app"]

ERRORS = {
    400: "`bad_request`: malformed JSON, tensor, id or value; the message says which, and what is needed.",
    401: "`unauthorized`: no token, or a wrong one.",
    403: "`forbidden`: an admin's token is needed, or a page from elsewhere asks.",
    404: "`not_found`: no such model, version or decision.",
    409: "`conflict`: a sample id that is not unique, nothing to roll back to, or nothing in the shadow.",
    413: "`too_large`: too many ids, or too large a body.",
    415: "`unsupported`: a compressed body.",
    422: "`handshake`: router, models and parties do not fit together.",
    503: "`busy`, `party_missing`, `log_failed`, `draining`, `unavailable`: try again after `Retry-After` seconds.",
}
DOCS_HEADERS = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"}
ERROR_SCHEMA = {
    "type": "object",
    "required": ["error", "code"],
    "properties": {"error": {"type": "string"}, "code": {"type": "string"}},
}


def create_app(coordinator: Coordinator, *, manage: bool = True) -> ASGIApp:
    """Build the app: the doorkeeper, the short way, and the framework behind them.

    Parameters
    ----------
    coordinator
        What answers.
    manage
        Whether it is started and stopped with the app; otherwise somebody else does.
    """
    from gainroute._version import __version__

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        if manage:
            await coordinator.start()
        try:
            yield
        finally:
            if manage:
                await coordinator.stop()

    responses: dict[int | str, dict[str, Any]] = {
        status: {"description": text, "content": {"application/json": {"schema": ERROR_SCHEMA}}}
        for status, text in ERRORS.items()
    }
    app = FastAPI(
        title="gainroute coordinator",
        version=__version__,
        description="Two-round vertical federated inference, behind the Open Inference Protocol (v2).",
        lifespan=lifespan,
        responses=responses,
        docs_url=None,
        redoc_url=None,
    )
    infer = add_inference(app, coordinator)
    app.include_router(feedback_routes(coordinator))
    app.include_router(status_routes(coordinator))
    app.include_router(admin_routes(coordinator))
    app.include_router(dashboard_routes(coordinator.settings))

    @app.get("/metrics", tags=["metrics"], summary="For Prometheus")
    async def metrics() -> Response:
        text = coordinator.metrics.render(
            taken=coordinator.engine.taken, version=coordinator.version, watcher=coordinator.watcher,
            parties=coordinator.parties, log_ok=not coordinator.log.error, certificates=coordinator.certificates,
        )  # fmt: skip
        return Response(text, headers={"Content-Type": CONTENT_TYPE})

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        return Response(docs_page(app.openapi()), media_type="text/html", headers=DOCS_HEADERS)

    app.add_exception_handler(GainrouteError, _gainroute_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(RequestValidationError, _validation_error)
    return Doorkeeper(ShortWay(app, infer), coordinator.settings)


# ---- errors ---------------------------------------------------------------------------------------------


async def _gainroute_error(_: Request, error: Exception) -> Response:
    if not isinstance(error, GainrouteError):
        raise error
    return error_response(error)


async def _http_error(_: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    if status == 404:
        return error_response(NotFoundError("there is no such page; /docs lists what there is"))
    detail = str(error.detail) if isinstance(error, HTTPException) else "internal error"
    return json_response({"error": detail, "code": "method_not_allowed" if status == 405 else "http"}, status)


async def _validation_error(_: Request, error: Exception) -> Response:
    first = error.errors()[0] if isinstance(error, RequestValidationError) else {"loc": (), "msg": str(error)}
    where = ".".join(map(str, first["loc"]))
    return error_response(BadRequestError(f"{where}: {first['msg']}"))
