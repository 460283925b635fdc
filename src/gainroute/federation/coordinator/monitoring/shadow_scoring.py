"""Loading a shadow router, and scoring answers with it."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gainroute._util.hashing import hash_contents
from gainroute.control.logged_decisions import LoggedDecisions
from gainroute.federation.coordinator.deployment import Deployment, load_deployment
from gainroute.federation.coordinator.errors import HandshakeError
from gainroute.federation.coordinator.outcome import Outcome
from gainroute.routing.labels import Labels

__all__ = ["ShadowCounts", "load_beside", "logged_decisions", "placed_at", "score_beside"]


@dataclass
class ShadowCounts:
    """Live traffic since the shadow router was loaded.

    Attributes
    ----------
    samples, old, new, both
        Scored by both routers; escalated by the one in use (without exploration), by the shadow router, by both.
    same_weak
        Samples with the same weak answer.
    kept, escalated
        Answers given by Round 1 and by Round 2.
    """

    samples: int = 0
    old: int = 0
    new: int = 0
    both: int = 0
    same_weak: int = 0
    kept: int = 0
    escalated: int = 0


def load_beside(path: Path, running: Deployment, parties: tuple[str, ...]) -> Deployment:
    """Load a shadow router; it must read the same messages as the router in use."""
    hash_contents(path)  # raises if there is no such file
    deployment = load_deployment(path, running.fusion, parties)
    old, new = running.router, deployment.router
    wrong: list[str] = []
    if new.n_classes_ != old.n_classes_ or _names(new.classes) != _names(old.classes):
        has, needed = (_names(router.classes) or router.n_classes_ for router in (new, old))
        wrong.append(f"its classes are {has}, those in use are {needed}")
    if deployment.columns != running.columns:
        wrong.append(f"it reads {deployment.columns} values per party and sample, {running.columns} are sent")
    if deployment.codec != running.codec:
        wrong.append(f"its codec is {deployment.codec!r}, the one in use is {running.codec!r}")
    others = [name for name in parties if deployment.model(name) != running.model(name)]
    if others:
        wrong.append(f"it was calibrated with other models of {', '.join(others)}: switch to it with /admin/router")
    if wrong:
        raise HandshakeError(f"{path} does not fit the router in use: " + "; ".join(wrong))
    return deployment


def _names(classes: Any) -> list[str] | None:
    return None if classes is None else [str(c) for c in classes.tolist()]


def placed_at(shadow: Deployment, running: Deployment) -> Deployment:
    """The shadow router at the set point that a swap would start with."""
    point = running.point
    return shadow.at_budget(point.budget) if point.kind == "budget" and point.budget is not None else shadow


def score_beside(shadow: Deployment, seen: Sequence[Outcome], counts: ShadowCounts) -> None:
    """Score answers with the shadow router, and count agreement."""
    taken: list[tuple[Any, Any, Any]] = []
    for outcome in seen:
        rows = np.flatnonzero(~np.isnan(outcome.score))
        escalated = int((outcome.strong[rows] >= 0).sum())
        counts.escalated += escalated
        counts.kept += len(rows) - escalated
        wanted = outcome.wanted if outcome.explored is None else outcome.wanted & ~outcome.explored
        taken.append((outcome.local[:, rows], wanted[rows], outcome.weak[rows]))
    local = np.concatenate([t[0] for t in taken], axis=1)
    if not local.shape[1]:
        return
    old, weak = (np.concatenate([t[i] for t in taken]) for i in (1, 2))
    decision = shadow.router.route(local)
    new = decision.escalate
    counts.samples += len(old)
    counts.old += int(old.sum())
    counts.new += int(new.sum())
    counts.both += int((old & new).sum())
    counts.same_weak += int((shadow.encode(decision.weak_prediction) == weak).sum())


def logged_decisions(running: Deployment, rows: Sequence[sqlite3.Row], counts: ShadowCounts) -> LoggedDecisions:
    """Labelled answers for the comparison; of the others only the counts are needed."""
    router = running.router
    names = Labels(router.n_classes_, router.classes)
    m, k = len(running.parties), running.columns
    flat = np.frombuffer(b"".join(row["local"] for row in rows), "<f4").reshape(len(rows), m, k)
    strong = np.array([-1 if row["strong_prediction"] is None else row["strong_prediction"] for row in rows])
    asked = strong >= 0
    share = [min(1.0, float(mine.sum()) / max(given, 1)) for mine, given in
             ((~asked, counts.kept), (asked, counts.escalated))]  # fmt: skip
    chance = np.array([np.nan if row["chance"] is None else row["chance"] for row in rows], dtype=np.float64)
    return LoggedDecisions(
        local_posteriors=np.ascontiguousarray(np.moveaxis(flat, 1, 0)).astype(np.float64),
        labels=names.decode(np.array([row["label"] for row in rows], dtype=np.int64)),
        strong_prediction=names.decode(strong.astype(np.int64)),
        probability=np.array([row["probability"] for row in rows], dtype=np.float64),
        feedback_probability=np.where(np.isnan(chance), np.where(asked, share[1], share[0]), chance),
        threshold=np.array([row["threshold"] for row in rows], dtype=np.float64),
    )
