"""Parties that mask Round 1, over real sockets and TLS, for tests; and a coordinator that asks them for anything."""

from __future__ import annotations

import itertools
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from party_helpers import CLASSES, Federation, StubParty, connected, serving

from gainroute.federation.coordinator.masked import new_nonce
from gainroute.federation.masking import create_mask_key, total_of
from gainroute.federation.party.settings import PrivacySettings
from gainroute.federation.transport.base import PartyRefusedError
from gainroute.federation.transport.proto import party_pb2 as pb

EPS = 1e-6
numbers = itertools.count()


def mask_keys(folder: Path, names: Any) -> dict[str, str]:
    """A masking key per party, in `folder/<name>.mask.key`; returns the public keys."""
    return {name: create_mask_key(folder / f"{name}.mask.key") for name in names}


def privacy(folder: Path, name: str, public: dict[str, str], **how: Any) -> PrivacySettings:
    peers = {other: key for other, key in public.items() if other != name}
    made = PrivacySettings(round1="masked", key=folder / f"{name}.mask.key", peers=peers)
    return replace(made, **how)


def plan_of(weights: dict[str, float], models: Any = None, eps: float = EPS) -> bytes:
    members = [
        pb.MaskPlan.Member(name=name, model=(models or {}).get(name, "m1"), weight=weight)
        for name, weight in weights.items()
    ]
    return pb.MaskPlan(members=members, eps=eps).SerializeToString(deterministic=True)


@dataclass
class Masked:
    """Masking parties by name, and the connections of a coordinator that need not be honest."""

    parties: dict[str, StubParty]
    connections: dict[str, Any]

    async def ask(self, name: str, ids: Any, weights: Any, *, model: str = "m1", models: Any = None, **how: Any) -> Any:
        """One party's part of a sum, (N, K) with the state of each row last."""
        given = {"nonce": new_nonce(), "request_id": f"r{next(numbers)}", **how}
        plan = how.pop("plan", None) or plan_of(weights, models)
        given.pop("plan", None)
        return (await self.connections[name].masked(ids, model=model, plan=plan, **given)).values

    async def sum_of(self, ids: Any, weights: dict[str, float], **how: Any) -> Any:
        """The sum over a roster, as the coordinator computes it, and the rows that are no answer."""
        how = {"nonce": new_nonce(), "request_id": f"r{next(numbers)}", **how}
        parts = [await self.ask(name, ids, weights, **how) for name in weights]
        return total_of([part[:, :-1] for part in parts]), np.logical_or.reduce([part[:, -1] != 0 for part in parts])

    def odds(self, name: str, ids: Any) -> Any:
        """A party's own log-odds: what nobody else may learn."""
        logs = np.log(self.parties[name].p[[int(i) for i in ids]].astype(np.float64) + EPS)
        return logs[:, :-1] - logs[:, -1:]

    async def refusal(self, name: str, ids: Any, weights: Any, **how: Any) -> str:
        try:
            await self.ask(name, ids, weights, **how)
        except PartyRefusedError as error:
            return str(error)
        raise AssertionError("it answered")


@asynccontextmanager
async def masked_parties(folder: Path, names: str = "abcd", *, models: Any = None, **how: Any) -> Any:
    """Parties with these one-letter names, in which all pin each other's keys."""
    federation = Federation(folder)
    public = mask_keys(folder, names)
    parties = {name: StubParty(seed=i, classes=len(CLASSES)) for i, name in enumerate(names)}
    async with AsyncExitStack() as stack:
        connections = {}
        for name, party in parties.items():
            settings = federation.settings(name, privacy=privacy(folder, name, public, **how))
            offered = {"m1": party} if models is None else dict.fromkeys(models, party)
            node = await stack.enter_async_context(serving(settings, offered))
            connections[name] = await stack.enter_async_context(connected(federation, node, name))
        yield Masked(parties, connections)
