"""Who is answered: the coordinators named, with a certificate that is valid now and not on the deny-list."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import lru_cache
from pathlib import Path
from typing import Any

from gainroute.errors import DataError, GainrouteError, SettingError
from gainroute.federation.pki.certificates import CertificateInfo, normal_fingerprint, read_certificate
from gainroute.federation.pki.credentials import file_state

__all__ = ["Access", "AccessDeniedError", "Caller", "DenyList", "peer_certificate"]

log = logging.getLogger(__name__)


class AccessDeniedError(GainrouteError):
    """A caller that is not answered. `info` is its certificate, where it could be read."""

    def __init__(self, message: str, info: CertificateInfo | None = None) -> None:
        super().__init__(message)
        self.info = info


@dataclass(frozen=True)
class Caller:
    """A coordinator that may ask: its name, and the fingerprint of its certificate."""

    name: str
    fingerprint: str


class DenyList:
    """Fingerprints in a file, one a line; a changed file is read again at the next look.

    Where the file cannot be read any more, what was read before stays denied.

    Parameters
    ----------
    path
        Text; a line is a SHA-256 fingerprint, and what follows ``#`` is a comment.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._state = file_state(path)
        self._denied = self._read()

    def _read(self) -> frozenset[str]:
        try:
            lines = self._path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(
                f"the deny-list {self._path} cannot be read ({error}): make it, an empty file denies nobody"
            ) from error
        bare = [line.partition("#")[0].strip() for line in lines]
        return frozenset(normal_fingerprint(line) for line in bare if line)

    def __contains__(self, fingerprint: object) -> bool:
        state = file_state(self._path)
        if state != self._state:
            self._state = state
            try:
                self._denied = self._read()
            except (DataError, SettingError) as error:
                log.error("deny-list not taken, the earlier one stays", extra={"reason": str(error)})  # noqa: TRY400
            else:
                log.info("deny-list taken", extra={"denied": len(self._denied)})
        return fingerprint in self._denied


class Access:
    """Decides whether a certificate's holder is answered: at connection, and again at every request.

    Parameters
    ----------
    coordinators
        Names that are answered. To be signed by the authority is not enough.
    deny_list
        Fingerprints that are not, whatever they name.
    now
        The clock.
    """

    def __init__(
        self,
        coordinators: Sequence[str],
        deny_list: DenyList | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(timezone.utc),
    ) -> None:
        self._coordinators = frozenset(coordinators)
        self._deny_list = deny_list
        self._now = now

    def admit(self, info: CertificateInfo) -> Caller:
        """The caller, or an `AccessDeniedError` that says why not."""
        who = info.identity
        if who is None:
            raise AccessDeniedError("the certificate carries no gainroute identity", info)
        if who.role != "coordinator":
            raise AccessDeniedError(f"{who.role} {who.name!r} is not a coordinator, and only those are answered", info)
        if who.name not in self._coordinators:
            raise AccessDeniedError(f"coordinator {who.name!r} is not among those this party answers", info)
        caller = Caller(who.name, info.fingerprint)
        self.recheck(caller, info)
        return caller

    def recheck(self, caller: Caller, info: CertificateInfo) -> None:
        """Look at what may have changed since `admit`: the deny-list, and the time."""
        if self._deny_list is not None and info.fingerprint in self._deny_list:
            raise AccessDeniedError(f"the certificate of coordinator {caller.name!r} is on the deny-list", info)
        if not info.not_before <= self._now() < info.not_after:
            raise AccessDeniedError(f"the certificate of coordinator {caller.name!r} has expired", info)


def peer_certificate(context: Any) -> CertificateInfo:
    """The certificate that the other side of a call has shown; TLS has checked who signed it."""
    shown = context.auth_context().get("x509_pem_cert")
    if not shown:
        raise AccessDeniedError("no certificate was shown")
    return _read(bytes(shown[0]))


@lru_cache(maxsize=256)
def _read(pem: bytes) -> CertificateInfo:
    return read_certificate(pem, "the caller's certificate")
