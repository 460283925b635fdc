"""Feature vectors from columns: standardised numbers, one-hot categories, imputed gaps with an indicator.

Everything is fitted on the training part and saved as plain numbers and strings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gainroute.errors import DataError

__all__ = ["Column", "TablePreprocess", "fit_table"]

Columns = Mapping[str, npt.NDArray[Any]]

# A column of names or free text would otherwise become one feature per row.
_MOST_CATEGORIES = 64


@dataclass(frozen=True)
class Column:
    """How one column becomes features."""

    name: str
    categories: tuple[str, ...] | None = None  # in the order of their features; None for a column of numbers
    mean: float = 0.0  # of a column of numbers, without gaps
    deviation: float = 1.0
    gaps: bool = False  # whether the training part has any; if so, an indicator is one more feature

    def features(self, values: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        """(N, features); a gap becomes the mean, or no category; an unknown category becomes no category."""
        gap = _gaps(values)
        if self.categories is None:
            numbers = np.where(gap, np.nan, _numbers(self.name, values, gap))
            made = np.nan_to_num((numbers - self.mean) / self.deviation, nan=0.0)[:, None]
        else:
            text = _text(values, gap)
            made = (text[:, None] == np.array(self.categories, dtype=object)[None, :]) & ~gap[:, None]
        parts = (made, gap[:, None]) if self.gaps else (made,)
        return np.concatenate(parts, axis=1, dtype=np.float32)


def _gaps(values: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    if values.dtype.kind == "f":
        return np.asarray(np.isnan(values), dtype=np.bool_)
    if values.dtype.kind == "O":
        return np.array([value is None or value != value for value in values], dtype=bool)  # noqa: PLR0124 (NaN)
    return np.zeros(len(values), dtype=bool)


def _text(values: npt.NDArray[Any], gap: npt.NDArray[np.bool_]) -> npt.NDArray[Any]:
    return np.array(["" if missing else str(value) for value, missing in zip(values, gap, strict=True)], dtype=object)


def _numbers(name: str, values: npt.NDArray[Any], gap: npt.NDArray[np.bool_]) -> npt.NDArray[np.float64]:
    try:
        numbers = np.array([0.0 if m else float(v) for v, m in zip(values, gap, strict=True)], dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise DataError(f"column {name!r} was fitted as numbers and now contains something else ({error})") from error
    if not np.isfinite(numbers).all():
        raise DataError(f"column {name!r} contains an infinite number: replace it, or leave it empty")
    return numbers


def _is_number(values: npt.NDArray[Any]) -> bool:
    objects = values.dtype.kind == "O"
    return values.dtype.kind in "fiub" or (objects and all(isinstance(v, (int, float, np.number)) for v in values))


@dataclass(frozen=True)
class TablePreprocess:
    """Columns to feature vectors, as fitted on the training part."""

    columns: tuple[Column, ...]

    def __call__(self, table: Columns) -> npt.NDArray[np.float32]:
        """(N, features) of a table that has at least these columns; others are ignored."""
        missing = [column.name for column in self.columns if column.name not in table]
        if missing:
            raise DataError(
                f"column {missing[0]!r} is missing: the view has {', '.join(table)}, and training had "
                f"{', '.join(column.name for column in self.columns)}"
            )
        return np.concatenate([column.features(table[column.name]) for column in self.columns], axis=1)

    def to_json(self) -> dict[str, Any]:
        """Plain containers."""
        return {"kind": "table", "columns": [asdict(column) for column in self.columns]}

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> TablePreprocess:
        """Restore from what `to_json` returned."""
        return cls(
            tuple(
                Column(**{**column, "categories": None if (c := column["categories"]) is None else tuple(c)})
                for column in body["columns"]
            )
        )


def fit_table(table: Columns) -> TablePreprocess:
    """Learn means, deviations, categories and gaps from the training rows of a table; None and NaN are gaps.

    A constant column gives no feature.
    """
    columns = []
    for name, values in table.items():
        gap = _gaps(values)
        there = values[~gap]
        if len(there) == 0:
            continue
        if _is_number(there):
            numbers = _numbers(name, there, gap[~gap])
            deviation = float(numbers.std())
            if deviation > 0 or gap.any():
                scale = deviation if deviation > 0 else 1.0
                columns.append(Column(name, None, float(numbers.mean()), scale, bool(gap.any())))
        else:
            names, counts = np.unique(_text(there, gap[~gap]).astype(str), return_counts=True)
            if len(names) > 1 or gap.any():
                common = names[np.argsort(-counts, kind="stable")[:_MOST_CATEGORIES]]
                columns.append(Column(name, tuple(common.tolist()), gaps=bool(gap.any())))
    if not columns:
        raise DataError(f"none of the columns {', '.join(table) or '(there are none)'} varies: nothing to learn from")
    return TablePreprocess(tuple(columns))
