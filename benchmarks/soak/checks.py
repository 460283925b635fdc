"""The promises that a soak checks, from what the clients received, the decision log, and the events."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.soak.load import Answered, Load
from benchmarks.soak.world import PARTIES, Expected, World
from gainroute.federation.coordinator.decision_log.store import latest

__all__ = ["Check", "Down", "Seen", "judge"]

MOST_DRIFT = 0.05
EVERYTHING = 2**31
SCORE_TOLERANCE = 1e-5  # float32 of values around one, and sums taken in another order


@dataclass(frozen=True)
class Check:
    """One promise: what was observed, and whether it held (None: not checked)."""

    what: str
    seen: str
    held: bool | None


@dataclass(frozen=True)
class Down:
    """An outage: the process did not run from `gone` to `begun`, and listened again at `back` (monotonic seconds)."""

    name: str
    gone: float
    begun: float
    back: float


@dataclass(frozen=True, eq=False)
class Seen:
    """All observations of a soak.

    Attributes
    ----------
    world, load
        What was served, and what the clients received.
    start, end
        Start and end of the load; all times are monotonic seconds.
    parties, coordinators
        Outages of parties and of the coordinator.
    memory
        (time, bytes) of the coordinator, once per second.
    codes
        Exit codes after SIGTERM.
    log
        The decision log.
    """

    world: World
    load: Load
    start: float
    end: float
    parties: Sequence[Down]
    coordinators: Sequence[Down]
    memory: Sequence[tuple[float, int]]
    codes: Mapping[str, int]
    log: Path
    _firsts: dict[tuple[str, ...], Expected] = field(default_factory=dict)

    def first(self, absent: tuple[str, ...] = ()) -> Expected:
        """Return Round 1 without some parties, computed once."""
        if absent not in self._firsts:
            self._firsts[absent] = self.world.replay_first(absent)
        return self._firsts[absent]

    @cached_property
    def rows(self) -> dict[str, dict[str, Any]]:
        """The decision log by decision id."""
        return {row["decision_id"]: row for row in latest(self.log, EVERYTHING)}


def judge(seen: Seen) -> list[Check]:
    """Return every row of the table."""
    return [
        _answered(seen), _unmarked(seen), _marked(seen), _absent(seen), _back(seen), _logged(seen), _memory(seen),
        _ended(seen),
    ]  # fmt: skip


# ---- answers --------------------------------------------------------------------------------------------


def _samples(seen: Seen) -> Iterator[tuple[Answered, int, str]]:
    for answer in seen.load.answered:
        for i, route in enumerate(answer.route):
            yield answer, i, route


def _differs(answer: Answered, i: int, expected: Expected, row: int, *, score: bool) -> str:
    """Describe the first difference from the replay; empty if there is none."""
    if answer.label[i] != expected.label[row]:
        return f"label {answer.label[i]}, replay {expected.label[row]}"
    if answer.escalated[i] != expected.escalated[row]:
        return f"escalated {answer.escalated[i]}, replay {expected.escalated[row]}"
    if score and not _close(answer.score[i], expected.score[row]):
        return f"score {answer.score[i]}, replay {expected.score[row]}"
    if not _close(answer.probabilities[i], expected.probabilities[row]):
        return f"probabilities {answer.probabilities[i]}, replay {expected.probabilities[row]}"
    return ""


def _close(found: npt.ArrayLike, expected: npt.ArrayLike) -> bool:
    return bool(np.allclose(found, expected, rtol=SCORE_TOLERANCE, atol=SCORE_TOLERANCE))


def _answered(seen: Seen) -> Check:
    load = seen.load
    refused = ", ".join(f"{n} × {what}" for what, n in sorted(load.refused.items())) or "nothing"
    text = f"{len(load.answered):,} requests; refused: {refused}; retried {load.retried}"
    if load.wrong:
        text += f"; {len(load.wrong)} wrong, the first: {load.wrong[0]}"
    return Check("every request was answered in the end", text, not load.wrong and bool(load.answered))


def _unmarked(seen: Seen) -> Check:
    expected, row = seen.world.replay(), seen.world.row
    count: Counter[str] = Counter()
    wrong: list[str] = []
    for answer, i, route in _samples(seen):
        if route not in ("round1", "round2"):
            continue
        count[route] += 1
        differs = _differs(answer, i, expected, row[answer.ids[i]], score=True)
        if differs or answer.escalated[i] != (route == "round2"):
            wrong.append(f"{answer.ids[i]} by {route}: {differs or 'escalated does not fit the route'}")
    text = f"{count['round1']:,} by Round 1, {count['round2']:,} by Round 2; {len(wrong)} differ"
    held = not wrong and bool(count["round1"]) and bool(count["round2"])
    return Check("every unmarked answer equals the replay", text + (f": {wrong[0]}" if wrong else ""), held)


def _marked(seen: Seen) -> Check:
    """A marked answer is what its mark says: Round 1 of the parties present."""
    row = seen.world.row
    count: Counter[str] = Counter()
    wrong: list[str] = []
    for answer, i, route in _samples(seen):
        if route in ("round1", "round2"):
            continue
        count[route] += 1
        absent = _named(route)
        if absent is None:
            wrong.append(f"{answer.ids[i]}: the route {route!r} is unexpected")
            continue
        differs = _differs(answer, i, seen.first(absent), row[answer.ids[i]], score=False)
        if differs:
            wrong.append(f"{answer.ids[i]} by {route}: {differs}")
    shown = ", ".join(f"{route} × {n:,}" for route, n in sorted(count.items())) or "none"
    text = f"{shown}; {len(wrong)} differ" + (f": {wrong[0]}" if wrong else "")
    return Check("every degraded answer is what its mark says", text, not wrong and bool(count))


def _named(route: str) -> tuple[str, ...] | None:
    """Return the parties that a mark calls absent, () if only Round 2 failed, None if the mark is unexpected."""
    reasons = route.removeprefix("degraded:").split("+")
    if not route.startswith("degraded:"):
        return None
    if len(reasons) == 1 and reasons[0].startswith(("round2:late:", "round2:refused:")):
        return ()
    names = tuple(reason.removeprefix("absent:") for reason in reasons if reason.startswith("absent:"))
    return names if len(names) == len(reasons) and set(names) <= set(PARTIES) else None


def _absent(seen: Seen) -> Check:
    """While a party was certainly down, every answer says so; and there were such answers for each kill."""
    counts: list[int] = []
    wrong: list[str] = []
    for down in seen.parties:
        count = 0
        for answer in seen.load.answered:
            if not (down.gone <= answer.began and answer.ended <= down.begun):
                continue
            for i, route in enumerate(answer.route):
                count += 1
                if down.name not in (_named(route) or ()):
                    wrong.append(f"{answer.ids[i]} by {route} while {down.name} was gone")
        counts.append(count)
    text = f"{sum(counts):,} answers, outages × {len(counts)}, at least {min(counts, default=0)} in each"
    text += f"; {len(wrong)} unmarked" + (f": {wrong[0]}" if wrong else "")
    return Check("every answer without a party is marked", text, not wrong and min(counts, default=0) > 0)


def _back(seen: Seen) -> Check:
    """After each restart, answers become complete again without intervention."""
    waits: list[float] = []
    never: list[str] = []
    for down in [*seen.parties, *seen.coordinators]:
        whole = [a.ended for a in seen.load.answered if a.began >= down.begun and "degraded" not in "".join(a.route)]
        if whole:
            waits.append(max(min(whole) - down.back, 0.0))
        else:
            never.append(down.name)
    text = f"killed: a party × {len(seen.parties)}, the coordinator × {len(seen.coordinators)}"
    text += f"; whole answers at most {max(waits, default=0):.1f} s after they listened again"
    if never:
        text += f"; never again after {', '.join(never)}"
    return Check("each restart was recovered from", text, not never and bool(seen.parties) and bool(seen.coordinators))


# ---- log, memory, processes -------------------------------------------------------------------------


def _logged(seen: Seen) -> Check:
    """Every decision id that a client received is in the log, once, with the answer that it received."""
    got: Counter[str] = Counter()
    lost: list[str] = []
    other: list[str] = []
    for answer, i, route in _samples(seen):
        name = answer.decision_id[i]
        got[name] += 1
        row = seen.rows.get(name)
        if row is None:
            lost.append(name)
        elif (row["sample_id"], row["label"], row["route"]) != (answer.ids[i], answer.label[i], route):
            other.append(name)
    twice = [name for name, n in got.items() if n > 1]
    text = f"{len(got):,} acknowledged, {len(seen.rows):,} in the log; {len(lost)} lost, {len(other)} different"
    text += f", {len(twice)} given twice"
    return Check("no acknowledged decision is lost", text, bool(got) and not lost and not other and not twice)


def _memory(seen: Seen) -> Check:
    what = "the coordinator's memory does not grow"
    if seen.end - seen.start < 300:
        peak = max((size for _, size in seen.memory), default=0)
        return Check(what, f"not checked: needs 5 minutes or more (at most {peak / 2**20:.1f} MiB)", None)
    four = [size for at, size in seen.memory if 180 <= at - seen.start < 240]
    last = [size for at, size in seen.memory if seen.end - 60 <= at < seen.end]
    if not four or not last or any(down.back - seen.start > 180 for down in seen.coordinators):
        return Check(what, "it was restarted after minute three, or not looked at", False)
    before, after = statistics.median(four), statistics.median(last)
    text = f"{before / 2**20:.1f} MiB in minute four, {after / 2**20:.1f} MiB in the last: {after / before - 1:+.1%}"
    return Check(what, f"{text} (±{MOST_DRIFT:.0%} allowed)", abs(after / before - 1) <= MOST_DRIFT)


def _ended(seen: Seen) -> Check:
    text = ", ".join(f"{title}: {code}" for title, code in seen.codes.items())
    return Check("SIGTERM ends every process with 0", text, bool(seen.codes) and not any(seen.codes.values()))
