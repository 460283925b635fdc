"""The front door's certificate, taken anew when its files change: no restart, no connection cut."""

from __future__ import annotations

import logging
import ssl
from pathlib import Path

from gainroute._util.files import FileState, file_state

__all__ = ["FrontDoorCertificate"]

log = logging.getLogger("gainroute.coordinator")


class FrontDoorCertificate:
    """Loads changed files into a context that serves already: the next connection is shown the new certificate.

    Parameters
    ----------
    context
        What the server listens with.
    certificate, key
        Its PEM files.
    """

    def __init__(self, context: ssl.SSLContext, certificate: Path, key: Path) -> None:
        self._context, self._certificate, self._key = context, certificate, key
        self._state: FileState = file_state(certificate, key)

    def look(self) -> bool:
        """Take changed files, and tell whether there were any that could be taken.

        A pair that does not fit, as while a rotation is under way, is not taken: the earlier one stays.
        """
        state = file_state(self._certificate, self._key)
        if state == self._state:
            return False
        self._state = state
        try:
            # Tried apart from the one in use, which a certificate without its key would leave half changed.
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self._certificate, self._key)
            self._context.load_cert_chain(self._certificate, self._key)
        except (OSError, ssl.SSLError) as error:
            log.warning("the front door's certificate was not taken, the earlier one stays: %s", error)
            return False
        log.info("the front door's new certificate was taken")
        return True
