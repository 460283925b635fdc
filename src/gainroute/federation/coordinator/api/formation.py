"""A run of `gainroute federate` in progress, for the dashboard."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter
from starlette.responses import Response

from gainroute.errors import GainrouteError
from gainroute.federation.coordinator.api.bodies.dashboard import Formation
from gainroute.federation.coordinator.api.http import json_response
from gainroute.federation.coordinator.api.openapi import error_responses
from gainroute.federation.coordinator.coordinator import Coordinator
from gainroute.federation.formation.status import newest_version, read_status

__all__ = ["formation_routes"]


def formation_routes(coordinator: Coordinator) -> APIRouter:
    """``/api/federation``."""
    routes = APIRouter(prefix="/api", tags=["dashboard"], responses=error_responses())
    watched = coordinator.settings.federation

    def newest() -> dict[str, Any] | None:
        if watched is None or not (version := newest_version(watched.out)):
            return None
        try:
            return read_status(watched.out / f"v{version}")
        except (GainrouteError, OSError):  # nothing written yet
            return None

    @routes.get("/federation", summary="The newest run of gainroute federate", responses={200: {"model": Formation}})
    async def federation() -> Response:
        """Its stages, progress, and each party's pace and bytes; `run` is null if there is none."""
        return json_response({"run": await asyncio.to_thread(newest)})

    return routes
