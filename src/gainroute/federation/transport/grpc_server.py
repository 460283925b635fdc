"""The party's end of the wire: one stream a coordinator, many requests on it, every one of them admitted anew."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol

import grpc
from grpc import aio

from gainroute.errors import SettingError
from gainroute.federation.pki.access import Access, AccessDeniedError, Caller, peer_certificate
from gainroute.federation.pki.credentials import ReloadingCertificate
from gainroute.federation.transport.proto import party_pb2 as pb
from gainroute.federation.transport.proto import party_pb2_grpc

__all__ = ["SERVICE", "GrpcServer", "PartyService", "ServerOptions", "failure"]

SERVICE = "gainroute.party.v1.Party"

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ServerOptions:
    """Limits of a server.

    Attributes
    ----------
    max_message_bytes
        Longest message read or sent.
    max_in_flight
        Requests of one stream worked on at once; the stream is not read further until one is done.
    max_streams
        Calls served at once, over all coordinators.
    reflection
        Whether the server tells its protocol to those it answers.
    """

    max_message_bytes: int = 16 << 20
    max_in_flight: int = 256
    max_streams: int = 256
    reflection: bool = False


class PartyService(Protocol):
    """What a party does with what arrives."""

    async def describe(self, caller: Caller) -> pb.DescribeReply:
        """Say who it is and what it can answer with."""
        ...

    def answer(self, caller: Caller, request: pb.Request) -> pb.Response | Awaitable[pb.Response]:
        """Answer at once, or promise to: neither raises, a failure is a response too."""
        ...

    def denied(self, error: AccessDeniedError) -> None:
        """Hear of a caller that was turned away."""
        ...


def failure(request: pb.Request, code: pb.Failure.Code, message: str, retry_after: float = 0.0) -> pb.Response:
    """A response that says no."""
    told = pb.Failure(code=code, message=message, retry_after_seconds=retry_after)
    return pb.Response(correlation=request.correlation, failure=told)


class _Servicer(party_pb2_grpc.PartyServicer):  # type: ignore[misc]  # generated code carries no types
    def __init__(self, service: PartyService, access: Access, options: ServerOptions) -> None:
        self._service = service
        self._access = access
        self._options = options
        self.leaving = asyncio.Event()

    async def Describe(self, request: pb.DescribeRequest, context: Any) -> pb.DescribeReply:  # noqa: ARG002, N802
        return await self._service.describe(self._access.admit(peer_certificate(context)))

    async def Stream(self, requests: AsyncIterator[pb.Request], context: Any) -> None:  # noqa: N802
        stream = _Stream(self._service, context, self._options.max_in_flight)
        reading = asyncio.ensure_future(self._read(requests, context, stream))
        leaving = asyncio.ensure_future(self.leaving.wait())
        try:
            await asyncio.wait({reading, leaving}, return_when=asyncio.FIRST_COMPLETED)
            await stream.finish()
            if reading.done():
                reading.result()  # raises what ended it
        except AccessDeniedError as error:
            self._service.denied(error)
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, str(error))
        finally:
            leaving.cancel()
            reading.cancel()
            stream.cancel()
        if self.leaving.is_set():
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the party is shutting down")

    async def _read(self, requests: AsyncIterator[pb.Request], context: Any, stream: _Stream) -> None:
        certificate = peer_certificate(context)
        caller = self._access.admit(certificate)
        async for request in requests:
            if request.cancel:
                stream.forget(request.correlation)
                continue
            self._access.recheck(caller, certificate)
            if self.leaving.is_set():
                await stream.write(failure(request, pb.Failure.CODE_UNAVAILABLE, "the party is shutting down"))
                continue
            await stream.take(caller, request)


class _Stream:
    """The requests of one stream that are being worked on."""

    def __init__(self, service: PartyService, context: Any, max_in_flight: int) -> None:
        self._service = service
        self._context = context
        self._slots = asyncio.Semaphore(max_in_flight)
        self._writing = asyncio.Lock()  # gRPC sends one message at a time
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._sending: set[int] = set()

    async def take(self, caller: Caller, request: pb.Request) -> None:
        if request.correlation in self._tasks:
            told = f"correlation {request.correlation} is in use; every open request needs its own"
            await self.write(failure(request, pb.Failure.CODE_INVALID, told))
            return
        answer = self._service.answer(caller, request)
        if isinstance(answer, pb.Response):
            await self.write(answer)
            return
        await self._slots.acquire()
        task = asyncio.ensure_future(self._later(request.correlation, answer))
        self._tasks[request.correlation] = task
        task.add_done_callback(lambda _: self._done(request.correlation))

    async def _later(self, correlation: int, answer: Awaitable[pb.Response]) -> None:
        response = await answer
        self._sending.add(correlation)
        await self.write(response)

    def _done(self, correlation: int) -> None:
        self._slots.release()
        self._sending.discard(correlation)
        task = self._tasks.pop(correlation)
        if not task.cancelled() and task.exception() is not None and self._context.cancelled() is False:
            log.error("a response could not be sent", exc_info=task.exception())

    async def write(self, response: pb.Response) -> None:
        async with self._writing:
            await self._context.write(response)

    def forget(self, correlation: int) -> None:
        # Once it is being sent it is too late: gRPC would still be sending, and refuse the next response.
        if correlation in self._tasks and correlation not in self._sending:
            self._tasks[correlation].cancel()

    async def finish(self) -> None:
        while self._tasks:
            await asyncio.wait(list(self._tasks.values()))

    def cancel(self) -> None:
        for task in list(self._tasks.values()):
            task.cancel()


class _Guard(aio.ServerInterceptor):  # type: ignore[misc]  # grpc carries no types
    """Admits callers before anything is answered: health and reflection as well."""

    def __init__(self, access: Access, denied: Callable[[AccessDeniedError], None]) -> None:
        self._access = access
        self._denied = denied

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
        try:
            self._access.admit(peer_certificate(context))
        except AccessDeniedError as error:
            self._denied(error)
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
    service
        What answers.
    access
        Who is answered.
    certificate
        The party's own; changed files are taken at the next connection.
    options
        Limits.
    """

    def __init__(
        self,
        service: PartyService,
        access: Access,
        certificate: ReloadingCertificate,
        options: ServerOptions | None = None,
    ) -> None:
        self._service, self._access, self._certificate = service, access, certificate
        self._options = options or ServerOptions()
        self._server: Any = None
        self._health: Any = None
        self._servicer: _Servicer | None = None

    async def start(self, listen: str) -> int:
        """Listen at ``host:port`` (port 0: any that is free), and tell the port."""
        from grpc_health.v1 import health_pb2_grpc
        from grpc_health.v1.health import aio as health

        options = self._options
        self._servicer = _Servicer(self._service, self._access, options)
        self._server = aio.server(
            interceptors=[_Guard(self._access, self._service.denied)],
            options=[
                ("grpc.max_receive_message_length", options.max_message_bytes),
                ("grpc.max_send_message_length", options.max_message_bytes),
                ("grpc.so_reuseport", 0),  # a second party at the same port is an error, not a lottery
                ("grpc.http2.max_ping_strikes", 0),
                ("grpc.keepalive_time_ms", 30_000),
                ("grpc.keepalive_timeout_ms", 10_000),
            ],
            maximum_concurrent_rpcs=options.max_streams,
        )
        party_pb2_grpc.add_PartyServicer_to_server(self._servicer, self._server)
        self._health = health.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        if options.reflection:
            from grpc_reflection.v1alpha import reflection

            names = (SERVICE, "grpc.health.v1.Health", reflection.SERVICE_NAME)
            reflection.enable_server_reflection(names, self._server)
        try:
            port = int(self._server.add_secure_port(listen, self._certificate.server()))
        except RuntimeError as error:
            raise SettingError(f"listen is {listen!r}, which cannot be bound ({error}): is the port in use?") from error
        await self._server.start()
        await self._say("SERVING")
        return port

    async def _say(self, status: str) -> None:
        from grpc_health.v1 import health_pb2

        value = health_pb2.HealthCheckResponse.ServingStatus.Value(status)
        for name in ("", SERVICE):
            await self._health.set(name, value)

    async def stop(self, grace: float) -> None:
        """Drain: take no new request, finish those in flight for up to `grace` seconds, then end."""
        if self._server is None or self._servicer is None:
            return
        await self._say("NOT_SERVING")
        self._servicer.leaving.set()
        await self._server.stop(grace)
