"""What a party's audit log and its own log say about requests: every answer, and refusals without filling the disk."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gainroute.federation.party.audit import AuditLog
from gainroute.federation.pki.access import AccessDeniedError, Caller
from gainroute.federation.transport.proto import party_pb2 as pb

__all__ = ["ROUNDS", "RequestAudit", "request_id", "short"]

log = logging.getLogger("gainroute.federation.party.service")

ROUNDS: Mapping[int, int] = {pb.ROUND_POSTERIORS: 1, pb.ROUND_EMBEDDINGS: 2}
MAX_NAME = 256  # characters of a coordinator's names that are logged: a long one cannot flood the logs
REFUSALS = 20  # of one caller for one reason that are recorded one by one per interval; the others are counted
REFUSAL_SECONDS = 5.0
DENIAL_SECONDS = 60.0  # of the denials of one certificate, one per interval is recorded


@dataclass
class _Refused:
    """Refusals of one caller for one reason since a moment: how many were recorded, and how many only counted."""

    since: float
    recorded: int = 0
    requests: int = 0
    samples: int = 0


class RequestAudit:
    """Records requests in a party's audit log.

    Parameters
    ----------
    audit
        The audit log.
    clock
        Monotonic seconds.
    samples
        Whether the lines of answers name the samples, by pseudonyms.
    """

    def __init__(self, audit: AuditLog, clock: Callable[[], float] = time.monotonic, *, samples: bool = True) -> None:
        self._audit, self._clock, self._names_samples = audit, clock, samples
        self._refused: dict[tuple[Caller, str], _Refused] = {}
        self._summarising: asyncio.TimerHandle | None = None
        self._denials: dict[str, float] = {}
        self._unrecorded = 0  # requests that got no answer since the audit log failed

    def samples(self, request: pb.Request) -> str:
        """Pseudonyms of the samples of a request; empty if they are not recorded. May be called in any thread."""
        key = self._audit.key
        return key.pseudonyms(request.ids) if key is not None and self._names_samples else ""

    def answered(self, caller: Caller, request: pb.Request, unknown: int, samples: str = "", withheld: int = 0) -> bool:
        """Record an answer before it leaves; False if that is impossible, and the answer must not leave.

        `withheld` samples of a masked Round 1 were in a sum with another roster, weights or models.
        """
        if log.isEnabledFor(logging.DEBUG):
            log.debug("answered", extra=request_id(request) | {"count": len(request.ids)})
        more: dict[str, Any] = {"samples": samples} if samples else {}
        if withheld:
            more["withheld"] = withheld
            log.warning("withheld", extra=request_id(request) | {"coordinator": caller.name, "withheld": withheld})
        return self._record(caller, request, unknown, "answered", **more)

    def refused(self, caller: Caller, request: pb.Request, outcome: str, reason: str = "") -> bool:
        """Record a request without an answer, or count it if there are many with the same outcome."""
        now, who = self._clock(), (caller, outcome)
        found = self._refused.get(who)
        if found is None or (not found.requests and now - found.since >= REFUSAL_SECONDS):
            found = self._refused[who] = _Refused(now)
        if found.recorded < REFUSALS:
            found.recorded += 1
            if reason:
                more = {"outcome": outcome, "reason": reason, "coordinator": caller.name}
                log.warning("refused", extra=request_id(request) | more)
            return self._record(caller, request, 0, outcome)
        found.requests += 1
        found.samples += len(request.ids)
        if self._summarising is None:
            self._summarise_later()
        return True

    def denied(self, error: AccessDeniedError) -> None:
        """Record that a caller was denied access, at most once per minute and certificate."""
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

    def unused(self, connections: int, seconds: float) -> None:
        """Record connections of the last seconds that led to no call, such as refused TLS handshakes."""
        more = {"requests": connections, "seconds": round(seconds, 1)}
        log.warning("connections without a call, such as refused TLS handshakes", extra=more)
        self._record(Caller("", ""), pb.Request(), 0, "no call", **more)

    def close(self) -> None:
        """Record the refusals that were only counted so far."""
        if self._summarising is not None:
            self._summarising.cancel()
        self._summarise()

    def _summarise_later(self) -> None:
        def due() -> None:
            self._summarising = None
            self._summarise()
            if self._refused:  # they could not be written
                self._summarise_later()

        self._summarising = asyncio.get_running_loop().call_later(REFUSAL_SECONDS, due)

    def _summarise(self) -> None:
        """Write one line per caller and outcome for the refusals that were only counted."""
        now = self._clock()
        kept: dict[tuple[Caller, str], _Refused] = {}
        for (caller, outcome), found in self._refused.items():
            if not found.requests:
                continue
            more: dict[str, Any] = {"requests": found.requests, "seconds": round(now - found.since, 1)}
            if self._record(caller, pb.Request(), 0, outcome, count=found.samples, **more):
                log.warning("refused more requests", extra={"outcome": outcome, "coordinator": caller.name} | more)
            else:
                kept[caller, outcome] = found
        self._refused = kept

    def _record(self, caller: Caller, request: pb.Request, unknown: int, outcome: str, **more: Any) -> bool:
        entry: dict[str, Any] = {
            "coordinator": caller.name,
            "fingerprint": caller.fingerprint,
            "request_id": short(request.request_id),
            "round": ROUNDS.get(request.round, 0),
            "model": short(request.model),
            "count": len(request.ids),
            "unknown": unknown,
            "outcome": outcome,
        }
        try:
            self._audit.write(**entry | more)
        except OSError as error:
            if not self._unrecorded:
                more = request_id(request) | {"reason": str(error)}
                log.error("the audit log cannot be written: no answer leaves until it can", extra=more)  # noqa: TRY400
            self._unrecorded += 1
            return False
        if self._unrecorded:
            log.warning("the audit log can be written again", extra={"unanswered": self._unrecorded})
            self._unrecorded = 0
        return True


def request_id(request: pb.Request) -> dict[str, object]:
    """The id of a request, as a field of a log line."""
    return {"request_id": short(request.request_id)}


def short(name: str) -> str:
    """A name that a coordinator chose, cut so that it takes at most 512 bytes however JSON escapes it."""
    return name[:MAX_NAME] if name.isascii() and name.isprintable() else name[: MAX_NAME // 6]
