"""Wait for a condition with a deadline: the one place where tests poll."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from typing import Any

INTERVAL = 0.01


async def until(condition: Callable[[], Any], seconds: float = 10.0) -> Any:
    """Wait until `condition()`, or what it awaits, is true, and return that; fail after `seconds`."""
    deadline = time.monotonic() + seconds
    while True:
        found = condition()
        if inspect.isawaitable(found):
            found = await found
        if found:
            return found
        assert time.monotonic() < deadline, f"the condition did not hold within {seconds:g} s"
        await asyncio.sleep(INTERVAL)


def wait_until(condition: Callable[[], Any], seconds: float = 10.0) -> Any:
    """The same without an event loop."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"the condition did not hold within {seconds:g} s"
        time.sleep(INTERVAL)
    return found
