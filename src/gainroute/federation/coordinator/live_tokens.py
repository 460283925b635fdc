"""The tokens in force: those of the settings, and those of ``[tokens] file``, which is read again when it changes."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from itertools import chain

from gainroute._util.files import file_state
from gainroute._util.settings import load_settings
from gainroute.errors import SettingError
from gainroute.federation.coordinator.client_settings import TokenSettings, TokenTables
from gainroute.federation.coordinator.tokens import Tokens

__all__ = ["LiveTokens"]

log = logging.getLogger("gainroute.coordinator")

LOOK_SECONDS = 1.0
EXAMPLE = "the tables client, infer, feedback, view and admin of [tokens] in deploy/coordinator.example.toml"


class LiveTokens:
    """Reads the file again at most once a second, when a token is looked up; raises if it cannot be read at first."""

    def __init__(self, settings: TokenSettings, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings, self._clock = settings, clock
        self._due = clock() + LOOK_SECONDS
        self._state = () if settings.file is None else file_state(settings.file)
        self._tokens = self._read(None)

    def current(self) -> Tokens:
        """The tokens now; those before if the file was changed to something that cannot be read."""
        path, now = self._settings.file, self._clock()
        if path is None or now < self._due:
            return self._tokens
        self._due = now + LOOK_SECONDS
        state = file_state(path)
        if state != self._state:
            self._state = state
            try:
                self._tokens = self._read(self._tokens)
            except SettingError as error:
                log.error("the tokens were not read again, those before stay in force: %s", error)  # noqa: TRY400
            else:
                log.info("the tokens in %s were read again", path)
        return self._tokens

    def _read(self, before: Tokens | None) -> Tokens:
        path = self._settings.file
        own = TokenTables() if path is None else load_settings(TokenTables, path, example=EXAMPLE)
        tokens = Tokens(chain(self._settings.grants(), own.grants()), before)
        if tokens.slow and before is None:
            log.warning(
                "some tokens have scrypt hashes, which are compared when a token is first used; replace them by tokens "
                "drawn with gainroute coordinator --new-token"
            )
        return tokens
