"""Sample ids: the text they are compared and sent as, and the row of each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gainroute._util.arrays import shown
from gainroute.errors import DataError, InputError

__all__ = ["id_texts", "rows_by_id"]


def id_texts(ids: Sequence[Any]) -> list[str]:
    """Convert ids to text: text stays as it is, an integer becomes its decimal digits."""
    texts = list(ids)
    return texts if {*map(type, texts)} <= {str} else [_id_text(value) for value in texts]


def _id_text(value: Any) -> str:
    if isinstance(value, (str, int, np.integer)) and not isinstance(value, bool):
        return str(value)
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            raise InputError(f"id {shown(value)} is not UTF-8; ids are text or whole numbers") from None
    raise InputError(f"id {shown(value)} is of type {type(value).__name__}; ids are text or whole numbers")


def rows_by_id(ids: Sequence[Any], source: str, name: str = "id") -> dict[Any, int]:
    """The row of each id; raises DataError, which names file and column, for a missing or repeated one."""
    rows = {value: row for row, value in enumerate(ids)}
    if None in rows:
        missing = sum(value is None for value in ids)
        raise DataError(f"{source}: {name} is null in {missing} row(s); every sample needs an id")
    if len(rows) < len(ids):
        twice = next(value for row, value in enumerate(ids) if rows[value] != row)
        raise DataError(
            f"{source}: {name} {shown(twice)} occurs more than once ({len(ids) - len(rows)} rows repeat an id); ids "
            "have to be different: drop or merge the rows"
        )
    return rows
