"""A decision log as arrays, for recalibrating a router from its own decisions. Read-only; no server needed."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from gainroute.control.logged_decisions import LoggedDecisions
from gainroute.errors import DataError
from gainroute.federation.coordinator.decision_log.engine import Place
from gainroute.federation.coordinator.decision_log.label_holders import largest_share
from gainroute.federation.coordinator.decision_log.store import reading
from gainroute.federation.coordinator.outcome import ROUND1, ROUND2
from gainroute.routing.labels import Labels
from gainroute.routing.router import Router
from gainroute.routing.types import BoolArray, FloatArray

__all__ = ["ReadLog", "column", "local_posteriors", "logged_decisions", "read_decisions"]

COLUMNS = "d.local, d.strong_prediction, d.probability, d.threshold, d.time, f.label, f.who"
SINCE_VERSION_2 = ("d.explored AS explored, f.probability AS chance", "NULL AS explored, NULL AS chance")
FROM = (
    "FROM decisions d LEFT JOIN feedback f USING (seq) "
    "WHERE d.router = ? AND d.time >= ? AND d.route IN (?, ?) ORDER BY d.seq"
)
PARTLY = "SELECT 1 FROM decisions WHERE router = ? AND time >= ? AND route LIKE 'round2:%asked:%' LIMIT 1"


@dataclass(frozen=True, eq=False)
class ReadLog:
    """Decisions of one router, oldest first."""

    decisions: LoggedDecisions  # input of the recalibration
    labelled: BoolArray  # (N,) whether there is feedback
    escalated: BoolArray  # (N,) whether the strong route answered
    time: FloatArray  # (N,) seconds since 1970
    unexplored: int = 0  # decisions left out because they were made without exploration
    left_out: str = ""  # labels left out because one holder gave most of them

    def take(self, rows: Any) -> ReadLog:
        """Return only these decisions."""
        found: dict[str, Any] = {f.name: getattr(self.decisions, f.name) for f in fields(self.decisions)}
        part: dict[str, Any] = {k: v if v is None else v[:, rows] if v.ndim == 3 else v[rows] for k, v in found.items()}
        decisions = LoggedDecisions(**part)
        kept = self.labelled[rows], self.escalated[rows], self.time[rows]
        return ReadLog(decisions, *kept, self.unexplored, self.left_out)


def read_decisions(
    place: Place, router: Router, identity: str, since: float = 0.0, trusted: Collection[str] = ()
) -> ReadLog:
    """Read the decisions of one router, without degraded answers and unknown samples.

    Decisions made without exploration are left out if there are others: they tell nothing about the strong route below
    the threshold. If there was never any exploration, the recalibration reports it.

    Labels of one holder count as many as those of all others together at most, unless it is one of `trusted`.

    `identity` is the hash of the router's artifact, which names it in the log; `since` is in seconds since 1970. A
    coordinator may be writing the log at the same time.
    """
    if isinstance(place, Path) and not place.is_file():
        raise DataError(f"{place}: no such decision log; name the file of [log] path in the coordinator's settings")
    with reading(place) as connection:
        # A file that was not migrated yet is read as it is.
        old = isinstance(place, Path) and connection.execute("PRAGMA user_version").fetchone()[0] < 2
        query = f"SELECT {COLUMNS}, {SINCE_VERSION_2[old]} {FROM}"
        found = connection.execute(query, (identity, since, ROUND1, ROUND2)).fetchall()
        partly = connection.execute(PARTLY, (identity, since)).fetchone()
        others = connection.execute("SELECT count(*) FROM decisions WHERE router != ?", (identity,)).fetchone()[0]
    if partly is not None:
        raise DataError(
            f"{place}: samples were escalated to some of the parties only (router.partial): the log does not say how "
            "reliable all of them are together; recalibrate from decisions made with router.partial = false"
        )
    if not found:
        raise DataError(
            f"{place}: no usable decision of router {identity[:12]} ({others:,} are of other routers); pass the "
            "artifact that made the decisions, and more days"
        )
    explored = [row for row in found if row["explored"] is not None]
    unexplored = len(found) - len(explored) if explored else 0
    found = explored or found
    k = router.n_classes_ + router.extra_columns
    blobs = [row["local"] for row in found if row["local"] is not None]
    if any(len(blob) != 4 * router.n_parties_ * k for blob in blobs):
        raise DataError(f"{place}: posteriors do not have the {router.n_parties_} × {k} numbers of this router")
    who, drop, share = largest_share([row["who"] for row in found], trusted)
    chance = column(found, "chance")
    if who:
        chance[[row["who"] == who for row in found]] *= share  # labels that are drawn have a smaller probability
    decisions = logged_decisions(router, found, None if np.isnan(chance).all() else chance)
    if len(blobs) < len(found):
        decisions = replace(decisions, local_posteriors=None)
    labelled, escalated = (np.array([row[key] is not None for row in found]) for key in ("label", "strong_prediction"))
    left_out = ""
    if who:
        names = Labels(router.n_classes_, router.classes)
        decisions = replace(decisions, labels=names.decode(np.where(drop, -1, column(found, "label", -1))))
        left_out = f"{int(drop.sum()):,} of {int(labelled.sum()):,} labels, by {who}, who gave more than all others"
        labelled &= ~drop
    return ReadLog(decisions, labelled, escalated, column(found, "time"), unexplored, left_out)


def column(rows: Sequence[Any], name: str, missing: float = np.nan) -> Any:
    """A column of decisions as an array, of floats or of integers like `missing`, which stands for NULL."""
    return np.array([missing if row[name] is None else row[name] for row in rows], dtype=type(missing))


def local_posteriors(rows: Sequence[Any], parties: int, columns: int) -> FloatArray:
    """Local posteriors (M, N, K′) of decisions; NaN where a row has none, or those of another router."""
    nothing = np.full(parties * columns, np.nan, "<f4").tobytes()
    blobs = (row["local"] or b"" for row in rows)
    flat = np.frombuffer(b"".join(blob if len(blob) == len(nothing) else nothing for blob in blobs), "<f4")
    return np.moveaxis(flat.reshape(len(rows), parties, columns), 1, 0).astype(np.float64, order="C")


def logged_decisions(router: Router, rows: Sequence[Any], feedback_probability: FloatArray | None) -> LoggedDecisions:
    """Decisions of a router, as a recalibration or a comparison takes them."""
    names = Labels(router.n_classes_, router.classes)
    return LoggedDecisions(
        local_posteriors=local_posteriors(rows, router.n_parties_, router.n_classes_ + router.extra_columns),
        labels=names.decode(column(rows, "label", -1)),
        strong_prediction=names.decode(column(rows, "strong_prediction", -1)),
        probability=column(rows, "probability"),
        feedback_probability=feedback_probability,
        threshold=column(rows, "threshold"),
    )
