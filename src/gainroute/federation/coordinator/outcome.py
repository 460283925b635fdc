"""What became of the samples of a batch or of a request, as arrays; and how a route is written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gainroute.federation.coordinator.deployment import Version
from gainroute.routing.types import BoolArray, FloatArray, IntArray

__all__ = ["ROUND1", "ROUND2", "UNKNOWN", "Controlled", "Outcome", "degraded", "is_degraded", "unlogged"]

Float32 = npt.NDArray[np.float32]

ROUND1 = "round1"
ROUND2 = "round2"
UNKNOWN = "unknown"
DEGRADED = "degraded:"


def degraded(*reasons: str) -> str:
    """A route that is not what the router was calibrated for, and why.

    Examples
    --------
    >>> degraded("absent:b"), degraded("absent:b", "missing:c")
    ('degraded:absent:b', 'degraded:absent:b+missing:c')
    """
    return DEGRADED + "+".join(reasons)


def is_degraded(route: str) -> bool:
    """Whether a route is marked."""
    return route.startswith(DEGRADED)


def unlogged(route: str) -> str:
    """Mark a route whose row could not be written."""
    if is_degraded(route):
        return f"{route}+unlogged"
    return degraded(UNKNOWN, "unlogged") if route == UNKNOWN else degraded("unlogged")


@dataclass(frozen=True, eq=False)
class Controlled:
    """What the budget controller did, sample by sample; see `gainroute.control.budget.ControlledDecision`.

    Attributes
    ----------
    threshold, probability : (N,)
        τ as it stood, and with what probability the sample was escalated.
    explored, capped : (N,) bool
        True where it was escalated at random, and where the cap alone stopped it.
    explores
        Whether anything could be explored.
    """

    threshold: FloatArray
    probability: FloatArray
    explored: BoolArray
    capped: BoolArray
    explores: bool

    def part(self, rows: slice) -> Controlled:
        """Some of the samples."""
        return Controlled(
            self.threshold[rows], self.probability[rows], self.explored[rows], self.capped[rows], self.explores
        )


@dataclass(frozen=True, eq=False)
class Outcome:
    """The answers to N samples, by one version.

    Attributes
    ----------
    version
        What answered.
    ids : N
        Sample ids.
    label : (N,)
        The answer as a column number; −1 for a sample nobody has.
    probabilities : (N, K) float32
        Posterior of the route that answered; zeros for a sample nobody has.
    escalated : (N,) bool
        True where the strong route answered.
    wanted : (N,) bool
        True where the router asked for Round 2, whatever became of it.
    score : (N,)
        NaN where there is none.
    route : N
        `round1`, `round2`, `degraded:<reasons>`, `unknown`.
    weak, strong : (N,)
        Both routes' predictions; −1 where there is none.
    local : (M, N, K′) float32
        What the parties sent; NaN where one does not have the sample.
    pooled : (N, K)
    strong_posterior : (N, K) float32, optional
        Rows where `escalated`; others hold anything.
    bytes : (N,)
        Payload of the parties' messages.
    controlled
        What the budget controller did; None where there is none, and one threshold holds for all.
    """

    version: Version
    ids: Sequence[str]
    label: IntArray
    probabilities: Float32
    escalated: BoolArray
    wanted: BoolArray
    score: FloatArray
    route: list[str]
    weak: IntArray
    strong: IntArray
    local: Float32
    pooled: FloatArray
    strong_posterior: Float32 | None
    bytes: FloatArray
    controlled: Controlled | None = None

    def __len__(self) -> int:
        return len(self.ids)

    def part(self, rows: slice) -> Outcome:
        """Some of the samples."""
        return Outcome(
            self.version, self.ids[rows], self.label[rows], self.probabilities[rows], self.escalated[rows],
            self.wanted[rows], self.score[rows], self.route[rows], self.weak[rows], self.strong[rows],
            self.local[:, rows], self.pooled[rows],
            None if self.strong_posterior is None else self.strong_posterior[rows], self.bytes[rows],
            None if self.controlled is None else self.controlled.part(rows),
        )  # fmt: skip
