"""The user's labels and the column numbers they stand for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gainroute.errors import LabelError, ShapeError
from gainroute.routing.inputs import as_labels
from gainroute.routing.types import ArrayLike, IntArray, LabelArray

__all__ = ["Labels", "as_classes"]


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
    """Translate between labels and columns.

    Attributes
    ----------
    count
        K.
    names : (K,), optional
        Labels in column order; None where they are the column numbers themselves.
    """

    count: int
    names: LabelArray | None

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
            return np.array([None if c < 0 else self.names[c] for c in columns.tolist()], dtype=object)
        labels: LabelArray = self.names[columns]
        return labels
