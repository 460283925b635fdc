"""The shadow router: it scores the traffic of the router in use, and never answers.

What the strong route would have answered where it was not asked is known only from explored samples, each with its
probability; `gainroute.control.shadow.compare_shadow` estimates the difference from them.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from gainroute._util.files import plain
from gainroute._util.hashing import hash_contents
from gainroute.control.shadow import compare_shadow
from gainroute.errors import GainrouteError
from gainroute.federation.coordinator.decision_log.engine import LogConnection
from gainroute.federation.coordinator.decision_log.label_holders import largest_share
from gainroute.federation.coordinator.decision_log.reading import column, logged_decisions
from gainroute.federation.coordinator.decision_log.store import (
    audit,
    count_change,
    get_state,
    own_name,
    put_state,
    reading,
)
from gainroute.federation.coordinator.decision_log.writer import DecisionLog
from gainroute.federation.coordinator.deployment import Deployment, load_deployment
from gainroute.federation.coordinator.errors import ConflictError, HandshakeError
from gainroute.federation.coordinator.operator import Operator
from gainroute.federation.coordinator.outcome import ROUND1, ROUND2, Outcome
from gainroute.federation.coordinator.parties import PartyLinks
from gainroute.routing.types import FloatArray

__all__ = ["LiveShadow"]

log = logging.getLogger("gainroute.coordinator")

STATE, COUNTS = "shadow", "shadow counts"  # which router, of all coordinators; what each of them has counted
SAVE_SECONDS = 10.0
COMPARE_SECONDS = 5.0  # least time between comparisons
COMPARE_SHARE = 0.05  # greatest share of time spent on comparisons; one with 5,000 labels takes about a second
MOST_LABELS = 5000
QUERY = (
    "SELECT d.local, d.strong_prediction, d.probability, d.threshold, f.label, f.who, f.probability AS chance "
    "FROM feedback f JOIN decisions d USING (seq) WHERE f.seq >= ? AND d.router = ? AND d.route IN (?, ?) "
    "AND d.local IS NOT NULL ORDER BY f.seq DESC LIMIT ?"
)
COUNT = "SELECT count(*), max(time) FROM feedback WHERE seq >= ?"


@dataclass
class ShadowCounts:
    """Live traffic since the shadow router was loaded."""

    samples: int = 0  # scored by both routers
    old: int = 0  # escalated by the router in use, without exploration
    new: int = 0  # escalated by the shadow router
    both: int = 0
    same_weak: int = 0  # with the same weak answer
    kept: int = 0  # answers given by Round 1
    escalated: int = 0  # answers given by Round 2

    def plus(self, other: ShadowCounts) -> ShadowCounts:
        """The sum of both."""
        return ShadowCounts(**{name: count + getattr(other, name) for name, count in asdict(self).items()})

    def add(self, shadow: Deployment, seen: Sequence[Outcome]) -> None:
        """Score answers with the shadow router, and count agreement."""
        taken: list[tuple[Any, Any, Any]] = []
        for outcome in seen:
            rows = np.flatnonzero(~np.isnan(outcome.score) & outcome.complete)
            escalated = int((outcome.strong[rows] >= 0).sum())
            self.escalated += escalated
            self.kept += len(rows) - escalated
            wanted = outcome.wanted if outcome.explored is None else outcome.wanted & ~outcome.explored
            taken.append((outcome.local[:, rows], wanted[rows], outcome.weak[rows]))
        local = np.concatenate([t[0] for t in taken], axis=1)
        if not local.shape[1]:
            return
        old, weak = (np.concatenate([t[i] for t in taken]) for i in (1, 2))
        decision = shadow.router.route(local)
        new = decision.escalate
        self.samples += len(old)
        self.old += int(old.sum())
        self.new += int(new.sum())
        self.both += int((old & new).sum())
        self.same_weak += int((shadow.encode(decision.weak_prediction) == weak).sum())

    def feedback_probability(self, rows: Sequence[Any]) -> FloatArray:
        """As given with the feedback, else the share of that route's answers that are labelled."""
        chance, asked = column(rows, "chance"), column(rows, "strong_prediction", -1) >= 0
        shares = [
            min(1.0, float(own.sum()) / max(given, 1)) for own, given in ((~asked, self.kept), (asked, self.escalated))
        ]
        return np.where(np.isnan(chance), np.where(asked, shares[1], shares[0]), chance)


@dataclass(eq=False)
class Shadow:
    """A shadow router: its deployment, the hash of the router in use, since when, and counts."""

    deployment: Deployment
    against: str
    since: float
    counts: ShadowCounts = field(default_factory=ShadowCounts)

    def state(self) -> dict[str, Any]:
        """State to save for a restart."""
        own = self.deployment
        return {"artifact": str(own.path), "hash": own.hash, "against": self.against, "since": self.since,
                "counts": asdict(self.counts)}  # fmt: skip

    def placed_at(self, running: Deployment) -> Deployment:
        """The shadow router at the set point that a swap would start with."""
        point = running.point
        swapped = point.kind == "budget" and point.budget is not None
        return self.deployment.at_budget(point.budget) if swapped else self.deployment


class LiveShadow:
    """Loads a shadow router, compares it with the router in use, and drops it or swaps it in."""

    def __init__(
        self, decisions: DecisionLog, operator: Operator, parties: PartyLinks, trusted_holders: Collection[str] = ()
    ) -> None:
        self._log, self._operator, self._parties, self._trusted = decisions, operator, parties, trusted_holders
        self.shadow: Shadow | None = None
        self.comparison: dict[str, Any] | None = None  # on labelled answers
        self._why = ""  # why there is none
        self._judged: Any = None  # number and time of the labels of the last comparison
        self._due = self._saved = 0.0
        self._others = ShadowCounts()  # what other coordinators have counted

    # ---- admin calls ----------------------------------------------------------------------------

    async def resume(self, running: Deployment) -> None:
        """Restore the shadow router of before the restart, or the one that another coordinator has loaded."""
        own = own_name(COUNTS, self._log.slot)
        found = await asyncio.to_thread(get_state, self._log.place, (STATE, own))
        kept, counted = found.get(STATE), found.get(own)
        if kept is None:
            if self.shadow is not None:
                self._begin(None)
            return
        if self.shadow is not None and self.shadow.since == kept["since"]:
            return
        try:
            deployment = await asyncio.to_thread(self._load_beside, Path(kept["artifact"]), running)
        except GainrouteError as error:
            await self._forget(str(error), kept["since"])
            return
        if deployment.hash != kept["hash"] or running.hash != kept["against"]:
            await self._forget("its file or the router in use has changed", kept["since"])
            return
        if counted is not None and counted["since"] == kept["since"]:
            counts = ShadowCounts(**counted["counts"])
        else:  # an earlier version kept them together, and there is another coordinator's first state
            counts = ShadowCounts() if self._log.slot else ShadowCounts(**kept["counts"])
        self._begin(Shadow(deployment, kept["against"], kept["since"], counts))

    async def load(self, artifact: Path, who: str, request_id: str) -> None:
        """Load a shadow router, in place of the current one."""
        running = self._operator.deployment
        if running.partial:
            raise ConflictError(
                "router.partial is true: where samples go to some of the parties, the log does not say what a router "
                "that asks all of them would have answered; set it to false to compare routers"
            )
        deployment = await asyncio.to_thread(self._load_beside, artifact, running)
        if deployment.hash == running.hash:
            raise ConflictError(f"{artifact} is the router in use; load another one")
        await self._parties.confirm(deployment, "a shadow router")
        shadow = Shadow(deployment, running.hash, time.time())
        self._operator.note_change(
            await self._log.write(lambda c: self._change(c, shadow, "shadow load", who, request_id))
        )
        self._begin(shadow)

    async def drop(self, who: str, request_id: str) -> None:
        """Drop the shadow router."""
        if self.shadow is None:
            raise ConflictError("there is no shadow router; load one first")
        self._operator.note_change(
            await self._log.write(lambda c: self._change(c, None, "shadow drop", who, request_id))
        )
        self._begin(None)

    async def swap(self, who: str, request_id: str) -> Deployment:
        """Put the shadow router into use; the previous one is kept for a rollback."""
        shadow = self.shadow
        if shadow is None:
            raise ConflictError("there is no shadow router; load one first")
        path = shadow.deployment.path
        if await asyncio.to_thread(hash_contents, path) != shadow.deployment.hash:
            raise HandshakeError(f"{path} has changed since it was loaded; load it again")
        deployment = await self._operator.switch(path, None, who, request_id)
        self._operator.note_change(
            await self._log.write(lambda c: self._change(c, None, "shadow swap", who, request_id))
        )
        self._begin(None)
        return deployment

    def _load_beside(self, path: Path, running: Deployment) -> Deployment:
        deployment = load_deployment(path, running.fusion, self._parties.names, self._operator.trust)
        _check_beside(deployment, running, self._parties.names)
        return deployment

    def _change(self, connection: LogConnection, new: Shadow | None, action: str, who: str, name: str) -> int:
        changes = count_change(connection, self._operator.changes)
        put_state(connection, STATE, None if new is None else new.state())
        before = {"shadow": None if self.shadow is None else self.shadow.deployment.hash, "comparison": self.comparison}
        after = {"shadow": None if new is None else new.deployment.hash}
        audit(connection, who, name, action, plain(before), after)
        return changes

    async def _forget(self, why: str, since: float) -> None:
        extra = {} if self.shadow is None else {"shadow": self.shadow.deployment.hash}
        log.warning("the shadow router is dropped: %s", why, extra=extra)

        def write(connection: LogConnection) -> None:
            found = connection.execute("SELECT value FROM state WHERE name = ?", (STATE,)).fetchone()
            if found is not None and json.loads(found[0])["since"] == since:  # not one that was loaded elsewhere since
                put_state(connection, STATE, None)

        await self._log.write(write)
        self._begin(None)

    def _begin(self, shadow: Shadow | None) -> None:
        self.shadow, self.comparison, self._why, self._judged, self._due = shadow, None, "", None, 0.0
        self._others = ShadowCounts()

    # ---- live traffic ---------------------------------------------------------------------------

    async def examine(self, deployment: Deployment, seen: Sequence[Outcome]) -> None:
        """Score new answers, and compare if there are new labels."""
        shadow = self.shadow
        if shadow is None:
            return
        if deployment.hash != shadow.against:
            await self._forget("another router is in use", shadow.since)
            return
        own = [outcome for outcome in seen if outcome.deployment.hash == shadow.against]
        if own:
            await asyncio.to_thread(shadow.counts.add, shadow.placed_at(deployment), own)
        began = time.monotonic()
        if began >= self._due:
            await asyncio.to_thread(self._compare, shadow, deployment)
            now = time.monotonic()
            self._due = now + max(COMPARE_SECONDS, (now - began) / COMPARE_SHARE)
        if own and time.monotonic() - self._saved > SAVE_SECONDS:
            await self.save()

    async def save(self) -> None:
        """Save the counts for a restart."""
        if self.shadow is not None:
            state = {"since": self.shadow.since, "counts": asdict(self.shadow.counts)}
            await self._log.write(lambda c: put_state(c, own_name(COUNTS, c.slot), state))
            self._saved = time.monotonic()

    def _compare(self, shadow: Shadow, running: Deployment) -> None:
        first = self._log.number_at(shadow.since)
        with reading(self._log.place) as connection:
            judged = tuple(connection.execute(COUNT, (first,)).fetchone())
            if judged == self._judged:
                return
            rows = connection.execute(QUERY, (first, shadow.against, ROUND1, ROUND2, MOST_LABELS)).fetchall()
        self._judged = judged
        who, drop, _ = largest_share([row["who"] for row in rows], self._trusted)
        rows = [row for row, left_out in zip(rows, drop, strict=True) if not left_out]
        if who and not rows:
            self.comparison = None
            self._why = (
                "all labels are by one holder, and none decides alone: have another one label as well, or add it to "
                "[drift] trusted_holders"
            )
            return
        counts = shadow.counts.plus(self._read_others(shadow))
        if not rows or not counts.kept + counts.escalated:
            if judged[0]:
                self._why = (
                    f"none of {judged[0]:,} labels is on an answer that has its posteriors in the log; they are stored "
                    "with [log] posteriors = true"
                )
            return
        try:
            decisions = logged_decisions(running.router, rows, counts.feedback_probability(rows))
            rate = counts.escalated / (counts.kept + counts.escalated)
            found = compare_shadow(running.router, shadow.deployment.router, decisions, rate=rate)
        except GainrouteError as error:
            self.comparison, self._why = None, str(error)
            return
        self.comparison, self._why = vars(found) | {"verdict": found.verdict, "text": str(found)}, ""

    def _read_others(self, shadow: Shadow) -> ShadowCounts:
        """What other coordinators have counted."""
        self._others = ShadowCounts()
        if self._log.shared:
            found = get_state(self._log.place, (), (COUNTS,))
            found.pop(own_name(COUNTS, self._log.slot), None)
            for other in found.values():
                if other["since"] == shadow.since:
                    self._others = self._others.plus(ShadowCounts(**other["counts"]))
        return self._others

    def status(self) -> dict[str, Any] | None:
        """State for /api/status and metrics; None if there is no shadow router."""
        shadow = self.shadow
        if shadow is None:
            return None
        counts = shadow.counts.plus(self._others)
        n = counts.samples
        return {
            "version": shadow.deployment.name,
            "hash": shadow.deployment.hash,
            "artifact": str(shadow.deployment.path),
            "since": shadow.since,
            "threshold": plain(shadow.placed_at(self._operator.deployment).point.threshold),
            "samples": n,
            "answers": counts.kept + counts.escalated,
            "agreement": (n - counts.old - counts.new + 2 * counts.both) / n if n else None,
            "old_rate": counts.old / n if n else None,
            "new_rate": counts.new / n if n else None,
            "same_cheap_answer": counts.same_weak / n if n else None,
            "comparison": self.comparison,
            "no_comparison": self._why or ("" if self.comparison else "no labels on answers given since it was loaded"),
        }


def _check_beside(deployment: Deployment, running: Deployment, parties: tuple[str, ...]) -> None:
    """Raise HandshakeError unless a shadow router reads the same messages as the router in use."""
    if running.masked is not None:
        raise ConflictError("Round 1 is masked, and a shadow router needs the parties' posteriors: use /admin/router")
    old, new = running.router, deployment.router
    wrong: list[str] = []
    has, needed = (None if r.classes is None else [str(c) for c in r.classes.tolist()] for r in (new, old))
    if new.n_classes_ != old.n_classes_ or has != needed:
        wrong.append(f"its classes are {has or new.n_classes_}, those in use are {needed or old.n_classes_}")
    if deployment.columns != running.columns:
        wrong.append(f"it reads {deployment.columns} values per party and sample, {running.columns} are sent")
    if deployment.codec != running.codec:
        wrong.append(f"its codec is {deployment.codec!r}, the one in use is {running.codec!r}")
    others = [name for name in parties if deployment.model(name) != running.model(name)]
    if others:
        wrong.append(f"it was calibrated with other models of {', '.join(others)}: switch to it with /admin/router")
    if wrong:
        raise HandshakeError(f"{deployment.path} does not fit the router in use: " + "; ".join(wrong))
