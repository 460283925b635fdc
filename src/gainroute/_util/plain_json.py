"""JSON that every parser reads."""

from __future__ import annotations

import math
from typing import Any

__all__ = ["plain"]


def plain(value: Any) -> Any:
    """Turn arrays into lists, NaN into null, infinities into the texts "inf" and "-inf", and what is unknown into text.

    Examples
    --------
    >>> plain({"rate": float("nan"), "threshold": float("inf"), 1: (2.5, None)})
    {'rate': None, 'threshold': 'inf', '1': [2.5, None]}
    """
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    return value if isinstance(value, (str, int, float, bool, type(None))) else str(value)
