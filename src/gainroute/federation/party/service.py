"""How a party handles a request: check it against quota and agreement, compute the answer, write the audit line."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from gainroute.errors import DataError, GainrouteError, InputError
from gainroute.federation.party.agreement import Agreement
from gainroute.federation.party.audit import AuditLog
from gainroute.federation.party.connections import UnusedConnections
from gainroute.federation.party.masked import MaskedRoundOne, MaskingRefusedError
from gainroute.federation.party.model import ModelVersion, is_temporary
from gainroute.federation.party.quota import Quota
from gainroute.federation.party.request_audit import ROUNDS, RequestAudit, request_id, short
from gainroute.federation.party.settings import PartySettings
from gainroute.federation.party.sources import ModelSource
from gainroute.federation.pki.access import AccessDeniedError, Caller
from gainroute.federation.pki.credentials import ReloadingCertificate
from gainroute.federation.tracing import fail, open_tracing, served
from gainroute.federation.transport.proto import party_pb2 as pb
from gainroute.federation.transport.wire import POSTERIOR_ENCODING, failure, write_answer

__all__ = ["PartyService"]

log = logging.getLogger(__name__)

REVISION = 1
IMMEDIATE_SAMPLES = 2048  # looking up this many takes less than a millisecond
SCAN_SECONDS = 1.0  # shortest interval at which Describe looks for new versions
CHARGED = (pb.Failure.CODE_INVALID, pb.Failure.CODE_UNKNOWN_MODEL, pb.Failure.CODE_TOO_LARGE)  # the caller's fault

Compute = Callable[[ModelVersion, pb.Request], tuple[pb.Response, str]]


class _RefusedError(Exception):
    def __init__(self, code: pb.Failure.Code, message: str, retry_after: float = 0.0) -> None:
        super().__init__(message)
        self.code, self.message, self.retry_after = code, message, retry_after


class PartyService:
    """The `RequestHandler` of a party process.

    Parameters
    ----------
    settings
        Settings of the party.
    source
        Its model versions.
    certificate
        Its own certificate; coordinators learn when it expires.
    clock
        Monotonic seconds.
    """

    def __init__(
        self,
        settings: PartySettings,
        source: ModelSource,
        certificate: ReloadingCertificate,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings, self._source, self._certificate, self._clock = settings, source, certificate, clock
        quota = settings.quota
        self._quota = Quota(
            quota.samples_per_minute, quota.embeddings_per_minute, clock, refusals_per_minute=quota.refusals_per_minute
        )
        masked = settings.privacy.round1 == "masked"
        self._masked = MaskedRoundOne(settings.name, settings.privacy) if masked else None
        self.agreement = None if settings.agreement is None else Agreement(settings.agreement, clock)
        self._models = ThreadPoolExecutor(settings.workers, thread_name_prefix="model")
        self._scanner = ThreadPoolExecutor(1, thread_name_prefix="scan")
        self.versions = source.scan()
        self._scanned = clock()
        if not self.versions and not settings.training.coordinators:
            raise DataError("there is no model version to answer with: the log above says why; check [source]")
        audit = settings.audit
        self.audit = AuditLog(
            audit.path, party=settings.name, key=audit.key, max_bytes=audit.max_bytes, keep=audit.keep, sync=audit.sync
        )
        self._requests = RequestAudit(self.audit, clock, samples=audit.samples)
        self._unused = UnusedConnections(clock)
        self.tracing = open_tracing(settings.tracing, "gainroute-party", settings.name)

    # ---- versions -----------------------------------------------------------------------------------

    async def rescan(self) -> None:
        """Look for added and removed model versions, while requests are being answered."""
        self._scanned = self._clock()
        loop = asyncio.get_running_loop()
        try:
            found = await loop.run_in_executor(self._scanner, self._source.scan)
        except (GainrouteError, OSError) as error:
            log.error("looking for versions failed, the known ones stay", extra={"reason": str(error)})  # noqa: TRY400
            return
        if not found:
            log.error("no version was found, the known ones stay")
            return
        self.versions = found

    async def describe(self, caller: Caller) -> pb.DescribeReply:
        """Describe the party and its model versions."""
        if self._clock() - self._scanned >= SCAN_SECONDS:
            await self.rescan()
        self._certificate.reload()
        log.debug("described", extra={"coordinator": caller.name})
        versions = list(self.versions.values())
        return pb.DescribeReply(
            name=self._settings.name,
            classes=versions[0].classes if versions else (),
            models=[pb.Model(hash=version.model.hash, dimension=version.model.dimension) for version in versions],
            codecs=self._settings.codecs,
            revision=REVISION,
            max_samples=self._settings.max_samples,
            max_message_bytes=self._settings.max_message_bytes,
            certificate_not_after=int(self._certificate.info.not_after.timestamp()),
            masking=None if self._masked is None else self._masked.describe(),
        )

    # ---- requests -----------------------------------------------------------------------------------

    def is_immediate(self, request: pb.Request) -> bool:
        """Whether the answer is a mere lookup, or a refusal."""
        # A task and a thread take 0.25 ms of CPU per party, 13 % of a Round-1 answer of four parties (paired runs).
        version = self.versions.get(request.model)
        return version is None or (version.immediate and len(request.ids) <= IMMEDIATE_SAMPLES)

    async def answer(self, caller: Caller, request: pb.Request) -> pb.Response:
        """Answer a request. The audit line is written first: a request that cannot be recorded is not answered."""
        round_ = ROUNDS.get(request.round, 0)
        with served(self.tracing, f"round {round_}", request.traceparent, samples=len(request.ids)):
            return await self._answer(caller, request)

    async def _answer(self, caller: Caller, request: pb.Request) -> pb.Response:
        try:
            version = self._check(caller, request)
            compute = self._compute if request.round == pb.ROUND_EMBEDDINGS else self._round_one(caller, request)
            if self.is_immediate(request):
                response, samples = compute(version, request)
            else:
                loop = asyncio.get_running_loop()
                response, samples = await loop.run_in_executor(self._models, compute, version, request)
            answer = response.answer
            recorded = self._requests.answered(caller, request, len(answer.missing), samples, len(answer.withheld))
        except asyncio.CancelledError:
            self._requests.refused(caller, request, "cancelled")
            raise
        except Exception as error:  # noqa: BLE001 (whatever a model raises, the party continues)
            refused = error if isinstance(error, _RefusedError) else self._model_error(request, error)
            response = failure(request, refused.code, refused.message, refused.retry_after)
            if refused.code in CHARGED:
                self._quota.refused(caller.name)
            outcome = pb.Failure.Code.Name(refused.code).removeprefix("CODE_").lower()
            fail(outcome)
            recorded = self._requests.refused(caller, request, outcome, refused.message)
        if not recorded:
            return failure(request, pb.Failure.CODE_UNAVAILABLE, "its audit log cannot be written")
        if self.agreement is not None and request.round == pb.ROUND_POSTERIORS and response.HasField("answer"):
            lacking = {*response.answer.missing, *response.answer.withheld}
            self.agreement.asked(caller.name, [name for i, name in enumerate(request.ids) if i not in lacking])
        return response

    def _check(self, caller: Caller, request: pb.Request) -> ModelVersion:
        """Return the requested model version, or raise if the request is invalid or exceeds a limit."""
        code, settings, count = pb.Failure, self._settings, len(request.ids)
        barred = self._quota.barred(caller.name)
        if barred is not None:
            raise _RefusedError(code.CODE_QUOTA, barred.message, barred.retry_after or 0.0)
        round_ = ROUNDS.get(request.round)
        if round_ is None:
            raise _RefusedError(code.CODE_INVALID, f"round is {request.round}; 1 or 2 is needed")
        version = self.versions.get(request.model)
        if version is None:
            known = ", ".join(self.versions)
            raise _RefusedError(
                code.CODE_UNKNOWN_MODEL, f"model {short(request.model)!r} is unknown; known models: {known}"
            )
        if round_ == 2 and request.codec not in settings.codecs:
            offered = ", ".join(settings.codecs)
            raise _RefusedError(
                code.CODE_INVALID, f"codec {short(request.codec)!r} is not offered; allowed are: {offered}"
            )
        if not count:
            raise _RefusedError(code.CODE_INVALID, "no ids were given; one or more are needed")
        if count > settings.max_samples:
            raise _RefusedError(
                code.CODE_TOO_LARGE,
                f"{count} ids were given; at most {settings.max_samples} per request are allowed: split the request",
            )
        width = version.width(posterior=round_ == 1)
        if 4 * width * count > settings.max_message_bytes:
            raise _RefusedError(
                code.CODE_TOO_LARGE,
                f"{count} answers of {width} numbers exceed {settings.max_message_bytes} bytes: split the request",
            )
        over = self._quota.take(caller.name, round_, count)
        if over is not None:
            too_large = over.retry_after is None
            raise _RefusedError(
                code.CODE_TOO_LARGE if too_large else code.CODE_QUOTA, over.message, over.retry_after or 0.0
            )
        if self.agreement is not None and round_ == 2:
            why = self.agreement.take(caller.name, request.model, request.ids)
            if why:
                raise _RefusedError(code.CODE_AGREEMENT, why)
        return version

    def _compute(self, version: ModelVersion, request: pb.Request) -> tuple[pb.Response, str]:
        """The answer, and the samples as they are named in the audit log."""
        posterior = request.round == pb.ROUND_POSTERIORS
        values, missing = version.answer(list(request.ids), posterior=posterior)
        response = write_answer(request, values, missing, POSTERIOR_ENCODING if posterior else request.codec)
        return response, self._requests.samples(request)

    def _round_one(self, caller: Caller, request: pb.Request) -> Compute:
        """What computes the answer of Round 1: plain or masked, as the settings say and never otherwise."""
        masked, code = self._masked, pb.Failure
        if masked is None:
            if request.mask_plan:
                raise _RefusedError(
                    code.CODE_INVALID, 'it does not mask Round 1: set [privacy] round1 = "masked" there'
                )
            return self._compute
        if not request.mask_plan:
            raise _RefusedError(code.CODE_INVALID, "it answers Round 1 masked only, and gives no posterior of its own")
        try:
            admitted = masked.admit(caller.name, request)
        except MaskingRefusedError as error:
            kind = code.CODE_QUOTA if error.retry_after else code.CODE_INVALID
            raise _RefusedError(kind, f"the masked Round 1 is refused: {error}", error.retry_after) from error

        def compute(version: ModelVersion, request: pb.Request) -> tuple[pb.Response, str]:
            response = masked.respond(admitted, request, *version.answer(list(request.ids), posterior=True))
            return response, self._requests.samples(request)

        return compute

    def _model_error(self, request: pb.Request, error: Exception) -> _RefusedError:
        log.error("answering failed", extra=request_id(request), exc_info=error)
        if isinstance(error, InputError):
            return _RefusedError(pb.Failure.CODE_INTERNAL, f"its model is broken: {error}")
        code = pb.Failure.CODE_UNAVAILABLE if is_temporary(error) else pb.Failure.CODE_INTERNAL
        # The text of another library's error may contain data or a password, so it is not sent.
        kind, name = type(error).__name__, short(request.request_id)
        return _RefusedError(code, f"its model failed ({kind}); see request {name} in its log")

    def denied(self, error: AccessDeniedError) -> None:
        """Record that a caller was denied access."""
        self._requests.denied(error)

    def connected(self) -> None:
        """A TLS handshake begins. Called in any thread."""
        self._unused.began()

    def called(self, peer: str) -> None:
        """A call arrived from this address and port."""
        self._unused.called(peer)

    def record_unused(self, seconds: float) -> None:
        """Record how many connections led to no call since the last time, `seconds` ago."""
        count = self._unused.take()
        if count:
            self._requests.unused(count, seconds)

    def close(self) -> None:
        """Stop the threads and close the audit log."""
        self._models.shutdown(wait=False, cancel_futures=True)
        self._scanner.shutdown(wait=False, cancel_futures=True)
        self._requests.close()
        self.audit.close()
        if self.tracing is not None:
            self.tracing.close()
