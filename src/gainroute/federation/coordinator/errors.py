"""Everything a coordinator answers a request with instead of an answer.

::

    CoordinatorError                     status  code
    ├── BadRequestError                  400     bad_request       malformed JSON, tensor, id or value
    ├── UnauthorizedError                401     unauthorized      no token, or a wrong one
    ├── ForbiddenError                   403     forbidden         an admin's token is needed, or a foreign page
    ├── NotFoundError                    404     not_found         no such model, version, decision or page
    ├── ConflictError                    409     conflict          a sample id that is not unique, no rollback
    ├── TooLargeError                    413     too_large         too many ids, or too large a body
    ├── UnsupportedError                 415     unsupported       a content encoding that is not understood
    ├── HandshakeError                   422     handshake         router, models and parties do not fit together
    └── UnavailableError                 503     unavailable       try again later; Retry-After says when
        ├── BusyError                    503     busy              the queue is full
        ├── PartyMissingError            503     party_missing     a party did not answer, and the policy is to refuse
        ├── LogFailedError               503     log_failed        the decision log could not be written
        └── DrainingError                503     draining          the coordinator is stopping

The body is ``{"error": "<message>", "code": "<code>"}``.
"""

from __future__ import annotations

from typing import ClassVar

from gainroute.errors import GainrouteError

__all__ = [
    "BadRequestError",
    "BusyError",
    "ConflictError",
    "CoordinatorError",
    "DrainingError",
    "ForbiddenError",
    "HandshakeError",
    "LogFailedError",
    "NotFoundError",
    "PartyMissingError",
    "TooLargeError",
    "UnauthorizedError",
    "UnavailableError",
    "UnsupportedError",
]


class CoordinatorError(GainrouteError):
    """A request that is not answered; `status` and `code` are what the client sees."""

    status: ClassVar[int] = 500
    code: ClassVar[str] = "internal"
    retry_after: ClassVar[int | None] = None


class BadRequestError(CoordinatorError):
    """What was sent cannot be understood."""

    status = 400
    code = "bad_request"


class UnauthorizedError(CoordinatorError):
    """No token, or a wrong one."""

    status = 401
    code = "unauthorized"


class ForbiddenError(CoordinatorError):
    """Known, but not allowed."""

    status = 403
    code = "forbidden"


class NotFoundError(CoordinatorError):
    """There is no such thing."""

    status = 404
    code = "not_found"


class ConflictError(CoordinatorError):
    """Not possible as things stand."""

    status = 409
    code = "conflict"


class TooLargeError(CoordinatorError):
    """More than one request may carry."""

    status = 413
    code = "too_large"


class UnsupportedError(CoordinatorError):
    """Sent in a form that is not understood."""

    status = 415
    code = "unsupported"


class HandshakeError(CoordinatorError):
    """Router, models and parties do not fit together; the message says what differs."""

    status = 422
    code = "handshake"


class UnavailableError(CoordinatorError):
    """Not now; the same request may be answered later."""

    status = 503
    code = "unavailable"
    retry_after = 1


class BusyError(UnavailableError):
    """As many samples wait as may."""

    code = "busy"


class PartyMissingError(UnavailableError):
    """A party did not answer, and the policy is to refuse."""

    code = "party_missing"


class LogFailedError(UnavailableError):
    """The decision log could not be written, and the policy is to refuse."""

    code = "log_failed"
    retry_after = 5


class DrainingError(UnavailableError):
    """The coordinator is stopping: what it has taken on is answered, nothing new is taken."""

    code = "draining"
