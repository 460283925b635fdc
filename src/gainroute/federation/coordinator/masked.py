"""The coordinator's end of a masked Round 1: what it asks for, the pool of the sum, and what the handshake checks.

The coordinator learns the pooled posterior and nothing of a single party. What reads the posterior of one party is
refused before the first request.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gainroute.federation.coordinator.errors import PartyMissingError
from gainroute.federation.coordinator.outcome import ROUND1, UNKNOWN, degraded
from gainroute.federation.masking import largest_sum, total_of, weight_differences
from gainroute.federation.transport.base import PartyConnection, PartyDescription
from gainroute.federation.transport.masked import MISSING, WITHHELD, MaskingConnection
from gainroute.federation.transport.proto import party_pb2 as pb
from gainroute.routing.pool import LogLinearPool
from gainroute.routing.pooled_only import route_pooled
from gainroute.routing.router import Router
from gainroute.routing.taught import TaughtPool
from gainroute.routing.types import Decision

if TYPE_CHECKING:
    from gainroute.federation.coordinator.deployment import Deployment

__all__ = ["MaskedPool", "masking_differences", "new_nonce", "router_differences"]

Values = Mapping[str, npt.NDArray[Any]]  # by party: (N, K), see `MaskingConnection`


def new_nonce() -> bytes:
    """A nonce for one request: the time, by which parties refuse an old one, and 16 random bytes."""
    return int(time.time() * 1e6).to_bytes(8, "little") + os.urandom(16)


class MaskedPool:
    """The masked pool of one router.

    Parameters
    ----------
    router
        Fitted with ``pooled_only=True`` and a log-linear pool.
    parties
        Names in the order of the fit.
    smaller_roster
        Whether the parties present are asked while others are absent.
    """

    def __init__(self, router: Router, parties: Sequence[str], *, smaller_roster: bool) -> None:
        pool = router._pipeline.pool
        assert isinstance(pool, (LogLinearPool, TaughtPool))  # noqa: S101 (`router_differences` found nothing)
        self.smaller_roster = smaller_roster
        self._pool, self._router, self._parties = pool, router, tuple(parties)
        self._plans: dict[tuple[str, ...], bytes] = {}

    @property
    def eps(self) -> float:
        """The floor under the logarithm."""
        return self._pool.eps

    def weights(self, roster: Sequence[str]) -> dict[str, float]:
        """Weights of the parties in a roster; without all of them, scaled to the same total."""
        given = dict(zip(self._parties, self._pool.weight.tolist(), strict=True))
        kept = {name: given[name] for name in roster}
        total = sum(kept.values())
        scale = sum(given.values()) / total if len(kept) < len(given) and total > 0 else 1.0
        return {name: weight * scale for name, weight in kept.items()}

    def plan(self, roster: tuple[str, ...]) -> bytes:
        """The plan of a sum over a roster, as all parties get it."""
        if roster not in self._plans:
            models = self._router.provenance_.models
            members = [
                pb.MaskPlan.Member(name=name, model=models[name], weight=weight)
                for name, weight in self.weights(roster).items()
            ]
            self._plans[roster] = pb.MaskPlan(members=members, eps=self._pool.eps).SerializeToString(deterministic=True)
        return self._plans[roster]

    def roster(self, absent: Mapping[str, Exception]) -> tuple[str, ...]:
        """Who is asked while these parties are absent; empty if no one may be asked."""
        if absent and not self.smaller_roster:
            return ()
        return tuple(name for name in self._parties if name not in absent)

    def decide(self, roster: tuple[str, ...], router: Router, values: Values) -> Decision:
        """Pool the messages of a roster, and route; samples without an answer of every party in it get none."""
        parts = [values[name] for name in roster]
        total = total_of([part[:, :-1] for part in parts])
        blank = np.logical_or.reduce([part[:, -1] != 0 for part in parts])
        weights = list(self.weights(roster).values())
        # A sum of random numbers is beyond this with near certainty. Rounding adds half a unit per party.
        limit = largest_sum(weights, self._pool.eps) + 1e-3
        if (np.abs(total[~blank]) > limit).any():
            raise PartyMissingError(
                f"the masks of {', '.join(roster)} do not cancel: a party did not follow the protocol, or their "
                "[privacy.peers] changed; restart the coordinator to repeat the handshake"
            )
        complete = len(roster) == len(self._parties)
        # A map was fitted to the pool of all parties.
        pool = self._pool.pool if isinstance(self._pool, TaughtPool) and not complete else self._pool
        pooled = pool.from_log_odds(total)
        pooled[blank] = np.nan
        incomplete = np.full(len(pooled), not complete)
        return route_pooled(router, pooled, incomplete)

    def routes(self, roster: tuple[str, ...], values: Values, rows: int) -> list[str]:
        """The route of every sample: Round 1, or why there is no regular answer."""
        absent = [f"absent:{name}" for name in self._parties if name not in roster]
        route = [degraded(*absent) if absent else ROUND1] * rows
        states = np.array([values[name][:, -1] for name in roster])
        for row in np.flatnonzero(states.any(axis=0)).tolist():
            lacking, withheld = (
                [name for name, state in zip(roster, states[:, row].tolist(), strict=True) if state == kind]
                for kind in (MISSING, WITHHELD)
            )
            reasons = [*absent, *(f"{kind}:{','.join(names)}" for kind, names in
                                  (("missing", lacking), ("withheld", withheld)) if names)]  # fmt: skip
            route[row] = UNKNOWN if len(lacking) == len(self._parties) else degraded(*reasons)
        return route


# ---- the handshake ----------------------------------------------------------------------------------


def router_differences(router: Router) -> list[str]:
    """List what keeps a router from a masked Round 1."""
    masked = "[privacy] round1 is 'masked'"
    if not router.pooled_only:
        reason = (
            f"{masked}, and this {type(router).__name__} reads the parties' posteriors, which nobody sees then: "
            "learned gain, and explanations, blending and checks per party are not possible; fit it with "
            "pooled_only=True (`gainroute fit --pooled-only`, `gainroute train --pooled-only`)"
        )
        return [reason]
    if not isinstance(router._pipeline.pool, (LogLinearPool, TaughtPool)):
        return [f'{masked}, which sums log-odds, and its pool is not log-linear; fit it with pooling="log-linear"']
    return []


def masking_differences(
    deployment: Deployment,
    connection: PartyConnection,
    description: PartyDescription,
    others: Mapping[str, PartyDescription],
) -> list[str]:
    """List what keeps a party from a masked Round 1, or from a plain one; `others` have described themselves."""
    masking, pool = description.masking, deployment.masked
    if pool is None:
        if masking is None:
            return []
        return ['it answers Round 1 masked only: set [privacy] round1 = "masked" here, and fit a router for it']
    if masking is None:
        return ['it does not mask Round 1: set [privacy] round1 = "masked" in its settings']
    if not isinstance(connection, MaskingConnection):
        return [f"its transport, a {type(connection).__name__}, does not carry a masked Round 1: use gRPC"]
    found: list[str] = []
    unknown = [name for name in deployment.parties if name != description.name and name not in masking.peers]
    if unknown:
        found.append(f"it has no masking key of {', '.join(unknown)}: add it to its [privacy.peers]")
    for name, other in others.items():
        pinned = masking.peers.get(name)
        if pinned is not None and other.masking is not None and pinned != other.masking.public_key:
            found.append(f"its [privacy.peers] has another masking key of {name!r} than that party uses: correct it")
    if pool.smaller_roster and masking.min_roster >= len(deployment.parties):
        found.append(
            f"on_missing_party is 'smaller-roster', and it takes part in sums of {masking.min_roster} or more parties "
            "only: set 'refuse', or lower its privacy.min_roster"
        )
    weights = pool.weights(deployment.parties)
    wrong = weight_differences(weights, pool.eps, masking.min_roster, masking.max_weight_share)
    return found + [f"it refuses {reason}" for reason in wrong]
