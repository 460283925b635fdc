"""One consistent set of router, models and threshold. A request is answered by one of these from end to end."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from gainroute._util.hashing import hash_contents
from gainroute.errors import SettingError
from gainroute.federation.coordinator.errors import HandshakeError
from gainroute.federation.coordinator.fusion import Fusion
from gainroute.io.run_folder import SERVER
from gainroute.routing.artifacts import load
from gainroute.routing.decide import BUDGET_REMEDY
from gainroute.routing.inputs import check_fraction
from gainroute.routing.labels import Labels
from gainroute.routing.router import Router
from gainroute.routing.types import ArrayLike, IntArray

if TYPE_CHECKING:
    from gainroute.federation.coordinator.budget_control import Control

__all__ = ["OperatingPoint", "Version", "load_version", "version_of"]


@dataclass(frozen=True)
class OperatingPoint:
    """Where on the trade-off curve the service runs, and who said so.

    Attributes
    ----------
    kind
        "artifact" (as the router was fitted), "budget" or "threshold" (as an admin set it).
    budget
        None where a threshold was given.
    threshold
        τ as it is applied.
    """

    kind: Literal["artifact", "budget", "threshold"]
    budget: float | None
    threshold: float


@dataclass(frozen=True, eq=False)
class Version:
    """A router with its own threshold, the models it was calibrated with, and the fusion.

    Attributes
    ----------
    router
        Nobody else holds it, and nobody changes it.
    hash
        SHA-256 of the artifact.
    path
        Where it was read from.
    fusion
        The strong route's end.
    parties
        Names in the order of the fit.
    point
        Where it operates.
    control
        What keeps the rate at the budget; None where the threshold stays as it is.
    protection
        What scores must exceed while the drift monitor finds that collaboration hurts; with a controller, it has it.
    """

    router: Router
    hash: str
    path: Path
    fusion: Fusion
    parties: tuple[str, ...]
    point: OperatingPoint
    control: Control | None = None
    protection: float | None = None

    @property
    def name(self) -> str:
        """What clients see as the model's version."""
        return self.hash[:12]

    @property
    def columns(self) -> int:
        """Values in a party's Round-1 message for a sample."""
        return self.router.n_classes_ + self.router.extra_columns

    @property
    def codec(self) -> str:
        """How embeddings travel."""
        return self.router.provenance_.codec

    def model(self, party: str) -> str:
        """Hash of the models that a party has to answer with."""
        return self.router.provenance_.models[party]

    def encode(self, labels: ArrayLike) -> IntArray:
        """Labels as the router gives them → column numbers, −1 where there is none."""
        router = self.router
        if router.classes is None:
            return np.asarray(labels, dtype=np.int64)
        return Labels(router.n_classes_, router.classes).encode(labels, "label", missing=True)

    def at_budget(self, budget: Any) -> Version:
        """The same version with τ read off for another budget."""
        share = check_fraction(budget, "budget", BUDGET_REMEDY)
        return self._at(OperatingPoint("budget", share, self.router.threshold_for(share)))

    def at_threshold(self, threshold: Any) -> Version:
        """The same version with τ given; the router's `min_gain` stays a floor under it."""
        if isinstance(threshold, bool) or not isinstance(threshold, (int, float)) or math.isnan(threshold):
            raise SettingError(f"threshold is {threshold!r}; a number is needed, such as 0.05")
        floor = self.router.min_gain
        return self._at(OperatingPoint("threshold", None, float(max(threshold, -math.inf if floor is None else floor))))

    def _at(self, point: OperatingPoint) -> Version:
        # A copy: batches under way go on with the threshold they began with.
        router = copy.copy(self.router)
        router.threshold_ = max(point.threshold, -math.inf if self.protection is None else self.protection)
        return replace(self, router=router, point=point, control=None)

    def protected(self, floor: float | None) -> Version:
        """The same version with a floor under τ, or without."""
        if self.control is not None:
            self.control.controller.protection = floor
            return self
        return replace(self, protection=floor)._at(self.point)

    @property
    def floor(self) -> float | None:
        """The floor under τ that `protected` has set."""
        return self.protection if self.control is None else self.control.controller.protection


def load_version(path: Path, fusion: Fusion, parties: tuple[str, ...]) -> Version:
    """Load an artifact and check everything that can be checked without the parties."""
    return version_of(load(path), fusion, parties, path, hash_contents(path))


def version_of(router: Router, fusion: Fusion, parties: tuple[str, ...], path: Path, identity: str) -> Version:
    """Put a version together, or say everything that does not fit."""
    provenance = router.provenance_
    differences: list[str] = []
    holders = set(provenance.models) - {SERVER}
    if not provenance.models:
        differences.append(
            "the router carries no provenance, so that nothing says which models it was calibrated with; save it with "
            "gr.save(router, path, provenance=gr.Provenance(models={party: hash}, codec=codec))"
        )
    elif holders != set(parties):
        differences.append(f"it was calibrated with the parties {sorted(holders)}, the route table has {list(parties)}")
    if router.n_parties_ != len(parties):
        differences.append(f"it was fitted with {router.n_parties_} parties, the route table has {len(parties)}")
    if fusion.wants_embeddings and not provenance.codec:
        differences.append("its provenance names no codec; embeddings need one")
    if router.own_weak_prediction_:
        differences.append("it was fitted with a weak prediction of your own, which no party sends")
    expected = provenance.models.get(SERVER)
    if expected is not None and fusion.hash is not None and expected != fusion.hash:
        differences.append(f"it was calibrated with the fusion {expected}, {fusion.source} is {fusion.hash}")
    if fusion.party_names is not None and fusion.party_names != parties:
        differences.append(f"{fusion.source} was trained with the parties {list(fusion.party_names)}, in this order; "
                           f"the route table has {list(parties)}")  # fmt: skip
    if differences:
        raise HandshakeError(f"{path} does not fit: " + "; ".join(differences))
    return Version(
        router, identity, path, fusion, parties, OperatingPoint("artifact", router.budget, router.threshold_)
    )
