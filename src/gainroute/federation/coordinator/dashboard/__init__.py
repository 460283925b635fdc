"""The dashboard: one page with its scripts and style, served from this folder. No build step, no external files."""

from __future__ import annotations

import os
from importlib import resources

from fastapi import APIRouter
from starlette.responses import Response

from gainroute.federation.coordinator.errors import NotFoundError

__all__ = ["dashboard_routes"]

MEDIA = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


def dashboard_routes() -> APIRouter:
    """``/``, and the files of the page below ``/dashboard/``."""
    folder = resources.files(__name__)
    files = {
        file.name: (file.read_bytes(), MEDIA[suffix])
        for file in folder.iterdir()
        if (suffix := os.path.splitext(file.name)[1]) in MEDIA  # noqa: PTH122 (a package's file may have no path)
    }
    page = (folder / "index.html").read_text(encoding="utf-8")
    routes = APIRouter(include_in_schema=False)

    @routes.get("/")
    async def dashboard() -> Response:
        return Response(page, media_type="text/html", headers=HEADERS)

    @routes.get("/dashboard/{name}")
    async def file(name: str) -> Response:
        if name not in files:
            raise NotFoundError(f"the dashboard has no file {name[:60]!r}")
        body, media = files[name]
        return Response(body, media_type=media, headers=HEADERS)

    return routes
