"""Atomic writes, secrets in files, noticing that a file has changed, and JSON that every parser reads."""

from __future__ import annotations

import errno
import io
import json
import math
import os
import secrets
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np

from gainroute.errors import DataError, StorageError

__all__ = [
    "FileState", "file_state", "kept_secret", "open_regular", "plain", "replacing", "writable_folder", "write_bytes",
    "write_json", "write_npz",
]  # fmt: skip

FileState = tuple[tuple[int, int, int] | None, ...]


def open_regular(path: str | os.PathLike[str], max_bytes: int | None = None) -> IO[bytes]:
    """Open a regular file for reading; raises OSError for a pipe, a device or a folder, and beyond `max_bytes`.

    Opening a pipe would otherwise wait for someone who writes.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    found = os.fstat(descriptor)
    if stat.S_ISREG(found.st_mode) and (max_bytes is None or found.st_size <= max_bytes):
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file", os.fspath(path))
    raise OSError(errno.EFBIG, f"it has {found.st_size} bytes, {max_bytes} are allowed", os.fspath(path))


def write_bytes(path: str | os.PathLike[str], data: bytes, *, private: bool = False) -> None:
    """Write `data` to `path` completely or not at all, as `replacing` does."""
    with replacing(path, private=private, size=len(data)) as out:
        out.write(data)


@contextmanager
def replacing(path: str | os.PathLike[str], *, private: bool = False, size: int | None = None) -> Iterator[IO[bytes]]:
    """Open a temporary file beside `path` to write to; after the block it is synced and renamed to `path`.

    If the block raises, the temporary file is removed and `path` stays as it was. The folder is created if needed. Only
    the owner may read a `private` file, such as a key. `size` is the number of bytes, if it is known, for messages.
    """
    target = Path(path)
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600 if private else 0o666)
            with os.fdopen(descriptor, "wb") as out:
                yield out
                out.flush()
                os.fsync(out.fileno())
            part.replace(target)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        needed = "" if size is None else f": {size:,} bytes are needed"
        why = needed if full else f" in the folder {target.parent.absolute()}"
        remedy = "free some space or choose another folder" if full else "choose a folder that you may write to"
        raise StorageError(
            f"{target} could not be written ({error.strerror or error}){why}; an earlier version of the file is "
            f"unchanged: {remedy}, then run the command again"
        ) from error


def writable_folder(path: str | os.PathLike[str]) -> Path:
    """Create a folder if needed; raises StorageError, before any work is done, if files cannot be written there."""
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise StorageError(
            f"the folder {folder.absolute()} cannot be written to ({error.strerror or error}); choose another one"
        ) from error
    return folder


def write_json(path: str | os.PathLike[str], body: Any) -> None:
    """Write a JSON file as `write_bytes` does."""
    write_bytes(path, (json.dumps(body, indent=2) + "\n").encode())


def write_npz(
    path: str | os.PathLike[str], arrays: Mapping[str, Any], *, compress: bool = False, private: bool = False
) -> None:
    """Write arrays by name as an `.npz` file, as `write_bytes` does."""
    out = io.BytesIO()
    (np.savez_compressed if compress else np.savez)(out, **arrays)
    write_bytes(path, out.getvalue(), private=private)


def kept_secret(path: str | os.PathLike[str], new: Callable[[], bytes], remedy: str = "restore it") -> bytes:
    """Read a secret of 32 bytes from a file that only its owner may read, or create the file from `new()`.

    Of several processes that create it at once, one does, and all read what that one wrote. `remedy` is what to do if
    the file is damaged.
    """
    file = Path(path)
    if not file.exists():
        _create_once(file, new())
    try:
        mode, secret = file.stat().st_mode & 0o777, file.read_bytes()
    except OSError as error:
        raise DataError(f"{file} cannot be read ({error.strerror}); check the file and its permissions") from error
    if mode & 0o077:
        raise DataError(f"{file} is a secret and others may read it (mode {mode:o}): chmod 600 {file}")
    if len(secret) != 32:
        raise DataError(f"{file} holds {len(secret)} bytes and not 32: {remedy}")
    return secret


def _create_once(file: Path, content: bytes) -> None:
    """Write a private file, unless another process has done so in the meantime; a reader sees all of it or none."""
    part = file.with_name(f".{file.name}.{secrets.token_hex(8)}.new")
    write_bytes(part, content, private=True)
    try:
        os.link(part, file)
    except FileExistsError:
        pass
    except OSError:  # no hard links on this file system
        part.replace(file)
    finally:
        part.unlink(missing_ok=True)


def file_state(*paths: Path) -> FileState:
    """Inode, size and modification time of each file, None for a file that does not exist: equal means unchanged."""

    def state(path: Path) -> tuple[int, int, int] | None:
        try:
            stat = path.stat()
        except OSError:
            return None
        return stat.st_ino, stat.st_size, stat.st_mtime_ns

    return tuple(map(state, paths))


def plain(value: Any) -> Any:
    """Turn arrays into lists, NaN into null, infinities into "inf" and "-inf", and unknown objects into text.

    Examples
    --------
    >>> plain({"rate": float("nan"), "threshold": float("inf"), 1: (2.5, None)})
    {'rate': None, 'threshold': 'inf', '1': [2.5, None]}
    """
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    return value if isinstance(value, (str, int, float, bool, type(None))) else str(value)
