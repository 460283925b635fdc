"""The party's own record of who asked for what: JSON lines, appended, put aside by size."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from datetime import datetime, timezone
from functools import lru_cache
from json.encoder import encode_basestring_ascii as quoted
from pathlib import Path

from gainroute.errors import SettingError

__all__ = ["AuditLog"]


class AuditLog:
    """Appends a line for every request, flushed before the answer leaves.

    Parameters
    ----------
    path
        Of the file; its folder must exist.
    max_bytes
        Size at which it is put aside as ``<path>.<time>``.
    keep
        Files put aside that are kept; 0 keeps all.
    sync
        Whether each line is forced to the disk.
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
                "and belongs to the party"
            ) from error
        self._size = os.fstat(descriptor).st_size
        return descriptor

    def record(
        self,
        *,
        coordinator: str,
        fingerprint: str,
        request_id: str,
        round_: int,
        model: str,
        count: int,
        unknown: int,
        outcome: str,
    ) -> None:
        """Append a line. Raises OSError where it cannot be written: then nothing may be answered.

        Parameters
        ----------
        coordinator, fingerprint
            Who asked.
        request_id
            As the coordinator calls it.
        round_
            1 posteriors, 2 embeddings, 0 neither.
        model
            The version asked for.
        count, unknown
            Ids asked for, and those of them that the party does not have.
        outcome
            "answered", or why not.
        """
        # By hand: with `json.dumps` a line takes twice as long, and it is on the way of every answer.
        line = (
            f'{{"time": "{_stamp(self._clock())}", "coordinator": {quoted(coordinator)}, '
            f'"fingerprint": {quoted(fingerprint)}, "request_id": {quoted(request_id)}, "round": {round_:d}, '
            f'"model": {quoted(model)}, "count": {count:d}, "unknown": {unknown:d}, '
            f'"outcome": {quoted(outcome)}}}\n'
        ).encode()
        if self._size and self._size + len(line) > self._max_bytes:
            self._put_aside()
        written = os.write(self._file, line)  # unbuffered: with the operating system before the answer leaves
        self._size += written
        if written < len(line):
            os.write(self._file, b"\n")  # what is half written stays a line of its own
            raise OSError(errno.ENOSPC, f"{written} of {len(line)} bytes were written")
        if self._sync:
            os.fsync(self._file)

    def _put_aside(self) -> None:
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
        """Let go of the file; once is enough."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def _stamp(moment: float) -> str:
    """A time as ISO 8601, to the millisecond."""
    seconds, rest = divmod(moment, 1)
    return f"{_second(int(seconds))}.{int(1000 * rest):03d}+00:00"


@lru_cache(maxsize=4)
def _second(moment: int) -> str:
    return datetime.fromtimestamp(moment, timezone.utc).strftime("%Y-%m-%dT%H:%M:%S")
