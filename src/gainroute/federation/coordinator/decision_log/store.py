"""Reading the decision log, feedback, deletion, audit trail, and saved state.

Functions that take a connection are to be passed to `DecisionLog.write`; those that take a place only read, in any
thread.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gainroute.federation.audit_chain import START
from gainroute.federation.audit_trail import audit_body
from gainroute.federation.coordinator.decision_log.engine import LogConnection, Place, ReadConnection
from gainroute.federation.coordinator.decision_log.schema import COLUMNS, decision_id, sequence
from gainroute.federation.coordinator.errors import ConflictError, LogFailedError, NotFoundError

__all__ = [
    "CHANGES", "audit", "count_change", "delete_named", "get_state", "give_feedback", "latest", "one", "own_name",
    "posterior", "pseudonym", "put_state", "read_audit", "reading", "summarise_feedback",
]  # fmt: skip

Row = dict[str, Any]
MOST_LABELS = 10_000
CHANGES = "changes"  # number of changes of what coordinators share


@contextmanager
def reading(place: Place) -> Iterator[ReadConnection]:
    """Open a log for reading; it may be written at the same time."""
    try:
        if isinstance(place, Path):
            with closing(sqlite3.connect(f"{place.absolute().as_uri()}?mode=ro", uri=True, timeout=5)) as connection:
                connection.row_factory = sqlite3.Row
                yield connection
        else:
            with place.reading() as statements:
                yield statements
    except Exception as error:
        if isinstance(error, sqlite3.Error) or type(error).__module__.startswith("psycopg"):
            raise LogFailedError(f"the decision log {place} cannot be read ({error})") from error
        raise


# ---- decisions ----------------------------------------------------------------------------------


def _select(place: Place, columns: Sequence[str], which: str, *values: int | str | None) -> list[Row]:
    query = f"SELECT {', '.join('d.' + c for c in columns)}, f.label AS truth FROM decisions d "  # noqa: S608
    with reading(place) as connection:
        found = connection.execute(f"{query} LEFT JOIN feedback f USING (seq) {which}", values).fetchall()
    return [dict(row) | {"decision_id": decision_id(row["seq"])} for row in found]


def latest(place: Place, limit: int, holder: str | None = None) -> list[Row]:
    """The latest decisions, or those of one holder, newest first, without posteriors."""
    wanted = [c for c in COLUMNS if c not in ("local", "pooled", "strong")]
    if holder is None:
        return _select(place, wanted, "ORDER BY d.seq DESC LIMIT ?", limit)
    return _select(place, wanted, "WHERE d.holder = ? ORDER BY d.seq DESC LIMIT ?", holder, limit)


def one(place: Place, name: str) -> Row:
    """One decision by its id, with all columns."""
    found = _select(place, COLUMNS, "WHERE d.seq = ?", sequence(name))
    if not found:
        raise NotFoundError(f"there is no decision {name!r}; ids are 16 hex digits, as in answers and /api/decisions")
    return found[0]


def posterior(blob: bytes | None, columns: int) -> npt.NDArray[np.float32] | None:
    """The array in a blob, (rows, columns)."""
    return None if blob is None else np.frombuffer(blob, "<f4").reshape(-1, columns)


def _named(decision: str | None, sample: str | None) -> tuple[str, int | str | None]:
    """The condition that selects one decision by its id, or all about a sample."""
    return ("seq = ?", sequence(decision)) if decision is not None else ("sample_id = ?", sample)


def delete_named(connection: LogConnection, decision: str | None, sample: str | None) -> int:
    """Delete one decision, or all decisions about a sample, with their feedback."""
    where, value = _named(decision, sample)
    for table in ("feedback", "unwatched"):
        own = f"seq IN (SELECT seq FROM decisions WHERE {where})"  # noqa: S608 (our own texts)
        connection.execute(f"DELETE FROM {table} WHERE {own}", (value,))  # noqa: S608
    return int(connection.execute(f"DELETE FROM decisions WHERE {where}", (value,)).rowcount)  # noqa: S608


# ---- feedback -----------------------------------------------------------------------------------


def give_feedback(
    connection: LogConnection,
    label: int,
    who: str,
    *,
    decision: str | None = None,
    sample: str | None = None,
    probability: float | None = None,
    watched: bool = False,
    holder: str | None = None,
) -> str:
    """Attach a true label to a decision, by its id or by a sample id that is unique; returns the decision id.

    `probability` is the probability with which this decision was chosen for labelling; None if it does not depend on
    the sample. With `watched`, the label is queued for the drift monitor, unless it corrects an earlier one: no label
    counts twice. With `holder`, only that holder's decisions are found, and labels by others are not replaced.
    """
    where, value = _named(decision, sample)
    own, values = ("", (value,)) if holder is None else (" AND holder = ?", (value, holder))
    found = connection.execute(f"SELECT seq FROM decisions WHERE {where}{own} LIMIT 2", values).fetchall()  # noqa: S608
    if not found:
        what = f"decision about sample {sample!r}" if decision is None else f"decision {decision!r}"
        raise NotFoundError(f"there is no {what}; pass the decision_id of an answer")
    if len(found) > 1:
        raise ConflictError(f"sample {sample!r} was answered more than once; pass the decision_id")
    (number,) = found[0]
    before = connection.execute("SELECT who FROM feedback WHERE seq = ?", (number,)).fetchone()
    if holder is not None and before is not None and before[0] != who:
        raise ConflictError(
            f"decision {decision_id(number)!r} was labelled by another holder; a token with the feedback role may "
            "correct it"
        )
    if watched and before is None:
        connection.execute("INSERT INTO unwatched (seq, slot) VALUES (?, ?)", (number, connection.slot))
    connection.execute(
        "INSERT INTO feedback (seq, label, time, who, probability) VALUES (?, ?, ?, ?, ?) "
        "ON CONFLICT (seq) DO UPDATE SET label = excluded.label, time = excluded.time, who = excluded.who, "
        "probability = excluded.probability",
        (number, label, time.time(), who, probability),
    )
    return decision_id(number)


def summarise_feedback(place: Place) -> Row:
    """Accuracy of the answers, and of Round 1, on the latest 10,000 labelled decisions and on the escalated among them.

    None where there are no labels. Samples that no party had are counted as `unanswered`, and nowhere else.
    """
    with reading(place) as connection:
        found = connection.execute(
            "SELECT count(*) FILTER (WHERE answered) AS labels, avg(correct) FILTER (WHERE answered) AS accuracy, "
            "avg(weak_correct) FILTER (WHERE answered) AS weak_accuracy, "
            "count(*) FILTER (WHERE escalated) AS escalated_labels, "
            "avg(correct) FILTER (WHERE escalated) AS escalated_accuracy, "
            "avg(weak_correct) FILTER (WHERE escalated) AS escalated_weak_accuracy, "
            "count(*) FILTER (WHERE NOT answered) AS unanswered FROM (SELECT d.label >= 0 AS answered, "
            "CAST(CASE WHEN d.label = f.label THEN 1 ELSE 0 END AS DOUBLE PRECISION) AS correct, "
            "CAST(CASE WHEN d.weak_prediction = f.label THEN 1 ELSE 0 END AS DOUBLE PRECISION) AS weak_correct, "
            "d.strong_prediction IS NOT NULL AS escalated "
            "FROM (SELECT * FROM feedback ORDER BY seq DESC LIMIT ?) f JOIN decisions d USING (seq)) judged",
            (MOST_LABELS,),
        )
        return dict(found.fetchone())


# ---- audit and state -----------------------------------------------------------------------------


def audit(connection: LogConnection, who: str, request_id: str, action: str, before: Any, after: Any) -> None:
    """Add an entry to the audit trail, chained to the one before (`gainroute.federation.audit_chain`)."""
    connection.take_turn("audit")
    last = connection.execute("SELECT number, chain FROM audit ORDER BY number DESC LIMIT 1").fetchone() or (0, None)
    row = {
        "number": last[0] + 1, "time": time.time(), "who": who, "request_id": request_id, "action": action,
        "before": json.dumps(before), "after": json.dumps(after),
    }  # fmt: skip
    body = audit_body(row, first=last[1] is None)
    row["chain"] = connection.key.link(last[1] or START, body)
    names = ", ".join(row)
    connection.execute(f"INSERT INTO audit ({names}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)", [*row.values()])  # noqa: S608


def read_audit(place: Place, limit: int) -> list[Row]:
    """The latest admin calls, newest first."""
    with reading(place) as connection:
        found = connection.execute("SELECT * FROM audit ORDER BY number DESC LIMIT ?", (limit,)).fetchall()
    return [dict(row) | {"before": json.loads(row["before"]), "after": json.loads(row["after"])} for row in found]


def own_name(name: str, slot: int) -> str:
    """The name of the state that each coordinator has for itself.

    Examples
    --------
    >>> own_name("controller", 0), own_name("controller", 3)
    ('controller', 'controller@3')
    """
    return name if slot == 0 else f"{name}@{slot}"


def count_change(connection: LogConnection, seen: int) -> int:
    """Count a change of what all coordinators share; refused if there is one that this coordinator has not `seen`."""
    connection.take_turn(CHANGES)
    found = connection.execute("SELECT value FROM state WHERE name = ?", (CHANGES,)).fetchone()
    last = 0 if found is None else int(found[0])
    if last != seen:
        raise ConflictError(
            "another coordinator has just changed the budget or the router, which is being applied here; look at the "
            "status, and repeat the call if it is still wanted"
        )
    put_state(connection, CHANGES, last + 1)
    return last + 1


def put_state(connection: ReadConnection, name: str, value: Any) -> None:
    """Save a value; None deletes it."""
    if value is None:
        connection.execute("DELETE FROM state WHERE name = ?", (name,))
        return
    connection.execute(
        "INSERT INTO state (name, value, time) VALUES (?, ?, ?) "
        "ON CONFLICT (name) DO UPDATE SET value = excluded.value, time = excluded.time",
        (name, json.dumps(value), time.time()),
    )


def get_state(place: Place, names: Sequence[str], of_all: Sequence[str] = ()) -> dict[str, Any]:
    """Saved values by name; those named in `of_all` of every coordinator, see `own_name`."""
    where = f"name IN ({', '.join('?' * (len(names) + len(of_all)))})" + " OR name LIKE ?" * len(of_all)
    values = (*names, *of_all, *(f"{name}@%" for name in of_all))
    with reading(place) as connection:
        found = connection.execute(f"SELECT name, value FROM state WHERE {where}", values).fetchall()  # noqa: S608
    return {row["name"]: json.loads(row["value"]) for row in found}


def pseudonym(connection: LogConnection, sample_id: str) -> str:
    """Name of a deleted sample in the audit trail: who has the log's key can recognise an id, nobody can read it."""
    return connection.key.pseudonyms([sample_id])
