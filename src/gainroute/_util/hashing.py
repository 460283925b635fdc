"""SHA-256 of files and texts."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from gainroute.errors import DataError

__all__ = ["hash_contents", "hash_named_files", "hash_text"]

BLOCK = 1 << 20


def hash_named_files(files: Iterable[tuple[str, Path]]) -> str:
    """SHA-256 over names and contents, in the order of the names."""
    whole = hashlib.sha256()
    for name, path in sorted(files):
        part = hashlib.sha256()
        _update(part, path)
        whole.update(f"{name}\0{part.hexdigest()}\n".encode())
    return whole.hexdigest()


def hash_text(text: str) -> str:
    """SHA-256 of a text."""
    return hashlib.sha256(text.encode()).hexdigest()


def hash_contents(*paths: Path) -> str:
    """SHA-256 over the contents of files, in the order given."""
    whole = hashlib.sha256()
    for path in paths:
        _update(whole, path)
    return whole.hexdigest()


def _update(digest: hashlib._Hash, path: Path) -> None:
    try:
        with path.open("rb") as stream:
            while block := stream.read(BLOCK):
                digest.update(block)
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}); copy the file again, or name another") from error
