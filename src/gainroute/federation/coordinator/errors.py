"""The errors a coordinator answers requests with: ``{"error": "<message>", "code": "<code>"}`` and an HTTP status."""

from __future__ import annotations

import math
from typing import Any, ClassVar

from gainroute.errors import GainrouteError, InputError

__all__ = [
    "BadRequestError", "BusyError", "ConflictError", "CoordinatorError", "DrainingError", "ForbiddenError",
    "HandshakeError", "LogFailedError", "NotFoundError", "PartyMissingError", "SlowRequestError", "TooLargeError",
    "TooManyRequestsError", "UnauthorizedError", "UnavailableError", "UnsupportedError", "as_refusal",
]  # fmt: skip


class CoordinatorError(GainrouteError):
    """A request that is refused; clients see `status`, `code` and, with 429 and 503, `retry_after` in seconds."""

    status: ClassVar[int] = 500
    code: ClassVar[str] = "internal"
    retry_after: int | None = None

    def __init_subclass__(cls, code: str, status: int | None = None, retry_after: int | None = None, **more: Any):
        super().__init_subclass__(**more)
        cls.code = code
        cls.status = status or cls.status
        cls.retry_after = retry_after or cls.retry_after


class BadRequestError(CoordinatorError, status=400, code="bad_request"):
    """Malformed JSON, tensor, id or value; the message says which, and what is needed."""


class UnauthorizedError(CoordinatorError, status=401, code="unauthorized"):
    """No token, or a wrong one."""


class ForbiddenError(CoordinatorError, status=403, code="forbidden"):
    """The token lacks the role that is needed, or the request comes from a page of another origin."""


class NotFoundError(CoordinatorError, status=404, code="not_found"):
    """No such model, version, decision or page."""


class SlowRequestError(CoordinatorError, status=408, code="timeout"):
    """The headers or the body did not arrive in time."""


class ConflictError(CoordinatorError, status=409, code="conflict"):
    """A sample id that is not unique, a label by another holder, no router to roll back to, or no shadow router."""


class TooLargeError(CoordinatorError, status=413, code="too_large"):
    """Too many ids, or too large a body."""


class UnsupportedError(CoordinatorError, status=415, code="unsupported"):
    """A compressed body."""


class HandshakeError(CoordinatorError, status=422, code="handshake"):
    """Router, models and parties do not fit together; the message says what differs."""


class TooManyRequestsError(CoordinatorError, status=429, code="too_many_requests", retry_after=1):
    """A quota is used up, or there were too many wrong tokens from one address; Retry-After says when to ask again."""

    def __init__(self, message: str, seconds: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after = max(1, math.ceil(seconds))


class UnavailableError(CoordinatorError, status=503, code="unavailable", retry_after=1):
    """The same request may be answered later."""


class BusyError(UnavailableError, code="busy"):
    """The queue is full."""


class PartyMissingError(UnavailableError, code="party_missing"):
    """A party did not answer, and the policy is to refuse."""


class LogFailedError(UnavailableError, code="log_failed", retry_after=5):
    """The decision log could not be written, and the policy is to refuse."""


class DrainingError(UnavailableError, code="draining"):
    """The coordinator is stopping: it finishes requests in flight and accepts no new ones."""


def as_refusal(error: GainrouteError) -> CoordinatorError:
    """What clients are told; other errors of the library are the request's fault, or that of its files."""
    if isinstance(error, CoordinatorError):
        return error
    return BadRequestError(str(error)) if isinstance(error, InputError) else HandshakeError(str(error))
