"""Identities and the certificates that carry them.

The certificate of a party has the subject alternative name ``gainroute://party/<name>``, that of a coordinator
``gainroute://coordinator/<name>``. Keys are created where they are used; the authority sees a signing request only.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from urllib.parse import quote, unquote

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization

from gainroute.errors import DataError, SettingError

__all__ = [
    "ROLES", "CertificateFiles", "CertificateInfo", "Identity", "identity_of", "key_matches", "normal_fingerprint",
    "read_certificate",
]  # fmt: skip

ROLES = ("party", "coordinator")
SCHEME = "gainroute"
_PLAIN_LABEL = re.compile(r"(?!x--)[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


@dataclass(frozen=True)
class Identity:
    """A role, party or coordinator, and a name: 1 to 64 printable characters, without a slash."""

    role: str
    name: str

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            raise SettingError(f"role is {self.role!r}; allowed are {', '.join(map(repr, ROLES))}")
        if not 1 <= len(self.name) <= 64 or not self.name.isprintable() or "/" in self.name or not self.name.strip():
            raise SettingError(f"name is {self.name!r}; 1 to 64 printable characters without a slash are needed")

    @property
    def uri(self) -> str:
        """The subject alternative name in the certificate, which a party checks."""
        return f"{SCHEME}://{self.role}/{quote(self.name, safe='')}"

    @property
    def label(self) -> str:
        """The name as a label of a host name, and of files; one that is not a valid label is hashed."""
        plain = _PLAIN_LABEL.fullmatch(self.name)
        return self.name if plain else f"x--{hashlib.sha256(self.name.encode()).hexdigest()[:40]}"

    @property
    def dns(self) -> str:
        """The same identity as a host name, which TLS itself checks."""
        return f"{self.label}.{self.role}.{SCHEME}"


@dataclass(frozen=True)
class CertificateFiles:
    """PEM files of a process: its certificate, its key, and the authority it trusts. Read again when they change."""

    ca: Path
    certificate: Path
    key: Path


@dataclass(frozen=True)
class CertificateInfo:
    """The content of a certificate."""

    identity: Identity | None  # None if the certificate carries no gainroute identity, or more than one
    fingerprint: str  # SHA-256, 64 hexadecimal digits, as in a deny-list
    not_before: datetime  # UTC
    not_after: datetime

    def days_left(self, now: datetime | None = None) -> float:
        """Days until the certificate expires; negative afterwards."""
        return (self.not_after - (now or datetime.now(timezone.utc))) / timedelta(days=1)


def read_certificate(pem: bytes, where: str = "certificate") -> CertificateInfo:
    """Read the first certificate in a PEM text. Errors call it `where`."""
    try:
        certificate = x509.load_pem_x509_certificate(pem)
        identity = identity_of(certificate.extensions)
    except ValueError as error:
        raise DataError(f"{where} is not a PEM certificate ({error}): use the file that `certs sign` wrote") from error
    fingerprint = certificate.fingerprint(hashes.SHA256()).hex()
    return CertificateInfo(identity, fingerprint, certificate.not_valid_before_utc, certificate.not_valid_after_utc)


def identity_of(extensions: x509.Extensions) -> Identity | None:
    """Return the one gainroute identity among the alternative names; None if there is none, or more than one."""
    try:
        names = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return None
    found = names.get_values_for_type(x509.UniformResourceIdentifier)
    if len(found) != 1 or not found[0].startswith(f"{SCHEME}://"):
        return None
    role, _, name = found[0].removeprefix(f"{SCHEME}://").partition("/")
    try:
        identity = Identity(role, unquote(name))
    except SettingError:
        return None
    return identity if identity.uri == found[0] else None


def normal_fingerprint(text: str) -> str:
    """Convert a SHA-256 fingerprint in any usual spelling (colons, capitals, a prefix) to 64 lower-case digits."""
    digits = re.sub(r"^sha-?256[:=]?", "", text.strip().lower()).replace(":", "").replace(" ", "")
    if not re.fullmatch(r"[0-9a-f]{64}", digits):
        raise SettingError(
            f"fingerprint {text.strip()!r} is not SHA-256: 64 hexadecimal digits are needed, as `certs status` prints"
        )
    return digits


def key_matches(certificate: bytes, key: bytes) -> bool:
    """Tell whether a private key belongs to a certificate, both PEM."""
    try:
        public = x509.load_pem_x509_certificate(certificate).public_key()
        private = serialization.load_pem_private_key(key, password=None)
    except (ValueError, TypeError):
        return False
    plain = (serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    return public.public_bytes(*plain) == private.public_key().public_bytes(*plain)
