"""The event loop of parties and coordinators."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Coroutine
from typing import Any

__all__ = ["run"]

COLLECT_AFTER = 10_000  # allocations between garbage collections; Python's default is 700


def run(main: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine to completion, in uvloop where it is available.

    A request takes about a dozen turns of the loop at the coordinator and half as many at each party; see
    docs/decisions/0004 for what uvloop saves. Objects loaded before this call live as long as the process, and a
    request leaves few cycles behind, so the garbage collector skips the former and runs less often.
    """
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER)
    if sys.platform == "win32":  # uvloop does not support Windows
        asyncio.run(main)
        return
    import uvloop

    uvloop.run(main)
