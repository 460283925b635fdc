"""Decisions as rows of the log."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import Any

import numpy as np

from gainroute.federation.coordinator.outcome import Outcome

__all__ = ["Entry", "columns_of", "insert_rows"]

# Rows are inserted many at once: who inserts gives the interpreter up at every statement, and queues for it again.
TOGETHER = (64, 8, 1)


@dataclass(frozen=True, eq=False)
class Entry:
    """The decisions of one request: what they are, the first one's number, when, for whom, and how long it took."""

    outcome: Outcome
    first: int
    time: float
    request_id: str
    latency: float


def columns_of(entry: Entry, posteriors: bool = True) -> dict[str, Any]:
    """The columns of a request's rows: a list of a value a row, or one value for all of them."""
    out, held = entry.outcome, entry.outcome.controlled
    n = len(out)
    found: dict[str, Any] = {
        "seq": list(range(entry.first, entry.first + n)),
        "sample_id": list(out.ids),
        "request_id": entry.request_id,
        "time": entry.time,
        "score": out.score.tolist(),
        "threshold": out.version.router.threshold_,
        "probability": [float(wanted) for wanted in out.wanted.tolist()],
        "route": out.route,
        "label": out.label.tolist(),
        "weak_prediction": out.weak.tolist(),
        "router": out.version.hash,
        "bytes": [round(size) for size in out.bytes.tolist()],
        "latency": entry.latency,
        "capped": 0,
    }
    if held is not None:
        found |= {"threshold": held.threshold.tolist(), "probability": held.probability.tolist(),
                  "capped": held.capped.tolist()}  # fmt: skip
        if held.explores:
            found["explored"] = held.explored.tolist()
    if posteriors:
        found |= {"local": _blobs(np.moveaxis(out.local, 0, 1)), "pooled": _blobs(out.pooled)}
    answered = out.escalated.tolist()
    if True in answered:
        found["strong_prediction"] = [None if s < 0 else s for s in out.strong.tolist()]
        if posteriors and out.strong_posterior is not None:
            blobs = _blobs(out.strong_posterior)
            found["strong"] = [blob if there else None for blob, there in zip(blobs, answered, strict=True)]
    return found


def insert_rows(connection: sqlite3.Connection, columns: Mapping[str, Any]) -> None:
    """Insert decisions; a column that is not there is NULL.

    Parameters
    ----------
    connection
        To the log.
    columns
        By name: a list of a value a row, or one value for all of them.
    """
    shared = {name: values for name, values in columns.items() if not isinstance(values, list)}
    own = {name: values for name, values in columns.items() if isinstance(values, list)}
    rows = list(zip(*own.values(), strict=True))
    at = 0
    # Closed here: a cursor that another thread lets go of resets a statement this one may be using.
    with closing(connection.cursor()) as cursor:
        for n in TOGETHER:
            while at + n <= len(rows):
                values = [*shared.values(), *chain.from_iterable(rows[at : at + n])]
                cursor.execute(_insert(tuple(shared), tuple(own), n), values)
                at += n


@lru_cache(maxsize=128)
def _insert(shared: tuple[str, ...], own: tuple[str, ...], rows: int) -> str:
    """An INSERT of so many rows. What they share is bound once: binding is most of what an insertion costs."""
    common = [f"?{i + 1}" for i in range(len(shared))]
    first = len(shared) + 1
    each = (",".join([*common, *(f"?{first + row * len(own) + i}" for i in range(len(own)))]) for row in range(rows))
    values = ",".join(f"({cells})" for cells in each)
    return f"INSERT INTO decisions ({','.join([*shared, *own])}) VALUES {values}"  # noqa: S608 (names of ours)


def _blobs(values: Any) -> list[bytearray]:
    """A row each as float32. Bytearrays: before it binds bytes, or None, sqlite3 looks for a way to adapt them."""
    flat = np.ascontiguousarray(values, dtype="<f4").reshape(len(values), -1)
    data, width = bytearray(flat.tobytes()), flat.shape[1] * 4
    return [data[i : i + width] for i in range(0, len(data), width)]
