"""Drift alarms, and those of the other coordinators that share the decision log.

Each coordinator monitors its own answers, and publishes its alarms in the log's state; all of them show the alarms of
all, and require the largest gain that one of them found necessary.
"""

from __future__ import annotations

import asyncio
from dataclasses import asdict, dataclass
from typing import Any

from gainroute.federation.coordinator.decision_log.engine import LogConnection
from gainroute.federation.coordinator.decision_log.store import get_state, own_name, put_state
from gainroute.federation.coordinator.decision_log.writer import DecisionLog

__all__ = ["DriftAlarm", "OtherAlarms"]

PUBLISHED = "alarms"
RESETS = "drift resets"  # how often an admin has reset the monitors of all


@dataclass(frozen=True)
class DriftAlarm:
    """A current alarm: since when (seconds since 1970), its message with the evidence, and whose labels they were."""

    since: float
    text: str
    labels_by: str = ""

    def __str__(self) -> str:
        return f"{self.text}; labels by {self.labels_by}" if self.labels_by else self.text


class OtherAlarms:
    """What other coordinators have found about a router; nothing where the log has one writer."""

    def __init__(self, decisions: DecisionLog) -> None:
        self._log = decisions
        self.alarms: dict[str, DriftAlarm] = {}
        self.protection: float | None = None
        self.resets = 0

    async def listen(self, router: str) -> None:
        """Read what they have published."""
        if not self._log.shared or self._log.error:
            return
        found = await asyncio.to_thread(get_state, self._log.place, (RESETS,), (PUBLISHED,))
        self.resets = found.pop(RESETS, 0)
        found.pop(own_name(PUBLISHED, self._log.slot), None)
        told = [other for other in found.values() if other["router"] == router]
        self.alarms = {name: DriftAlarm(**alarm) for other in told for name, alarm in other["alarms"].items()}
        gains = [other["protection"] for other in told if other["protection"] is not None]
        self.protection = max(gains, default=None)

    def publish(
        self, connection: LogConnection, router: str, alarms: dict[str, DriftAlarm], protection: float | None
    ) -> None:
        """Tell the others about alarms here; to be passed a transaction."""
        if self._log.shared:
            told: dict[str, Any] | None = None
            if alarms or protection is not None:
                texts = {name: asdict(alarm) for name, alarm in alarms.items()}
                told = {"router": router, "alarms": texts, "protection": protection}
            put_state(connection, own_name(PUBLISHED, connection.slot), told)

    def reset(self, connection: LogConnection) -> None:
        """Have all coordinators reset their monitors; to be passed a transaction."""
        if self._log.shared:
            connection.execute("DELETE FROM state WHERE name = ? OR name LIKE ?", (PUBLISHED, f"{PUBLISHED}@%"))
            put_state(connection, RESETS, self.resets + 1)
