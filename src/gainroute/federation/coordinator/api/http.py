"""Small things that all endpoints share: bodies within bounds, JSON objects with known keys, JSON answers."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from gainroute._util.files import plain
from gainroute.errors import GainrouteError, InputError
from gainroute.federation.coordinator.auth import error_body, error_headers
from gainroute.federation.coordinator.errors import (
    BadRequestError,
    CoordinatorError,
    HandshakeError,
    TooLargeError,
    UnsupportedError,
)

__all__ = ["error_response", "json_response", "read_body", "read_object"]


async def read_body(request: Request, limit: int) -> bytes:
    """Read a body, but not more than `limit` bytes of it."""
    if request.headers.get("content-encoding", "identity") != "identity":
        raise UnsupportedError(
            f"Content-Encoding is {request.headers['content-encoding'][:40]!r}; bodies are read as they are: send it "
            "uncompressed"
        )
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > limit:
        raise TooLargeError(f"the body has {declared} bytes; {limit} are allowed: split the request")
    chunks: list[bytes] = []
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > limit:
            raise TooLargeError(f"the body has more than {limit} bytes, which are allowed: split the request")
        chunks.append(chunk)
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


async def read_object(request: Request, limit: int, allowed: Collection[str]) -> dict[str, Any]:
    """Read a JSON object that has no other keys than these."""
    try:
        body = json.loads(await read_body(request, limit))
    except (ValueError, RecursionError) as error:
        raise BadRequestError(
            f"the body is not JSON ({error}); an object with {', '.join(allowed)} is needed"
        ) from None
    if not isinstance(body, dict):
        raise BadRequestError(f"the body is {type(body).__name__}; an object with {', '.join(allowed)} is needed")
    unknown = sorted(set(body) - set(allowed))
    if unknown:
        raise BadRequestError(f"the key {unknown[0][:60]!r} is not known; allowed are {', '.join(allowed)}")
    return body


def json_response(value: Any, status: int = 200) -> Response:
    """Write JSON that every parser reads: NaN becomes null, infinities the texts "inf" and "-inf"."""
    text = json.dumps(plain(value), allow_nan=False, ensure_ascii=False)
    return Response(text, status, media_type="application/json", headers={"Cache-Control": "no-store"})


def error_response(error: GainrouteError) -> Response:
    """What a client is told: what the library refuses is the request's fault, or that of files that do not fit."""
    if not isinstance(error, CoordinatorError):
        error = BadRequestError(str(error)) if isinstance(error, InputError) else HandshakeError(str(error))
    return Response(error_body(error), error.status, headers=error_headers(error))
