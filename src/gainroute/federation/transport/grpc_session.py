"""One channel and one stream to a party. A number identifies each request; answers arrive in any order."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import grpc
from grpc import aio

from gainroute.federation.pki.certificates import Identity
from gainroute.federation.transport.base import PartyDescription, PartyError, PartyRefusedError, PartyUnavailableError
from gainroute.federation.transport.proto import party_pb2 as pb
from gainroute.federation.transport.proto import party_pb2_grpc
from gainroute.federation.transport.wire import read_description

__all__ = ["ClientOptions", "GrpcSession", "open_channel", "rpc_error"]

Read = Callable[[pb.Response], Any]

MAX_UNSENT = 1024


@dataclass(frozen=True)
class ClientOptions:
    """How a coordinator maintains a connection.

    Attributes
    ----------
    connect_timeout
        Seconds allowed for connecting and for `Describe`.
    max_message_bytes
        Longest message; longer requests are split.
    first_backoff, longest_backoff
        Seconds between attempts to reconnect, doubled each time.
    refresh_seconds
        Age at which a connection is replaced without interruption, so that both sides check certificates again.
    look_seconds
        Interval at which the certificate files are checked for changes.
    """

    connect_timeout: float = 5.0
    max_message_bytes: int = 16 << 20
    first_backoff: float = 0.1
    longest_backoff: float = 2.0
    refresh_seconds: float = 3600.0
    look_seconds: float = 10.0


def rpc_error(party: str, code: Any, details: str) -> PartyError:
    """Convert a gRPC status to an error that a coordinator can act on."""
    status = grpc.StatusCode
    if "CERTIFICATE_VERIFY_FAILED" in details or "Hostname" in details or "verification" in details:
        return PartyRefusedError(
            party,
            f"the server at its address does not present the certificate of party {party!r} ({details}): check the "
            "address, the name in the certificate and the authority",
        )
    if code in (status.PERMISSION_DENIED, status.UNAUTHENTICATED):
        return PartyRefusedError(party, f"it does not answer this coordinator: {details}")
    if code is status.UNIMPLEMENTED:
        return PartyRefusedError(party, f"it does not support the protocol gainroute.party.v1: {details}")
    if code is status.RESOURCE_EXHAUSTED and "larger than max" in details:
        return PartyRefusedError(party, f"a message was too long: {details}")
    if code is status.UNAVAILABLE and "Socket closed" in details:
        details += "; it may have refused this coordinator's certificate"
    return PartyUnavailableError(party, f"{code.name.lower() if code else 'closed'}: {details}")


def open_channel(party: str, address: str, credentials: grpc.ChannelCredentials, options: ClientOptions) -> aio.Channel:
    """Open a channel to the party of that name, and to no one else."""
    return aio.secure_channel(
        address,
        credentials,
        options=[
            ("grpc.ssl_target_name_override", Identity("party", party).dns),
            ("grpc.default_authority", Identity("party", party).dns),
            ("grpc.use_local_subchannel_pool", 1),  # a new attempt is a new connection, with the current files
            ("grpc.enable_http_proxy", 0),
            ("grpc.max_receive_message_length", options.max_message_bytes),
            ("grpc.max_send_message_length", options.max_message_bytes),
            ("grpc.keepalive_time_ms", 20_000),
            ("grpc.keepalive_timeout_ms", 5_000),
            ("grpc.http2.max_pings_without_data", 0),
        ],
    )


class GrpcSession:
    """An open stream, until it ends. The future `ended` then holds the reason.

    Parameters
    ----------
    party
        Name of the party. TLS checks that its certificate carries it.
    address
        ``host:port``.
    credentials
        The coordinator's.
    options
        Timeouts and limits.
    """

    description: PartyDescription  # the last valid one

    def __init__(self, party: str, address: str, credentials: grpc.ChannelCredentials, options: ClientOptions) -> None:
        self.party = party
        self.ended: asyncio.Future[PartyError] = asyncio.get_running_loop().create_future()
        self._timeout = options.connect_timeout
        self._channel = open_channel(party, address, credentials, options)
        self._stub = party_pb2_grpc.PartyStub(self._channel)
        self._call: Any = None
        self._numbers = itertools.count(1)
        self._waiting: dict[int, tuple[asyncio.Future[Any], Read]] = {}
        self._unsent: asyncio.Queue[pb.Request] = asyncio.Queue()
        self._tasks: list[asyncio.Task[None]] = []

    async def open(self) -> None:
        """Connect, ask the party to describe itself, and open the stream."""
        try:
            await self.describe()
            self._call = self._stub.Stream()
            await asyncio.wait_for(self._call.wait_for_connection(), self._timeout)
        except BaseException as error:
            await self._channel.close()
            if isinstance(error, aio.AioRpcError):
                raise rpc_error(self.party, error.code(), error.details() or "") from error
            if isinstance(error, (asyncio.TimeoutError, TimeoutError)):
                raise PartyUnavailableError(self.party, f"no stream within {self._timeout} s") from error
            raise
        self._tasks = [asyncio.ensure_future(self._read()), asyncio.ensure_future(self._write())]

    async def describe(self) -> PartyDescription:
        """Ask the party to describe itself, and keep the result in `description`."""
        # In a task of its own: a channel that is closed meanwhile cancels the call, but not the caller.
        asked = asyncio.ensure_future(self._stub.Describe(pb.DescribeRequest(), timeout=self._timeout))
        try:
            await asyncio.wait({asked})
            if asked.cancelled():
                raise PartyUnavailableError(self.party, "the connection was closed")
            reply = asked.result()
        except aio.AioRpcError as error:
            raise rpc_error(self.party, error.code(), error.details() or "") from error
        finally:
            asked.cancel()
        self.description = read_description(self.party, reply)
        return self.description

    def offers(self, model: str) -> bool:
        """Whether the party has described a model version with this hash."""
        return any(found.hash == model for found in self.description.models)

    def request(self, request: pb.Request, read: Read = lambda response: response) -> asyncio.Future[Any]:
        """Send a request, whose number is set here; the future holds what `read` returns for its response.

        Cancelling the future withdraws the request.
        """
        if self.ended.done():
            raise self._reason()
        if self._unsent.qsize() >= MAX_UNSENT:
            raise PartyUnavailableError(self.party, f"{MAX_UNSENT} requests are queued: the party does not keep up")
        number = request.correlation = next(self._numbers)
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer, read
        answer.add_done_callback(lambda _: self._withdraw(number))
        self._unsent.put_nowait(request)
        return answer

    def _withdraw(self, number: int) -> None:
        if self._waiting.pop(number, None) is not None:  # the caller no longer waits for the answer
            self._unsent.put_nowait(pb.Request(correlation=number, cancel=True))

    async def _write(self) -> None:
        # In a task of its own: gRPC ends the whole stream if a caller is cancelled while it writes.
        with suppress(aio.AioRpcError, asyncio.InvalidStateError, aio.UsageError):
            while True:
                await self._call.write(await self._unsent.get())

    async def _read(self) -> None:
        reason: PartyError = PartyUnavailableError(self.party, "the connection was closed")
        try:
            while True:
                response = await self._call.read()
                if response is aio.EOF:
                    reason = rpc_error(self.party, await self._call.code(), await self._call.details() or "")
                    break
                answer, read = self._waiting.pop(response.correlation, (None, None))
                if answer is None or read is None or answer.done():
                    continue
                try:
                    answer.set_result(read(response))
                except Exception as error:  # noqa: BLE001 (the caller gets it)
                    answer.set_exception(error)
        except aio.AioRpcError as error:
            reason = rpc_error(self.party, error.code(), error.details() or "")
        finally:
            self._end(reason)

    def _end(self, reason: PartyError) -> None:
        if not self.ended.done():
            self.ended.set_result(reason)
        waiting, self._waiting = self._waiting, {}
        for answer, _ in waiting.values():
            if not answer.done():
                answer.set_exception(self._reason())

    def _reason(self) -> PartyError:
        reason = self.ended.result()
        return type(reason)(self.party, reason.reason)  # every caller raises an error of its own

    async def retire(self, longest: float = 30.0) -> None:
        """Let requests in flight finish, then close. New requests go to another session."""
        if self._waiting:
            await asyncio.wait([answer for answer, _ in self._waiting.values()], timeout=longest)
        await self.close()

    async def close(self) -> None:
        """End the stream and the channel."""
        self._end(PartyUnavailableError(self.party, "the connection was closed"))
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._call is not None:
            self._call.cancel()
        await self._channel.close()
