"""The coordinator's end of the gRPC transport: a connection that reconnects by itself and validates every answer."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import Any

import numpy as np

from gainroute.errors import InputError, SettingError
from gainroute.federation.pki.certificates import CertificateFiles, Identity
from gainroute.federation.pki.credentials import ReloadingCertificate
from gainroute.federation.tracing import traceparent
from gainroute.federation.transport.base import (
    PartyAgreementError,
    PartyDescription,
    PartyError,
    PartyRefusedError,
    PartyUnavailableError,
    Reply,
)
from gainroute.federation.transport.grpc_session import ClientOptions, GrpcSession
from gainroute.federation.transport.masked import read_masked
from gainroute.federation.transport.proto import party_pb2 as pb
from gainroute.federation.transport.wire import POSTERIOR_ENCODING, chunks, read_answer
from gainroute.io.ids import id_texts

__all__ = ["ClientOptions", "GrpcConnection", "connect_grpc"]

DEFAULT_MESSAGE_BYTES = 4 << 20  # gRPC's own limit, where a party states none
STABLE_SECONDS = 1.0  # a connection that lasted longer is replaced at once when it ends
CLOSED = "the connection was closed: open a new one"

ERRORS: Mapping[int, type[PartyError]] = {
    pb.Failure.CODE_QUOTA: PartyUnavailableError,
    pb.Failure.CODE_UNAVAILABLE: PartyUnavailableError,
    pb.Failure.CODE_AGREEMENT: PartyAgreementError,
}

log = logging.getLogger(__name__)


def connect_grpc(name: str, address: str, tls: CertificateFiles | None) -> GrpcConnection:
    """Connect by gRPC with mutual TLS to ``host:port``."""
    if tls is None:
        raise SettingError("tls: ca, certificate and key are needed to reach parties; `gainroute certs` makes them")
    return GrpcConnection(name, address, tls)


class GrpcConnection:
    """A `PartyConnection` over mutual TLS, opened by the first call and kept open.

    A lost connection is restored in the background. Until then, calls fail at once. A caller may stop waiting at any
    time (`asyncio.wait_for`).

    Parameters
    ----------
    name
        Name of the party. The server at `address` must present a certificate for it.
    address
        ``host:port``.
    files
        The coordinator's certificate and key, and the authority it trusts. Changed files are used without interruption.
    options
        Timeouts and limits.
    """

    def __init__(self, name: str, address: str, files: CertificateFiles, options: ClientOptions | None = None) -> None:
        self.name = Identity("party", name).name
        self.address = address
        self._certificate = ReloadingCertificate(files)
        self._options = options or ClientOptions()
        self._session: GrpcSession | None = None
        self._error: PartyError | None = None
        self._attempted = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None
        self._retiring: set[asyncio.Task[None]] = set()
        self._closed = False

    @property
    def connected(self) -> bool:
        """Whether a stream is open."""
        return self._session is not None and not self._session.ended.done()

    @property
    def certificate_expires(self) -> datetime | None:
        """When the party's certificate expires, as last described; None if the party has not been reached."""
        return None if self._session is None else self._session.description.certificate_expires

    async def describe(self) -> PartyDescription:
        """Ask the party to describe itself, which also makes it look for new model versions."""
        return await (await self._connected()).describe()

    def posteriors(self, ids: Sequence[Any], *, model: str, request_id: str) -> Awaitable[Reply]:
        """Round 1: local posteriors from the model version with this hash."""
        return self._ask(pb.Request(round=pb.ROUND_POSTERIORS, model=model, request_id=request_id), ids)

    def embeddings(self, ids: Sequence[Any], *, model: str, codec: str, request_id: str) -> Awaitable[Reply]:
        """Round 2: embeddings from the model version with this hash, as they are after encoding and decoding."""
        request = pb.Request(round=pb.ROUND_EMBEDDINGS, model=model, codec=codec, request_id=request_id)
        return self._ask(request, ids)

    def masked(self, ids: Sequence[Any], *, model: str, plan: bytes, nonce: bytes, request_id: str) -> Awaitable[Reply]:
        """Round 1, masked: see `gainroute.federation.transport.masked`."""
        request = pb.Request(round=pb.ROUND_POSTERIORS, model=model, request_id=request_id)
        request.mask_plan, request.mask_nonce = plan, nonce
        return self._ask(request, ids)

    async def close(self) -> None:
        """Close the connection."""
        self._closed = True
        tasks = [*self._retiring, *([] if self._keeper is None else [self._keeper])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._session is not None:
            await self._session.close()

    # ---- requests -----------------------------------------------------------------------------------

    def _ask(self, request: pb.Request, ids: Sequence[Any]) -> Awaitable[Reply]:
        """Send a request at once, without a task per party; only an unknown model, or no connection, is waited for."""
        session, request.traceparent = self._session, traceparent()
        if session is None or session.ended.done() or not session.offers(request.model):
            return self._ask_later(request, ids)
        try:
            return self._send(session, request, ids)
        except PartyError as error:
            failed: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
            failed.set_exception(error)
            return failed

    async def _ask_later(self, request: pb.Request, ids: Sequence[Any]) -> Reply:
        session = await self._connected()
        if not session.offers(request.model):
            await session.describe()  # the party may have loaded it since
        return await self._send(session, request, ids)

    def _send(self, session: GrpcSession, request: pb.Request, ids: Sequence[Any]) -> Awaitable[Reply]:
        description = session.description
        width, encoding = description.model(request.model).dimension, request.codec
        if request.round == pb.ROUND_POSTERIORS:
            width, encoding = len(description.classes), POSTERIOR_ENCODING
        else:
            description.check_codec(encoding)
        message_bytes = min(description.max_message_bytes or DEFAULT_MESSAGE_BYTES, self._options.max_message_bytes)
        limits: dict[str, int] = {"max_samples": description.max_samples, "message_bytes": message_bytes}
        try:
            texts = id_texts(ids)
            parts = [pb.Request(ids=texts[part]) for part in chunks(texts, width, **limits)]
        except (InputError, UnicodeEncodeError) as error:
            raise PartyRefusedError(self.name, f"an id is not valid: {error}") from error
        if request.mask_plan and len(parts) > 1:  # the other parties might split it elsewhere, and no mask would cancel
            reason = f"{len(texts)} ids need {len(parts)} messages, masked requests one: raise its max_samples and "
            raise PartyRefusedError(self.name, reason + "max_message_bytes, or lower the coordinator's max_batch")
        for part in parts:
            part.MergeFrom(request)
        replies: list[asyncio.Future[Reply]] = []
        try:
            replies.extend(session.request(part, partial(self._read, part, width, encoding)) for part in parts)
        except PartyError:  # too many are queued: those of this request are withdrawn
            for reply in replies:
                reply.cancel()
            raise
        return replies[0] if len(replies) == 1 else _joined(replies, width)

    def _read(self, request: pb.Request, width: int, encoding: str, response: pb.Response) -> Reply:
        kind = response.WhichOneof("result")
        if kind == "answer":
            shape, posterior = (len(request.ids), width), request.round == pb.ROUND_POSTERIORS
            if request.mask_plan:
                return read_masked(self.name, response.answer, model=request.model, shape=shape)
            return read_answer(
                self.name, response.answer, model=request.model, shape=shape, encoding=encoding, posterior=posterior
            )
        if kind is None:
            raise PartyRefusedError(self.name, "its response holds neither an answer nor a failure")
        kind, reason = ERRORS.get(response.failure.code, PartyRefusedError), response.failure.message
        raise kind(self.name, reason or "it refuses the request without a reason")

    # ---- staying connected --------------------------------------------------------------------------

    async def _connected(self) -> GrpcSession:
        if self._keeper is None and not self._closed:
            self._keeper = asyncio.ensure_future(self._keep())
        while self._session is None or self._session.ended.done():
            if self._closed:
                raise PartyUnavailableError(self.name, CLOSED)
            if self._error is not None:
                raise type(self._error)(self.name, self._error.reason)
            self._attempted.clear()
            await self._attempted.wait()
        return self._session

    async def _open(self) -> GrpcSession:
        credentials = self._certificate.channel()
        if self._certificate.info.days_left() <= 0:
            path = self._certificate.files.certificate
            raise PartyUnavailableError(self.name, f"this coordinator's own certificate {path} has expired: renew it")
        session = GrpcSession(self.name, self.address, credentials, self._options)
        await session.open()
        return session

    async def _keep(self) -> None:
        """Connect, and connect again whenever the stream ends."""
        loop = asyncio.get_running_loop()
        backoff = self._options.first_backoff
        try:
            while True:
                try:
                    self._session = await self._open()
                except PartyError as error:
                    self._note(error)
                else:
                    self._note(None)
                    opened = loop.time()
                    await self._until_ended()
                    if loop.time() - opened > STABLE_SECONDS:
                        backoff = self._options.first_backoff
                        continue
                await asyncio.sleep(backoff * random.uniform(0.5, 1.0))  # noqa: S311 (spreads attempts, no secret)
                backoff = min(2 * backoff, self._options.longest_backoff)
        finally:
            self._note(PartyUnavailableError(self.name, CLOSED))

    def _note(self, error: PartyError | None) -> None:
        if error is not None and self._error is None and not self._closed:
            log.warning("party not reached", extra={"party": self.name, "reason": str(error)})
        self._error = error
        self._attempted.set()

    async def _until_ended(self) -> None:
        """Return when the stream has ended; until then, replace it when it is old or the certificate changes."""
        loop = asyncio.get_running_loop()
        opened, stale = loop.time(), False
        while self._session is not None:
            await asyncio.wait({self._session.ended}, timeout=self._options.look_seconds)
            if self._session.ended.done():
                await self._session.close()
                return
            stale |= self._certificate.reload() or loop.time() - opened > self._options.refresh_seconds
            if stale:
                with suppress(PartyError):  # the old one still works: try again at the next look
                    fresh = await self._open()
                    retiring = asyncio.ensure_future(self._session.retire())
                    self._retiring.add(retiring)
                    retiring.add_done_callback(self._retiring.discard)
                    self._session = fresh
                    opened, stale = loop.time(), False


async def _joined(parts: Sequence[Awaitable[Reply]], width: int) -> Reply:
    replies = await asyncio.gather(*parts)
    values = np.concatenate([np.zeros((0, width), np.float32), *(reply.values for reply in replies)])
    return Reply(values, sum(reply.payload_bytes for reply in replies))
