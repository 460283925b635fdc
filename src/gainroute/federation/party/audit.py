"""The party's audit log of every request: JSON lines, append-only, rotated by size."""

from __future__ import annotations

import errno
import json
import logging
import os
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timezone
from glob import escape
from io import FileIO
from pathlib import Path

from gainroute.errors import SettingError
from gainroute.federation.logging import timestamp

__all__ = ["AuditLog"]

log = logging.getLogger(__name__)


class AuditLog:
    """Appends one line per request, written before the answer is sent.

    The file may be renamed, truncated or removed by others (`logrotate`) at any time: the next line goes to a new file
    at `path`. While a line cannot be written, `write` raises; it works again once the cause is gone.

    Parameters
    ----------
    path
        The file. Its folder must exist.
    max_bytes
        Size at which the file is rotated to ``<path>.<time>``.
    keep
        Number of rotated files to keep; 0 keeps all.
    sync
        Whether each line is forced to disk.
    clock
        Seconds since 1970.
    """

    def __init__(
        self,
        path: Path,
        *,
        max_bytes: int = 64 << 20,
        keep: int = 0,
        sync: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if max_bytes < 1 or keep < 0:
            raise SettingError(f"audit has max_bytes {max_bytes} and keep {keep}; at least 1 and 0 are needed")
        self._path, self._max_bytes, self._keep, self._sync, self._clock = path, max_bytes, keep, sync, clock
        self._limit = max_bytes
        self._file: FileIO | None = None
        self._identity = (0, 0)  # device and inode of the open file
        self._torn = False  # whether the file ends with an incomplete line
        self._closed = False
        try:
            self._open()
        except OSError as error:
            raise SettingError(
                f"the audit log {path} cannot be written ({error.strerror}): name a file in a folder that exists "
                "and that the party may write to"
            ) from error

    def _open(self) -> FileIO:
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        file = FileIO(descriptor, "r+")  # the only owner of the descriptor: it never closes it twice
        found = os.fstat(descriptor)
        self._torn = found.st_size > 0 and os.pread(descriptor, 1, found.st_size - 1) != b"\n"
        self._release()
        self._file, self._identity, self._limit = file, (found.st_dev, found.st_ino), self._max_bytes
        return file

    def _release(self) -> None:
        if self._file is not None:
            with suppress(OSError):  # every line was written unbuffered: there is nothing to lose
                self._file.close()
            self._file = None

    def _current(self) -> tuple[FileIO, int]:
        """The file at `path` and its size; opened again if it was renamed or removed."""
        if self._closed:
            raise OSError(errno.EBADF, "the audit log is closed")
        file = self._file
        try:
            found = os.stat(self._path)  # noqa: PTH116 (Path.stat takes twice as long)
            if file is not None and (found.st_dev, found.st_ino) == self._identity:
                return file, found.st_size
        except FileNotFoundError:
            pass
        file = self._open()
        return file, os.fstat(file.fileno()).st_size

    def write(self, **entry: object) -> None:
        """Append a line with the time and these fields.

        Raises OSError if it cannot be written; the request must then not be answered.
        """
        line = f"{json.dumps({'time': timestamp(self._clock()), **entry})}\n".encode()
        file, size = self._current()
        if size and size + len(line) > self._limit:
            self._rotate(size)
            file, size = self._current()
        if self._torn and size:
            line = b"\n" + line  # so that the incomplete line does not spoil this one
        written = file.write(line)  # unbuffered: the operating system has it before the answer is sent
        self._torn = written < len(line)
        if self._torn:
            raise OSError(errno.ENOSPC, f"only {written} of {len(line)} bytes were written")
        if self._sync:
            os.fsync(file.fileno())

    def _rotate(self, size: int) -> None:
        stamp = datetime.fromtimestamp(self._clock(), timezone.utc).strftime("%Y%m%dT%H%M%S")
        number = 0
        while (target := self._path.with_name(f"{self._path.name}.{stamp}-{number:03d}")).exists():
            number += 1
        try:
            self._path.rename(target)
            if self._keep:
                for old in sorted(self._path.parent.glob(f"{escape(self._path.name)}.[0-9]*T*-*"))[: -self._keep]:
                    old.unlink()
        except OSError as error:
            self._limit = size + self._max_bytes  # until then, lines go to the file there is
            more = {"path": str(self._path), "reason": str(error)}
            log.error("rotating the audit log failed", extra=more)  # noqa: TRY400

    def close(self) -> None:
        """Close the file. Closing it again does nothing."""
        self._closed = True
        self._release()
