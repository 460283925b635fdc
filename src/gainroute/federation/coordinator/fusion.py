"""Where the strong answer comes from: a trained run, a function of one's own, or posteriors computed beforehand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gainroute._util.hashing import hash_contents
from gainroute._util.importing import load_callable
from gainroute.errors import DataError, MissingExtraError, SettingError
from gainroute.federation.coordinator.settings import FusionSettings
from gainroute.io.ids import rows_by_id
from gainroute.io.run_folder import RunFolder, ServerFolder
from gainroute.io.tables import read_table
from gainroute.routing.inputs import as_posteriors
from gainroute.routing.two_round import Fuse
from gainroute.routing.types import ArrayLike

__all__ = ["Fusion", "from_function", "from_posteriors", "load_fusion_source"]

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
    rows = rows_by_id([str(value) for value in ids], source)
    if len(ids) != len(table):
        raise DataError(f"{source} has {len(ids)} ids for {len(table)} posteriors; one id per row is needed")
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
    if settings.strong is None:
        raise SettingError("fusion names no source; set fusion.run, fusion.factory or fusion.strong")
    table = read_table(settings.strong)
    ids = "ids" if table.format == "npz" else "id"
    table.require(ids, "strong_posterior", remedy=f"fusion.strong needs {ids} (N,) and strong_posterior (N, K)")
    posteriors, _ = table.matrix("strong_posterior")
    return from_posteriors(table.objects(ids), posteriors, table.source, hash_contents(settings.strong))


def _from_run(folder: Path) -> Fusion:
    server = ServerFolder(folder)
    identity = server.model_hash()
    try:
        from gainroute.training.trained_run import load_fusion
    except ModuleNotFoundError as error:
        raise MissingExtraError("the fusion of a trained run", "torch") from error
    run = RunFolder(folder.parent)
    names = run.party_names if run.exists() else None
    return Fusion(load_fusion(folder), None, str(folder), identity, names)


def _made_by(factory: str) -> Fuse:
    made = load_callable(factory, "fusion.factory")()
    if not callable(made):
        raise SettingError(f"fusion.factory {factory!r} returned {type(made).__name__}; a function is needed")
    fuse: Fuse = made
    return fuse
