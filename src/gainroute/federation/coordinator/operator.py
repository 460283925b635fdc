"""What an admin changes while the service runs: budget, threshold, router. Audited, and still there after a restart."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from gainroute._util.hashing import hash_contents
from gainroute.federation.coordinator.batching import Engine
from gainroute.federation.coordinator.budget_control import STATE, Control
from gainroute.federation.coordinator.decision_log.store import audit, get_state, put_state
from gainroute.federation.coordinator.decision_log.writer import DecisionLog
from gainroute.federation.coordinator.deployment import OperatingPoint, Version, load_version
from gainroute.federation.coordinator.errors import ConflictError, HandshakeError, PartyMissingError
from gainroute.federation.coordinator.fusion import Fusion
from gainroute.federation.coordinator.parties import Parties
from gainroute.federation.coordinator.settings import CoordinatorSettings, FusionSettings
from gainroute.routing.payload import CODECS, embedding_bytes

__all__ = ["Operator", "number", "point_json"]

Spec = dict[str, Any]
log = logging.getLogger("gainroute.coordinator")


def number(value: float | None) -> float | str | None:
    """A number that JSON can carry: infinities become text.

    Examples
    --------
    >>> number(0.5), number(float("inf")), number(float("-inf"))
    (0.5, 'inf', '-inf')
    """
    return str(value) if value in (float("inf"), float("-inf")) else value


def point_json(point: OperatingPoint) -> Spec:
    """An operating point as JSON."""
    return {"set_by": point.kind, "budget": point.budget, "threshold": number(point.threshold)}


class Operator:
    """Changes the version in use, one change at a time.

    Parameters
    ----------
    settings, parties, log
        Of the coordinator.
    load_fusion
        Builds a fusion from its settings.
    """

    def __init__(
        self,
        settings: CoordinatorSettings,
        parties: Parties,
        log: DecisionLog,
        load_fusion: Callable[[FusionSettings], Fusion],
    ) -> None:
        self._settings, self._parties, self._log, self._load_fusion = settings, parties, log, load_fusion
        self._lock = asyncio.Lock()
        self._spec: Spec = {}
        self._previous: Spec | None = None
        self._kept: dict[str, Version] = {}  # the version before, as it was: a rollback needs no file
        self._configured: Spec = {}
        self.engine: Engine

    @property
    def previous(self) -> str | None:
        """Hash of the router that a rollback would bring back."""
        return None if self._previous is None else str(self._previous["hash"])

    def kept(self, identity: str) -> Version | None:
        """A version in memory by its hash: the one in use, or the one before."""
        current = self.engine.version
        return current if current.hash == identity else self._kept.get(identity)

    # ---- at the start ---------------------------------------------------------------------------

    async def resume(self) -> Version:
        """What was in use when the coordinator stopped; or what is configured, if that has changed since."""
        artifact, fusion = self._settings.router.artifact, self._settings.fusion
        self._configured = await asyncio.to_thread(_spec, artifact, fusion)
        budget = self._settings.budget
        kept = await asyncio.to_thread(get_state, self._log.path, ("router", "point", STATE))
        router = kept.get("router", {})
        if router.get("configured") == self._configured:
            self._spec, self._previous = router["current"], router["previous"]
        else:
            self._spec = self._configured
        version = await asyncio.to_thread(self._load, self._spec)
        point = kept.get("point", {})
        if point.get("configured") == budget and point.get("router") == version.hash:
            version = _restored(version, point)
        elif budget is not None:
            version = version.at_budget(budget)
        version = self._controlled(version)
        if version.control is not None:
            version.control.restore(kept.get(STATE))
        return version

    # ---- while it runs --------------------------------------------------------------------------

    async def set_budget(self, budget: Any, who: str, request_id: str) -> Version:
        """Take another budget; τ is read off the calibration scores."""
        async with self._lock:
            return await self._set_point(self.engine.version.at_budget(budget), "budget", who, request_id)

    async def set_threshold(self, threshold: Any, who: str, request_id: str) -> Version:
        """Take another threshold; no promise about the rate."""
        async with self._lock:
            return await self._set_point(self.engine.version.at_threshold(threshold), "threshold", who, request_id)

    async def switch(self, artifact: Path, fusion: FusionSettings | None, who: str, request_id: str) -> Version:
        """Take another router: load it, shake hands with every party, swap.

        Parameters
        ----------
        artifact
            The router's file.
        fusion
            Its fusion; None keeps the one in use.
        who, request_id
            For the audit.

        Notes
        -----
        A budget that an admin or the configuration set goes with it; a threshold does not, since scores of another
        router are on another scale.
        """
        async with self._lock:
            given = fusion if fusion is not None else _fusion_settings(self._spec["fusion"])
            spec = await asyncio.to_thread(_spec, artifact, given)
            version = await asyncio.to_thread(self._load, spec)
            return await self._swap(spec, version, "router", who, request_id)

    async def protect(self, floor: float | None, evidence: str) -> None:
        """Demand more gain of every escalation, or no longer; what the drift monitor found is the evidence."""
        async with self._lock:
            version = self.engine.version
            before, after = ({"min_gain": number(value)} for value in (version.floor, floor))
            after["evidence"] = evidence
            news = version.floor is None or floor is None  # that more is found to be needed later on is none
            self.engine.version = version.protected(floor)  # first: it must not wait for a disk
            if news:
                await self._log.write(lambda c: audit(c, "drift monitor", "", "protect", before, after))

    async def rollback(self, who: str, request_id: str) -> Version:
        """Take back the router before."""
        async with self._lock:
            spec = self._previous
            if spec is None:
                raise ConflictError("there is no router to roll back to; none was switched since the configured one")
            kept = self._kept.get(spec["hash"])
            version = kept if kept is not None else await asyncio.to_thread(self._load, spec)
            return await self._swap(spec, version, "rollback", who, request_id)

    async def _swap(self, spec: Spec, version: Version, action: str, who: str, request_id: str) -> Version:
        absent = await self._parties.shake(version)
        if absent:
            raise PartyMissingError(
                "a switch needs every party to say that it has the models: " + "; ".join(map(str, absent.values()))
            )
        old, old_spec = self.engine.version, self._spec
        if old.point.budget is not None and old.point.kind == "budget":
            version = version.at_budget(old.point.budget)
        version = self._controlled(version, old)
        kept = {"configured": self._configured, "current": spec, "previous": old_spec}

        def write(connection: Any) -> None:
            put_state(connection, "router", kept)
            self._keep(connection, version)
            audit(connection, who, request_id, action, old_spec, spec)

        await self._log.write(write)
        self._spec, self._previous, self._kept = spec, old_spec, {old.hash: old}
        self.engine.version = version
        return version

    async def _set_point(self, version: Version, action: str, who: str, request_id: str) -> Version:
        old = self.engine.version
        version = self._controlled(version, old)

        def write(connection: Any) -> None:
            self._keep(connection, version)
            audit(connection, who, request_id, action, _audited(old), _audited(version))

        await self._log.write(write)
        self.engine.version = version
        return version

    def _keep(self, connection: Any, version: Version) -> None:
        """Have a restart find the operating point, and the controller as it begins."""
        point = point_json(version.point) | {"configured": self._settings.budget, "router": version.hash}
        put_state(connection, "point", point)
        put_state(connection, STATE, None if version.control is None else version.control.state())

    # ---- the budget controller ------------------------------------------------------------------

    def save_control(self, connection: Any) -> None:
        """Keep the controller's state: for `DecisionLog.alongside`, in any thread."""
        control = self.engine.version.control
        if control is not None:
            put_state(connection, STATE, control.state())

    def sample_bytes(self, version: Version) -> int | None:
        """Payload of one sample in Round 2; None while a party has not told its dimension."""
        lengths = self._parties.lengths(version)
        if lengths is None:
            return None
        sends = version.fusion.wants_embeddings and version.codec in CODECS
        return embedding_bytes(lengths, version.codec) if sends else 0

    def _controlled(self, version: Version, old: Version | None = None) -> Version:
        """The same version with a controller that begins anew, if one is configured and there is a budget to keep.

        What protects the router of the old version, controlled or not, goes on protecting it.
        """
        settings, budget = self._settings.controller, version.point.budget
        if settings is None:
            return version
        floor = old.floor if old is not None and old.hash == version.hash else None
        version = replace(version, control=None, protection=None)
        if budget is None:
            log.warning("the budget controller is off: a threshold was set, and no budget")
            return version.protected(floor)
        before = None if old is None else old.control
        control = Control(version.router, version.hash, budget, settings, lambda: self.sample_bytes(version), before)
        log.info("the budget controller of router %s begins, budget %g", version.name, budget)
        return replace(version, control=control).protected(floor)

    def _load(self, spec: Spec) -> Version:
        path = Path(spec["artifact"])
        fusion = self._load_fusion(_fusion_settings(spec["fusion"]))
        version = load_version(path, fusion, self._parties.names)
        if version.hash != spec["hash"]:
            raise HandshakeError(
                f"{path} has changed since it was put into use (hash {version.hash}, it was {spec['hash']}); put the "
                "file back, or change router.artifact in the configuration"
            )
        return version


def _audited(version: Version) -> Spec:
    return point_json(version.point) | {"controlled": version.control is not None}


def _spec(artifact: Path, fusion: FusionSettings) -> Spec:
    given = {name: str(value) for name in ("run", "factory", "strong") if (value := getattr(fusion, name)) is not None}
    return {"artifact": str(artifact), "hash": hash_contents(artifact), "fusion": given}


def _fusion_settings(given: dict[str, str]) -> FusionSettings:
    return FusionSettings(**{name: value if name == "factory" else Path(value) for name, value in given.items()})  # type: ignore[arg-type]


def _restored(version: Version, point: Spec) -> Version:
    if point["set_by"] == "budget":
        return version.at_budget(point["budget"])
    if point["set_by"] == "threshold":
        return version.at_threshold(float(point["threshold"]))
    return replace(version)
