"""The views and labels that users bring: read from `.npz` or Parquet files and aligned by id."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gainroute._util.damage import names_damage
from gainroute.errors import DataError
from gainroute.io.ids import rows_by_id
from gainroute.io.preprocess import Raw
from gainroute.io.tables import PathLike, file_format, read_table
from gainroute.routing.types import LabelArray

__all__ = ["PartyView", "SampleLabels", "align", "read_labels", "read_view"]


@dataclass(frozen=True)
class PartyView:
    """One party's view as it was read."""

    name: str  # of the party: that of the file without its suffix
    ids: LabelArray | None  # (N,) if the file has any
    raw: Raw  # an array (N, …), or columns of a table

    def __len__(self) -> int:
        return len(self.raw) if isinstance(self.raw, np.ndarray) else len(next(iter(self.raw.values())))

    def take(self, rows: npt.NDArray[Any]) -> PartyView:
        """The samples of `rows`, in that order."""
        raw = self.raw[rows] if isinstance(self.raw, np.ndarray) else {k: v[rows] for k, v in self.raw.items()}
        return PartyView(self.name, None if self.ids is None else self.ids[rows], raw)


@dataclass(frozen=True)
class SampleLabels:
    """Labels as they were read: any values, with ids or None."""

    labels: LabelArray
    ids: LabelArray | None


@names_damage()
def read_view(path: PathLike, *, id_column: str = "id", label_column: str = "label") -> PartyView:
    """Read one party's view: ``.npz`` with ``x`` (N, …) and optional ``ids``, or Parquet with a column of ids.

    Of Parquet, the columns of the id and of the label are no features.
    """
    table, name = read_table(path, only=("x", "ids") if file_format(path) == "npz" else None), Path(path).stem
    if table.format == "npz":
        table.require("x", remedy="a view is an array 'x' (N, …), with optional 'ids'")
        x = table.array("x")
        if x.ndim < 2 or len(x) == 0:
            raise DataError(f"{path}: x has shape {x.shape}: it has to be (N, …) with at least one sample")
        if x.dtype.kind not in "fiub":
            raise DataError(f"{path}: x is of type {x.dtype}: it has to be numbers")
        return PartyView(name, _checked_ids(table.columns.get("ids"), len(x), path), x)
    table.require(id_column, remedy="samples are aligned by id; --id-column names another column")
    columns = {column: table.array(column) for column in table if column not in (id_column, label_column)}
    ids = table.array(id_column)
    if not columns or len(ids) == 0:
        raise DataError(f"{path} has no features besides id and label, or no rows")
    return PartyView(name, _checked_ids(ids, len(ids), path), columns)


@names_damage()
def read_labels(path: PathLike, *, id_column: str = "id", label_column: str = "label") -> SampleLabels:
    """Read labels: ``.npz`` with ``labels`` and optional ``ids``, or Parquet with an id and a label column."""
    table = read_table(path, only=("labels", "ids", id_column, label_column))
    if table.format == "npz":
        table.require("labels", remedy="labels are an array 'labels' (N,), with optional 'ids'")
        labels = table.array("labels")
        if labels.ndim != 1:
            raise DataError(f"{path}: labels has shape {labels.shape}: it has to be (N,)")
        return SampleLabels(labels, _checked_ids(table.columns.get("ids"), len(labels), path))
    table.require(id_column, label_column, remedy="--id-column and --label-column name other columns")
    labels, ids = table.array(label_column), table.array(id_column)
    if any(value is None for value in labels):
        raise DataError(f"{path}: column {label_column!r} has gaps: leave unlabelled samples out")
    return SampleLabels(labels, _checked_ids(ids, len(ids), path))


def _checked_ids(ids: LabelArray | None, count: int, path: PathLike) -> LabelArray | None:
    if ids is None:
        return None
    if ids.ndim != 1 or len(ids) != count:
        raise DataError(f"{path}: ids have shape {ids.shape} for {count} samples: one id per sample is needed")
    rows_by_id(ids.tolist(), str(path))
    if ids.dtype.kind == "O":
        ids = np.array([str(v) for v in ids]) if not all(isinstance(v, int) for v in ids) else ids.astype(np.int64)
    return ids


def align(
    views: Sequence[PartyView], labels: SampleLabels | None
) -> tuple[LabelArray, list[PartyView], LabelArray | None]:
    """Put every view, and the labels, in the order of the first of them that has ids; report what does not align.

    Returns ids, views and labels. Without any ids samples are numbered 0 … N − 1, and the lengths must agree.
    """
    named: list[tuple[str, LabelArray | None, int]] = [(f"view {v.name!r}", v.ids, len(v)) for v in views]
    if labels is not None:
        named.append(("the labels", labels.ids, len(labels.labels)))
    without = [name for name, ids, _ in named if ids is None]
    if len(without) == len(named):
        sizes = {name: size for name, _, size in named}
        if len(set(sizes.values())) > 1:
            found = ", ".join(f"{name} {size}" for name, size in sizes.items())
            raise DataError(f"without ids all must hold the same samples in the same order, but: {found}; add ids")
        return np.arange(named[0][2]), list(views), None if labels is None else labels.labels
    if without:
        raise DataError(f"{without[0]} has no ids while others have: give ids to all or to none")
    reference = named[-1][1] if labels is not None else named[0][1]
    assert reference is not None  # noqa: S101 (for the type checker)
    # As text, as the service compares them: one file may hold 7 and another one "7".
    known, problems = set(map(str, reference.tolist())), []
    for name, ids, _ in named:
        assert ids is not None  # noqa: S101 (for the type checker)
        own = set(map(str, ids.tolist()))
        lacking, extra = sorted(known - own), sorted(own - known)
        if lacking:
            problems.append(f"{name} lacks {len(lacking)} (such as {lacking[0]})")
        if extra:
            problems.append(f"{name} has {len(extra)} unknown to the others (such as {extra[0]})")
    if problems:
        raise DataError(f"ids do not align: {'; '.join(problems)}. Keep the samples that all parties have")
    ordered = [view.take(_order(view.ids, reference)) for view in views]
    values = None if labels is None else labels.labels[_order(labels.ids, reference)]
    return reference, ordered, values


def _order(ids: LabelArray | None, reference: LabelArray) -> npt.NDArray[np.int64]:
    rows = rows_by_id(() if ids is None else [str(value) for value in ids.tolist()], "ids")
    return np.array([rows[str(value)] for value in reference.tolist()], dtype=np.int64)
