"""The HTTP app of a coordinator: the Open Inference Protocol, dashboard, feedback, admin, metrics."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp

from gainroute.errors import GainrouteError
from gainroute.federation.coordinator.api.admin import admin_routes
from gainroute.federation.coordinator.api.docs_page import docs_page
from gainroute.federation.coordinator.api.feedback import feedback_routes
from gainroute.federation.coordinator.api.formation import formation_routes
from gainroute.federation.coordinator.api.http import error_response, json_response
from gainroute.federation.coordinator.api.inference import InferenceMiddleware, inference_routes
from gainroute.federation.coordinator.api.openapi import complete_schema, error_responses
from gainroute.federation.coordinator.api.status import status_routes
from gainroute.federation.coordinator.api.triton import triton_routes
from gainroute.federation.coordinator.auth import Authenticator, AuthMiddleware
from gainroute.federation.coordinator.coordinator import Coordinator
from gainroute.federation.coordinator.dashboard import dashboard_routes
from gainroute.federation.coordinator.errors import BadRequestError, NotFoundError
from gainroute.federation.coordinator.metrics import CONTENT_TYPE

__all__ = ["create_app"]

DOCS_HEADERS = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"}


def create_app(coordinator: Coordinator, *, manage: bool = True, authenticator: Authenticator | None = None) -> ASGIApp:
    """Build the app: authentication, inference, and everything else behind the framework.

    With `manage`, the coordinator is started and stopped with the app. `authenticator` is shared with other front
    doors, if there are any.
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
        responses=error_responses(),
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
    )
    # `include_router` would make every route a second time, at the first request.
    for routes in (triton_routes, inference_routes, feedback_routes, status_routes, formation_routes, admin_routes):
        app.router.routes += routes(coordinator).routes
    app.router.routes += dashboard_routes().routes

    @app.get("/metrics", tags=["metrics"], summary="Metrics for Prometheus", response_class=PlainTextResponse)
    async def metrics() -> Response:
        return Response(coordinator.metrics.render(coordinator), headers={"Content-Type": CONTENT_TYPE})

    generated = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = complete_schema(generated(), coordinator.settings)
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]  # as the framework documents it
    describing = asyncio.Lock()

    async def described() -> dict[str, Any]:
        """The schema; made once, in a thread, since that takes some tenths of a second."""
        async with describing:
            return await asyncio.to_thread(app.openapi)

    @app.get("/openapi.json", include_in_schema=False)
    async def schema() -> Response:
        return json_response(await described())

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        return Response(docs_page(await described()), media_type="text/html", headers=DOCS_HEADERS)

    @app.exception_handler(GainrouteError)
    async def refused(_: Request, error: GainrouteError) -> Response:
        return error_response(error)

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        return error_response(BadRequestError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}"))

    @app.exception_handler(HTTPException)
    async def failed(_: Request, error: HTTPException) -> Response:
        if error.status_code == 404:
            return error_response(NotFoundError("there is no such page; /docs lists all pages"))
        code = "method_not_allowed" if error.status_code == 405 else "http"
        response = json_response({"error": str(error.detail), "code": code}, error.status_code)
        response.headers.update(error.headers or {})  # 405 says which methods there are
        return response

    return AuthMiddleware(InferenceMiddleware(app, coordinator), authenticator or Authenticator(coordinator.settings))
