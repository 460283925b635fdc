"""SHA-256 of files and texts."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from gainroute._util.files import open_regular
from gainroute.errors import DataError

__all__ = ["hash_contents", "hash_named_files", "hash_text"]


def hash_named_files(files: Iterable[tuple[str, Path]]) -> str:
    """SHA-256 over names and contents, in the order of the names."""
    return hash_text("".join(f"{name}\0{hash_contents(path)}\n" for name, path in sorted(files)))


def hash_text(text: str) -> str:
    """SHA-256 of a text."""
    return hashlib.sha256(text.encode()).hexdigest()


def hash_contents(*paths: Path) -> str:
    """SHA-256 over the contents of files, in the order given."""
    whole = hashlib.sha256()
    try:
        for path in paths:
            with open_regular(path) as stream:
                while block := stream.read(1 << 20):
                    whole.update(block)
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}); copy the file again, or name another") from error
    return whole.hexdigest()
