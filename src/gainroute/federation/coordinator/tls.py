"""The HTTP server's certificate, reloaded when its files change, without a restart."""

from __future__ import annotations

import logging
import ssl
from pathlib import Path

from gainroute._util.files import FileState, file_state

__all__ = ["ServerCertificate"]

log = logging.getLogger("gainroute.coordinator")


class ServerCertificate:
    """Reloads changed files into the SSL context in use, for new connections.

    Parameters
    ----------
    context
        The server's context.
    certificate, key
        Its PEM files.
    """

    def __init__(self, context: ssl.SSLContext, certificate: Path, key: Path) -> None:
        self._context, self._certificate, self._key = context, certificate, key
        self._state: FileState = file_state(certificate, key)

    def reload(self) -> bool:
        """Reload changed files; returns whether a new certificate is in use.

        A certificate that does not match its key, as during a rotation, is not loaded: the earlier one stays.
        """
        state = file_state(self._certificate, self._key)
        if state == self._state:
            return False
        self._state = state
        try:
            # Tried separately first: a mismatch would leave the context in use half changed.
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self._certificate, self._key)
            self._context.load_cert_chain(self._certificate, self._key)
        except (OSError, ssl.SSLError) as error:
            log.warning("the server's new certificate was not loaded, the earlier one stays: %s", error)
            return False
        log.info("the server's new certificate was loaded")
        return True
