"""TLS credentials from files, read anew when the files change: certificates rotate without a restart."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from gainroute.errors import DataError
from gainroute.federation.pki.certificates import CertificateFiles, CertificateInfo, key_matches, read_certificate

__all__ = ["ReloadingCertificate", "State", "channel_credentials", "file_state", "server_credentials"]

log = logging.getLogger(__name__)

State = tuple[tuple[int, int, int] | None, ...]


@dataclass(frozen=True)
class _Pem:
    ca: bytes
    certificate: bytes
    key: bytes
    info: CertificateInfo


def file_state(*paths: Path) -> State:
    """Tells whether files have changed: inode, size and time of each; None where one is not there."""
    return tuple(map(_stamp, paths))


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_ino, stat.st_size, stat.st_mtime_ns


def _read(files: CertificateFiles) -> _Pem:
    try:
        ca, certificate, key = (path.read_bytes() for path in (files.ca, files.certificate, files.key))
    except OSError as error:
        raise DataError(f"{error.filename} cannot be read ({error.strerror}): see `gainroute certs`") from error
    info = read_certificate(certificate, str(files.certificate))
    read_certificate(ca, str(files.ca))
    if not key_matches(certificate, key):
        raise DataError(f"{files.key} is not the key of {files.certificate}: both come from one `certs request`")
    return _Pem(ca, certificate, key, info)


class ReloadingCertificate:
    """A certificate with its key and authority; the files are looked at again whenever it is asked for.

    A pair that does not fit, as while a rotation is under way, is not taken: the earlier one stays.

    Parameters
    ----------
    files
        Where they are.
    """

    def __init__(self, files: CertificateFiles) -> None:
        self.files = files
        self._lock = threading.Lock()  # gRPC asks from a thread of its own
        self._state = self._look()
        self._pem = _read(files)
        self._given = self._pem
        self._told: State | None = None

    def _look(self) -> State:
        return file_state(self.files.ca, self.files.certificate, self.files.key)

    def reload(self) -> bool:
        """Take changed files, and tell whether there were any."""
        with self._lock:
            state = self._look()
            if state == self._state:
                return False
            try:
                pem = _read(self.files)
            except DataError as error:
                if state != self._told:
                    log.warning("certificate not taken", extra={"reason": str(error)})
                    self._told = state
                return False
            self._state, self._pem = state, pem
        log.info("certificate taken", extra={"fingerprint": pem.info.fingerprint})
        return True

    @property
    def info(self) -> CertificateInfo:
        """What the certificate now in use says."""
        return self._pem.info

    def server_configuration(self) -> Any:
        """For gRPC, as it stands."""
        pem = self._pem
        return grpc.ssl_server_certificate_configuration([(pem.key, pem.certificate)], pem.ca)

    def fetch(self) -> Any:
        """What gRPC calls at every new connection: a configuration where it is not the one given last, else None."""
        self.reload()
        if self._pem is self._given:
            return None
        self._given = self._pem
        return self.server_configuration()

    def channel(self) -> grpc.ChannelCredentials:
        """Credentials of a client, from the files as they are now."""
        self.reload()
        pem = self._pem
        return grpc.ssl_channel_credentials(pem.ca, pem.key, pem.certificate)


def server_credentials(certificate: ReloadingCertificate) -> grpc.ServerCredentials:
    """Credentials of a server that demands a certificate of its clients, and takes changed files by itself.

    A new certificate is shown at the next connection; connections that stand are not cut.
    """
    initial = certificate.server_configuration()
    return grpc.dynamic_ssl_server_credentials(initial, certificate.fetch, require_client_authentication=True)


def channel_credentials(files: CertificateFiles) -> grpc.ChannelCredentials:
    """Credentials of a client, read from the files now."""
    return ReloadingCertificate(files).channel()
