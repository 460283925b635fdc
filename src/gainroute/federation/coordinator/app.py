"""The HTTP app of a coordinator: the Open Inference Protocol, dashboard, feedback, admin, metrics."""

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
from gainroute.federation.coordinator.api.inference import InferenceMiddleware, inference_routes
from gainroute.federation.coordinator.api.status import status_routes
from gainroute.federation.coordinator.api.triton import triton_routes
from gainroute.federation.coordinator.auth import AuthMiddleware
from gainroute.federation.coordinator.coordinator import Coordinator
from gainroute.federation.coordinator.dashboard import dashboard_routes
from gainroute.federation.coordinator.errors import BadRequestError, CoordinatorError, NotFoundError
from gainroute.federation.coordinator.metrics import CONTENT_TYPE

__all__ = ["create_app"]

DOCS_HEADERS = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"}
ERROR_SCHEMA = {
    "type": "object",
    "required": ["error", "code"],
    "properties": {"error": {"type": "string"}, "code": {"type": "string"}},
}


def create_app(coordinator: Coordinator, *, manage: bool = True) -> ASGIApp:
    """Build the app: authentication, inference, and everything else behind the framework.

    Parameters
    ----------
    coordinator
        What answers.
    manage
        Whether the coordinator is started and stopped with the app.
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

    app = FastAPI(
        title="gainroute coordinator",
        version=__version__,
        description="Two-round vertical federated inference, behind the Open Inference Protocol (v2).",
        lifespan=lifespan,
        responses=_error_responses(),
        docs_url=None,
        redoc_url=None,
    )
    app.include_router(triton_routes(coordinator))
    app.include_router(inference_routes(coordinator))
    app.include_router(feedback_routes(coordinator))
    app.include_router(status_routes(coordinator))
    app.include_router(admin_routes(coordinator))
    app.include_router(dashboard_routes(coordinator.settings))

    @app.get("/metrics", tags=["metrics"], summary="Metrics for Prometheus")
    async def metrics() -> Response:
        text = coordinator.metrics.render(
            in_flight=coordinator.batcher.in_flight, deployment=coordinator.deployment, monitor=coordinator.monitor,
            parties=coordinator.parties, log_ok=not coordinator.log.error, certificates=coordinator.certificates,
        )  # fmt: skip
        return Response(text, headers={"Content-Type": CONTENT_TYPE})

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        return Response(docs_page(app.openapi()), media_type="text/html", headers=DOCS_HEADERS)

    app.add_exception_handler(GainrouteError, _gainroute_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(RequestValidationError, _validation_error)
    return AuthMiddleware(InferenceMiddleware(app, coordinator), coordinator.settings)


# ---- errors ---------------------------------------------------------------------------------------------


def _error_responses() -> dict[int | str, dict[str, Any]]:
    """The errors by status, for the OpenAPI schema."""
    kinds, texts = CoordinatorError.__subclasses__(), dict[int, list[str]]()
    for kind in kinds:
        kinds += kind.__subclasses__()
        texts.setdefault(kind.status, []).append(f"`{kind.code}`: {kind.__doc__}")
    content = {"application/json": {"schema": ERROR_SCHEMA}}
    return {status: {"description": " ".join(found), "content": content} for status, found in texts.items()}


async def _gainroute_error(_: Request, error: Exception) -> Response:
    if not isinstance(error, GainrouteError):
        raise error
    return error_response(error)


async def _http_error(_: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    if status == 404:
        return error_response(NotFoundError("there is no such page; /docs lists all pages"))
    detail = str(error.detail) if isinstance(error, HTTPException) else "internal error"
    return json_response({"error": detail, "code": "method_not_allowed" if status == 405 else "http"}, status)


async def _validation_error(_: Request, error: Exception) -> Response:
    first = error.errors()[0] if isinstance(error, RequestValidationError) else {"loc": (), "msg": str(error)}
    where = ".".join(map(str, first["loc"]))
    return error_response(BadRequestError(f"{where}: {first['msg']}"))
