"""The decision log in an SQLite file, written by one process."""

from __future__ import annotations

import fcntl
import logging
import os
import sqlite3
from pathlib import Path
from typing import IO

from gainroute.errors import DataError, SettingError
from gainroute.federation.audit_chain import key_path, read_key
from gainroute.federation.coordinator.decision_log.schema import (
    BUSY_SECONDS,
    SqliteConnection,
    connect,
    erase,
    migrate,
    prepare,
)
from gainroute.federation.coordinator.settings import LogSettings

__all__ = ["SqliteEngine"]

log = logging.getLogger("gainroute.coordinator")


class SqliteEngine:
    """A `LogEngine` on a file, which it locks."""

    inline = True
    remedy = "free space, or repair it"
    stride = 1
    failures = (sqlite3.Error,)
    outages = (sqlite3.OperationalError,)

    def __init__(self, settings: LogSettings) -> None:
        self.place = settings.path.resolve()  # of a symbolic link, the file: it has one lock and one journal
        self._settings = settings
        self._lock = _lock(self.place)
        try:
            self._key = read_key(settings.key or key_path(self.place), create=True)
            self.connection = self._open()
        except sqlite3.Error as error:
            self._lock.close()
            raise DataError(f"{self.place}: the decision log cannot be opened ({error}); repair or move it") from error
        except BaseException:
            self._lock.close()
            raise

    def _open(self) -> SqliteConnection:
        self._closed = True
        connection = connect(str(self.place), max_bytes=self._settings.max_bytes)
        connection.key = self._key
        self._waits = BUSY_SECONDS  # for another program
        try:
            migrate(connection, str(self.place))
            prepare(connection, str(self.place))
        except BaseException:
            connection.close()
            raise
        self._closed = False
        return connection

    @property
    def active(self) -> bool:
        """Whether a transaction has begun."""
        return not self._closed and self.connection.in_transaction

    def last_number(self) -> int:
        """The greatest decision number."""
        (last,) = self.connection.execute("SELECT max(seq) FROM decisions").fetchone()
        return last or 0

    def begin(self, wait: float) -> None:
        """Begin a transaction, and wait that many seconds for another program; opens the file again if needed."""
        if self._closed:
            self.connection = self._open()
        if wait != self._waits:
            self.connection.execute(f"PRAGMA busy_timeout = {round(1e3 * wait)}")
            self._waits = wait
        self.connection.execute("BEGIN IMMEDIATE")

    def commit(self) -> None:
        """Commit; returns once it is on disk."""
        self.connection.execute("COMMIT")

    def rollback(self) -> None:
        """Undo the transaction; where that is impossible, the file is closed."""
        try:
            if self.connection.in_transaction:
                self.connection.execute("ROLLBACK")
        except sqlite3.Error:
            log.exception("the decision log could not roll back; opening it again")
            self.connection.close()
            self._closed = True

    def erase(self) -> bool:
        """Remove what deleted rows left behind; False if a reader prevents it."""
        return erase(self.connection, str(self.place))

    def close(self) -> None:
        """Close the file."""
        self.connection.close()
        self._lock.close()


def _lock(path: Path) -> IO[bytes]:
    """Lock the log for this process; the lock ends with the process, however it ends."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if path.exists() and path.stat().st_nlink > 1:
            raise SettingError(
                f"{path}: the file has other names (hard links), each with a lock of its own; remove them"
            )
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
        file = os.fdopen(os.open(path.with_name(path.name + ".lock"), flags, 0o600), "wb")
    except OSError as error:
        raise SettingError(f"{path}: {error.strerror}; log.path must be in a writable folder") from None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise SettingError(
            f"{path}: another coordinator writes this decision log; stop it, or give each its own log.path"
        ) from None
    return file
