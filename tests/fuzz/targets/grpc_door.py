"""Calls of the coordinator's gRPC front door."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from fake_federation import IDS, federation
from grpc_front_door import infer_request, packed

from tests.fuzz.mutate import mutate_message
from tests.fuzz.targets.base import ServerError, Target

CALL_SECONDS = 30.0


class _AbortError(Exception):
    """What gRPC raises where a call is refused."""


class _Context:
    """A call that has arrived: its message, and how it ends."""

    def __init__(self, message: bytes) -> None:
        self._message = message
        self.code = "OK"
        self._ended: list[Any] = []

    def add_done_callback(self, callback: Any) -> None:
        self._ended.append(callback)

    def end(self) -> None:
        for callback in self._ended:
            callback(self)

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return ()

    def peer(self) -> str:
        return "ipv4:127.0.0.1:1"

    async def read(self) -> bytes:
        return self._message

    def set_trailing_metadata(self, metadata: Any) -> None:
        pass

    async def abort(self, code: Any, text: str, metadata: Any) -> None:
        text.encode()  # what gRPC sends
        self.code = code.name
        raise _AbortError


@contextlib.contextmanager
def grpc(folder: Path) -> Iterator[Target]:
    """The messages of all calls, from their bytes to the reply; the first byte selects the call."""
    from gainroute.federation.coordinator.auth import Authenticator
    from gainroute.federation.coordinator.coordinator import Coordinator
    from gainroute.federation.coordinator.grpc_door.proto import open_inference_pb2 as pb
    from gainroute.federation.coordinator.grpc_door.service import SERVICE, InferenceService

    loop = asyncio.new_event_loop()
    fed = federation(folder)
    coordinator = Coordinator(fed.settings, fed.parties, load_strong=fed.load_strong)
    loop.run_until_complete(coordinator.start())
    service, _ = InferenceService(coordinator, Authenticator(fed.settings)).handlers()
    content = [name.encode() for name in IDS[:2]]
    region = {"shared_memory_region": pb.Parameter(string_param="r")}
    asked = pb.ModelRequest(name="gainroute", version=coordinator.deployment.name)
    kinds: list[tuple[Any, str]] = [
        (infer_request(packed(*content), id="r", outputs=[{"name": "label"}, {"name": "class"}]), "ModelInfer"),
        (infer_request(typed=content, model_version=coordinator.deployment.name), "ModelInfer"),
        (infer_request(packed(*content), input_parameters=region, parameters={"priority": {}}), "ModelInfer"),
        *((asked, method) for method in ("ModelReady", "ModelMetadata", "ModelConfig", "ModelStatistics")),
        (pb.IndexRequest(ready=True), "RepositoryIndex"),
        (pb.RepositoryRequest(model_name="gainroute"), "RepositoryModelLoad"),
    ]

    async def call(data: bytes) -> str:
        _, method = kinds[(data[:1] or b"\x00")[0] % len(kinds)]
        handler = service.service(SimpleNamespace(method=f"/{SERVICE}/{method}", invocation_metadata=()))
        context = _Context(data[1:])
        with contextlib.suppress(_AbortError):
            await handler.stream_unary(None, context)
        context.end()
        if context.code == "INTERNAL":
            raise ServerError(f"{method} failed for {data[:200]!r}")
        return context.code

    def run(data: bytes) -> str:
        return loop.run_until_complete(asyncio.wait_for(call(data), CALL_SECONDS))

    seeds = [bytes([i]) + message.SerializeToString() for i, (message, _) in enumerate(kinds)]
    try:
        yield Target(seeds, mutate_message([type(message) for message, _ in kinds]), run)
    finally:
        loop.run_until_complete(coordinator.stop())
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()
