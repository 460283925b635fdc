"""One channel and one stream to a party: requests are told apart by number, answers come in any order."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import grpc
from grpc import aio

from gainroute.federation.pki.certificates import Identity
from gainroute.federation.transport.base import PartyDescription, PartyError, PartyRefusedError, PartyUnavailableError
from gainroute.federation.transport.proto import party_pb2 as pb
from gainroute.federation.transport.proto import party_pb2_grpc
from gainroute.federation.transport.wire import read_description

__all__ = ["ClientOptions", "Session", "Terms", "failure_error", "rpc_error"]

T = TypeVar("T")

MOST_UNSENT = 1024


@dataclass(frozen=True)
class ClientOptions:
    """How a coordinator keeps a connection.

    Attributes
    ----------
    connect_timeout
        Seconds that connecting, or `Describe`, may take.
    max_message_bytes
        Longest message read or sent; what is longer is cut into several.
    first_backoff, longest_backoff
        Seconds between attempts to reconnect, doubled each time.
    refresh_seconds
        Age at which a connection is replaced by a new one, without a gap: both sides look at certificates again.
    look_seconds
        How often the certificate's files are looked at.
    http_proxy
        Whether the variables http_proxy and https_proxy are heeded.
    """

    connect_timeout: float = 5.0
    max_message_bytes: int = 16 << 20
    first_backoff: float = 0.1
    longest_backoff: float = 2.0
    refresh_seconds: float = 3600.0
    look_seconds: float = 10.0
    http_proxy: bool = False


def rpc_error(party: str, error: aio.AioRpcError | tuple[Any, str]) -> PartyError:
    """What gRPC says as what a coordinator can act on."""
    code, details = error if isinstance(error, tuple) else (error.code(), error.details() or "")
    status = grpc.StatusCode
    if "CERTIFICATE_VERIFY_FAILED" in details or "Hostname" in details or "verification" in details:
        told = f"what answers there does not show the certificate of party {party!r} ({details})"
        return PartyRefusedError(party, f"{told}: check the address, the certificate's name and the authority")
    if code in (status.PERMISSION_DENIED, status.UNAUTHENTICATED):
        return PartyRefusedError(party, f"it does not answer this coordinator: {details}")
    if code is status.UNIMPLEMENTED:
        return PartyRefusedError(party, f"it does not speak gainroute.party.v1: {details}")
    if code is status.RESOURCE_EXHAUSTED and "larger than max" in details:
        return PartyRefusedError(party, f"a message was too long: {details}")
    if code is status.UNAVAILABLE and "Socket closed" in details:
        details += "; it may have refused this coordinator's certificate"
    return PartyUnavailableError(party, f"{code.name.lower() if code else 'closed'}: {details}")


def failure_error(party: str, failure: pb.Failure) -> PartyError:
    """A party's no as an error."""
    if failure.code in (pb.Failure.CODE_QUOTA, pb.Failure.CODE_UNAVAILABLE):
        return PartyUnavailableError(party, failure.message)
    return PartyRefusedError(party, failure.message)


@dataclass(frozen=True)
class Terms:
    """What an answer must be: numbers a row, their encoding, posteriors or not; and how much a message may hold."""

    width: int
    encoding: str
    posterior: bool
    max_samples: int
    message_bytes: int


class _Waiting(asyncio.Future[Any]):
    """Stands for the answer to one request. Cancelled, it tells the party, and disturbs nobody else's answer.

    A future and no task: a coordinator asks every party for every request, and a task a party costs more than all
    that is done with its answer.
    """

    def __init__(self, session: Session, number: int, read: Callable[[pb.Response], Any]) -> None:
        super().__init__(loop=asyncio.get_running_loop())
        self._session, self._number, self._read = session, number, read

    def cancel(self, msg: Any | None = None) -> bool:
        self._session.give_up(self._number)
        return super().cancel(msg)

    def answered(self, response: pb.Response) -> None:
        """Hold what is read from the response, or the error that reading it raises."""
        if self.done():
            return
        try:
            self.set_result(self._read(response))
        except Exception as error:  # noqa: BLE001 (whoever waits for the answer gets it)
            self.set_exception(error)


class Session:
    """A stream that stands, until it ends. `ended` is done then, and holds why.

    Parameters
    ----------
    party
        Its name: TLS checks that the certificate shown carries it.
    channel
        To the party.
    """

    def __init__(self, party: str, channel: Any) -> None:
        self.party = party
        self.told = pb.DescribeReply()
        self.description: PartyDescription | None = None
        self.terms: dict[tuple[int, str, str], Terms] = {}  # by round, model and codec, as last described
        self.ended: asyncio.Future[PartyError] = asyncio.get_running_loop().create_future()
        self._channel = channel
        self._stub = party_pb2_grpc.PartyStub(channel)
        self._call: Any = None
        self._numbers = itertools.count(1)
        self._waiting: dict[int, _Waiting] = {}
        self._unsent: asyncio.Queue[pb.Request] = asyncio.Queue()
        self._tasks: list[asyncio.Task[None]] = []

    @classmethod
    async def open(
        cls, party: str, address: str, credentials: grpc.ChannelCredentials, options: ClientOptions
    ) -> Session:
        """Connect, ask who is there, and open the stream."""
        channel = aio.secure_channel(
            address,
            credentials,
            options=[
                ("grpc.ssl_target_name_override", Identity("party", party).dns),
                ("grpc.default_authority", Identity("party", party).dns),
                ("grpc.use_local_subchannel_pool", 1),  # a new attempt is a new connection, with the files of now
                ("grpc.enable_http_proxy", int(options.http_proxy)),
                ("grpc.max_receive_message_length", options.max_message_bytes),
                ("grpc.max_send_message_length", options.max_message_bytes),
                ("grpc.keepalive_time_ms", 20_000),
                ("grpc.keepalive_timeout_ms", 5_000),
                ("grpc.http2.max_pings_without_data", 0),
            ],
        )
        session = cls(party, channel)
        try:
            await session.describe(options.connect_timeout)
            session._call = session._stub.Stream()
            await asyncio.wait_for(session._call.wait_for_connection(), options.connect_timeout)
        except BaseException as error:
            await channel.close()
            if isinstance(error, aio.AioRpcError):
                raise rpc_error(party, error) from error
            if isinstance(error, (asyncio.TimeoutError, TimeoutError)):
                raise PartyUnavailableError(party, f"no stream within {options.connect_timeout} s") from error
            raise
        session._tasks = [asyncio.ensure_future(session._read()), asyncio.ensure_future(session._write())]
        return session

    async def describe(self, timeout: float) -> PartyDescription:
        """Ask who is there; kept in `told` as it was said, and in `description` as it is believed."""
        try:
            self.told = await self._stub.Describe(pb.DescribeRequest(), timeout=timeout)
        except aio.AioRpcError as error:
            raise rpc_error(self.party, error) from error
        self.description = read_description(self.party, self.told)
        self.terms = {}
        return self.description

    def send(self, request: pb.Request, read: Callable[[pb.Response], T]) -> asyncio.Future[T]:
        """Send a request; what `read` makes of its answer is in the future. To cancel that is to give the request up.

        Parameters
        ----------
        request
            Its number is written into it.
        read
            Looks at the answer when it is there, and raises a `PartyError` where it cannot be believed.
        """
        if self.ended.done():
            raise self.ended.result()
        if self._unsent.qsize() >= MOST_UNSENT:
            raise PartyUnavailableError(self.party, f"{MOST_UNSENT} requests wait to be sent: it does not keep up")
        number = next(self._numbers)
        request.correlation = number
        waiting = self._waiting[number] = _Waiting(self, number, read)
        self._unsent.put_nowait(request)
        return waiting

    def give_up(self, number: int) -> None:
        """Tell the party that nobody waits for an answer any more."""
        if self._waiting.pop(number, None) is not None and not self.ended.done():
            self._unsent.put_nowait(pb.Request(correlation=number, cancel=True))

    async def _write(self) -> None:
        # A task of its own: gRPC ends the whole stream where a caller is cancelled while it writes.
        with suppress(aio.AioRpcError, asyncio.InvalidStateError, aio.UsageError):
            while True:
                await self._call.write(await self._unsent.get())

    async def _read(self) -> None:
        reason: PartyError = PartyUnavailableError(self.party, "the connection was closed")
        try:
            while True:
                response = await self._call.read()
                if response is aio.EOF:
                    reason = rpc_error(self.party, (await self._call.code(), await self._call.details() or ""))
                    break
                waiting = self._waiting.pop(response.correlation, None)
                if waiting is not None:
                    waiting.answered(response)
        except aio.AioRpcError as error:
            reason = rpc_error(self.party, error)
        finally:
            self._end(reason)

    def _end(self, reason: PartyError) -> None:
        if not self.ended.done():
            self.ended.set_result(reason)
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(type(reason)(self.party, _message(reason)))
        self._waiting.clear()

    async def retire(self, longest: float = 30.0) -> None:
        """Let what is in flight finish, then close: another session takes what is new."""
        loop = asyncio.get_running_loop()
        until = loop.time() + longest
        while self._waiting and not self.ended.done() and loop.time() < until:
            await asyncio.wait(list(self._waiting.values()), timeout=until - loop.time())
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


def _message(error: PartyError) -> str:
    return str(error).removeprefix(f"party {error.party!r}: ")
