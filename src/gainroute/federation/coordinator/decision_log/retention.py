"""Deleting decisions past retention, by a clock that may jump.

After a jump nothing is deleted for a day of operation, so that there is time to correct a clock that is wrong.
Decisions are deleted in their order: one that was dated by a wrong clock goes when those after it go, and not before
those before it.
"""

from __future__ import annotations

import json
import logging
import time

from gainroute.federation.coordinator.decision_log.engine import LogConnection
from gainroute.federation.coordinator.decision_log.store import audit, own_name, put_state
from gainroute.federation.coordinator.decision_log.writer import DecisionLog

__all__ = ["Retention", "check_clock", "delete_old"]

log = logging.getLogger("gainroute.coordinator")

STATE = "clock"
DAY, HOUR = 86400.0, 3600.0
CHUNK = 5000


class Retention:
    """Deletes decisions older than `days`, in chunks, so that answers are written in between; 0 keeps everything."""

    def __init__(self, decisions: DecisionLog, days: float) -> None:
        self._log, self._days = decisions, days
        self._checked: float | None = None  # time of the last run, and of the last erasure, in seconds of operation
        self._erased = time.monotonic()
        self._deleted = 0  # since the last erasure

    async def run(self) -> None:
        """Delete what is due; remove what deleted rows left behind once a day, since it holds up answers."""
        now, ticks = time.time(), time.monotonic()
        if self._days:
            elapsed = 0.0 if self._checked is None else ticks - self._checked
            self._checked = ticks
            held = await self._log.write(lambda c: check_clock(c, now, elapsed, self._days))
            deleted = 0
            if not held and (days := await self._log.write(lambda c: c.drop_before(now - self._days * DAY))):
                log.info("decisions of %d days, older than %g days, were dropped", days, self._days)
            while not held and (more := await self._log.write(lambda c: delete_old(c, now, self._days))):
                deleted += more
            if deleted:
                log.info("%d decisions older than %g days were deleted", deleted, self._days)
            self._deleted += deleted
        if self._log.unerased or (self._deleted and ticks - self._erased > DAY):
            self._erased, self._deleted = ticks, 0
            await self._log.write(lambda _: None, erase=True)


def check_clock(connection: LogConnection, now: float, elapsed: float, days: float) -> float:
    """Seconds for which nothing is deleted; 0 if the clock has not jumped lately.

    `elapsed` are the seconds of operation since the last check, 0 for the first one after a start. More than a tenth of
    the retention between what the clock shows and what it should is a jump; so is a stop of that length.
    """
    own = own_name(STATE, connection.slot)
    found = connection.execute("SELECT value FROM state WHERE name = ?", (own,)).fetchone()
    if found is None:
        newest = connection.execute("SELECT time FROM decisions ORDER BY seq DESC LIMIT 1").fetchone()
        saved = {"time": now if newest is None else newest[0], "held": 0.0}
    else:
        saved = json.loads(found[0])
    jump = now - saved["time"] - elapsed
    held: float = max(0.0, saved["held"] - elapsed)
    if abs(jump) > max(HOUR, days * DAY / 10):
        held = DAY
        log.warning(
            "the clock has moved by %+.2f days since the decision log was last checked: nothing is deleted from it for "
            "24 hours of operation; correct the clock if it is wrong", jump / DAY,
        )  # fmt: skip
        audit(connection, "retention", "", "clock moved", {"time": saved["time"] + elapsed}, {"time": now})
    put_state(connection, own, {"time": now, "held": held})
    return held


def delete_old(connection: LogConnection, now: float, days: float) -> int:
    """Delete the oldest decisions up to the first that is younger than `days`, and what was asked; repeat until 0.

    Decisions dated in the future are passed over: a clock was wrong when they were made.
    """
    due, last = now - days * DAY, None
    query = "SELECT seq, time FROM decisions WHERE seq < ? AND time <= ? ORDER BY seq LIMIT ?"
    for seq, made in connection.execute(query, (connection.undropped, now + HOUR, CHUNK)):
        if made >= due:
            break
        last = seq
    asked = "DELETE FROM asked WHERE number IN (SELECT number FROM asked WHERE time < ? LIMIT ?)"
    connection.execute(asked, (due, CHUNK))
    if last is None:
        return 0
    for table in ("feedback", "unwatched"):
        connection.execute(f"DELETE FROM {table} WHERE seq <= ?", (last,))  # noqa: S608 (our own texts)
    return int(connection.execute("DELETE FROM decisions WHERE seq <= ?", (last,)).rowcount)
