"""What a party does with a request: checks it, charges it, answers it, and writes down that it did."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from gainroute.errors import DataError, GainrouteError, InputError
from gainroute.federation.party.audit import AuditLog
from gainroute.federation.party.quota import Quota
from gainroute.federation.party.sources import Source, Version
from gainroute.federation.pki.access import AccessDeniedError, Caller
from gainroute.federation.pki.credentials import ReloadingCertificate
from gainroute.federation.transport.checks import split_missing
from gainroute.federation.transport.grpc_server import failure
from gainroute.federation.transport.in_process import is_passing
from gainroute.federation.transport.proto import party_pb2 as pb
from gainroute.federation.transport.wire import POSTERIOR_ENCODING, write_answer

__all__ = ["Answering"]

log = logging.getLogger(__name__)

REVISION = 1
IMMEDIATE_SAMPLES = 2048  # a look-up of so many takes less than a millisecond: no thread is needed
SCAN_SECONDS = 1.0  # Describe looks for new versions at most so often
LONGEST_NAME = 256  # of what a coordinator may call things, in logs: they cannot be flooded by a long one
DENIAL_SECONDS = 60.0  # of one certificate's denials, one is written in so many seconds

ROUNDS: Mapping[int, int] = {pb.ROUND_POSTERIORS: 1, pb.ROUND_EMBEDDINGS: 2}


class Answering:
    """The `PartyService` of a party process.

    Parameters
    ----------
    name
        Of the party.
    source
        Where answers come from.
    certificate
        The party's own: when it ends is told to coordinators.
    quota, audit
        What each coordinator may ask for, and where that is written down.
    codecs
        Offered for embeddings.
    workers
        Threads that run model code.
    max_samples, max_message_bytes
        Most ids a request, and longest message.
    clock
        Seconds, never going back.
    """

    def __init__(
        self,
        name: str,
        source: Source,
        certificate: ReloadingCertificate,
        *,
        quota: Quota,
        audit: AuditLog,
        codecs: Sequence[str],
        workers: int = 1,
        max_samples: int = 65_536,
        max_message_bytes: int = 16 << 20,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name, self._source, self._certificate = name, source, certificate
        self._quota, self._audit, self._codecs = quota, audit, tuple(codecs)
        self._max_samples, self._max_message_bytes = max_samples, max_message_bytes
        self._clock = clock
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="model")
        self._scanner = ThreadPoolExecutor(1, thread_name_prefix="scan")
        self._denials: dict[str, float] = {}
        self.versions = source.scan()
        self._scanned = clock()
        if not self.versions:
            raise DataError("there is no model version to answer with: the log above says why; check [source]")

    # ---- versions -----------------------------------------------------------------------------------

    async def rescan(self) -> None:
        """Look for versions that came or went; answers go on meanwhile."""
        self._scanned = self._clock()
        loop = asyncio.get_running_loop()
        try:
            found = await loop.run_in_executor(self._scanner, self._source.scan)
        except (GainrouteError, OSError) as error:
            log.error("versions could not be looked for, those known stay", extra={"reason": str(error)})  # noqa: TRY400
            return
        if not found:
            log.error("no version is left, those known stay")
            return
        self.versions = found

    async def describe(self, caller: Caller) -> pb.DescribeReply:
        """Say who the party is and what it can answer with."""
        if self._clock() - self._scanned >= SCAN_SECONDS:
            await self.rescan()
        self._certificate.reload()
        log.debug("described", extra={"coordinator": caller.name})
        versions = list(self.versions.values())
        return pb.DescribeReply(
            name=self._name,
            classes=versions[0].classes,
            models=[pb.Model(hash=version.model.hash, dimension=version.model.dimension) for version in versions],
            codecs=self._codecs,
            revision=REVISION,
            max_samples=self._max_samples,
            max_message_bytes=self._max_message_bytes,
            certificate_not_after=int(self._certificate.info.not_after.timestamp()),
        )

    # ---- requests -----------------------------------------------------------------------------------

    def answer(self, caller: Caller, request: pb.Request) -> pb.Response | Awaitable[pb.Response]:
        """Answer at once where that is a look-up, else in a thread."""
        version = self.versions.get(request.model)
        refused = self._refusal(request, version) or self._charge(caller, request)
        if refused is not None or version is None:
            return self._close(caller, request, refused or failure(request, pb.Failure.CODE_UNKNOWN_MODEL, "gone"))
        if version.immediate and len(request.ids) <= IMMEDIATE_SAMPLES:
            try:
                response = self._compute(version, request)
            except Exception as error:  # noqa: BLE001 (whatever a model raises, the party goes on)
                response = self._failed(request, error)
            return self._close(caller, request, response)
        return self._later(caller, request, version)

    async def _later(self, caller: Caller, request: pb.Request, version: Version) -> pb.Response:
        loop = asyncio.get_running_loop()
        try:
            response = await loop.run_in_executor(self._pool, self._compute, version, request)
        except asyncio.CancelledError:
            self._record(caller, request, 0, "cancelled")
            raise
        except Exception as error:  # noqa: BLE001 (whatever a model raises, the party goes on)
            response = self._failed(request, error)
        return self._close(caller, request, response)

    def _refusal(self, request: pb.Request, version: Version | None) -> pb.Response | None:
        code = pb.Failure
        if request.round not in ROUNDS:
            return failure(request, code.CODE_INVALID, f"round is {request.round}; 1 or 2 is needed")
        if version is None:
            there = ", ".join(self.versions)
            return failure(
                request,
                code.CODE_UNKNOWN_MODEL,
                f"model {request.model[:LONGEST_NAME]!r} is unknown; there are: {there}",
            )
        if ROUNDS[request.round] == 2 and request.codec not in self._codecs:
            told = f"codec {request.codec[:LONGEST_NAME]!r} is not offered; allowed are: {', '.join(self._codecs)}"
            return failure(request, code.CODE_INVALID, told)
        count = len(request.ids)
        if not count:
            return failure(request, code.CODE_INVALID, "no ids were given; one or more are needed")
        if count > self._max_samples:
            told = f"{count} ids were given; at most {self._max_samples} a request are allowed: ask in parts"
            return failure(request, code.CODE_TOO_LARGE, told)
        width = len(version.classes) if ROUNDS[request.round] == 1 else version.model.dimension
        if 4 * width * count > self._max_message_bytes:
            told = f"{count} answers of {width} numbers are longer than {self._max_message_bytes} bytes: ask in parts"
            return failure(request, code.CODE_TOO_LARGE, told)
        return None

    def _charge(self, caller: Caller, request: pb.Request) -> pb.Response | None:
        over = self._quota.take(caller.name, ROUNDS[request.round], len(request.ids))
        if over is None:
            return None
        code = pb.Failure.CODE_TOO_LARGE if over.retry_after is None else pb.Failure.CODE_QUOTA
        return failure(request, code, over.message, over.retry_after or 0.0)

    def _compute(self, version: Version, request: pb.Request) -> pb.Response:
        ids = list(request.ids)
        if ROUNDS[request.round] == 1:
            values, missing = split_missing(version.posteriors(ids), len(ids), len(version.classes))
            encoding = POSTERIOR_ENCODING
        else:
            values, missing = split_missing(version.embeddings(ids), len(ids), version.model.dimension)
            encoding = request.codec
        response = pb.Response(correlation=request.correlation)
        write_answer(response.answer, version.model.hash, values, missing, encoding)
        return response

    def _failed(self, request: pb.Request, error: Exception) -> pb.Response:
        log.error("answering failed", extra=_named(request), exc_info=error)
        if isinstance(error, InputError):
            return failure(request, pb.Failure.CODE_INTERNAL, f"its model is broken: {error}")
        code = pb.Failure.CODE_UNAVAILABLE if is_passing(error) else pb.Failure.CODE_INTERNAL
        # The text of a foreign error may hold anything, a view or a password: it stays here.
        told = f"its model failed ({type(error).__name__}); its log has request {request.request_id[:LONGEST_NAME]}"
        return failure(request, code, told)

    # ---- writing down -------------------------------------------------------------------------------

    def _close(self, caller: Caller, request: pb.Request, response: pb.Response) -> pb.Response:
        """Write a request down before its answer leaves; what cannot be written down is not answered."""
        said_no = response.WhichOneof("result") == "failure"
        if said_no:
            outcome = pb.Failure.Code.Name(response.failure.code).removeprefix("CODE_").lower()
            more = _named(request) | {"outcome": outcome, "reason": response.failure.message}
            log.warning("refused", extra=more | {"coordinator": caller.name})
        else:
            outcome = "answered"
        if not self._record(caller, request, len(response.answer.missing), outcome):
            return failure(request, pb.Failure.CODE_UNAVAILABLE, "its audit log cannot be written")
        if log.isEnabledFor(logging.DEBUG) and not said_no:
            log.debug("answered", extra=_named(request) | {"count": len(request.ids)})
        return response

    def _record(self, caller: Caller, request: pb.Request, unknown: int, outcome: str) -> bool:
        try:
            self._audit.record(
                coordinator=caller.name,
                fingerprint=caller.fingerprint,
                request_id=request.request_id[:LONGEST_NAME],
                round_=ROUNDS.get(request.round, 0),
                model=request.model[:LONGEST_NAME],
                count=len(request.ids),
                unknown=unknown,
                outcome=outcome,
            )
        except (OSError, GainrouteError) as error:
            more = _named(request) | {"reason": str(error)}
            log.error("the audit log cannot be written", extra=more)  # noqa: TRY400
            return False
        return True

    def denied(self, error: AccessDeniedError) -> None:
        """Write down who was turned away; of many in a row, one a minute."""
        info = error.info
        fingerprint = info.fingerprint if info is not None else ""
        now = self._clock()
        if now - self._denials.get(fingerprint, -DENIAL_SECONDS) < DENIAL_SECONDS:
            return
        if len(self._denials) > 1000:
            self._denials.clear()
        self._denials[fingerprint] = now
        who = "" if info is None or info.identity is None else info.identity.name
        log.warning("denied", extra={"coordinator": who, "fingerprint": fingerprint, "reason": str(error)})
        self._record(Caller(who, fingerprint), pb.Request(), 0, f"denied: {error}")

    def close(self) -> None:
        """Let go of threads and files."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._scanner.shutdown(wait=False, cancel_futures=True)
        self._audit.close()


def _named(request: pb.Request) -> dict[str, object]:
    return {"request_id": request.request_id[:LONGEST_NAME]}
