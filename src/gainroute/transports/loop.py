"""The event loop that parties and coordinators run in."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine
from typing import Any

__all__ = ["run"]


def run(main: Coroutine[Any, Any, None]) -> None:
    """Run to the end, in uvloop where there is one.

    A request makes a dozen turns of the loop at the coordinator and half as many at each party; docs/decisions/0004
    has what that saves.
    """
    if sys.platform == "win32":  # not built for it
        asyncio.run(main)
        return
    import uvloop

    uvloop.run(main)
