"""What all endpoints share: bodies of bounded size, JSON objects with known keys, responses."""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Callable, Collection
from typing import Annotated, Any
from urllib.parse import SplitResult, urlsplit

from fastapi import Depends
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope

from gainroute._util.files import plain
from gainroute.errors import GainrouteError
from gainroute.federation.coordinator.errors import (
    BadRequestError,
    TooLargeError,
    UnauthorizedError,
    UnsupportedError,
    as_refusal,
)

__all__ = [
    "OptionalName", "Version", "as_size", "error_response", "json_response", "network_location", "network_of",
    "read_body", "read_object",
]  # fmt: skip

JSON = "application/json"


def _of_path(name: str) -> Callable[[Request], str | None]:
    def found(request: Request) -> str | None:
        return request.path_params.get(name)

    return found


# Parts of a path, for endpoints that answer several paths: None where the path has no such part. A plain parameter with
# a default would also be read from the query.
OptionalName = Annotated[str | None, Depends(_of_path("name"))]
Version = Annotated[str | None, Depends(_of_path("version"))]


def network_location(url: str) -> SplitResult:
    """Split a URL from a header; a malformed one, such as ``http://[``, has neither host nor network location.

    Examples
    --------
    >>> network_location("http://[").netloc, network_location("//[::1]:8080").hostname
    ('', '::1')
    """
    try:
        return urlsplit(url)
    except ValueError:
        return urlsplit("")


def network_of(host: str) -> str:
    """The addresses that share a limit: one of IPv4, or a /64 network of IPv6, which one host usually owns.

    Examples
    --------
    >>> network_of("203.0.113.7"), network_of("::ffff:203.0.113.7"), network_of("2001:db8::2%eth0")
    ('203.0.113.7', '203.0.113.7', '2001:db8::/64')
    """
    if ":" not in host:
        return host
    address = ipaddress.IPv6Address(host.partition("%")[0])
    return str(address.ipv4_mapped or ipaddress.IPv6Network((int(address) >> 64 << 64, 64)))


def as_size(text: str) -> int | None:
    """The number of bytes that a header states; None if it is not a number of at most 18 digits.

    Examples
    --------
    >>> as_size("12"), as_size("-1"), as_size("9" * 5000)
    (12, None, None)
    """
    return int(text) if len(text) <= 18 and text.isascii() and text.isdigit() else None


async def read_body(scope: Scope, receive: Receive, limit: int) -> bytes:
    """Read a body of at most `limit` bytes; `scope` has passed `AuthMiddleware`."""
    headers = scope["state"]["headers"]
    encoding = headers.get(b"content-encoding", "identity")
    if encoding != "identity":
        raise UnsupportedError(f"Content-Encoding is {encoding[:40]!r}; send the body uncompressed")
    declared = as_size(headers.get(b"content-length", ""))
    if declared is not None and declared > limit:
        raise TooLargeError(f"the body has {declared} bytes; {limit} are allowed: split the request")
    chunks: list[bytes] = []
    size, more = 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise BadRequestError("the client disconnected before the end of the body")
        chunks.append(message.get("body", b""))
        size += len(chunks[-1])
        if size > limit:
            raise TooLargeError(f"the body has more than {limit} bytes, which are allowed: split the request")
        more = message.get("more_body", False)
    return b"".join(chunks)


async def read_object(request: Request, limit: int, allowed: Collection[str], *, empty: bool = False) -> dict[str, Any]:
    """Read a JSON object that has no other keys than `allowed`; with `empty`, no body is an object without keys."""
    text = await read_body(request.scope, request.receive, limit)
    try:
        body = {} if empty and not text else json.loads(text)
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
    """Write strict JSON: NaN becomes null, infinities become the texts "inf" and "-inf"."""
    text = json.dumps(plain(value), allow_nan=False, ensure_ascii=False)
    return Response(text, status, media_type=JSON, headers={"Cache-Control": "no-store"})


def error_response(error: GainrouteError) -> Response:
    """The response to an error."""
    error = as_refusal(error)
    headers: dict[str, str] = {}
    if error.retry_after is not None:
        headers["Retry-After"] = str(error.retry_after)
    if isinstance(error, UnauthorizedError):
        # Browsers ask for a password: it is the token, with any user name.
        headers["WWW-Authenticate"] = 'Bearer realm="gainroute", Basic realm="gainroute"'
    return Response(json.dumps({"error": str(error), "code": error.code}), error.status, headers, JSON)
