"""The hash that names a model version: of everything that its answers depend on, and of nothing else."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

from gainroute.errors import DataError

__all__ = ["PARTY_FILES", "hash_files", "hash_party_folder", "hash_version_folder"]

PARTY_FILES = ("party.json", "local.safetensors", "encoder.safetensors")


def hash_files(files: Iterable[tuple[str, Path]]) -> str:
    """SHA-256 over names and contents, in the order of the names."""
    whole = hashlib.sha256()
    for name, path in sorted(files):
        try:
            with path.open("rb") as stream:
                part = hashlib.sha256()
                while block := stream.read(1 << 20):
                    part.update(block)
        except OSError as error:
            raise DataError(f"{path} cannot be read ({error.strerror}): copy the version again") from error
        whole.update(f"{name}\0{part.hexdigest()}\n".encode())
    return whole.hexdigest()


def hash_party_folder(folder: str | os.PathLike[str]) -> str:
    """Of ``run/parties/<name>``: weights, preprocessing and classes; not the views, which come and go.

    A router's `Provenance` holds this for each party.
    """
    return hash_files((name, Path(folder) / name) for name in PARTY_FILES)


def hash_version_folder(folder: str | os.PathLike[str]) -> str:
    """Of any folder: every file in it but hidden ones."""
    root = Path(folder)
    files = [path for path in root.rglob("*") if path.is_file()]
    named = [(path.relative_to(root).as_posix(), path) for path in files]
    kept = [(name, path) for name, path in named if not any(part.startswith(".") for part in name.split("/"))]
    if not kept:
        raise DataError(f"{root} holds no file: a version is a folder with its model inside")
    return hash_files(kept)
