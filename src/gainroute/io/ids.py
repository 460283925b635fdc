"""Sample ids as text: the form in which they are compared and sent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gainroute.errors import InputError

__all__ = ["id_texts"]


def id_texts(ids: Sequence[Any]) -> list[str]:
    """Convert ids to text: text stays as it is, an integer becomes its decimal digits."""
    texts = list(ids)
    if {*map(type, texts)} <= {str}:
        return texts
    return [_id_text(value) for value in texts]


def _id_text(value: Any) -> str:
    if isinstance(value, (str, int, np.integer)) and not isinstance(value, bool):
        return str(value)
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            raise InputError(f"id {value!r} is not UTF-8; ids are text or whole numbers") from None
    raise InputError(f"id {value!r} is of type {type(value).__name__}; ids are text or whole numbers")
