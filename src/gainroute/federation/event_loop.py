"""The event loop that parties and coordinators run in."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Coroutine
from typing import Any

__all__ = ["run"]

COLLECT_AFTER = 10_000  # objects made and not gone; 700 is Python's own


def run(main: Coroutine[Any, Any, None]) -> None:
    """Run to the end, in uvloop where there is one.

    A request makes a dozen turns of the loop at the coordinator and half as many at each party; docs/decisions/0004
    has what that saves. What was loaded by now stays for good, and a request leaves few cycles behind: the collector
    of these need not look at the one, nor as often at the other.
    """
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER)
    if sys.platform == "win32":  # not built for it
        asyncio.run(main)
        return
    import uvloop

    uvloop.run(main)
