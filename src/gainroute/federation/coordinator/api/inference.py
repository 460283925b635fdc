"""The endpoints of the Open Inference Protocol."""

from __future__ import annotations

import re
import time
from typing import Any

from fastapi import APIRouter
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from gainroute.errors import GainrouteError
from gainroute.federation.coordinator.api.bodies.inference import (
    InferRequest,
    InferResponse,
    Live,
    ModelMetadata,
    ModelReady,
    Ready,
    ServerMetadata,
)
from gainroute.federation.coordinator.api.http import Version, error_response, json_response, read_body
from gainroute.federation.coordinator.api.openapi import error_responses, json_body
from gainroute.federation.coordinator.api.triton import EXTENSIONS
from gainroute.federation.coordinator.coordinator import Coordinator
from gainroute.federation.coordinator.inference import Asker, answer, check_role
from gainroute.federation.coordinator.open_inference import (
    HEADER,
    model_metadata,
    parse_request,
    server_metadata,
    write_response,
)

__all__ = ["InferenceMiddleware", "inference_routes"]

PATH = re.compile(r"/v2/models/([^/]+)(?:/versions/([^/]+))?/infer")
EXAMPLE = {"inputs": [{"name": "id", "shape": [2], "datatype": "BYTES", "data": ["sample-1", "sample-2"]}]}
BINARY = {
    "application/octet-stream": {
        "schema": {
            "type": "string",
            "format": "binary",
            "description": f"A JSON part as in application/json, of {HEADER} bytes, in which `data` of a binary tensor "
            "is replaced by the parameter `binary_data_size`; then the bytes of these tensors, little-endian. An "
            "element of BYTES is its length (4 bytes) and its content.",
        }
    }
}
LENGTH = {
    "name": HEADER,
    "in": "header",
    "required": False,
    "schema": {"type": "integer", "minimum": 0},
    "description": "The length of the JSON part, with a binary body.",
}


class InferenceMiddleware:
    """Answers POST …/infer before the framework sees it; passes everything else on."""

    def __init__(self, app: ASGIApp, coordinator: Coordinator) -> None:
        self._app, self._coordinator = app, coordinator
        self._header = HEADER.lower().encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer an inference request, or pass the request on."""
        found = PATH.fullmatch(scope["path"]) if scope["type"] == "http" and scope["method"] == "POST" else None
        if found is None:
            await self._app(scope, receive, send)
            return
        began, status = time.perf_counter(), 500
        try:
            try:
                response = await self._infer(scope, receive, *found.groups())
            except GainrouteError as error:
                response = error_response(error)
            status = response.status_code
            await response(scope, receive, send)
        finally:
            self._coordinator.metrics.requested(status, time.perf_counter() - began)

    async def _infer(self, scope: Scope, receive: Receive, name: str, version: str | None) -> Response:
        coordinator, state = self._coordinator, scope["state"]
        settings, headers = coordinator.settings, state["headers"]
        asker = Asker(state["grant"], state["request_id"], headers.get(b"traceparent", ""))
        check_role(asker.grant)
        coordinator.check_model(name, version)
        body = await read_body(scope, receive, settings.server.max_body_bytes)
        request = parse_request(body, headers.get(self._header), settings.batching.max_batch)
        reply, length = await answer(coordinator, asker, request, name, version, write_response)
        if length is None:
            return Response(reply, media_type="application/json")
        return Response(reply, headers={HEADER: str(length)}, media_type="application/octet-stream")


def inference_routes(coordinator: Coordinator) -> APIRouter:
    """Health, metadata, and the documentation of inference."""
    routes = APIRouter(prefix="/v2", tags=["inference"], responses=error_responses())

    @routes.get("", summary="Server metadata", responses={200: {"model": ServerMetadata}})
    async def server() -> Response:
        return json_response(server_metadata("binary_tensor_data", *EXTENSIONS))

    @routes.get("/health/live", summary="Whether the process runs", responses={200: {"model": Live}})
    async def live() -> Response:
        return json_response({"live": True})

    yes_or_no: dict[int | str, dict[str, Any]] = {200: {"model": Ready}, 503: {"model": Ready}}

    @routes.get("/health/ready", summary="Whether requests would be answered", responses=yes_or_no)
    async def ready() -> Response:
        why = coordinator.not_ready()
        return json_response({"ready": not why}, 503 if why else 200)

    reasoned: dict[int | str, dict[str, Any]] = {200: {"model": ModelReady}, 503: {"model": ModelReady}}

    @routes.get(
        "/models/{name}/ready", summary="Whether requests would be answered and, if not, why", responses=reasoned
    )
    @routes.get(
        "/models/{name}/versions/{version}/ready", summary="Whether a given version would answer", responses=reasoned
    )
    async def model_ready(name: str, version: Version) -> Response:
        coordinator.check_model(name, version)
        why = coordinator.not_ready()
        reply: dict[str, Any] = {"name": name, "ready": not why}
        return json_response(reply | ({"error": why, "code": "unavailable"} if why else {}), 503 if why else 200)

    known: dict[int | str, dict[str, Any]] = {200: {"model": ModelMetadata}}

    @routes.get("/models/{name}", summary="Model metadata", responses=known)
    @routes.get("/models/{name}/versions/{version}", summary="Metadata of a given version", responses=known)
    async def metadata(name: str, version: Version) -> Response:
        coordinator.check_model(name, version)
        return json_response(model_metadata(name, [coordinator.deployment.name], coordinator.classes))

    extra = json_body(InferRequest, EXAMPLE)
    extra["requestBody"]["content"] |= BINARY
    extra["parameters"] = [LENGTH]
    answers: dict[int | str, dict[str, Any]] = {200: {"model": InferResponse, "content": BINARY}}

    @routes.post("/models/{name}/infer", summary="Answer samples", openapi_extra=extra, responses=answers)
    @routes.post(
        "/models/{name}/versions/{version}/infer",
        summary="Answer by a given version",
        openapi_extra=extra,
        responses=answers,
    )
    async def infer(name: str, version: Version) -> Response:
        """Answer the samples named by the input `id` (BYTES, [N]).

        Outputs: `class` (BYTES: the name of the class, empty for a sample that no party has), `label` (INT64: its
        column number, −1), `probabilities` (FP32, [N, K]), `escalated` (BOOL), `score` (FP32), `route` (BYTES:
        `round1`, `round2`, each with `:<reasons>` if parties lack, `degraded:<reasons>`, `unknown`), `decision_id`
        (BYTES). JSON, or the binary tensor extension.
        """
        raise NotImplementedError(f"{name}, {version}: InferenceMiddleware answers; this documents it")

    return routes
