"""Access control of a party: named coordinators with a certificate that is valid now and not on the deny-list."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import lru_cache
from pathlib import Path
from typing import Any

from gainroute._util.files import file_state
from gainroute.errors import DataError, GainrouteError, SettingError
from gainroute.federation.pki.certificates import CertificateInfo, normal_fingerprint, read_certificate

__all__ = ["Access", "AccessDeniedError", "Caller", "DenyList", "peer_certificate"]

log = logging.getLogger(__name__)


class AccessDeniedError(GainrouteError):
    """A caller was denied access. `info` is its certificate, or None if none could be read."""

    def __init__(self, message: str, info: CertificateInfo | None = None) -> None:
        super().__init__(message)
        self.info = info


@dataclass(frozen=True)
class Caller:
    """An admitted coordinator: its name and the fingerprint of its certificate."""

    name: str
    fingerprint: str


class DenyList:
    """SHA-256 fingerprints in a text file, one per line; ``#`` starts a comment.

    A changed file is read again at the next lookup. If it becomes unreadable, the fingerprints read before stay denied.
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
                f"the deny-list {self._path} cannot be read ({error}): create it, an empty file denies nobody"
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
                log.error("deny-list not reloaded, the previous one stays in force", extra={"reason": str(error)})  # noqa: TRY400
            else:
                log.info("deny-list reloaded", extra={"denied": len(self._denied)})
        return fingerprint in self._denied


class Access:
    """Decides whether the holder of a certificate is answered: at connection and again at every request.

    A certificate signed by the authority is not enough: `coordinators` names those that are answered. Fingerprints on
    the deny-list are denied, whatever name they carry.
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
        """Return the caller, or raise an `AccessDeniedError` with the reason."""
        who = info.identity
        if who is None:
            raise AccessDeniedError("the certificate carries no gainroute identity", info)
        if who.role != "coordinator":
            raise AccessDeniedError(
                f"{who.role} {who.name!r} is not a coordinator; only coordinators are answered", info
            )
        if who.name not in self._coordinators:
            raise AccessDeniedError(f"coordinator {who.name!r} is not one that this party answers", info)
        caller = Caller(who.name, info.fingerprint)
        self.recheck(caller, info)
        return caller

    def recheck(self, caller: Caller, info: CertificateInfo) -> None:
        """Check again what may have changed since `admit`: the deny-list and the time."""
        if self._deny_list is not None and info.fingerprint in self._deny_list:
            raise AccessDeniedError(f"the certificate of coordinator {caller.name!r} is on the deny-list", info)
        if not info.not_before <= self._now() < info.not_after:
            raise AccessDeniedError(f"the certificate of coordinator {caller.name!r} has expired", info)


def peer_certificate(context: Any) -> CertificateInfo:
    """Read the certificate of the other side of a call. TLS has already checked its signature."""
    shown = context.auth_context().get("x509_pem_cert")
    if not shown:
        raise AccessDeniedError("the caller presented no certificate")
    return _read(bytes(shown[0]))


@lru_cache(maxsize=256)
def _read(pem: bytes) -> CertificateInfo:
    return read_certificate(pem, "the caller's certificate")
