"""The coordinator's HTTP application, and inference requests alone."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from fake_federation import ADMIN, IDS, K, federation

from gainroute.errors import GainrouteError
from tests.fuzz.mutate import mutate_bytes, mutate_json
from tests.fuzz.targets.base import ServerError, Target

REQUEST_SECONDS = 30.0
JSON_REQUEST = {"inputs": [{"name": "id", "shape": [2], "datatype": "BYTES", "data": IDS[:2]}]}
BINARY_REQUEST = {
    "id": "r", "parameters": {"binary_data_output": True},
    "inputs": [{"name": "id", "shape": [2], "datatype": "BYTES", "parameters": {"binary_data_size": 12}}],
    "outputs": [{"name": "label", "parameters": {"binary_data": True}}, {"name": "probabilities"}],
}  # fmt: skip
CALLS: tuple[tuple[str, str, Any], ...] = (
    ("POST", "/v2/models/gainroute/infer", JSON_REQUEST),
    ("POST", "/v2/models/gainroute/infer", BINARY_REQUEST),
    ("POST", "/v2/models/gainroute/versions/1/infer", JSON_REQUEST),
    ("POST", "/feedback", {"decision_id": "0006605b471d9825", "label": "ant", "probability": 0.5}),
    ("POST", "/admin/budget", {"budget": 0.2}),
    ("POST", "/admin/threshold", {"threshold": 0.05}),
    ("POST", "/admin/router", {"artifact": "two.safetensors", "fusion": {"strong": "strong.npz"}}),
    ("POST", "/admin/router", {"rollback": True}),
    ("POST", "/admin/shadow", {"artifact": "two.safetensors"}),
    ("POST", "/admin/shadow", {"drop": True}),
    ("POST", "/admin/drift", {"reset": True}),
    ("DELETE", "/admin/decisions?sample_id=s1", None),
    ("GET", "/admin/audit?limit=3", None),
    ("GET", "/api/status", None),
    ("GET", "/api/decisions?limit=3&route=round1&before=9", None),
    ("GET", "/api/decisions/0006605b471d9825/explanation", None),
    ("GET", "/api/rate?seconds=600", None),
    ("GET", "/api/history", None),
    ("GET", "/api/federation", None),
    ("GET", "/api/curve", None),
    ("GET", "/metrics", None),
    ("GET", "/", None),
    ("GET", "/v2/models/gainroute", None),
    ("GET", "/v2/models/gainroute/versions/1/ready", None),
    ("GET", "/v2/models/gainroute/config", None),
    ("GET", "/v2/models/gainroute/stats", None),
    ("POST", "/v2/repository/models/gainroute/load", {}),
    ("POST", "/admin/shadow", {"swap": True}),
    ("POST", "/feedback", {"feedback": [{"sample_id": "s1", "label": "ant"}, {"sample_id": "s2", "label": 0}]}),
    ("GET", "/docs", None),
    ("POST", "/v2/repository/index", {"ready": True}),
)


def http_seed(method: str, path: str, body: Any) -> bytes:
    """A request as an input: the request line, headers, an empty line, the body."""
    text, raw = b"" if body is None else json.dumps(body).encode(), b""
    headers = [b"host: 127.0.0.1", f"authorization: Bearer {ADMIN}".encode(), b"content-type: application/json"]
    if body is BINARY_REQUEST:
        raw = b"".join(len(name).to_bytes(4, "little") + name.encode() for name in IDS[:2])
        headers.append(b"inference-header-content-length: %d" % len(text))
    return b"\n".join([f"{method} {path}".encode(), *headers, b"", text + raw])


def mutate_http(data: bytes, rng: random.Random) -> bytes:
    """Mutate the body as JSON, keeping the header that gives its length; or the head."""
    head, _, body = data.partition(b"\n\n")
    if body[:1] == b"{" and rng.random() < 0.7:
        lines = [line for line in head.split(b"\n") if not line.startswith(b"inference-header")]
        if lines == head.split(b"\n"):
            return head + b"\n\n" + mutate_json(body, rng)
        size = next((int(v) for line in head.split(b"\n") if (v := line.partition(b": ")[2][:9]).isdigit()), 0)
        text, raw = mutate_json(body[:size], rng), body[size:]
        raw = mutate_bytes(raw, rng) if rng.random() < 0.3 else raw
        return b"\n".join([*lines, b"inference-header-content-length: %d" % len(text), b"", text + raw])
    if rng.random() < 0.3:
        extra = rng.choice((
            b"origin: http://[", b"host: [", b"authorization: Basic \xe9", b"authorization: Bearer x", b"origin: null",
            b"inference-header-content-length: 99999999999999999999", b"content-length: -1", b"content-encoding: gzip",
            b"x-request-id: ../\x00", b"inference-header-content-length: " + b"9" * 5000,
        ))  # fmt: skip
        return head + b"\n" + extra + b"\n\n" + body
    return mutate_bytes(head, rng) + b"\n\n" + body


@contextlib.contextmanager
def http(folder: Path) -> Iterator[Target]:
    """The whole HTTP application of a coordinator with parties in this process."""
    from gainroute.federation.coordinator.app import create_app
    from gainroute.federation.coordinator.coordinator import Coordinator

    loop = asyncio.new_event_loop()
    fed = federation(folder)
    np.savez(folder / "strong.npz", ids=np.array(IDS), strong_posterior=np.full((len(IDS), K), 1 / K))
    coordinator = Coordinator(fed.settings, fed.parties, load_strong=fed.load_strong)
    loop.run_until_complete(coordinator.start())
    app = create_app(coordinator, manage=False)

    async def ask(data: bytes) -> str:
        head, _, body = data.partition(b"\n\n")
        line, *lines = head.split(b"\n")
        method, _, target = line.partition(b" ")
        path, _, query = target.partition(b"?")
        headers = [(n.strip().lower(), v.strip()) for n, _, v in (line.partition(b":") for line in lines)]
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "scheme": "http", "headers": headers,
            "method": method.decode("latin-1").upper() or "GET", "path": path.decode("utf-8", "replace") or "/",
            "raw_path": path, "query_string": query, "root_path": "",
            "client": (f"127.0.{len(data) % 256}.{sum(data) % 256}", 1),  # wrong tokens are limited by address
            "server": ("127.0.0.1", 8080),
        }  # fmt: skip
        status: list[int] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.start":
                status.append(message["status"])

        await app(scope, receive, send)
        if len(status) != 1 or (status[0] >= 500 and status[0] != 503):
            raise ServerError(f"status {status} for {data[:200]!r}")
        return str(status[0])

    def run(data: bytes) -> str:
        return loop.run_until_complete(asyncio.wait_for(ask(data), REQUEST_SECONDS))

    try:
        yield Target([http_seed(*call) for call in CALLS], mutate_http, run)
    finally:
        loop.run_until_complete(coordinator.stop())
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()


@contextlib.contextmanager
def requests(folder: Path) -> Iterator[Target]:
    """Inference requests alone, in JSON and with binary tensors, which is much faster than the whole application."""
    from gainroute.federation.coordinator.open_inference import parse_request

    seeds = [http_seed("POST", "", JSON_REQUEST), http_seed("POST", "", BINARY_REQUEST)]

    def run(data: bytes) -> str:
        head, _, body = data.partition(b"\n\n")
        header = head.rpartition(b"inference-header-content-length: ")[2] if b"inference-header-" in head else None
        try:
            parse_request(body, None if header is None else header.decode("latin-1"), 1024)
        except GainrouteError:
            return "refused"
        return "read"

    yield Target(seeds, mutate_http, run)
