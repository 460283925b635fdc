"""The endpoints of the Open Inference Protocol."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import numpy as np
from fastapi import APIRouter, FastAPI
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from gainroute.errors import GainrouteError
from gainroute.federation.coordinator.api.http import error_response, json_response, read_body
from gainroute.federation.coordinator.coordinator import Answered, Coordinator
from gainroute.federation.coordinator.decision_log.schema import decision_id
from gainroute.federation.coordinator.errors import CoordinatorError, NotFoundError
from gainroute.federation.coordinator.open_inference import (
    HEADER,
    Tensor,
    model_metadata,
    parse_request,
    write_response,
)

__all__ = ["ShortWay", "add_inference"]

Infer = Callable[[Request], Awaitable[Response]]

EXAMPLE = {"inputs": [{"name": "id", "shape": [2], "datatype": "BYTES", "data": ["sample-1", "sample-2"]}]}
BIGGEST = float(np.finfo(np.float32).max)


INFER = re.compile(r"/v2/models/(?P<name>[^/]+)(?:/versions/(?P<version>[^/]+))?/infer")


class ShortWay:
    """Leads inference past the framework, which costs more than reading the request does.

    The route is known to the framework all the same: that documents it, and answers other methods.

    Parameters
    ----------
    app
        What answers everything else.
    infer
        The endpoint.
    """

    def __init__(self, app: ASGIApp, infer: Infer) -> None:
        self._app, self._infer = app, infer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or pass on."""
        found = INFER.fullmatch(scope["path"]) if scope["type"] == "http" and scope["method"] == "POST" else None
        if found is None:
            await self._app(scope, receive, send)
            return
        scope["path_params"] = found.groupdict()
        try:
            response = await self._infer(Request(scope, receive))
        except GainrouteError as error:
            response = error_response(error)
        await response(scope, receive, send)


def add_inference(app: FastAPI, coordinator: Coordinator) -> Infer:
    """Add health, metadata and inference; returns the endpoint of the last, for the short way."""
    routes = APIRouter(prefix="/v2", tags=["inference"])
    settings = coordinator.settings
    body = {"content": {"application/json": {"schema": {"type": "object"}, "example": EXAMPLE}}, "required": True}
    # Told to the docs by hand, and read from the path by hand: the framework's checks would cost the hot path more.
    named = [{"name": n, "in": "path", "required": True, "schema": {"type": "string"}} for n in ("name", "version")]

    def check(name: str, version: str | None) -> None:
        if name != settings.server.model:
            raise NotFoundError(f"there is no model {name[:60]!r}; this coordinator serves {settings.server.model!r}")
        now = coordinator.version.name
        if version is not None and version != now:
            raise NotFoundError(
                f"version {version[:60]!r} is not in use; {now!r} is: leave the version out to follow it"
            )

    async def infer(request: Request) -> Response:
        """Answer the samples named by the input `id` (BYTES, [N]).

        Outputs: `label` (INT64, −1 for a sample nobody has), `probabilities` (FP32, [N, K]), `escalated` (BOOL),
        `score` (FP32), `route` (BYTES: `round1`, `round2`, `degraded:<reasons>`, `unknown`), `decision_id` (BYTES).
        JSON, or the binary tensor extension.
        """
        name: str = request.path_params["name"]
        version: str | None = request.path_params.get("version")
        status = 500
        try:
            check(name, version)
            data = await read_body(request, settings.server.max_body_bytes)
            asked = parse_request(data, request.headers.get(HEADER), settings.batching.max_batch)

            def encode(answered: Answered) -> tuple[bytes, int | None]:
                used = answered.outcome.version.name
                if version is not None and used != version:
                    raise NotFoundError(f"version {version!r} was replaced by {used!r} while the request waited")
                return write_response(asked, name, used, partial(_tensor, answered))

            text, length = await coordinator.infer(asked.ids, request.state.request_id, encode)
            status = 200
        except CoordinatorError as error:
            status = error.status
            raise
        finally:
            coordinator.metrics.requested(status)
        if length is None:
            return Response(text, media_type="application/json")
        return Response(text, media_type="application/octet-stream", headers={HEADER: str(length)})

    @routes.get("", summary="Server metadata")
    async def server() -> Response:
        from gainroute._version import __version__

        return json_response({"name": "gainroute", "version": __version__, "extensions": ["binary_tensor_data"]})

    @routes.get("/health/live", summary="Does it run?")
    async def live() -> Response:
        return json_response({"live": True})

    @routes.get("/health/ready", summary="Would it answer?")
    async def ready() -> Response:
        why = coordinator.not_ready()
        return json_response({"ready": not why}, 503 if why else 200)

    @routes.get("/models/{name}/ready", summary="Would it answer, and if not, why?")
    async def model_ready(name: str) -> Response:
        check(name, None)
        why = coordinator.not_ready()
        reply: dict[str, Any] = {"name": name, "ready": not why}
        return json_response(reply | ({"error": why, "code": "unavailable"} if why else {}), 503 if why else 200)

    @routes.get("/models/{name}", summary="Model metadata")
    async def metadata(name: str) -> Response:
        check(name, None)
        return json_response(model_metadata(name, [coordinator.version.name], coordinator.classes))

    for path, told, summary in (
        ("/v2/models/{name}/infer", named[:1], "Answer samples"),
        ("/v2/models/{name}/versions/{version}/infer", named, "Answer samples by the version named"),
    ):
        app.router.add_api_route(
            path, infer, methods=["POST"], tags=["inference"], summary=summary,
            openapi_extra={"requestBody": body, "parameters": told},
        )  # fmt: skip
    app.include_router(routes)
    return infer


def _tensor(answered: Answered, name: str) -> Tensor:
    out = answered.outcome
    if name == "score":
        return np.nan_to_num(out.score, nan=0.0, posinf=BIGGEST, neginf=-BIGGEST).astype(np.float32)
    if name == "decision_id":
        return [decision_id(seq) for seq in range(answered.first, answered.first + len(out))]
    found: Tensor = getattr(out, name)
    return found
