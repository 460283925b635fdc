"""The answers to the samples of a batch or a request, as arrays; and how a route is written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gainroute.routing.types import BoolArray, FloatArray, IntArray

if TYPE_CHECKING:
    from gainroute.federation.coordinator.deployment import Deployment

__all__ = [
    "ROUND1", "ROUND2", "UNKNOWN", "Outcome", "asked_for_embedding", "degraded", "degraded_reasons", "named_in",
    "round_of", "routed_without", "unlogged",
]  # fmt: skip

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


def routed_without(round_: str, *reasons: str) -> str:
    """Name the route of a sample that lacks parties, and was routed by the calibration for those present.

    Or, in Round 2, of one for which only some parties were asked: `asked:a,c`.

    Examples
    --------
    >>> routed_without(ROUND2, "absent:b"), round_of("round2:absent:b"), round_of("round1")
    ('round2:absent:b', 'round2', 'round1')
    """
    return f"{round_}:{'+'.join(reasons)}"


def round_of(route: str) -> str:
    """What a route is without its reasons: `round1`, `round2`, `degraded` or `unknown`."""
    return route.partition(":")[0]


def named_in(route: str) -> list[tuple[str, str]]:
    """Parties that a route names, each with the kind of reason.

    Examples
    --------
    >>> named_in("round2:absent:b+missing:c,d")
    [('absent', 'b'), ('missing', 'c'), ('missing', 'd')]
    """
    pairs = (reason.rpartition(":") for reason in route.partition(":")[2].split("+"))
    return [(kind, name) for kind, _, names in pairs for name in names.split(",") if kind]


def asked_for_embedding(route: str, party: str) -> bool:
    """Whether a party was asked for the embedding of a sample, by its route.

    Examples
    --------
    >>> [asked_for_embedding(route, "b") for route in ("round1", "round2", "round2:absent:b", "round2:asked:a,c")]
    [False, True, False, False]
    """
    if round_of(route) != ROUND2:
        return route.startswith(f"{DEGRADED}{ROUND2}:")
    named = named_in(route)
    if any(kind == "asked" for kind, _ in named):
        return ("asked", party) in named
    return not {("absent", party), ("missing", party)} & set(named)


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
    _, _, reasons = route.partition(":")
    return degraded(*filter(None, [UNKNOWN if route == UNKNOWN else reasons, "unlogged"]))


@dataclass(frozen=True, eq=False)
class Outcome:
    """The answers to N samples, given by one deployment; −1 stands for no answer."""

    deployment: Deployment
    batch: str  # the id under which the parties were asked
    ids: Sequence[str]
    label: IntArray  # (N,) the answer as a column number; −1 for a sample that no party has
    probabilities: Float32  # (N, K) posterior of the route that answered; zeros for a sample that no party has
    escalated: BoolArray  # (N,) where the strong route answered
    wanted: BoolArray  # (N,) where the router asked for Round 2, even if it failed
    score: FloatArray  # (N,) NaN where there is none
    # N of `round1`, `round2` (each with `:<reasons>` if parties lack), `degraded:<reasons>`, `unknown`.
    route: list[str]
    weak: IntArray  # (N,) predictions of both routes
    strong: IntArray
    local: npt.NDArray[Any]  # (M, N, K′) local posteriors; NaN where a party lacks the sample; M = 0 if masked
    pooled: FloatArray  # (N, K)
    strong_posterior: Float32 | None  # (N, K), valid where `escalated`
    bytes: FloatArray  # (N,) payload of the parties' messages
    threshold: float | FloatArray  # τ; (N,) where a budget controller moves it
    probability: FloatArray  # (N,) probability with which the sample was escalated
    # (N,) where it was escalated at random, and where only the cap prevented it. None where that is impossible.
    explored: BoolArray | None = None
    capped: BoolArray | None = None
    # (N,) share of the bytes of asking every party for the sample; None where all are asked.
    spent: FloatArray | None = None

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def complete(self) -> BoolArray:
        """Where every party has the sample, (N,); everywhere if Round 1 is masked."""
        found: BoolArray = (
            ~np.isnan(self.local[:, :, 0]).any(axis=0) if len(self.local) else np.ones(len(self), dtype=bool)
        )
        return found

    def part(self, rows: slice) -> Outcome:
        """The outcome of some of the samples."""
        whole = {f.name: getattr(self, f.name) for f in fields(self)}
        sliced = {name: v[rows] if isinstance(v, (np.ndarray, list)) else v for name, v in whole.items()}
        return Outcome(**sliced | {"local": self.local[:, rows]})
