"""A private certificate authority. It signs requests and never sees the private key of a party or coordinator."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from gainroute._util.files import write_bytes
from gainroute.errors import DataError, SettingError
from gainroute.federation.pki.certificates import CertificateFiles, Identity, identity_of

__all__ = ["Authority", "make_request"]

CLOCK_SKEW = timedelta(minutes=5)


def make_request(identity: Identity) -> tuple[bytes, bytes]:
    """Make a private key and a signing request for it, both PEM. Only the request leaves the organisation."""
    key = ec.generate_private_key(ec.SECP256R1())
    request = x509.CertificateSigningRequestBuilder().subject_name(_subject(identity.name))
    request = request.add_extension(_alternative_names(identity), critical=False)
    return _key_pem(key), request.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


class Authority:
    """A private certificate authority: a certificate and its key, in a folder that stays with one organisation.

    `create` and `load` make one; `passphrase` decrypts the key, if it is encrypted.
    """

    def __init__(self, certificate: bytes, key: bytes, passphrase: bytes | None = None) -> None:
        try:
            self._certificate = x509.load_pem_x509_certificate(certificate)
            loaded = serialization.load_pem_private_key(key, passphrase)
        except (ValueError, TypeError) as error:
            raise DataError(
                f"the authority cannot be read ({error}): name the folder that `certs init` created, and set its "
                "passphrase if it has one"
            ) from error
        if not isinstance(loaded, ec.EllipticCurvePrivateKey):
            raise DataError(f"the authority's key is a {type(loaded).__name__}; an elliptic-curve key is needed")
        self._key = loaded
        self.pem = certificate

    @classmethod
    def create(
        cls,
        folder: str | os.PathLike[str],
        *,
        name: str = "gainroute",
        days: float = 3650,
        passphrase: bytes | None = None,
        now: datetime | None = None,
    ) -> Authority:
        """Create ``ca.crt`` and ``ca.key`` in `folder`. An existing authority is never overwritten."""
        home = Path(folder)
        if (home / "ca.key").exists() or (home / "ca.crt").exists():
            raise SettingError(f"{home} already holds an authority: use it, or name another folder")
        key = ec.generate_private_key(ec.SECP256R1())
        start = now or datetime.now(timezone.utc)
        identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
        subject = _subject(name)
        pem = _certificate(key.public_key(), subject, subject, key, start, days, [identifier], authority=True)
        home.mkdir(parents=True, exist_ok=True)
        body = _key_pem(key, passphrase)
        write_bytes(home / "ca.key", body, private=True)
        write_bytes(home / "ca.crt", pem)
        return cls(pem, body, passphrase)

    @classmethod
    def load(cls, folder: str | os.PathLike[str], passphrase: bytes | None = None) -> Authority:
        """Load the authority that `create` wrote to `folder`."""
        home = Path(folder)
        try:
            return cls((home / "ca.crt").read_bytes(), (home / "ca.key").read_bytes(), passphrase)
        except OSError as error:
            raise DataError(f"{home} holds no authority ({error.strerror}): run `gainroute certs init`") from error

    def sign(self, request: bytes, identity: Identity, *, days: float = 90, now: datetime | None = None) -> bytes:
        """Sign a request from `make_request` and return the certificate, both PEM.

        The signer states the identity: a request that names another one is refused. The certificate is valid for
        `days`, but never beyond the end of the authority itself.
        """
        try:
            asked = x509.load_pem_x509_csr(request)
            wanted = identity_of(asked.extensions)
        except ValueError as error:
            raise DataError(f"the signing request is damaged ({error}): create it with `certs request`") from error
        if not asked.is_signature_valid:
            raise DataError(
                "the signing request's signature does not match its key: create it again with `certs request`"
            )
        if wanted != identity:
            named = "no identity" if wanted is None else f"{wanted.role} {wanted.name!r}"
            raise SettingError(
                f"the request names {named}, but {identity.role} {identity.name!r} was to be signed: ask its sender"
            )
        if days <= 0:
            raise SettingError(f"days is {days}; a number above 0 is needed")
        start = now or datetime.now(timezone.utc)
        left = (self._certificate.not_valid_after_utc - start) / timedelta(days=1)
        if left <= 0:
            raise SettingError("the authority itself has expired: create a new one with `certs init`")
        usage = ExtendedKeyUsageOID.SERVER_AUTH if identity.role == "party" else ExtendedKeyUsageOID.CLIENT_AUTH
        extensions = [
            x509.ExtendedKeyUsage([usage]),
            _alternative_names(identity),
            x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()),
        ]
        issuer, subject = self._certificate.subject, _subject(identity.name)
        return _certificate(asked.public_key(), subject, issuer, self._key, start, min(days, left), extensions)

    def issue(
        self, identity: Identity, folder: str | os.PathLike[str], *, days: float = 90, now: datetime | None = None
    ) -> CertificateFiles:
        """Request, sign and write in one step, where authority and holder are the same: tests and `gainroute up`."""
        home = Path(folder)
        home.mkdir(parents=True, exist_ok=True)
        key, request = make_request(identity)
        files = CertificateFiles(home / "ca.crt", home / f"{identity.label}.crt", home / f"{identity.label}.key")
        certificate = self.sign(request, identity, days=days, now=now)
        write_bytes(files.key, key, private=True)
        write_bytes(files.certificate, certificate)
        write_bytes(files.ca, self.pem)
        return files


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _alternative_names(identity: Identity) -> x509.SubjectAlternativeName:
    return x509.SubjectAlternativeName([x509.UniformResourceIdentifier(identity.uri), x509.DNSName(identity.dns)])


def _key_pem(key: ec.EllipticCurvePrivateKey, passphrase: bytes | None = None) -> bytes:
    lock = serialization.BestAvailableEncryption(passphrase) if passphrase else serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, lock)


def _certificate(
    public: CertificatePublicKeyTypes,
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    start: datetime,
    days: float,
    extensions: Sequence[x509.ExtensionType],
    *,
    authority: bool = False,
) -> bytes:
    """A certificate, PEM, signed with the key of the issuer."""
    usage = x509.KeyUsage(
        digital_signature=not authority, key_cert_sign=authority, crl_sign=authority, content_commitment=False,
        key_encipherment=False, data_encipherment=False, key_agreement=False, encipher_only=False, decipher_only=False,
    )  # fmt: skip
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(start - CLOCK_SKEW)
        .not_valid_after(start + timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=authority, path_length=0 if authority else None), critical=True)
        .add_extension(usage, critical=True)
    )
    for extension in extensions:
        builder = builder.add_extension(extension, critical=False)
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
