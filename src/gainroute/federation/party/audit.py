"""The party's audit log of every request: chained JSON lines, append-only, rotated by size."""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timezone
from glob import escape
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING

from gainroute.errors import SettingError
from gainroute.federation.audit_chain import START, AuditKey, chained, head_path, key_path, read_head, read_key, sealed
from gainroute.federation.logging import timestamp

if TYPE_CHECKING:
    from hashlib import _Hash

__all__ = ["AuditLog"]

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.1  # how often the file is looked for, and the head written: both take longer than writing a line
_encode = json.JSONEncoder().encode  # built once: json.dumps takes a microsecond longer


class AuditLog:
    """Appends one line per request, written before the answer is sent.

    The file may be renamed, truncated or removed by others (`logrotate`) at any time: within a tenth of a second, lines
    go to a new file at `path`. While a line cannot be written, `write` raises; it works again once the cause is gone.

    Lines form a chain (`gainroute.federation.audit_chain`) that continues across files and restarts: ``<path>.head``
    holds the number and the chain value of the last line, or of one written less than a tenth of a second before. After
    an incomplete line, as a crash or a full disk leaves it, the next line has its SHA-256 as ``torn``.

    Parameters
    ----------
    path
        The file. Its folder must exist. Lines to something else, such as a pipe, are chained only if `key` is given.
    party
        Name of the party, in the first line that is written to a file.
    key
        File of the key, ``<path>.key`` by default; created if needed.
    max_bytes
        Size at which the file is rotated to ``<path>.<time>``.
    keep
        Number of rotated files to keep; 0 keeps all.
    sync
        Whether each line is forced to disk.
    clock
        Seconds since 1970.

    Attributes
    ----------
    key
        The key; None if lines are not chained.
    """

    def __init__(
        self,
        path: Path,
        *,
        party: str = "",
        key: Path | None = None,
        max_bytes: int = 64 << 20,
        keep: int = 0,
        sync: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if max_bytes < 1 or keep < 0:
            raise SettingError(f"audit has max_bytes {max_bytes} and keep {keep}; at least 1 and 0 are needed")
        self.key: AuditKey | None = None
        self._path, self._max_bytes, self._keep, self._sync, self._clock = path, max_bytes, keep, sync, clock
        self._party, self._limit = party, max_bytes
        self._file: FileIO | None = None
        self._head: FileIO | None = None
        self._identity = (0, 0)  # device and inode of the open file
        self._size, self._looked = 0, 0.0  # of the file, and when that was looked up
        self._second, self._moment = -1, ""  # the current second, and the timestamp without its milliseconds
        self._number, self._chain = 0, START  # of the last line
        self._first = True  # whether the next line is the first that is written to the open file
        self._torn: _Hash | None = None  # hash of what was written incompletely since the last line
        self._ragged = False  # whether the open file ends without a line end
        self._closed = False
        try:
            file = self._open()
        except OSError as error:
            raise SettingError(
                f"the audit log {path} cannot be written ({error.strerror}): name a file in a folder that exists "
                "and that the party may write to"
            ) from error
        try:
            if key is not None or stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                self.key = read_key(key or key_path(path), create=True)
                self._number, self._chain = _resume(path)
                self._open_head()
        except BaseException:
            self._release()
            raise

    # ---- the file -----------------------------------------------------------------------------------

    def _open(self) -> FileIO:
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        file = FileIO(descriptor, "r+")  # the only owner of the descriptor: it never closes it twice
        found = os.fstat(descriptor)
        rest = _rest(descriptor, found.st_size) if stat.S_ISREG(found.st_mode) else b""
        if rest and not chained(rest) and (self._torn is None or (found.st_dev, found.st_ino) != self._identity):
            log.warning("the audit log ends with an incomplete line", extra={"bytes": len(rest)})
            self._note_torn(rest)
        self._ragged = bool(rest)
        self._release()
        self._file, self._identity, self._limit = file, (found.st_dev, found.st_ino), self._max_bytes
        self._first, self._size = True, found.st_size
        if self.key is not None:
            self._open_head()
        return file

    def _open_head(self) -> None:
        try:
            descriptor = os.open(head_path(self._path), os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:  # a restart then continues after the last line of the file
            log.warning("the head of the audit log cannot be written", extra={"reason": str(error)})
        else:
            self._head = FileIO(descriptor, "r+")
            self._write_head()

    def _write_head(self) -> None:
        if self._head is not None and self._number:
            with suppress(OSError):  # overwritten in place, so that a full disk does not matter
                os.pwrite(self._head.fileno(), f"{self._number:>20}:{self._chain}\n".encode(), 0)

    def _release(self) -> None:
        for file in (self._file, self._head):
            if file is not None:
                with suppress(OSError):  # every line was written unbuffered: there is nothing to lose
                    file.close()
        self._file = self._head = None

    def _current(self) -> FileIO:
        """The file at `path`; opened again if it was renamed or removed."""
        if self._closed:
            raise OSError(errno.EBADF, "the audit log is closed")
        file = self._file
        try:
            found = os.stat(self._path)  # noqa: PTH116 (Path.stat takes twice as long)
            if file is not None and (found.st_dev, found.st_ino) == self._identity:
                self._first |= found.st_size < self._size  # someone truncated it
                self._size = found.st_size
                return file
        except FileNotFoundError:
            pass
        return self._open()

    def _rotate(self) -> None:
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
            self._limit = self._size + self._max_bytes  # until then, lines go to the file there is
            more = {"path": str(self._path), "reason": str(error)}
            log.error("rotating the audit log failed", extra=more)  # noqa: TRY400

    # ---- lines --------------------------------------------------------------------------------------

    def write(self, **entry: object) -> None:
        """Append a line with the time and these fields.

        Raises OSError if it cannot be written; the request must then not be answered.
        """
        now = self._clock()
        file, look = self._file, not 0 <= now - self._looked < LOOK_SECONDS
        if file is None or look:
            file = self._current()
        line, chain = self._line(now, entry)
        if self._size and self._size + len(line) > self._limit:
            self._rotate()
            file = self._current()
            line, chain = self._line(now, entry)
        if self._ragged and self._size:
            line = f"\n{line}"  # so that the incomplete line does not spoil this one
        written = file.write(line.encode())  # unbuffered: the operating system has it before the answer is sent
        self._size += written
        if written < len(line) - 1:
            self._tear(line[:written])
            raise OSError(errno.ENOSPC, f"only {written} of {len(line)} bytes were written")
        self._torn, self._ragged, self._first = None, written < len(line), False
        if self.key is not None:
            self._number, self._chain = self._number + 1, chain
        if look:
            self._looked = now
            self._write_head()
        if self._sync:
            os.fsync(file.fileno())

    def _line(self, now: float, entry: dict[str, object]) -> tuple[str, str]:
        """A line of ASCII characters with its end, and its chain value."""
        fields = {"time": self._timestamp(now), **entry}
        if self.key is None:
            return f"{_encode(fields)}\n", ""
        if self._first:
            fields |= {"party": self._party, "prev": self._chain}
        if self._torn is not None:
            fields["torn"] = self._torn.hexdigest()
        fields["number"] = self._number + 1
        line, chain = sealed(self.key, self._chain, _encode(fields))
        return f"{line}\n", chain

    def _tear(self, rest: str) -> None:
        """Remember a line that was written incompletely."""
        if not rest:
            return
        rest = rest.removeprefix("\n")
        self._ragged = bool(rest)
        if rest:
            self._note_torn(rest.encode())

    def _note_torn(self, rest: bytes) -> None:
        if self._torn is None:
            self._torn = hashlib.sha256(rest)
        else:
            self._torn.update(b"\n" + rest)

    def _timestamp(self, now: float) -> str:
        second = int(now)
        if second != self._second:
            self._second, self._moment = second, timestamp(second)[:-9]
        return f"{self._moment}{int(1000 * (now - second)):03d}+00:00"

    def close(self) -> None:
        """Close the file. Closing it again does nothing."""
        self._closed = True
        self._write_head()
        self._release()


def _rest(descriptor: int, size: int) -> bytes:
    """What follows the last line end of a file."""
    block, rest = 4096, b""
    while len(rest) < size and b"\n" not in rest:
        rest = os.pread(descriptor, block, max(size - block, 0))
        block *= 4
    return rest.rpartition(b"\n")[2]


def _resume(path: Path) -> tuple[int, str]:
    """Number and chain value of the last line, from the file or from its head, whichever is later."""
    last = read_head(path) or (0, START)
    with path.open("rb") as lines:
        for line in lines:
            found = chained(line.rstrip(b"\n"))
            if found is not None and found[0] > last[0]:
                last = found[:2]
    return last
