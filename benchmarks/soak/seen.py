"""What a soak has seen: the input of its checks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from benchmarks.soak.load import Load
from benchmarks.soak.world import Expected, World
from gainroute.federation.coordinator.decision_log.schema import decision_id
from gainroute.federation.coordinator.decision_log.store import reading

__all__ = ["JUDGED_SECONDS", "Check", "Down", "Happened", "Logged", "Seen"]

JUDGED_SECONDS = 600.0  # a shorter run has too few requests to judge tails, and too little time to judge growth


@dataclass(frozen=True)
class Check:
    """One promise: what was observed, and whether it held (None: not checked)."""

    what: str
    seen: str
    held: bool | None


@dataclass(frozen=True)
class Down:
    """A disturbance, in monotonic seconds.

    A process did not run from `gone` to `begun`, and listened again at `back`. A disk was full from `gone` to `begun`.
    Certificates were replaced at `gone`, and in use at `back`; infinity if they never were.
    """

    name: str
    gone: float
    begun: float
    back: float


@dataclass(frozen=True, eq=False)
class Happened:
    """The disturbances, by kind."""

    parties: list[Down] = field(default_factory=list)  # killed
    coordinators: list[Down] = field(default_factory=list)  # killed
    frozen: list[Down] = field(default_factory=list)
    full: list[Down] = field(default_factory=list)
    rotated: list[Down] = field(default_factory=list)


@dataclass(frozen=True)
class Logged:
    """A row of the decision log, as far as clients know it."""

    sample: str
    label: int
    route: str


@dataclass(frozen=True, eq=False)
class Seen:
    """All observations of a soak.

    Attributes
    ----------
    world, load
        What was served, and what the clients received.
    start, end
        Start and end of the load; all times are monotonic seconds.
    calm
        Times without disturbances.
    happened
        The disturbances.
    hostile
        How often each trick of the hostile client was answered how.
    memory
        (time, bytes) of the coordinator, once per second.
    codes
        Exit codes after SIGTERM.
    log
        The decision log.
    disk
        How the disk was filled.
    """

    world: World
    load: Load
    start: float
    end: float
    calm: Sequence[tuple[float, float]]
    happened: Happened
    hostile: Mapping[str, int]
    memory: Sequence[tuple[float, int]]
    codes: Mapping[str, int]
    log: Path
    disk: str
    _firsts: dict[tuple[str, ...], Expected] = field(default_factory=dict)

    @property
    def judged(self) -> bool:
        """Whether the run was long enough to judge tails and growth."""
        return self.end - self.start >= JUDGED_SECONDS

    def first(self, absent: tuple[str, ...] = ()) -> Expected:
        """Return Round 1 without some parties, computed once."""
        if absent not in self._firsts:
            self._firsts[absent] = self.world.replay_first(absent)
        return self._firsts[absent]

    @cached_property
    def rows(self) -> dict[str, Logged]:
        """The decision log by decision id."""
        with reading(self.log) as log:
            found = log.execute("SELECT seq, sample_id, label, route FROM decisions")
            return {decision_id(row["seq"]): Logged(row["sample_id"], row["label"], row["route"]) for row in found}
