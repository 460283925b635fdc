"""Writing files whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["write_bytes"]


def write_bytes(path: str | os.PathLike[str], data: bytes) -> None:
    """Write `data` to `path` whole or not at all: a temporary file beside it, synced, then renamed.

    Parameters
    ----------
    path
        Where the file shall be. Its folder must exist.
    data
        The whole content.
    """
    target = Path(path)
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as out:
            out.write(data)
            out.flush()
            os.fsync(out.fileno())
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)
