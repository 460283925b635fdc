"""The router, models and threshold in force together. A request is answered by one deployment from end to end."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from gainroute._util.files import plain
from gainroute._util.hashing import hash_contents
from gainroute.errors import SettingError
from gainroute.federation.coordinator.errors import HandshakeError
from gainroute.federation.coordinator.masked import MaskedPool, router_differences
from gainroute.federation.coordinator.strong_source import StrongSource
from gainroute.federation.pki.signatures import Trust, verified
from gainroute.io.run_folder import SERVER
from gainroute.routing.absent import with_thresholds
from gainroute.routing.artifacts import load
from gainroute.routing.certify import Guarantee
from gainroute.routing.decide import BUDGET_REMEDY
from gainroute.routing.inputs import check_fraction
from gainroute.routing.labels import Labels
from gainroute.routing.router import Router
from gainroute.routing.types import ArrayLike, IntArray

if TYPE_CHECKING:
    from gainroute.federation.coordinator.budget_control import BudgetControl

__all__ = ["Deployment", "SetPoint", "load_deployment"]


@dataclass(frozen=True)
class SetPoint:
    """The point of the trade-off curve at which the service runs, and where it comes from."""

    # As the router was fitted; or as configured, or set by an admin.
    kind: Literal["artifact", "budget", "threshold"]
    budget: float | None  # None where a threshold was given, or certified for the error of kept answers alone
    threshold: float  # τ

    def as_json(self) -> dict[str, Any]:
        """Plain JSON, with infinities as text."""
        return {"set_by": self.kind, "budget": self.budget, "threshold": plain(self.threshold)}


@dataclass(frozen=True, eq=False)
class Deployment:
    """A router with its threshold, the models it was calibrated with, and the source of strong answers."""

    router: Router  # not shared, and never changed
    hash: str  # SHA-256 of the artifact
    path: Path  # of the artifact
    fusion: StrongSource
    parties: tuple[str, ...]  # names in the order of the fit
    point: SetPoint
    control: BudgetControl | None = None  # keeps the rate at the budget; None where the threshold is fixed
    # Floor under τ while the drift monitor finds that collaboration hurts; with `control`, the floor is there.
    protection: float | None = None
    masked: MaskedPool | None = None  # if Round 1 is masked
    partial: bool = False  # whether only the parties that are worth their bytes are asked; τ is then a price

    @property
    def name(self) -> str:
        """The model version that clients see."""
        return self.hash[:12]

    @cached_property
    def class_names(self) -> tuple[str, ...]:
        """The router's names of the classes, in column order; empty if it has none."""
        return () if self.router.classes is None else tuple(map(str, self.router.classes.tolist()))

    @property
    def columns(self) -> int:
        """Values per sample in a party's Round-1 message."""
        return self.router.n_classes_ + self.router.extra_columns

    @property
    def codec(self) -> str:
        """Codec of the embeddings."""
        return self.router.provenance_.codec

    def model(self, party: str) -> str:
        """Hash of the models that a party must answer with."""
        return self.router.provenance_.models[party]

    def encode(self, labels: ArrayLike) -> IntArray:
        """Convert the router's labels to column numbers, −1 where there is none."""
        router = self.router
        if router.classes is None:
            return np.asarray(labels, dtype=np.int64)
        return Labels(router.n_classes_, router.classes).encode(labels, "label", missing=True)

    def at_budget(self, budget: Any) -> Deployment:
        """The same deployment with τ for another budget."""
        share = check_fraction(budget, "budget", BUDGET_REMEDY)
        return self._at(SetPoint("budget", share, self._threshold_for(share)))

    def at_threshold(self, threshold: Any) -> Deployment:
        """The same deployment with τ given; the router's `min_gain` remains a floor under it."""
        if isinstance(threshold, bool) or not isinstance(threshold, (int, float)) or math.isnan(threshold):
            raise SettingError(f"threshold is {threshold!r}; a number is needed, such as 0.05")
        floor = self.router.min_gain
        return self._at(SetPoint("threshold", None, float(max(threshold, -math.inf if floor is None else floor))))

    def _threshold_for(self, budget: float) -> float:
        """τ for a budget: of samples or, with `partial`, of bytes."""
        offers, floor = self.router.offers_, self.router.min_gain
        if not self.partial or offers is None:
            return self.router.threshold_for(budget)
        return max(offers.price_for(budget), -math.inf if floor is None else floor)

    def with_partial(self) -> Deployment:
        """The same deployment, but an escalated sample goes only to the parties that are worth their bytes."""
        if self.router.offers_ is None or self.masked is not None:
            why = "does not know what asking some of the parties is worth"
            raise HandshakeError(
                f"{self.path} does not fit: router.partial is true, and "
                + (f"the router {why}; fit it with gr.fit_subsets(…, party_bytes=…), or train the run again"
                   if self.masked is None else "Round 1 is masked, which leaves nothing to choose by")
            )  # fmt: skip
        changed, share = replace(self, partial=True), self.router.budget
        return changed._at(SetPoint("artifact", share, changed._threshold_for(share)))

    def _at(self, point: SetPoint) -> Deployment:
        floor = -math.inf if self.protection is None else self.protection

        def threshold(of: Router) -> float:
            if of is self.router or point.kind == "threshold" or self.partial:
                return max(point.threshold, floor)
            # Of a subset: its own quantile, so that the rate is the same whoever is present.
            rule, share = of.stages().threshold, of.budget if point.budget is None else point.budget
            find = rule.find if point.kind == "budget" else rule.first
            return max(find(of.threshold_scores_, share), floor)

        # A copy: batches in flight keep the thresholds they started with.
        return replace(self, router=with_thresholds(self.router, threshold), point=point, control=None)

    def with_masked_pool(self, *, smaller_roster: bool) -> Deployment:
        """The same deployment with a masked Round 1; `smaller_roster` asks the others while a party is absent."""
        wrong = router_differences(self.router)
        if wrong:
            raise HandshakeError(f"{self.path} does not fit: " + "; ".join(wrong))
        return replace(self, masked=MaskedPool(self.router, self.parties, smaller_roster=smaller_roster))

    def protected(self, floor: float | None) -> Deployment:
        """The same deployment with a floor under τ, or without one."""
        if self.control is not None:
            self.control.controller.protection = floor
            return self
        return replace(self, protection=floor)._at(self.point)

    @property
    def guarantee(self) -> Guarantee | None:
        """What was certified for the threshold in force; None for any other, and where a controller moves it."""
        return self.router.guarantee_ if self.control is None and not self.partial else None

    @property
    def floor(self) -> float | None:
        """The floor under τ set by `protected`."""
        return self.protection if self.control is None else self.control.controller.protection


def load_deployment(
    path: Path, fusion: StrongSource, parties: tuple[str, ...], trust: Trust | None = None
) -> Deployment:
    """Load an artifact with its fusion and parties; the error lists everything that does not fit.

    With `trust`, the artifact has to be signed.
    """
    with verified(path, trust) as file:
        identity = hash_contents(file)  # first: it reports a file that is missing
        router = load(file)
    provenance = router.provenance_
    differences: list[str] = []
    holders = set(provenance.models) - {SERVER}
    if not provenance.models:
        differences.append(
            "the router has no provenance, which names the models it was calibrated with; save it with "
            "gr.save(router, path, provenance=gr.Provenance(models={party: hash}, codec=codec))"
        )
    elif holders != set(parties):
        differences.append(f"it was calibrated with the parties {sorted(holders)}, the route table has {list(parties)}")
    if router.n_parties_ != len(parties):
        differences.append(f"it was fitted with {router.n_parties_} parties, the route table has {len(parties)}")
    if fusion.wants_embeddings and not provenance.codec:
        differences.append("its provenance names no codec; embeddings need one")
    if router.subset_routers_ and not fusion.accepts_absent:
        differences.append(
            f"it is calibrated for absent parties, and {fusion.source} needs all of them: give the fusion an attribute "
            "`masked`, a function of embeddings and of who is present"
        )
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
    budget = None if router.threshold == "certified-error" else router.budget  # that rule does not use it
    point = SetPoint("artifact", budget, router.threshold_)
    return Deployment(router, identity, path, fusion, parties, point)
