"""What the mark of a degraded answer says."""

from __future__ import annotations

from benchmarks.soak.world import PARTIES

__all__ = ["absent_in"]


def absent_in(route: str) -> tuple[str, ...] | None:
    """Return the parties that a mark calls absent, () if only Round 2 failed, None if the mark is unexpected.

    Examples
    --------
    >>> absent_in("degraded:absent:north+absent:south"), absent_in("degraded:round2:late:north")
    (('north', 'south'), ())
    >>> absent_in("degraded:unlogged")
    """
    reasons = route.removeprefix("degraded:").split("+")
    if not route.startswith("degraded:"):
        return None
    if len(reasons) == 1 and reasons[0].startswith(("round2:late:", "round2:refused:")):
        return ()
    names = tuple(reason.removeprefix("absent:") for reason in reasons if reason.startswith("absent:"))
    return names if len(names) == len(reasons) and set(names) <= set(PARTIES) else None
