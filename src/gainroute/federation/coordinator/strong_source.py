"""The source of strong answers: the fusion of a trained run, a user's function, or precomputed posteriors."""

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
from gainroute.federation.pki.signatures import Trust, verified
from gainroute.io.ids import rows_by_id
from gainroute.io.run_folder import RunFolder, ServerFolder
from gainroute.io.tables import read_table
from gainroute.routing.inputs import as_posteriors
from gainroute.routing.two_round import Fuse
from gainroute.routing.types import ArrayLike

__all__ = ["StrongSource", "from_function", "from_posteriors", "load_strong_source"]

Lookup = Callable[[Sequence[str]], npt.NDArray[np.float32]]


@dataclass(frozen=True, eq=False)
class StrongSource:
    """What answers in Round 2."""

    fuse: Fuse  # embeddings → strong posteriors or predictions
    source: str  # names it in messages
    # Of everything its answers depend on, if known; compared with the router's provenance under "server".
    hash: str | None = None
    party_names: tuple[str, ...] | None = None  # the order of the parties it was trained with, if known
    # Ids → (E, K) precomputed posteriors, rows of NaN where there is none; they take the place of embeddings.
    lookup: Lookup | None = None

    @property
    def accepts_absent(self) -> bool:
        """Whether it answers without some of the parties' embeddings."""
        return self.lookup is not None or callable(getattr(self.fuse, "masked", None))

    @property
    def wants_embeddings(self) -> bool:
        """Whether parties are asked for embeddings at all."""
        return self.lookup is None


def from_function(fuse: Fuse, source: str = "a function") -> StrongSource:
    """Wrap a fusion; its attribute `hash`, if there is one, identifies it, and `masked` accepts absent parties."""
    identity = getattr(fuse, "hash", None)
    return StrongSource(fuse, source, identity if isinstance(identity, str) else None)


def from_posteriors(
    ids: Sequence[Any], posteriors: ArrayLike, source: str, identity: str | None = None
) -> StrongSource:
    """Answer from precomputed strong posteriors (N, K) by id; ids are compared as text."""
    table = np.asarray(as_posteriors(posteriors, name=f"{source}: strong_posterior"), dtype=np.float32)
    rows = rows_by_id([str(value) for value in ids], source)
    if len(ids) != len(table):
        raise DataError(f"{source} has {len(ids)} ids for {len(table)} posteriors; one id per row is needed")
    padded = np.concatenate([table, np.full((1, table.shape[1]), np.nan, np.float32)])

    def lookup(asked: Sequence[str]) -> npt.NDArray[np.float32]:
        return padded[[rows.get(value, -1) for value in asked]]

    return StrongSource(lambda found: found[0], source, identity, lookup=lookup)


def load_strong_source(settings: FusionSettings, trust: Trust | None = None) -> StrongSource:
    """Load what the settings name. With `trust`, a run or a file has to be signed; a factory is installed code."""
    if settings.run is not None:
        return _from_run(settings.run, trust)
    if settings.factory is not None:
        made = load_callable(settings.factory, "fusion.factory")()
        if not callable(made):
            found = f"fusion.factory {settings.factory!r} returned {type(made).__name__}"
            raise SettingError(f"{found}; a function is needed")
        return from_function(made, settings.factory)
    if settings.strong is None:
        raise SettingError("fusion names no source; set fusion.run, fusion.factory or fusion.strong")
    with verified(settings.strong, trust) as file:
        table, identity = read_table(file), hash_contents(file)
    ids = "ids" if table.format == "npz" else "id"
    table.require(ids, "strong_posterior", remedy=f"fusion.strong needs {ids} (N,) and strong_posterior (N, K)")
    posteriors, _ = table.matrix("strong_posterior")
    return from_posteriors(table.objects(ids), posteriors, str(settings.strong), identity)


def _from_run(folder: Path, trust: Trust | None) -> StrongSource:
    try:
        from gainroute.training.trained_run import load_fusion
    except ModuleNotFoundError as error:
        raise MissingExtraError("the fusion of a trained run", "torch") from error
    if RunFolder(folder.parent).exists():  # which names the parties in order; a copy of the server's folder does not
        only = (RunFolder("").description.name, f"{folder.name}/head.", f"{folder.name}/masked.")
        with verified(folder.parent, trust, only) as run:
            names, server = RunFolder(run).party_names, ServerFolder(run / folder.name)
            return StrongSource(load_fusion(server.path), str(folder), server.model_hash(), names)
    with verified(folder, trust) as copy:
        return StrongSource(load_fusion(copy), str(folder), ServerFolder(copy).model_hash())
