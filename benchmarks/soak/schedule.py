"""What disturbs the soak, and when: drawn from a seed, so that a run can be repeated.

The run is calm at both ends. In between there are two tracks, which overlap: one disturbs parties, the other the
coordinator. A hostile client is active all that time.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from benchmarks.soak.world import PARTIES

__all__ = ["CENTRE", "Event", "Kind", "Schedule", "draw"]

Kind = Literal["kill", "freeze", "fill", "rotate"]

CENTRE = "the coordinator"
STEP_SECONDS = 60.0  # between the disturbances of a track, unless the run is too short for one of each kind
JITTER = 0.6  # of a step
LAST_SECONDS = 15.0  # the last disturbance begins so long before the calm at the end
KILLED_SECONDS = 5.0  # until a party is restarted; the coordinator is restarted at once
FROZEN_SECONDS = (6.0, 10.0)
FULL_SECONDS = 5.0  # after the first refusal


@dataclass(frozen=True)
class Event:
    """A disturbance: seconds after the start of the load, what happens to whom, and for how many seconds."""

    at: float
    kind: Kind
    who: str
    seconds: float = 0.0


@dataclass(frozen=True)
class Schedule:
    """Two tracks of disturbances between `first_calm` seconds without any at the start and `last_calm` at the end."""

    seed: int
    first_calm: float
    last_calm: float
    parties: Sequence[Event]
    centre: Sequence[Event]


def draw(minutes: float, seed: int) -> Schedule:
    """Draw the disturbances of a run.

    The coordinator is killed in the first third only, and once at least, so that the memory of one process can be
    watched over the rest.

    Examples
    --------
    >>> [(event.kind, event.who) for event in draw(1, seed=0).parties]
    [('freeze', 'south'), ('kill', 'middle')]
    """
    rng = random.Random(seed)  # noqa: S311 (no secret)
    total = 60 * minutes
    first = min(max(total / 10, 10.0), 300.0)
    last = first / 2
    end = total - last - LAST_SECONDS
    parties = _parties(rng, first, end)
    return Schedule(seed, first, last, parties, _centre(rng, first, end, third=total / 3))


def _parties(rng: random.Random, start: float, end: float) -> list[Event]:
    found: list[Event] = []
    kinds = _bags(rng, ["kill", "freeze"])
    names = _bags(rng, PARTIES)
    for at in _times(rng, start, end, least=2):
        kind: Kind = "kill" if next(kinds) == "kill" else "freeze"
        seconds = KILLED_SECONDS if kind == "kill" else round(rng.uniform(*FROZEN_SECONDS), 1)
        found.append(Event(at, kind, next(names), seconds))
    return found


def _centre(rng: random.Random, start: float, end: float, third: float) -> list[Event]:
    found: list[Event] = []
    early, late, names = _bags(rng, ["kill", "fill", "rotate"]), _bags(rng, ["fill", "rotate"]), _bags(rng, PARTIES)
    for i, at in enumerate(_times(rng, start, end, least=3)):
        kind = next(early if i < 3 or at < third else late)
        if kind == "kill":
            found.append(Event(at, "kill", CENTRE))
        elif kind == "fill":
            found.append(Event(at, "fill", CENTRE, FULL_SECONDS))
        else:
            found.append(Event(at, "rotate", next(names)))
    return found


def _times(rng: random.Random, start: float, end: float, least: int) -> list[float]:
    count = max(least, int((end - start) // STEP_SECONDS))
    step = (end - start) / count
    return [round(start + step * (i + rng.uniform(0, JITTER)), 1) for i in range(count)]


def _bags(rng: random.Random, items: Sequence[str]) -> Iterator[str]:
    """Every item once in a random order, then again: none is missing for long."""
    while True:
        yield from rng.sample(items, len(items))
