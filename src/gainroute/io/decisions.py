"""Decisions as columns: what `gainroute route` writes, to `.npz` or Parquet files."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from gainroute._util.arrays import shown
from gainroute.errors import SettingError
from gainroute.io.tables import PathLike, arrow_table, write_parquet, write_plain_npz
from gainroute.routing.types import Decision, LabelArray

__all__ = ["COLUMNS", "check_columns", "decision_table", "save_decision"]

COLUMNS = tuple(f.name for f in fields(Decision) if f.name not in ("local", "subset", "ask"))
ALWAYS = ("escalate", "incomplete")


def check_columns(columns: Collection[str] | None) -> tuple[str, ...]:
    """Return the columns of a decision to write, in their order, by default all; `escalate` and `incomplete` always."""
    if columns is None:
        return COLUMNS
    for name in columns:
        if name not in COLUMNS:
            raise SettingError(f"columns has {shown(name)}; allowed are {', '.join(COLUMNS)}")
    return tuple(name for name in COLUMNS if name in columns or name in ALWAYS)


def save_decision(
    decision: Decision, path: PathLike, ids: LabelArray | None = None, columns: Collection[str] | None = None
) -> None:
    """Write a decision as `.npz`, or as Parquet where `path` ends in `.parquet`.

    It contains `ids` (row numbers, if there are none), `escalate`, `score`, `weak_prediction`, `pooled`, `calibrated`,
    `incomplete` and `threshold`, or only some of these `columns`; a sample that no party has gets the weak prediction
    −1, or an empty text.
    """
    numbered = np.arange(len(decision)) if ids is None else ids
    arrays = {name: getattr(decision, name) for name in check_columns(columns)}
    if Path(path).suffix in (".parquet", ".pq"):
        write_parquet(path, {"id": numbered, **arrays})  # with one row per sample, Parquet uses the singular
    else:
        write_plain_npz({"ids": numbered, **arrays}, path)


def decision_table(decision: Decision, columns: Collection[str], labels: Any, ids: Any = None) -> Any:
    """A decision as a pyarrow table, its `ids` (a column of pyarrow) first, if there are any.

    The schema depends on the router only, not on the samples: `labels` is the pyarrow type of its labels.
    """
    import pyarrow as pa

    found: dict[str, Any] = {} if ids is None else {"id": ids}
    for name in columns:
        value = getattr(decision, name)
        if name == "weak_prediction":
            value = pa.array(value.tolist() if value.dtype.kind in "OU" else value, type=labels)
        found[name] = np.asarray(value, dtype=np.float64) if name in ("pooled", "calibrated") else value
    return arrow_table(found)
