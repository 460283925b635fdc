"""Atomic writes, and noticing that a file has changed."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["FileState", "file_state", "write_bytes"]

FileState = tuple[tuple[int, int, int] | None, ...]


def write_bytes(path: str | os.PathLike[str], data: bytes, *, private: bool = False) -> None:
    """Write `data` to `path` completely or not at all: to a temporary file beside it, synced, then renamed.

    Parameters
    ----------
    path
        Target file. Its folder must exist.
    data
        The whole content.
    private
        Whether only the owner may read the file, as for a key.
    """
    target = Path(path)
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600 if private else 0o666)
        with os.fdopen(descriptor, "wb") as out:
            out.write(data)
            out.flush()
            os.fsync(out.fileno())
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)


def file_state(*paths: Path) -> FileState:
    """Inode, size and modification time of each file, None for a file that does not exist: equal means unchanged."""
    return tuple(map(_stamp, paths))


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_ino, stat.st_size, stat.st_mtime_ns
