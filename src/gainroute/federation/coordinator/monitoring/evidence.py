"""Evidence from the labels of several holders, none of whom can raise an alarm alone.

Beside the monitor of all labels there is one for each holder that the operator does not trust, fed with the labels of
all others. An alarm from labels is raised once every one of them raises it. If one holder lies, the monitor without its
labels is one of them, so that the probability of a false alarm stays what it is without that holder.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

from gainroute.control.drift import DriftMonitor
from gainroute.control.drift_report import DriftReport
from gainroute.federation.coordinator.decision_log.label_holders import is_trusted, named

__all__ = ["LabelEvidence"]

GROUPS = 8  # beyond so many holders, some share a monitor, as if they were one
SCORES = "scores"  # the alarm that needs no labels


class LabelEvidence:
    """A `DriftMonitor` of everything (`all`), and those that leave one holder out; `make` returns a new one."""

    def __init__(self, make: Callable[[], DriftMonitor], trusted: Collection[str]) -> None:
        self._make, self._trusted = make, trusted
        self.all = make()
        self.labels: Counter[str] = Counter()  # by who gave them
        self._group: dict[str, int] = {}
        self._without: dict[int, DriftMonitor] = {}

    def feed(self, rows: Sequence[Any], feed: Callable[[DriftMonitor, Sequence[Any]], None]) -> None:
        """Add labelled decisions; `feed` adds some of them to a monitor."""
        self.labels.update(row["who"] for row in rows)
        for who in dict.fromkeys(row["who"] for row in rows):
            if who not in self._group and not is_trusted(who, self._trusted):
                group = self._group[who] = len(self._group) % GROUPS
                if group not in self._without:  # it starts with the labels of all others so far
                    self._without[group] = self._make()
                    self._without[group].restore(self.all.state())
        feed(self.all, rows)
        for group, monitor in self._without.items():
            feed(monitor, [row for row in rows if self._group.get(row["who"]) != group])

    def report(self) -> tuple[DriftReport, dict[str, str]]:
        """What is known now, with the alarms that do not depend on one holder; and, by name, those that do."""
        report, withheld = self.all.report(), dict[str, str]()
        if not self._without:
            return report, withheld
        others = {group: monitor.report() for group, monitor in self._without.items()}
        for name, text in report.alarms.items():
            alone = [who for who, group in self._group.items() if name not in others[group].alarms]
            if alone and name != SCORES:
                whose = named({who: self.labels[who] for who in alone})
                withheld[name] = (
                    f"{text}; it is not raised, since it depends on the labels of {whose}: if they are right, add the "
                    "holder to [drift] trusted_holders, or have another holder label as well"
                )
        helps = report.collaboration
        least = min(helps.e_value, *(other.collaboration.e_value for other in others.values()))
        harmful = helps.harmful and "collaboration" not in withheld
        alarms = {name: text for name, text in report.alarms.items() if name not in withheld}
        return replace(report, alarms=alarms, collaboration=replace(helps, e_value=least, harmful=harmful)), withheld

    @property
    def min_gain(self) -> float | None:
        """The gain to demand while collaboration hurts: the least that any of the monitors recommends."""
        found = [monitor.recommended_min_gain for monitor in (self.all, *self._without.values())]
        known = [gain for gain in found if gain is not None]
        return min(known) if len(known) == len(found) else None

    def reset(self) -> None:
        """Forget everything."""
        self.all.reset()
        self.labels, self._group, self._without = Counter(), {}, {}

    def state(self) -> dict[str, Any]:
        """Everything that must survive a restart, beside the state of `all`."""
        monitors = {str(group): monitor.state() for group, monitor in self._without.items()}
        return {"labels": dict(self.labels), "group": self._group, "without": monitors}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a saved state; a holder that is trusted now is no longer left out."""
        self.labels = Counter(state.get("labels", {}))
        group = {who: int(at) for who, at in state.get("group", {}).items() if not is_trusted(who, self._trusted)}
        self._group = group
        for at in set(group.values()):
            self._without[at] = self._make()
            self._without[at].restore(state["without"][str(at)])
