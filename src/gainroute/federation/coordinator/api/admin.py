"""Admin calls: budget, threshold, router, shadow, alarms, deletion. All are in the audit trail."""

from __future__ import annotations

import asyncio
import math
from typing import Annotated, Any

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from gainroute.federation.coordinator.api.bodies.operation import (
    AuditTrail,
    Budget,
    Deleted,
    Deployed,
    DriftReset,
    Reset,
    RouterChange,
    ShadowChange,
    Threshold,
)
from gainroute.federation.coordinator.api.bodies.status import ShadowChanged
from gainroute.federation.coordinator.api.http import json_response, read_object
from gainroute.federation.coordinator.api.openapi import error_responses, json_body
from gainroute.federation.coordinator.api.status import operating_json
from gainroute.federation.coordinator.artifact_folder import ArtifactFolder
from gainroute.federation.coordinator.coordinator import Coordinator
from gainroute.federation.coordinator.decision_log import store
from gainroute.federation.coordinator.deployment import Deployment
from gainroute.federation.coordinator.errors import BadRequestError, ConflictError

__all__ = ["admin_routes"]

LIMIT = 16384
MOST_ENTRIES = 1000
Limit = Annotated[int, Query(json_schema_extra={"minimum": 1, "maximum": MOST_ENTRIES})]
DEPLOYED: dict[int | str, dict[str, Any]] = {200: {"model": Deployed}}


def admin_routes(coordinator: Coordinator) -> APIRouter:
    """Endpoints that need an admin token."""
    routes = APIRouter(prefix="/admin", tags=["admin"], responses=error_responses())
    folder = ArtifactFolder(coordinator.settings.router)

    def now(deployment: Deployment) -> Response:
        point = operating_json(deployment)
        return json_response({"version": deployment.name, "hash": deployment.hash, "operating_point": point})

    @routes.post(
        "/budget",
        summary="Change the budget",
        openapi_extra=json_body(Budget, {"budget": 0.2}),
        responses=DEPLOYED,
    )
    async def budget(request: Request) -> Response:
        body = await read_object(request, LIMIT, ("budget",))
        given = _number(body.get("budget"), "budget", "a share in [0, 1], such as 0.2")
        if not 0 <= given <= 1:
            raise BadRequestError(f"budget is {given!r}; a share in [0, 1] is needed, such as 0.2")
        return now(await coordinator.operator.set_budget(given, *_caller(request)))

    @routes.post(
        "/threshold",
        summary="Change the threshold",
        openapi_extra=json_body(Threshold, {"threshold": 0.05}),
        responses=DEPLOYED,
    )
    async def threshold(request: Request) -> Response:
        value = (await read_object(request, LIMIT, ("threshold",))).get("threshold")
        given = float(value) if value in ("inf", "-inf") else _number(value, "threshold", 'or "inf", "-inf"')
        return now(await coordinator.operator.set_threshold(given, *_caller(request)))

    @routes.post(
        "/router",
        summary="Switch to another router, or roll back",
        openapi_extra=json_body(
            RouterChange, {"artifact": "next/router.safetensors", "fusion": {"run": "next/server"}}
        ),
        responses=DEPLOYED,
    )
    async def router(request: Request) -> Response:
        body = await read_object(request, LIMIT, ("artifact", "fusion", "rollback"))
        artifact = body.get("artifact")
        if _orders(body, "rollback"):
            deployment = await coordinator.operator.rollback(*_caller(request))
        elif isinstance(artifact, str) and "rollback" not in body:
            given = _fusion(body.get("fusion"))
            path = await asyncio.to_thread(folder.file, artifact)
            fusion = None if given is None else await asyncio.to_thread(folder.fusion, given)
            deployment = await coordinator.operator.switch(path, fusion, *_caller(request))
        else:
            raise BadRequestError('either {"artifact": "<path>", "fusion": {…}?} or {"rollback": true} is needed')
        await coordinator.monitor.refresh()  # restores the protection of that router
        return now(deployment)

    @routes.post(
        "/shadow",
        summary="Load a shadow router, drop it, or swap it in",
        openapi_extra=json_body(ShadowChange, {"artifact": "next/router.safetensors"}),
        responses={200: {"model": ShadowChanged}},
    )
    async def shadow(request: Request) -> Response:
        """One of `{"artifact": "<path>"}`, `{"swap": true}`, `{"drop": true}`; /admin/router rolls a swap back.

        A shadow router scores live traffic and never answers. It must be calibrated with the same models, classes and
        codec as the router in use.
        """
        body = await read_object(request, LIMIT, ("artifact", "swap", "drop"))
        monitor = coordinator.monitor
        if _orders(body, "swap"):
            async with monitor.lock:
                deployment = await monitor.shadow.swap(*_caller(request))
            await monitor.refresh()
            return now(deployment)
        async with monitor.lock:
            if _orders(body, "drop"):
                await monitor.shadow.drop(*_caller(request))
            elif isinstance(body.get("artifact"), str) and len(body) == 1:
                path = await asyncio.to_thread(folder.file, body["artifact"])
                await monitor.shadow.load(path, *_caller(request))
            else:
                raise BadRequestError('one of {"artifact": "<path>"}, {"swap": true} and {"drop": true} is needed')
        return json_response({"shadow": monitor.shadow.status()})

    @routes.post(
        "/drift",
        summary="Reset the drift monitor and its alarms",
        openapi_extra=json_body(Reset, {"reset": True}),
        responses={200: {"model": DriftReset}},
    )
    async def drift(request: Request) -> Response:
        """`{"reset": true}`, once the cause of an alarm is fixed. The monitor starts again from nothing."""
        if not _orders(await read_object(request, LIMIT, ("reset",)), "reset"):
            raise BadRequestError('{"reset": true} is needed')
        monitor = coordinator.monitor
        if not monitor.drift.enabled:
            raise ConflictError("drift is not monitored: drift.enabled is false in the settings")
        async with monitor.lock:
            found = await monitor.drift.reset(*_caller(request))
        return json_response({"reset": {name: str(alarm) for name, alarm in found.items()}})

    @routes.delete("/decisions", summary="Delete by decision id or by sample id", responses={200: {"model": Deleted}})
    async def delete(request: Request, decision_id: str | None = None, sample_id: str | None = None) -> Response:
        if (decision_id is None) == (sample_id is None):
            raise BadRequestError("exactly one of decision_id and sample_id is needed in the query")

        def work(connection: Any) -> int:
            deleted = store.delete_named(connection, decision_id, sample_id)
            pseudonym = {"sample": store.pseudonym(connection, sample_id or "")}
            what = pseudonym if decision_id is None else {"decision_id": decision_id}
            store.audit(connection, *_caller(request), "delete", what, {"deleted": deleted})
            return deleted

        return json_response({"deleted": await coordinator.log.write(work, erase=True)})

    @routes.get("/audit", summary="The latest admin calls, newest first", responses={200: {"model": AuditTrail}})
    async def audited(limit: Limit = 100) -> Response:
        if not 1 <= limit <= MOST_ENTRIES:
            raise BadRequestError(f"limit is {limit}; 1 … {MOST_ENTRIES} are allowed")
        return json_response({"audit": await asyncio.to_thread(store.read_audit, coordinator.log.place, limit)})

    return routes


def _caller(request: Request) -> tuple[str, str]:
    """Who calls, and the id of the request, for the audit trail."""
    return request.state.who, request.state.request_id


def _orders(body: dict[str, Any], name: str) -> bool:
    """Whether a body is ``{name: true}``; 1 is not true."""
    return body.get(name) is True and len(body) == 1


def _number(value: Any, name: str, remedy: str) -> float:
    try:
        if isinstance(value, (int, float)) and not isinstance(value, bool) and not math.isnan(value):
            return float(value)
    except OverflowError:  # a whole number beyond the largest float
        pass
    raise BadRequestError(f"{name} is {str(value)[:60]!r}; a number is needed, {remedy}")


def _fusion(given: Any) -> dict[str, str] | None:
    # Not a factory: a token must not suffice to import arbitrary code.
    if given is not None and not (
        isinstance(given, dict) and len(given) == 1 and set(given) <= {"run", "strong"}
        and all(isinstance(path, str) for path in given.values())
    ):  # fmt: skip
        raise BadRequestError('"fusion" must be {"run": "<server folder>"} or {"strong": "<file>"}')
    return given
