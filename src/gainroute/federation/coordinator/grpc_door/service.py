"""The calls of the gRPC front door: authenticated before a message is read, and refused as over HTTP."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import unquote

import grpc
from grpc import aio
from grpc_health.v1 import health_pb2

from gainroute.errors import GainrouteError
from gainroute.federation.coordinator.api.http import network_of
from gainroute.federation.coordinator.api.triton import (
    EXTENSIONS,
    LOAD_REFUSED,
    model_config,
    model_statistics,
    repository_index,
)
from gainroute.federation.coordinator.auth import Authenticator, log_access, request_id_of
from gainroute.federation.coordinator.coordinator import Coordinator
from gainroute.federation.coordinator.errors import (
    BadRequestError,
    BusyError,
    CoordinatorError,
    SlowRequestError,
    TooManyRequestsError,
    as_refusal,
)
from gainroute.federation.coordinator.grpc_door.messages import read_infer, read_message, write_infer, write_reply
from gainroute.federation.coordinator.grpc_door.proto import open_inference_pb2 as pb
from gainroute.federation.coordinator.inference import Asker, answer, check_role
from gainroute.federation.coordinator.open_inference import model_metadata, server_metadata
from gainroute.federation.coordinator.settings import ServerSettings
from gainroute.federation.coordinator.tokens import ROLES, Grant, bearer
from gainroute.federation.transport.bounds import printable

__all__ = ["SERVICE", "STATUS", "InferenceService"]

log = logging.getLogger("gainroute.coordinator")

SERVICE = "inference.GRPCInferenceService"
HEALTH = "grpc.health.v1.Health"
LONGEST_TEXT = 4000  # characters of a refusal: clients accept 8 KiB of metadata
Code = grpc.StatusCode
STATUS = {
    400: Code.INVALID_ARGUMENT, 401: Code.UNAUTHENTICATED, 403: Code.PERMISSION_DENIED, 404: Code.NOT_FOUND,
    408: Code.DEADLINE_EXCEEDED, 409: Code.FAILED_PRECONDITION, 413: Code.RESOURCE_EXHAUSTED,
    415: Code.UNIMPLEMENTED, 422: Code.FAILED_PRECONDITION, 429: Code.RESOURCE_EXHAUSTED, 500: Code.INTERNAL,
    503: Code.UNAVAILABLE,
}  # fmt: skip


@dataclass(frozen=True)
class _Method:
    """Answers messages of the class `request`; without one it is public: it answers everyone, and reads no message."""

    path: str
    answer: Callable[[Any, Any], Awaitable[bytes]]  # of the asker and the message
    request: Any = None


class InferenceService:
    """Answers calls. A call that was accepted is answered to the end, also if its client has left.

    Otherwise a client that cancels its calls could have more samples in flight than the batcher admits.
    """

    def __init__(self, coordinator: Coordinator, authenticator: Authenticator) -> None:
        self._coordinator, self._authenticator = coordinator, authenticator
        self._limits = coordinator.settings.server
        self._open = _OpenCalls(self._limits)
        self._tasks: set[asyncio.Task[Any]] = set()

    def handlers(self) -> list[grpc.GenericRpcHandler]:
        """The service, and the standard health service's `Check`, for load balancers and Kubernetes."""
        public = {"ServerLive": self._live, "ServerReady": self._ready}
        others = {
            "ServerMetadata": (pb.Empty, self._server_metadata),
            "ModelReady": (pb.ModelRequest, self._model_ready),
            "ModelMetadata": (pb.ModelRequest, self._model_metadata),
            "ModelConfig": (pb.ModelRequest, self._config),
            "ModelStatistics": (pb.ModelRequest, self._statistics),
            "ModelInfer": (pb.InferRequest, self._infer),
            "RepositoryIndex": (pb.IndexRequest, self._index),
            "RepositoryModelLoad": (pb.RepositoryRequest, self._load),
            "RepositoryModelUnload": (pb.RepositoryRequest, self._load),
        }
        methods = [_Method(f"/{SERVICE}/{name}", run, kind) for name, (kind, run) in others.items()]
        methods += [_Method(f"/{SERVICE}/{name}", run) for name, run in public.items()]
        return [self._handler(SERVICE, methods), self._handler(HEALTH, [_Method(f"/{HEALTH}/Check", self._health)])]

    def _handler(self, service: str, methods: Sequence[_Method]) -> grpc.GenericRpcHandler:
        # A unary call is a stream of one message: as a stream, the call is seen before its message has arrived.
        made = {
            method.path.rpartition("/")[2]: grpc.stream_unary_rpc_method_handler(partial(self._call, method))
            for method in methods
        }
        return grpc.method_handlers_generic_handler(service, made)

    # ---- a call --------------------------------------------------------------------------------------

    async def _call(self, method: _Method, _: Any, context: Any) -> bytes:
        headers = {name.encode(): text for name, text in context.invocation_metadata() if isinstance(text, str)}
        request_id = request_id_of(headers)
        trailing = [("x-request-id", request_id)]
        ended = asyncio.get_running_loop().create_future()
        context.add_done_callback(lambda _: ended.set_result(None))
        address = _address(context.peer())  # now: a call that has ended has none
        task = asyncio.ensure_future(self._answer(method, headers, request_id, address, context, ended))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        reply = await asyncio.shield(task)
        if isinstance(reply, bytes):
            context.set_trailing_metadata(tuple(trailing))
            return reply
        trailing.append(("error-code", reply.code))
        if reply.retry_after is not None:
            trailing.append(("retry-after", str(reply.retry_after)))
        await context.abort(STATUS[reply.status], printable(str(reply), LONGEST_TEXT), tuple(trailing))
        raise AssertionError("abort raises")

    async def _answer(
        self,
        method: _Method,
        headers: Mapping[bytes, str],
        request_id: str,
        address: str,
        context: Any,
        ended: asyncio.Future[None],
    ) -> bytes | CoordinatorError:
        began, status, grant = time.perf_counter(), 500, None
        infer = method.request is pb.InferRequest
        reply: bytes | CoordinatorError
        try:
            if method.request is None:
                reply = await method.answer(None, None)
            else:
                grant = await self._authenticate(headers, address)
                if infer:
                    check_role(grant)
                with self._open.one(network_of(address), ended):
                    message = read_message(method.request, await self._read(context))
                    reply = await method.answer(Asker(grant, request_id, headers.get(b"traceparent", "")), message)
            status = 200
        except GainrouteError as error:
            reply = as_refusal(error)
            status = reply.status
        except Exception:
            log.exception("a call failed", extra={"request_id": request_id})
            reply = CoordinatorError("the coordinator failed to answer; its log says why")
        finally:
            seconds = time.perf_counter() - began
            if infer and grant is not None:
                self._coordinator.metrics.requested(status, seconds)
            who = "" if grant is None else grant.who
            log_access("gRPC", method.path, status, seconds, request_id, who, infer=infer)
        return reply

    async def _authenticate(self, headers: Mapping[bytes, str], address: str) -> Grant:
        token = bearer(headers.get(b"authorization"), basic=True)
        grant = await self._authenticator.find(token, address, ROLES)
        return grant or self._authenticator.without(token, headers, None)  # pages cannot speak gRPC

    async def _read(self, context: Any) -> bytes:
        limits = self._limits
        try:
            message = await asyncio.wait_for(context.read(), limits.body_seconds)
        except asyncio.TimeoutError:
            raise SlowRequestError(f"the message did not arrive within {limits.body_seconds:g} s") from None
        except aio.BaseError:  # the server was stopped, or the call has ended
            message = aio.EOF
        if message is aio.EOF:  # what was too large, gRPC has refused itself
            raise BadRequestError(
                f"the call ended before its message, of at most {limits.max_body_bytes} bytes, had arrived"
            )
        return bytes(message)

    # ---- what is answered ------------------------------------------------------------------------------

    async def _live(self, *_: Any) -> bytes:
        return bytes(pb.LiveReply(live=True).SerializeToString())

    async def _ready(self, *_: Any) -> bytes:
        return bytes(pb.ReadyReply(ready=not self._coordinator.not_ready()).SerializeToString())

    async def _health(self, *_: Any) -> bytes:
        kind = health_pb2.HealthCheckResponse
        return bytes(
            kind(status=kind.NOT_SERVING if self._coordinator.not_ready() else kind.SERVING).SerializeToString()
        )

    async def _server_metadata(self, *_: Any) -> bytes:
        return write_reply(pb.ServerMetadata, server_metadata(*EXTENSIONS))

    async def _model_ready(self, _: Asker, message: Any) -> bytes:
        self._coordinator.check_model(message.name, message.version or None)
        return await self._ready()

    async def _model_metadata(self, _: Asker, message: Any) -> bytes:
        coordinator = self._coordinator
        coordinator.check_model(message.name, message.version or None)
        known = model_metadata(message.name, [coordinator.deployment.name], coordinator.classes)
        return write_reply(pb.ModelMetadata, known)

    async def _config(self, _: Asker, message: Any) -> bytes:
        self._coordinator.check_model(message.name, message.version or None)
        return write_reply(pb.ConfigReply, {"config": model_config(self._coordinator)})

    async def _statistics(self, _: Asker, message: Any) -> bytes:
        found = model_statistics(self._coordinator, message.name or None, message.version or None)
        return write_reply(pb.StatisticsReply, found)

    async def _index(self, _: Asker, message: Any) -> bytes:
        return write_reply(pb.IndexReply, {"models": repository_index(self._coordinator, message.ready)})

    async def _load(self, _: Asker, message: Any) -> bytes:
        self._coordinator.check_model(message.model_name)
        raise BadRequestError(LOAD_REFUSED)

    async def _infer(self, asker: Asker, message: Any) -> bytes:
        name, version = message.model_name, message.model_version or None
        self._coordinator.check_model(name, version)
        request = read_infer(message, self._coordinator.settings.batching.max_batch)
        return await answer(self._coordinator, asker, request, name, version, write_infer)


class _OpenCalls:
    """Calls in progress after authentication: the limits on connections apply to them, since connections are gRPC's."""

    def __init__(self, settings: ServerSettings) -> None:
        self._settings = settings
        self._count: Counter[str] = Counter()

    @contextmanager
    def one(self, network: str, ended: asyncio.Future[None]) -> Iterator[None]:
        """Count a call, or refuse it; it counts until it is answered and `ended`: its client has read the answer."""
        found, limits = self._count[network], self._settings
        if found >= limits.max_connections_per_address:
            raise TooManyRequestsError(f"{found} calls are open from {network}; no more are allowed: wait for answers")
        if self._count.total() >= limits.max_connections:
            raise BusyError(f"{self._count.total()} calls are open; no more are allowed: try again in a moment")
        self._count[network] += 1
        try:
            yield
        finally:
            if ended.done():
                self._release(network)
            else:
                ended.add_done_callback(lambda _: self._release(network))

    def _release(self, network: str) -> None:
        self._count[network] -= 1
        if not self._count[network]:
            del self._count[network]


def _address(peer: str) -> str:
    """The address in gRPC's name of a peer.

    Examples
    --------
    >>> _address("ipv4:127.0.0.1:50152"), _address("ipv6:%5B::1%5D:50152"), _address("")
    ('127.0.0.1', '::1', '')
    """
    return unquote(peer.partition(":")[2]).rpartition(":")[0].strip("[]")
