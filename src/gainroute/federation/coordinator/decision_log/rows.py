"""Decisions as rows of the log."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from contextlib import closing
from functools import lru_cache
from itertools import chain
from typing import Any

import numpy as np

from gainroute.federation.coordinator.outcome import Outcome

__all__ = ["columns_of", "insert_rows"]

ROWS_PER_STATEMENT = (64, 8, 1)  # the thread that inserts gives up the interpreter lock once per statement


def columns_of(
    outcome: Outcome,
    numbers: range,
    time: float,
    request_id: str,
    latency: float,
    holder: str | None = None,
    *,
    posteriors: bool = True,
) -> dict[str, Any]:
    """Columns of a request's rows: a list with one value per row, or a single value that all rows share."""
    found: dict[str, Any] = {
        "seq": list(numbers),
        "sample_id": list(outcome.ids),
        "request_id": request_id,
        "time": time,
        "score": outcome.score.tolist(),
        "threshold": outcome.threshold if isinstance(outcome.threshold, float) else outcome.threshold.tolist(),
        "probability": outcome.probability.tolist(),
        "route": outcome.route,
        "label": outcome.label.tolist(),
        "weak_prediction": outcome.weak.tolist(),
        "router": outcome.deployment.hash,
        "bytes": [round(size) for size in outcome.bytes.tolist()],
        "latency": latency,
        "capped": 0 if outcome.capped is None else outcome.capped.tolist(),
        "batch": outcome.batch,
    }
    if holder is not None:
        found["holder"] = holder
    if outcome.explored is not None:
        found["explored"] = outcome.explored.tolist()
    if posteriors:
        found["pooled"] = _blobs(outcome.pooled)
        if len(outcome.local):
            found["local"] = _blobs(np.moveaxis(outcome.local, 0, 1))
    escalated = outcome.escalated.tolist()
    if True in escalated:
        found["strong_prediction"] = [None if s < 0 else s for s in outcome.strong.tolist()]
        if posteriors and outcome.strong_posterior is not None:
            blobs = _blobs(outcome.strong_posterior)
            found["strong"] = [blob if there else None for blob, there in zip(blobs, escalated, strict=True)]
    return found


def insert_rows(connection: sqlite3.Connection, columns: Mapping[str, Any]) -> None:
    """Insert decisions: columns by name, as `columns_of` makes them; a missing column is NULL."""
    shared = {name: values for name, values in columns.items() if not isinstance(values, list)}
    own = {name: values for name, values in columns.items() if isinstance(values, list)}
    rows = list(zip(*own.values(), strict=True))
    at = 0
    # Closed here: a cursor that is collected in another thread resets a statement this thread may be using.
    with closing(connection.cursor()) as cursor:
        for n in ROWS_PER_STATEMENT:
            while at + n <= len(rows):
                values = [*shared.values(), *chain.from_iterable(rows[at : at + n])]
                cursor.execute(_insert(tuple(shared), tuple(own), n), values)
                at += n


@lru_cache(maxsize=128)
def _insert(shared: tuple[str, ...], own: tuple[str, ...], rows: int) -> str:
    """An INSERT of several rows. Shared values are bound once: binding dominates the cost of an insertion."""
    common = [f"?{i + 1}" for i in range(len(shared))]
    first = len(shared) + 1
    each = (",".join([*common, *(f"?{first + row * len(own) + i}" for i in range(len(own)))]) for row in range(rows))
    values = ",".join(f"({cells})" for cells in each)
    return f"INSERT INTO decisions ({','.join([*shared, *own])}) VALUES {values}"  # noqa: S608 (our own names)


def _blobs(values: Any) -> list[bytearray]:
    """One float32 blob per row, as bytearrays: sqlite3 binds them without searching for an adapter, unlike bytes."""
    flat = np.ascontiguousarray(values, dtype="<f4").reshape(len(values), -1)
    data, width = bytearray(flat.tobytes()), flat.shape[1] * 4
    return [data[i : i + width] for i in range(0, len(data), width)]
