"""Comparing what a coordinator asked a party for, by its decision log, with what the party says, by its audit log.

The coordinator sends one message per batch and round to every party. The id of the batch is the first name in the
`request_id` of the message, and the table `asked` of the decision log has it with the number of samples. So the two
sides can be compared message by message, whatever requests of clients a batch was made of.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from gainroute.errors import DataError, SettingError
from gainroute.federation.audit_trail import entries
from gainroute.federation.coordinator.decision_log.engine import ReadConnection
from gainroute.federation.coordinator.decision_log.store import reading
from gainroute.federation.coordinator.outcome import asked_for_embedding, named_in

__all__ = ["Comparison", "Message", "compare_audit"]


@dataclass
class Message:
    """One message of a coordinator to a party, as each side recorded it.

    Attributes
    ----------
    batch, round
        Which message.
    time
        Seconds since 1970, by the side that has it; the coordinator's if both do.
    asked
        Samples by the decision log; None if it does not have the message.
    failed
        Whether the decision log says that the party gave no usable answer.
    answered
        Samples that the party answered, by its audit log; None if it has no line about the message.
    """

    batch: str
    round: int
    time: float
    asked: int | None = None
    failed: bool = False
    answered: int | None = None

    @property
    def kind(self) -> str:
        """How the two sides agree: "matched", "unanswered", "only coordinator", "only party" or "differing"."""
        if self.asked is None:
            return "only party"
        if self.failed and (self.answered or 0) <= self.asked:
            return "unanswered"
        if self.answered is None:
            return "only coordinator"
        return "matched" if self.answered == self.asked else "differing"


@dataclass
class Comparison:
    """The result of `compare_audit`.

    Attributes
    ----------
    party, coordinator
        Whose logs were compared.
    since, until
        The period, in seconds since 1970. Messages that both sides have count whatever their time.
    messages
        All of the period.
    outside
        Messages that one side only has, from before or after the period.
    other_lines
        Lines of the audit log about other coordinators.
    """

    party: str
    coordinator: str
    since: float
    until: float
    messages: list[Message] = field(default_factory=list)
    outside: int = 0
    other_lines: int = 0

    def count(self, kind: str, round_: int | None = None) -> tuple[int, int]:
        """Number of messages of a kind, and of the samples in them."""
        found = [m for m in self.messages if m.kind == kind and round_ in (None, m.round)]
        return len(found), sum(m.answered or 0 if m.asked is None else m.asked for m in found)

    @property
    def agrees(self) -> bool:
        """Whether nothing is on one side only, or different."""
        return all(message.kind in ("matched", "unanswered") for message in self.messages)


def compare_audit(
    log: Path,
    files: Sequence[Path],
    *,
    party: str | None = None,
    coordinator: str | None = None,
    since: float | None = None,
    until: float = float("inf"),
) -> Comparison:
    """Compare a decision log with a party's audit log.

    Parameters
    ----------
    log
        The coordinator's decision log.
    files
        Files of the party's audit log.
    party
        Its name; by default the one in its files.
    coordinator
        Name of the coordinator; by default the only one in the files.
    since, until
        The period, in seconds since 1970; by default from when both sides have records.
    """
    messages, named, others, first_line = _answered(files, coordinator)
    names = {name for name in named["party"] if name}
    if party is None and len(names) > 1:
        raise SettingError(f"the audit files are of the parties {', '.join(sorted(names))}; pass those of one party")
    party = party or next(iter(names), "")
    if len(named["coordinator"]) > 1:
        raise SettingError(
            f"the audit log names the coordinators {', '.join(sorted(named['coordinator']))}; pass --coordinator"
        )
    first_asked = _add_asked(messages, log, party)
    start = max(first_asked, first_line) if since is None else since
    found = Comparison(party, coordinator or next(iter(named["coordinator"]), ""), start, until, other_lines=others)
    for message in messages.values():
        both = message.asked is not None and message.answered is not None
        if both or start <= message.time < until:
            found.messages.append(message)
        else:
            found.outside += 1
    found.messages.sort(key=lambda message: message.time)
    return found


def _answered(
    files: Sequence[Path], coordinator: str | None
) -> tuple[dict[tuple[str, int], Message], dict[str, set[str]], int, float]:
    """Messages by the audit log; names of parties and coordinators in it; other lines; and when it begins."""
    messages: dict[tuple[str, int], Message] = {}
    named: dict[str, set[str]] = {"party": set(), "coordinator": set()}
    others, first = 0, float("inf")
    for _, entry in entries(files):
        when = datetime.fromisoformat(entry["time"]).timestamp()
        first = min(first, when)
        named["party"].add(str(entry.get("party") or ""))
        round_ = entry.get("round")
        if not round_ or str(entry.get("outcome", "")).startswith("denied"):
            continue  # training, summaries of refusals, and callers that were denied access
        if coordinator is not None and entry["coordinator"] != coordinator:
            others += 1
            continue
        named["coordinator"].add(entry["coordinator"])
        batch = str(entry["request_id"]).partition(",")[0]
        message = messages.setdefault((batch, round_), Message(batch, round_, when, answered=0))
        if entry["outcome"] == "answered":
            message.answered = (message.answered or 0) + entry["count"]  # a long batch is sent in parts
    return messages, named, others, first


def _add_asked(messages: dict[tuple[str, int], Message], log: Path, party: str) -> float:
    """Add what the decision log says; returns when its records begin."""
    if not log.is_file():
        raise DataError(f"{log}: no such decision log; name the file of [log] path in the coordinator's settings")
    first = float("inf")
    with reading(log) as connection:
        if connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'asked'").fetchone() is None:
            raise DataError(
                f"{log}: this log was written by an older gainroute, which did not record what parties were asked for; "
                "start the coordinator of this version once, and compare what it does from then on"
            )
        rows: Any = connection.execute("SELECT batch, round, time, samples, failed FROM asked ORDER BY number")
        for batch, round_, when, samples, failed in rows:
            first = min(first, when)
            found = json.loads(failed) if failed else []
            if isinstance(found, dict):  # the parties were asked for different samples
                samples, found = found["samples"].get(party, 0), found["failed"]
                if not samples and (batch, round_) not in messages:
                    continue
            message = messages.setdefault((batch, round_), Message(batch, round_, when))
            message.time, message.asked = when, (message.asked or 0) + samples
            message.failed = bool(found) and (not party or party in found)
        _add_decided(messages, connection, party)
    return first


def _add_decided(messages: dict[tuple[str, int], Message], connection: ReadConnection, party: str) -> None:
    """Add what rows of `asked` are missing about: the coordinator was killed, or has not written them yet.

    The decisions of a batch say how many samples it had and how many of them wanted Round 2.
    """
    missing = {batch for (batch, _), message in messages.items() if message.asked is None}
    if not missing:
        return
    found = dict[str, dict[Any, Any]]()
    query = "SELECT batch, route, count(*), max(time) FROM decisions WHERE batch IS NOT NULL GROUP BY batch, route"
    for batch, route, samples, when in connection.execute(query):
        if batch in missing:
            of = found.setdefault(batch, {"time": 0.0, 1: 0, 2: 0, "absent": False, "failed": False})
            of["time"], of[1] = max(of["time"], when), of[1] + samples
            of[2] += samples * asked_for_embedding(route, party)
            of["absent"] |= ("absent", party) in named_in(route)
            of["failed"] |= route.startswith("degraded:round2:")
    for batch, of in found.items():
        for round_, without in ((1, of["absent"]), (2, of["failed"])):
            message = messages.get((batch, round_))
            if message is not None and message.asked is None and of[round_]:
                message.time, message.asked, message.failed = of["time"], of[round_], without
