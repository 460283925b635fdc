"""The coordinator's end of the wire: a connection that keeps itself alive, and believes only what makes sense."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from typing import Any

import numpy as np

from gainroute.errors import InputError
from gainroute.federation.pki.certificates import CertificateFiles, Identity
from gainroute.federation.pki.credentials import ReloadingCertificate
from gainroute.federation.transport.base import (
    PartyDescription,
    PartyError,
    PartyRefusedError,
    PartyUnavailableError,
    Reply,
)
from gainroute.federation.transport.checks import check_codec_offered, find_model
from gainroute.federation.transport.grpc_session import ClientOptions, Session, Terms, failure_error
from gainroute.federation.transport.proto import party_pb2 as pb
from gainroute.federation.transport.wire import POSTERIOR_ENCODING, chunks, read_answer
from gainroute.io.ids import id_texts

__all__ = ["ClientOptions", "GrpcConnection"]

DEFAULT_MESSAGE_BYTES = 4 << 20  # what gRPC reads where nothing is said
STANDS = 1.0  # seconds after which a connection that ends is made again at once

log = logging.getLogger(__name__)


class GrpcConnection:
    """A `PartyConnection` over mutual TLS, opened at the first call and kept open since.

    A lost connection is made again in the background. Until that has worked, calls fail at once. A caller may stop
    waiting at any time (`asyncio.wait_for`).

    Parameters
    ----------
    name
        The party's name. What answers at `address` must show a certificate for it.
    address
        ``host:port``.
    files
        The coordinator's certificate and key, and the authority it trusts. Changed files are taken without a gap.
    options
        Timeouts and limits.
    """

    def __init__(self, name: str, address: str, files: CertificateFiles, options: ClientOptions | None = None) -> None:
        self._name = Identity("party", name).name
        self._address = address
        self._certificate = ReloadingCertificate(files)
        self._options = options or ClientOptions()
        self._session: Session | None = None
        self._error: PartyError | None = None
        self._attempted: asyncio.Event | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._retiring: set[asyncio.Task[None]] = set()
        self._closed = False

    @property
    def name(self) -> str:
        """The party's name."""
        return self._name

    @property
    def address(self) -> str:
        """Where it is."""
        return self._address

    @property
    def connected(self) -> bool:
        """Whether a stream stands now."""
        return self._session is not None and not self._session.ended.done()

    @property
    def certificate_expires(self) -> datetime | None:
        """When the party's certificate ends, as it said when last asked; None where it has not been reached."""
        seconds = self._session.told.certificate_not_after if self._session is not None else 0
        return datetime.fromtimestamp(seconds, timezone.utc) if seconds else None

    async def describe(self) -> PartyDescription:
        """Ask who it is and what it can answer with. It also looks for new model versions then."""
        session = await self._connected()
        return await session.describe(self._options.connect_timeout)

    def posteriors(self, ids: Sequence[Any], *, model: str, request_id: str) -> Awaitable[Reply]:
        """Round 1: local posteriors by the model version named."""
        ask = pb.Request(round=pb.ROUND_POSTERIORS, model=model, request_id=request_id)
        return self._asked(ask, ids)

    def embeddings(self, ids: Sequence[Any], *, model: str, codec: str, request_id: str) -> Awaitable[Reply]:
        """Round 2: embeddings by the model version named, through the codec named, decoded again."""
        ask = pb.Request(round=pb.ROUND_EMBEDDINGS, model=model, codec=codec, request_id=request_id)
        return self._asked(ask, ids)

    async def close(self) -> None:
        """Let go of the connection."""
        self._closed = True
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
        if self._session is not None:
            await self._session.close()
        for task in list(self._retiring):
            task.cancel()
        await asyncio.gather(*self._retiring, return_exceptions=True)

    # ---- asking -------------------------------------------------------------------------------------

    def _asked(self, ask: pb.Request, ids: Sequence[Any]) -> Awaitable[Reply]:
        """Send at once where there is nothing to wait for: the usual case, on every request's way, takes no task."""
        session = self._session
        if session is None or session.ended.done():
            return self._ask_later(ask, ids)
        terms = session.terms.get((ask.round, ask.model, ask.codec))
        if terms is None:
            return self._ask_later(ask, ids)
        try:
            return self._send(session, terms, ask, ids)
        except PartyError as error:
            return _failed(error)

    async def _ask_later(self, ask: pb.Request, ids: Sequence[Any]) -> Reply:
        """Connect first, and where the party has not named the model, ask it anew what it has."""
        session = await self._connected()
        if not _knows(session.description, ask.model):
            await session.describe(self._options.connect_timeout)
        terms = session.terms[ask.round, ask.model, ask.codec] = self._terms(session, ask)
        return await self._send(session, terms, ask, ids)

    def _terms(self, session: Session, ask: pb.Request) -> Terms:
        """What an answer to such a request must be."""
        description, told = session.description, session.told
        if description is None:
            raise PartyUnavailableError(session.party, "it has not described itself yet")
        model = find_model(description, ask.model)
        longest = min(told.max_message_bytes or DEFAULT_MESSAGE_BYTES, self._options.max_message_bytes)
        if ask.round == pb.ROUND_POSTERIORS:
            return Terms(len(description.classes), POSTERIOR_ENCODING, True, told.max_samples, longest)
        check_codec_offered(description, ask.codec)
        return Terms(model.dimension, ask.codec, False, told.max_samples, longest)

    def _send(self, session: Session, terms: Terms, ask: pb.Request, ids: Sequence[Any]) -> Awaitable[Reply]:
        try:
            texts = id_texts(ids)
            parts = chunks(texts, terms.width, max_samples=terms.max_samples, message_bytes=terms.message_bytes)
            if len(parts) > 1:
                return _joined([self._part(session, terms, _copy(ask), texts[part]) for part in parts])
            if not texts:
                return _nothing(terms.width)
            return self._part(session, terms, ask, texts)
        except (InputError, UnicodeEncodeError) as error:
            raise PartyRefusedError(self._name, f"an id is not valid: {error}") from error

    def _part(self, session: Session, terms: Terms, ask: pb.Request, ids: list[str]) -> asyncio.Future[Reply]:
        ask.ids.extend(ids)
        model, rows = ask.model, len(ids)

        def read(response: pb.Response) -> Reply:
            kind = response.WhichOneof("result")
            if kind == "failure":
                raise failure_error(self._name, response.failure)
            if kind != "answer":
                raise PartyRefusedError(self._name, "it answered with neither an answer nor a failure")
            answer = response.answer
            values = read_answer(
                self._name, answer, model=model, rows=rows, width=terms.width, encoding=terms.encoding,
                posterior=terms.posterior,
            )  # fmt: skip
            return Reply(values, len(answer.values.data))

        return session.send(ask, read)

    # ---- staying connected --------------------------------------------------------------------------

    async def _connected(self) -> Session:
        if self._session is not None and not self._session.ended.done():
            return self._session
        if self._closed:
            raise PartyUnavailableError(self._name, "the connection was closed: make a new one")
        if self._keeper is None:
            self._attempted = asyncio.Event()
            self._keeper = asyncio.ensure_future(self._keep())
        while self._session is None or self._session.ended.done():
            if self._error is not None:
                raise type(self._error)(self._name, str(self._error).removeprefix(f"party {self._name!r}: "))
            if self._attempted is None or self._closed:
                raise PartyUnavailableError(self._name, "the connection was closed: make a new one")
            self._attempted.clear()
            await self._attempted.wait()
        return self._session

    async def _open(self) -> Session:
        credentials = self._certificate.channel()
        if self._certificate.info.days_left() <= 0:
            where = self._certificate.files.certificate
            raise PartyUnavailableError(self._name, f"this coordinator's own certificate {where} has expired: renew it")
        return await Session.open(self._name, self._address, credentials, self._options)

    async def _keep(self) -> None:
        """Connect; when the stream ends, connect again; replace it by a new one when files or age ask for it."""
        first, longest = self._options.first_backoff, self._options.longest_backoff
        loop = asyncio.get_running_loop()
        backoff = first
        try:
            while True:
                try:
                    self._session = await self._open()
                except PartyError as error:
                    self._say(error)
                else:
                    self._say(None)
                    born = loop.time()
                    await self._watch()
                    if loop.time() - born > STANDS:
                        backoff = first
                        continue
                await asyncio.sleep(backoff * random.uniform(0.5, 1.0))  # noqa: S311 (spreads attempts, no secret)
                backoff = min(2 * backoff, longest)
        finally:
            self._say(PartyUnavailableError(self._name, "the connection was closed: make a new one"))

    def _say(self, error: PartyError | None) -> None:
        if error is not None and self._error is None and not self._closed:
            log.warning("party not reached", extra={"party": self._name, "reason": str(error)})
        self._error = error
        if self._attempted is not None:
            self._attempted.set()

    async def _watch(self) -> None:
        """Return when the stream has ended; meanwhile swap it where files or age ask for it."""
        loop = asyncio.get_running_loop()
        born, stale = loop.time(), False
        while self._session is not None:
            await asyncio.wait({self._session.ended}, timeout=self._options.look_seconds)
            if self._session.ended.done():
                await self._session.close()
                return
            stale |= self._certificate.reload() or loop.time() - born > self._options.refresh_seconds
            if stale:
                with suppress(PartyError):  # the old one still stands: try again at the next look
                    fresh = await self._open()
                    old, self._session = self._session, fresh
                    born, stale = loop.time(), False
                    self._retire(old)

    def _retire(self, session: Session) -> None:
        task = asyncio.ensure_future(session.retire())
        self._retiring.add(task)
        task.add_done_callback(self._retiring.discard)


def _knows(description: PartyDescription | None, model: str) -> bool:
    return description is not None and any(found.hash == model for found in description.models)


async def _joined(parts: Sequence[asyncio.Future[Reply]]) -> Reply:
    replies = await asyncio.gather(*parts)
    return Reply(np.concatenate([r.values for r in replies]), sum(r.payload_bytes for r in replies))


async def _nothing(width: int) -> Reply:
    return Reply(np.zeros((0, width), np.float32), 0)


async def _failed(error: PartyError) -> Reply:
    raise error


def _copy(request: pb.Request) -> pb.Request:
    copy = pb.Request()
    copy.CopyFrom(request)
    return copy
