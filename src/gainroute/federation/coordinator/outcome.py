"""The answers to the samples of a batch or a request, as arrays; and how a route is written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from gainroute.federation.coordinator.deployment import Deployment
from gainroute.routing.types import BoolArray, FloatArray, IntArray

__all__ = ["ROUND1", "ROUND2", "UNKNOWN", "Outcome", "degraded", "degraded_reasons", "unlogged"]

Float32 = npt.NDArray[np.float32]

ROUND1 = "round1"
ROUND2 = "round2"
UNKNOWN = "unknown"
DEGRADED = "degraded:"


def degraded(*reasons: str) -> str:
    """Name a route that differs from what the router was calibrated for.

    Examples
    --------
    >>> degraded("absent:b"), degraded("absent:b", "missing:c")
    ('degraded:absent:b', 'degraded:absent:b+missing:c')
    """
    return DEGRADED + "+".join(reasons)


def degraded_reasons(route: str) -> set[str]:
    """Kinds of reasons of a degraded route; empty for any other route.

    Examples
    --------
    >>> sorted(degraded_reasons("degraded:absent:b+missing:c")), degraded_reasons("round1")
    (['absent', 'missing'], set())
    """
    if not route.startswith(DEGRADED):
        return set()
    return {reason.partition(":")[0] for reason in route.removeprefix(DEGRADED).split("+")}


def unlogged(route: str) -> str:
    """Mark a route whose row could not be written."""
    if route.startswith(DEGRADED):
        return f"{route}+unlogged"
    return degraded(UNKNOWN, "unlogged") if route == UNKNOWN else degraded("unlogged")


@dataclass(frozen=True, eq=False)
class Outcome:
    """The answers to N samples, given by one deployment.

    Attributes
    ----------
    deployment
        What answered.
    ids : N
        Sample ids.
    label : (N,)
        The answer as a column number; −1 for a sample that no party has.
    probabilities : (N, K) float32
        Posterior of the route that answered; zeros for a sample that no party has.
    escalated : (N,) bool
        True where the strong route answered.
    wanted : (N,) bool
        True where the router asked for Round 2, even if it failed.
    score : (N,)
        NaN where there is none.
    route : N
        `round1`, `round2`, `degraded:<reasons>`, `unknown`.
    weak, strong : (N,)
        Predictions of both routes; −1 where there is none.
    local : (M, N, K′)
        Local posteriors; NaN where a party does not have the sample.
    pooled : (N, K)
    strong_posterior : (N, K) float32, optional
        Valid where `escalated`.
    bytes : (N,)
        Payload of the parties' messages per sample.
    threshold : float or (N,)
        τ; per sample where a budget controller moves it.
    probability : (N,)
        Probability with which the sample was escalated.
    explored, capped : (N,) bool, optional
        True where it was escalated at random, and where only the cap prevented it. None where that is impossible.
    """

    deployment: Deployment
    ids: Sequence[str]
    label: IntArray
    probabilities: Float32
    escalated: BoolArray
    wanted: BoolArray
    score: FloatArray
    route: list[str]
    weak: IntArray
    strong: IntArray
    local: npt.NDArray[Any]
    pooled: FloatArray
    strong_posterior: Float32 | None
    bytes: FloatArray
    threshold: float | FloatArray
    probability: FloatArray
    explored: BoolArray | None = None
    capped: BoolArray | None = None

    def __len__(self) -> int:
        return len(self.ids)

    def part(self, rows: slice) -> Outcome:
        """The outcome of some of the samples."""
        whole = {f.name: getattr(self, f.name) for f in fields(self)}
        sliced = {name: v[rows] if isinstance(v, (np.ndarray, list)) else v for name, v in whole.items()}
        return Outcome(**sliced | {"local": self.local[:, rows]})
