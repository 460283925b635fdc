"""Where the strong answer comes from: a trained run, a function of one's own, or posteriors computed beforehand."""

from __future__ import annotations

import hashlib
import importlib
import json
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gainroute.coordinator.settings import FusionSettings
from gainroute.errors import DataError, MissingExtraError, SettingError
from gainroute.inference import Fuse
from gainroute.types import ArrayLike
from gainroute.validation import as_posteriors

__all__ = ["Fusion", "file_hash", "from_function", "from_posteriors", "hash_server_folder", "load_fusion_source"]

Lookup = Callable[[Sequence[str]], npt.NDArray[np.float32]]


@dataclass(frozen=True, eq=False)
class Fusion:
    """What answers in Round 2.

    Attributes
    ----------
    fuse
        Embeddings → strong posteriors or predictions; None where answers were computed beforehand.
    lookup
        Ids → (E, K) posteriors, rows of NaN where there is none; None where embeddings are fused.
    source
        For messages.
    hash
        Of what its answers depend on, if known; compared with the router's provenance under the holder "server".
    party_names
        The order of the parties it was trained with, if known.
    """

    fuse: Fuse | None
    lookup: Lookup | None
    source: str
    hash: str | None = None
    party_names: tuple[str, ...] | None = None

    @property
    def wants_embeddings(self) -> bool:
        """Whether the parties are asked for embeddings at all."""
        return self.fuse is not None


def from_function(fuse: Fuse, source: str = "a function") -> Fusion:
    """Wrap a fusion; if it has an attribute `hash`, that is its identity."""
    identity = getattr(fuse, "hash", None)
    return Fusion(fuse, None, source, identity if isinstance(identity, str) else None)


def from_posteriors(ids: Sequence[Any], posteriors: ArrayLike, source: str, identity: str | None = None) -> Fusion:
    """Answer from strong posteriors (N, K) by id; ids are compared as text."""
    table = np.asarray(as_posteriors(posteriors, name=f"{source}: strong_posterior"), dtype=np.float32)
    rows = {str(value): row for row, value in enumerate(ids)}
    if len(rows) != len(table) or len(ids) != len(table):
        raise DataError(
            f"{source} has {len(ids)} ids ({len(rows)} different) for {len(table)} posteriors; each id once is needed"
        )
    blank = np.full((1, table.shape[1]), np.nan, np.float32)
    padded = np.concatenate([table, blank])

    def lookup(asked: Sequence[str]) -> npt.NDArray[np.float32]:
        return padded[[rows.get(value, -1) for value in asked]]

    return Fusion(None, lookup, source, identity)


def load_fusion_source(settings: FusionSettings) -> Fusion:
    """Build what a configuration names."""
    if settings.run is not None:
        return _from_run(settings.run)
    if settings.factory is not None:
        return from_function(_made_by(settings.factory), settings.factory)
    path = settings.strong
    if path is None or not path.is_file():
        raise DataError(f"{path}: no such file; fusion.strong names an .npz or Parquet file of strong posteriors")
    ids, posteriors = _read_npz(path) if path.suffix == ".npz" else _read_parquet(path)
    return from_posteriors(ids, posteriors, str(path), file_hash(path))


def file_hash(*paths: Path) -> str:
    """SHA-256 over the contents of files, in the order given."""
    digest = hashlib.sha256()
    for path in paths:
        try:
            digest.update(path.read_bytes())
        except OSError as error:  # noqa: PERF203 (two files)
            raise DataError(f"{path}: {error.strerror}; name a file that can be read") from None
    return digest.hexdigest()


def hash_server_folder(folder: Path) -> str:
    """Of a run's ``server`` folder: what a provenance holds for it under "server"."""
    return file_hash(folder / "head.safetensors", folder / "masked.safetensors")


def _from_run(folder: Path) -> Fusion:
    identity = hash_server_folder(folder)
    try:
        from gainroute.training.serving import load_fusion
    except ModuleNotFoundError as error:
        raise MissingExtraError("the fusion of a trained run", "torch") from error
    names: tuple[str, ...] | None = None
    description = folder.parent / "run.json"
    if description.is_file():
        names = tuple(json.loads(description.read_bytes())["party_names"])
    return Fusion(load_fusion(folder), None, str(folder), identity, names)


def _made_by(factory: str) -> Fuse:
    module, _, name = factory.partition(":")
    try:
        made = getattr(importlib.import_module(module), name)()
    except (ImportError, AttributeError) as error:
        raise SettingError(
            f"fusion: factory {factory!r} cannot be called ({error}); 'package.module:function' of an importable "
            "module is needed, a function without arguments"
        ) from error
    if not callable(made):
        raise SettingError(f"fusion: factory {factory!r} returned {type(made).__name__}; a function is needed")
    fuse: Fuse = made
    return fuse


def _read_npz(path: Path) -> tuple[list[Any], npt.NDArray[Any]]:
    try:
        with np.load(path, allow_pickle=False) as file:
            return file["ids"].tolist(), file["strong_posterior"]
    except (KeyError, ValueError, OSError, zipfile.BadZipFile) as error:
        raise DataError(
            f"{path} cannot be read ({error}); an .npz file with ids (N,) and strong_posterior (N, K) is needed"
        ) from error


def _read_parquet(path: Path) -> tuple[list[Any], npt.NDArray[Any]]:
    from gainroute._parquet import read_table

    table = read_table(path)
    missing = {"id", "strong_posterior"} - set(table.column_names)
    if missing:
        raise DataError(f"{path} has no column {', '.join(sorted(missing))}; id and strong_posterior are needed")
    return table["id"].to_pylist(), np.array(table["strong_posterior"].to_pylist(), dtype=np.float32)
