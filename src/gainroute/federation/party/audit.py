"""The party's audit log of every request: JSON lines, append-only, rotated by size."""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path

from gainroute.errors import SettingError
from gainroute.federation.logging import timestamp

__all__ = ["AuditLog"]


class AuditLog:
    """Appends one line per request, written before the answer is sent.

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
        self._file = self._open()

    def _open(self) -> int:
        try:
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        except OSError as error:
            raise SettingError(
                f"the audit log {self._path} cannot be written ({error.strerror}): name a file in a folder that exists "
                "and that the party may write to"
            ) from error
        self._size = os.fstat(descriptor).st_size
        return descriptor

    def write(self, **entry: object) -> None:
        """Append a line with the time and these fields.

        Raises OSError if it cannot be written; the request must then not be answered.
        """
        line = f"{json.dumps({'time': timestamp(self._clock()), **entry})}\n".encode()
        if self._size and self._size + len(line) > self._max_bytes:
            self._rotate()
        written = os.write(self._file, line)  # unbuffered: the operating system has it before the answer is sent
        self._size += written
        if written < len(line):
            os.write(self._file, b"\n")  # so that the incomplete line does not spoil the next one
            raise OSError(errno.ENOSPC, f"only {written} of {len(line)} bytes were written")
        if self._sync:
            os.fsync(self._file)

    def _rotate(self) -> None:
        os.close(self._file)
        stamp = datetime.fromtimestamp(self._clock(), timezone.utc).strftime("%Y%m%dT%H%M%S")
        number = 0
        while (target := self._path.with_name(f"{self._path.name}.{stamp}-{number:03d}")).exists():
            number += 1
        self._path.rename(target)
        if self._keep:
            for old in sorted(self._path.parent.glob(f"{self._path.name}.*"))[: -self._keep]:
                old.unlink()
        self._file = self._open()

    def close(self) -> None:
        """Close the file. Closing it again does nothing."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
