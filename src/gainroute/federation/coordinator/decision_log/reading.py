"""A decision log as arrays, for recalibrating a router from its own decisions. Read-only; no server needed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gainroute.control.logged_decisions import LoggedDecisions
from gainroute.errors import DataError
from gainroute.federation.coordinator.decision_log.store import reading
from gainroute.federation.coordinator.outcome import ROUND1, ROUND2
from gainroute.routing.labels import Labels
from gainroute.routing.router import Router
from gainroute.routing.types import ArrayLike, BoolArray, FloatArray

__all__ = ["ReadLog", "read_decisions"]

COLUMNS = "d.local, d.strong_prediction, d.probability, d.threshold, d.time, f.label AS truth"
SINCE_VERSION_2 = ("d.explored AS explored, f.probability AS chance", "NULL AS explored, NULL AS chance")
FROM = (
    "FROM decisions d LEFT JOIN feedback f USING (seq) "
    "WHERE d.router = ? AND d.time >= ? AND d.route IN (?, ?) ORDER BY d.seq"
)


@dataclass(frozen=True, eq=False)
class ReadLog:
    """Decisions of one router, oldest first.

    Attributes
    ----------
    decisions
        Input of the recalibration.
    labelled, escalated : (N,) bool
        True where there is feedback, and where the strong route answered.
    time : (N,)
        Seconds since 1970.
    unexplored
        Decisions left out because they were made without exploration.
    """

    decisions: LoggedDecisions
    labelled: BoolArray
    escalated: BoolArray
    time: FloatArray
    unexplored: int = 0

    def take(self, rows: Any) -> ReadLog:
        """Return only these decisions."""
        log = self.decisions

        def part(values: ArrayLike | None) -> Any:
            return None if values is None else np.asarray(values)[rows]

        kept = LoggedDecisions(
            local_posteriors=None if log.local_posteriors is None else log.local_posteriors[:, rows],
            labels=part(log.labels),
            strong_prediction=part(log.strong_prediction),
            probability=part(log.probability),
            feedback_probability=part(log.feedback_probability),
            threshold=part(log.threshold),
        )
        return ReadLog(kept, self.labelled[rows], self.escalated[rows], self.time[rows], self.unexplored)


def read_decisions(path: Path, router: Router, identity: str, since: float = 0.0) -> ReadLog:
    """Read the decisions of one router, without degraded answers and unknown samples.

    Decisions made without exploration are left out if there are others: they tell nothing about the strong route below
    the threshold. If there was never any exploration, the recalibration reports it.

    Parameters
    ----------
    path
        The decision log; a coordinator may be writing it at the same time.
    router, identity
        The router, and the hash of its artifact, which names it in the log.
    since
        Start time in seconds since 1970.
    """
    if not path.is_file():
        raise DataError(f"{path}: no such decision log; name the file of [log] path in the coordinator's settings")
    with reading(path) as connection:
        # A log that was not migrated yet is read as it is.
        (schema,) = connection.execute("PRAGMA user_version").fetchone()
        query = f"SELECT {COLUMNS}, {SINCE_VERSION_2[schema < 2]} {FROM}"
        found = connection.execute(query, (identity, since, ROUND1, ROUND2)).fetchall()
        others = connection.execute("SELECT count(*) FROM decisions WHERE router != ?", (identity,)).fetchone()[0]
    if not found:
        raise DataError(
            f"{path}: no usable decision of router {identity[:12]} ({others:,} are of other routers); pass the "
            "artifact that made the decisions, and more days"
        )
    explored = [row for row in found if row["explored"] is not None]
    unexplored = len(found) - len(explored) if explored else 0
    found = explored or found
    k = router.n_classes_ + router.extra_columns
    width = 4 * router.n_parties_ * k
    blobs = [row["local"] for row in found]
    local = None
    if all(blob is not None for blob in blobs):
        if any(len(blob) != width for blob in blobs):
            raise DataError(f"{path}: posteriors do not have the {router.n_parties_} × {k} numbers of this router")
        flat = np.frombuffer(b"".join(blobs), "<f4").reshape(len(found), router.n_parties_, k)
        local = np.ascontiguousarray(np.moveaxis(flat, 1, 0)).astype(np.float64)
    names = Labels(router.n_classes_, router.classes)

    def columns(key: str) -> Any:
        return names.decode(np.array([-1 if row[key] is None else row[key] for row in found], dtype=np.int64))

    decisions = LoggedDecisions(
        local_posteriors=local,
        labels=columns("truth"),
        strong_prediction=columns("strong_prediction"),
        probability=np.array([row["probability"] for row in found]),
        feedback_probability=_chances(found),
        threshold=np.array([row["threshold"] for row in found]),
    )
    labelled, escalated = (np.array([row[key] is not None for row in found]) for key in ("truth", "strong_prediction"))
    return ReadLog(decisions, labelled, escalated, np.array([row["time"] for row in found]), unexplored)


def _chances(found: Sequence[Any]) -> FloatArray | None:
    """Probabilities given with feedback, NaN where there is none; None if there are none at all."""
    chance = np.array([row["chance"] for row in found], dtype=np.float64)
    return None if np.isnan(chance).all() else chance
