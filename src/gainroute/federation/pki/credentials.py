"""TLS credentials from files that are read again when they change: certificates rotate without a restart."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import grpc

from gainroute._util.files import FileState, file_state
from gainroute.errors import DataError
from gainroute.federation.pki.certificates import CertificateFiles, CertificateInfo, key_matches, read_certificate

__all__ = ["ReloadingCertificate"]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Pem:
    ca: bytes
    certificate: bytes
    key: bytes
    info: CertificateInfo


def _read(files: CertificateFiles) -> _Pem:
    try:
        ca, certificate, key = (path.read_bytes() for path in (files.ca, files.certificate, files.key))
    except OSError as error:
        raise DataError(f"{error.filename} cannot be read ({error.strerror}): see `gainroute certs`") from error
    info = read_certificate(certificate, str(files.certificate))
    read_certificate(ca, str(files.ca))
    if not key_matches(certificate, key):
        raise DataError(f"{files.key} is not the key of {files.certificate}: use the pair of one `certs request`")
    return _Pem(ca, certificate, key, info)


class ReloadingCertificate:
    """A certificate with its key and authority, reloaded when the files change.

    A key that does not match the certificate, as in the middle of a rotation, is ignored: the previous pair stays in
    use.
    """

    def __init__(self, files: CertificateFiles) -> None:
        self.files = files
        self._lock = threading.Lock()  # gRPC calls from a thread of its own
        self._state = self._current_state()
        self._pem = _read(files)
        self._configured = self._pem
        self._reported: FileState | None = None

    def _current_state(self) -> FileState:
        return file_state(self.files.ca, self.files.certificate, self.files.key)

    def reload(self) -> bool:
        """Load changed files; return whether a new certificate is now in use."""
        with self._lock:
            state = self._current_state()
            if state == self._state:
                return False
            try:
                pem = _read(self.files)
            except DataError as error:
                if state != self._reported:
                    log.warning("certificate not reloaded", extra={"reason": str(error)})
                    self._reported = state
                return False
            self._state, self._pem = state, pem
        log.info("certificate reloaded", extra={"fingerprint": pem.info.fingerprint})
        return True

    @property
    def info(self) -> CertificateInfo:
        """Content of the certificate in use."""
        return self._pem.info

    def channel(self) -> grpc.ChannelCredentials:
        """Return client credentials from the files as they are now."""
        self.reload()
        return grpc.ssl_channel_credentials(self._pem.ca, self._pem.key, self._pem.certificate)

    def server(self, began: Callable[[], None] | None = None) -> grpc.ServerCredentials:
        """Return server credentials that require a client certificate and follow changed files.

        A new certificate is presented from the next connection on; existing connections are not closed. `began` is
        called at the beginning of every handshake, in a thread of gRPC.
        """

        def fetch() -> Any:
            if began is not None:
                began()
            return self.changed_configuration()

        return grpc.dynamic_ssl_server_credentials(self._configuration(), fetch, require_client_authentication=True)

    def changed_configuration(self) -> Any:
        """Return a new server configuration, or None if it is unchanged; gRPC calls this at every new connection."""
        self.reload()
        if self._pem is self._configured:
            return None
        self._configured = self._pem
        return self._configuration()

    def _configuration(self) -> Any:
        pem = self._pem
        return grpc.ssl_server_certificate_configuration([(pem.key, pem.certificate)], pem.ca)
