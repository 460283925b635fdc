"""The drift monitor in the service: it sees answers and labels, survives restarts, and raises alarms.

Feedback adds its labels to the table `unwatched` in its own transaction; they are removed in the transaction that saves
the monitor. So each label counts exactly once, even if the process is killed.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import numpy as np

from gainroute.control.budget import ControlledDecision
from gainroute.control.drift import DriftMonitor
from gainroute.control.drift_report import DriftReport
from gainroute.control.party_drift import PartyDrift, PartyMonitor
from gainroute.errors import SettingError
from gainroute.federation.coordinator.decision_log.engine import LogConnection
from gainroute.federation.coordinator.decision_log.label_holders import named
from gainroute.federation.coordinator.decision_log.reading import column, local_posteriors
from gainroute.federation.coordinator.decision_log.store import audit, get_state, own_name, put_state, reading
from gainroute.federation.coordinator.decision_log.writer import DecisionLog
from gainroute.federation.coordinator.deployment import Deployment
from gainroute.federation.coordinator.monitoring.alarms import DriftAlarm, OtherAlarms
from gainroute.federation.coordinator.monitoring.evidence import LabelEvidence
from gainroute.federation.coordinator.operator import Operator
from gainroute.federation.coordinator.outcome import ROUND1, ROUND2
from gainroute.federation.coordinator.settings import DriftSettings
from gainroute.routing.labels import Labels
from gainroute.routing.types import BoolArray, FloatArray

__all__ = ["ALARMS", "LiveDrift"]

log = logging.getLogger("gainroute.coordinator")

ALARMS = ("scores", "parties", "calibration", "collaboration")
RENEWED = ("scores", "parties")  # alarms whose text follows what is found
STATE = "drift"  # of a coordinator, followed by the router's hash: every router has its own monitor
MOST_LABELS = 500  # per call: a label costs some 50 µs
SAVE_SECONDS = 30.0  # greatest age of the saved scores; labels and alarms are saved at once
QUERY = (
    "SELECT u.number, d.router, d.route, d.local, d.score, d.probability, d.explored, d.weak_prediction, "
    "d.strong_prediction, f.label, f.who, f.probability AS chance FROM unwatched u JOIN decisions d USING (seq) "
    "JOIN feedback f USING (seq) WHERE u.slot = ? AND u.number > ? ORDER BY u.number LIMIT ?"
)


class LiveDrift:
    """Monitors the router in use; raises the gain that it requires where the settings say so."""

    def __init__(self, settings: DriftSettings, decisions: DecisionLog, operator: Operator) -> None:
        self.enabled = settings.enabled
        self.others = OtherAlarms(decisions)
        self._own: dict[str, DriftAlarm] = {}  # current alarms, by name
        self.withheld: dict[str, str] = {}  # alarms that depend on the labels of one holder, by name
        self._protection: float | None = None  # gain that every escalation must exceed
        self.labels_wait = True  # there may be some from before the start
        self._settings, self._log, self._operator = settings, decisions, operator
        self._evidence: LabelEvidence | None = None
        self._parties: PartyMonitor | None = None
        # Copies: the monitor itself may be at work in another thread.
        self._report: DriftReport | None = None
        self.parties: dict[str, PartyDrift] = {}  # by name; empty until there is a reference
        self._recommended: float | None = None
        self._hash = ""
        self._taken = 0  # number of the last label read
        self._left_out = 0
        self._unsaved = False
        self._saved = 0.0
        self._since = time.time()
        self._slot, self._resets = decisions.slot, 0

    @property
    def alarms(self) -> dict[str, DriftAlarm]:
        """Current alarms by name, those of other coordinators included."""
        return self.others.alarms | self._own

    @property
    def protection(self) -> float | None:
        """The gain that every escalation must exceed; the largest that a coordinator found necessary."""
        return max((gain for gain in (self._protection, self.others.protection) if gain is not None), default=None)

    # ---- input -----------------------------------------------------------------------------------

    async def examine(
        self, deployment: Deployment, score: FloatArray, escalated: BoolArray, local: Sequence[FloatArray] = ()
    ) -> None:
        """Feed the monitor with new scores and local posteriors of this deployment, and with new labels."""
        if not self.enabled:
            await self._protect(deployment)  # remove a floor set before the last restart
            return
        await self.others.listen(deployment.hash)
        evidence = await self._follow(deployment)
        if self.others.resets != self._resets:
            self._reset(evidence)
        monitor = evidence.all
        before = monitor.scores
        if len(score):
            await asyncio.to_thread(monitor.observe_scores, score, escalated)
        if self._parties is not None:
            await asyncio.to_thread(_observe_parties, self._parties, local)
            self.parties = dict(zip(deployment.parties, self._parties.report(), strict=False))
        labels = await self._take_labels(deployment, evidence) if self.labels_wait else 0
        report = self._report
        if report is None or labels or monitor.scores is not before:
            new, withheld = await asyncio.to_thread(evidence.report)
            report = self._report = new
            self._recommended = evidence.min_gain
            for name in set(withheld) - set(self.withheld):
                log.warning("alarm %s is withheld: %s", name, withheld[name], extra={"alarm": name, "raised": False})
            self.withheld = withheld
        changed = self._note_alarms(report.alarms | self._party_alarm(), named(evidence.labels))
        if self._settings.protect:
            if self._recommended is None or self._protection is None:
                self._protection = self._recommended
            else:  # fewer samples are escalated now and say less about the others, so it is never lowered
                self._protection = max(self._recommended, self._protection)
        await self._protect(deployment)  # first: it must not wait for the disk
        self._unsaved |= bool(labels) or changed
        if self._unsaved or (monitor.scores is not before and time.monotonic() - self._saved > SAVE_SECONDS):
            await self.save()

    async def reset(self, who: str, request_id: str) -> dict[str, DriftAlarm]:
        """Reset the monitor and its alarms; returns the alarms."""
        found, evidence = self.alarms, self._evidence
        if evidence is None:
            return {}
        self._reset(evidence)

        def write(connection: LogConnection) -> None:
            self.others.reset(connection)
            self._resets = self.others.resets + self._log.shared
            self._write(connection)
            before = {name: str(alarm) for name, alarm in found.items()}
            audit(connection, who, request_id, "drift reset", before, {})

        await self._log.write(write)
        self.others.alarms, self.others.protection, self.others.resets = {}, None, self._resets
        for name in found:
            log.warning("alarm %s was reset by %s", name, who, extra={"alarm": name, "raised": False, "who": who})
        await self._protect(self._operator.deployment)
        return found

    def _reset(self, evidence: LabelEvidence) -> None:
        evidence.reset()
        if self._parties is not None:
            self._parties.reset()
        self.parties = {}
        self._report, self._recommended = evidence.all.report(), None
        self._own, self.withheld, self._protection, self._since = {}, {}, None, time.time()
        self._resets, self._unsaved = self.others.resets, True

    async def save(self) -> None:
        """Save the state for a restart."""
        if self._evidence is not None and self._slot == self._log.adopted:
            await self._log.write(self._write)
            self._unsaved = False

    # ---- output ---------------------------------------------------------------------------------

    def status(self, *, named: bool = True) -> dict[str, Any]:
        """State for /api/status and metrics; unless `named`, without the names of holders."""
        report = self._report
        if not self.enabled or report is None:
            return {"enabled": self.enabled, "alarms": {}}
        return {
            "enabled": True,
            "alarms": {n: asdict(a if named else replace(a, labels_by="")) for n, a in self.alarms.items()},
            "withheld": self.withheld if named else {},
            "labels_by": dict(self._evidence.labels) if named and self._evidence is not None else {},
            "since": self._since,
            "window": self._settings.window,
            "scores": None if report.scores is None else asdict(report.scores) | {"drifted": report.scores.drifted},
            "labels": report.labels,
            "labels_left_out": self._left_out,
            "calibration_error": report.calibration_error,
            "confidence_gap": report.confidence_gap,
            "changed_classes": [str(name) for name in report.changed_classes],
            "collaboration": asdict(report.collaboration),
            "parties": {name: asdict(found) for name, found in self.parties.items()},
            "protect": self._settings.protect,
            "protection": self.protection,
            "recommended_min_gain": self._recommended,
            "false_alarm": self._settings.false_alarm,
            "horizon": self._settings.horizon,
        }

    # ---- inside ---------------------------------------------------------------------------------

    async def _follow(self, deployment: Deployment) -> LabelEvidence:
        """The monitors of this deployment's router: restored, or new."""
        if self._evidence is not None and deployment.hash == self._hash and self._slot == self._log.adopted:
            self._evidence.all.router = deployment.router  # its threshold may have changed
            return self._evidence
        await self.save()
        if self._slot != self._log.adopted:
            self._slot, self._taken, self.labels_wait = self._log.adopted, 0, True
        settings, state = self._settings, f"{own_name(STATE, self._slot)}:{deployment.hash}"
        names = ("window", "horizon", "false_alarm", "memory", "min_feedback_probability")
        given = {name: getattr(settings, name) for name in names}
        evidence = LabelEvidence(lambda: DriftMonitor(deployment.router, **given), settings.trusted_holders)
        kept = (await asyncio.to_thread(get_state, self._log.place, (state,))).get(state)
        self._own, self.withheld, self._protection, self._since = {}, {}, None, time.time()
        self._resets = self.others.resets
        bounds = {name: getattr(settings, name) for name in ("window", "horizon", "false_alarm")}
        self._parties = PartyMonitor(len(deployment.parties), deployment.router.party_statistics_, **bounds)
        if kept is not None and kept.get("resets", 0) == self._resets:
            try:
                evidence.all.restore(kept["monitor"])
                evidence.restore(kept.get("evidence", {}))
                if "parties" in kept:  # not in states of earlier versions
                    self._parties.restore(kept["parties"])
            except (SettingError, KeyError, TypeError, ValueError) as error:
                log.warning("the drift monitor starts afresh: %s", error)
                evidence.reset()
                self._parties.reset()
            else:
                self._own = {name: DriftAlarm(**alarm) for name, alarm in kept["alarms"].items()}
                self._protection = kept["protection"] if settings.protect else None
                self._since = kept["since"]
        self._evidence, self._hash, self._report = evidence, deployment.hash, None
        return evidence

    async def _take_labels(self, deployment: Deployment, evidence: LabelEvidence) -> int:
        self.labels_wait = False

        def read() -> list[Any]:
            with reading(self._log.place) as connection:
                found: list[Any] = connection.execute(QUERY, (self._slot, self._taken, MOST_LABELS)).fetchall()
                return found

        rows = await asyncio.to_thread(read)
        if len(rows) == MOST_LABELS:
            self.labels_wait = True
        if rows:
            self._taken = rows[-1]["number"]
            own = [r for r in rows if r["router"] == deployment.hash and r["route"] in (ROUND1, ROUND2)]
            least = self._settings.min_feedback_probability
            useful = [r for r in own if r["chance"] is None or r["chance"] >= least]
            self._left_out += len(rows) - len(useful)
            feed = partial(_feed, deployment)
            await asyncio.to_thread(evidence.feed, useful, feed)
        return len(rows)

    def _party_alarm(self) -> dict[str, str]:
        """The alarm that names the parties that have changed, if there are any."""
        changed = {name: found for name, found in self.parties.items() if found.changed}
        if not changed:
            return {}
        texts = "; ".join(f"party {name!r}: {found}" for name, found in changed.items())
        e_value, limit = max(found.e_value for found in changed.values()), next(iter(changed.values())).limit
        all_of_them = ", of all parties: rather the data have changed than one of them"
        everyone = all_of_them if len(changed) == len(self.parties) else ""
        return {"parties": f"{texts}; e-value {e_value:.3g} ≥ {limit:g}{everyone}"}

    def _note_alarms(self, alarms: Mapping[str, str], labels_by: str) -> bool:
        """Log new and ended alarms; returns whether there are any."""
        now = time.time()
        new = {
            n: DriftAlarm(now, text, "" if n in RENEWED else labels_by)
            for n, text in alarms.items()
            if n not in self._own
        }
        gone = [n for n in self._own if n not in alarms]
        for name, alarm in new.items():
            log.warning("alarm %s: %s", name, alarm, extra={"alarm": name, "raised": True, "router": self._hash})
        for name in gone:
            log.info("alarm %s has ended", name, extra={"alarm": name, "raised": False, "router": self._hash})
        # An alarm keeps the evidence it was raised with; scores are compared again, and more parties may be named.
        stand = {n: a for n, a in self._own.items() if n not in gone}
        renewed = {n: DriftAlarm(a.since, alarms[n]) for n, a in stand.items() if n in RENEWED}
        self._own = stand | renewed | new
        return bool(new or gone)

    async def _protect(self, deployment: Deployment) -> None:
        """Make the deployment require exactly the gain that was found necessary."""
        if deployment.floor == self.protection or (self._operator.deployment is not deployment):
            return
        why = self.alarms.get("collaboration")
        await self._operator.protect(self.protection, "" if why is None else str(why))
        if self.protection is None:
            log.warning("protection has ended", extra={"protection": None})
        else:
            extra = {"protection": self.protection}
            log.warning("protection: every escalation must gain more than %g", self.protection, extra=extra)

    def _write(self, connection: LogConnection) -> None:
        if self._evidence is None:
            return
        state = {
            "monitor": self._evidence.all.state(),
            "evidence": self._evidence.state(),
            "parties": None if self._parties is None else self._parties.state(),
            "alarms": {name: asdict(alarm) for name, alarm in self._own.items()},
            "protection": self._protection,
            "since": self._since,
            "resets": self._resets,
        }
        states = f"{own_name(STATE, connection.slot)}:"
        put_state(connection, states + self._hash, state)
        self.others.publish(connection, self._hash, self._own, self._protection)
        own = (connection.slot, self._taken)
        connection.execute("DELETE FROM unwatched WHERE slot = ? AND number <= ?", own)
        # States of the current and the previous router are kept, for a rollback; older ones are deleted.
        hashes = (self._hash, self._operator.deployment.hash, self._operator.previous or "")
        keep = [states + identity for identity in hashes]
        connection.execute("DELETE FROM state WHERE name LIKE ? AND name NOT IN (?, ?, ?)", (f"{states}%", *keep))
        self._saved = time.monotonic()


def _observe_parties(monitor: PartyMonitor, local: Sequence[FloatArray]) -> None:
    if local:
        monitor.observe(np.concatenate(local, axis=1))


def _feed(deployment: Deployment, monitor: DriftMonitor, rows: Sequence[Any]) -> None:
    """Feed a monitor with labelled decisions, those with a probability of their own separately."""
    for with_chance in (False, True):
        some = [r for r in rows if (r["chance"] is not None) is with_chance]
        if some:
            names = Labels(deployment.router.n_classes_, deployment.router.classes)
            truth, strong = (names.decode(column(some, name, -1)) for name in ("label", "strong_prediction"))
            chance = column(some, "chance") if with_chance else None
            monitor.feedback(_decision(deployment, names, some), truth, strong, probability=chance)


def _decision(deployment: Deployment, names: Labels, rows: Sequence[Any]) -> ControlledDecision:
    """The decisions as they were made; the calibrated posterior is computed again where possible."""
    n, router = len(rows), deployment.router
    local = local_posteriors(rows, len(deployment.parties), deployment.columns)
    known = ~np.isnan(local).any(axis=(0, 2))
    calibrated = np.full((n, router.n_classes_), np.nan)
    if known.any():
        calibrated[known] = router.route(local[:, known]).calibrated
    nothing = np.zeros(n, dtype=bool)
    return ControlledDecision(
        escalate=np.array([row["strong_prediction"] is not None for row in rows]), score=column(rows, "score"),
        weak_prediction=names.decode(column(rows, "weak_prediction", -1)), pooled=calibrated, calibrated=calibrated,
        incomplete=nothing, threshold=float("nan"), local=local, thresholds=np.full(n, np.nan),
        probability=column(rows, "probability"), explored=column(rows, "explored", 0).astype(bool), capped=nothing,
    )  # fmt: skip
