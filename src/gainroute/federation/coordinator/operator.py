"""The deployment in force, and what an admin changes: budget, threshold, router. Audited, and kept over restarts."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from gainroute._util.files import plain
from gainroute._util.hashing import hash_contents
from gainroute.errors import GainrouteError
from gainroute.federation.coordinator.budget_control import STATE, BudgetControl
from gainroute.federation.coordinator.decision_log.engine import LogConnection
from gainroute.federation.coordinator.decision_log.store import (
    CHANGES,
    audit,
    count_change,
    get_state,
    own_name,
    put_state,
)
from gainroute.federation.coordinator.decision_log.writer import DecisionLog
from gainroute.federation.coordinator.deployment import Deployment, load_deployment
from gainroute.federation.coordinator.errors import ConflictError, HandshakeError
from gainroute.federation.coordinator.parties import PartyLinks
from gainroute.federation.coordinator.settings import CoordinatorSettings, FusionSettings
from gainroute.federation.coordinator.strong_source import StrongSource
from gainroute.federation.pki.signatures import Trust
from gainroute.routing.payload import CODECS, embedding_bytes

__all__ = ["Operator"]

Spec = dict[str, Any]
SHARED = ("router", "point", CHANGES)  # state that all coordinators have in common
log = logging.getLogger("gainroute.coordinator")


class Operator:
    """Holds the deployment in force, which `resume` sets, and replaces it, one change at a time."""

    def __init__(
        self,
        settings: CoordinatorSettings,
        parties: PartyLinks,
        log: DecisionLog,
        load_strong: Callable[[FusionSettings], StrongSource],
        trust: Trust | None = None,
    ) -> None:
        self.deployment: Deployment
        self._settings, self._parties, self._log, self._load_strong = settings, parties, log, load_strong
        self.trust = trust
        self._lock = asyncio.Lock()
        self._spec: Spec = {}
        self._previous: Spec | None = None
        self._kept: dict[str, Deployment] = {}  # the previous deployment in memory: a rollback needs no file
        self._configured: Spec = {}
        self._seen: dict[str, Any] = {}  # what coordinators share, as it was last read or written here
        self.behind = ""  # why a change by another coordinator could not be applied

    @property
    def previous(self) -> str | None:
        """Hash of the router that a rollback would restore."""
        return None if self._previous is None else str(self._previous["hash"])

    def kept(self, identity: str) -> Deployment | None:
        """A deployment in memory by its hash: the current or the previous one."""
        return self.deployment if self.deployment.hash == identity else self._kept.get(identity)

    async def resume(self) -> Deployment:
        """Load what was in force when the coordinator stopped; or what is configured, if that has changed since."""
        artifact, fusion = self._settings.router.artifact, self._settings.fusion
        self._configured = await asyncio.to_thread(_spec, artifact, fusion)
        budget = self._settings.budget
        own = own_name(STATE, self._log.slot)
        kept = await asyncio.to_thread(get_state, self._log.place, (*SHARED, own))
        self._seen = {name: kept.get(name) for name in SHARED}
        router = kept.get("router", {})
        if router.get("configured") == self._configured:
            self._spec, self._previous = router["current"], router["previous"]
        else:
            self._spec = self._configured
        deployment = await asyncio.to_thread(self._load, self._spec)
        point = kept.get("point", {})
        if point.get("configured") == budget and point.get("router") == deployment.hash:
            deployment = _restored(deployment, point)
        elif budget is not None:
            deployment = deployment.at_budget(budget)
        self.deployment = self._controlled(deployment)
        if self.deployment.control is not None:
            self.deployment.control.restore(kept.get(own))
        return self.deployment

    # ---- several coordinators -------------------------------------------------------------------

    @property
    def changes(self) -> int:
        """Number of the last change that is applied here."""
        return int(self._seen.get(CHANGES) or 0)

    def note_change(self, number: int) -> None:
        """Note a change that was made here."""
        self._seen[CHANGES] = number

    async def follow(self) -> None:
        """Apply what another coordinator has changed: the router, the set point."""
        async with self._lock:
            kept = await asyncio.to_thread(get_state, self._log.place, SHARED)
            try:
                await self._apply(kept)
            except GainrouteError as error:
                if self.behind != str(error):
                    log.error("a change by another coordinator could not be applied: %s", error)  # noqa: TRY400
                self.behind = str(error)
                return
            self.behind, self._seen = "", {name: kept.get(name) for name in SHARED}

    async def _apply(self, kept: dict[str, Any]) -> None:
        old, deployment = self.deployment, self.deployment
        router, point = kept.get("router", {}), kept.get("point", {})
        switched = bool(router) and router != self._seen.get("router")
        if switched and router["current"] != self._spec:
            spec = router["current"]
            held = self._kept.get(spec["hash"])
            deployment = held if held is not None else await asyncio.to_thread(self._load, spec)
            await self._parties.confirm(deployment, "a switch")
        moved = point.get("router") == deployment.hash and point != self._seen.get("point")
        if deployment is not old or moved:
            deployment = self._controlled(_restored(deployment, point) if moved else deployment, old)
            log.info("another coordinator has changed the operating point: router %s, %s", deployment.name, point)
        if switched:
            self._spec, self._previous = router["current"], router["previous"]
        if deployment.hash != old.hash:
            self._kept = {old.hash: old}
        self.deployment = deployment

    async def adopt(self) -> None:
        """Take over the state of the slot that the decision log gave this coordinator in place of its own."""
        async with self._lock:
            slot = self._log.slot
            own = own_name(STATE, slot)
            kept = await asyncio.to_thread(get_state, self._log.place, (own,))
            self._log.adopted = slot
            if self.deployment.control is not None:
                floor = self.deployment.floor
                self.deployment = self._controlled(self.deployment).protected(floor)
                if self.deployment.control is not None:
                    self.deployment.control.restore(kept.get(own))
            log.warning("this coordinator continues with slot %d of the decision log", slot)

    # ---- changes --------------------------------------------------------------------------------

    async def set_budget(self, budget: Any, who: str, request_id: str) -> Deployment:
        """Change the budget; τ is read from the calibration scores."""
        async with self._lock:
            return await self._set_point(self.deployment.at_budget(budget), "budget", who, request_id)

    async def set_threshold(self, threshold: Any, who: str, request_id: str) -> Deployment:
        """Change the threshold, without a promise about the rate."""
        async with self._lock:
            return await self._set_point(self.deployment.at_threshold(threshold), "threshold", who, request_id)

    async def switch(self, artifact: Path, fusion: FusionSettings | None, who: str, request_id: str) -> Deployment:
        """Switch to another router: load it, do the handshake with every party, replace the deployment.

        Without `fusion` the current one is kept. A budget that an admin or the configuration set stays in force. A
        threshold does not, since the scores of another router are on another scale.
        """
        async with self._lock:
            given = fusion if fusion is not None else _fusion_settings(self._spec["fusion"])
            spec = await asyncio.to_thread(_spec, artifact, given)
            deployment = await asyncio.to_thread(self._load, spec)
            return await self._swap(spec, deployment, "router", who, request_id)

    async def rollback(self, who: str, request_id: str) -> Deployment:
        """Restore the previous router."""
        async with self._lock:
            spec = self._previous
            if spec is None:
                raise ConflictError("there is no router to roll back to; none was switched since the configured one")
            kept = self._kept.get(spec["hash"])
            deployment = kept if kept is not None else await asyncio.to_thread(self._load, spec)
            return await self._swap(spec, deployment, "rollback", who, request_id)

    async def protect(self, floor: float | None, evidence: str) -> None:
        """Set or remove the floor under τ; `evidence` is the drift monitor's finding."""
        async with self._lock:
            current = self.deployment
            before, after = ({"min_gain": plain(value)} for value in (current.floor, floor))
            after["evidence"] = evidence
            changed = current.floor is None or floor is None  # a floor that rises is not audited again
            self.deployment = current.protected(floor)  # first: it must not wait for the disk
            if changed:
                await self._log.write(lambda c: audit(c, "drift monitor", "", "protect", before, after))

    async def _swap(self, spec: Spec, deployment: Deployment, action: str, who: str, request_id: str) -> Deployment:
        await self._parties.confirm(deployment, "a switch")
        old, old_spec = self.deployment, self._spec
        if old.point.budget is not None and old.point.kind == "budget":
            deployment = deployment.at_budget(old.point.budget)
        deployment = self._controlled(deployment, old)
        kept = {"configured": self._configured, "current": spec, "previous": old_spec}

        def write(connection: LogConnection) -> dict[str, Any]:
            changes = count_change(connection, self.changes)
            put_state(connection, "router", kept)
            audit(connection, who, request_id, action, old_spec, spec)
            return {CHANGES: changes, "router": kept, "point": self._save_point(connection, deployment)}

        self._seen = await self._log.write(write)
        self._spec, self._previous, self._kept = spec, old_spec, {old.hash: old}
        self.deployment = deployment
        return deployment

    async def _set_point(self, deployment: Deployment, action: str, who: str, request_id: str) -> Deployment:
        old = self.deployment
        deployment = self._controlled(deployment, old)

        def write(connection: LogConnection) -> dict[str, Any]:
            changes = count_change(connection, self.changes)
            audit(connection, who, request_id, action, _audited(old), _audited(deployment))
            return self._seen | {CHANGES: changes, "point": self._save_point(connection, deployment)}

        self._seen = await self._log.write(write)
        self.deployment = deployment
        return deployment

    def _save_point(self, connection: LogConnection, deployment: Deployment) -> Spec:
        """Save set point and initial controller state for a restart; returns the former."""
        point = deployment.point.as_json() | {"configured": self._settings.budget, "router": deployment.hash}
        put_state(connection, "point", point)
        own = own_name(STATE, connection.slot)
        put_state(connection, own, None if deployment.control is None else deployment.control.state())
        return point

    # ---- the budget controller ------------------------------------------------------------------

    def save_control(self, connection: LogConnection) -> None:
        """Save the controller's state: for `DecisionLog.alongside`, in any thread."""
        control = self.deployment.control
        if control is not None and control.slot == connection.slot:
            put_state(connection, own_name(STATE, connection.slot), control.state())

    def sample_bytes(self, deployment: Deployment) -> int | None:
        """Payload of one sample in Round 2; None until every party has described itself."""
        lengths = self._parties.lengths(deployment)
        if lengths is None:
            return None
        sends = deployment.fusion.wants_embeddings and deployment.codec in CODECS
        return embedding_bytes(lengths, deployment.codec) if sends else 0

    def _controlled(self, deployment: Deployment, old: Deployment | None = None) -> Deployment:
        """The same deployment with a new controller, if one is configured and there is a budget to keep.

        The protection of the old deployment is kept for the same router.
        """
        settings, budget = self._settings.controller, deployment.point.budget
        if settings is None:
            return deployment
        if settings.cap is not None:
            settings = replace(settings, cap=settings.cap.share(self._settings.log.sharing))
        floor = old.floor if old is not None and old.hash == deployment.hash else None
        deployment = replace(deployment, control=None, protection=None)
        if budget is None:
            log.warning("the budget controller is off: a threshold was set instead of a budget")
            return deployment.protected(floor)
        if deployment.guarantee is not None:
            log.warning("the guarantee of router %s is not kept: the budget controller moves τ", deployment.name)
        control = BudgetControl(
            deployment.router, deployment.hash, budget, settings,
            sample_bytes=lambda: self.sample_bytes(deployment), before=None if old is None else old.control,
            slot=self._log.adopted,
            partial=deployment.partial,
        )  # fmt: skip
        log.info("the budget controller of router %s starts with budget %g", deployment.name, budget)
        return replace(deployment, control=control).protected(floor)

    def _load(self, spec: Spec) -> Deployment:
        path = Path(spec["artifact"])
        fusion = self._load_strong(_fusion_settings(spec["fusion"]))
        deployment = load_deployment(path, fusion, self._parties.names, self.trust)
        if self._settings.privacy.round1 == "masked":
            smaller = self._settings.rounds.on_missing_party == "smaller-roster"
            deployment = deployment.with_masked_pool(smaller_roster=smaller)
        if self._settings.router.partial:
            deployment = deployment.with_partial()
        if deployment.hash != spec["hash"]:
            raise HandshakeError(
                f"{path} has changed since it was put into use (its hash is {deployment.hash}, it was {spec['hash']}); "
                "restore the file, or change router.artifact in the configuration"
            )
        return deployment


def _audited(deployment: Deployment) -> Spec:
    return deployment.point.as_json() | {"controlled": deployment.control is not None}


def _spec(artifact: Path, fusion: FusionSettings) -> Spec:
    given = {name: str(value) for name in ("run", "factory", "strong") if (value := getattr(fusion, name)) is not None}
    return {"artifact": str(artifact), "hash": hash_contents(artifact), "fusion": given}


def _fusion_settings(given: dict[str, str]) -> FusionSettings:
    return FusionSettings(**{name: value if name == "factory" else Path(value) for name, value in given.items()})  # type: ignore[arg-type]


def _restored(deployment: Deployment, point: Spec) -> Deployment:
    if point["set_by"] == "budget":
        return deployment.at_budget(point["budget"])
    if point["set_by"] == "threshold":
        return deployment.at_threshold(float(point["threshold"]))
    return replace(deployment)
