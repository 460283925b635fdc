"""Labels as users write them, and the column numbers they stand for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gainroute._util.arrays import from_tensors, shown
from gainroute.errors import LabelError, ShapeError
from gainroute.routing.types import ArrayLike, IntArray, LabelArray

__all__ = ["Labels", "as_classes", "as_labels", "class_count"]


def as_classes(classes: Sequence[Any] | LabelArray | None) -> LabelArray | None:
    """Check the labels given in column order; None means 0 … K−1."""
    if classes is None:
        return None
    listed = np.asarray(classes)
    if len(set(listed.tolist())) != len(listed):
        raise LabelError(f"classes= repeats a label: {listed.tolist()}; list each once, in column order")
    return listed


@dataclass(frozen=True, eq=False)
class Labels:
    """Translate between labels and columns."""

    count: int  # K
    names: LabelArray | None  # labels in column order; None where they are the column numbers themselves

    def __post_init__(self) -> None:
        if self.names is not None and len(self.names) != self.count:
            raise ShapeError(
                f"classes= lists {len(self.names)} labels, the posteriors have {self.count} classes; one each is needed"
            )

    def encode(self, values: ArrayLike, name: str, length: int | None = None, missing: bool = False) -> IntArray:
        """Labels → columns; −1 for "no answer", where that is allowed."""
        known = self.count if self.names is None else self.names
        return as_labels(values, classes=known, length=length, name=name, missing=missing)

    def decode(self, columns: IntArray) -> LabelArray:
        """Columns → labels; −1 stays −1, or becomes None among labels that are not numbers of columns."""
        if self.names is None:
            return columns
        if (columns < 0).any():
            names = self.names.tolist()
            return np.array([None if c < 0 else names[c] for c in columns.tolist()], dtype=object)
        labels: LabelArray = self.names[columns]
        return labels


def class_count(classes: int | Sequence[Any] | LabelArray | None, *labels: LabelArray) -> int:
    """Count the classes that `classes` names, or, without it, those up to the largest label."""
    if classes is None:
        return max(2, 1 + max(int(np.max(a, initial=-1)) for a in labels))
    if isinstance(classes, (int, np.integer)):
        return int(classes)
    return len(classes)


def as_labels(
    values: ArrayLike,
    *,
    classes: Sequence[Any] | LabelArray | int | None,
    length: int | None = None,
    name: str = "labels",
    missing: bool = False,
) -> IntArray:
    """Encode labels as column numbers, (N,).

    Labels are integers 0 … K−1 unless `classes` lists them in column order; it may also be their number, or None to
    check nothing but the type. Where `missing` is allowed, −1, None and NaN stand for "no answer" and become −1.
    """
    array = np.asarray(from_tensors(values))
    if array.ndim != 1:
        raise ShapeError(f"{name} has shape {array.shape}; one label per sample, (N,), is needed")
    if length is not None and len(array) != length:
        raise ShapeError(f"{name} has {len(array)} entries for {length} samples; one each is needed")
    if classes is None or isinstance(classes, (int, np.integer)):
        return _as_columns(array, classes, name, missing)
    column = {label: i for i, label in enumerate(np.asarray(classes).tolist())}
    given = array.tolist()
    encoded = np.array([column.get(value, -1) for value in given], dtype=np.int64)
    for i in np.flatnonzero(encoded < 0).tolist():
        value = given[i]
        absent = value is None or value != value or value == -1  # noqa: PLR0124 (NaN is the one unequal to itself)
        if not (missing and absent):
            raise LabelError(f"{name}[{i}] is {shown(value)}; classes= allows {_preview(list(column))}")
    return encoded


def _as_columns(array: LabelArray, classes: int | None, name: str, missing: bool) -> IntArray:
    if array.dtype == object and missing:
        array = np.array([-1 if v is None else v for v in array.tolist()])
    if array.dtype.kind == "f":
        blank = np.isnan(array) & missing
        whole = np.where(blank, -1, array)
        if not np.all(whole == np.floor(whole)):
            wrong = array[whole != np.floor(whole)][0]
            raise LabelError(f"{name} holds {shown(wrong)}; integers 0 … K−1 are needed, or labels listed in classes=")
        array = whole
    elif array.dtype.kind not in "iub":
        raise LabelError(
            f"{name} has dtype {array.dtype} (first: {shown(array[0])}); integers 0 … K−1 are needed, or pass classes= "
            "with the labels in column order"
        )
    encoded = array.astype(np.int64)
    outside = encoded < (-1 if missing else 0)
    if classes is not None:
        outside |= encoded >= classes
    if outside.any():
        i = int(np.flatnonzero(outside)[0])
        top = "" if classes is None else f" … {classes - 1}"
        also = " (or −1: no answer)" if missing else ""
        raise LabelError(f"{name}[{i}] is {encoded[i]}; allowed are 0{top}{also}, or labels listed in classes=")
    return encoded


def _preview(items: list[Any], most: int = 8) -> str:
    listed = ", ".join(shown(i) for i in items[:most])
    return listed + (f", … ({len(items)} in all)" if len(items) > most else "")
