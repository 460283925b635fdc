"""The party's end of the gRPC transport: one stream per coordinator, access checked again at every request."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Protocol

import grpc
from grpc import aio

from gainroute.errors import SettingError
from gainroute.federation.pki.access import Access, AccessDeniedError, Caller, peer_certificate
from gainroute.federation.pki.credentials import ReloadingCertificate
from gainroute.federation.transport.proto import party_pb2 as pb
from gainroute.federation.transport.proto import party_pb2_grpc
from gainroute.federation.transport.wire import failure

__all__ = ["SERVICE", "GrpcServer", "RequestHandler", "ServerOptions"]

SERVICE = "gainroute.party.v1.Party"
MAX_CALLS = 256  # served at once, over all coordinators

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ServerOptions:
    """Limits of a server.

    Attributes
    ----------
    max_message_bytes
        Longest message received or sent.
    max_in_flight
        Requests per stream that are processed at once. The stream is not read further until one of them is done.
    reflection
        Whether the gRPC reflection service is offered.
    """

    max_message_bytes: int = 16 << 20
    max_in_flight: int = 256
    reflection: bool = False


class RequestHandler(Protocol):
    """What the server calls for each request; `gainroute.federation.party.service` implements it."""

    async def describe(self, caller: Caller) -> pb.DescribeReply:
        """Describe the party."""
        ...

    def is_immediate(self, request: pb.Request) -> bool:
        """Whether `answer` takes so little time that the next request may wait for it."""
        ...

    async def answer(self, caller: Caller, request: pb.Request) -> pb.Response:
        """Answer a request. It does not raise: a failure is a response too."""
        ...

    def denied(self, error: AccessDeniedError) -> None:
        """Record that a caller was denied access."""
        ...

    def connected(self) -> None:
        """A TLS handshake begins. Called in any thread."""
        ...

    def called(self, peer: str) -> None:
        """A call arrived from this address and port, and may be denied."""
        ...


class _Servicer(party_pb2_grpc.PartyServicer):  # type: ignore[misc]  # generated code carries no types
    def __init__(self, handler: RequestHandler, access: Access, options: ServerOptions) -> None:
        self._handler = handler
        self._access = access
        self._options = options
        self.draining = asyncio.Event()

    async def Describe(self, request: pb.DescribeRequest, context: Any) -> pb.DescribeReply:  # noqa: ARG002, N802
        return await self._handler.describe(self._access.admit(peer_certificate(context)))

    async def Stream(self, requests: AsyncIterator[pb.Request], context: Any) -> None:  # noqa: N802
        stream = _Stream(self._handler, context, self._options.max_in_flight)
        reading = asyncio.ensure_future(self._read(requests, context, stream))
        draining = asyncio.ensure_future(self.draining.wait())
        try:
            await asyncio.wait({reading, draining}, return_when=asyncio.FIRST_COMPLETED)
            await stream.finish()
            if reading.done():
                reading.result()  # raises the error that ended it
        except AccessDeniedError as error:
            self._handler.denied(error)
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, str(error))
        finally:
            draining.cancel()
            reading.cancel()
            stream.cancel()
        if self.draining.is_set():
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the party is shutting down")

    async def _read(self, requests: AsyncIterator[pb.Request], context: Any, stream: _Stream) -> None:
        certificate = peer_certificate(context)
        caller = self._access.admit(certificate)
        async for request in requests:
            if request.cancel:
                stream.withdraw(request.correlation)
                continue
            self._access.recheck(caller, certificate)
            if self.draining.is_set():
                await stream.write(failure(request, pb.Failure.CODE_UNAVAILABLE, "the party is shutting down"))
                continue
            await stream.accept(caller, request)


class _Stream:
    """The requests in flight on one stream."""

    def __init__(self, handler: RequestHandler, context: Any, max_in_flight: int) -> None:
        self._handler = handler
        self._context = context
        self._slots = asyncio.Semaphore(max_in_flight)
        self._writing = asyncio.Lock()  # gRPC sends one message at a time
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._sending: set[int] = set()

    async def accept(self, caller: Caller, request: pb.Request) -> None:
        """Answer a request, or start answering it as soon as the number of requests in flight allows it."""
        number = request.correlation
        if number in self._tasks:
            reason = f"correlation {number} is in use; every open request needs a number of its own"
            await self.write(failure(request, pb.Failure.CODE_INVALID, reason))
            return
        if self._handler.is_immediate(request):
            await self.write(await self._handler.answer(caller, request))
            return
        await self._slots.acquire()
        task = self._tasks[number] = asyncio.ensure_future(self._answer(caller, request))
        task.add_done_callback(lambda _: self._done(number))

    async def _answer(self, caller: Caller, request: pb.Request) -> None:
        response = await self._handler.answer(caller, request)
        self._sending.add(request.correlation)
        await self.write(response)

    def _done(self, number: int) -> None:
        self._slots.release()
        self._sending.discard(number)
        task = self._tasks.pop(number)
        if not task.cancelled() and task.exception() is not None and self._context.cancelled() is False:
            log.error("a response could not be sent", exc_info=task.exception())

    async def write(self, response: pb.Response) -> None:
        """Send a response."""
        async with self._writing:
            await self._context.write(response)

    def withdraw(self, number: int) -> None:
        """Stop answering a request, unless its response is already being sent."""
        # gRPC goes on sending when the sender is cancelled, and then refuses the next response.
        if number in self._tasks and number not in self._sending:
            self._tasks[number].cancel()

    async def finish(self) -> None:
        """Wait until every request in flight is answered."""
        while self._tasks:
            await asyncio.wait(list(self._tasks.values()))
        async with self._writing:  # the reader may be sending an immediate answer
            pass

    def cancel(self) -> None:
        """Abandon the requests in flight."""
        for task in list(self._tasks.values()):
            task.cancel()


class _Guard(aio.ServerInterceptor):  # type: ignore[misc]  # grpc carries no types
    """Admits callers before any call is answered, including health and reflection."""

    def __init__(self, access: Access, handler: RequestHandler) -> None:
        self._access = access
        self._handler = handler

    async def intercept_service(self, continuation: Any, details: Any) -> Any:
        handler = await continuation(details)
        if handler is None:
            return None
        kinds = {
            "unary_unary": grpc.unary_unary_rpc_method_handler,
            "unary_stream": grpc.unary_stream_rpc_method_handler,
            "stream_unary": grpc.stream_unary_rpc_method_handler,
            "stream_stream": grpc.stream_stream_rpc_method_handler,
        }
        kind = next(name for name in kinds if getattr(handler, name) is not None)
        behaviour = self._guarded(getattr(handler, kind))
        return kinds[kind](behaviour, handler.request_deserializer, handler.response_serializer)

    async def _admit(self, context: Any) -> None:
        self._handler.called(context.peer())
        try:
            self._access.admit(peer_certificate(context))
        except AccessDeniedError as error:
            self._handler.denied(error)
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, str(error))

    def _guarded(self, behaviour: Any) -> Any:
        if inspect.isasyncgenfunction(behaviour):

            async def generate(request: Any, context: Any) -> AsyncIterator[Any]:
                await self._admit(context)
                async for response in behaviour(request, context):
                    yield response

            return generate

        async def run(request: Any, context: Any) -> Any:
            await self._admit(context)
            return await behaviour(request, context)

        return run


class GrpcServer:
    """Serves a party over mutual TLS.

    Parameters
    ----------
    handler
        Answers the requests.
    access
        Decides which callers are answered.
    certificate
        The party's own. Changed files are used from the next connection on.
    options
        Limits.
    training
        Carries out training tasks; None if the party does not train.
    """

    def __init__(
        self,
        handler: RequestHandler,
        access: Access,
        certificate: ReloadingCertificate,
        options: ServerOptions | None = None,
        training: party_pb2_grpc.TrainingServicer | None = None,
    ) -> None:
        self._training = training
        self._handler, self._access, self._certificate = handler, access, certificate
        self._options = options or ServerOptions()
        self._server: Any = None
        self._health: Any = None
        self._servicer: _Servicer | None = None

    async def start(self, listen: str) -> int:
        """Listen on ``host:port`` (port 0 takes a free one) and return the port."""
        from grpc_health.v1 import health_pb2_grpc
        from grpc_health.v1.health import aio as health

        options = self._options
        self._servicer = _Servicer(self._handler, self._access, options)
        self._server = aio.server(
            interceptors=[_Guard(self._access, self._handler)],
            options=[
                ("grpc.max_receive_message_length", options.max_message_bytes),
                ("grpc.max_send_message_length", options.max_message_bytes),
                ("grpc.so_reuseport", 0),  # two parties on one port is an error
                ("grpc.http2.max_ping_strikes", 0),
                ("grpc.keepalive_time_ms", 30_000),
                ("grpc.keepalive_timeout_ms", 10_000),
            ],
            maximum_concurrent_rpcs=MAX_CALLS,
        )
        party_pb2_grpc.add_PartyServicer_to_server(self._servicer, self._server)
        if self._training is not None:
            party_pb2_grpc.add_TrainingServicer_to_server(self._training, self._server)
        self._health = health.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        if options.reflection:
            from grpc_reflection.v1alpha import reflection

            names = (SERVICE, "grpc.health.v1.Health", reflection.SERVICE_NAME)
            reflection.enable_server_reflection(names, self._server)
        try:
            port = int(self._server.add_secure_port(listen, self._certificate.server(self._handler.connected)))
        except RuntimeError as error:
            raise SettingError(f"listen is {listen!r}, which cannot be bound ({error}): is the port in use?") from error
        await self._server.start()
        await self._set_health("SERVING")
        return port

    async def _set_health(self, status: str) -> None:
        from grpc_health.v1 import health_pb2

        value = health_pb2.HealthCheckResponse.ServingStatus.Value(status)
        for name in ("", SERVICE):
            await self._health.set(name, value)

    async def stop(self, grace: float) -> None:
        """Refuse new requests, finish those in flight for up to `grace` seconds, then stop."""
        if self._server is None or self._servicer is None:
            return
        await self._set_health("NOT_SERVING")
        self._servicer.draining.set()
        await self._server.stop(grace)
