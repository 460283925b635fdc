"""Triton's extensions of the Open Inference Protocol: model configuration, statistics, repository index."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from gainroute.federation.coordinator.api.bodies.inference import (
    IndexRequest,
    ModelConfig,
    ModelStatistics,
    RepositoryEntry,
)
from gainroute.federation.coordinator.api.http import OptionalName, Version, json_response, read_object
from gainroute.federation.coordinator.api.openapi import error_responses, json_body
from gainroute.federation.coordinator.coordinator import Coordinator
from gainroute.federation.coordinator.errors import BadRequestError
from gainroute.federation.coordinator.monitoring.statistics import Duration, LiveStatistics
from gainroute.federation.coordinator.open_inference import model_metadata

__all__ = ["EXTENSIONS", "LOAD_REFUSED", "model_config", "model_statistics", "repository_index", "triton_routes"]

EXTENSIONS = ("model_configuration", "statistics", "model_repository")
LOAD_REFUSED = "models are not loaded or unloaded here; an operator sends POST /admin/router"
TYPES = {"BYTES": "TYPE_STRING", "INT64": "TYPE_INT64", "FP32": "TYPE_FP32", "BOOL": "TYPE_BOOL"}


def triton_routes(coordinator: Coordinator) -> APIRouter:
    """What a stock ``tritonclient`` asks for beside the protocol."""
    routes = APIRouter(prefix="/v2", tags=["inference"], responses=error_responses())

    configured: dict[int | str, dict[str, Any]] = {200: {"model": ModelConfig}}

    @routes.get("/models/{name}/config", summary="Model configuration, as Triton writes it", responses=configured)
    @routes.get(
        "/models/{name}/versions/{version}/config", summary="Configuration of a given version", responses=configured
    )
    async def config(name: str, version: Version) -> Response:
        coordinator.check_model(name, version)
        return json_response(model_config(coordinator))

    counted: dict[int | str, dict[str, Any]] = {200: {"model": ModelStatistics}}

    @routes.get("/models/stats", summary="Statistics of all models, as Triton writes them", responses=counted)
    @routes.get("/models/{name}/stats", summary="Statistics of the model", responses=counted)
    @routes.get("/models/{name}/versions/{version}/stats", summary="Statistics of a given version", responses=counted)
    async def stats(name: OptionalName, version: Version) -> Response:
        """Counts since the coordinator started, across changes of the router, in samples and nanoseconds."""
        return json_response(model_statistics(coordinator, name, version))

    @routes.post(
        "/repository/index",
        summary="The models served, as Triton lists them",
        openapi_extra=json_body(IndexRequest, {"ready": True}, required=False),
        responses={200: {"model": list[RepositoryEntry]}},
    )
    async def index(request: Request) -> Response:
        """The body may be empty, or `{"ready": true}` for those only that would answer."""
        asked = await read_object(request, coordinator.settings.server.max_body_bytes, ("ready",), empty=True)
        if not isinstance(asked.get("ready", False), bool):
            raise BadRequestError(f'"ready" is {str(asked["ready"])[:60]!r}; true or false is needed')
        return json_response(repository_index(coordinator, asked.get("ready", False)))

    @routes.post("/repository/models/{name}/load", summary="Refused: an operator changes the router", status_code=400)
    @routes.post("/repository/models/{name}/unload", summary="Refused: an operator changes the router", status_code=400)
    async def load(name: str) -> Response:
        coordinator.check_model(name)
        raise BadRequestError(LOAD_REFUSED)

    return routes


def model_config(coordinator: Coordinator) -> dict[str, Any]:
    """The model's configuration, as Triton writes it."""
    name = coordinator.settings.server.model
    known = model_metadata(name, [coordinator.deployment.name], coordinator.classes)
    tensors = {
        kind: [{"name": t["name"], "data_type": TYPES[t["datatype"]], "dims": t["shape"]} for t in known[kind]]
        for kind in ("inputs", "outputs")
    }
    return {
        "name": name,
        "platform": known["platform"],
        "backend": known["platform"],
        "version_policy": {"latest": {"num_versions": 1}},
        "max_batch_size": 0,  # shapes are given in full, the number of samples first
        "input": tensors["inputs"],
        "output": tensors["outputs"],
        "parameters": {"max_batch": {"string_value": str(coordinator.settings.batching.max_batch)}},
    }


def model_statistics(coordinator: Coordinator, name: str | None, version: str | None) -> dict[str, Any]:
    """Statistics of a model, or of all, as Triton writes them."""
    model = coordinator.settings.server.model
    coordinator.check_model(model if name is None else name, version)
    return {"model_stats": [{"name": model, "version": coordinator.deployment.name} | _statistics(coordinator.live)]}


def repository_index(coordinator: Coordinator, ready: bool) -> list[dict[str, Any]]:
    """The models served, as Triton lists them; with `ready`, those only that would answer."""
    why = coordinator.not_ready()
    model = {"name": coordinator.settings.server.model, "version": coordinator.deployment.name}
    return [] if why and ready else [model | {"state": "UNAVAILABLE" if why else "READY", "reason": why}]


def _statistics(live: LiveStatistics) -> dict[str, Any]:
    spent = live.spent
    # Reading requests and writing replies is not measured apart: it is part of success.
    computed = {"compute_input": Duration(spent["compute_infer"].count), "compute_infer": spent["compute_infer"]}
    computed["compute_output"] = computed["compute_input"]
    cached = {"cache_hit": Duration(), "cache_miss": Duration()}
    return {
        "last_inference": round(1e3 * live.last_inference),
        "inference_count": live.samples,
        "execution_count": spent["compute_infer"].count,
        "inference_stats": _nanoseconds({**spent, **computed, **cached}),
        "response_stats": {},
        "batch_stats": [
            {"batch_size": size}
            | _nanoseconds({name: whole if name == "compute_infer" else Duration(whole.count) for name in computed})
            for size, whole in sorted(live.batches.items())
        ],
        "memory_usage": [],
    }


def _nanoseconds(durations: Mapping[str, Duration]) -> dict[str, dict[str, int]]:
    return {name: {"count": found.count, "ns": round(1e9 * found.seconds)} for name, found in durations.items()}
