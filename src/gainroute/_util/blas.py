"""One BLAS thread for small problems: two on a busy machine can be thirty times slower."""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import cache
from typing import Any

import numpy as np  # noqa: F401 (its BLAS must be loaded before the controller looks for it)
from threadpoolctl import ThreadpoolController

__all__ = ["one_thread"]


@cache
def _controller() -> ThreadpoolController:
    return ThreadpoolController()  # looks through all loaded libraries: milliseconds, so once


def one_thread() -> AbstractContextManager[Any]:
    """Context manager in which numpy's BLAS uses one thread."""
    limit: AbstractContextManager[Any] = _controller().limit(limits=1, user_api="blas")
    return limit
