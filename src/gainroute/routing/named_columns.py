"""Tables of posteriors (pandas, polars, pyarrow): columns are matched to the classes by name."""

from __future__ import annotations

from typing import Any

import numpy as np

from gainroute.errors import ShapeError
from gainroute.routing.types import LabelArray

__all__ = ["in_class_order"]


def in_class_order(values: Any, classes: LabelArray | None, name: str) -> Any:
    """Return a table, or each table of a list, as an array (N, K) with its columns in the order of the classes.

    Parameters
    ----------
    values
        Anything; what is no table is returned as it is.
    classes
        Labels in column order. Without them, columns named 0 … K−1 are sorted by number, and tables of several parties
        are brought into the order of the first.
    name
        For messages.

    Notes
    -----
    Columns that are only numbered (pandas' 0, 1, …, polars' column_0, …) have no names, and keep their order. One
    column more than there are classes (the wish to defer) goes last.
    """
    if isinstance(values, np.ndarray):
        return values
    tables = values if isinstance(values, (list, tuple)) else [values]
    if not any(_column_names(table) for table in tables):
        return values
    wanted = None if classes is None else [str(label) for label in classes.tolist()]
    ordered = []
    for table in tables:
        columns = _column_names(table)
        if columns is None:
            ordered.append(table)
            continue
        order = _order(columns, wanted, name)
        ordered.append(np.asarray(table)[:, order])
        if wanted is None:
            wanted = [columns[i] for i in order]
    return ordered if isinstance(values, (list, tuple)) else ordered[0]


def _column_names(table: Any) -> list[str] | None:
    """Names of the columns of a table; None for anything else."""
    names = getattr(table, "column_names", None)  # pyarrow: its `columns` are the data
    if names is None and hasattr(table, "to_numpy"):
        names = getattr(table, "columns", None)
    return None if names is None else [str(column) for column in names]


def _order(columns: list[str], wanted: list[str] | None, name: str) -> list[int]:
    place = {column: i for i, column in enumerate(columns)}
    numbers = [str(i) for i in range(len(columns))]
    unnamed = columns in (numbers, [f"column_{i}" for i in range(len(columns))])
    if wanted is None:
        return [place[c] for c in numbers] if set(numbers) == set(columns) else list(range(len(columns)))
    if set(wanted) <= set(columns) and len(columns) <= len(wanted) + 1:
        rest = [i for i, column in enumerate(columns) if column not in wanted]
        return [*(place[c] for c in wanted), *rest]
    if unnamed:
        return list(range(len(columns)))
    raise ShapeError(
        f"{name} has the columns {', '.join(columns[:8])}{', …' if len(columns) > 8 else ''}, the classes are "
        f"{', '.join(wanted[:8])}{', …' if len(wanted) > 8 else ''}; name one column after each class, or pass a plain "
        "array with the columns in the order of classes="
    )
